"""What a way of answering needs of a snapshot: rows of its tables, read by need and part by part.

A table may be as large as the corpus, what a question needs of it is not: only columns that are asked for are
read, of parts that hold a wanted row; of a large table only of the row groups that do. What was read of a
smaller one is kept, up to a bound, for the next question.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.method import Rows
from graphrag_ray.search import row_index
from graphrag_ray.search.mapped_arrays import strings
from graphrag_ray.search.row_index import RowIndex, halves
from graphrag_ray.store import blobs
from graphrag_ray.store.files import WHOLE_BYTES, Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.pages import Ints, Pages
from graphrag_ray.store.pages import read as read_pages
from graphrag_ray.store.parquet import is_one_of
from graphrag_ray.store.parts import Part, conformed, damage_told, read_rows, read_table
from graphrag_ray.store.snapshots import Manifest, being_read

PARTS_AT_ONCE = 8
KEPT_BYTES = 256 << 20
"""Columns that were read are kept up to this size in memory, the last used."""
LARGE_BYTES = 64 << 20
"""A table that is stored in more is not worth keeping: its columns would drive out all others."""


class Kept:
    """Columns of parts that were read, or pages of them, by path and name, as far as there is room. Parts
    never change, so none grows stale."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._limit, self._size = limit_bytes, 0
        self._columns: OrderedDict[tuple[str, str], pa.ChunkedArray] = OrderedDict()
        self._indexes: WeakValueDictionary[str, RowIndex] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, path: str, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Those of these columns that are kept."""
        with self._lock:
            found = {name: self._columns[path, name] for name in names if (path, name) in self._columns}
            for name in found:
                self._columns.move_to_end((path, name))
        return found

    def index(self, store: Store, part: Part) -> RowIndex:
        """An index of rows, in mapped memory, which is one as long as somebody holds it. Raises CorruptPart,
        StoreError."""
        found = self._indexes.get(part.path)
        if found is None:
            found = blobs.opened(store, part, "rows", row_index.read, row_index.check)
            self._indexes[part.path] = found
        return found

    def add(self, path: str, columns: Mapping[str, pa.ChunkedArray]) -> None:
        with self._lock:
            for name, column in columns.items():
                if (path, name) not in self._columns:
                    self._columns[path, name] = column
                    self._size += column.nbytes
            while self._size > self._limit and self._columns:
                self._size -= self._columns.popitem(last=False)[1].nbytes


@dataclass(frozen=True)
class Reader:
    """Reads one snapshot. Raises SnapshotRemoved where `gc` has taken it away meanwhile, CorruptPart."""

    store: Store
    manifest: Manifest
    kept: Kept = field(default_factory=Kept, repr=False, compare=False)
    _indexes: dict[str, RowIndex] = field(default_factory=dict, repr=False, compare=False)
    """Of rows, by path: held as long as the snapshot is read."""

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table of the snapshot (see schema.py), or some of its columns. Raises UsageError for a name or
        column that there is not."""
        _check(name, schema.TABLES, columns)
        with being_read(self.store, self.manifest):
            if columns is None:
                return read_table(self.store, self.manifest.parts(name), None, schema.TABLES[name])
            empty = schema_of(name, columns).empty_table()
            return self._together(name, empty, lambda part: self._columns(name, part, columns))

    def parts(self, name: str, columns: Sequence[str] | None = None) -> tuple[list[Part], pa.Schema]:
        """The parts of a table, or of embeddings (`embeddings_entity`, …), and the schema of these columns.
        Raises UsageError as `table` does."""
        vectors = {
            table: parts for table, parts in self.manifest.tables.items() if table[:11] == "embeddings_"
        }
        known = dict(schema.TABLES)
        if vectors.get(name):
            with being_read(self.store, self.manifest):
                known[name] = read_table(self.store, vectors[name][:1]).schema
        _check(name, known | dict.fromkeys(vectors, pa.schema([])), columns)
        of = known[name]
        return self.manifest.parts(name), of if columns is None else pa.schema([of.field(c) for c in columns])

    def rows(self, need: Rows) -> pa.Table:
        """The rows that are needed. Where they are named, a large table is read only where it holds one."""
        if need.ids is None:
            return self.table(need.table, need.columns)
        if not need.ids:
            return schema_of(need.table, need.columns).empty_table()
        wanted = pa.array(sorted(set(need.ids)), pa.string())
        is_large = self._is_large(need.table)

        with being_read(self.store, self.manifest):
            if (indexed := self._indexed(need)) is not None:
                return indexed

        def of(part: Part) -> pa.Table:
            if is_large:
                found = read_rows(self.store, part, need.columns, need.by, wanted)
                return conformed(self.store, part, found, schema_of(need.table, need.columns))
            # A small part is read in one request, whatever of it is wanted.
            first = [need.by, *need.columns] if part.bytes <= WHOLE_BYTES else [need.by]
            held = is_one_of(self._columns(need.table, part, list(dict.fromkeys(first)))[need.by], wanted)
            if not pc.any(held).as_py():
                return schema_of(need.table, need.columns).empty_table()
            return self._columns(need.table, part, need.columns).filter(held)

        with being_read(self.store, self.manifest):
            return self._together(need.table, schema_of(need.table, need.columns).empty_table(), of)

    def _is_large(self, table: str) -> bool:
        return sum(part.bytes for part in self.manifest.parts(table)) > LARGE_BYTES

    def _indexed(self, need: Rows) -> pa.Table | None:
        """`rows` by the indexes of a table's parts; None where there are none, or not by that column."""
        parts = self.manifest.parts(need.table)
        of_rows = self.manifest.parts(schema.rows_table(need.table))
        if not parts or len(of_rows) != len(parts):
            return None
        new = [part for part in of_rows if part.path not in self._indexes]
        opened = in_threads(lambda part: self.kept.index(self.store, part), new, PARTS_AT_ONCE)
        self._indexes.update(zip((part.path for part in new), opened, strict=True))
        indexes = [self._indexes[part.path] for part in of_rows]
        if any(
            index.n_rows != part.rows or (need.by != "id" and need.by not in index.pairs)
            for part, index in zip(parts, indexes, strict=True)
        ):
            return None
        high, low, ids = halves(need.ids or ())

        def rows_in(index: RowIndex) -> tuple[Ints, Ints]:
            return index.rows_of(high, low) if need.by == "id" else index.rows_with(need.by, high, need.most)

        found = [(part, index, *rows_in(index)) for part, index in zip(parts, indexes, strict=True)]
        found = [of_part for of_part in found if len(of_part[2])]
        far = self.store.local_path(parts[0].path) is None
        read = in_threads if far else map
        tables = list(
            read(lambda of: self._read_rows(need, ids, *of), found, *([PARTS_AT_ONCE] if far else []))
        )
        return pa.concat_tables([schema_of(need.table, need.columns).empty_table(), *tables])

    def _read_rows(
        self, need: Rows, ids: Sequence[str], part: Part, index: RowIndex, found: Ints, whose: Ints
    ) -> pa.Table:
        """Rows of a part. found: these, with each wanted id that they hold; whose: its place among `ids`."""
        rows = np.unique(found)

        def column(name: str) -> pa.Array | pa.ChunkedArray:
            field = schema.TABLES[need.table].field(name)
            if name == "id":
                return strings(index.ids_of(rows))
            if name == need.by and need.only_these and pa.types.is_list(field.type):
                order = np.argsort(found, kind="stable")
                ends = np.searchsorted(found[order], rows, "right")
                held = strings(ids[at] for at in whose[order].tolist())
                return pa.ListArray.from_arrays(pa.array([0, *ends.tolist()], pa.int32()), held)
            if name in index.pages:
                return self._paged(part, field, Pages(**index.pages[name]), rows)
            if self._is_large(need.table):
                own = strings(sorted(index.ids_of(rows)))
                return read_rows(self.store, part, [name], "id", own)[name]
            return self._columns(need.table, part, [name])[name].take(pa.array(rows))

        of = schema_of(need.table, need.columns)
        return pa.table([column(name) for name in need.columns], of.names).cast(of)

    def _paged(self, part: Part, field: pa.Field, pages: Pages, rows: Ints) -> pa.ChunkedArray:
        """Rows of a column of a part, of which only the pages that hold them are read."""
        at = pages.of(rows)
        wanted = np.unique(at)
        names = [f"{field.name}/{page}" for page in wanted.tolist()]
        found = self.kept.of(part.path, names)
        lacking = [n for n, name in enumerate(names) if name not in found]
        if lacking:
            with damage_told(self.store, part.path):
                read = read_pages(self.store, part, field, pages, wanted[lacking])
            new = {names[n]: pa.chunked_array([array]) for n, array in zip(lacking, read, strict=True)}
            self.kept.add(part.path, new)
            found |= new
        joined = pa.chunked_array([chunk for name in names for chunk in found[name].chunks], field.type)
        lengths = pages.first[wanted + 1].astype(np.int64) - pages.first[wanted]
        before = np.cumsum(lengths) - lengths
        places = before[np.searchsorted(wanted, at)] + rows - pages.first[at]
        return joined.take(pa.array(places))

    def scan(self, name: str, columns: Sequence[str], of: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """What `of` makes of some columns of a table, part by part: for what no id leads to."""
        empty = of(schema_of(name, columns).empty_table())
        with being_read(self.store, self.manifest):
            return self._together(name, empty, lambda part: of(self._columns(name, part, columns)))

    def pieces(self, name: str, columns: Sequence[str], rows: int | None = None) -> Iterator[pa.Table]:
        """A table of the snapshot piece by piece, in order: one part is in memory at a time, and none is
        kept.

        rows: of a piece, at most; None: a piece is a part
        """
        with being_read(self.store, self.manifest):
            for part in self.manifest.parts(name):
                table = read_table(self.store, [part], columns, schema.TABLES[name])
                step = rows or max(1, table.num_rows)
                yield from (table.slice(at, step) for at in range(0, table.num_rows, step))

    def _together(self, table: str, empty: pa.Table, of: Callable[[Part], pa.Table]) -> pa.Table:
        """What is read of each part, in their order."""
        parts = self.manifest.parts(table)
        with ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="parts") as pool:
            found = [empty, *pool.map(of, parts)]
        return pa.concat_tables(found, promote_options="default")

    def _columns(self, table: str, part: Part, names: Sequence[str]) -> pa.Table:
        found = self.kept.of(part.path, names)
        if missing := [name for name in names if name not in found]:
            read = read_table(self.store, [part], missing, schema.TABLES[table])
            new = {name: read[name] for name in missing}
            self.kept.add(part.path, new)
            found |= new
        return pa.table({name: found[name] for name in names}, schema=schema_of(table, names))


def _check(name: str, tables: Mapping[str, pa.Schema], columns: Sequence[str] | None) -> None:
    if name not in tables:
        raise UsageError(f"there is no table {name!r}; there are {', '.join(tables)}")
    known = tables[name].names
    if unknown := [c for c in columns or [] if c not in known]:
        raise UsageError(f"table {name} has no column {unknown[0]!r}; it has {', '.join(known)}")


def schema_of(table: str, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.TABLES[table].field(name) for name in columns])
