"""The status of an index, from its own files: newest snapshot, journal, lock, and the last run."""

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
from graphrag_ray.indexing.repair import needed_parts
from graphrag_ray.indexing.run import format_utc
from graphrag_ray.indexing.run_record import EXIT_CODE_MEANINGS
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.store import compaction, locks, run_records, snapshots
from graphrag_ray.store.damaged_files import find_size_mismatches
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import list_parts

POLL_INTERVAL_S = 2.0
START_TIMEOUT_S = 900.0  # Pods and machines that a job waits for take minutes to start.
# Longer than storage outages that end by themselves. The storage client's own retries add about 15 s.
OUTAGE_TIMEOUT_S = 900.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


def index_status(
    store: Store, snapshot: int | None = None, *, with_snapshots: bool = False
) -> dict[str, Any]:
    """Return the status of an index as plain values.

    `damaged` lists damage that can be detected without reading every byte: to the manifest, to parts of the
    journal, and missing or truncated parts of tables. A writer on another machine is observed until it shows
    a sign of life (`locks.find_live_holder`). With `listed`, the status includes all snapshots, newest first.

    Raises:
        IndexNotFound: There is no snapshot, no journal, no lock and no recorded attempt.
    """
    damaged: list[str] = []
    manifest = None
    try:
        manifest = snapshots.load(store, snapshot) if snapshot is not None else snapshots.read_latest(store)
    except CorruptPart as e:
        damaged.append(str(e))
    totals = {name: compaction.totals(store, name) for name in JOURNALS}
    damaged += [f"{store.url_of(path)} cannot be read" for t in totals.values() for path in t.damaged]
    journal = []
    for name, total in totals.items():
        models = total.by_model.values()
        turns = sum(m.calls for m in models)
        if turns or total.failed:
            tokens = sum(m.prompt_tokens + m.completion_tokens for m in models)
            counts = {"done": total.done, "turns": turns, "failed": total.failed, "tokens": tokens}
            journal.append({"stage": name, **counts})
    refusal = _last_refusal(store)
    if manifest is None and not (journal or damaged or refusal) and not store.list("locks"):
        raise IndexNotFound(
            f"No index at {store.url}. Create one with: graphrag-ray index INPUT --root {store.url}"
        )
    record, writer = _last_record(store)
    status: dict[str, Any] = {
        "root": store.url,
        "writer": str(writer) if writer else None,
        "snapshot": None,
        "journal": journal,
        "usage": [],
        "notes": {},
        "damaged": damaged,
        "last_run": _describe_run(store, record, writer),
        "refused": refusal,
    }
    if manifest is not None:
        status |= {
            "snapshot": manifest.number,
            "parent": manifest.parent,
            "created_at": manifest.created_at,
            "version": manifest.version,
            "counts": dict(manifest.counts),
            "run": dict(manifest.run),
            "usage": list(Accounts.from_dict(manifest.usage).rows()),
            "notes": dict(manifest.notes),
        }
        mismatches = find_size_mismatches(store, needed_parts(manifest))
        damaged += [f"{store.url_of(path)} {problem}" for path, problem in mismatches.items()]
    if with_snapshots:
        status["snapshots"] = _list_snapshots(store)
    return status


def watch_last_run(
    store: Store, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
) -> Iterator[dict[str, Any]]:
    """Yield the state of the last run repeatedly until it has ended.

    Yields nothing if there is no run, or if a later attempt was refused (`refusal_since_last_run`). If
    storage is unavailable, StoreError is raised only after OUTAGE_TIMEOUT_S, because the run may still have
    access to it.
    """
    run = last_run(store)
    if run is None or (run["outcome"] != run_records.RUNNING and refusal_since_last_run(store)):
        return
    while run is not None:
        yield run
        if run["outcome"] != run_records.RUNNING:
            return
        sleep(POLL_INTERVAL_S)
        run = _retry_storage(partial(last_run, store), clock, sleep)


def _retry_storage(read: Callable[[], T], clock: Callable[[], float], sleep: Callable[[float], object]) -> T:
    """Read from storage, and retry for OUTAGE_TIMEOUT_S while it is unavailable."""
    began, logged = clock(), False
    while True:
        try:
            return read()
        except CorruptPart:
            raise
        except StoreError as e:
            if clock() >= began + OUTAGE_TIMEOUT_S:
                raise StoreError(f"{e}. The run may still be active.") from e
            if not logged:
                _log.warning("%s. Retrying for %.0f minutes", e, OUTAGE_TIMEOUT_S / 60)
            logged = True
            sleep(POLL_INTERVAL_S)


def wait_for_run(
    store: Store, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Wait until a run begins or is refused. Raises StoreError after START_TIMEOUT_S."""
    before, refusal = max(run_records.list_epochs(store), default=0), run_records.read_refusal(store)
    run = last_run(store)
    if run is not None and run["outcome"] == run_records.RUNNING:
        return
    end = clock() + START_TIMEOUT_S

    def nothing_yet() -> bool:
        return max(run_records.list_epochs(store), default=0) == before and run_records.read_refusal(
            store
        ) in (
            None,
            refusal,
        )

    while _retry_storage(nothing_yet, clock, sleep):
        if clock() >= end:
            raise StoreError(
                f"No run began at {store.url} within {START_TIMEOUT_S / 60:.0f} minutes, and none was "
                "refused. Check the job where it was submitted. `graphrag-ray status` shows runs that ended "
                "before this command started."
            )
        sleep(POLL_INTERVAL_S)


def last_run(store: Store) -> dict[str, Any] | None:
    """Describe the last run: its input, steps, progress (`reached`) and outcome. Returns None if none ran."""
    return _describe_run(store, *_last_record(store))


def _last_record(store: Store) -> tuple[run_records.RunRecord | None, locks.Holder | None]:
    """Return the last run's record, and the live holder of the lock.

    Observing a holder takes up to 20 s, in which the run may end and another may begin. A record that says
    "running" but has no live holder is therefore returned only if it was the last one both before and after.
    """
    before, record = None, run_records.latest_run(store)
    while True:
        writer = locks.find_live_holder(store)
        if record is None or record == before or not _was_killed(record, writer):
            return record, writer
        before, record = record, run_records.latest_run(store)


def _was_killed(record: run_records.RunRecord, writer: locks.Holder | None) -> bool:
    return record.outcome == run_records.RUNNING and (writer is None or writer.nonce != record.nonce)


def _describe_run(
    store: Store, record: run_records.RunRecord | None, writer: locks.Holder | None
) -> dict[str, Any] | None:
    if record is None:
        return None
    running = record.outcome == run_records.RUNNING
    return {
        **{n: getattr(record, n) for n in ("epoch", "message", "host", "pid", "snapshot", "failed")},
        "outcome": "killed" if _was_killed(record, writer) else record.outcome,
        "exit_code": record.exit_code,
        "exit_meaning": _exit_meaning(record.exit_code),
        "started_at": format_utc(record.started_at),
        "ended_at": format_utc(record.ended_at),
        "given": dict(record.given),
        "steps": {name: dict(step) for name, step in record.steps.items()},
        "usage": list(Accounts.from_dict(record.usage).rows()),
        "reached": _read_progress(store, record.epoch) if running else (dict(record.reached) or None),
    }


def _read_progress(store: Store, epoch: int) -> dict[str, Any] | None:
    """Return the progress that a run wrote last, and its age at the last heartbeat by the storage's clock."""
    live = run_records.read_live(store, epoch)
    if live is None:
        return None
    modified = {i.path: i.modified for folder in ("runs", "locks") for i in store.list(folder)}
    written, beat = modified.get(run_records.live_path(epoch)), modified.get(locks.heartbeat_path(epoch))
    return {
        "step": live.step,
        "seconds": live.seconds,
        "pace": dict(live.pace),
        "told_at": format_utc(live.at),
        "age_s": max(0.0, beat - written) if written is not None and beat is not None else None,
    }


def refusal_since_last_run(store: Store) -> dict[str, Any] | None:
    """Return the last attempt if it was refused after the last run, by the storage's clock."""
    modified = {info.path: info.modified for info in store.list("runs")}
    refused_at = modified.get(run_records.REFUSED)
    ended_at = modified.get(run_records.record_path(max(run_records.list_epochs(store), default=0)))
    if refused_at is not None and ended_at is not None and refused_at <= ended_at:
        return None
    return _last_refusal(store)


def _last_refusal(store: Store) -> dict[str, Any] | None:
    """Return the last attempt if it was refused and no run has begun since."""
    refusal = run_records.read_refusal(store)
    if refusal is None or refusal.after < max(run_records.list_epochs(store), default=0):
        return None
    return {
        "at": format_utc(refusal.at),
        "outcome": refusal.outcome,
        "exit_code": refusal.exit_code,
        "exit_meaning": _exit_meaning(refusal.exit_code),
        "message": refusal.message,
        "given": dict(refusal.given),
    }


def _exit_meaning(code: int | None) -> str | None:
    return None if code is None else EXIT_CODE_MEANINGS.get(code, EXIT_CODE_MEANINGS[1])


def _list_snapshots(store: Store) -> list[dict[str, Any]]:
    """List all snapshots with the total size of their parts, and of the parts that no other snapshot uses."""
    manifests = []
    for number in reversed(snapshots.list_numbers(store)):
        with suppress(IndexNotFound):  # It was removed after the listing.
            manifests.append(snapshots.load(store, number))
    size = {info.path: info.bytes for info in list_parts(store)}
    paths_by_number = {m.number: snapshots.part_paths(m) for m in manifests}
    users = Counter(path for paths in paths_by_number.values() for path in paths)
    return [
        {
            "snapshot": m.number,
            "created_at": m.created_at,
            "documents": m.counts.get("documents", 0),
            "entities": m.counts.get("entities", 0),
            "reports": m.counts.get("reports") or m.counts.get("summaries", 0),
            "cost_usd": Accounts.from_dict(m.usage).total.cost_usd,
            "bytes": sum(size.get(path, 0) for path in paths_by_number[m.number]),
            "own_bytes": sum(size.get(path, 0) for path in paths_by_number[m.number] if users[path] == 1),
        }
        for m in manifests
    ]
