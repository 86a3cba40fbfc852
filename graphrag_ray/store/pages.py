"""Some rows of a Parquet file, for which only the pages that hold them are read.

pyarrow reads a column of a row group whole, and finds it by the file's footer: for ten rows of a table of
millions that is a thousand times what is needed. A part is written with pages of some 16 kB and with
Parquet's own index of them (`parquet.encode`). From that index `located` takes once where the pages of each
column lie; whoever keeps this reads rows by their places, without the file's footer. The pages are put
behind one another with a footer of their own: a small Parquet file, which pyarrow decodes.

Parquet's metadata are structures of Thrift's compact protocol; a list is (type of its items, items). What
the fields mean stands in parquet.thrift of
https://github.com/apache/parquet-format. pyarrow reads whole footers, but tells nobody where the pages of a
column lie.
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
from graphrag_ray.store.files import GAP_BYTES, REQUESTS_AT_ONCE, Store, in_threads
from graphrag_ray.store.parquet import READS, damaged, encode
from graphrag_ray.store.parts import Part, damage_told

MOST_AT_ONCE = 16 << 20
"""Bytes of pages that are read together."""
MOST_ROWS = 1 << 20
"""Of a page; ours have less, and memory is taken for as many as are told."""
MAGIC = b"PAR1"
_TAIL = 8
"""Bytes behind a footer: how long it is, and the magic."""
_ROWS, _GROUPS = 3, 4
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_PACKED = 1, 2, 3, 6
_CHUNK, _INDEX_AT = 3, 4
_PATH, _VALUES, _PLAIN_BYTES, _PACKED_BYTES, _DICTIONARY_AT = 3, 5, 6, 7, 11
_PLACES, _PLACE_AT, _PLACE_BYTES, _PLACE_ROW = 1, 1, 2, 3
_DATA_HEAD, _HEAD_VALUES = 5, 1
"""Numbers of fields in parquet.thrift: of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, OffsetIndex
with PageLocation, PageHeader with DataPageHeader."""

Ints = npt.NDArray[np.int64]
Struct: TypeAlias = dict[int, tuple[int, Any, int, int]]
"""By the number of a field: the type of its value, that value, and where its bytes begin and end."""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)
MOST_NESTED = 32
_MOST_BITS = 63


PAGE = np.dtype([("start", "<i8"), ("size", "<i4"), ("values", "<i4"), ("sum", "<u4")])
"""Of a page: where its bytes begin, how many these are, how many values it holds (of a column of lists that
is not its rows), CRC-32 of its bytes."""


class Pages(NamedTuple):
    """The pages of a column of a file, in its order.

    first  [pages + 1]: the first row of each, and the number of rows
    page   [pages]: of PAGE
    """

    first: Ints
    page: npt.NDArray[Any]


def located(data: bytes | memoryview, columns: Sequence[str]) -> dict[str, Pages]:
    """Where the pages of columns of a file lie; of columns whose pages can be read without others: those of
    one kind of value, without a dictionary, in a file with an index of its pages. Raises ValueError for what
    is no such file, and for pages that overlap, lie outside of it or hold rows out of order."""

    def column(chunk: Struct) -> str:
        return str(chunk[_CHUNK][1][_PATH][1][1][0].decode())

    found: dict[str, list[tuple[int, int, int]]] = {name: [] for name in columns}
    n_rows = 0
    for group in _footer(data)[_GROUPS][1][1]:
        chunks: list[Struct] = group[_COLUMNS][1][1]
        leaves, rows_here = Counter(map(column, chunks)), group[_GROUP_ROWS][1]
        for chunk in chunks:
            name = column(chunk)
            if leaves[name] > 1 or _DICTIONARY_AT in chunk[_CHUNK][1] or _INDEX_AT not in chunk:
                found.pop(name, None)
            elif name in found:
                places = parse(data, chunk[_INDEX_AT][1])[0][_PLACES][1][1]
                firsts = [place[_PLACE_ROW][1] for place in places]
                if places and (
                    firsts[0] != 0 or any(a >= b for a, b in pairwise([*firsts, max(rows_here, 1)]))
                ):
                    raise ValueError("the rows of its pages are out of order")
                found[name] += [
                    (n_rows + first, place[_PLACE_AT][1], place[_PLACE_BYTES][1])
                    for first, place in zip(firsts, places, strict=True)
                ]
        n_rows += rows_here
    before = len(MAGIC)
    for start, size in sorted(place[1:] for places in found.values() for place in places):
        if start < before or size < 1 or start + size > len(data) - _TAIL:
            raise ValueError(f"its pages overlap or lie outside of it, at byte {start:,}")
        before = start + size
    located = {}
    for name, places in found.items():
        if places:
            page = np.zeros(len(places), PAGE)
            firsts, page["start"], page["size"] = np.array(places, np.int64).T
            heads = [parse(data, at)[0] for _, at, _ in places]
            page["values"] = np.array([head[_DATA_HEAD][1][_HEAD_VALUES][1] for head in heads], np.int64)
            page["sum"] = [zlib.crc32(data[at : at + n]) for _, at, n in places]
            located[name] = Pages(np.append(firsts, n_rows), page)
    return located


def _footer(data: bytes | memoryview) -> Struct:
    return parse(data, _footer_start(data))[0]


def _footer_start(data: bytes | memoryview) -> int:
    if len(data) < _TAIL + len(MAGIC) or bytes(data[-len(MAGIC) :]) != MAGIC:
        raise ValueError("it is no Parquet file")
    (size,) = struct.unpack("<I", data[-_TAIL : -len(MAGIC)])
    if size > len(data) - _TAIL:
        raise ValueError("its footer is cut short")
    return len(data) - _TAIL - int(size)


@dataclass(frozen=True)
class Wanted:
    """Some pages of a column in a part, rising. rows: of each; pages: of PAGE."""

    part: Part
    rows: Sequence[int]
    pages: Sequence[tuple[int, int, int, int]]


def read(store: Store, field: pa.Field, wanted: Sequence[Wanted]) -> list[pa.Array]:
    """What pages of a column hold, page by page; all are decoded together. Raises CorruptPart for other bytes
    than those that were written; StoreError."""
    found: list[bytes] = []
    for some in wanted:
        with damage_told(store, some.part.path):
            found += _checked(store, field, some)
    rows = [n for some in wanted for n in some.rows]
    if not rows:
        return []
    values = sum(page[2] for some in wanted for page in some.pages)
    try:
        whole = decoded(field, found, sum(rows), values)
    except (pa.ArrowException, ValueError, OSError) as e:
        if len(wanted) > 1:  # which of them it is
            return [array for some in wanted for array in read(store, field, [some])]
        with damage_told(store, wanted[0].part.path):
            raise damaged(store, wanted[0].part.path, e) from e
    # Copies: a slice that is kept would keep all of them.
    none = whole.slice(0, 0)
    return [
        pa.concat_arrays([whole.slice(end - n, n), none])
        for n, end in zip(rows, accumulate(rows), strict=True)
    ]


def _checked(store: Store, field: pa.Field, wanted: Wanted) -> list[bytes]:
    """The bytes of pages. Raises CorruptPart, FileNotFoundError, StoreError."""
    part, before = wanted.part, len(MAGIC)
    near = GAP_BYTES if store.local_path(part.path) is None else 0
    together: list[list[tuple[int, int]]] = []
    for (start, size, *_), rows in zip(wanted.pages, wanted.rows, strict=True):
        end, last = start + size, together[-1] if together else []
        if start < before or size < 1 or end > part.bytes or rows > MOST_ROWS:
            raise CorruptPart(
                f"{store.url_of(part.path)} has no such pages of column {field.name}", path=part.path
            )
        before = end
        if last and start <= last[-1][1] + near and end <= last[0][0] + MOST_AT_ONCE:
            last.append((start, end))
        else:
            together.append([(start, end)])

    def fetch(of: Sequence[tuple[int, int]]) -> list[bytes]:
        at = of[0][0]
        data = store.read_range(part.path, at, of[-1][1])
        return [data[start - at : end - at] for start, end in of]

    sums = [page[3] for page in wanted.pages]
    for _ in range(READS):
        read = in_threads(fetch, together, REQUESTS_AT_ONCE) if near else map(fetch, together)
        found = [page for pages in read for page in pages]
        if list(map(zlib.crc32, found)) == sums:
            return found
    raise damaged(store, part.path, f"a page of column {field.name}")


def decoded(field: pa.Field, pages: Sequence[bytes | memoryview], rows: int, values: int) -> pa.Array:
    """What pages of a column hold. rows, values: of all of them together.

    Raises ValueError and pa.ArrowException for pages that are damaged, or hold something else.
    """
    template, slots = _footer_of(field)
    told = {"rows": rows, "values": values, "bytes": sum(len(page) for page in pages)}
    footer, before = [], 0
    for start, end, name in slots:
        footer += [template[before:start], _number(told[name])]
        before = end
    tail = b"".join([*footer, template[before:]])
    file = b"".join([MAGIC, *pages, tail, struct.pack("<I", len(tail)), MAGIC])
    opened = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False)
    table = opened.read(use_threads=False)
    table.validate(full=True)
    if table.num_rows != rows or table.num_columns != 1:
        raise ValueError(f"pages hold {table.num_rows:,} rows instead of {rows:,}")
    found = table.column(0).combine_chunks()
    return found if found.type == field.type else found.cast(field.type)


@lru_cache(256)
def _footer_of(field: pa.Field) -> tuple[bytes, list[tuple[int, int, str]]]:
    """The footer of a file with one row of such a column, and where the numbers of rows, values and bytes
    begin and end in it."""
    row = pa.table({field.name: pa.nulls(1, field.type)}, schema=pa.schema([field]))
    data = encode(row, dictionary=())  # without Arrow's types, which take long to parse
    footer = _footer(data)
    (group,) = footer[_GROUPS][1][1]
    meta = group[_COLUMNS][1][1][0][_CHUNK][1]
    slots = [(footer[_ROWS], "rows"), (group[_GROUP_ROWS], "rows"), (meta[_VALUES], "values")]
    slots += [(group[number], "bytes") for number in (_GROUP_BYTES, _GROUP_PACKED)]
    slots += [(meta[number], "bytes") for number in (_PLAIN_BYTES, _PACKED_BYTES)]
    start = _footer_start(data)
    places = sorted((found[2] - start, found[3] - start, name) for found, name in slots)
    return data[start:-_TAIL], places


def _number(value: int) -> bytes:
    """A number of no sign, as Thrift writes it."""
    out, left = bytearray(), value << 1
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


def parse(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """The structure that begins there, and where it ends. Raises ValueError for bytes that are none."""
    reader = _Reader(data, at)
    try:
        return reader.struct(0), reader.at
    except IndexError as e:
        raise ValueError("a Thrift structure is cut short") from e


class _Reader:
    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self.data, self.at = data, at

    def struct(self, depth: int) -> Struct:
        if depth > MOST_NESTED:
            raise ValueError("a Thrift structure is nested too deeply")
        found: Struct = {}
        number = 0
        while head := self.byte():
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self.signed()
            start = self.at
            if kind in (TRUE, FALSE):
                found[number] = TRUE, kind == TRUE, start, start
            else:
                found[number] = kind, self.value(kind, depth), start, self.at
        return found

    def value(self, kind: int, depth: int) -> Any:
        if kind == BYTE:
            return self.byte()
        if kind in (TRUE, FALSE):  # of a list
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
            raise ValueError(f"a Thrift structure holds a value of type {kind}")
        if depth > MOST_NESTED:
            raise ValueError("a Thrift structure is nested too deeply")
        head = self.byte()
        size = head >> 4 if head >> 4 < 15 else self.unsigned()
        if size > len(self.data) - self.at:  # each item takes a byte at least
            raise ValueError("a Thrift list is longer than its bytes")
        return head & 15, [self.value(head & 15, depth + 1) for _ in range(size)]

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def unsigned(self) -> int:
        value = 0
        for bits in range(0, _MOST_BITS + 1, 7):
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
            raise ValueError("a Thrift structure is cut short")
        self.at += size
        return bytes(self.data[self.at - size : self.at])
