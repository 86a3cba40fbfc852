"""The journal of raw replies: what was paid for, found again by the item it belongs to.

    work/<dialogue>/part-<ms>-<writer>-<sequence>-<hash>.parquet    rows of one flush
    work/<dialogue>/part-<ms>~<generation>-<hash>.parquet           many of those, merged (`compaction.py`)

Names sort by the time of the rows in them, a merged part after all that went into it. A name ends with the
hash of the bytes, so damage is told from data, and writing a part twice is writing it once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.arrow_arrays import arrow
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import journal_rows, parquet
from graphrag_ray.store.files import WHOLE_BYTES, FileInfo, Store
from graphrag_ray.store.journal_parts import NAME, RELOADS, folder, read_parts, vanishing
from graphrag_ray.store.journal_rows import JournalRow

FLUSH_BYTES = 64 << 20
"""A flush writes a new part when its rows hold more than this, as after a long outage of the storage."""
CACHE_BYTES = 256 << 20
"""Decoded parts that a process keeps."""
_FLAGS = {journal_rows.DONE: 1, journal_rows.FAILED: 2, journal_rows.KILLED: 4, journal_rows.RETRY: 8}
"""Of the kinds of rows that are told apart."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Batch:
    path: str
    data: bytes
    rows: Sequence[JournalRow]


class JournalWriter:
    """Collects rows and writes them as parts. Threads may append while another flushes.

    writer_id   letters, digits, "_", "-"; no other writer of this journal, now or before, has the same
    on_written  told the path of each part that was written, and its rows
    """

    def __init__(
        self,
        store: Store,
        dialogue: str,
        writer_id: str,
        on_written: Callable[[str, Sequence[JournalRow]], object] = lambda path, rows: None,
    ) -> None:
        if not NAME.fullmatch(writer_id):
            raise ValueError(f"a writer's id is letters, digits, '_' and '-', not {writer_id!r}")
        self._store, self._folder, self._writer_id = store, folder(dialogue), writer_id
        self._on_written = on_written
        self._rows: list[JournalRow] = []
        self._unwritten: _Batch | None = None
        self._sequence = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    def append(self, row: JournalRow) -> None:
        """Take a row; it is safe once the next `flush` has returned. Raises ValueError for a bad row."""
        row = journal_rows.checked(row)
        with self._lock:
            self._rows.append(row)

    @property
    def pending(self) -> int:
        """Rows that a kill would lose now."""
        with self._lock:
            return len(self._rows) + (len(self._unwritten.rows) if self._unwritten else 0)

    def flush(self) -> str | None:
        """Write what is pending; the path of the last part written, None if nothing was pending.

        Raises StoreError; the rows stay pending then. The next flush first writes the same part again, in
        case the failed write was carried out after all: no row comes to stand in two parts.
        """
        with self._flushing:
            path = None
            while batch := self._unwritten or self._take():
                self._store.write(batch.path, batch.data)
                with self._lock:
                    self._unwritten = None
                self._on_written(batch.path, batch.rows)
                path = batch.path
            return path

    def _take(self) -> _Batch | None:
        with self._lock:
            taken: list[JournalRow] = []
            size = 0
            for row in self._rows:
                size += row.nbytes
                if taken and size > FLUSH_BYTES:
                    break
                taken.append(row)
        if not taken:
            return None
        data = parquet.encode(journal_rows.to_table(taken), dictionary=journal_rows.FEW_VALUES)
        at_ms = int(min(row.at for row in taken) * 1000)
        name = f"part-{at_ms:013d}-{self._writer_id}-{self._sequence:06d}-{parquet.content_hash(data)}"
        batch = _Batch(f"{self._folder}/{name}.parquet", data, taken)
        with self._lock:
            self._unwritten = batch
            del self._rows[: len(taken)]
        self._sequence += 1
        return batch


Held: TypeAlias = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8], float]
"""Of one part: distinct prefixes of keys, in order, the kinds of rows each has, and the time of its latest
retry row or 0.0."""


@dataclass(frozen=True, slots=True)
class Entries:
    """What the parts of a journal hold: one entry for each distinct pair of key and part, sorted by key.

    prefixes  uint64, the key's first 64 bits
    parts     uint32, place in `paths`
    flags     uint8, kinds of rows
    kinds     all flags together
    retried_until  unix seconds of the latest retry row; 0.0 where nothing was put back
    """

    paths: tuple[str, ...]
    prefixes: npt.NDArray[np.uint64]
    parts: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint8]
    damaged: tuple[str, ...] = ()
    kinds: int = 0
    retried_until: float = 0.0

    def have(self, kind: str) -> npt.NDArray[np.bool_]:
        """Which entries have a row of this kind."""
        found: npt.NDArray[np.bool_] = (self.flags & _FLAGS[kind]) != 0
        return found

    def any_has(self, kind: str) -> bool:
        return bool(self.kinds & _FLAGS[kind])

    def with_a(self, kind: str) -> npt.NDArray[np.uint64]:
        """Prefixes of what has a row of this kind, sorted, each once."""
        found: npt.NDArray[np.uint64] = self.prefixes[self.have(kind)]
        return found[_first_of_equals(found)]

    def having(self, found: Sequence[tuple[str, Held]]) -> Entries:
        """With more parts: the path of each, and what it holds."""
        first = len(self.paths)
        numbers = np.arange(first, first + len(found), dtype=np.uint32)
        lengths = np.array([len(held[0]) for _, held in found], dtype=np.int64)
        prefixes = np.concatenate([self.prefixes, *(held[0] for _, held in found)])
        flags = np.concatenate([self.flags, *(held[1] for _, held in found)])
        parts = np.concatenate([self.parts, np.repeat(numbers, lengths)])
        order = np.argsort(prefixes, kind="stable")
        return replace(
            self,
            paths=(*self.paths, *(path for path, _ in found)),
            prefixes=prefixes[order],
            parts=parts[order],
            flags=flags[order],
            kinds=int(np.bitwise_or.reduce(flags)),
            retried_until=max([self.retried_until, *(held[2] for _, held in found)]),
        )

    def among(self, paths: Collection[str]) -> Entries:
        """Of those parts alone."""
        stays = np.array([path in paths for path in self.paths], dtype=np.bool_)
        if stays.all():
            return self
        kept, numbers = stays[self.parts], (np.cumsum(stays) - 1).astype(np.uint32)
        flags = self.flags[kept]
        return replace(
            self,
            paths=tuple(compress(self.paths, stays)),
            prefixes=self.prefixes[kept],
            parts=numbers[self.parts[kept]],
            flags=flags,
            kinds=int(np.bitwise_or.reduce(flags)),
        )


NONE = Entries((), np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.uint8))


def _held_by(written: Sequence[JournalRow]) -> Held:
    """What rows come to as entries."""
    flags = np.array([_flag_of(row.kind) for row in written], dtype=np.uint8)
    retried = max((row.at for row in written if row.kind == journal_rows.RETRY), default=0.0)
    return *_distinct(journal_rows.key_prefixes([row.key for row in written]), flags), retried


def _scan(store: Store, info: FileInfo) -> Held | None:
    """What a part comes to as entries; None for a damaged one."""

    def read(*columns: str) -> pa.Table:
        if info.bytes <= WHOLE_BYTES:
            return parquet.read_whole(store, info.path, columns)
        return parquet.read_columns(store, info.path, columns, info.bytes)

    try:
        return held_in(read("key", "kind"), lambda: read("at"))
    except CorruptPart as e:
        _warn_damaged(e)
        return None


def held_in(table: pa.Table, times: Callable[[], pa.Table]) -> Held:
    """What the columns `key` and `kind` come to as entries. times: the column `at`, read if there are retry
    rows."""
    flags = journal_rows.coded(table.column("kind"), _flag_of, np.uint8)
    is_retry, retried = flags == _FLAGS[journal_rows.RETRY], 0.0
    if is_retry.any():
        retried = float(journal_rows.numbers(times().column("at"), np.float64)[is_retry].max())
    return *_distinct(journal_rows.column_prefixes(table.column("key")), flags), retried


def _flag_of(kind: str) -> int:
    return _FLAGS.get(kind, 0)


def _distinct(
    prefixes: npt.NDArray[np.uint64], flags: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """Each prefix once, with the kinds of all its rows."""
    if not len(prefixes):
        return prefixes, flags
    order = np.argsort(prefixes, kind="stable")
    prefixes, flags = prefixes[order], flags[order]
    starts = np.flatnonzero(_first_of_equals(prefixes))
    return prefixes[starts], np.bitwise_or.reduceat(flags, starts)


def _first_of_equals(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Of sorted values."""
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


class DecodedPart:
    """A part in memory, its rows found by key."""

    def __init__(self, table: pa.Table) -> None:
        prefixes = journal_rows.column_prefixes(table.column("key"))
        self.table = table
        self._order = np.argsort(prefixes, kind="stable")
        self._prefixes = prefixes[self._order]

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes) + 16 * len(self._order)

    def rows_of(self, prefixes: npt.NDArray[np.uint64]) -> list[JournalRow]:
        return journal_rows.from_table(self.table.take(arrow(self._places(prefixes))))

    def keys_of(self, prefixes: npt.NDArray[np.uint64]) -> list[str]:
        taken = self.table.column("key").take(arrow(self._places(prefixes)))
        return taken.to_pylist()  # type: ignore[no-any-return]

    def _places(self, prefixes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        wanted = np.unique(prefixes)
        left = np.searchsorted(self._prefixes, wanted, "left")
        right = np.searchsorted(self._prefixes, wanted, "right")
        spans = [self._order[a:b] for a, b in zip(left, right, strict=True) if b > a]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)


class Cache:
    """The decoded parts last used, up to a number of bytes. Parts never change, so none grows stale."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._size = limit_bytes, 0
        self._kept: OrderedDict[tuple[str, str], DecodedPart] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, store: Store, path: str) -> DecodedPart:
        name = (store.url, path)
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        decoded = DecodedPart(parquet.read_whole(store, path))
        with self._lock:
            if name not in self._kept:
                self._kept[name] = decoded
                self._size += decoded.nbytes
            while self._size > self._limit and len(self._kept) > 1:
                self._size -= self._kept.popitem(last=False)[1].nbytes
        return decoded

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._size = 0


cache = Cache(CACHE_BYTES)


class JournalIndex:
    """Finds the rows of an item: 13 bytes for each pair of key and part, the rows read when asked for.

    It shows the journal as it was when loaded. Picklable; its arrays can lie in shared memory. Parts that
    were merged away meanwhile make it load itself again.

    strict  a damaged part that is only found when its rows are read is raised as CorruptPart; else it is
            named in a warning and left out, as those are that are found on loading
    """

    def __init__(self, store: Store, dialogue: str, entries: Entries, strict: bool = False) -> None:
        self._store, self._dialogue, self._entries, self._strict = store, dialogue, entries, strict
        self._found_damaged: set[str] = set()
        self._known_done: npt.NDArray[np.uint64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What follows from the rest is found again where it is wanted.
        return vars(self) | {"_known_done": None}

    @classmethod
    def load(cls, store: Store, dialogue: str, *, strict: bool = False) -> JournalIndex:
        """Read the keys of all parts. A damaged part is named in a warning and in `damaged`, and left out:
        what it held is asked for again. Raises StoreError."""
        return cls(store, dialogue, _load(store, dialogue), strict)

    def extended(self, path: str, written: Sequence[JournalRow]) -> JournalIndex:
        """This index with one more part, which holds these rows."""
        if path in self._entries.paths:
            return self
        more = self._entries.having([(path, _held_by(written))])
        return JournalIndex(self._store, self._dialogue, more, self._strict)

    def again(self) -> JournalIndex:
        """The journal as it is now: of its parts only those that are new are read. Raises StoreError."""
        found = _load(self._store, self._dialogue, self._entries)
        return JournalIndex(self._store, self._dialogue, found, self._strict)

    @property
    def dialogue(self) -> str:
        return self._dialogue

    @property
    def n_parts(self) -> int:
        return len(self._entries.paths)

    @property
    def damaged(self) -> list[str]:
        """Paths of parts that cannot be read, as far as this index has come across them."""
        return sorted({*self._entries.damaged, *self._found_damaged})

    @property
    def any_killed(self) -> bool:
        """Whether there is a row of an item that killed whoever ran it."""
        return self._entries.any_has(journal_rows.KILLED)

    @property
    def retried_until(self) -> float:
        """Unix seconds of the latest retry row; 0.0 where nothing was put back."""
        return self._entries.retried_until

    def now(self) -> float:
        """Unix seconds for a new row: after everything that a retry row voids, wherever a clock was ahead."""
        return max(time.time(), math.nextafter(self._entries.retried_until, math.inf))

    def keys_done(self) -> int:
        """Items that have a done row."""
        return len(self._reloading(self._done))

    def keys_failed(self) -> int:
        """Items that have a failure, or killed whoever ran them, and no done row."""

        def find() -> int:
            of = self._entries
            ended = np.union1d(of.with_a(journal_rows.FAILED), of.with_a(journal_rows.KILLED))
            failed = np.setdiff1d(ended, self._done(), assume_unique=True)
            retried = np.intersect1d(failed, of.with_a(journal_rows.RETRY), assume_unique=True)
            own = self._lookup(self._keys_of(retried, journal_rows.RETRY))
            kinds = (journal_rows.FAILED, journal_rows.KILLED)
            still = [key for key, rows in own.items() if any(row.kind in kinds for row in rows)]
            return len(failed) - len(retried) + len(still)

        return self._reloading(find)

    def n_keys(self) -> int:
        """Items that have any row."""
        return len(np.unique(self._entries.prefixes))

    def is_done(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which of the keys have a done row; reads no more than what was put back to be asked again. (Two of
        a million keys have the same 64 bits once in 37 million indexes.)"""
        done = self._reloading(self._done)
        wanted = journal_rows.key_prefixes(keys)
        places = np.searchsorted(done, wanted)
        inside = places < len(done)
        found = np.zeros(len(wanted), dtype=np.bool_)
        found[inside] = done[places[inside]] == wanted[inside]
        return found

    def turns(self, key: str) -> list[JournalRow]:
        """The rows of one item, resolved (see `rows.resolve`); [] for an unknown key."""
        return self.lookup([key]).get(key, [])

    def lookup(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        """The resolved rows of many items at once; keys without rows are absent. Each part is read once.

        Raises StoreError.
        """
        wanted = list(dict.fromkeys(keys))
        return self._reloading(lambda: self._lookup(wanted))

    def all_rows(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        """As `lookup`, but every row that was ever written. Raises StoreError."""
        wanted = list(dict.fromkeys(keys))
        return self._reloading(lambda: self._read(wanted))

    def rows_like(self, prefixes: npt.NDArray[np.uint64]) -> dict[str, list[JournalRow]]:
        """As `all_rows`, of all items whose keys begin so. Raises StoreError."""
        return self._reloading(lambda: self._read(self._keys_of(prefixes)))

    def failed(self) -> dict[str, list[JournalRow]]:
        """All rows of the items that have a failure and no done row."""

        def find() -> dict[str, list[JournalRow]]:
            failed = np.setdiff1d(self._entries.with_a(journal_rows.FAILED), self._done(), assume_unique=True)
            found = self._lookup(self._keys_of(failed, journal_rows.FAILED))
            return {key: own for key, own in found.items() if any(r.kind == journal_rows.FAILED for r in own)}

        return self._reloading(find)

    def _done(self) -> npt.NDArray[np.uint64]:
        """Sorted prefixes of the items with a done row that no retry row voids. Found once: entries, and what
        parts hold, do not change."""
        if self._known_done is None:
            self._known_done = self._find_done()
        return self._known_done

    def _find_done(self) -> npt.NDArray[np.uint64]:
        entries = self._entries
        done = entries.with_a(journal_rows.DONE)
        if not entries.any_has(journal_rows.RETRY):
            return done
        retried = np.intersect1d(done, entries.with_a(journal_rows.RETRY), assume_unique=True)
        if not len(retried):
            return done
        own = self._lookup(self._keys_of(retried, journal_rows.RETRY))
        still = [key for key, found in own.items() if any(r.kind == journal_rows.DONE for r in found)]
        return np.setdiff1d(done, np.setdiff1d(retried, journal_rows.key_prefixes(still)), assume_unique=True)

    def _keys_of(self, prefixes: npt.NDArray[np.uint64], kind: str | None = None) -> list[str]:
        """The keys that begin so, and have rows of this kind where one is named."""
        entries = self._entries
        wanted = np.isin(entries.prefixes, prefixes)
        if kind is not None:
            wanted &= entries.have(kind)
        keys: dict[str, None] = {}
        for part in np.unique(entries.parts[wanted]):
            part_rows = self._decoded(entries.paths[part])
            if part_rows is not None:
                keys.update(dict.fromkeys(part_rows.keys_of(prefixes)))
        return list(keys)

    def _reloading(self, read: Callable[[], T]) -> T:
        for _ in range(RELOADS):
            try:
                return read()
            except FileNotFoundError:
                # Merged away since this index was loaded.
                self._entries = _load(self._store, self._dialogue, self._entries)
                self._known_done = None
        raise vanishing(self._store, self._dialogue)

    def _lookup(self, keys: list[str]) -> dict[str, list[JournalRow]]:
        return {key: journal_rows.resolve(found) for key, found in self._read(keys).items()}

    def _read(self, keys: list[str]) -> dict[str, list[JournalRow]]:
        entries, wanted = self._entries, journal_rows.key_prefixes(keys)
        left = np.searchsorted(entries.prefixes, wanted, "left")
        right = np.searchsorted(entries.prefixes, wanted, "right")
        by_part: dict[int, list[int]] = {}
        for place in np.flatnonzero(right > left):
            for part in entries.parts[left[place] : right[place]]:
                by_part.setdefault(int(part), []).append(int(place))
        found: dict[str, list[JournalRow]] = {}
        for part, places in sorted(by_part.items()):
            part_rows = self._decoded(entries.paths[part])
            if part_rows is not None:
                for row in part_rows.rows_of(wanted[places]):
                    found.setdefault(row.key, []).append(row)
        return {key: found[key] for key in keys if key in found}

    def _decoded(self, path: str) -> DecodedPart | None:
        if path in self._found_damaged:
            return None
        try:
            return cache.get(self._store, path)
        except CorruptPart as e:
            if self._strict:
                raise
            _warn_damaged(e)
            self._found_damaged.add(path)
            return None


def _load(store: Store, dialogue: str, known: Entries = NONE) -> Entries:
    """known: what was loaded before; parts that are in it are not read again."""
    scanned: dict[str, Held | None] = {}
    listed = read_parts(
        store,
        dialogue,
        partial(_scan, store),
        lambda part, held: scanned.update({part.path: held}),
        set(known.paths),
    )
    now = {part.path for part in listed}
    found = [(path, held) for path, held in scanned.items() if held is not None and path in now]
    damaged = tuple(path for path, held in scanned.items() if held is None and path in now)
    loaded = known.among(now).having(found)
    return replace(loaded, damaged=damaged)


def _warn_damaged(error: CorruptPart) -> None:
    _log.warning("%s. It is left out, and what it held is asked for again", error)
