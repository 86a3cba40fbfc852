"""Putting items back, so that they are asked again: nothing is deleted, what was paid for stays counted.

A retry row voids what an item's journal held until then (`rows.standing`). Its time is that of the last row
that it voids, and rows that are written from then on are later (`JournalIndex.now`): no clock, not even one
that was ahead or is set back, can put it after replies that are still to come. `marks.py` keeps the latest.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow.compute as pc

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import marks, parquet
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_parts import read_parts
from graphrag_ray.store.journal_rows import DONE, FAILED, KILLED, RETRY, JournalRow, resolve


def put_back(store: Store, dialogue: str, failed_at: Mapping[str, float], told: str) -> int:
    """Void what stands against some items; how many of them there were. For the holder of the lock.

    Of an item that waits for the reply to one of its turns, the replies before that turn stand. One that
    could not use its replies, or killed whoever ran it, begins anew. What was answered since is left alone.

    failed_at  by item key: unix seconds, rounded down, at which it is known to have failed
    told       kept with it, for people

    Raises StoreError.
    """
    index = JournalIndex.load(store, dialogue)
    written = index.all_rows(failed_at)
    found = {key: resolve(rows) for key, rows in written.items() if _stands_failed(rows, failed_at[key])}
    put = [_retry(key, rows, dialogue, told) for key, rows in found.items()]
    # The mark comes first: without the rows it does no harm, while replies that a clock which is behind dates
    # before rows without it would be void. Also where all had been put back: whoever did it may have died.
    earlier = (row.at for rows in written.values() for row in rows if row.kind == RETRY)
    marks.write(store, dialogue, told, max([index.retried_until, *earlier, *(row.at for row in put)]))
    if put:
        writer = JournalWriter(store, dialogue, f"retry-{secrets.token_hex(6)}")
        for row in put:
            writer.append(row)
        writer.flush()
    return len(found)


def mark(store: Store, dialogue: str) -> str:
    """Changes whenever items of the dialogue are put back; "" before the first. Raises StoreError."""
    return marks.text(store, dialogue)


def unanswered(store: Store, dialogue: str) -> dict[str, list[JournalRow]]:
    """The rows of all items that failed, as far as the journal alone can tell; it is read whole, in a few
    columns.

    Items that could not use their replies are told by journals of this version on. Raises StoreError.
    """
    index = JournalIndex.load(store, dialogue)
    found = index.failed()
    keys: set[str] = set()
    read_parts(store, dialogue, partial(_told_in, store), lambda _, own: keys.update(own))
    told = index.lookup(sorted(keys))
    return found | {key: rows for key, rows in told.items() if any(_says_why(row) for row in rows)}


def _told_in(store: Store, part: FileInfo) -> list[str]:
    try:
        table = parquet.read_columns(store, part.path, ["key", "kind", "error"], part.bytes)
    except CorruptPart:
        return []
    kinds = [str(kind) for kind in table["kind"].to_pylist()]
    reasons = pc.is_valid(table["error"]).to_pylist()
    keys = table["key"].to_pylist()
    return [k for k, kind, why in zip(keys, kinds, reasons, strict=True) if why and kind in (DONE, KILLED)]


def _says_why(row: JournalRow) -> bool:
    return row.kind in (DONE, KILLED) and bool(row.error)


def _stands_failed(written: Sequence[JournalRow], failed_at: float) -> bool:
    rows = resolve(written)
    if any(_says_why(row) or (row.kind == FAILED and not row.retryable) for row in rows):
        return True
    # Its end may never have been written, or by a version that did not say why.
    untouched = bool(rows) and not any(row.kind == RETRY for row in written)
    return untouched and int(max(row.at for row in rows)) <= failed_at


def _retry(key: str, rows: Sequence[JournalRow], dialogue: str, told: str) -> JournalRow:
    failed = [row.turn for row in rows if row.kind == FAILED]
    ended = any(row.kind in (DONE, KILLED) for row in rows)
    turn = max(failed) if failed and not ended else 0
    return JournalRow(key, turn, 0, "", RETRY, max(row.at for row in rows), dialogue, error=told)
