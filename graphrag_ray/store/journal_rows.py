"""Rows of the journal: what each column means, and which reply counts where there are several.

A row is one turn of a dialogue as it was answered (kind "turn"), the end of one ("done"), its failure
("failed"), that it killed whoever ran it ("killed"), or that what came before is to be asked once more
("retry"). Rows are only ever added, never changed: what an item's rows mean is a function of their set,
whatever the order in which they were written, and however often one was written twice.
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

from graphrag_ray.base.arrow_arrays import arrow, strings

TURN, DONE, FAILED, KILLED, RETRY = "turn", "done", "failed", "killed", "retry"
KINDS = (TURN, DONE, FAILED, KILLED, RETRY)

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
"""Columns of `work/<dialogue>/part-*.parquet`; `JournalRow` explains each."""

FEW_VALUES = ("kind", "prompt", "finish_reason", "model", "endpoint")
"""Columns that are stored as dictionaries."""

_KEY = re.compile(r"[0-9a-f]{64}")
_LIMITS = {f.name: 2 ** (f.type.bit_width - 1) for f in SCHEMA if pa.types.is_integer(f.type)}
_NULLABLE = {"reply", "vector", "error"}


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One row.

    key           the item: 64 hex characters
    turn          0 for the first request of the dialogue; of a retry row: the first turn to be asked again
    slot          place in a turn that is a list of requests; 0 otherwise
    request_hash  hash of this turn's full request; "" in a row that is about the item as a whole
    kind          "turn", "done", "failed", "killed" or "retry"; earlier programs know the first three
                  and pass over the others
    reply         the raw text; None for embeddings, done and failed rows
    vector        an embedding's bytes; None otherwise
    …_tokens      of this call; prompt_tokens includes cached_tokens
    reported      False where the endpoint said nothing and the tokens are our own count
    model         the model's id;  endpoint: where it was asked
    latency_s     of the attempt that was answered;  attempts: how many were made
    error         why it failed; None otherwise
    retryable     a transient failure: the next run tries again
    at            unix seconds at which the reply came, told by the caller; of a retry row: that of the last
                  row that it voids
    """

    key: str
    turn: int
    slot: int
    request_hash: str
    kind: str
    at: float
    prompt: str = ""
    reply: str | None = None
    vector: bytes | None = None
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reported: bool = True
    model: str = ""
    endpoint: str = ""
    latency_s: float = 0.0
    attempts: int = 1
    error: str | None = None
    retryable: bool = False

    @property
    def nbytes(self) -> int:
        """About what it takes in memory as columns."""
        return 300 + len(self.reply or "") + len(self.vector or b"") + len(self.error or "")


_FIELDS = tuple(f.name for f in fields(JournalRow))


def checked(row: JournalRow) -> JournalRow:
    """The row as it can be stored, or ValueError: one bad row must not hold up the others' writing.

    Lone surrogates, which no UTF-8 can hold, become "?".
    """
    if not _KEY.fullmatch(row.key):
        raise ValueError(f"an item key is 64 hex characters, not {row.key!r}")
    if row.kind not in KINDS:
        raise ValueError(f"a journal row's kind is one of {', '.join(KINDS)}, not {row.kind!r}")
    if not 0 <= row.at < 1e10 or not math.isfinite(row.latency_s):
        raise ValueError(f"a journal row's times are seconds, not at={row.at}, latency_s={row.latency_s}")
    for name, limit in _LIMITS.items():
        if not 0 <= getattr(row, name) < limit:
            raise ValueError(f"a journal row's {name} is out of range: {getattr(row, name)}")
    changes: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(row, name)
        if value is None and name not in _NULLABLE:
            raise ValueError(f"a journal row needs {name}")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                changes[name] = value.encode("utf-8", "replace").decode()
    return replace(row, **changes) if changes else row


def resolve(rows: Iterable[JournalRow]) -> list[JournalRow]:
    """What one item's rows mean: turns by (turn, slot, request hash), then failures by time, then the end.

    Of several replies to one request (a hedge, a zombie, a lease given twice) the earliest counts, and of
    two at the same instant the one with the smaller hash. Of several ends the earliest. Of failures all
    are kept, since their times are told. What a retry row voids does not count, and neither does that row.
    """
    chosen: dict[tuple[Any, ...], JournalRow] = {}
    for row in standing(rows):
        place: tuple[Any, ...] = (2 if row.kind == DONE else 0, row.turn, row.slot, row.request_hash)
        if row.kind in (FAILED, KILLED):
            place = (1, row.at, order_among_replies(row))
        other = chosen.get(place)
        if other is None or order_among_replies(row) < order_among_replies(other):
            chosen[place] = row
    return [chosen[place] for place in sorted(chosen)]


def standing(rows: Iterable[JournalRow]) -> list[JournalRow]:
    """The rows of one item that no retry row voids: those later than it, and of earlier ones the turns before
    its own. An end is always voided, since it speaks of the item as a whole."""
    rows = list(rows)
    retries = [row for row in rows if row.kind == RETRY]
    if not retries:
        return rows

    def stands(row: JournalRow) -> bool:
        kept_before = row.turn if row.kind in (TURN, FAILED) else math.inf
        return all(row.at > retry.at or kept_before < retry.turn for retry in retries)

    return [row for row in rows if row.kind != RETRY and stands(row)]


def order_among_replies(row: JournalRow) -> tuple[float, str, str]:
    """Sorts replies to the same request; total, so that the choice does not depend on their order."""
    reply = row.vector if row.vector is not None else (row.reply or "").encode()
    return row.at, hashlib.sha256(reply).hexdigest(), repr(row)


def to_table(rows: Sequence[JournalRow]) -> pa.Table:
    """Rows as columns of SCHEMA."""
    arrays = [_array(field.type, [getattr(row, field.name) for row in rows]) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def from_table(table: pa.Table) -> list[JournalRow]:
    """Columns as rows. Columns that an older version did not write have their defaults."""
    names = [name for name in _FIELDS if name in table.schema.names]
    columns = [table.column(name).to_pylist() for name in names]
    return [JournalRow(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def key_prefixes(keys: Sequence[str]) -> npt.NDArray[np.uint64]:
    """The first 64 bits of each key."""
    return np.fromiter((int(key[:16], 16) for key in keys), dtype=np.uint64, count=len(keys))


def column_prefixes(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """The first 64 bits of each key of a `key` column, without a Python object per row."""
    keys = column.combine_chunks()
    keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) and keys.num_chunks else keys
    if len(keys) == 0:
        return np.empty(0, dtype=np.uint64)
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, dtype=np.int32)[keys.offset : keys.offset + len(keys)]
    text = np.frombuffer(data, dtype=np.uint8)[starts[:, None] + np.arange(16)]
    digits = np.where(text >= ord("a"), text - (ord("a") - 10), text - ord("0"))
    return np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8").ravel().astype(np.uint64)


def numbers(column: pa.ChunkedArray, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A column of numbers without nulls as an array. pyarrow's `to_numpy` would import pandas."""
    parts = [
        np.frombuffer(chunk.buffers()[1], dtype=dtype)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def kinds(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """The place of each of a column's kinds in KINDS; -1 for one of a later version."""
    codes = pc.index_in(column.cast(pa.string()), value_set=strings(KINDS))
    return numbers(pc.coalesce(codes, arrow(np.full(len(column), -1, np.int32))), np.int32)


def _array(type_: pa.DataType, values: list[Any]) -> pa.Array:
    """An Arrow array from buffers: `pa.array(list)` imports pandas, half a second in each worker."""
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
