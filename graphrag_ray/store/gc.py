"""Removing what no kept snapshot needs.

    gc/snapshots/<n>.json   a snapshot that was taken away: nobody opens it, whoever had it open reads on

A snapshot goes in two steps. First its manifest is moved to `gc/`; its parts stay for the grace period, for
those who opened it before. A later call removes the parts that nothing names any more, and the manifest.
Parts that no manifest ever named (of a run that was killed) go when they are older than the grace period.

For the holder of the lock: no run that would use a part writes meanwhile. Ages are differences of two times
that the storage itself told, so no two machines' clocks are compared. Killed at any moment, it leaves every
kept snapshot readable, and the next call goes on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import blobs, locks, parts, runs, snapshots
from graphrag_ray.store.files import FileInfo, Store, in_threads
from graphrag_ray.store.snapshots import Manifest

KEEP = 3
"""Snapshots that are kept by default."""
GRACE_S = 3600.0
"""How long by default a reader may go on with a snapshot that was taken away."""
FOLDER = "gc"

_MOVED = re.compile(r"gc/snapshots/([1-9][0-9]*)\.json")
_DAMAGED = re.compile(r".+/damaged/[^/]+")
_DELETED_AT_ONCE = 64


@dataclass(frozen=True)
class Options:
    """What goes.

    keep          the newest snapshots, so many, stay; at least one. None: KEEP, and where some go at once all
                  others
    older_than_s  of the others only those go that are older; 0: all
    grace_s       how long readers may go on with what was taken away
    damaged       also the damaged parts that were set aside
    at_once       snapshots that go whatever their number and age, and with them, without grace, everything
                  that nothing names; None: there are none
    """

    keep: int | None = None
    older_than_s: float = 0.0
    grace_s: float = GRACE_S
    damaged: bool = False
    at_once: frozenset[int] | None = None


@dataclass(frozen=True)
class CleaningPlan:
    """What goes, and what has to wait.

    snapshots  numbers of those that are taken away
    at_once    of these, those that nobody may read on
    forgotten  of those taken away before whose grace period is over
    parts      of tables, to be deleted
    waiting    parts that nothing but readers in the grace period may need; until: unix seconds by the
               storage's clock at which the last of them may go; None: the storage tells no times
    others     leftover temporary files, old locks, records of runs, damaged parts (where asked for)
    kept       numbers of the snapshots that stay
    """

    snapshots: list[int] = field(default_factory=list)
    at_once: frozenset[int] = frozenset()
    forgotten: list[int] = field(default_factory=list)
    parts: list[FileInfo] = field(default_factory=list)
    waiting: list[FileInfo] = field(default_factory=list)
    until: float | None = None
    others: Mapping[str, list[FileInfo]] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.snapshots or self.forgotten or self.parts or any(self.others.values()))


def plan(store: Store, options: Options, lock: locks.Lock | None = None) -> CleaningPlan:
    """What `carry_out` would do. Reads only.

    lock: that is held; its file tells the time by the storage's clock. Without it this machine's clock is
    asked, which is good enough for a look.

    Raises IndexNotFound; CorruptPart for a damaged manifest, whose parts nobody knows; StoreError.
    """
    if options.keep is not None and options.keep < 1:
        raise ValueError("at least one snapshot is kept")
    # The time of our own lock's file, which we have just made.
    ours = f"locks/{lock.epoch}.json" if lock is not None else ""
    told = [info.modified for info in store.list("locks") if info.path == ours]
    now = told[0] if told and told[0] is not None else time.time()

    def age(modified: float | None) -> float:
        """Seconds; what has no time is as young as can be."""
        return max(0.0, now - modified) if modified is not None else 0.0

    live, moved, times = _manifests(store)
    if not live:
        snapshots.open_latest(store)
    keep = options.keep or (KEEP if options.at_once is None else len(live))
    going = {n for n in sorted(live)[:-keep] if age(times[f"snapshots/{n}.json"]) >= options.older_than_s}
    going = (going | (live.keys() & (options.at_once or frozenset()))) - {max(live)}
    banned = (options.at_once or frozenset()) if options.grace_s > 0 else frozenset({*live, *moved})
    # One that is both there and taken away is there: the move was not finished.
    gone = {n: m for n, m in moved.items() if n not in live}
    ages = {n: age(times[f"{FOLDER}/snapshots/{n}.json"]) for n in gone}
    over = [n for n in gone if n in banned or ages[n] >= options.grace_s]
    kept = {n: m for n, m in live.items() if n not in going}
    moving = [m for n, m in live.items() if n in going and n not in banned]
    read = _parts_of([*moving, *(m for n, m in gone.items() if n not in over)])
    ends = [now + options.grace_s - ages[n] for n in gone if n not in over]
    ends += [now + options.grace_s] if moving else []

    grace = 0.0 if options.at_once is not None else options.grace_s
    everything = store.list()
    damaged = [info for info in everything if _DAMAGED.fullmatch(info.path)]
    apart = _parts_of(kept.values()) | {info.path for info in damaged}
    stored = [info for info in everything if info.path.split("/")[0] in parts.FOLDERS]
    unneeded = [info for info in stored if info.path not in apart]
    young = {i.path for i in unneeded if i.path not in read and age(i.modified) < grace}
    waiting = [i for i in unneeded if i.path in read or i.path in young]
    ends += [i.modified + grace for i in waiting if i.path in young and i.modified]
    old_locks, old_runs = locks.finished(store), runs.superseded(store)
    if options.at_once is not None:
        old_runs |= {runs.REFUSED}  # it may name documents
    # The claim of a lock before its release, without which it would be kept for ever.
    claims_first = sorted(everything, key=lambda info: info.path.endswith(".beat.json"))
    return CleaningPlan(
        snapshots=sorted(going),
        at_once=banned & going,
        forgotten=sorted(over),
        parts=[i for i in unneeded if i.path not in read and i.path not in young],
        waiting=waiting,
        until=max(ends, default=None) if waiting else None,
        others={
            "temporary": [info for info in store.leftovers() if age(info.modified) >= grace],
            "locks": [info for info in claims_first if info.path in old_locks],
            "runs": [info for info in everything if info.path in old_runs],
            "damaged": damaged if options.damaged else [],
        },
        kept=sorted(kept),
    )


def _parts_of(manifests: Iterable[Manifest]) -> set[str]:
    return {path for manifest in manifests for path in snapshots.parts_of(manifest)}


def carry_out(store: Store, found: CleaningPlan, check: Callable[[], object]) -> None:
    """Do what `plan` said. For the holder of the lock under which it was made.

    check: called before everything that cannot be undone; raises when the lock is lost. Raises StoreError
    also where somebody else committed meanwhile.
    """
    check()
    if found.kept:
        # Readers probe forward from the hint: it must not point before a gap.
        snapshots.hint(store, found.kept[-1])
    for number in found.snapshots:
        check()
        if number not in found.at_once:
            store.write(f"{FOLDER}/snapshots/{number}.json", store.read(f"snapshots/{number}.json"))
        store.delete(f"snapshots/{number}.json")
    if snapshots.numbers(store) != found.kept:
        raise StoreError(
            f"the snapshots of {store.url} are not those that were there a moment ago: does another program "
            "write there? No part was removed; run gc again"
        )
    gone = [info.path for info in found.parts]
    # First: once the parts are deleted, nobody knows the names of their copies.
    blobs.forget(store, [*gone, *(info.path for info in found.others.get("damaged", []))])
    delete_all(store, gone, check)
    # A writer that lost its lock, and was paused just before its commit, may have named parts that we have
    # deleted meanwhile. One that commits later than this finds that out itself.
    for number in set(snapshots.numbers(store)) - set(found.kept):
        if snapshots.lacking(store, snapshots.load(store, number)):
            store.delete(f"snapshots/{number}.json")
            snapshots.hint(store, max(found.kept))
            raise StoreError(
                f"snapshot {number} of {store.url} was committed by a writer that had lost its lock, without "
                "some of its parts; it was taken back. Run `graphrag-ray index` again: nothing is lost"
            )
    delete_all(store, [f"{FOLDER}/snapshots/{n}.json" for n in found.forgotten], check)
    for infos in found.others.values():
        delete_all(store, [info.path for info in infos], check)


def delete_all(store: Store, paths: Iterable[str], check: Callable[[], object]) -> None:
    """Delete files, many at once; the lock is looked at before every few. Raises StoreError, LockLost."""
    left = list(paths)
    for at in range(0, len(left), _DELETED_AT_ONCE):
        check()
        list(in_threads(store.delete, left[at : at + _DELETED_AT_ONCE]))


def taken_away(store: Store) -> dict[int, Manifest]:
    """The snapshots that were taken away and whose parts are still there. Raises StoreError."""
    return _manifests(store)[1]


def _manifests(store: Store) -> tuple[dict[int, Manifest], dict[int, Manifest], dict[str, float | None]]:
    """Those that are there and those that were taken away, by number; when each file came to be."""
    live: dict[int, Manifest] = {}
    moved: dict[int, Manifest] = {}
    infos = [*store.list("snapshots"), *store.list(f"{FOLDER}/snapshots")]
    for info in infos:
        there, away = snapshots.NAME.fullmatch(info.path), _MOVED.fullmatch(info.path)
        if there or away:
            try:
                found = snapshots.parse(store, info.path, store.read(info.path))
            except FileNotFoundError:
                continue  # Another gc, while this one only looks.
            except CorruptPart as e:
                raise CorruptPart(
                    f"{e}. Nothing is removed, since nobody knows which parts it needs: put a sound copy in "
                    "its place, or delete that file"
                ) from e
            if there:
                live[int(there.group(1))] = found
            elif away:
                moved[int(away.group(1))] = found
    return live, moved, {info.path: info.modified for info in infos}
