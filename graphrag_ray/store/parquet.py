"""Parquet as bytes: the same table always gives the same bytes, and damage never reads as data.

A file's name carries a hash of its bytes, checked whenever it is read whole; pages carry checksums, checked
when only some columns are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store.files import WHOLE_BYTES, Store

_HASH_LENGTH = 32
_PIECE = 16 << 20
_ROW_GROUP_ROWS = 1 << 15
"""What is read at once of a large file of which few rows are wanted. Files are 6% larger than in one."""
_PAGE_BYTES = 16 << 10
"""Of a page of a table of which single rows are read, before it is packed."""
_PAGE_ROWS = 8
"""A page may be larger by so many rows: its size is looked at after each."""
_BY_ROW = {b"graphrag_ray": b"by row"}
"""How a table says so: it is written elsewhere than made."""
_LEVEL = 6
"""Of zstd, which makes up for small pages."""
READS = 3
"""A read may be cut short on its way: what is damaged is so each time."""


def damaged(store: Store, path: str, why: object) -> CorruptPart:
    return CorruptPart(f"{store.url_of(path)} is damaged: {why}", path=path)


def content_hash(data: bytes | pa.Buffer) -> str:
    """The first 128 bits of SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()[:_HASH_LENGTH]


def hash_in_name(path: str) -> str:
    """The hash that a part's name ends with: `…-<hash>.parquet`, or another suffix."""
    return path.rsplit("/", 1)[-1].partition(".")[0].rsplit("-", 1)[-1]


def by_row(table: pa.Table) -> pa.Table:
    """The same table, of which single rows will be read (`pages.py`): pages are small then, and need no
    others, as a dictionary."""
    return table.replace_schema_metadata(_BY_ROW)


def encode(table: pa.Table, *, dictionary: Sequence[str] | None = None) -> bytes:
    """A table as parquet. Metadata of whoever made the table is left out, chunking does not matter.

    dictionary: for files of few rows, the columns of few distinct values: nothing else is said about any
    column then (statistics, Arrow types), which makes a file of one row 2.8 kB instead of 11.
    """
    plain = pa.schema([pa.field(field.name, _plain(field.type), field.nullable) for field in table.schema])
    lean = dictionary is not None
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"use_dictionary": list(dictionary) if dictionary is not None else True}
    rows_alone = table.schema.metadata == _BY_ROW
    if rows_alone:
        options = {"use_dictionary": False, "write_page_index": True, "data_page_size": _PAGE_BYTES}
        options |= {"write_batch_size": _PAGE_ROWS, "compression_level": _LEVEL}
    pq.write_table(
        table.cast(plain).combine_chunks(),
        sink,
        compression="zstd",
        row_group_size=len(table) or 1 if lean else _ROW_GROUP_ROWS,
        write_statistics=not lean and not rows_alone,
        store_schema=not lean,
        write_page_checksum=True,
        **options,
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _plain(type_: pa.DataType) -> pa.DataType:
    """Lists as parquet calls what they hold: a table that was read and one that was made give equal bytes."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _plain(f.type), f.nullable) for f in type_])
    is_fixed, is_large = pa.types.is_fixed_size_list(type_), pa.types.is_large_list(type_)
    if not (pa.types.is_list(type_) or is_fixed or is_large):
        return type_
    element = pa.field("element", _plain(type_.value_type), type_.value_field.nullable)
    if is_fixed:
        return pa.list_(element, type_.list_size)
    return pa.large_list(element) if is_large else pa.list_(element)


def read_whole(store: Store, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file whose name ends with its hash, all of it, and check the hash.

    columns: what to decode; null: all. Raises CorruptPart, FileNotFoundError, StoreError.
    """
    return _decode(store, path, pa.BufferReader(read_bytes(store, path)), columns)


def read_bytes(store: Store, path: str) -> bytes:
    """A file whose name ends with the hash of its bytes. Raises as `read_whole`."""
    for _ in range(READS):
        data = store.read(path)
        if content_hash(data) == hash_in_name(path):
            return data
    raise damaged(store, path, f"{len(data)} bytes that do not have the hash in its name")


def check(store: Store, path: str) -> None:
    """Read every byte of a file whose name ends with its hash, some at a time. Raises CorruptPart,
    FileNotFoundError, StoreError."""
    for _ in range(READS):
        digest = hashlib.sha256()
        size = store.size(path)
        if size is None:
            raise FileNotFoundError(store.url_of(path))
        for start in range(0, size, _PIECE):
            digest.update(store.read_range(path, start, min(start + _PIECE, size)))
        if digest.hexdigest()[:_HASH_LENGTH] == hash_in_name(path):
            return
    raise damaged(store, path, "its bytes do not have the hash in its name")


def read_columns(store: Store, path: str, columns: Sequence[str], size: int | None = None) -> pa.Table:
    """Read some columns. Of a large file only their bytes are fetched, and their pages' checksums checked; a
    small one is read whole. size: bytes, where a listing has told them. Raises as `read_whole`."""
    if (store.size(path) or 0 if size is None else size) <= WHOLE_BYTES:
        return read_whole(store, path, columns)
    found = _decode(store, path, store.open_input(path, size), columns)
    if found.num_columns < len(set(columns)):
        # Written by an older version, or no checksum covers what is damaged: the names of the columns.
        return read_whole(store, path, columns)
    return found


def is_one_of(column: pa.ChunkedArray, wanted: pa.Array) -> pa.ChunkedArray:
    """[rows] whether a value, or one of a list of values, is wanted."""
    if not pa.types.is_list(column.type):
        return pc.is_in(column, value_set=wanted)
    masks = []
    for chunk in column.chunks:
        inside = pc.is_in(chunk.flatten(), value_set=wanted)
        rows = pc.list_parent_indices(chunk).filter(inside)
        masks.append(pc.is_in(pa.array(range(len(chunk)), pa.int64()), value_set=rows.cast(pa.int64())))
    return pa.chunked_array(masks, pa.bool_())


def _decode(store: Store, path: str, source: pa.NativeFile, columns: Sequence[str] | None) -> pa.Table:
    far = not isinstance(source, pa.BufferReader)  # many columns are fetched at once, by threads of Arrow
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=far)
        known = None if columns is None else [c for c in columns if c in file.schema_arrow.names]
        # Decoded in this thread. Arrow's own let go of the bytes a moment after the table is there, and a
        # process that ends just then is aborted (https://github.com/apache/arrow/issues/34314). Tables of
        # many parts are read by threads of ours.
        table = file.read(known, use_threads=False)
        # Whoever made a file for us to read can have put anything into it, under the right hash.
        table.validate(full=True)
        return table
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as e:
        raise damaged(store, path, e) from e
