"""Cleaning up an index: what no kept snapshot needs, what the newest does not need of the journal, and every
trace of a document that is gone from it.

A purge removes, without grace, the snapshots that hold the document and all that nothing else needs; every
item of the journal that the newest snapshot does not replay, since a reply about the document's entities may
quote it, and says nowhere which texts it was made from; damaged parts and unfinished files, since nobody can
tell what is in them. Killed half-way, it is finished by the next call that deletes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import JOURNALS
from graphrag_ray.base.errors import CorruptPart, DeletionRefused, UsageError
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.wording import plural
from graphrag_ray.indexing.replay import Keys, keys_needed
from graphrag_ray.store import gc, locks, snapshots, trim
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import read_part
from graphrag_ray.store.snapshots import Manifest

PENDING = f"{gc.FOLDER}/purge.json"
"""A purge under way: the snapshots that go, and hashes of the names that were given."""
NAMES_TOLD = 3


@dataclass(frozen=True)
class Collected:
    """What goes, or went (`deleted`).

    journal    by dialogue
    documents  paths of those that are purged, as far as a snapshot still knows them
    writer     who works on the index; None: nobody
    """

    plan: gc.CleaningPlan
    journal: Mapping[str, trim.Trimmed] = field(default_factory=dict)
    documents: Sequence[str] = ()
    deleted: bool = False
    writer: str | None = None

    @property
    def empty(self) -> bool:
        trimmed = any(t.parts or t.unreadable for t in self.journal.values())
        return self.plan.empty and not trimmed


@dataclass(frozen=True)
class _Purge:
    """numbers: of the snapshots that go; names: hashes of what was asked for; paths: of the documents."""

    numbers: frozenset[int]
    names: frozenset[str]
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Look:
    """needed: for each dialogue the keys that stay"""

    found: Collected
    purged: _Purge | None
    needed: Mapping[str, Keys]


def collect(
    store: Store,
    options: gc.Options,
    *,
    purge: Sequence[str] = (),
    journal: bool = False,
    delete: bool = False,
) -> Collected:
    """Clean up an index, or tell what would go.

    purge    documents, by their path as in the documents table, by a glob over these, or by id
    journal  take out of the journal what the newest snapshot does not replay
    delete   do it; else nothing is written, and no lock taken

    Raises UsageError for a document that no snapshot knows, and where the journal cannot be replayed;
    DeletionRefused for one that the newest snapshot holds; IndexNotFound; LockHeld, naming the running
    writer; CorruptPart for a damaged manifest; StoreError.
    """
    snapshots.open_latest(store)  # before a lock is made in a folder that is no index
    if not delete:
        writer = locks.holder(store)
        found = _look(store, options, purge, journal, None).found
        return replace(found, writer=str(writer) if writer else None)
    with locks.acquire(store, note="gc") as lock:
        look = _look(store, options, purge, journal, lock)
        if look.purged:
            record = {"snapshots": sorted(look.purged.numbers), "names": sorted(look.purged.names)}
            lock.check()
            store.write(PENDING, orjson.dumps(record))
        for name in look.found.journal:
            trim.trim(store, name, look.needed[name], unreadable=look.purged is not None, check=lock.check)
        gc.carry_out(store, look.found.plan, lock.check)
        if look.purged:
            store.delete(PENDING)
        return replace(look.found, deleted=True)


def _look(
    store: Store, options: gc.Options, purge: Sequence[str], journal: bool, lock: locks.Lock | None
) -> _Look:
    newest = snapshots.open_latest(store)
    purged = _find(store, newest, purge)
    if purged:
        options = replace(options, at_once=purged.numbers, damaged=True)
    trimmed: dict[str, trim.Trimmed] = {}
    needed: dict[str, Keys] = {}
    if purged or journal:
        needed = keys_needed(store, newest)
        for name in trim.dialogues(store) if purged else JOURNALS:
            keep = needed.setdefault(name, np.empty(0, np.uint64))
            trimmed[name] = trim.look(store, name, keep, unreadable=purged is not None)
    plan = gc.plan(store, options, lock)
    return _Look(Collected(plan, trimmed, purged.paths if purged else ()), purged, needed)


def _find(store: Store, newest: Manifest, names: Sequence[str]) -> _Purge | None:
    """Which snapshots hold the documents; with them, what an earlier purge has not finished. None: nothing
    is purged."""
    begun = _pending(store)
    if not names:
        return begun
    all_ = {n: snapshots.load(store, n) for n in snapshots.numbers(store)}
    all_ |= {n: m for n, m in gc.taken_away(store).items() if n not in all_}
    holding, paths = _holding(store, all_, newest.number, names)
    if newest.number in holding:
        shown = sorted({path for matched in holding[newest.number].values() for path in matched})
        raise DeletionRefused(
            f"snapshot {newest.number}, the newest, holds {plural(len(shown), 'document')} to be purged "
            f"({', '.join(shown[:NAMES_TOLD])}{', …' if len(shown) > NAMES_TOLD else ''}). Delete what shall "
            "go from INPUT and run `graphrag-ray index` first, then purge it"
        )
    known = {name for matched in holding.values() for name in matched}
    hashes = {name: stable_id("purge", name) for name in names}
    for name in names:
        if name not in known and not (begun and hashes[name] in begun.names):
            raise _unknown(store, name, paths)
    found = {path for matched in holding.values() for some in matched.values() for path in some}
    numbers, marks = frozenset(holding), frozenset(hashes.values())
    if begun:
        numbers, marks = numbers | begun.numbers, marks | begun.names
    return _Purge(numbers, marks, tuple(sorted(found or names)))


def _holding(
    store: Store, manifests: Mapping[int, Manifest], newest: int, names: Sequence[str]
) -> tuple[dict[int, dict[str, set[str]]], set[str]]:
    """For each snapshot that holds some of the documents: what was asked for -> the paths it stands for.
    And all paths there are."""
    tables: dict[str, pa.Table | None] = {}
    for number, manifest in manifests.items():
        for part in manifest.parts("documents"):
            if tables.get(part.path) is None:
                try:
                    tables[part.path] = read_part(store, part, ["id", "path"])
                except CorruptPart:
                    if number == newest:
                        raise
                    tables[part.path] = None
    known = [table for table in tables.values() if table is not None]
    paths = {path for table in known for path in table["path"].to_pylist()}
    ids = {id_ for table in known for id_ in table["id"].to_pylist()}
    # What is the name of a document is no glob.
    globs = {n for n in names if n not in paths and n not in ids and any(c in n for c in "*?[")}
    matched = {path: _matches(table, names, globs) for path, table in tables.items()}
    holding: dict[int, dict[str, set[str]]] = {}
    for number, manifest in manifests.items():
        for part in manifest.parts("documents"):
            for name, found in matched[part.path].items():
                holding.setdefault(number, {}).setdefault(name, set()).update(found)
    return holding, paths


def _matches(table: pa.Table | None, names: Sequence[str], globs: set[str]) -> dict[str, set[str]]:
    """What a part holds of each name. One that cannot be read may hold anything."""
    if table is None:
        return {name: set() for name in names}
    found: dict[str, set[str]] = {}
    for name in names:
        if name in globs:
            matched = {path for path in table["path"].unique().to_pylist() if fnmatchcase(path, name)}
        else:
            rows = pc.or_(pc.equal(table["path"], name), pc.equal(table["id"], name))
            matched = set(table["path"].filter(rows).to_pylist())
        if matched:
            found[name] = matched
    return found


def _pending(store: Store) -> _Purge | None:
    try:
        found = orjson.loads(store.read(PENDING))
    except FileNotFoundError:
        return None
    return _Purge(frozenset(found["snapshots"]), frozenset(found["names"]))


def _unknown(store: Store, name: str, paths: set[str]) -> UsageError:
    near = get_close_matches(name, sorted(paths), 1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(
        f"no snapshot at {store.url} holds a document {name!r}: documents are named by their path below "
        f"INPUT.{meant} Where the last snapshot that held it is gone already, `gc --journal --damaged "
        "--grace 0` takes what is left of it"
    )
