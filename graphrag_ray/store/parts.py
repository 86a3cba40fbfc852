"""Parts of tables, named by their content so that snapshots share unchanged parts.

tables/<table>/part-<hash>.parquet                 tables of a snapshot
intermediate/<stage>/<table>/part-<hash>.parquet   tables that later runs build on
indexes/<table>/part-<source>-<hash>.blocks        search indexes (`index_files.py`)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import NonNegativeInt

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import parquet
from graphrag_ray.store.files import READ_WHOLE_BYTES, FileInfo, Store, map_in_threads

TABLES, INTERMEDIATE, INDEXES = FOLDERS = ("tables", "intermediate", "indexes")

MAX_PART_BYTES = 64 << 20  # Approximate limit in memory. Stored parts are about a third as large.
MAX_PART_ROWS = 1_000_000

REPAIR_ADVICE = (
    "Run the same `graphrag-ray index` command again with --verify: it sets damaged files aside and "
    "rebuilds their contents."
)

_TABLE = re.compile(r"([a-z0-9_]{1,64}/)?[a-z0-9_]{1,64}")
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Part:
    """A stored part of a table."""

    path: str  # Relative to the store.
    rows: NonNegativeInt
    bytes: NonNegativeInt  # As stored.


def write_part(store: Store, table_name: str, table: pa.Table) -> Part:
    """Store a table as one part unless a part with the same content exists.

    An intermediate table is named `<stage>/<table>`.
    """
    if not _TABLE.fullmatch(table_name):
        raise ValueError(f"Invalid table name {table_name!r}: use lower-case letters, digits and '_'")
    folder = INTERMEDIATE if "/" in table_name else TABLES
    data = parquet.encode(table)
    path = f"{folder}/{table_name}/part-{parquet.content_hash(data)}.parquet"
    # All writers of this path write the same bytes, so `create` is not needed, and checking the size is
    # cheaper than sending them. A part of another size was truncated and is replaced.
    if store.size(path) != len(data):
        store.write(path, data)
    return Part(path, table.num_rows, len(data))


def list_parts(store: Store) -> list[FileInfo]:
    """List the stored parts of all tables and indexes."""
    return [info for folder in FOLDERS for info in store.list(folder)]


def write_parts(
    store: Store,
    table_name: str,
    tables: Iterable[pa.Table],
    *,
    max_bytes: int = MAX_PART_BYTES,
    max_rows: int = MAX_PART_ROWS,
) -> list[Part]:
    """Store one table, given in pieces, as parts. At most about two parts are in memory.

    Part boundaries depend on the rows but not on the pieces. A table without rows has no parts.
    """
    return [write_part(store, table_name, table) for table in _cut(tables, max_bytes, max_rows)]


def read_part(store: Store, part: Part | str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a part and check its hash, or read some columns and check their page checksums.

    Columns that the part lacks are left out. Raises CorruptPart if the part is missing or damaged.
    """
    path = part.path if isinstance(part, Part) else part
    with explain_damage(store, path):
        if columns is None:
            table = parquet.read_whole(store, path, columns)
        else:
            # Small parts are read whole, so their exact size does not matter.
            small = isinstance(part, Part) and part.bytes <= READ_WHOLE_BYTES
            table = parquet.read_columns(store, path, columns, 0 if small else None)
        if isinstance(part, Part) and columns != [] and table.num_rows != part.rows:
            raise parquet.corrupt_part(
                store, path, f"it has {table.num_rows:,} rows instead of {part.rows:,}"
            )
    return table


def read_rows(store: Store, part: Part, columns: Sequence[str], by: str, wanted: pa.Array) -> pa.Table:
    """Read the rows of a part whose column `by` is, or contains, one of the wanted strings (sorted).

    The other columns of a large part are read only if there are such rows. Raises CorruptPart.
    """
    is_large = part.bytes > READ_WHOLE_BYTES
    table = read_part(store, part, [by] if is_large else list(dict.fromkeys([by, *columns])))
    with explain_damage(store, part.path):
        mask = parquet.is_one_of(table[by], wanted)
    if is_large and pc.any(mask).as_py():
        table = read_part(store, part, columns)
    return table.filter(mask).select([name for name in columns if name in table.column_names])


@contextmanager
def explain_damage(store: Store, path: str) -> Iterator[None]:
    """Turn errors of reading a part into a CorruptPart that says what to do."""
    try:
        yield
    except FileNotFoundError as e:
        message = f"{store.url_of(path)} is missing, although a snapshot needs it"
        raise CorruptPart(f"{message}. {REPAIR_ADVICE}", path=path) from e
    except CorruptPart as e:
        raise CorruptPart(f"{e}. {REPAIR_ADVICE}", path=path) from e
    except (pa.ArrowException, KeyError) as e:  # The part has other columns or types.
        raise CorruptPart(f"{parquet.corrupt_part(store, path, e)}. {REPAIR_ADVICE}", path=path) from e
    except OSError as e:
        raise StoreError(f"Cannot read {store.url_of(path)}: {e.strerror}") from e


def read_table(
    store: Store,
    parts: Sequence[Part | str],
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """Read a table from its parts, in their order. Raises CorruptPart.

    Args:
        schema: Schema of the whole table; columns that a part of an older version lacks are null. Needed if
            there may be no parts.
    """
    if schema is not None and columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    if not parts:
        if schema is None:
            raise ValueError("A table without parts can only be read with a schema")
        return schema.empty_table()
    tables = list(map_in_threads(lambda part: read_part(store, part, columns), parts, _THREADS))
    if schema is not None:
        tables = [conform(store, part, table, schema) for part, table in zip(parts, tables, strict=True)]
    return pa.concat_tables(tables, promote_options="default")


def conform(store: Store, part: Part | str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a part's table to a schema. Missing columns are null. Raises CorruptPart if a cast fails."""
    with explain_damage(store, part if isinstance(part, str) else part.path):
        arrays = [
            table.column(field.name).cast(field.type)
            if field.name in table.schema.names
            else pa.nulls(table.num_rows, field.type)
            for field in schema
        ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _cut(tables: Iterable[pa.Table], max_bytes: int, max_rows: int) -> Iterator[pa.Table]:
    """Cut tables into parts before each row that would make a part too large."""
    pending: list[pa.Table] = []
    n_rows = n_bytes = 0
    for table in tables:
        start = 0
        ends = np.cumsum(_row_bytes(table))
        while start < table.num_rows:
            before = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, before + max_bytes - n_bytes, side="right")) - start
            n_taken = min(fits, max_rows - n_rows, table.num_rows - start)
            if n_taken <= 0 and not n_rows:
                n_taken = 1  # A row that is larger than a part becomes a part.
            if n_taken > 0:
                pending.append(table.slice(start, n_taken))
                start, n_rows = start + n_taken, n_rows + n_taken
                n_bytes += int(ends[start - 1]) - before
            if start < table.num_rows or n_rows >= max_rows:
                yield pa.concat_tables(pending)
                pending, n_rows, n_bytes = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)


def _row_bytes(table: pa.Table) -> npt.NDArray[np.int64]:
    """Estimate the bytes of each row in memory, independently of the chunking."""
    sizes = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        sizes += np.concatenate([np.zeros(0, np.int64), *map(_value_bytes, column.chunks)])
    return sizes


def _value_bytes(array: pa.Array) -> npt.NDArray[np.int64]:
    type_ = array.type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        ends = np.cumsum(_lengths(array))
        below = np.concatenate(([0], np.cumsum(_value_bytes(array.flatten()))))
        return np.asarray(np.diff(below[np.concatenate(([0], ends)).astype(np.int64)]) + 4)
    if pa.types.is_fixed_size_list(type_):
        width = type_.value_type.bit_width // 8 if pa.types.is_primitive(type_.value_type) else 32
        return np.full(len(array), type_.list_size * width, dtype=np.int64)
    if pa.types.is_struct(type_):
        fields = (_value_bytes(field) for field in array.flatten())
        return np.asarray(sum(fields, np.zeros(len(array), np.int64)))
    strings = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    return _lengths(array) + 4 if type_ in strings else np.full(len(array), 8, dtype=np.int64)


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of strings or the number of list values. Null counts as 0."""
    lengths = pc.list_value_length if pa.types.is_nested(array.type) else pc.binary_length
    return np.asarray(pc.fill_null(lengths(array), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
