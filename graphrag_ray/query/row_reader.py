"""Read rows of a snapshot's tables on demand.

A table may be as large as the corpus, but a question needs few of its rows. Row indexes locate rows by id,
and also contain the columns that rows are selected by. Other columns are read page by page. For a table
without row indexes, only the requested columns of parts with a matching row are read. Columns and pages are
cached, up to a limit, for the next question.
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
from graphrag_ray.base.arrow_arrays import to_arrow, to_arrow_strings
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import ID_LENGTH
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.store import index_files
from graphrag_ray.store.files import READ_WHOLE_BYTES, Store, map_in_threads
from graphrag_ray.store.pages import PageRequest, read_pages
from graphrag_ray.store.parquet import is_one_of
from graphrag_ray.store.parts import Part, conform, read_rows, read_table
from graphrag_ray.store.search import row_index
from graphrag_ray.store.search.mapped_arrays import Ints, id_halves, join_halves, valid_ids
from graphrag_ray.store.search.row_index import RowEntries, RowIndex, group_name
from graphrag_ray.store.snapshots import Manifest, detect_removal

N_THREADS = 8
CACHE_BYTES = 256 << 20
"""Default size of the cache (`query.cache_mb`)."""
MAX_CACHED_TABLE_BYTES = 64 << 20
"""Larger tables are not cached, because their columns would evict all others."""


class ColumnCache:
    """An LRU cache of columns of parts, or of their pages, by path and name. Questions share it.

    Parts are immutable, so entries never become stale. Memory-mapped columns are not counted: the operating
    system reclaims them.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.limit_bytes, self.bytes = limit_bytes, 0
        self.hits = self.misses = 0
        self._columns: OrderedDict[tuple[str, str], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def stats(self) -> dict[str, int]:
        """Return the size in bytes, and the number of hits and misses."""
        return {"bytes": self.bytes, "hits": self.hits, "misses": self.misses}

    def get(self, path: str, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Return the cached columns among `names`."""
        with self._lock:
            cached = {name: self._columns[path, name] for name in names if (path, name) in self._columns}
            for name in cached:
                self._columns.move_to_end((path, name))
            self.hits += len(cached)
            self.misses += len(names) - len(cached)
        return cached

    def add(self, path: str, columns: Mapping[str, pa.ChunkedArray]) -> None:
        with self._lock:
            for name, column in columns.items():
                if (path, name) not in self._columns:
                    self._columns[path, name] = column
                    self.bytes += column.nbytes
            while self.bytes > self.limit_bytes and self._columns:
                self.bytes -= self._columns.popitem(last=False)[1].nbytes


@dataclass(frozen=True)
class _IndexedParts:
    """A row index, its path, and the parts that it covers."""

    path: str
    index: RowIndex
    parts: list[Part]


@dataclass(frozen=True)
class Reader:
    """Reads one snapshot.

    All methods raise SnapshotRemoved if `gc` has removed the snapshot, and CorruptPart if a part is damaged.
    """

    store: Store
    manifest: Manifest
    cache: ColumnCache = field(default_factory=ColumnCache, repr=False, compare=False)
    _indexes: dict[str, list[_IndexedParts]] = field(default_factory=dict, repr=False, compare=False)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a table (see schema.py), or some of its columns. Raises UsageError for an unknown name."""
        _check(name, schema.TABLES, columns)
        with detect_removal(self.store, self.manifest):
            if columns is None:
                return read_table(self.store, self.manifest.parts(name), None, schema.TABLES[name])
            empty = _empty(schema_of(name, columns))
            return self._concat(name, empty, lambda part: self._columns(name, part, columns))

    def parts(self, name: str, columns: Sequence[str] | None = None) -> tuple[list[Part], pa.Schema]:
        """List the parts of a table or of embeddings (`embeddings_entity`, …), and the schema of the columns.

        Raises:
            UsageError: The table or a column does not exist.
        """
        tables = self.manifest.tables
        vectors = {table: parts for table, parts in tables.items() if table.startswith("embeddings_")}
        schemas = dict(schema.TABLES)
        if vectors.get(name):
            with detect_removal(self.store, self.manifest):
                schemas[name] = read_table(self.store, vectors[name][:1]).schema
        _check(name, schemas | {v: pa.schema([]) for v in vectors if v not in schemas}, columns)
        selected = schemas[name]
        if columns is not None:
            selected = pa.schema([selected.field(c) for c in columns])
        return self.manifest.parts(name), selected

    def rows(self, need: Rows) -> pa.Table:
        """Read rows. Rows selected by id are read only from the parts or pages that contain them."""
        if need.ids is None:
            return self.table(need.table, need.columns)
        columns = schema_of(need.table, need.columns)
        if not need.ids or not self.manifest.parts(need.table):
            return _empty(columns)
        with detect_removal(self.store, self.manifest):
            group = group_name((need.by,) if isinstance(need.by, str) else need.by)
            indexes = self._row_indexes(need.table)
            if indexes and all(indexed.index.has(group) for indexed in indexes):
                return self._indexed_rows(need, group, indexes)
            assert isinstance(need.by, str), "selecting by several columns needs a row index"
            by, is_large = need.by, self._is_large(need.table)
            type_ = schema.TABLES[need.table].field(by).type
            id_type = type_.value_type if pa.types.is_list(type_) else type_
            wanted = pa.array(sorted(set(need.ids), key=str), id_type)

            def matching_rows(part: Part) -> pa.Table:
                if is_large:
                    selected = read_rows(self.store, part, need.columns, by, wanted)
                    return conform(self.store, part, selected, columns)
                # A small part takes one request, so read all columns with the first one.
                initial = [by, *need.columns] if part.bytes <= READ_WHOLE_BYTES else [by]
                mask = is_one_of(self._columns(need.table, part, list(dict.fromkeys(initial)))[by], wanted)
                if not pc.any(mask).as_py():
                    return _empty(columns)
                return self._columns(need.table, part, need.columns).filter(mask)

            return self._concat(need.table, _empty(columns), matching_rows)

    def _is_large(self, table: str) -> bool:
        return sum(part.bytes for part in self.manifest.parts(table)) > MAX_CACHED_TABLE_BYTES

    def _row_indexes(self, table: str) -> list[_IndexedParts]:
        """Open the row indexes of a table. Returns [] if there are none. Raises CorruptPart."""
        if table not in self._indexes:
            types = row_index.entry_types(schema.row_index_columns(table))

            def open_index(part: Part) -> RowIndex:
                return row_index.read(index_files.open_part(self.store, part), types)

            stored = self.manifest.parts(schema.row_index_table(table))
            remaining = deque(self.manifest.parts(table))
            indexes = []
            for part, index in zip(stored, map_in_threads(open_index, stored, N_THREADS), strict=True):
                covered = [remaining.popleft() for _ in index.ends if remaining]
                if np.cumsum([p.rows for p in covered]).tolist() != index.ends.tolist():
                    raise index.source.invalid("it does not match the parts of the table")
                indexes.append(_IndexedParts(part.path, index, covered))
            self._indexes[table] = indexes if not remaining else []
        return self._indexes[table]

    def _indexed_rows(self, need: Rows, group: str, indexes: Sequence[_IndexedParts]) -> pa.Table:
        """Read rows through the row indexes of a table."""
        numbers = [n for n in need.ids or () if isinstance(n, int)]
        ids = [] if numbers else valid_ids([str(id_) for id_ in need.ids or ()])
        high, low = id_halves(ids)
        if numbers:
            high = np.array([n for n in dict.fromkeys(numbers) if 0 <= n < 1 << 63], np.uint64)
            low = np.zeros_like(high)
        matches = [indexed.index.find(group, high, low, need.limit_per_id) for indexed in indexes]
        if need.limit_per_id is not None and len(indexes) > 1:
            matches = row_index.best_per_id(matches, need.limit_per_id)
        nonempty = [
            (indexed, *row_index.one_per_row(entries))
            for indexed, entries in zip(indexes, matches, strict=True)
            if len(entries.rows)
        ]
        is_remote = self.store.local_path(indexes[0].path) is None
        read = partial(map_in_threads, threads=N_THREADS) if is_remote else map
        wanted = [(name, *entries) for entries in nonempty for name in need.columns]
        arrays = list(read(lambda column: self._column(need, ids, *column), wanted))
        columns, n = schema_of(need.table, need.columns), len(need.columns)
        tables = [
            pa.table(arrays[first : first + n], columns.names) for first in range(0, len(arrays), max(1, n))
        ]
        return pa.concat_tables([_empty(columns), *(table.cast(columns) for table in tables)])

    def _column(
        self,
        need: Rows,
        ids: Sequence[str],
        name: str,
        indexed: _IndexedParts,
        one_per_row: RowEntries,
        all_entries: RowEntries,
    ) -> pa.Array | pa.ChunkedArray:
        """Read a column of rows, given one index entry per row, and all entries sorted by row."""
        column, rows, entry = schema.TABLES[need.table].field(name), one_per_row.rows, one_per_row.entry
        if name in (entry.dtype.names or ()):
            if pa.types.is_list(column.type):
                if need.trim_lists and name == need.by:
                    ends = np.searchsorted(all_entries.rows, rows, "right")
                    matched_ids = to_arrow_strings(ids[n] for n in all_entries.wanted_index.tolist())
                    return pa.ListArray.from_arrays(
                        to_arrow(np.append(0, ends).astype(np.int32)), matched_ids
                    )
            elif column.type == pa.string():
                array = to_arrow_strings(join_halves(entry[name]["high"], entry[name]["low"]))
                return _null_where(pc.equal(array, "0" * ID_LENGTH), array)
            else:
                values = to_arrow(entry[name])
                try:
                    return _null_where(pc.is_nan(values), values).cast(column.type)
                except pa.ArrowException as e:
                    raise indexed.index.source.invalid(f"a number is not valid for column {name}") from e
        pages = indexed.index.pages_of_rows(name, rows)
        if pages is not None:
            return self._paged(indexed, column, pages, rows)
        # This column is not stored in pages.
        part_of_row = np.searchsorted(indexed.index.ends, rows, "right")
        before = np.append(0, indexed.index.ends)
        chunks: list[pa.Array] = []
        for n in np.unique(part_of_row).tolist():
            part, in_part = indexed.parts[n], part_of_row == n
            if self._is_large(need.table):
                part_ids = entry["id"][in_part]
                wanted = to_arrow_strings(sorted(join_halves(part_ids["high"], part_ids["low"])))
                read = read_rows(self.store, part, [name], "id", wanted)
                chunks += conform(self.store, part, read, schema_of(need.table, [name]))[name].chunks
            else:
                positions = to_arrow(rows[in_part] - before[n])
                chunks += self._columns(need.table, part, [name])[name].take(positions).chunks
        return pa.chunked_array(chunks, column.type)

    def _paged(
        self, indexed: _IndexedParts, column: pa.Field, page_of_row: Ints, rows: Ints
    ) -> pa.ChunkedArray:
        """Read rows of a column, and only the pages that contain them."""
        wanted = np.unique(page_of_row)
        names = [f"{column.name}/{page}" for page in wanted.tolist()]
        cached = self.cache.get(indexed.path, names)
        missing = [n for n, name in enumerate(names) if name not in cached]
        locations = indexed.index.locate_pages(column.name, wanted)
        by_part: dict[int, list[int]] = {}
        for n in missing:
            by_part.setdefault(int(locations.part[n]), []).append(n)
        if missing:
            requests = [
                PageRequest(indexed.parts[part], locations.rows[ns].tolist(), locations.page[ns].tolist())
                for part, ns in by_part.items()
            ]
            read = read_pages(self.store, column, requests)
            new = {names[n]: pa.chunked_array([array]) for n, array in zip(missing, read, strict=True)}
            self.cache.add(indexed.path, new)
            cached |= new
        joined = pa.chunked_array([chunk for name in names for chunk in cached[name].chunks], column.type)
        page_starts = np.cumsum(locations.rows) - locations.rows
        page = np.searchsorted(wanted, page_of_row)
        return joined.take(to_arrow(page_starts[page] + rows - locations.first[page]))

    def scan(self, name: str, columns: Sequence[str], transform: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """Apply a function to some columns of each part, and concatenate the results."""
        empty = transform(_empty(schema_of(name, columns)))
        with detect_removal(self.store, self.manifest):
            return self._concat(name, empty, lambda part: transform(self._columns(name, part, columns)))

    def iter_batches(self, name: str, columns: Sequence[str], rows: int | None = None) -> Iterator[pa.Table]:
        """Read a table part by part, in order and without caching. With `rows`, limit the rows per batch."""
        with detect_removal(self.store, self.manifest):
            for part in self.manifest.parts(name):
                table = read_table(self.store, [part], columns, schema.TABLES[name])
                step = rows or max(1, table.num_rows)
                yield from (table.slice(first, step) for first in range(0, table.num_rows, step))

    def _concat(self, table: str, empty: pa.Table, read: Callable[[Part], pa.Table]) -> pa.Table:
        """Read all parts in threads, and concatenate the results in order."""
        with ThreadPoolExecutor(N_THREADS, thread_name_prefix="parts") as pool:
            tables = [empty, *pool.map(read, self.manifest.parts(table))]
        return pa.concat_tables(tables, promote_options="default")

    def _columns(self, table: str, part: Part, names: Sequence[str]) -> pa.Table:
        cached = self.cache.get(part.path, names)
        if missing := [name for name in names if name not in cached]:
            read = read_table(self.store, [part], missing, schema.TABLES[table])
            new = {name: read[name] for name in missing}
            self.cache.add(part.path, new)
            cached |= new
        return pa.table({name: cached[name] for name in names}, schema=schema_of(table, names))


def _check(name: str, tables: Mapping[str, pa.Schema], columns: Sequence[str] | None) -> None:
    if name not in tables:
        raise UsageError(f"Unknown table {name!r}. Choose from: {', '.join(tables)}.")
    names = tables[name].names
    if unknown := [c for c in columns or [] if c not in names]:
        raise UsageError(f"Table {name} has no column {unknown[0]!r}. Choose from: {', '.join(names)}.")


def schema_of(table: str, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.TABLES[table].field(name) for name in columns])


def _empty(columns: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([], columns)  # `Schema.empty_table` imports pandas


def _null_where(mask: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(mask, pa.nulls(len(values), values.type), values)
