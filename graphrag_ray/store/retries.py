"""Putting items back, so that they are asked again: nothing is deleted, what was paid for stays counted. And
finding requests that were answered twice: by a worker that was thought dead, say, and by the next one.

A retry row voids what an item's journal held until then (`rows.standing`). Its time is that of the last row
that it voids, and rows that are written from then on are later (`JournalIndex.now`): no clock, not even one
that was ahead or is set back, can put it after replies that are still to come.

    work/<dialogue>/retried.json    changes whenever items are put back: steps that depend on the journal's
                                    answers to them are done again
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import journal_rows
from graphrag_ray.store.files import FileInfo, Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter, folder, read_parts
from graphrag_ray.store.journal_rows import DONE, FAILED, KILLED, RETRY, TURN, JournalRow, resolve, standing

_PLACE = np.dtype([("prefix", "u8"), ("turn", "i4"), ("slot", "i4"), ("at", "f8"), ("latency_s", "f8")])
"""What a reply answers, and what tells it from another one."""


def put_back(store: Store, dialogue: str, failed_at: Mapping[str, float], told: str) -> int:
    """Void what stands against some items; how many of them there were. For the holder of the lock.

    Of an item that waits for the reply to one of its turns, the replies before that turn stand. One that
    could not use its replies, or killed whoever ran it, begins anew. What was answered since is left alone.

    failed_at  by item key: unix seconds, rounded down, at which it is known to have failed
    told       kept with it, for people
    """
    written = JournalIndex.load(store, dialogue).all_rows(failed_at)
    put = []
    for key, every in written.items():
        rows = resolve(every)
        stands = any(_says_why(row) or (row.kind == FAILED and not row.retryable) for row in rows)
        # Its end may never have been written, or by a version that did not say why.
        untouched = bool(rows) and not any(row.kind == RETRY for row in every)
        if stands or (untouched and int(max(row.at for row in rows)) <= failed_at[key]):
            failed = [row.turn for row in rows if row.kind == FAILED]
            ended = any(row.kind in (DONE, KILLED) for row in rows)
            turn = max(failed) if failed and not ended else 0
            put.append(JournalRow(key, turn, 0, "", RETRY, max(row.at for row in rows), dialogue, error=told))
    # Also where all had been put back: whoever did it may have died.
    note = {"retried": secrets.token_hex(8), "told": told}
    store.write(f"{folder(dialogue)}/retried.json", orjson.dumps(note))
    writer = JournalWriter(store, dialogue, f"retry-{secrets.token_hex(6)}")
    for row in put:
        writer.append(row)
    writer.flush()
    return len(put)


def mark(store: Store, dialogue: str) -> str:
    """Changes whenever items of the dialogue are put back; "" before the first. Raises StoreError."""
    try:
        return store.read(f"{folder(dialogue)}/retried.json").decode(errors="replace")
    except FileNotFoundError:
        return ""


def unanswered(store: Store, dialogue: str) -> dict[str, list[JournalRow]]:
    """The rows of all items that failed, as far as the journal alone can tell; it is read whole, in a few
    columns. Items that could not use their replies are told by journals of this version on."""
    index = JournalIndex.load(store, dialogue)
    found = index.failed()
    keys: set[str] = set()

    def take(_: FileInfo, part: pa.Table | CorruptPart) -> None:
        if isinstance(part, CorruptPart):
            return
        ended = pc.is_in(part["kind"].cast("string"), value_set=pa.array([DONE, KILLED]))
        keys.update(part.filter(pc.and_(ended, pc.is_valid(part["error"])))["key"].to_pylist())

    read_parts(store, dialogue, ["key", "kind", "error"], take)
    told = index.lookup(sorted(keys))
    return found | {key: rows for key, rows in told.items() if any(_says_why(row) for row in rows)}


def _says_why(row: JournalRow) -> bool:
    return row.kind in (DONE, KILLED) and bool(row.error)


def answered_twice(store: Store, dialogue: str) -> set[str]:
    """Keys of the items with two replies of different times to one request, both of which stand.

    Reads narrow columns of the journal, and the rows of what may be such an item. Raises StoreError.
    """
    found = [np.empty(0, _PLACE)]
    numbers = ("turn", "slot", "at", "latency_s")

    def take(_: FileInfo, part: pa.Table | CorruptPart) -> None:
        if isinstance(part, CorruptPart):
            return
        turns = part.filter(pc.equal(part["kind"].cast("string"), TURN))
        places = np.zeros(turns.num_rows, _PLACE)
        places["prefix"] = journal_rows.column_prefixes(turns["key"])
        for name in numbers:
            places[name] = journal_rows.numbers(turns[name], _PLACE[name])
        found.append(places)

    read_parts(store, dialogue, ["key", "kind", *numbers], take)
    places = np.unique(np.concatenate(found))  # a merge leaves a row in two parts
    request = places[["prefix", "turn", "slot"]]
    suspects = np.unique(places["prefix"][1:][request[1:] == request[:-1]])
    if not len(suspects):
        return set()
    repeating = set()
    for key, written in JournalIndex.load(store, dialogue).rows_like(suspects).items():
        replies = {
            (r.turn, r.slot, r.request_hash, r.at, r.reply, r.vector)
            for r in standing(written)
            if r.kind == TURN
        }
        if len({reply[:3] for reply in replies}) < len(replies):
            repeating.add(key)
    return repeating
