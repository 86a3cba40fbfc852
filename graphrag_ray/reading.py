"""What a way of answering needs of a snapshot: rows of its tables, read by need and part by part."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray import schema
from graphrag_ray.errors import UsageError
from graphrag_ray.query.method import Rows
from graphrag_ray.store.files import Store
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
        parts = self.manifest.parts(need.table) if len(wanted) else []
        columns = list(dict.fromkeys([*need.columns, need.by]))

        def of(part: Part) -> pa.Table:
            table = read_part(self.store, part, columns)
            return table.filter(_is_one_of(table[need.by], wanted)).select(list(need.columns))

        empty = pa.schema([schema.TABLES[need.table].field(c) for c in need.columns]).empty_table()
        with (
            being_read(self.store, self.manifest),
            ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="parts") as pool,
        ):
            found = list(pool.map(of, parts))
        return pa.concat_tables([empty, *found], promote_options="default")


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
