"""Snapshots: immutable states of an index, each described by a manifest.

    snapshots/<n>.json   manifest: the parts of each table, and how they were made
    CURRENT              number of the newest snapshot, a hint from which readers probe forward

A commit is the conditional create of the next manifest. Readers always see a complete snapshot, even if a
writer dies.
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

from graphrag_ray.base import errors
from graphrag_ray.base.errors import CorruptPart, IndexNotFound, StoreError
from graphrag_ray.store import damaged_files, json_types, locks, run_records
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import READ_ATTEMPTS, content_hash, corrupt_part
from graphrag_ray.store.parts import FOLDERS, Part, list_parts

FORMAT = 2  # Other formats are refused. `index` rebuilds the tables of older ones from the journal.
HINT = "CURRENT"

NAME = re.compile(r"snapshots/([1-9][0-9]*)\.json")
_USED = re.compile(r"snapshots/(?:damaged/)?([1-9][0-9]*)\.json")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Manifest:
    """The contents of a snapshot."""

    number: int  # 1, 2, …
    parent: int | None  # The snapshot on which this one is based.
    created_at: str  # In ISO 8601.
    version: str
    tables: Mapping[str, list[Part]] = field(default_factory=dict)
    counts: json_types.Counts = field(default_factory=dict)  # Documents, text units, entities, …
    settings: Mapping[str, Any] = field(default_factory=dict)
    # The result of each step and the fingerprint of its inputs. A step with the same fingerprint is skipped.
    steps: Mapping[str, json_types.Step] = field(default_factory=dict)
    usage: json_types.Usage = field(default_factory=dict)
    next_human_readable_id: Mapping[str, int] = field(default_factory=dict)  # Per table.
    hierarchies: list[str] = field(default_factory=list)
    # Information for readers, for example that the offline engine was used.
    notes: Mapping[str, Any] = field(default_factory=dict)
    # The run: id, seconds by stage, failed items, added and removed documents.
    run: json_types.RunInfo = field(default_factory=dict)
    format: int = FORMAT

    def parts(self, table: str) -> list[Part]:
        """Return the parts of a table, or [] if the snapshot does not have the table."""
        return list(self.tables.get(table, []))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Build a manifest, ignoring unknown fields. Raises StoreError for a newer format."""
        version = data["format"]
        if not isinstance(version, int) or version > FORMAT:
            raise StoreError(
                f"it was written by a newer graphrag-ray (format {version}, version {data.get('version')}), "
                f"and this one reads formats up to {FORMAT}. Upgrade it: pip install -U graphrag-ray"
            )
        return json_types.read_as(cls, data)


def commit(store: Store, manifest: Manifest, *, check: Callable[[], object] = lambda: None) -> None:
    """Make a snapshot the newest one, or change nothing.

    Args:
        check: Called just before and just after the commit. Raises LockLost. If the writer was paused in
            between and its successor removed some of the new parts, the snapshot is removed again.

    Raises:
        SnapshotConflict: If the number is taken, because another writer committed since `next_number`.
    """
    # The nonce distinguishes this manifest from an equal one of another writer.
    data = seal({**manifest.to_json(), "nonce": secrets.token_hex(8)})
    path = _path(manifest.number)
    check()
    if not store.create(path, data):
        raise errors.SnapshotConflict(
            f"{store.url_of(path)} exists, because another run committed it during this run. Nothing is "
            "lost: run the same command again to continue from that snapshot."
        )
    try:
        check()
    except errors.LockLost:
        if missing_parts(store, manifest):
            store.delete(path)
            raise
    except StoreError as e:
        _log.warning("Cannot check whether the lock was held until the commit: %s", e)
    try:
        write_hint(store, manifest.number)
    except StoreError as e:
        # Readers find the snapshot without the hint.
        _log.warning("Snapshot %d is committed, but %s could not be updated: %s", manifest.number, HINT, e)


def write_hint(store: Store, number: int) -> None:
    store.write(HINT, b"%d\n" % number)


def list_numbers(store: Store) -> list[int]:
    """Return the sorted numbers of all snapshots."""
    return store.list_numbers("snapshots", NAME)


def next_number(store: Store) -> int:
    """Return the number for the next snapshot.

    Call it at the start of a run, together with `read_latest`, so that the commit fails if another writer
    commits in between. Numbers of damaged snapshots are not reused, because they may have been cited.
    """
    return max(store.list_numbers("snapshots", _USED), default=0) + 1


def load(store: Store, number: int) -> Manifest:
    """Read one snapshot. Raises IndexNotFound, CorruptPart, or StoreError for a newer format."""
    path = _path(number)
    for left in reversed(range(READ_ATTEMPTS)):
        try:
            return parse(store, path, store.read(path))
        except FileNotFoundError:
            existing = ", ".join(map(str, list_numbers(store))) or "none"
            message = f"{store.url} has no snapshot {number}. Existing snapshots: {existing}."
            raise IndexNotFound(message) from None
        except CorruptPart:
            if not left:
                raise
    raise AssertionError("unreachable")


def parse(store: Store, path: str, data: bytes) -> Manifest:
    """Parse the contents of a manifest file. Raises CorruptPart, or StoreError for a newer format."""
    try:
        content = orjson.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        if content.pop("digest", None) != _digest(content):
            raise ValueError("its contents do not match its digest")
        return Manifest.from_json(content)
    except StoreError as e:
        raise StoreError(f"Cannot read {store.url_of(path)}: {e}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        why = f"it lacks {e}" if isinstance(e, KeyError) else str(e)
        raise corrupt_part(store, path, why) from e


def seal(content: Mapping[str, Any]) -> bytes:
    """Serialize a manifest with its hash, because a changed digit would still be valid JSON."""
    plain = orjson.loads(orjson.dumps(content))
    return orjson.dumps({**plain, "digest": _digest(plain)}, option=orjson.OPT_INDENT_2)


def _digest(content: Mapping[str, Any]) -> str:
    return content_hash(orjson.dumps(content))


def read_latest(store: Store) -> Manifest | None:
    """Read the newest snapshot, or return None if there is none.

    Raises CorruptPart if it is damaged or missing, instead of silently using an older one, and StoreError if
    its format is newer.
    """
    try:
        newest = newest_number(store)
        if newest is None:
            return None
        try:
            return load(store, newest)
        except IndexNotFound:
            # It was removed in the meantime, so there is a newer one.
            newest = max(list_numbers(store), default=0)
            return load(store, newest) if newest else None
    except CorruptPart as e:
        older = [n for n in list_numbers(store) if _path(n) != e.path]
        instead = f", or use snapshot {max(older)} (--snapshot {max(older)})" if older else ""
        raise CorruptPart(
            f"{e}. Run the same `graphrag-ray index` command again to rebuild the snapshot{instead}.",
            path=e.path,
        ) from e


def latest_readable(store: Store) -> tuple[Manifest | None, list[CorruptPart]]:
    """Return the newest readable snapshot, and the damaged ones after it, which a run will rebuild."""
    problems: list[CorruptPart] = []
    existing = list_numbers(store)
    try:
        hint = _read_hint(store)
        if hint > max(existing, default=0):
            problems.append(_missing(store, hint))
    except ValueError:
        problems.append(corrupt_part(store, HINT, "it does not contain a number"))
    for number in reversed(existing):
        try:
            return load(store, number), problems
        except CorruptPart as e:
            problems.append(e)
    return None, problems


def set_aside(store: Store, error: CorruptPart, *, check: Callable[[], object] = lambda: None) -> str | None:
    """Move a damaged manifest or hint to `damaged/`. Return its new path, or None if it was missing.

    Also deletes the hint, which readers do not need. The caller holds the lock.
    """
    check()
    moved = None
    with suppress(FileNotFoundError):
        moved = damaged_files.move_to_damaged(store, error.path, check=check)
    store.delete(HINT)
    return moved


def open_latest(store: Store, number: int | None = None) -> Manifest:
    """Read the newest snapshot, or the one with this number, for queries.

    Raises:
        IndexNotFound: If there is none. The message says whether an index is being built.
        CorruptPart: If the snapshot is damaged.
        StoreError: If it has another format.
    """
    manifest = read_latest(store) if number is None else load(store, number)
    if manifest is not None and manifest.format < FORMAT:
        raise StoreError(
            f"Snapshot {manifest.number} of {store.url} was written by an older graphrag-ray (format "
            f"{manifest.format}, version {manifest.version}), and this one reads format {FORMAT}. Run the "
            "same `graphrag-ray index` command again to rebuild the tables from the replies in the journal."
        )
    if manifest is not None:
        return manifest
    if writer := locks.find_live_holder(store, stale_s=2.5 * locks.HEARTBEAT_S):
        raise IndexNotFound(
            f"The index at {store.url} has no finished snapshot yet: {writer} is building it"
            f"{run_records.progress_text(store)}. Watch it: graphrag-ray status --root {store.url} --watch"
        )
    if store.list("work") or store.list("locks"):
        raise IndexNotFound(
            f"The index at {store.url} is incomplete: no snapshot is finished yet. Run `graphrag-ray index` "
            "again to continue; all finished work is kept."
        )
    raise IndexNotFound(
        f"There is no index at {store.url}. Check --root, or create an index: "
        f"graphrag-ray index INPUT --root {store.url}"
    )


@contextmanager
def detect_removal(store: Store, manifest: Manifest) -> Iterator[None]:
    """Raise SnapshotRemoved if a part cannot be read in this context because `gc` removed the snapshot."""
    try:
        yield
    except CorruptPart as e:
        if isinstance(e.__cause__, FileNotFoundError):
            check_not_removed(store, manifest)
        raise


def check_not_removed(store: Store, manifest: Manifest) -> None:
    """Raise SnapshotRemoved if a snapshot must no longer be used, even if it is in memory.

    A removed snapshot can be used until `gc` deletes its parts. After that, queries must not use it, because
    a document may have been purged. Costs one request, and a listing if the snapshot was removed.
    """
    if store.exists(_path(manifest.number)):
        return
    if part_paths(manifest) <= {info.path for info in list_parts(store)}:
        return
    newest = newest_number(store)
    advice = f"open the newest snapshot, {newest}" if newest else "no snapshot is left"
    raise errors.SnapshotRemoved(
        f"Snapshot {manifest.number} of {store.url} was removed by `gc` while it was being read; {advice}"
    )


def part_paths(manifest: Manifest) -> set[str]:
    """Return the paths of all parts of a snapshot's tables and of its steps' results."""
    paths: set[str] = set()
    pending: list[Any] = [[part.path for parts in manifest.tables.values() for part in parts], manifest.steps]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            paths |= {value} if value.split("/")[0] in FOLDERS else set()
        elif isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
    return paths


def missing_parts(store: Store, manifest: Manifest) -> list[str]:
    """Return the paths of a snapshot's parts that do not exist."""
    return sorted(path for path in part_paths(manifest) if not store.exists(path))


def _path(number: int) -> str:
    return f"snapshots/{number}.json"


def newest_number(store: Store) -> int | None:
    """Return the number of the newest snapshot, or None if there is none. Takes two or three requests.

    Raises CorruptPart if the hint names a snapshot that is missing.
    """
    try:
        hint = _read_hint(store)
    except ValueError:
        hint = 0
    if hint < 1 or not store.exists(_path(hint)):
        newest = max(list_numbers(store), default=None)
        if hint > (newest or 0):
            raise _missing(store, hint)
        return newest
    while store.exists(_path(hint + 1)):
        hint += 1
    return hint


def _read_hint(store: Store) -> int:
    """Return the snapshot number in the hint, or 0 without a hint. Raises ValueError if it is invalid."""
    try:
        return int(store.read(HINT))
    except FileNotFoundError:
        return 0


def _missing(store: Store, number: int) -> CorruptPart:
    path = _path(number)
    return CorruptPart(f"{store.url_of(path)} is missing, although {HINT} names it", path=path)
