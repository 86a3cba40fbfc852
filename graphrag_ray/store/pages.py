"""Some rows of a Parquet file, for which only the pages that hold them are read.

pyarrow reads a column of a row group whole, and finds it by the file's footer: for ten rows of a table of
millions that is a thousand times what is needed. A part is written with pages of some 16 kB and with
Parquet's own index of them (`parquet.encode`). From that index `located` takes once where the pages of each
column lie; whoever keeps this reads rows by their places, without the file's footer. The pages are put
behind one another with a footer of their own: a small Parquet file, which pyarrow decodes.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import thrift
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import READS, encode
from graphrag_ray.store.parts import Part
from graphrag_ray.store.thrift import I64, LIST, STRUCT, Struct

GAP_BYTES = 256 << 10
"""Of object storage, bytes that nobody wants are read rather than asked for in one more request."""
MAGIC = b"PAR1"
_TAIL = 8
"""Bytes behind a footer: how long it is, and the magic."""
_SCHEMA, _ROWS, _GROUPS = 2, 3, 4
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_AT, _GROUP_PACKED = 1, 2, 3, 5, 6
_CHUNK_AT, _CHUNK, _INDEX_AT, _INDEX_BYTES = 2, 3, 4, 5
_PATH, _VALUES, _PLAIN_BYTES, _PACKED_BYTES, _DATA_AT, _DICTIONARY_AT = 3, 5, 6, 7, 9, 11
_PLACES, _PLACE_AT, _PLACE_BYTES, _PLACE_ROW = 1, 1, 2, 3
_DATA_HEAD, _HEAD_VALUES = 5, 1
"""Numbers of fields in parquet.thrift: of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, OffsetIndex
with PageLocation, PageHeader with DataPageHeader."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pages:
    """The pages of a column of a file, in its order.

    first   [pages + 1]: the first row of each, and the number of rows
    start   [pages]: where its bytes begin
    size    [pages]: how many these are
    values  [pages]: how many values it holds; of a column of lists that is not its rows
    sum     [pages]: CRC-32 of its bytes
    """

    first: npt.NDArray[Any]
    start: npt.NDArray[Any]
    size: npt.NDArray[Any]
    values: npt.NDArray[Any]
    sum: npt.NDArray[Any]

    def of(self, rows: Ints) -> Ints:
        """The page of each row."""
        return np.searchsorted(self.first, rows, side="right").astype(np.int64) - 1


def located(data: bytes | memoryview, columns: Sequence[str]) -> dict[str, Pages]:
    """Where the pages of columns of a file lie; of columns whose pages can be read without others: those of
    one kind of value, without a dictionary, in a file with an index of its pages. Raises ValueError for what
    is no such file."""
    found: dict[str, list[tuple[int, ...]]] = {name: [] for name in columns}
    n_rows = 0
    for group in _footer(data)[_GROUPS][1][1]:
        chunks: list[Struct] = group[_COLUMNS][1][1]
        leaves = Counter(_column(chunk) for chunk in chunks)
        for chunk in chunks:
            name = _column(chunk)
            if leaves[name] > 1 or _DICTIONARY_AT in chunk[_CHUNK][1] or _INDEX_AT not in chunk:
                found.pop(name, None)
            elif name in found:
                index, _ = thrift.parse(data, chunk[_INDEX_AT][1])
                found[name] += (_page(data, place, n_rows) for place in index[_PLACES][1][1])
        n_rows += group[_GROUP_ROWS][1]
    return {name: _pages(pages, n_rows) for name, pages in found.items() if pages}


def _column(chunk: Struct) -> str:
    return str(chunk[_CHUNK][1][_PATH][1][1][0].decode())


def _page(data: bytes | memoryview, place: Struct, rows_before: int) -> tuple[int, ...]:
    start, size, first = (place[number][1] for number in (_PLACE_AT, _PLACE_BYTES, _PLACE_ROW))
    head, _ = thrift.parse(data, start)
    values = head[_DATA_HEAD][1][_HEAD_VALUES][1]
    return rows_before + first, start, size, values, zlib.crc32(data[start : start + size])


def _pages(pages: Sequence[tuple[int, ...]], n_rows: int) -> Pages:
    first, *rest = np.array(pages, np.int64).reshape(-1, 5).T
    return Pages(np.append(first, n_rows), *rest)


def _footer(data: bytes | memoryview) -> Struct:
    if len(data) < _TAIL + len(MAGIC) or bytes(data[-len(MAGIC) :]) != MAGIC:
        raise ValueError("it is no Parquet file")
    (size,) = struct.unpack("<I", data[-_TAIL : -len(MAGIC)])
    if size > len(data) - _TAIL:
        raise ValueError("its footer is cut short")
    return thrift.parse(data, len(data) - _TAIL - size)[0]


def read(store: Store, part: Part, field: pa.Field, pages: Pages, wanted: Ints) -> list[pa.Array]:
    """What some pages of a column of a part hold, page by page. Pages that lie near each other are read
    together. Raises CorruptPart for other bytes than those that were written; FileNotFoundError, StoreError.
    """
    starts, ends = _places(pages, wanted)
    if len(wanted) and (starts.min() < len(MAGIC) or ends.max() > part.bytes):
        raise CorruptPart(
            f"{store.url_of(part.path)} has no such pages of column {field.name}", path=part.path
        )
    for _ in range(READS):
        found = _fetched(store, part.path, pages, wanted)
        if all(zlib.crc32(data) == pages.sum[at] for data, at in zip(found, wanted, strict=True)):
            break
    else:
        raise CorruptPart(
            f"{store.url_of(part.path)} is damaged: a page of column {field.name}", path=part.path
        )
    rows = pages.first[wanted + 1].astype(np.int64) - pages.first[wanted]
    try:
        whole = decoded(field, found, int(rows.sum()), int(pages.values[wanted].sum()))
    except (pa.ArrowException, ValueError, OSError) as e:
        raise CorruptPart(f"{store.url_of(part.path)} is damaged: {e}", path=part.path) from e
    # Copies: a slice that is kept would keep all of them.
    spans = zip((np.cumsum(rows) - rows).tolist(), np.cumsum(rows).tolist(), strict=True)
    return [whole.take(pa.array(range(first, end), pa.int64())) for first, end in spans]


def _fetched(store: Store, path: str, pages: Pages, wanted: Ints) -> list[bytes]:
    """The bytes of pages, rising."""
    starts, ends = _places(pages, wanted)
    near = GAP_BYTES if store.local_path(path) is None else 0
    cuts = np.flatnonzero(starts[1:] > ends[:-1] + near) + 1
    found: list[bytes] = []
    for of in np.split(np.arange(len(wanted)), cuts):
        at = int(starts[of[0]])
        data = store.read_range(path, at, int(ends[of[-1]]))
        found += [data[s - at : e - at] for s, e in zip(starts[of].tolist(), ends[of].tolist(), strict=True)]
    return found


def _places(pages: Pages, wanted: Ints) -> tuple[Ints, Ints]:
    """Where the bytes of pages begin and end."""
    starts = pages.start[wanted].astype(np.int64)
    return starts, starts + pages.size[wanted]


def decoded(field: pa.Field, pages: Sequence[bytes | memoryview], rows: int, values: int) -> pa.Array:
    """What pages of a column hold. rows, values: of all of them together.

    Raises ValueError and pa.ArrowException for pages that are damaged, or hold something else.
    """
    template = _template(field)
    packed = sum(len(page) for page in pages)
    (group,) = template[_GROUPS][1][1]
    (chunk,) = group[_COLUMNS][1][1]
    at = len(MAGIC)
    meta = chunk[_CHUNK][1] | {
        _VALUES: (I64, values),
        _PLAIN_BYTES: (I64, packed),
        _PACKED_BYTES: (I64, packed),
        _DATA_AT: (I64, at),
    }
    chunk = {_CHUNK_AT: (I64, at), _CHUNK: (STRUCT, meta)}
    group = {
        _COLUMNS: (LIST, (STRUCT, [chunk])),
        _GROUP_BYTES: (I64, packed),
        _GROUP_ROWS: (I64, rows),
        _GROUP_AT: (I64, at),
        _GROUP_PACKED: (I64, packed),
    }
    footer = thrift.rendered(template | {_ROWS: (I64, rows), _GROUPS: (LIST, (STRUCT, [group]))})
    file = b"".join([MAGIC, *pages, footer, struct.pack("<I", len(footer)), MAGIC])
    opened = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False)
    table = opened.read(use_threads=False)
    table.validate(full=True)
    if table.num_rows != rows or table.num_columns != 1:
        raise ValueError(f"pages hold {table.num_rows:,} rows instead of {rows:,}")
    return table.column(0).combine_chunks()


@lru_cache(256)
def _template(field: pa.Field) -> Struct:
    """The footer of a file with one row of this column, written as parts are."""
    row = pa.table({field.name: pa.nulls(1, field.type)}, schema=pa.schema([field]))
    data = encode(row, by_row=True)
    return _footer(data)
