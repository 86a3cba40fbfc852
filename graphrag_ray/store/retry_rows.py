"""Put items back so that they are asked again, and find requests that were answered twice.

Nothing is deleted: what was paid for stays counted. A retry row voids an item's rows up to its own time
(`journal_rows.without_voided`), which is that of the last row it voids. Later rows get later times
(`JournalIndex.now`), so no clock that was ahead or is set back can void replies that are still to come.

`work/<dialogue>/retried.json` changes whenever items are put back: steps that depend on the journal's answers
to them are then executed again.
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
from graphrag_ray.store.journal import JournalIndex, JournalWriter, journal_folder, read_parts
from graphrag_ray.store.journal_rows import DONE, FAILED, KILLED, RETRY, TURN, JournalRow

# The request that a reply answers, and what distinguishes two replies.
_REPLY = np.dtype([("prefix", "u8"), ("turn", "i4"), ("slot", "i4"), ("at", "f8"), ("latency_s", "f8")])


def mark_for_retry(store: Store, dialogue: str, failed_at: Mapping[str, float], reason: str) -> int:
    """Void the failures of some items; return how many items there were. The caller holds the lock.

    If an item waits for the reply to one of its turns, the replies before that turn stay valid. If it could
    not use its replies, or killed the process that ran it, it starts over. Items answered since are skipped.

    Args:
        failed_at: By item key: unix seconds, rounded down, of the known failure.
        reason: Reason, kept for people.
    """
    written = JournalIndex.load(store, dialogue).all_rows(failed_at)
    retries = []
    for key, all_rows in written.items():
        rows = journal_rows.resolve(all_rows)
        is_failed = any(_ended_badly(row) or (row.kind == FAILED and not row.retryable) for row in rows)
        # The end may be missing, or written by a version that did not record the reason.
        is_untouched = bool(rows) and not any(row.kind == RETRY for row in all_rows)
        if is_failed or (is_untouched and int(max(row.at for row in rows)) <= failed_at[key]):
            failed = [row.turn for row in rows if row.kind == FAILED]
            ended = any(row.kind in (DONE, KILLED) for row in rows)
            turn, at = max(failed) if failed and not ended else 0, max(row.at for row in rows)
            retries.append(JournalRow(key, turn, 0, "", RETRY, at, dialogue, error=reason))
    # Even if all items were put back already: whoever did so may have died before this write.
    note = {"retried": secrets.token_hex(8), "told": reason}
    store.write(f"{journal_folder(dialogue)}/retried.json", orjson.dumps(note))
    writer = JournalWriter(store, dialogue, f"retry-{secrets.token_hex(6)}")
    for row in retries:
        writer.append(row)
    writer.flush()
    return len(retries)


def retry_marker(store: Store, dialogue: str) -> str:
    """Return a text that changes whenever items are put back; "" before the first time."""
    try:
        return store.read(f"{journal_folder(dialogue)}/retried.json").decode(errors="replace")
    except FileNotFoundError:
        return ""


def find_failed(store: Store, dialogue: str) -> dict[str, list[JournalRow]]:
    """Return the resolved rows of all items that failed according to the journal.

    Reads a few columns of the whole journal. Journals of earlier versions lack the items that could not use
    their replies.
    """
    index = JournalIndex.load(store, dialogue)
    keys: set[str] = set()

    def consume(_: FileInfo, part: pa.Table | CorruptPart) -> None:
        if not isinstance(part, CorruptPart):
            ended = pc.is_in(part["kind"].cast("string"), value_set=pa.array([DONE, KILLED]))
            keys.update(part.filter(pc.and_(ended, pc.is_valid(part["error"])))["key"].to_pylist())

    read_parts(store, dialogue, ["key", "kind", "error"], consume)
    ended_items = index.lookup(sorted(keys))
    return index.failed() | {k: rows for k, rows in ended_items.items() if any(map(_ended_badly, rows))}


def _ended_badly(row: JournalRow) -> bool:
    return row.kind in (DONE, KILLED) and bool(row.error)


def find_duplicate_replies(store: Store, dialogue: str) -> set[str]:
    """Return the keys of items with two valid replies of different times to one request.

    This happens when a worker that was thought dead answers as well as its successor. Reads narrow columns of
    the journal, then the rows of candidates.
    """
    by_part = [np.empty(0, _REPLY)]
    numbers = ("turn", "slot", "at", "latency_s")

    def consume(_: FileInfo, part: pa.Table | CorruptPart) -> None:
        if isinstance(part, CorruptPart):
            return
        turns = part.filter(pc.equal(part["kind"].cast("string"), TURN))
        replies = np.zeros(turns.num_rows, _REPLY)
        replies["prefix"] = journal_rows.column_prefixes(turns["key"])
        for name in numbers:
            replies[name] = journal_rows.column_numbers(turns[name], _REPLY[name])
        by_part.append(replies)

    read_parts(store, dialogue, ["key", "kind", *numbers], consume)
    replies = np.unique(np.concatenate(by_part))  # During a merge a row is in two parts.
    request = replies[["prefix", "turn", "slot"]]
    suspects = np.unique(replies["prefix"][1:][request[1:] == request[:-1]])
    if not len(suspects):
        return set()
    repeating = set()
    for key, rows in JournalIndex.load(store, dialogue).rows_like(suspects).items():
        distinct = {
            (r.turn, r.slot, r.request_hash, r.at, r.reply, r.vector)
            for r in journal_rows.without_voided(rows)
            if r.kind == TURN
        }
        if len({reply[:3] for reply in distinct}) < len(distinct):
            repeating.add(key)
    return repeating
