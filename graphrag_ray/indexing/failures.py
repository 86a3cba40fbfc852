"""List the failed items of an index, and mark them to be retried by the next run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import JOURNALS
from graphrag_ray.indexing.run import format_utc
from graphrag_ray.store import locks, retry_rows, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal_rows import FAILED, JournalRow
from graphrag_ray.store.parts import read_table

Failure: TypeAlias = Mapping[str, Any]  # a row of schema.FAILURES

KEY_PREFIX_LENGTH = 12  # An item without a known name is shown by this many characters of its key.


@dataclass(frozen=True)
class FailureFilter:
    """Selects failed items by stage, glob over the document's path, and key prefixes. The default is all."""

    stage: str | None = None
    document: str | None = None
    keys: tuple[str, ...] = ()

    def matches(self, row: Failure) -> bool:
        return (
            (self.stage is None or row["stage"] == self.stage)
            and (self.document is None or fnmatchcase(row["document"] or "", self.document))
            and (not self.keys or any(row["key"] and row["key"].startswith(k) for k in self.keys))
        )


@dataclass(frozen=True)
class RetryCounts:
    """Numbers of items to retry: marked now, marked before, and retried anyway by every run."""

    retried: int
    before: int
    anyway: int


def failed_items(
    store: Store, snapshot: int | None = None, choice: FailureFilter | None = None
) -> list[Failure]:
    """List the failed items of a snapshot. Before the first one, list the journal's, which lack names."""
    if snapshot is None and snapshots.read_latest(store) is None and store.list("work"):
        open_items = ((name, retry_rows.find_failed(store, name)) for name in JOURNALS)
        rows = [_row(name, key, items[key]) for name, items in open_items for key in sorted(items)]
    else:
        manifest = snapshots.open_latest(store, snapshot)
        rows = read_table(store, manifest.parts("failures"), None, schema.FAILURES).to_pylist()
    return [row for row in rows if choice is None or choice.matches(row)]


def retry_items(store: Store, rows: Sequence[Failure]) -> RetryCounts:
    """Mark items for retry by the next run (`store/retry_rows.py`). Raises LockHeld if a run is active."""
    retried = before = 0
    with locks.acquire(store, note="failures --retry") as lock:
        reason = f"marked for retry at {format_utc(time.time())}"
        for stage in JOURNALS:
            failed_at = {
                r["key"]: datetime.fromisoformat(r["last_at"]).timestamp() if r["last_at"] else 0.0
                for r in rows
                if r["stage"] == stage and r["key"] and r["kind"] == "permanent"
            }
            if failed_at:
                lock.check()
                n = retry_rows.mark_for_retry(store, stage, failed_at, reason)
                retried, before = retried + n, before + len(failed_at) - n
    return RetryCounts(retried, before, sum(r["kind"] != "permanent" or r["stage"] == "read" for r in rows))


def next_command(store: Store, root: str) -> str:
    """Return the command that continues this index."""
    manifest = snapshots.read_latest(store)
    input_url = str(manifest.run.get("input", "")) if manifest else ""
    add = " --add" if manifest and len(manifest.run.get("inputs", [])) > 1 else ""
    argument = shlex.quote(input_url) if input_url else "INPUT"
    return f"graphrag-ray index {argument} --root {shlex.quote(root)}{add}"


def _row(stage: str, key: str, rows: Sequence[JournalRow]) -> Failure:
    failures = [r for r in rows if r.kind == FAILED]
    ended = [r for r in rows if r.kind not in (FAILED, "turn") and r.error]
    last = ended[-1] if ended else max(failures, key=lambda r: r.at)
    return {
        "stage": stage,
        "item": key[:KEY_PREFIX_LENGTH],
        "document": "",
        "kind": "transient" if not ended and last.retryable else "permanent",
        "error": last.error,
        "attempts": sum(r.attempts for r in rows if r.kind != "done"),
        "first_at": format_utc(min(r.at for r in rows)),
        "last_at": format_utc(max(r.at for r in rows)),
        "key": key,
    }
