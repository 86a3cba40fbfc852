"""What an index holds, from its own files: the newest snapshot, the journal, the lock; how its last run
went, or is going."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from graphrag_ray.base.declarations import JOURNALS
from graphrag_ray.base.errors import CorruptPart, IndexNotFound, StoreError
from graphrag_ray.indexing.repair import needed
from graphrag_ray.indexing.run import iso
from graphrag_ray.indexing.run_record import MEANINGS
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.store import compaction, locks, runs, snapshots
from graphrag_ray.store.damaged_files import differing
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import list_all

LOOK_EVERY_S = 2.0
BEGUN_WITHIN_S = 900.0
"""Pods and machines that a job waits for take minutes."""
AWAY_S = 900.0
"""Longer than storage is away that comes back by itself. Its own attempts take some 15 s more."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


def status_of(store: Store, snapshot: int | None = None, *, listed: bool = False) -> dict[str, Any]:
    """Plain values for people and scripts. damaged: what is known to be damaged without reading every byte:
    the manifest, parts of the journal, parts of tables that are missing or too short.

    listed: with all snapshots that are kept, the newest first

    A writer on another machine is watched until it gives a sign of life (`locks.living`). Raises
    IndexNotFound where there is neither a snapshot nor work in progress, nor an attempt that is told of.
    """
    damaged: list[str] = []
    manifest = None
    try:
        manifest = snapshots.load(store, snapshot) if snapshot is not None else snapshots.latest(store)
    except CorruptPart as e:
        damaged.append(str(e))
    totals = {name: compaction.totals(store, name) for name in JOURNALS}
    damaged += [f"{store.url_of(path)} cannot be read" for t in totals.values() for path in t.damaged]
    journal = []
    for name, of in totals.items():
        models = of.by_model.values()
        turns = sum(m.calls for m in models)
        if turns or of.failed:
            tokens = sum(m.prompt_tokens + m.completion_tokens for m in models)
            row = {"stage": name, "done": of.done, "turns": turns, "failed": of.failed, "tokens": tokens}
            journal.append(row)
    refused = _refused(store)
    if manifest is None and not (journal or damaged or refused) and not store.list("locks"):
        raise IndexNotFound(
            f"there is no index at {store.url}; make one with: graphrag-ray index INPUT --root {store.url}"
        )
    record, writer = _looked(store)
    found: dict[str, Any] = {
        "root": store.url,
        "writer": str(writer) if writer else None,
        "snapshot": None,
        "journal": journal,
        "usage": [],
        "notes": {},
        "damaged": damaged,
        "last_run": _told(store, record, writer),
        "refused": refused,
    }
    if manifest is not None:
        found |= {
            "snapshot": manifest.number,
            "parent": manifest.parent,
            "created_at": manifest.created_at,
            "version": manifest.version,
            "counts": dict(manifest.counts),
            "run": dict(manifest.run),
            "usage": list(Accounts.from_dict(manifest.usage).rows()),
            "notes": dict(manifest.notes),
        }
        wrong = differing(store, needed(manifest))
        damaged += [f"{store.url_of(path)} {what}" for path, what in wrong.items()]
    if listed:
        found["snapshots"] = _snapshots(store)
    return found


def watched(
    store: Store,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """How the last run is going, again and again until it has ended; nothing where there is none, or an
    attempt after it came to no run (`refused_since`). Storage that does not answer is asked again: a run has
    its own way to it. Raises StoreError, also where it has not answered for AWAY_S."""
    found = last_run(store)
    if found is None or (found["outcome"] != runs.RUNNING and refused_since(store)):
        return
    while found is not None:
        yield found
        if found["outcome"] != runs.RUNNING:
            return
        sleep(LOOK_EVERY_S)
        found = _patiently(partial(last_run, store), clock, sleep)


def _patiently(look: Callable[[], T], clock: Callable[[], float], sleep: Callable[[float], object]) -> T:
    """A look at storage, again and again until it answers, AWAY_S at most."""
    began, told = clock(), False
    while True:
        try:
            return look()
        except CorruptPart:
            raise
        except StoreError as e:
            if clock() >= began + AWAY_S:
                raise StoreError(f"{e}. The run may be going on all the same") from e
            if not told:
                _log.warning("%s. Looking again for %.0f minutes", e, AWAY_S / 60)
            told = True
            sleep(LOOK_EVERY_S)


def await_next(
    store: Store,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Wait until a run begins or an attempt comes to none; not at all where a run is going on.

    Raises StoreError, also where nothing comes within BEGUN_WITHIN_S.
    """
    before, refused = max(runs.epochs(store), default=0), runs.read_refusal(store)
    found = last_run(store)
    if found is not None and found["outcome"] == runs.RUNNING:
        return
    end = clock() + BEGUN_WITHIN_S

    def nothing_yet() -> bool:
        return max(runs.epochs(store), default=0) == before and runs.read_refusal(store) in (None, refused)

    while _patiently(nothing_yet, clock, sleep):
        if clock() >= end:
            raise StoreError(
                f"no run began at {store.url} within {BEGUN_WITHIN_S / 60:.0f} minutes, and none was "
                "refused: see what became of the job where it was submitted. A run that was over before this "
                "command watched is shown by `graphrag-ray status`"
            )
        sleep(LOOK_EVERY_S)


def last_run(store: Store) -> dict[str, Any] | None:
    """What the last run was given, what it did, where it is (`reached`), and how it ended; None for none.
    Raises StoreError."""
    return _told(store, *_looked(store))


def _looked(store: Store) -> tuple[runs.RunRecord | None, locks.Holder | None]:
    """The last run's record, and who holds the lock and lives.

    To watch a holder takes up to 20 s, in which that run may end and another begin. So a record that says
    "running" without its holder is one that was the last before and after.
    """
    before, record = None, runs.latest(store)
    while True:
        writer = locks.living(store)
        if record is None or record == before or not _killed(record, writer):
            return record, writer
        before, record = record, runs.latest(store)


def _killed(record: runs.RunRecord, writer: locks.Holder | None) -> bool:
    return record.outcome == runs.RUNNING and (writer is None or writer.nonce != record.nonce)


def _told(store: Store, record: runs.RunRecord | None, writer: locks.Holder | None) -> dict[str, Any] | None:
    if record is None:
        return None
    running = record.outcome == runs.RUNNING
    return {
        "epoch": record.epoch,
        "outcome": "killed" if _killed(record, writer) else record.outcome,
        "exit_code": record.exit_code,
        "exit_meaning": _meaning(record.exit_code),
        "message": record.message,
        "started_at": iso(record.started_at),
        "ended_at": iso(record.ended_at),
        "host": record.host,
        "pid": record.pid,
        "snapshot": record.snapshot,
        "failed": record.failed,
        "given": dict(record.given),
        "steps": {name: dict(step) for name, step in record.steps.items()},
        "usage": list(Accounts.from_dict(record.usage).rows()),
        "reached": _live(store, record.epoch) if running else (dict(record.reached) or None),
    }


def _live(store: Store, epoch: int) -> dict[str, Any] | None:
    """What a run told last of where it is. age_s: how long before its last sign of life, by the clock of the
    storage, which told both."""
    live = runs.read_live(store, epoch)
    if live is None:
        return None
    modified = {i.path: i.modified for folder in ("runs", "locks") for i in store.list(folder)}
    told, beat = modified.get(runs.live_path(epoch)), modified.get(locks.beat_path(epoch))
    return {
        "step": live.step,
        "seconds": live.seconds,
        "pace": dict(live.pace),
        "told_at": iso(live.at),
        "age_s": max(0.0, beat - told) if told is not None and beat is not None else None,
    }


def refused_since(store: Store) -> dict[str, Any] | None:
    """The last attempt, where it came to no run, and that was told after the last run ended: by the clock of
    the storage, which told both. Raises StoreError."""
    modified = {info.path: info.modified for info in store.list("runs")}
    told = modified.get(runs.REFUSED)
    ended = modified.get(runs.record_path(max(runs.epochs(store), default=0)))
    return None if told is not None and ended is not None and told <= ended else _refused(store)


def _refused(store: Store) -> dict[str, Any] | None:
    """The last attempt, where it came to no run."""
    found = runs.read_refusal(store)
    if found is None or found.after < max(runs.epochs(store), default=0):
        return None
    return {
        "at": iso(found.at),
        "outcome": found.outcome,
        "exit_code": found.exit_code,
        "exit_meaning": _meaning(found.exit_code),
        "message": found.message,
        "given": dict(found.given),
    }


def _meaning(code: int | None) -> str | None:
    return None if code is None else MEANINGS.get(code, MEANINGS[1])


def _snapshots(store: Store) -> list[dict[str, Any]]:
    """bytes: of the parts that a snapshot needs; own_bytes: of those that no other one needs."""
    kept = []
    for number in reversed(snapshots.numbers(store)):
        with suppress(IndexNotFound):  # Removed since it was listed.
            kept.append(snapshots.load(store, number))
    size = {info.path: info.bytes for info in list_all(store)}
    named = {m.number: snapshots.parts_of(m) for m in kept}
    users = Counter(path for paths in named.values() for path in paths)
    return [
        {
            "snapshot": m.number,
            "created_at": m.created_at,
            "documents": m.counts.get("documents", 0),
            "entities": m.counts.get("entities", 0),
            "reports": m.counts.get("reports") or m.counts.get("summaries", 0),
            "cost_usd": Accounts.from_dict(m.usage).total.cost_usd,
            "bytes": sum(size.get(path, 0) for path in named[m.number]),
            "own_bytes": sum(size.get(path, 0) for path in named[m.number] if users[path] == 1),
        }
        for m in kept
    ]
