"""Garbage collection: remove what no kept snapshot needs.

A snapshot is removed in two steps. First its manifest moves to `gc/snapshots/<n>.json`; its parts stay for
the grace period, for readers that have it open. A later call deletes them and the manifest. Unreferenced
parts of killed runs are deleted after the grace period, too. Callers hold the lock, so no run is writing.
Ages are differences between times of the storage, so no two machines' clocks are compared. Killed at any
moment, it leaves every kept snapshot readable.
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
GRACE_S = 3600.0  # Default time for which readers may go on using a removed snapshot.
FOLDER = "gc"

_MOVED = re.compile(r"gc/snapshots/([1-9][0-9]*)\.json")
_DAMAGED = re.compile(r".+/damaged/[^/]+")
_DELETE_BATCH = 64


@dataclass(frozen=True)
class GcOptions:
    """What to remove."""

    keep: int | None = None  # At least 1. None: KEEP, or all others if `at_once` is given.
    older_than_s: float = 0.0
    grace_s: float = GRACE_S  # Time for which readers may go on using removed snapshots.
    damaged: bool = False  # Whether to remove the damaged parts that were set aside.
    # Snapshots to remove whatever their age, together with everything unreferenced, without a grace period.
    at_once: frozenset[int] | None = None


@dataclass(frozen=True)
class GcPlan:
    """What will be removed, and what has to wait. Snapshots are given by number."""

    snapshots: list[int] = field(default_factory=list)
    at_once: frozenset[int] = frozenset()  # Those of `snapshots` that get no grace period.
    expired: list[int] = field(default_factory=list)  # Removed earlier; their grace period is over.
    parts: list[FileInfo] = field(default_factory=list)
    waiting: list[FileInfo] = field(default_factory=list)  # Only readers in the grace period may need them.
    waiting_until: float | None = (
        None  # Unix seconds by the storage's clock when the last of them can go, if known.
    )
    others: Mapping[str, list[FileInfo]] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.snapshots or self.expired or self.parts or any(self.others.values()))


def plan_gc(store: Store, options: GcOptions, lock: locks.Lock | None = None) -> GcPlan:
    """Plan what `execute` will do. Only reads.

    Args:
        lock: The lock that is held; its file tells the time by the storage's clock. Without it this machine's
            clock is used, which is good enough for a preview.

    Raises:
        IndexNotFound: If there is no snapshot.
        CorruptPart: If a manifest is damaged, so that its parts are unknown.
    """
    if options.keep is not None and options.keep < 1:
        raise ValueError("At least one snapshot must be kept")
    lock_file = f"locks/{lock.epoch}.json" if lock is not None else ""
    lock_times = [info.modified for info in store.list("locks") if info.path == lock_file]
    now = lock_times[0] if lock_times and lock_times[0] is not None else time.time()

    def age(modified: float | None) -> float:
        """Return seconds; a file without a time counts as new."""
        return max(0.0, now - modified) if modified is not None else 0.0

    live, moved, times = _manifests(store)
    if not live:
        snapshots.open_latest(store)
    keep = options.keep or (KEEP if options.at_once is None else len(live))
    going = {n for n in sorted(live)[:-keep] if age(times[f"snapshots/{n}.json"]) >= options.older_than_s}
    going = (going | (live.keys() & (options.at_once or frozenset()))) - {max(live)}
    no_grace = (options.at_once or frozenset()) if options.grace_s > 0 else frozenset({*live, *moved})
    # A snapshot in both places is live: its move was not finished.
    removed = {n: manifest for n, manifest in moved.items() if n not in live}
    ages = {n: age(times[f"{FOLDER}/snapshots/{n}.json"]) for n in removed}
    expired = [n for n in removed if n in no_grace or ages[n] >= options.grace_s]
    kept = {n: manifest for n, manifest in live.items() if n not in going}
    moving = [manifest for n, manifest in live.items() if n in going and n not in no_grace]
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
    old_locks, old_runs = locks.obsolete_files(store), run_records.superseded(store)
    if options.at_once is not None:
        old_runs |= {run_records.REFUSED}  # It may name documents.
    # A lock's claim goes before its release: without the release the claim would be kept forever.
    claims_first = sorted(files, key=lambda info: info.path.endswith(".beat.json"))
    return GcPlan(
        snapshots=sorted(going),
        at_once=no_grace & going,
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


def execute(store: Store, found: GcPlan, check: Callable[[], object]) -> None:
    """Execute a plan under the lock with which it was made.

    `check` is called before everything that cannot be undone, and raises when the lock is lost. Raises
    StoreError if somebody else committed a snapshot meanwhile.
    """
    check()
    if found.kept:
        # Readers probe forward from the hint, so it must not point to before a gap.
        snapshots.write_hint(store, found.kept[-1])
    for number in found.snapshots:
        check()
        if number not in found.at_once:
            store.write(f"{FOLDER}/snapshots/{number}.json", store.read(f"snapshots/{number}.json"))
        store.delete(f"snapshots/{number}.json")
    if snapshots.numbers(store) != found.kept:
        raise StoreError(
            f"The snapshots of {store.url} changed during the clean-up. Is another program writing there? No "
            "part was removed; run gc again."
        )
    gone = [info.path for info in found.parts]
    # First, because nobody knows the names of the copies once the parts are deleted.
    index_files.delete_copies(store, [*gone, *(info.path for info in found.others.get("damaged", []))])
    _delete_all(store, gone, check)
    # A writer that lost its lock, and was paused just before its commit, may reference parts that we have
    # deleted meanwhile. If it commits after this check, it notices by itself.
    for number in set(snapshots.numbers(store)) - set(found.kept):
        if snapshots.missing_parts(store, snapshots.load(store, number)):
            store.delete(f"snapshots/{number}.json")
            snapshots.write_hint(store, max(found.kept))
            raise StoreError(
                f"Snapshot {number} of {store.url} was committed by a writer that had lost its lock, without "
                "some of its parts, and has been taken back. Run `graphrag-ray index` again: nothing is lost."
            )
    _delete_all(store, [f"{FOLDER}/snapshots/{n}.json" for n in found.expired], check)
    for infos in found.others.values():
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
                    pass  # Removed by a concurrent gc while this one only previews.
                except CorruptPart as e:
                    raise CorruptPart(
                        f"{e}. Nothing is removed, because the parts that it needs are unknown. Replace that "
                        "file with an intact copy, or delete it."
                    ) from e
    return live, moved, {info.path: info.modified for info in infos}
