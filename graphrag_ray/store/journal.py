"""The journal of raw replies: everything that was paid for, by the item it belongs to.

    work/<dialogue>/part-<ms>-<writer>-<sequence>-<hash>.parquet    rows of one flush
    work/<dialogue>/part-<ms>~<generation>-<hash>.parquet           many of those, merged (`compaction.py`)

Names sort by the time of their rows, a merged part after its sources. They end with the hash of the bytes, so
damage is detected, and writing a part twice has no effect.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.arrow_arrays import arrow
from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import journal_rows, parquet
from graphrag_ray.store.files import FileInfo, Store, map_in_threads
from graphrag_ray.store.journal_rows import DONE, FAILED, KILLED, RETRY, JournalRow
from graphrag_ray.store.search.mapped_arrays import expand_ranges

FLUSH_BYTES = 64 << 20  # Size at which a flush starts a new part, as after a long outage of the storage.
CACHE_BYTES = 256 << 20  # Decoded parts kept per process.
PART_NAME = re.compile(r"part-(\d{13})(?:-[\w-]+|~(\d{4}))-[0-9a-f]{32}\.parquet", re.ASCII)
WORK = "work"  # The folder of all journals.
RELOADS = 5  # Consecutive listings all of whose new parts may be gone when they are read.

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FLAGS = {DONE: 1, FAILED: 2, KILLED: 4, RETRY: 8}
_FLAG_OF_KIND = np.array([*(_FLAGS.get(kind, 0) for kind in journal_rows.KINDS), 0], np.uint8)

_log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
Prefixes: TypeAlias = npt.NDArray[np.uint64]
"""The first 64 bits of keys."""


def journal_folder(dialogue: str) -> str:
    """Return the folder of a dialogue's parts."""
    if not _NAME.fullmatch(dialogue):
        raise ValueError(f"A dialogue's name must consist of letters, digits, '_' and '-', not {dialogue!r}")
    return f"{WORK}/{dialogue}"


def list_parts(store: Store, dialogue: str) -> list[FileInfo]:
    """List the parts of a dialogue by time. Some may be merged away while they are being read.

    A slow listing can miss both the sources of a merge and its result. The result exists before the first
    source is deleted, so a second listing finds what the first missed.
    """
    prefix = journal_folder(dialogue) + "/"
    infos = {info.path: info for _ in range(2) for info in store.list(journal_folder(dialogue))}
    return [infos[path] for path in sorted(infos) if PART_NAME.fullmatch(path.removeprefix(prefix))]


def read_parts(
    store: Store,
    dialogue: str,
    columns: Sequence[str],
    consume: Callable[[FileInfo, Any], object],
    decode: Callable[[pa.Table], Any] = lambda table: table,
    known: Collection[str] = (),
    since: float = 0.0,
) -> list[FileInfo]:
    """Read some columns of all parts of a dialogue except the known ones, concurrently.

    If parts are merged away before they are read, the parts are listed again. So no row is missed, but some
    may come twice.

    Args:
        consume: Called in this thread with each part and what `decode` returned for it, or a CorruptPart.
        decode: Called in another thread with the columns of a part.
        since: Unix seconds; parts without rows of this time or later are skipped.

    Returns:
        The last listing, whose parts are all known or were read.
    """

    def read(part: FileInfo) -> Any:
        try:
            return decode(parquet.read_columns(store, part.path, columns, part.bytes))
        except (CorruptPart, FileNotFoundError) as e:
            return e

    def is_wanted(part: FileInfo) -> bool:
        # The time in a name is that of the first row; for a merged part it is no less than the last one's.
        match = PART_NAME.fullmatch(part.path.rsplit("/", 1)[-1])
        return match is None or int(match.group(1)) / 1000 >= math.floor(since)

    seen, rounds = set(known), RELOADS
    while rounds:
        parts = [part for part in list_parts(store, dialogue) if is_wanted(part)]
        new = [part for part in parts if part.path not in seen]
        before = len(seen)
        for part, result in zip(new, map_in_threads(read, new), strict=True):
            if not isinstance(result, FileNotFoundError):
                seen.add(part.path)
                consume(part, result)
        n_read = len(seen) - before
        if n_read == len(new):
            return parts
        rounds = RELOADS if n_read else rounds - 1
    raise _vanishing(store, dialogue)


def _vanishing(store: Store, dialogue: str) -> StoreError:
    return StoreError(
        f"The parts of {store.url_of(journal_folder(dialogue))} vanish while they are being read. "
        "Is another program deleting files there?"
    )


class JournalWriter:
    """Collects rows and writes them as parts. Threads may append while another flushes.

    `writer_id` is unique among all writers that this journal ever had. `on_written` is called with the path
    and the rows of each part that was written.
    """

    def __init__(
        self,
        store: Store,
        dialogue: str,
        writer_id: str,
        on_written: Callable[[str, Sequence[JournalRow]], object] = lambda path, rows: None,
    ) -> None:
        if not _NAME.fullmatch(writer_id):
            raise ValueError(f"A writer's id must consist of letters, digits, '_' and '-', not {writer_id!r}")
        self._store, self._folder, self._writer_id = store, journal_folder(dialogue), writer_id
        self._on_written = on_written
        self._rows: list[JournalRow] = []
        self._unwritten: tuple[str, bytes, list[JournalRow]] | None = None
        self._sequence = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    def append(self, row: JournalRow) -> None:
        """Add a row; it is durable once the next `flush` returns. Raises ValueError for an invalid row."""
        row = journal_rows.validate(row)
        with self._lock:
            self._rows.append(row)

    @property
    def pending(self) -> int:
        """Number of rows that are not yet durable."""
        with self._lock:
            return len(self._rows) + (len(self._unwritten[2]) if self._unwritten else 0)

    def flush(self) -> str | None:
        """Write all pending rows; return the path of the last part, or None if nothing was pending.

        Raises:
            StoreError: The rows stay pending. The next flush writes the same part again, in case the failed
                write took effect after all, so no row ends up in two parts.
        """
        with self._flushing:
            last = None
            while batch := self._unwritten or self._next_batch():
                path, data, rows = batch
                self._store.write(path, data)
                with self._lock:
                    self._unwritten = None
                self._on_written(path, rows)
                last = path
            return last

    def _next_batch(self) -> tuple[str, bytes, list[JournalRow]] | None:
        with self._lock:
            rows: list[JournalRow] = []
            size = 0
            for row in self._rows:
                size += row.nbytes
                if rows and size > FLUSH_BYTES:
                    break
                rows.append(row)
        if not rows:
            return None
        data = parquet.encode(journal_rows.to_table(rows), dictionary=journal_rows.DICTIONARY_COLUMNS)
        at_ms = int(min(row.at for row in rows) * 1000)
        name = f"part-{at_ms:013d}-{self._writer_id}-{self._sequence:06d}-{parquet.content_hash(data)}"
        batch = f"{self._folder}/{name}.parquet", data, rows
        with self._lock:
            self._unwritten = batch
            del self._rows[: len(rows)]
        self._sequence += 1
        return batch


@dataclass(frozen=True, slots=True)
class PartKeys:
    """The keys in a part."""

    prefixes: Prefixes  # Distinct and sorted.
    flags: npt.NDArray[np.uint8]  # The kinds of rows that each of them has (`_FLAGS`).
    all_flags: int
    retried_until: float  # Unix seconds of the latest retry row, or 0.

    def with_kind(self, kind: str) -> Prefixes:
        """Return the prefixes that have a row of this kind."""
        prefixes: Prefixes = self.prefixes[(self.flags & _FLAGS[kind]) != 0]
        return prefixes


NO_PARTS: Mapping[str, PartKeys] = {}


def part_keys(table: pa.Table) -> PartKeys:
    """Collect the keys of a part from its columns `key`, `kind` and `at`."""
    flags = _FLAG_OF_KIND[journal_rows.kind_codes(table.column("kind"))]
    retried = journal_rows.column_numbers(table.column("at"), np.float64)[flags == _FLAGS[RETRY]]
    prefixes = journal_rows.column_prefixes(table.column("key"))
    order = np.argsort(prefixes, kind="stable")
    prefixes = prefixes[order]
    starts = np.flatnonzero(np.diff(prefixes, prepend=~prefixes[:1]))
    flags = np.bitwise_or.reduceat(flags[order], starts)
    return PartKeys(
        prefixes[starts], flags, int(np.bitwise_or.reduce(flags)), float(retried.max(initial=0.0))
    )


def _is_in(wanted: Prefixes, prefixes: Prefixes) -> npt.NDArray[np.bool_]:
    """`np.isin` by binary search; `prefixes` are sorted."""
    if not len(prefixes):
        return np.zeros(len(wanted), np.bool_)
    positions = np.minimum(np.searchsorted(prefixes, wanted), len(prefixes) - 1)
    is_in: npt.NDArray[np.bool_] = prefixes[positions] == wanted
    return is_in


class DecodedPart:
    """A part in memory, whose rows are found by key."""

    def __init__(self, table: pa.Table) -> None:
        prefixes = journal_rows.column_prefixes(table.column("key"))
        self.table = table
        self._order = np.argsort(prefixes, kind="stable")
        self._prefixes = prefixes[self._order]
        self.nbytes = int(table.nbytes) + 16 * len(prefixes)

    def rows_of(self, prefixes: Prefixes) -> pa.Table:
        """Return the rows whose keys begin with one of the prefixes."""
        wanted = np.unique(prefixes)
        left, right = (np.searchsorted(self._prefixes, wanted, side) for side in ("left", "right"))
        return self.table.take(arrow(self._order[expand_ranges(left, right)[0]]))


class Cache:
    """An LRU cache of decoded parts with a size limit. Parts are immutable, so entries never become stale."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._size = limit_bytes, 0
        self._parts: OrderedDict[tuple[str, str], DecodedPart] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, store: Store, path: str) -> DecodedPart:
        name = (store.url, path)
        with self._lock:
            if name in self._parts:
                self._parts.move_to_end(name)
                return self._parts[name]
        decoded = DecodedPart(parquet.read_whole(store, path))
        with self._lock:
            if name not in self._parts:
                self._parts[name] = decoded
                self._size += decoded.nbytes
            while self._size > self._limit and len(self._parts) > 1:
                self._size -= self._parts.popitem(last=False)[1].nbytes
        return decoded

    def clear(self) -> None:
        with self._lock:
            self._parts.clear()
            self._size = 0


cache = Cache(CACHE_BYTES)


def _reloading(read: Callable[Concatenate[JournalIndex, P], T]) -> Callable[Concatenate[JournalIndex, P], T]:
    """Reload the index and read again when some of its parts were merged away since it was loaded."""

    @wraps(read)
    def reading(index: JournalIndex, /, *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(RELOADS):
            try:
                return read(index, *args, **kwargs)
            except FileNotFoundError:
                index._load()
        raise _vanishing(index._store, index.dialogue)

    return reading


class JournalIndex:
    """Finds the rows of items in 21 bytes per pair of key and part; rows are read on demand.

    Shows the journal as of loading, but reloads itself when its parts are merged away. Picklable; its
    arrays can be in shared memory.

    Args:
        parts: The keys of each part, by path.
        strict: Whether damage found when reading rows raises CorruptPart instead of a warning.
    """

    def __init__(
        self, store: Store, dialogue: str, parts: Mapping[str, PartKeys], strict: bool = False
    ) -> None:
        self._store, self.dialogue, self._held, self._strict = store, dialogue, parts, strict
        self._damaged: set[str] = set()
        self._known_done: Prefixes | None = None
        self._known_places: tuple[list[str], Prefixes, npt.NDArray[np.uint32]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_known_done": None}  # Recomputed where it is needed.

    @classmethod
    def load(cls, store: Store, dialogue: str, *, strict: bool = False) -> JournalIndex:
        """Read the keys of all parts. Damaged ones are left out with a warning and listed in `damaged`."""
        index = cls(store, dialogue, NO_PARTS, strict)
        index._load()
        return index

    def reloaded(self) -> JournalIndex:
        """Return an index of the journal as it is now, reading only new parts."""
        index = JournalIndex(self._store, self.dialogue, self._held, self._strict)
        index._load()
        return index

    def _load(self) -> None:
        """Read new parts and forget those that are gone."""
        parts, damaged = dict(self._held), set[str]()

        def consume(part: FileInfo, keys: PartKeys | CorruptPart) -> None:
            if isinstance(keys, CorruptPart):
                _warn_damaged(keys)
                damaged.add(part.path)
            else:
                parts[part.path] = keys

        columns = ("key", "kind", "at")
        listed = read_parts(self._store, self.dialogue, columns, consume, part_keys, set(parts))
        present = {part.path for part in listed}
        self._held = {path: keys for path, keys in parts.items() if path in present}
        self._damaged |= damaged & present
        self._known_done = self._known_places = None
        self._places()

    def with_part(self, path: str, written: Sequence[JournalRow]) -> JournalIndex:
        """Return this index with one more part, which holds the given rows."""
        if path in self._held:
            return self
        parts = {**self._held, path: part_keys(journal_rows.to_table(written))}
        return JournalIndex(self._store, self.dialogue, parts, self._strict)

    @property
    def n_parts(self) -> int:
        return len(self._held)

    @property
    def damaged(self) -> list[str]:
        """Paths of the damaged parts that were found so far."""
        return sorted(self._damaged)

    @property
    def any_killed(self) -> bool:
        """Whether any item killed the process that ran it."""
        return any(keys.all_flags & _FLAGS[KILLED] for keys in self._held.values())

    @property
    def retried_until(self) -> float:
        """Unix seconds of the latest retry row, or 0."""
        return max((keys.retried_until for keys in self._held.values()), default=0.0)

    def next_time(self) -> float:
        """Return unix seconds for a new row, later than any retry row even if a clock was ahead."""
        return max(time.time(), math.nextafter(self.retried_until, math.inf))

    @_reloading
    def count_done(self) -> int:
        """Count the items that have a done row."""
        return len(self._done())

    @_reloading
    def count_failed(self) -> int:
        """Count the items that failed or killed a process, and have no done row."""
        ended = np.union1d(self._with_kind(FAILED), self._with_kind(KILLED))
        failed = np.setdiff1d(ended, self._done(), assume_unique=True)
        retried = np.intersect1d(failed, self._with_kind(RETRY), assume_unique=True)
        return len(failed) - len(retried) + len(self._resolved(retried, RETRY, {FAILED, KILLED}))

    def count_items(self) -> int:
        """Count the items that have any row."""
        prefixes = [keys.prefixes for keys in self._held.values()]
        return len(np.unique(np.concatenate(prefixes))) if prefixes else 0

    @_reloading
    def is_done(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which keys have a done row; reads only the rows of retried items."""
        # Two of a million keys share their first 64 bits in one of 37 million indexes.
        return _is_in(journal_rows.key_prefixes(keys), self._done())

    def turns(self, key: str) -> list[JournalRow]:
        """Return the resolved rows of one item (`journal_rows.resolve`); [] for an unknown key."""
        return self.lookup([key]).get(key, [])

    def lookup(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        """Return the resolved rows of many items, reading each part once; keys without rows are absent."""
        return {key: journal_rows.resolve(rows) for key, rows in self.all_rows(keys).items()}

    def all_rows(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        """Like `lookup`, but return every row that was ever written."""
        return self._rows(list(dict.fromkeys(keys)))

    @_reloading
    def rows_like(self, prefixes: Prefixes) -> dict[str, list[JournalRow]]:
        """Like `all_rows`, for the items whose keys begin with one of the prefixes."""
        return self._read(self._keys_like(prefixes))

    @_reloading
    def failed(self) -> dict[str, list[JournalRow]]:
        """Return the resolved rows of the items that have a failure and no done row."""
        failed = np.setdiff1d(self._with_kind(FAILED), self._done(), assume_unique=True)
        return self._resolved(failed, FAILED, {FAILED})

    def _with_kind(self, kind: str) -> Prefixes:
        """Return the sorted distinct prefixes that have a row of this kind."""
        prefixes = [keys.with_kind(kind) for keys in self._held.values()]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *prefixes]))

    def _done(self) -> Prefixes:
        """Return the sorted prefixes of the items with a done row that no retry row voids."""
        if self._known_done is None:
            done = self._with_kind(DONE)
            if any(keys.all_flags & _FLAGS[RETRY] for keys in self._held.values()):
                retried = np.intersect1d(done, self._with_kind(RETRY), assume_unique=True)
                still_done = journal_rows.key_prefixes(list(self._resolved(retried, RETRY, {DONE})))
                done = np.setdiff1d(done, np.setdiff1d(retried, still_done), assume_unique=True)
            self._known_done = done
        return self._known_done

    def _resolved(self, prefixes: Prefixes, kind: str, valid: Collection[str]) -> dict[str, list[JournalRow]]:
        """Return the resolved rows of the items with a row of `kind` and a resolved one of a `valid` kind."""
        items = self._read(self._keys_like(prefixes, kind))
        resolved = {key: journal_rows.resolve(rows) for key, rows in items.items()}
        return {key: rows for key, rows in resolved.items() if any(row.kind in valid for row in rows)}

    def _keys_like(self, prefixes: Prefixes, kind: str | None = None) -> list[str]:
        """Return the keys that begin with one of the sorted prefixes, and have rows of `kind` if given."""
        keys: dict[str, None] = {}
        for path, part in self._held.items():
            candidates = part.prefixes if kind is None else part.with_kind(kind)
            if _is_in(candidates, prefixes).any() and (decoded := self._decoded(path)):
                keys.update(dict.fromkeys(decoded.rows_of(prefixes).column("key").to_pylist()))
        return list(keys)

    def _places(self) -> tuple[list[str], Prefixes, npt.NDArray[np.uint32]]:
        """Return the paths of all parts, their sorted prefixes, and the part of each prefix."""
        if self._known_places is None:
            by_part = [keys.prefixes for keys in self._held.values()]
            prefixes = np.concatenate([np.empty(0, np.uint64), *by_part])
            order = np.argsort(prefixes, kind="stable")
            parts = np.repeat(np.arange(len(by_part), dtype=np.uint32), list(map(len, by_part)))
            self._known_places = list(self._held), prefixes[order], parts[order]
        return self._known_places

    def _read(self, keys: Sequence[str]) -> dict[str, list[JournalRow]]:
        wanted = journal_rows.key_prefixes(keys)
        paths, prefixes, parts = self._places()
        left, right = (np.searchsorted(prefixes, wanted, side) for side in ("left", "right"))
        positions, owners = expand_ranges(left, right)
        found: dict[str, list[JournalRow]] = {}
        for part in np.unique(parts[positions]).tolist():
            if decoded := self._decoded(paths[part]):
                rows = decoded.rows_of(wanted[owners[parts[positions] == part]])
                for row in journal_rows.from_table(rows):
                    found.setdefault(row.key, []).append(row)
        return {key: found[key] for key in keys if key in found}

    _rows = _reloading(_read)

    def _decoded(self, path: str) -> DecodedPart | None:
        if path in self._damaged:
            return None
        try:
            return cache.get(self._store, path)
        except CorruptPart as e:
            if self._strict:
                raise
            _warn_damaged(e)
            self._damaged.add(path)
            return None


def _warn_damaged(error: CorruptPart) -> None:
    _log.warning("%s. The part is left out and its contents are requested again", error)
