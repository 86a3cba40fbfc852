"""Rows of the journal: their columns, and which of several replies to a request counts.

A row is one answered turn of a dialogue ("turn"), the end of a dialogue ("done"), its failure ("failed"), the
death of the process that ran it ("killed"), or a request to retry it ("retry"). Rows are only ever added.
Neither their order nor duplicates matter.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.arrow_arrays import to_arrow, to_arrow_strings

TURN, DONE, FAILED, KILLED, RETRY = "turn", "done", "failed", "killed", "retry"
KINDS = (TURN, DONE, FAILED, KILLED, RETRY)

# Columns of `work/<dialogue>/part-*.parquet`; see `JournalRow`.
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("turn", pa.int32()),
        ("slot", pa.int32()),
        ("request_hash", pa.string()),
        ("kind", pa.string()),
        ("prompt", pa.string()),
        ("reply", pa.string()),
        ("vector", pa.binary()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("reported", pa.bool_()),
        ("model", pa.string()),
        ("endpoint", pa.string()),
        ("latency_s", pa.float64()),
        ("attempts", pa.int32()),
        ("error", pa.string()),
        ("retryable", pa.bool_()),
        ("at", pa.float64()),
    ]
)
DICTIONARY_COLUMNS = ("kind", "prompt", "finish_reason", "model", "endpoint")

_KEY = re.compile(r"[0-9a-f]{64}")
_LIMITS = {f.name: 2 ** (f.type.bit_width - 1) for f in SCHEMA if pa.types.is_integer(f.type)}
_NULLABLE = {"reply", "vector", "error"}


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One row of the journal."""

    key: str  # The item: 64 hex characters.
    turn: int  # Number of the turn, from 0. In a retry row, the first turn to request again.
    slot: int  # Position of the request in its turn, or 0 if the turn has only one.
    request_hash: str  # Hash of the full request, or "" in rows about the whole item.
    kind: str  # One of `KINDS`. Readers ignore unknown kinds.
    at: float  # Unix seconds of the reply. In a retry row, the time of the last row that it voids.
    prompt: str = ""
    reply: str | None = None  # The raw text. None in done and failed rows, and for embeddings.
    vector: bytes | None = None  # The raw bytes of an embedding.
    finish_reason: str = ""
    prompt_tokens: int = 0  # Includes `cached_tokens`.
    cached_tokens: int = 0
    completion_tokens: int = 0
    reported: bool = True  # Whether the endpoint reported the tokens. Otherwise we counted them ourselves.
    model: str = ""
    endpoint: str = ""
    latency_s: float = 0.0  # Duration of the successful attempt.
    attempts: int = 1
    error: str | None = None
    retryable: bool = False  # Whether the failure is transient, so that the next run tries again.

    @property
    def nbytes(self) -> int:
        """Approximate size in memory as columns."""
        return 300 + len(self.reply or "") + len(self.vector or b"") + len(self.error or "")


_FIELDS = tuple(f.name for f in fields(JournalRow))


def validate(row: JournalRow) -> JournalRow:
    """Return the row with lone surrogates replaced by "?", because they cannot be stored.

    Raises:
        ValueError: If the row is invalid.
    """
    if not _KEY.fullmatch(row.key):
        raise ValueError(f"Invalid item key {row.key!r}: expected 64 hex characters")
    if row.kind not in KINDS:
        raise ValueError(f"Invalid journal row kind {row.kind!r}. Choose from: {', '.join(KINDS)}")
    if not 0 <= row.at < 1e10 or not math.isfinite(row.latency_s):
        raise ValueError(f"Invalid time in a journal row: at={row.at}, latency_s={row.latency_s}")
    for name, limit in _LIMITS.items():
        if not 0 <= getattr(row, name) < limit:
            raise ValueError(f"A journal row's {name} is out of range: {getattr(row, name)}")
    changes: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(row, name)
        if value is None and name not in _NULLABLE:
            raise ValueError(f"A journal row's {name} must not be None")
        if isinstance(value, str) and (text := value.encode("utf-8", "replace").decode()) != value:
            changes[name] = text
    return replace(row, **changes) if changes else row


def resolve(rows: Iterable[JournalRow]) -> list[JournalRow]:
    """Return the rows of one item that count: turns by number and slot, then failures by time, then the end.

    If a request has several replies (a hedged call, a zombie worker, a lease issued twice), the earliest one
    counts; ties go to the smaller hash. The earliest `done` row counts. All failures are returned, because
    their times matter. Voided rows and retry rows are dropped.
    """
    chosen: dict[tuple[Any, ...], JournalRow] = {}
    for row in without_voided(rows):
        sort_key: tuple[Any, ...] = (2 if row.kind == DONE else 0, row.turn, row.slot, row.request_hash)
        if row.kind in (FAILED, KILLED):
            sort_key = (1, row.at, _reply_order(row))
        other = chosen.get(sort_key)
        if other is None or _reply_order(row) < _reply_order(other):
            chosen[sort_key] = row
    return [chosen[sort_key] for sort_key in sorted(chosen)]


def without_voided(rows: Iterable[JournalRow]) -> list[JournalRow]:
    """Return the rows of one item that no retry row voids, without the retry rows.

    A retry row voids all earlier rows except turns before its own. It always voids earlier `done` and
    `killed` rows, which concern the whole item.
    """
    rows = list(rows)
    retries = [row for row in rows if row.kind == RETRY]

    def is_valid(row: JournalRow) -> bool:
        turn = row.turn if row.kind in (TURN, FAILED) else math.inf
        return all(row.at > retry.at or turn < retry.turn for retry in retries)

    return [row for row in rows if row.kind != RETRY and is_valid(row)] if retries else rows


def _reply_order(row: JournalRow) -> tuple[float, str, str]:
    """Sort key for replies to one request. It is a total order, so the order of rows does not matter."""
    reply = row.vector if row.vector is not None else (row.reply or "").encode()
    return row.at, hashlib.sha256(reply).hexdigest(), repr(row)


def to_table(rows: Sequence[JournalRow]) -> pa.Table:
    """Convert rows to a table of SCHEMA."""
    arrays = [_array(field.type, [getattr(row, field.name) for row in rows]) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def from_table(table: pa.Table) -> list[JournalRow]:
    """Convert a table to rows. Missing columns get their defaults."""
    names = [name for name in _FIELDS if name in table.schema.names]
    columns = [table.column(name).to_pylist() for name in names]
    return [JournalRow(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def key_prefixes(keys: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the first 64 bits of each key."""
    return np.fromiter((int(key[:16], 16) for key in keys), dtype=np.uint64, count=len(keys))


def column_prefixes(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return the `key_prefixes` of a column without creating a Python object per row."""
    keys = column.combine_chunks()
    if len(keys) == 0:
        return np.empty(0, dtype=np.uint64)
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, dtype=np.int32)[keys.offset : keys.offset + len(keys)]
    text = np.frombuffer(data, dtype=np.uint8)[starts[:, None] + np.arange(16)]
    digits = np.where(text >= ord("a"), text - (ord("a") - 10), text - ord("0"))
    return np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8").ravel().astype(np.uint64)


def column_numbers(column: pa.ChunkedArray, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Convert a numeric column without nulls to an array. (pyarrow's `to_numpy` imports pandas.)"""
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=dtype)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([np.empty(0, dtype=dtype), *chunks])


def kind_codes(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """Return the index of each kind in KINDS, or -1 for unknown kinds."""
    codes = pc.index_in(column.cast(pa.string()), value_set=to_arrow_strings(KINDS))
    return column_numbers(pc.coalesce(codes, to_arrow(np.full(len(column), -1, np.int32))), np.int32)


def _array(type_: pa.DataType, values: list[Any]) -> pa.Array:
    """Build an Arrow array from buffers. `pa.array(list)` imports pandas, which takes half a second."""
    present = [value is not None for value in values]
    buffers: list[Any] = [None if all(present) else np.packbits(present, bitorder="little")]
    if type_ in (pa.string(), pa.binary()):
        data = [v.encode() if isinstance(v, str) else (v or b"") for v in values]
        buffers += [np.cumsum([0, *map(len, data)], dtype=np.int32), b"".join(data)]
    elif type_ == pa.bool_():
        buffers += [np.packbits(np.array(values, dtype=np.bool_), bitorder="little")]
    else:
        buffers += [np.array(values, dtype=type_.to_pandas_dtype())]
    return pa.Array.from_buffers(
        type_, len(values), [None if b is None else pa.py_buffer(b) for b in buffers]
    )
