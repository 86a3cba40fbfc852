"""Mark items for retry, and find requests that were answered twice.

Nothing is deleted, so usage stays counted. A retry row has the time of the last row that it voids
(`journal_rows.without_voided`). Later rows get later times (`JournalIndex.next_time`), so a wrong clock
cannot void replies that are yet to come.

`work/<dialogue>/retried.json` changes whenever items are marked for retry, so that steps that depend on their
replies are executed again.
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

# The fields up to `slot` identify a request, and all fields identify a reply.
_REPLY = np.dtype([("prefix", "u8"), ("turn", "i4"), ("slot", "i4"), ("at", "f8"), ("latency_s", "f8")])


def mark_for_retry(store: Store, dialogue: str, failed_at: Mapping[str, float], reason: str) -> int:
    """Void the failures of some items and return the number of these items. The caller holds the lock.

    If a request of an item failed, the replies to earlier turns stay valid. If the item could not use its
    replies or killed its process, it starts over. Items that were answered in the meantime are skipped.

    Args:
        failed_at: Item key -> time of the known failure in Unix seconds, rounded down.
        reason: Stored for people who read the journal.
    """
    retries = []
    for key, all_rows in JournalIndex.load(store, dialogue).all_rows(failed_at).items():
        rows = journal_rows.resolve(all_rows)
        is_failed = any(_ended_with_error(row) or (row.kind == FAILED and not row.retryable) for row in rows)
        # The end may be missing, or lack a reason.
        is_untouched = bool(rows) and not any(row.kind == RETRY for row in all_rows)
        if is_failed or (is_untouched and int(max(row.at for row in rows)) <= failed_at[key]):
            failed = [row.turn for row in rows if row.kind == FAILED]
            has_ended = any(row.kind in (DONE, KILLED) for row in rows)
            turn, at = max(failed) if failed and not has_ended else 0, max(row.at for row in rows)
            retries.append(JournalRow(key, turn, 0, "", RETRY, at, dialogue, error=reason))
    # Written even if all items were marked before, because that call may have died before this write.
    note = {"retried": secrets.token_hex(8), "told": reason}
    store.write(f"{journal_folder(dialogue)}/retried.json", orjson.dumps(note))
    writer = JournalWriter(store, dialogue, f"retry-{secrets.token_hex(6)}")
    for row in retries:
        writer.append(row)
    writer.flush()
    return len(retries)


def retry_marker(store: Store, dialogue: str) -> str:
    """Return a string that changes whenever items are marked for retry. Initially it is ""."""
    try:
        return store.read(f"{journal_folder(dialogue)}/retried.json").decode(errors="replace")
    except FileNotFoundError:
        return ""


def find_failed(store: Store, dialogue: str) -> dict[str, list[JournalRow]]:
    """Return the resolved rows of all items that failed. Reads a few columns of the whole journal."""
    index = JournalIndex.load(store, dialogue)
    keys: set[str] = set()

    def consume(_: FileInfo, part: pa.Table | CorruptPart) -> None:
        if not isinstance(part, CorruptPart):
            ended = pc.is_in(part["kind"].cast("string"), value_set=pa.array([DONE, KILLED]))
            keys.update(part.filter(pc.and_(ended, pc.is_valid(part["error"])))["key"].to_pylist())

    read_parts(store, dialogue, ["key", "kind", "error"], consume)
    ended_items = index.lookup(sorted(keys))
    return index.failed_items() | {
        k: rows for k, rows in ended_items.items() if any(map(_ended_with_error, rows))
    }


def _ended_with_error(row: JournalRow) -> bool:
    return row.kind in (DONE, KILLED) and bool(row.error)


def find_duplicate_replies(store: Store, dialogue: str) -> set[str]:
    """Return the keys of items with two different valid replies to one request.

    This happens if a worker that was presumed dead answers in addition to its successor. Reads narrow columns
    of the journal, then the rows of candidates.
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
    replies = np.unique(np.concatenate(by_part))  # During a merge, rows are in two parts.
    request = replies[["prefix", "turn", "slot"]]
    candidates = np.unique(replies["prefix"][1:][request[1:] == request[:-1]])
    if not len(candidates):
        return set()
    duplicated = set()
    for key, rows in JournalIndex.load(store, dialogue).rows_like(candidates).items():
        distinct = {
            (r.turn, r.slot, r.request_hash, r.at, r.reply, r.vector)
            for r in journal_rows.without_voided(rows)
            if r.kind == TURN
        }
        if len({reply[:3] for reply in distinct}) < len(distinct):
            duplicated.add(key)
    return duplicated
