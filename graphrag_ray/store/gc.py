"""Garbage collection: remove old snapshots, and files that no snapshot needs.

A snapshot is removed in two steps. First its manifest moves to `gc/snapshots/<n>.json`, and its parts stay
for the grace period, because readers may have it open. A later call deletes the parts and the manifest.
Unreferenced parts of killed runs are also deleted after the grace period. Callers hold the lock, so no run is
writing. Ages are computed from the storage's clock alone. Killing gc at any moment is safe.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import index_files, locks, parts, run_records, snapshots
from graphrag_ray.store.files import FileInfo, Store, map_in_threads
from graphrag_ray.store.snapshots import Manifest

KEEP = 3  # Default number of snapshots to keep.
GRACE_S = 3600.0  # Default time during which readers may still use a removed snapshot.
FOLDER = "gc"

_MOVED = re.compile(r"gc/snapshots/([1-9][0-9]*)\.json")
_DAMAGED = re.compile(r".+/damaged/[^/]+")
_DELETE_BATCH = 64


@dataclass(frozen=True)
class GcOptions:
    """What to remove."""

    keep: int | None = None  # At least 1. By default KEEP, or all other snapshots if `at_once` is given.
    older_than_s: float = 0.0  # Minimum age of a snapshot to remove.
    grace_s: float = GRACE_S  # Time during which readers may still use a removed snapshot.
    damaged: bool = False  # Whether to remove the damaged parts that were set aside.
    # Snapshots to remove at any age. These, and all unreferenced files, get no grace period.
    at_once: frozenset[int] | None = None


@dataclass(frozen=True)
class GcPlan:
    """What will be removed now, and what has to wait. Snapshots are given by number."""

    snapshots: list[int] = field(default_factory=list)  # Snapshots to remove.
    at_once: frozenset[int] = frozenset()  # The members of `snapshots` without a grace period.
    expired: list[int] = field(default_factory=list)  # Removed earlier, with an expired grace period.
    parts: list[FileInfo] = field(default_factory=list)  # Parts to remove now.
    waiting: list[FileInfo] = field(default_factory=list)  # Parts in their grace period.
    # When all waiting parts can be removed, in Unix seconds by the storage's clock, if known.
    waiting_until: float | None = None
    others: Mapping[str, list[FileInfo]] = field(default_factory=dict)  # Other files to remove, by kind.
    kept: list[int] = field(default_factory=list)  # Remaining snapshots.

    @property
    def empty(self) -> bool:
        return not (self.snapshots or self.expired or self.parts or any(self.others.values()))


def plan_gc(store: Store, options: GcOptions, lock: locks.Lock | None = None) -> GcPlan:
    """Plan what `execute` will do, without changing anything.

    Args:
        lock: The lock held by the caller. The modification time of its file is the current time by the
            storage's clock. Without it, this machine's clock is used, which is good enough for a preview.

    Raises:
        IndexNotFound: If there is no snapshot.
        CorruptPart: If a manifest is damaged, so that the parts it needs are unknown.
    """
    if options.keep is not None and options.keep < 1:
        raise ValueError("At least one snapshot must be kept")
    lock_file = f"locks/{lock.epoch}.json" if lock is not None else ""
    lock_times = [info.modified for info in store.list("locks") if info.path == lock_file]
    now = lock_times[0] if lock_times and lock_times[0] is not None else time.time()

    def age(modified: float | None) -> float:
        """Return the age in seconds. A file without a modification time counts as new."""
        return max(0.0, now - modified) if modified is not None else 0.0

    live, moved, times = _manifests(store)
    if not live:
        snapshots.open_latest(store)
    keep = options.keep or (KEEP if options.at_once is None else len(live))
    to_remove = {n for n in sorted(live)[:-keep] if age(times[f"snapshots/{n}.json"]) >= options.older_than_s}
    to_remove = (to_remove | (live.keys() & (options.at_once or frozenset()))) - {max(live)}
    no_grace = (options.at_once or frozenset()) if options.grace_s > 0 else frozenset({*live, *moved})
    # A snapshot in both folders is live, because its move was not completed.
    removed = {n: manifest for n, manifest in moved.items() if n not in live}
    ages = {n: age(times[f"{FOLDER}/snapshots/{n}.json"]) for n in removed}
    expired = [n for n in removed if n in no_grace or ages[n] >= options.grace_s]
    kept = {n: manifest for n, manifest in live.items() if n not in to_remove}
    moving = [manifest for n, manifest in live.items() if n in to_remove and n not in no_grace]
    readable = _parts_of([*moving, *(manifest for n, manifest in removed.items() if n not in expired)])
    ends = [now + options.grace_s - ages[n] for n in removed if n not in expired]
    ends += [now + options.grace_s] if moving else []

    grace = 0.0 if options.at_once is not None else options.grace_s
    files = store.list()
    damaged = [info for info in files if _DAMAGED.fullmatch(info.path)]
    needed = _parts_of(kept.values()) | {info.path for info in damaged}
    stored = [info for info in files if info.path.split("/")[0] in parts.FOLDERS]
    unneeded = [info for info in stored if info.path not in needed]
    young = {info.path for info in unneeded if info.path not in readable and age(info.modified) < grace}
    waiting = [info for info in unneeded if info.path in readable or info.path in young]
    ends += [info.modified + grace for info in waiting if info.path in young and info.modified]
    old_locks, old_runs = locks.obsolete_files(store), run_records.obsolete_files(store)
    if options.at_once is not None:
        old_runs |= {run_records.REFUSED}  # It may name documents.
    # A claim is deleted before its heartbeat: an epoch without its release would never become obsolete.
    claims_first = sorted(files, key=lambda info: info.path.endswith(".beat.json"))
    return GcPlan(
        snapshots=sorted(to_remove),
        at_once=no_grace & to_remove,
        expired=sorted(expired),
        parts=[info for info in unneeded if info.path not in readable and info.path not in young],
        waiting=waiting,
        waiting_until=max(ends, default=None) if waiting else None,
        others={
            "temporary": [info for info in store.list_temporary() if age(info.modified) >= grace],
            "locks": [info for info in claims_first if info.path in old_locks],
            "runs": [info for info in files if info.path in old_runs],
            "damaged": damaged if options.damaged else [],
        },
        kept=sorted(kept),
    )


def _parts_of(manifests: Iterable[Manifest]) -> set[str]:
    return {path for manifest in manifests for path in snapshots.part_paths(manifest)}


def execute_gc(store: Store, plan: GcPlan, check: Callable[[], object]) -> None:
    """Execute a plan under the lock with which it was made.

    `check` is called before every irreversible change and raises when the lock is lost. Raises StoreError if
    another writer committed a snapshot in the meantime.
    """
    check()
    if plan.kept:
        # Readers probe forward from the hint, so no removed number may follow it.
        snapshots.write_hint(store, plan.kept[-1])
    for number in plan.snapshots:
        check()
        if number not in plan.at_once:
            store.write(f"{FOLDER}/snapshots/{number}.json", store.read(f"snapshots/{number}.json"))
        store.delete(f"snapshots/{number}.json")
    if snapshots.list_numbers(store) != plan.kept:
        raise StoreError(
            f"The snapshots of {store.url} changed during garbage collection, so no part was removed. Check "
            "whether another program writes there, then run gc again."
        )
    paths = [info.path for info in plan.parts]
    # Copies go first, because their names are derived from the parts.
    index_files.delete_copies(store, [*paths, *(info.path for info in plan.others.get("damaged", []))])
    _delete_all(store, paths, check)
    # A writer that lost its lock and was paused just before its commit may reference parts that were deleted
    # in the meantime. If it commits after this check, `snapshots.commit` notices.
    for number in set(snapshots.list_numbers(store)) - set(plan.kept):
        if snapshots.missing_parts(store, snapshots.load(store, number)):
            store.delete(f"snapshots/{number}.json")
            snapshots.write_hint(store, max(plan.kept))
            raise StoreError(
                f"Snapshot {number} of {store.url} was committed by a writer that had lost its lock. It was "
                "removed again, because some of its parts are gone. Nothing is lost: run `graphrag-ray "
                "index` again."
            )
    _delete_all(store, [f"{FOLDER}/snapshots/{n}.json" for n in plan.expired], check)
    for infos in plan.others.values():
        _delete_all(store, [info.path for info in infos], check)


def _delete_all(store: Store, paths: list[str], check: Callable[[], object]) -> None:
    """Delete files in concurrent batches, checking the lock before each."""
    for start in range(0, len(paths), _DELETE_BATCH):
        check()
        list(map_in_threads(store.delete, paths[start : start + _DELETE_BATCH]))


def removed_snapshots(store: Store) -> dict[int, Manifest]:
    """Return the removed snapshots whose parts may still exist."""
    return _manifests(store)[1]


def _manifests(store: Store) -> tuple[dict[int, Manifest], dict[int, Manifest], dict[str, float | None]]:
    """Return the live and the removed manifests by number, and the modification time of each file."""
    live: dict[int, Manifest] = {}
    moved: dict[int, Manifest] = {}
    infos = [*store.list("snapshots"), *store.list(f"{FOLDER}/snapshots")]
    for info in infos:
        for name, manifests in ((snapshots.NAME, live), (_MOVED, moved)):
            if match := name.fullmatch(info.path):
                try:
                    manifests[int(match.group(1))] = snapshots.parse(store, info.path, store.read(info.path))
                except FileNotFoundError:
                    pass  # A concurrent gc removed it during this preview.
                except CorruptPart as e:
                    raise CorruptPart(
                        f"{e}. Nothing is removed, because the parts that this snapshot needs are unknown. "
                        "Replace the file with an intact copy, or delete it."
                    ) from e
    return live, moved, {info.path: info.modified for info in infos}
