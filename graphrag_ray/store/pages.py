"""Some rows of a Parquet file, for which only the pages that hold them are read.

pyarrow reads a column of a row group whole, and finds it by the file's footer: for ten rows of a table of
millions that is a thousand times what is needed. A part is written with pages of some 16 kB and with
Parquet's own index of them (`parquet.encode`). From that index `located` takes once where the pages of each
column lie; whoever keeps this reads rows by their places, without the file's footer. The pages are put
behind one another with a footer of their own: a small Parquet file, which pyarrow decodes.

Parquet's metadata are structures of Thrift's compact protocol, here {number of a field: (type, value)}; a
list is (type of its items, items). What the fields mean stands in parquet.thrift of
https://github.com/apache/parquet-format. pyarrow reads whole footers, but tells nobody where the pages of a
column lie.
"""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections import Counter, OrderedDict
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
from graphrag_ray.store.files import GAP_BYTES, REQUESTS_AT_ONCE, Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.parquet import READS, by_row, damaged, encode
from graphrag_ray.store.parts import Part, damage_told

MOST_AT_ONCE = 16 << 20
"""Bytes of pages that are read together."""
MOST_OPEN = 128
"""Files of parts that a snapshot's reader holds open."""
MOST_ROWS = 1 << 20
"""Of a page; ours have less, and memory is taken for as many as are told."""
MAGIC = b"PAR1"
_TAIL = 8
"""Bytes behind a footer: how long it is, and the magic."""
_ROWS, _GROUPS, _METADATA = 3, 4, 5
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_AT, _GROUP_PACKED = 1, 2, 3, 5, 6
_CHUNK_AT, _CHUNK, _INDEX_AT = 2, 3, 4
_PATH, _VALUES, _PLAIN_BYTES, _PACKED_BYTES, _DATA_AT, _DICTIONARY_AT = 3, 5, 6, 7, 9, 11
_PLACES, _PLACE_AT, _PLACE_BYTES, _PLACE_ROW = 1, 1, 2, 3
_DATA_HEAD, _HEAD_VALUES = 5, 1
"""Numbers of fields in parquet.thrift: of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, OffsetIndex
with PageLocation, PageHeader with DataPageHeader."""

Ints = npt.NDArray[np.int64]
Struct: TypeAlias = dict[int, tuple[int, Any]]

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
    if len(data) < _TAIL + len(MAGIC) or bytes(data[-len(MAGIC) :]) != MAGIC:
        raise ValueError("it is no Parquet file")
    (size,) = struct.unpack("<I", data[-_TAIL : -len(MAGIC)])
    if size > len(data) - _TAIL:
        raise ValueError("its footer is cut short")
    return parse(data, len(data) - _TAIL - size)[0]


class PartFiles:
    """Reads ranges of parts. Those of a local store stay open, the last used ones."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._files: OrderedDict[str, io.FileIO] = OrderedDict()
        self._lock = threading.Lock()

    def range(self, part: Part, start: int, end: int) -> bytes:
        """Raises OSError, StoreError."""
        local = self.store.local_path(part.path)
        if local is None:
            return self.store.read_range(part.path, start, end)
        with self._lock:
            file = self._files.get(local)  # open as long as somebody has it
            if file is None:
                file = self._files[local] = io.FileIO(local)
            self._files.move_to_end(local)
            if len(self._files) > MOST_OPEN:
                self._files.popitem(last=False)
        end = min(end, os.fstat(file.fileno()).st_size)  # memory is taken before it is read
        return os.pread(file.fileno(), max(0, end - start), start)


@dataclass(frozen=True)
class Wanted:
    """Some pages of a column in a part, rising. rows: of each; pages: of PAGE."""

    part: Part
    rows: Sequence[int]
    pages: Sequence[tuple[int, int, int, int]]


def read(files: PartFiles, field: pa.Field, wanted: Sequence[Wanted]) -> list[pa.Array]:
    """What pages of a column hold, page by page; all are decoded together. Raises CorruptPart for other bytes
    than those that were written; StoreError."""
    found: list[bytes] = []
    for some in wanted:
        with damage_told(files.store, some.part.path):
            found += _checked(files, field, some)
    rows = [n for some in wanted for n in some.rows]
    if not rows:
        return []
    values = sum(page[2] for some in wanted for page in some.pages)
    try:
        whole = decoded(field, found, sum(rows), values)
    except (pa.ArrowException, ValueError, OSError) as e:
        if len(wanted) > 1:  # which of them it is
            return [array for some in wanted for array in read(files, field, [some])]
        with damage_told(files.store, wanted[0].part.path):
            raise damaged(files.store, wanted[0].part.path, e) from e
    # Copies: a slice that is kept would keep all of them.
    none = whole.slice(0, 0)
    return [
        pa.concat_arrays([whole.slice(end - n, n), none])
        for n, end in zip(rows, accumulate(rows), strict=True)
    ]


def _checked(files: PartFiles, field: pa.Field, wanted: Wanted) -> list[bytes]:
    """The bytes of pages. Raises CorruptPart, FileNotFoundError, StoreError."""
    part, before = wanted.part, len(MAGIC)
    near = GAP_BYTES if files.store.local_path(part.path) is None else 0
    together: list[list[tuple[int, int]]] = []
    for (start, size, *_), rows in zip(wanted.pages, wanted.rows, strict=True):
        end, last = start + size, together[-1] if together else []
        if start < before or size < 1 or end > part.bytes or rows > MOST_ROWS:
            raise CorruptPart(
                f"{files.store.url_of(part.path)} has no such pages of column {field.name}", path=part.path
            )
        before = end
        if last and start <= last[-1][1] + near and end <= last[0][0] + MOST_AT_ONCE:
            last.append((start, end))
        else:
            together.append([(start, end)])

    def fetch(of: Sequence[tuple[int, int]]) -> list[bytes]:
        at = of[0][0]
        data = files.range(part, at, of[-1][1])
        return [data[start - at : end - at] for start, end in of]

    sums = [page[3] for page in wanted.pages]
    for _ in range(READS):
        read = in_threads(fetch, together, REQUESTS_AT_ONCE) if near else map(fetch, together)
        found = [page for pages in read for page in pages]
        if list(map(zlib.crc32, found)) == sums:
            return found
    raise damaged(files.store, part.path, f"a page of column {field.name}")


def _nine_bytes(value: int) -> bytes:
    """A number as Thrift writes it, with zeros that it could do without."""
    doubled = value << 1
    return bytes([*(doubled >> bits & 127 | 128 for bits in range(0, 56, 7)), doubled >> 56])


_STAND_INS = (2**61 + 1, 2**61 + 2, 2**61 + 3)
_SLOTS = tuple(map(_nine_bytes, _STAND_INS))


def decoded(field: pa.Field, pages: Sequence[bytes | memoryview], rows: int, values: int) -> pa.Array:
    """What pages of a column hold. rows, values: of all of them together.

    Raises ValueError and pa.ArrowException for pages that are damaged, or hold something else.
    """
    packed = sum(len(page) for page in pages)
    footer = _footer_of(field)
    for slot, value in zip(_SLOTS, (rows, values, packed), strict=True):
        footer = footer.replace(slot, _nine_bytes(value))
    file = b"".join([MAGIC, *pages, footer, struct.pack("<I", len(footer)), MAGIC])
    opened = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False)
    table = opened.read(use_threads=False)
    table.validate(full=True)
    if table.num_rows != rows or table.num_columns != 1:
        raise ValueError(f"pages hold {table.num_rows:,} rows instead of {rows:,}")
    found = table.column(0).combine_chunks()
    return found if found.type == field.type else found.cast(field.type)


@lru_cache(256)
def _footer_of(field: pa.Field) -> bytes:
    """The footer of a file with such a column, written as parts are, with `_SLOTS` for the numbers of rows,
    values and bytes: to render it for each few pages takes longer than to decode them."""
    row = pa.table({field.name: pa.nulls(1, field.type)}, schema=pa.schema([field]))
    template = _footer(encode(by_row(row)))
    template.pop(_METADATA, None)  # Arrow's types, which take long to parse
    (group,) = template[_GROUPS][1][1]
    (chunk,) = group[_COLUMNS][1][1]
    rows, values, packed = ((I64, number) for number in _STAND_INS)
    at = I64, len(MAGIC)
    meta = chunk[_CHUNK][1] | {
        _VALUES: values,
        _PLAIN_BYTES: packed,
        _PACKED_BYTES: packed,
        _DATA_AT: at,
    }
    chunk = {_CHUNK_AT: at, _CHUNK: (STRUCT, meta)}
    group = {
        _COLUMNS: (LIST, (STRUCT, [chunk])),
        _GROUP_BYTES: packed,
        _GROUP_ROWS: rows,
        _GROUP_AT: at,
        _GROUP_PACKED: packed,
    }
    return rendered(template | {_ROWS: rows, _GROUPS: (LIST, (STRUCT, [group]))})


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
            if kind in (TRUE, FALSE):
                found[number] = TRUE, kind == TRUE
            else:
                found[number] = kind, self.value(kind, depth)
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


def rendered(struct: Struct) -> bytes:
    """The bytes of a structure that `parse` gives back."""
    out = bytearray()

    def unsigned(value: int) -> None:
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)

    def write(kind: int, value: Any) -> None:
        if kind in (TRUE, FALSE, BYTE):  # the former of a list
            out.append(value if kind == BYTE else TRUE if value else FALSE)
        elif kind in (I16, I32, I64):
            unsigned(value << 1 ^ value >> 63)
        elif kind == DOUBLE:
            out.extend(value)
        elif kind == BINARY:
            unsigned(len(value))
            out.extend(value)
        elif kind == LIST:
            of, items = value
            out.append(min(len(items), 15) << 4 | of)
            if len(items) >= 15:
                unsigned(len(items))
            for item in items:
                write(of, item)
        else:
            before = 0
            for number, (of, item) in sorted(value.items()):
                told = of if of not in (TRUE, FALSE) else TRUE if item else FALSE
                if 0 < number - before < 16:
                    out.append(number - before << 4 | told)
                else:
                    out.append(told)
                    unsigned(number << 1)
                before = number
                if of not in (TRUE, FALSE):
                    write(of, item)
            out.append(0)

    write(STRUCT, struct)
    return bytes(out)
