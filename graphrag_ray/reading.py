"""What a way of answering needs of a snapshot: rows of its tables, read by need and part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray import schema
from graphrag_ray.errors import UsageError
from graphrag_ray.query.method import Rows
from graphrag_ray.store.files import WHOLE_BYTES, Store
from graphrag_ray.store.parts import Part, read_part, read_table
from graphrag_ray.store.snapshots import Manifest, being_read

PARTS_AT_ONCE = 8


@dataclass(frozen=True)
class Reader:
    """Reads one snapshot. Raises SnapshotRemoved where `gc` has taken it away meanwhile, CorruptPart."""

    store: Store
    manifest: Manifest

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table of the snapshot (see schema.py), or some of its columns. Raises UsageError for a name or
        column that there is not."""
        if name not in schema.TABLES:
            raise UsageError(f"there is no table {name!r}; there are {', '.join(schema.TABLES)}")
        known = schema.TABLES[name].names
        if unknown := [c for c in columns or [] if c not in known]:
            raise UsageError(f"table {name} has no column {unknown[0]!r}; it has {', '.join(known)}")
        with being_read(self.store, self.manifest):
            return read_table(self.store, self.manifest.parts(name), columns, schema.TABLES[name])

    def rows(self, need: Rows) -> pa.Table:
        """A table may be as large as the corpus, what a question needs of it is not: it is read part by
        part, and of each only the rows that are wanted are kept."""
        if need.ids is None:
            return self.table(need.table, need.columns)
        wanted = pa.array(sorted(set(need.ids)), pa.string())

        def of(part: Part) -> pa.Table:
            if part.bytes > WHOLE_BYTES and not _any(read_part(self.store, part, [need.by]), need.by, wanted):
                return empty  # its texts are not read
            table = read_part(self.store, part, list(dict.fromkeys([*need.columns, need.by])))
            return table.filter(_is_one_of(table[need.by], wanted)).select(list(need.columns))

        empty = self.empty(need.table, need.columns)
        return self._each(need.table, of, empty) if len(wanted) else empty

    def scan(self, name: str, columns: Sequence[str], of: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """What `of` keeps of some columns of a table, part by part: for what no id leads to."""
        empty = self.empty(name, columns)
        return self._each(name, lambda part: of(read_part(self.store, part, columns)), empty)

    def pieces(self, name: str, columns: Sequence[str], rows: int | None = None) -> Iterator[pa.Table]:
        """A table of the snapshot piece by piece, in order and with its schema: one part is in memory at a
        time.

        rows: of a piece, at most; None: a piece is a part
        """
        with being_read(self.store, self.manifest):
            for part in self.manifest.parts(name):
                table = read_table(self.store, [part], columns, schema.TABLES[name])
                step = rows or max(1, table.num_rows)
                yield from (table.slice(at, step) for at in range(0, table.num_rows, step))

    def _each(self, name: str, of: Callable[[Part], pa.Table], empty: pa.Table) -> pa.Table:
        with (
            being_read(self.store, self.manifest),
            ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="parts") as pool,
        ):
            found = list(pool.map(of, self.manifest.parts(name)))
        return pa.concat_tables([empty, *found], promote_options="default")

    def empty(self, name: str, columns: Sequence[str]) -> pa.Table:
        """No row of a table."""
        return pa.schema([schema.TABLES[name].field(c) for c in columns]).empty_table()


def _any(table: pa.Table, column: str, wanted: pa.Array) -> bool:
    return bool(pc.any(_is_one_of(table[column], wanted)).as_py())


def _is_one_of(column: pa.ChunkedArray, wanted: pa.Array) -> pa.ChunkedArray | pa.Array:
    """[rows] whether a value, or one of a list of values, is wanted."""
    if not pa.types.is_list(column.type):
        return pc.is_in(column, value_set=wanted)
    masks = []
    for chunk in column.chunks:
        inside = pc.is_in(chunk.flatten(), value_set=wanted)
        rows = pc.list_parent_indices(chunk).filter(inside)
        masks.append(pc.is_in(pa.array(range(len(chunk)), pa.int64()), value_set=rows.cast(pa.int64())))
    return pa.chunked_array(masks, pa.bool_())
