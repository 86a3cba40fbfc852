"""The journal of raw model replies, by the item that requested them.

    work/<dialogue>/part-<ms>-<writer>-<sequence>-<hash>.parquet    rows of one flush
    work/<dialogue>/part-<ms>~<generation>-<hash>.parquet           merged parts (`compaction.py`)

Names sort by the time of their rows, and a merged part sorts after its sources. They end with the hash of the
bytes, so damage is detected, and writing a part twice has no effect.
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

from graphrag_ray.base.arrow_arrays import to_arrow
from graphrag_ray.base.errors import CorruptPart, StoreError
from graphrag_ray.store import journal_rows, parquet
from graphrag_ray.store.files import FileInfo, Store, map_in_threads
from graphrag_ray.store.journal_rows import DONE, FAILED, KILLED, RETRY, JournalRow
from graphrag_ray.store.search.mapped_arrays import expand_ranges

FLUSH_BYTES = 64 << 20  # Approximate part size limit, which flushes reach after a storage outage.
CACHE_BYTES = 256 << 20  # Size limit of the cache of decoded parts in a process.
PART_NAME = re.compile(r"part-(\d{13})(?:-[\w-]+|~(\d{4}))-[0-9a-f]{32}\.parquet", re.ASCII)
WORK = "work"  # Folder with all journals.
MAX_RELOADS = 5  # Maximum number of consecutive listings whose new parts are all gone when they are read.

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FLAGS = {DONE: 1, FAILED: 2, KILLED: 4, RETRY: 8}
_FLAG_OF_KIND = np.array([*(_FLAGS.get(kind, 0) for kind in journal_rows.KINDS), 0], np.uint8)

_log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
Prefixes: TypeAlias = npt.NDArray[np.uint64]
"""The first 64 bits of keys."""


def journal_folder(dialogue: str) -> str:
    if not _NAME.fullmatch(dialogue):
        raise ValueError(f"Invalid dialogue name {dialogue!r}: use letters, digits, '_' and '-'")
    return f"{WORK}/{dialogue}"


def list_parts(store: Store, dialogue: str) -> list[FileInfo]:
    """List the parts of a dialogue by time. Some may be merged and deleted before they are read.

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

    If parts are merged and deleted before they are read, the parts are listed again. So no row is missed, but
    some rows may be read twice.

    Args:
        consume: Called in this thread with each part and the result of `decode`, or a CorruptPart.
        decode: Called in another thread with the columns of a part.
        known: Paths of parts to skip.
        since: Unix seconds. Parts without rows of this time or later are skipped.

    Returns:
        The last listing. All its parts are known or were read.
    """

    def read(part: FileInfo) -> Any:
        try:
            return decode(parquet.read_columns(store, part.path, columns, part.bytes))
        except (CorruptPart, FileNotFoundError) as e:
            return e

    def is_wanted(part: FileInfo) -> bool:
        # The name contains the time of the first row, or of the newest source of a merge.
        match = PART_NAME.fullmatch(part.path.rsplit("/", 1)[-1])
        return match is None or int(match.group(1)) / 1000 >= math.floor(since)

    seen, rounds = set(known), MAX_RELOADS
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
        rounds = MAX_RELOADS if n_read else rounds - 1
    raise _vanishing(store, dialogue)


def _vanishing(store: Store, dialogue: str) -> StoreError:
    return StoreError(
        f"The parts of {store.url_of(journal_folder(dialogue))} disappear while they are being read. Check "
        "whether another program deletes files there."
    )


class JournalWriter:
    """Collects rows and writes them as parts. Threads may append while another one flushes.

    `writer_id` must be unique among all past and present writers of this journal. `on_written` is called with
    the path and the rows of each written part.
    """

    def __init__(
        self,
        store: Store,
        dialogue: str,
        writer_id: str,
        on_written: Callable[[str, Sequence[JournalRow]], object] = lambda path, rows: None,
    ) -> None:
        if not _NAME.fullmatch(writer_id):
            raise ValueError(f"Invalid writer id {writer_id!r}: use letters, digits, '_' and '-'")
        self._store, self._folder, self._writer_id = store, journal_folder(dialogue), writer_id
        self._on_written = on_written
        self._rows: list[JournalRow] = []
        self._unwritten: tuple[str, bytes, list[JournalRow]] | None = None
        self._sequence = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    def append(self, row: JournalRow) -> None:
        """Add a row, which the next `flush` makes durable. Raises ValueError for an invalid row."""
        row = journal_rows.validate(row)
        with self._lock:
            self._rows.append(row)

    @property
    def pending(self) -> int:
        """Number of rows that are not yet durable."""
        with self._lock:
            return len(self._rows) + (len(self._unwritten[2]) if self._unwritten else 0)

    def flush(self) -> str | None:
        """Write all pending rows. Return the path of the last part, or None if nothing was pending.

        Raises:
            StoreError: The rows stay pending. The next flush writes the same part again, because the failed
                write may have taken effect, and no row must be in two parts.
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
    """The keys that occur in a part."""

    prefixes: Prefixes  # Distinct and sorted.
    flags: npt.NDArray[np.uint8]  # The kinds of rows of each key (`_FLAGS`).
    all_flags: int  # The kinds of rows in the part.
    retried_until: float  # Unix seconds of the latest retry row, or 0.

    def with_kind(self, kind: str) -> Prefixes:
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
    """Like `np.isin`, by binary search in sorted prefixes."""
    if not len(prefixes):
        return np.zeros(len(wanted), np.bool_)
    positions = np.minimum(np.searchsorted(prefixes, wanted), len(prefixes) - 1)
    is_in: npt.NDArray[np.bool_] = prefixes[positions] == wanted
    return is_in


class DecodedPart:
    """A part in memory with an index of its keys."""

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
        return self.table.take(to_arrow(self._order[expand_ranges(left, right)[0]]))


class Cache:
    """An LRU cache of decoded parts with a size limit. Entries never become stale, as parts are immutable."""

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
    """Reload the index and retry if parts were merged and deleted since it was loaded."""

    @wraps(read)
    def read_or_reload(index: JournalIndex, /, *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(MAX_RELOADS):
            try:
                return read(index, *args, **kwargs)
            except FileNotFoundError:
                index._load()
        raise _vanishing(index._store, index.dialogue)

    return read_or_reload


class JournalIndex:
    """Finds the rows of items and reads them on demand. Takes 21 bytes per pair of key and part.

    It sees the journal as of loading, but reloads itself when its parts were merged and deleted. It is
    picklable, and its arrays can be in shared memory.

    Args:
        parts: The keys of each part, by path.
        strict: Whether to raise CorruptPart for damage in rows instead of logging a warning.
    """

    def __init__(
        self, store: Store, dialogue: str, parts: Mapping[str, PartKeys], strict: bool = False
    ) -> None:
        self._store, self.dialogue, self._parts, self._strict = store, dialogue, parts, strict
        self._damaged: set[str] = set()
        self._cached_done: Prefixes | None = None
        self._cached_locations: tuple[list[str], Prefixes, npt.NDArray[np.uint32]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_cached_done": None}  # Recomputed on demand.

    @classmethod
    def load(cls, store: Store, dialogue: str, *, strict: bool = False) -> JournalIndex:
        """Read the keys of all parts. Damaged parts are skipped with a warning and listed in `damaged`."""
        index = cls(store, dialogue, NO_PARTS, strict)
        index._load()
        return index

    def reload(self) -> JournalIndex:
        """Return an up-to-date index, reading only new parts."""
        index = JournalIndex(self._store, self.dialogue, self._parts, self._strict)
        index._load()
        return index

    def _load(self) -> None:
        """Read new parts and forget those that are gone."""
        parts, damaged = dict(self._parts), set[str]()

        def consume(part: FileInfo, keys: PartKeys | CorruptPart) -> None:
            if isinstance(keys, CorruptPart):
                _warn_damaged(keys)
                damaged.add(part.path)
            else:
                parts[part.path] = keys

        columns = ("key", "kind", "at")
        listed = read_parts(self._store, self.dialogue, columns, consume, part_keys, set(parts))
        present = {part.path for part in listed}
        self._parts = {path: keys for path, keys in parts.items() if path in present}
        self._damaged |= damaged & present
        self._cached_done = self._cached_locations = None
        self._locations()

    def with_part(self, path: str, written: Sequence[JournalRow]) -> JournalIndex:
        """Return this index with one more part that consists of the given rows."""
        if path in self._parts:
            return self
        parts = {**self._parts, path: part_keys(journal_rows.to_table(written))}
        return JournalIndex(self._store, self.dialogue, parts, self._strict)

    @property
    def n_parts(self) -> int:
        return len(self._parts)

    @property
    def damaged(self) -> list[str]:
        """Paths of the damaged parts found so far."""
        return sorted(self._damaged)

    @property
    def any_killed(self) -> bool:
        """Whether any item killed the process that ran it."""
        return any(keys.all_flags & _FLAGS[KILLED] for keys in self._parts.values())

    @property
    def retried_until(self) -> float:
        """Unix seconds of the latest retry row, or 0."""
        return max((keys.retried_until for keys in self._parts.values()), default=0.0)

    def next_time(self) -> float:
        """Return Unix seconds for a new row. They are after all retry rows, even if a clock was ahead."""
        return max(time.time(), math.nextafter(self.retried_until, math.inf))

    @_reloading
    def count_done(self) -> int:
        """Count the items that have a done row."""
        return len(self._done())

    @_reloading
    def count_failed(self) -> int:
        """Count the items that failed or killed a process and have no done row."""
        ended = np.union1d(self._with_kind(FAILED), self._with_kind(KILLED))
        failed = np.setdiff1d(ended, self._done(), assume_unique=True)
        retried = np.intersect1d(failed, self._with_kind(RETRY), assume_unique=True)
        return len(failed) - len(retried) + len(self._resolved(retried, RETRY, {FAILED, KILLED}))

    def count_items(self) -> int:
        """Count the items that have any row."""
        prefixes = [keys.prefixes for keys in self._parts.values()]
        return len(np.unique(np.concatenate(prefixes))) if prefixes else 0

    @_reloading
    def is_done(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which keys have a done row. Reads only the rows of retried items."""
        # Compares prefixes: among a million keys, two are equal with a probability of 1 in 37 million.
        return _is_in(journal_rows.key_prefixes(keys), self._done())

    def rows_of_item(self, key: str) -> list[JournalRow]:
        """Return the resolved rows of one item (`journal_rows.resolve`), or [] for an unknown key."""
        return self.lookup([key]).get(key, [])

    def lookup(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        """Return the resolved rows of items by key, reading each part once. Unknown keys are left out."""
        return {key: journal_rows.resolve(rows) for key, rows in self.all_rows(keys).items()}

    def all_rows(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        """Like `lookup`, but including rows that do not count."""
        return self._rows(list(dict.fromkeys(keys)))

    @_reloading
    def rows_like(self, prefixes: Prefixes) -> dict[str, list[JournalRow]]:
        """Like `all_rows`, for the items whose keys begin with one of the prefixes."""
        return self._read(self._keys_like(prefixes))

    @_reloading
    def failed_items(self) -> dict[str, list[JournalRow]]:
        """Return the resolved rows of the items that have a failure and no done row."""
        failed = np.setdiff1d(self._with_kind(FAILED), self._done(), assume_unique=True)
        return self._resolved(failed, FAILED, {FAILED})

    def _with_kind(self, kind: str) -> Prefixes:
        """Return the sorted distinct prefixes that have a row of this kind."""
        prefixes = [keys.with_kind(kind) for keys in self._parts.values()]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *prefixes]))

    def _done(self) -> Prefixes:
        """Return the sorted prefixes of the items with a done row that no retry row voids."""
        if self._cached_done is None:
            done = self._with_kind(DONE)
            if any(keys.all_flags & _FLAGS[RETRY] for keys in self._parts.values()):
                retried = np.intersect1d(done, self._with_kind(RETRY), assume_unique=True)
                still_done = journal_rows.key_prefixes(list(self._resolved(retried, RETRY, {DONE})))
                done = np.setdiff1d(done, np.setdiff1d(retried, still_done), assume_unique=True)
            self._cached_done = done
        return self._cached_done

    def _resolved(self, prefixes: Prefixes, kind: str, valid: Collection[str]) -> dict[str, list[JournalRow]]:
        """Return the resolved rows of items with a row of `kind` that keep a row of a `valid` kind."""
        items = self._read(self._keys_like(prefixes, kind))
        resolved = {key: journal_rows.resolve(rows) for key, rows in items.items()}
        return {key: rows for key, rows in resolved.items() if any(row.kind in valid for row in rows)}

    def _keys_like(self, prefixes: Prefixes, kind: str | None = None) -> list[str]:
        """Return the keys that begin with one of the sorted prefixes and have a row of `kind`."""
        keys: dict[str, None] = {}
        for path, part in self._parts.items():
            candidates = part.prefixes if kind is None else part.with_kind(kind)
            if _is_in(candidates, prefixes).any() and (decoded := self._decoded(path)):
                keys.update(dict.fromkeys(decoded.rows_of(prefixes).column("key").to_pylist()))
        return list(keys)

    def _locations(self) -> tuple[list[str], Prefixes, npt.NDArray[np.uint32]]:
        """Return the paths of all parts, their sorted prefixes, and the part of each prefix."""
        if self._cached_locations is None:
            by_part = [keys.prefixes for keys in self._parts.values()]
            prefixes = np.concatenate([np.empty(0, np.uint64), *by_part])
            order = np.argsort(prefixes, kind="stable")
            parts = np.repeat(np.arange(len(by_part), dtype=np.uint32), list(map(len, by_part)))
            self._cached_locations = list(self._parts), prefixes[order], parts[order]
        return self._cached_locations

    def _read(self, keys: Sequence[str]) -> dict[str, list[JournalRow]]:
        wanted = journal_rows.key_prefixes(keys)
        paths, prefixes, parts = self._locations()
        left, right = (np.searchsorted(prefixes, wanted, side) for side in ("left", "right"))
        positions, owners = expand_ranges(left, right)
        by_key: dict[str, list[JournalRow]] = {}
        for part in np.unique(parts[positions]).tolist():
            if decoded := self._decoded(paths[part]):
                rows = decoded.rows_of(wanted[owners[parts[positions] == part]])
                for row in journal_rows.from_table(rows):
                    by_key.setdefault(row.key, []).append(row)
        return {key: by_key[key] for key in keys if key in by_key}

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
    _log.warning("%s. The part is skipped, so its contents will be requested again.", error)
