"""Encode tables as Parquet deterministically, and detect any damage when reading.

A file's name contains a hash of its bytes, which is checked when it is read whole. Pages have checksums,
which are checked when only some columns are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store.files import READ_WHOLE_BYTES, Store

READ_ATTEMPTS = 3  # Attempts to read a file. A read may be truncated in transit, but damage persists.

_HASH_LENGTH = 32
_PIECE = 16 << 20
_ROW_GROUP_ROWS = 1 << 15  # Small, because single rows need a whole row group. Costs 6% in file size.
# Set by `mark_for_row_access`. It is table metadata, because other modules encode the table.
_BY_ROW = {b"graphrag_ray": b"by row"}
_PAGE_BYTES = 16 << 10  # Uncompressed page size of tables that are read by row.
_PAGE_ROWS = 8  # Rows between two checks of the page size.
_COMPRESSION_LEVEL = 6  # Higher than the default of zstd, because small pages compress badly.


def corrupt_part(store: Store, path: str, why: object) -> CorruptPart:
    """Return the error for a damaged file. Its message has no final period, so that advice can follow."""
    return CorruptPart(f"{store.url_of(path)} is damaged: {str(why).rstrip('.')}", path=path)


def content_hash(data: bytes | pa.Buffer) -> str:
    """Return the first 128 bits of SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()[:_HASH_LENGTH]


def hash_in_name(path: str) -> str:
    """Return the hash in a part's name: `…-<hash>.<suffix>`."""
    return path.rsplit("/", 1)[-1].partition(".")[0].rsplit("-", 1)[-1]


def mark_for_row_access(table: pa.Table) -> pa.Table:
    """Mark a table for reads of single rows (`pages.py`), so that its pages are small and independent."""
    return table.replace_schema_metadata(_BY_ROW)


def encode(table: pa.Table, *, dictionary: Sequence[str] | None = None) -> bytes:
    """Encode a table, ignoring its metadata and chunking.

    Args:
        dictionary: Columns with few distinct values, for files with few rows. Such files omit statistics and
            Arrow types, which reduces a file of one row from 11 to 2.8 kB.
    """
    plain = pa.schema([pa.field(field.name, _plain(field.type), field.nullable) for field in table.schema])
    lean = dictionary is not None
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"use_dictionary": list(dictionary) if dictionary is not None else True}
    is_by_row = table.schema.metadata == _BY_ROW
    if is_by_row:
        options = {"use_dictionary": False, "write_page_index": True, "data_page_size": _PAGE_BYTES}
        options |= {"write_batch_size": _PAGE_ROWS, "compression_level": _COMPRESSION_LEVEL}
    pq.write_table(
        table.cast(plain).combine_chunks(),
        sink,
        compression="zstd",
        row_group_size=len(table) or 1 if lean else _ROW_GROUP_ROWS,
        write_statistics=not lean and not is_by_row,
        store_schema=not lean,
        write_page_checksum=True,
        **options,
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _plain(type_: pa.DataType) -> pa.DataType:
    """Name list elements as Parquet does, so that tables read from files encode to the same bytes."""
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
    """Read a whole file, check the hash in its name, and decode all or some columns.

    Raises CorruptPart if the file is damaged, and FileNotFoundError if it is missing.
    """
    return _decode(store, path, pa.BufferReader(read_bytes(store, path)), columns)


def read_bytes(store: Store, path: str) -> bytes:
    """Read a file and check the hash in its name. Raises like `read_whole`."""
    for _ in range(READ_ATTEMPTS):
        data = store.read(path)
        if content_hash(data) == hash_in_name(path):
            return data
    raise corrupt_part(store, path, f"its {len(data):,} bytes do not match the hash in its name")


def check(store: Store, path: str) -> None:
    """Check the hash in a file's name, reading the file in pieces. Raises like `read_whole`."""
    for _ in range(READ_ATTEMPTS):
        digest = hashlib.sha256()
        size = store.size(path)
        if size is None:
            raise FileNotFoundError(store.url_of(path))
        for start in range(0, size, _PIECE):
            digest.update(store.read_range(path, start, min(start + _PIECE, size)))
        if digest.hexdigest()[:_HASH_LENGTH] == hash_in_name(path):
            return
    raise corrupt_part(store, path, "its bytes do not match the hash in its name")


def read_columns(store: Store, path: str, columns: Sequence[str], size: int | None = None) -> pa.Table:
    """Read some columns. Raises like `read_whole`.

    Small files are read whole. For large files, only the columns are read and their page checksums verified.
    Passing a known `size` in bytes saves a request.
    """
    if (store.size(path) or 0 if size is None else size) <= READ_WHOLE_BYTES:
        return read_whole(store, path, columns)
    table = _decode(store, path, store.open_input(path, size), columns)
    if table.num_columns < len(set(columns)):
        # Columns are missing, or their names, which no page checksum covers, are damaged.
        return read_whole(store, path, columns)
    return table


def is_one_of(column: pa.ChunkedArray, wanted: pa.Array) -> pa.ChunkedArray:
    """Return for each row whether its value, or one of its list of values, is wanted."""
    if not pa.types.is_list(column.type):
        return pc.is_in(column, value_set=wanted)
    masks = []
    for chunk in column.chunks:
        inside = pc.is_in(chunk.flatten(), value_set=wanted)
        rows = pc.list_parent_indices(chunk).filter(inside)
        masks.append(pc.is_in(pa.array(range(len(chunk)), pa.int64()), value_set=rows.cast(pa.int64())))
    return pa.chunked_array(masks, pa.bool_())


def _decode(store: Store, path: str, source: pa.NativeFile, columns: Sequence[str] | None) -> pa.Table:
    is_remote = not isinstance(source, pa.BufferReader)  # Arrow's threads fetch the columns concurrently.
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=is_remote)
        known = None if columns is None else [c for c in columns if c in file.schema_arrow.names]
        # Decode in this thread. Arrow's threads release the bytes shortly after the table is complete, and a
        # process that exits at that moment is aborted (https://github.com/apache/arrow/issues/34314). Our own
        # threads read tables of many parts.
        table = file.read(known, use_threads=False)
        # The file is untrusted, even if its hash matches.
        table.validate(full=True)
        return table
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as e:
        raise corrupt_part(store, path, e) from e
