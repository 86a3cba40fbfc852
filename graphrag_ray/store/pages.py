"""Read single rows of a Parquet file by fetching only the pages that contain them.

pyarrow reads a column of a row group as a whole and finds it through the file's footer. For ten rows out of
millions, that is a thousand times too much. So parts read by row are written with pages of about 16 kB and
Parquet's page index (`parquet.encode`). `locate_pages` extracts the positions of all pages from the index
once, and later reads need neither footer nor index. To decode pages, pyarrow gets them as a small Parquet
file with a new footer.

pyarrow does not expose the page index. Parquet's metadata uses Thrift's compact protocol and is defined in
parquet.thrift of https://github.com/apache/parquet-format. A Thrift list is parsed as (item type, items).
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store.files import GAP_BYTES, RANGE_REQUESTS, Store, map_in_threads
from graphrag_ray.store.parquet import READ_ATTEMPTS, corrupt_part, encode
from graphrag_ray.store.parts import Part, explain_damage

MAX_REQUEST_BYTES = 16 << 20
MAX_PAGE_ROWS = 1 << 20  # Limits memory, which is allocated for as many rows as a page claims.
MAGIC = b"PAR1"
_TAIL_BYTES = 8  # After the footer: its length and the magic.
# Field ids in parquet.thrift, by line: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, OffsetIndex with
# PageLocation, and PageHeader with DataPageHeader.
_ROWS, _GROUPS = 3, 4
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_COMPRESSED = 1, 2, 3, 6
_CHUNK, _INDEX_OFFSET = 3, 4
_PATH, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DICTIONARY_OFFSET = 3, 5, 6, 7, 11
_LOCATIONS, _PAGE_OFFSET, _PAGE_BYTES, _PAGE_FIRST_ROW = 1, 1, 2, 3
_DATA_HEADER, _HEADER_VALUES = 5, 1

Ints = npt.NDArray[np.int64]
Struct: TypeAlias = dict[int, tuple[int, Any, int, int]]
"""Field id -> (type, value, start of the value's bytes, end of the value's bytes)."""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)
MAX_NESTING = 32
_MAX_BITS = 63

# The offset of a page, its bytes, its number of values (in list columns not the number of rows), its CRC-32.
PAGE = np.dtype([("start", "<i8"), ("size", "<i4"), ("values", "<i4"), ("sum", "<u4")])


class Pages(NamedTuple):
    """The pages of a column, in order."""

    first: Ints  # [pages + 1] The first row of each page, and the total number of rows.
    page: npt.NDArray[Any]  # [pages] of type PAGE


def locate_pages(data: bytes | memoryview, columns: Sequence[str]) -> dict[str, Pages]:
    """Locate the pages of columns of primitive values, or of lists of them.

    Columns with a dictionary or without a page index are left out.

    Raises:
        ValueError: If the file is invalid, or if pages overlap, leave the file, or have rows out of order.
    """

    def column(chunk: Struct) -> str:
        return str(chunk[_CHUNK][1][_PATH][1][1][0].decode())

    by_column: dict[str, list[tuple[int, int, int]]] = {name: [] for name in columns}
    n_rows = 0
    for group in _footer(data)[_GROUPS][1][1]:
        chunks: list[Struct] = group[_COLUMNS][1][1]
        leaves, group_rows = Counter(map(column, chunks)), group[_GROUP_ROWS][1]
        for chunk in chunks:
            name = column(chunk)
            if leaves[name] > 1 or _DICTIONARY_OFFSET in chunk[_CHUNK][1] or _INDEX_OFFSET not in chunk:
                by_column.pop(name, None)
            elif name in by_column:
                locations = parse(data, chunk[_INDEX_OFFSET][1])[0][_LOCATIONS][1][1]
                firsts = [location[_PAGE_FIRST_ROW][1] for location in locations]
                is_rising = all(a < b for a, b in pairwise([*firsts, max(group_rows, 1)]))
                if locations and (firsts[0] != 0 or not is_rising):
                    raise ValueError("the rows of its pages are out of order")
                by_column[name] += [
                    (n_rows + first, location[_PAGE_OFFSET][1], location[_PAGE_BYTES][1])
                    for first, location in zip(firsts, locations, strict=True)
                ]
        n_rows += group_rows
    end = len(MAGIC)
    for start, size in sorted(entry[1:] for entries in by_column.values() for entry in entries):
        if start < end or size < 1 or start + size > len(data) - _TAIL_BYTES:
            raise ValueError(f"its pages overlap or leave the file, at byte {start:,}")
        end = start + size
    pages = {}
    for name, entries in by_column.items():
        if entries:
            page = np.zeros(len(entries), PAGE)
            first_rows, page["start"], page["size"] = np.array(entries, np.int64).T
            headers = [parse(data, start)[0] for _, start, _ in entries]
            page["values"] = np.array([h[_DATA_HEADER][1][_HEADER_VALUES][1] for h in headers], np.int64)
            page["sum"] = [zlib.crc32(data[start : start + size]) for _, start, size in entries]
            pages[name] = Pages(np.append(first_rows, n_rows), page)
    return pages


def _footer(data: bytes | memoryview) -> Struct:
    return parse(data, _footer_start(data))[0]


def _footer_start(data: bytes | memoryview) -> int:
    if len(data) < _TAIL_BYTES + len(MAGIC) or bytes(data[-len(MAGIC) :]) != MAGIC:
        raise ValueError("it is not a Parquet file")
    (size,) = struct.unpack("<I", data[-_TAIL_BYTES : -len(MAGIC)])
    if size > len(data) - _TAIL_BYTES:
        raise ValueError("its footer is truncated")
    return len(data) - _TAIL_BYTES - int(size)


@dataclass(frozen=True)
class PageRequest:
    """Some pages of a column of a part, in order."""

    part: Part
    rows: Sequence[int]  # Number of rows of each page.
    pages: Sequence[tuple[int, int, int, int]]  # Fields of PAGE.


def read_pages(store: Store, field: pa.Field, wanted: Sequence[PageRequest]) -> list[pa.Array]:
    """Return the values of some pages of a column, by page. All pages are decoded together.

    Raises:
        CorruptPart: If a page is damaged.
    """
    pages: list[bytes] = []
    for request in wanted:
        with explain_damage(store, request.part.path):
            pages += _fetch(store, field, request)
    rows = [n for request in wanted for n in request.rows]
    if not rows:
        return []
    n_values = sum(page[2] for request in wanted for page in request.pages)
    try:
        values = _decode(field, pages, sum(rows), n_values)
    except (pa.ArrowException, ValueError, OSError) as e:
        if len(wanted) > 1:  # Find out which part is damaged.
            return [array for request in wanted for array in read_pages(store, field, [request])]
        with explain_damage(store, wanted[0].part.path):
            raise corrupt_part(store, wanted[0].part.path, e) from e
    # Copy: a slice would keep the values of all pages in memory.
    empty = values.slice(0, 0)
    ends = accumulate(rows)
    return [pa.concat_arrays([values.slice(end - n, n), empty]) for n, end in zip(rows, ends, strict=True)]


def _fetch(store: Store, field: pa.Field, wanted: PageRequest) -> list[bytes]:
    """Read and verify pages. Neighbouring pages are read in one request."""
    part, last_end = wanted.part, len(MAGIC)
    max_gap = GAP_BYTES if store.local_path(part.path) is None else 0
    requests: list[list[tuple[int, int]]] = []
    for (start, size, *_), rows in zip(wanted.pages, wanted.rows, strict=True):
        end, last = start + size, requests[-1] if requests else []
        if start < last_end or size < 1 or end > part.bytes or rows > MAX_PAGE_ROWS:
            raise CorruptPart(
                f"{store.url_of(part.path)} lacks some pages of column {field.name}", path=part.path
            )
        last_end = end
        if last and start <= last[-1][1] + max_gap and end <= last[0][0] + MAX_REQUEST_BYTES:
            last.append((start, end))
        else:
            requests.append([(start, end)])

    def fetch(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        offset = ranges[0][0]
        data = store.read_range(part.path, offset, ranges[-1][1])
        return [data[start - offset : end - offset] for start, end in ranges]

    checksums = [page[3] for page in wanted.pages]
    for _ in range(READ_ATTEMPTS):
        replies = map_in_threads(fetch, requests, RANGE_REQUESTS) if max_gap else map(fetch, requests)
        pages = [page for reply in replies for page in reply]
        if list(map(zlib.crc32, pages)) == checksums:
            return pages
    raise corrupt_part(store, part.path, f"a page of column {field.name} does not match its checksum")


def _decode(field: pa.Field, pages: Sequence[bytes | memoryview], rows: int, values: int) -> pa.Array:
    """Decode pages of a column with this many rows and values in total.

    Raises:
        ValueError, pa.ArrowException: If pages are damaged or have other contents.
    """
    template, slots = _footer_template(field)
    counts = {"rows": rows, "values": values, "bytes": sum(len(page) for page in pages)}
    footer, last_end = [], 0
    for start, end, name in slots:
        footer += [template[last_end:start], _zigzag(counts[name])]
        last_end = end
    tail = b"".join([*footer, template[last_end:]])
    file = b"".join([MAGIC, *pages, tail, struct.pack("<I", len(tail)), MAGIC])
    table = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False).read(use_threads=False)
    table.validate(full=True)
    if table.num_rows != rows or table.num_columns != 1:
        raise ValueError(f"its pages contain {table.num_rows:,} rows instead of {rows:,}")
    array = table.column(0).combine_chunks()
    return array if array.type == field.type else array.cast(field.type)


@lru_cache(256)
def _footer_template(field: pa.Field) -> tuple[bytes, list[tuple[int, int, str]]]:
    """Return a footer for a file with only this column, and the (start, end, name) of each count in it."""
    row = pa.table({field.name: pa.nulls(1, field.type)}, schema=pa.schema([field]))
    data = encode(row, dictionary=())  # A dictionary omits Arrow's types, which are slow to parse.
    footer = _footer(data)
    (group,) = footer[_GROUPS][1][1]
    meta = group[_COLUMNS][1][1][0][_CHUNK][1]
    slots = [(footer[_ROWS], "rows"), (group[_GROUP_ROWS], "rows"), (meta[_VALUES], "values")]
    slots += [(group[number], "bytes") for number in (_GROUP_BYTES, _GROUP_COMPRESSED)]
    slots += [(meta[number], "bytes") for number in (_UNCOMPRESSED, _COMPRESSED)]
    start = _footer_start(data)
    positions = sorted((slot[2] - start, slot[3] - start, name) for slot, name in slots)
    return data[start:-_TAIL_BYTES], positions


def _zigzag(value: int) -> bytes:
    """Encode a non-negative number as a zigzag varint."""
    out, left = bytearray(), value << 1
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


def parse(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """Parse a Thrift structure and return it with its end. Raises ValueError for invalid bytes."""
    reader = _ThriftReader(data, at)
    try:
        return reader.struct(0), reader.at
    except IndexError as e:
        raise ValueError("a Thrift structure is truncated") from e


class _ThriftReader:
    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self.data, self.at = data, at

    def struct(self, depth: int) -> Struct:
        fields: Struct = {}
        number = 0
        while header := self.byte():
            kind = header & 15
            number = number + (header >> 4) if header >> 4 else self.signed()
            start = self.at
            value = kind == TRUE if kind in (TRUE, FALSE) else self.value(kind, depth)
            fields[number] = TRUE if kind == FALSE else kind, value, start, self.at
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise ValueError("a Thrift structure is nested too deeply")
        if kind == BYTE:
            return self.byte()
        if kind in (TRUE, FALSE):  # Only list items store a boolean in a byte.
            return self.byte() == TRUE
        if kind in (I16, I32, I64):
            return self.signed()
        if kind == DOUBLE:
            return self.bytes(8)
        if kind == BINARY:
            return self.bytes(self.unsigned())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind != LIST:
            raise ValueError(f"a Thrift structure contains a value of type {kind}")
        header = self.byte()
        size = header >> 4 if header >> 4 < 15 else self.unsigned()
        if size > len(self.data) - self.at:  # Each item takes at least one byte.
            raise ValueError("a Thrift list is longer than its bytes")
        return header & 15, [self.value(header & 15, depth + 1) for _ in range(size)]

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def unsigned(self) -> int:
        value = 0
        for bits in range(0, _MAX_BITS + 1, 7):
            byte = self.byte()
            value |= (byte & 127) << bits
            if byte < 128:
                return value
        raise ValueError("a Thrift number is too long")

    def signed(self) -> int:
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

    def bytes(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError("a Thrift structure is truncated")
        self.at += size
        return bytes(self.data[self.at - size : self.at])
