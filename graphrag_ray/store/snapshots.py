"""Snapshots: what an index is at one moment, named by one small file.

    snapshots/<n>.json   manifest: which parts make which table, and how they came about
    CURRENT              a hint at the newest; readers probe forward from it

The commit is the conditional create of the next manifest. A reader sees one whole snapshot, whatever writers
do; a writer that dies leaves the one before.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from graphrag_ray.base.errors import (
    CorruptPart,
    IndexNotFound,
    LockLost,
    SnapshotConflict,
    SnapshotRemoved,
    StoreError,
)
from graphrag_ray.store import damaged_files, locks, runs, untrusted_json
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import READS, content_hash, damaged
from graphrag_ray.store.parts import FOLDERS, Part, list_all

FORMAT = 2
"""Of manifests and of what they name. Snapshots of any other format are not read; `index` makes the tables of
an older one anew, from the journal."""
HINT = "CURRENT"

NAME = re.compile(r"snapshots/([1-9][0-9]*)\.json")
_USED = re.compile(r"snapshots/(?:damaged/)?([1-9][0-9]*)\.json")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Manifest:
    """One snapshot.

    number      1, 2, …; `next_number` tells the next
    parent      the number of the snapshot that this one continues; None for the first
    created_at  ISO time, told by the caller
    tables      table -> its parts, in order
    counts      what a person asks first: documents, text units, entities, …
    steps       step -> its result and the fingerprint of all that it came from; equal: nothing to do
    next_human_readable_id  table -> the lowest short id never used
    notes       what readers should know (the offline engine's mark, an unknown tokenizer)
    run         about the run itself: id, seconds by stage, failed items, what it added and removed
    """

    number: int
    parent: int | None
    created_at: str
    version: str
    tables: Mapping[str, list[Part]] = field(default_factory=dict)
    counts: untrusted_json.Counts = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, untrusted_json.Step] = field(default_factory=dict)
    usage: untrusted_json.Usage = field(default_factory=dict)
    next_human_readable_id: Mapping[str, int] = field(default_factory=dict)
    hierarchies: list[str] = field(default_factory=list)
    notes: Mapping[str, Any] = field(default_factory=dict)
    run: untrusted_json.RunTold = field(default_factory=dict)
    format: int = FORMAT

    def parts(self, table: str) -> list[Part]:
        """The parts of a table; [] for a table that this snapshot does not have."""
        return list(self.tables.get(table, []))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Raises StoreError for a format that this version does not know, ValueError or KeyError for what
        is no manifest. Fields that it does not know are left out."""
        found = data["format"]
        if not isinstance(found, int) or found > FORMAT:
            raise StoreError(
                f"it was written by a newer graphrag-ray (format {found}, version {data.get('version')}); "
                f"this one reads formats up to {FORMAT}. Upgrade it: pip install -U graphrag-ray"
            )
        return untrusted_json.read_as(cls, data)


def commit(store: Store, manifest: Manifest, *, check: Callable[[], object] = lambda: None) -> None:
    """Make a snapshot the newest one, or leave everything as it was.

    check: called just before and just after; raises when the lock is lost. A writer that was paused between
    the two takes the snapshot back where whoever took over has removed parts that nothing named yet.

    Raises SnapshotConflict when its number is taken: somebody else committed since `next_number`. Raises
    LockLost, StoreError.
    """
    # The nonce tells our manifest from an equal one of another writer.
    data = sealed({**manifest.to_json(), "nonce": secrets.token_hex(8)})
    path = _path(manifest.number)
    check()
    if not store.create(path, data):
        raise SnapshotConflict(
            f"{store.url_of(path)} exists: another run committed it while this run worked. Nothing of this "
            "run is lost: run the same command again to continue from that snapshot"
        )
    try:
        check()
    except LockLost:
        if lacking(store, manifest):
            store.delete(path)
            raise
    except StoreError as e:
        _log.warning("whether the lock was still held at the commit is not known: %s", e)
    try:
        hint(store, manifest.number)
    except StoreError as e:
        # Readers find the snapshot without it.
        _log.warning("snapshot %d is committed, its hint is not written: %s", manifest.number, e)


def hint(store: Store, number: int) -> None:
    """Say which snapshot is the newest. Raises StoreError."""
    store.write(HINT, b"%d\n" % number)


def numbers(store: Store) -> list[int]:
    """The numbers of all snapshots, rising. Raises StoreError."""
    return store.numbered("snapshots", NAME)


def next_number(store: Store) -> int:
    """The number of the next snapshot. To be asked together with `latest`, before a run's work: the commit
    fails if somebody else commits in between. The number of a damaged snapshot that was set aside is not
    given again: somebody may have cited it."""
    return max(store.numbered("snapshots", _USED), default=0) + 1


def load(store: Store, number: int) -> Manifest:
    """Read one snapshot. Raises IndexNotFound, CorruptPart, StoreError (a newer format)."""
    path = _path(number)
    for left in reversed(range(READS)):
        try:
            return parse(store, path, store.read(path))
        except FileNotFoundError:
            there = ", ".join(map(str, numbers(store))) or "none"
            raise IndexNotFound(f"{store.url} has no snapshot {number}; there are: {there}") from None
        except CorruptPart:
            if not left:
                raise
    raise AssertionError("unreachable")


def parse(store: Store, path: str, data: bytes) -> Manifest:
    """The manifest that a file holds. Raises CorruptPart, StoreError (a newer format), naming the file."""
    try:
        content = orjson.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        if content.pop("digest", None) != _digest(content):
            raise ValueError("it does not have the hash that it names")
        return Manifest.from_json(content)
    except StoreError as e:
        raise StoreError(f"cannot read {store.url_of(path)}: {e}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        why = f"it lacks {e}" if isinstance(e, KeyError) else str(e)
        raise damaged(store, path, why) from e


def sealed(content: Mapping[str, Any]) -> bytes:
    """A manifest as it is stored: with a hash of itself, since a changed digit would be JSON too."""
    plain = orjson.loads(orjson.dumps(content))
    return orjson.dumps({**plain, "digest": _digest(plain)}, option=orjson.OPT_INDENT_2)


def _digest(content: Mapping[str, Any]) -> str:
    return content_hash(orjson.dumps(content))


def latest(store: Store) -> Manifest | None:
    """The newest snapshot; None where there is none. Raises StoreError, also for a newer format;
    CorruptPart where it is damaged or gone: an older one is answered from only by whoever asks for it."""
    try:
        newest = newest_number(store)
        if newest is None:
            return None
        try:
            return load(store, newest)
        except IndexNotFound:
            # It was the newest when we looked, and was removed since: there are newer ones.
            newest = max(numbers(store), default=0)
            return load(store, newest) if newest else None
    except CorruptPart as e:
        older = [n for n in numbers(store) if _path(n) != e.path]
        instead = f"; snapshot {max(older)} is there too (--snapshot {max(older)})" if older else ""
        raise CorruptPart(
            f"{e}. Run the same `graphrag-ray index` command again, which makes the snapshot anew{instead}",
            path=e.path,
        ) from e


def readable(store: Store) -> tuple[Manifest | None, list[CorruptPart]]:
    """The newest snapshot that can be read, and what is damaged above it: manifests, the hint. For a run
    that will make these anew. Raises StoreError."""
    found: list[CorruptPart] = []
    there = numbers(store)
    try:
        hint = _hint(store)
        if hint > max(there, default=0):
            found.append(_gone(store, hint))
    except ValueError:
        found.append(damaged(store, HINT, "it is no number"))
    for number in reversed(there):
        try:
            return load(store, number), found
        except CorruptPart as e:
            found.append(e)
    return None, found


def set_aside(store: Store, error: CorruptPart, *, check: Callable[[], object] = lambda: None) -> str | None:
    """Move a damaged manifest, or the hint, to `damaged/` beside it; returns where it is now, None where it
    was gone. Readers find the snapshots without the hint. For the holder of the lock."""
    check()
    moved = None
    with suppress(FileNotFoundError):
        moved = damaged_files.move(store, error.path, check=check)
    store.delete(HINT)
    return moved


def open_latest(store: Store, number: int | None = None) -> Manifest:
    """The newest snapshot, or the one with this number, for reading. Raises IndexNotFound, saying whether
    there is nothing, or an index that is half built; CorruptPart, StoreError (another format)."""
    found = latest(store) if number is None else load(store, number)
    if found is not None and found.format < FORMAT:
        raise StoreError(
            f"snapshot {found.number} of {store.url} was written by an older graphrag-ray (format "
            f"{found.format}, version {found.version}); this one reads format {FORMAT}. Run the same "
            "`graphrag-ray index` command again: it makes the tables anew, from the replies in the journal"
        )
    if found is not None:
        return found
    if writer := locks.living(store, stale_s=2.5 * locks.BEAT_S):
        raise IndexNotFound(
            f"the index at {store.url} has no finished snapshot yet: {writer} is at work"
            f"{runs.whereabouts(store)}. Watch it: graphrag-ray status --root {store.url} --watch"
        )
    if store.list("work") or store.list("locks"):
        raise IndexNotFound(
            f"the index at {store.url} is half built: no snapshot is finished yet. Run `graphrag-ray index` "
            "again to continue; what is done is kept"
        )
    raise IndexNotFound(
        f"there is no index at {store.url}. Check --root, or make one: "
        f"graphrag-ray index INPUT --root {store.url}"
    )


@contextmanager
def being_read(store: Store, manifest: Manifest) -> Iterator[None]:
    """Around every look at a snapshot's parts: where one is gone because the snapshot was removed, that is
    what is told. Raises SnapshotRemoved."""
    try:
        yield
    except CorruptPart as e:
        if isinstance(e.__cause__, FileNotFoundError):
            check_there(store, manifest)
        raise


def check_there(store: Store, manifest: Manifest) -> None:
    """Before something is asked or told of a snapshot that may be in memory. One that was removed is read as
    long as `gc` leaves its parts, for those who read it; after that it is not: maybe a document was purged.
    One request, and a listing where it was removed. Raises SnapshotRemoved, StoreError."""
    if store.exists(_path(manifest.number)):
        return
    if parts_of(manifest) <= {info.path for info in list_all(store)}:
        return
    newest = newest_number(store)
    what_now = f"the newest is {newest}, open that one" if newest else "there is none any more"
    raise SnapshotRemoved(
        f"snapshot {manifest.number} of {store.url} was removed while it was being read (by `gc`): {what_now}"
    )


def parts_of(manifest: Manifest) -> set[str]:
    """The paths of all parts that a snapshot needs: of its tables, and of what its steps came to, which
    later runs build on."""
    found: set[str] = set()
    pending: list[Any] = [[part.path for parts in manifest.tables.values() for part in parts], manifest.steps]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found |= {value} if value.split("/")[0] in FOLDERS else set()
        elif isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
    return found


def lacking(store: Store, manifest: Manifest) -> list[str]:
    """Parts that a snapshot needs and that are not there. Raises StoreError."""
    return sorted(path for path in parts_of(manifest) if not store.exists(path))


def _path(number: int) -> str:
    return f"snapshots/{number}.json"


def newest_number(store: Store) -> int | None:
    """The number of the newest snapshot, in two or three requests; None where there is none. Raises
    CorruptPart where the hint names one that is gone, StoreError."""
    try:
        hint = _hint(store)
    except ValueError:
        hint = 0
    if hint < 1 or not store.exists(_path(hint)):
        newest = max(numbers(store), default=None)
        if hint > (newest or 0):
            raise _gone(store, hint)
        return newest
    while store.exists(_path(hint + 1)):
        hint += 1
    return hint


def _hint(store: Store) -> int:
    """The snapshot that the hint names; 0 where there is no hint. Raises ValueError for what is no number."""
    try:
        return int(store.read(HINT))
    except FileNotFoundError:
        return 0


def _gone(store: Store, number: int) -> CorruptPart:
    path = _path(number)
    return CorruptPart(f"{store.url_of(path)} is missing, though {HINT} names it", path=path)
