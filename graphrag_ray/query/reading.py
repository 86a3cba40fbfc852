"""What a way of answering needs of a snapshot: rows of its tables, read by need.

A table may be as large as the corpus, what a question needs of it is not. Rows that are named are found by
the indexes of rows, and read by pages; what rows are chosen by stands in these indexes. Of a table without
them only columns that are asked for are read, of parts that hold a wanted row. Columns and pages that were
read are kept, up to a bound, for the next question.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.arrow_arrays import arrow, strings
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import ID_LENGTH
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.store import blobs
from graphrag_ray.store.files import WHOLE_BYTES, Store, in_threads
from graphrag_ray.store.pages import Wanted
from graphrag_ray.store.pages import read as read_pages
from graphrag_ray.store.parquet import is_one_of
from graphrag_ray.store.parts import Part, conformed, read_rows, read_table
from graphrag_ray.store.search import row_index
from graphrag_ray.store.search.mapped_arrays import Ints, halves, ids_of, known
from graphrag_ray.store.search.row_index import RowEntries, RowIndex, group_name
from graphrag_ray.store.snapshots import Manifest, being_read

PARTS_AT_ONCE = 8
KEPT_BYTES = 256 << 20
"""Unless the settings say otherwise (`query.memory_mb`)."""
LARGE_BYTES = 64 << 20
"""A table that is stored in more is not worth keeping: its columns would drive out all others."""


class Kept:
    """Columns of parts that were read, or pages of them, by path and name, as far as there is room: the
    memory that questions share. Parts never change, so none grows stale. What is mapped into memory is not
    counted: the system takes that back when it needs the room.

    hits, misses: columns or pages that were looked for, and were there or not
    """

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self.limit_bytes, self.bytes = limit_bytes, 0
        self.hits = self.misses = 0
        self._columns: OrderedDict[tuple[str, str], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def told(self) -> dict[str, int]:
        return {"bytes": self.bytes, "hits": self.hits, "misses": self.misses}

    def of(self, path: str, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Those of these columns that are kept."""
        with self._lock:
            found = {name: self._columns[path, name] for name in names if (path, name) in self._columns}
            for name in found:
                self._columns.move_to_end((path, name))
            self.hits += len(found)
            self.misses += len(names) - len(found)
        return found

    def add(self, path: str, columns: Mapping[str, pa.ChunkedArray]) -> None:
        with self._lock:
            for name, column in columns.items():
                if (path, name) not in self._columns:
                    self._columns[path, name] = column
                    self.bytes += column.nbytes
            while self.bytes > self.limit_bytes and self._columns:
                self.bytes -= self._columns.popitem(last=False)[1].nbytes


@dataclass(frozen=True)
class IndexedParts:
    """An index of rows, its path, and the parts that it covers."""

    path: str
    index: RowIndex
    parts: list[Part]


@dataclass(frozen=True)
class Reader:
    """Reads one snapshot. Raises SnapshotRemoved where `gc` has taken it away meanwhile, CorruptPart."""

    store: Store
    manifest: Manifest
    kept: Kept = field(default_factory=Kept, repr=False, compare=False)
    _indexes: dict[str, list[IndexedParts]] = field(default_factory=dict, repr=False, compare=False)
    """Of rows, by table."""

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table of the snapshot (see schema.py), or some of its columns. Raises UsageError for a name or
        column that there is not."""
        _check(name, schema.TABLES, columns)
        with being_read(self.store, self.manifest):
            if columns is None:
                return read_table(self.store, self.manifest.parts(name), None, schema.TABLES[name])
            empty = _empty(schema_of(name, columns))
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
        columns = schema_of(need.table, need.columns)
        if not need.ids or not self.manifest.parts(need.table):
            return _empty(columns)
        with being_read(self.store, self.manifest):
            group = group_name((need.by,) if isinstance(need.by, str) else need.by)
            indexes = self._row_indexes(need.table)
            if indexes and all(indexed.index.has(group) for indexed in indexes):
                return self._indexed(need, group, indexes)
            assert isinstance(need.by, str), "several columns are looked up by an index"
            by, is_large = need.by, self._is_large(need.table)
            of_column = schema.TABLES[need.table].field(by).type
            kind = of_column.value_type if pa.types.is_list(of_column) else of_column
            wanted = pa.array(sorted(set(need.ids), key=str), kind)

            def of(part: Part) -> pa.Table:
                if is_large:
                    found = read_rows(self.store, part, need.columns, by, wanted)
                    return conformed(self.store, part, found, columns)
                # A small part is read in one request, whatever of it is wanted.
                first = [by, *need.columns] if part.bytes <= WHOLE_BYTES else [by]
                held = is_one_of(self._columns(need.table, part, list(dict.fromkeys(first)))[by], wanted)
                if not pc.any(held).as_py():
                    return _empty(columns)
                return self._columns(need.table, part, need.columns).filter(held)

            return self._together(need.table, _empty(columns), of)

    def _is_large(self, table: str) -> bool:
        return sum(part.bytes for part in self.manifest.parts(table)) > LARGE_BYTES

    def _row_indexes(self, table: str) -> list[IndexedParts]:
        """The indexes of a table's rows; [] where there are none. Raises CorruptPart where they are those of
        other parts."""
        if table not in self._indexes:
            types = row_index.entry_types(schema.carried(table))

            def opened(part: Part) -> RowIndex:
                return row_index.read(blobs.opened(self.store, part), types)

            stored = self.manifest.parts(schema.rows_table(table))
            left = deque(self.manifest.parts(table))
            found = []
            for part, index in zip(stored, in_threads(opened, stored, PARTS_AT_ONCE), strict=True):
                own = [left.popleft() for _ in index.ends if left]
                if np.cumsum([p.rows for p in own]).tolist() != index.ends.tolist():
                    raise index.source.refused("it is of other parts of the table")
                found.append(IndexedParts(part.path, index, own))
            self._indexes[table] = found if not left else []
        return self._indexes[table]

    def _indexed(self, need: Rows, group: str, indexes: Sequence[IndexedParts]) -> pa.Table:
        """`rows` by the indexes of a table."""
        numbers = [n for n in need.ids or () if isinstance(n, int)]
        ids = [] if numbers else known([str(id_) for id_ in need.ids or ()])
        high, low = halves(ids)
        if numbers:
            high = np.array([n for n in dict.fromkeys(numbers) if 0 <= n < 1 << 63], np.uint64)
            low = np.zeros_like(high)
        found = [indexed.index.found(group, high, low, need.most) for indexed in indexes]
        if need.most is not None and len(indexes) > 1:
            found = row_index.first_of_each(found, need.most)
        chosen = [
            (indexed, *row_index.distinct(entries))
            for indexed, entries in zip(indexes, found, strict=True)
            if len(entries.rows)
        ]
        wanted = [(name, *rows) for rows in chosen for name in need.columns]
        far = self.store.local_path(indexes[0].path) is None
        read = partial(in_threads, threads=PARTS_AT_ONCE) if far else map
        arrays = list(read(lambda x: self._column(need, ids, *x), wanted))
        columns, n = schema_of(need.table, need.columns), len(need.columns)
        tables = [pa.table(arrays[at : at + n], columns.names) for at in range(0, len(arrays), max(1, n))]
        return pa.concat_tables([_empty(columns), *(table.cast(columns) for table in tables)])

    def _column(
        self,
        need: Rows,
        ids: Sequence[str],
        name: str,
        indexed: IndexedParts,
        one_of_each: RowEntries,
        every: RowEntries,
    ) -> pa.Array | pa.ChunkedArray:
        """A column of rows. one_of_each: an entry of each row; every: all entries, by their rows."""
        column, rows, entry = schema.TABLES[need.table].field(name), one_of_each.rows, one_of_each.entry
        if name in (entry.dtype.names or ()):
            if pa.types.is_list(column.type):
                if need.only_these and name == need.by:
                    ends = np.searchsorted(every.rows, rows, "right")
                    held = strings(ids[at] for at in every.whose.tolist())
                    return pa.ListArray.from_arrays(arrow(np.append(0, ends).astype(np.int32)), held)
            elif column.type == pa.string():
                array = strings(ids_of(entry[name]["high"], entry[name]["low"]))
                return _null_where(pc.equal(array, "0" * ID_LENGTH), array)
            else:
                values = arrow(entry[name])
                try:
                    return _null_where(pc.is_nan(values), values).cast(column.type)
                except pa.ArrowException as e:
                    raise indexed.index.source.refused(f"a number is none of column {name}") from e
        pages = indexed.index.page_of(name, rows)
        if pages is not None:
            return self._paged(indexed, column, pages, rows)
        # Rows of a column that has no pages of its own.
        part_of_row = np.searchsorted(indexed.index.ends, rows, "right")
        before = np.append(0, indexed.index.ends)
        chunks: list[pa.Array] = []
        for n in np.unique(part_of_row).tolist():
            part, own = indexed.parts[n], part_of_row == n
            if self._is_large(need.table):
                wanted = strings(sorted(ids_of(entry["id"]["high"][own], entry["id"]["low"][own])))
                read = read_rows(self.store, part, [name], "id", wanted)
                chunks += conformed(self.store, part, read, schema_of(need.table, [name]))[name].chunks
            else:
                places = arrow(rows[own] - before[n])
                chunks += self._columns(need.table, part, [name])[name].take(places).chunks
        return pa.chunked_array(chunks, column.type)

    def _paged(
        self, indexed: IndexedParts, column: pa.Field, page_of_row: Ints, rows: Ints
    ) -> pa.ChunkedArray:
        """Rows of a column, of which only the pages that hold them are read."""
        wanted = np.unique(page_of_row)
        names = [f"{column.name}/{page}" for page in wanted.tolist()]
        found = self.kept.of(indexed.path, names)
        lacking = [n for n, name in enumerate(names) if name not in found]
        places = indexed.index.pages(column.name, wanted)
        by_part: dict[int, list[int]] = {}
        for n in lacking:
            by_part.setdefault(int(places.part[n]), []).append(n)
        asked = [
            Wanted(indexed.parts[part], places.rows[own].tolist(), places.page[own].tolist())
            for part, own in by_part.items()
        ]
        if asked:
            read = read_pages(self.store, column, asked)
            new = {names[n]: pa.chunked_array([array]) for n, array in zip(lacking, read, strict=True)}
            self.kept.add(indexed.path, new)
            found |= new
        joined = pa.chunked_array([chunk for name in names for chunk in found[name].chunks], column.type)
        before = np.cumsum(places.rows) - places.rows
        place = np.searchsorted(wanted, page_of_row)
        return joined.take(arrow(before[place] + rows - places.first[place]))

    def scan(self, name: str, columns: Sequence[str], of: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """What `of` makes of some columns of a table, part by part: for what no id leads to."""
        empty = of(_empty(schema_of(name, columns)))
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


def _empty(of: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([], of)  # `of.empty_table()` imports pandas


def _null_where(these: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(these, pa.nulls(len(values), values.type), values)
