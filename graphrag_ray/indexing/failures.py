"""What has no result, and putting it back, so that the next run asks for it again."""

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
from graphrag_ray.indexing.run import iso
from graphrag_ray.store import locks, retries, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal_rows import FAILED, JournalRow
from graphrag_ray.store.parts import read_table

Failure: TypeAlias = Mapping[str, Any]
"""A row of schema.FAILURES."""

KEY_SHOWN = 12
"""Characters of a key that stand for an item nobody knows by name."""


@dataclass(frozen=True)
class Choice:
    """Which failed items are meant; nothing given: all.

    stage      of schema.FAILURES;  document: a pattern (`*`, `?`, `[…]`) for the path
    keys       beginnings of item keys
    """

    stage: str | None = None
    document: str | None = None
    keys: tuple[str, ...] = ()

    def takes(self, row: Failure) -> bool:
        return (
            (self.stage is None or row["stage"] == self.stage)
            and (self.document is None or fnmatchcase(row["document"] or "", self.document))
            and (not self.keys or any(row["key"] and row["key"].startswith(k) for k in self.keys))
        )


@dataclass(frozen=True)
class PutBack:
    """retried      items that failed for good, which the next run asks again
    before       items that had been put back before
    anyway       items and files that every run tries again by itself
    """

    retried: int
    before: int
    anyway: int


def failed_items(store: Store, snapshot: int | None = None, choice: Choice | None = None) -> list[Failure]:
    """The failed items of a snapshot, or of the run that has not come to one yet: then without names and
    documents, which the journal does not hold. Raises IndexNotFound, StoreError."""
    choice = choice or Choice()
    if snapshot is None and snapshots.latest(store) is None and store.list("work"):
        open_items = ((name, retries.unanswered(store, name)) for name in JOURNALS)
        found = [_row(name, key, rows) for name, items in open_items for key, rows in sorted(items.items())]
    else:
        manifest = snapshots.open_latest(store, snapshot)
        found = read_table(store, manifest.parts("failures"), None, schema.FAILURES).to_pylist()
    return [row for row in found if choice.takes(row)]


def put_back(store: Store, rows: Sequence[Failure]) -> PutBack:
    """Void what stands against these items (`store/retries.py`). Spends nothing: the next run does.

    Raises LockHeld while a run works, StoreError.
    """
    retried = before = 0
    with locks.acquire(store, note="failures --retry") as lock:
        told = f"put back at {iso(time.time())}"
        for stage in JOURNALS:
            mine = (r for r in rows if r["stage"] == stage and r["key"] and r["kind"] == "permanent")
            ended = ((r["key"], r["last_at"]) for r in mine)
            failed_at = {key: datetime.fromisoformat(at).timestamp() if at else 0.0 for key, at in ended}
            if failed_at:
                lock.check()
                found = retries.put_back(store, stage, failed_at, told)
                retried, before = retried + found, before + len(failed_at) - found
    return PutBack(retried, before, sum(r["kind"] != "permanent" or r["stage"] == "read" for r in rows))


def next_command(store: Store, root: str) -> str:
    """The command line that goes on with this index."""
    manifest = snapshots.latest(store)
    shown = str(manifest.run.get("input", "")) if manifest else ""
    more = " --add" if manifest and len(manifest.run.get("inputs", [])) > 1 else ""
    return f"graphrag-ray index {shlex.quote(shown) if shown else 'INPUT'} --root {shlex.quote(root)}{more}"


def _row(stage: str, key: str, rows: Sequence[JournalRow]) -> Failure:
    failures = [r for r in rows if r.kind == FAILED]
    ended = [r for r in rows if r.kind not in (FAILED, "turn") and r.error]
    last = ended[-1] if ended else max(failures, key=lambda r: r.at)
    return {
        "stage": stage,
        "item": key[:KEY_SHOWN],
        "document": "",
        "kind": "transient" if not ended and last.retryable else "permanent",
        "error": last.error,
        "attempts": sum(r.attempts for r in rows if r.kind != "done"),
        "first_at": iso(min(r.at for r in rows)),
        "last_at": iso(max(r.at for r in rows)),
        "key": key,
    }
