"""The journal of raw replies: what was paid for, found again by the item it belongs to.

    work/<dialogue>/part-<ms>-<writer>-<sequence>-<hash>.parquet    rows of one flush
    work/<dialogue>/part-<ms>~<generation>-<hash>.parquet           many of those, merged (`compaction.py`)

Names sort by the time of the rows in them, a merged part after all that went into it. A name ends with the
hash of the bytes, so damage is told from data, and writing a part twice is writing it once.
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
from graphrag_ray.store.files import FileInfo, Store, in_threads
from graphrag_ray.store.journal_rows import DONE, FAILED, KILLED, RETRY, JournalRow
from graphrag_ray.store.search.mapped_arrays import spread

FLUSH_BYTES = 64 << 20
"""A flush writes a new part when its rows hold more than this, as after a long outage of the storage."""
CACHE_BYTES = 256 << 20
"""Decoded parts that a process keeps."""
PART_NAME = re.compile(r"part-(\d{13})(?:-[\w-]+|~(\d{4}))-[0-9a-f]{32}\.parquet", re.ASCII)
WORK = "work"
"""The folder that holds the journals of all dialogues."""
RELOADS = 5
"""Looks at a journal, one after the other, that may find nothing but parts that are gone."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FLAGS = {DONE: 1, FAILED: 2, KILLED: 4, RETRY: 8}
"""Of the kinds of rows that are told apart."""
_FLAG_OF_KIND = np.array([*(_FLAGS.get(kind, 0) for kind in journal_rows.KINDS), 0], np.uint8)

_log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
Prefixes: TypeAlias = npt.NDArray[np.uint64]
"""The first 64 bits of keys."""


def folder(dialogue: str) -> str:
    """Where the parts of a dialogue are."""
    if not _NAME.fullmatch(dialogue):
        raise ValueError(f"a dialogue's name is letters, digits, '_' and '-', not {dialogue!r}")
    return f"{WORK}/{dialogue}"


def list_parts(store: Store, dialogue: str) -> list[FileInfo]:
    """The parts of a dialogue by time. Some may be merged away while they are being read.

    A listing that takes its time can miss both the parts that are merged and the one they went into. The
    merged part is there before the first of them is deleted, so a second listing sees what the first
    missed, and both together miss no row.
    """
    at = folder(dialogue) + "/"
    found = {info.path: info for _ in range(2) for info in store.list(folder(dialogue))}
    return [found[path] for path in sorted(found) if PART_NAME.fullmatch(path.removeprefix(at))]


def read_parts(
    store: Store,
    dialogue: str,
    columns: Sequence[str],
    take: Callable[[FileInfo, Any], object],
    of: Callable[[pa.Table], Any] = lambda table: table,
    known: Collection[str] = (),
    since: float = 0.0,
) -> list[FileInfo]:
    """Read some columns of every part of a dialogue but the known ones, many at once. A part that is merged
    away before it is read is in one of the next listing, and that is read then: so no row is missed, and some
    may come twice.

    take   told in this thread what `of` makes of the columns of each part, in another one; or CorruptPart
    since  unix seconds: without the parts that have no row of then or later

    Returns the last listing, every part of which is known or was read.
    """

    def read(part: FileInfo) -> Any:
        try:
            return of(parquet.read_columns(store, part.path, columns, part.bytes))
        except (CorruptPart, FileNotFoundError) as e:
            return e

    def is_wanted(part: FileInfo) -> bool:
        """By the time in its name: that of its first row, of a merged part no less than its last's."""
        match = PART_NAME.fullmatch(part.path.rsplit("/", 1)[-1])
        return match is None or int(match.group(1)) / 1000 >= math.floor(since)

    seen, rounds = set(known), RELOADS
    while rounds:
        parts = [part for part in list_parts(store, dialogue) if is_wanted(part)]
        new = [part for part in parts if part.path not in seen]
        before = len(seen)
        for part, found in zip(new, in_threads(read, new), strict=True):
            if not isinstance(found, FileNotFoundError):
                seen.add(part.path)
                take(part, found)
        n_read = len(seen) - before
        if n_read == len(new):
            return parts
        rounds = RELOADS if n_read else rounds - 1
    raise _vanishing(store, dialogue)


def _vanishing(store: Store, dialogue: str) -> StoreError:
    return StoreError(
        f"the parts of {store.url_of(folder(dialogue))} vanish while they are read: is another program "
        "deleting files there?"
    )


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
        if not _NAME.fullmatch(writer_id):
            raise ValueError(f"a writer's id is letters, digits, '_' and '-', not {writer_id!r}")
        self._store, self._folder, self._writer_id = store, folder(dialogue), writer_id
        self._on_written = on_written
        self._rows: list[JournalRow] = []
        self._unwritten: tuple[str, bytes, list[JournalRow]] | None = None
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
            return len(self._rows) + (len(self._unwritten[2]) if self._unwritten else 0)

    def flush(self) -> str | None:
        """Write what is pending; the path of the last part written, None if nothing was pending.

        Raises StoreError; the rows stay pending then. The next flush first writes the same part again, in
        case the failed write was carried out after all: no row comes to stand in two parts.
        """
        with self._flushing:
            last = None
            while batch := self._unwritten or self._take():
                path, data, rows = batch
                self._store.write(path, data)
                with self._lock:
                    self._unwritten = None
                self._on_written(path, rows)
                last = path
            return last

    def _take(self) -> tuple[str, bytes, list[JournalRow]] | None:
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
        batch = f"{self._folder}/{name}.parquet", data, taken
        with self._lock:
            self._unwritten = batch
            del self._rows[: len(taken)]
        self._sequence += 1
        return batch


@dataclass(frozen=True, slots=True)
class Held:
    """What a part holds: distinct first 64 bits of keys, rising, and the kinds of rows each has.

    kinds          all flags together
    retried_until  unix seconds of the latest retry row; 0.0 where nothing was put back
    """

    prefixes: Prefixes
    flags: npt.NDArray[np.uint8]
    kinds: int
    retried_until: float

    def with_a(self, kind: str) -> Prefixes:
        """Prefixes of what has a row of this kind."""
        found: Prefixes = self.prefixes[(self.flags & _FLAGS[kind]) != 0]
        return found


NONE: Mapping[str, Held] = {}


def held_in(table: pa.Table) -> Held:
    """What a part holds, by its columns `key`, `kind` and `at`."""
    flags = _FLAG_OF_KIND[journal_rows.kinds(table.column("kind"))]
    retried = journal_rows.numbers(table.column("at"), np.float64)[flags == _FLAGS[RETRY]]
    prefixes = journal_rows.column_prefixes(table.column("key"))
    order = np.argsort(prefixes, kind="stable")
    prefixes = prefixes[order]
    starts = np.flatnonzero(np.diff(prefixes, prepend=~prefixes[:1]))
    kinds = np.bitwise_or.reduceat(flags[order], starts)
    return Held(prefixes[starts], kinds, int(np.bitwise_or.reduce(kinds)), float(retried.max(initial=0.0)))


def _among(rising: Prefixes, wanted: Prefixes) -> npt.NDArray[np.bool_]:
    """[wanted] which are among others."""
    if not len(rising):
        return np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(rising, wanted), len(rising) - 1)
    found: npt.NDArray[np.bool_] = rising[at] == wanted
    return found


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

    def of(self, prefixes: Prefixes) -> pa.Table:
        """The rows of items whose keys begin so."""
        wanted = np.unique(prefixes)
        left, right = (np.searchsorted(self._prefixes, wanted, side) for side in ("left", "right"))
        spans = [self._order[a:b] for a, b in zip(left, right, strict=True) if b > a]
        return self.table.take(arrow(np.concatenate([np.empty(0, dtype=np.int64), *spans])))


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


def _reloading(read: Callable[Concatenate[JournalIndex, P], T]) -> Callable[Concatenate[JournalIndex, P], T]:
    """Of an index some of whose parts were merged away since it was loaded: load it again, and read again."""

    @wraps(read)
    def reading(index: JournalIndex, /, *args: P.args, **named: P.kwargs) -> T:
        for _ in range(RELOADS):
            try:
                return read(index, *args, **named)
            except FileNotFoundError:
                index._load()
        raise _vanishing(index._store, index.dialogue)

    return reading


class JournalIndex:
    """Finds the rows of an item: 21 bytes for each pair of key and part, the rows read when asked for.

    It shows the journal as it was when loaded. Picklable; its arrays can lie in shared memory. Parts that
    were merged away meanwhile make it load itself again.

    held    what each part holds, by path
    strict  a damaged part that is only found when its rows are read is raised as CorruptPart; else it is
            named in a warning and left out, as those are that are found on loading
    """

    def __init__(self, store: Store, dialogue: str, held: Mapping[str, Held], strict: bool = False) -> None:
        self._store, self.dialogue, self._held, self._strict = store, dialogue, held, strict
        self._damaged: set[str] = set()
        self._known_done: Prefixes | None = None
        self._known_places: tuple[list[str], Prefixes, npt.NDArray[np.uint32]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What follows from the rest is found again where it is wanted.
        return vars(self) | {"_known_done": None}

    @classmethod
    def load(cls, store: Store, dialogue: str, *, strict: bool = False) -> JournalIndex:
        """Read the keys of all parts. A damaged part is named in a warning and in `damaged`, and left out:
        what it held is asked for again. Raises StoreError."""
        index = cls(store, dialogue, NONE, strict)
        index._load()
        return index

    def again(self) -> JournalIndex:
        """The journal as it is now: of its parts only those that are new are read. Raises StoreError."""
        index = JournalIndex(self._store, self.dialogue, self._held, self._strict)
        index._load()
        return index

    def _load(self) -> None:
        """Read the parts that are new since, and forget those that are gone."""
        held, damaged = dict(self._held), set[str]()

        def take(part: FileInfo, found: Held | CorruptPart) -> None:
            if isinstance(found, CorruptPart):
                _warn_damaged(found)
                damaged.add(part.path)
            else:
                held[part.path] = found

        columns = ("key", "kind", "at")
        listed = read_parts(self._store, self.dialogue, columns, take, held_in, set(held))
        now = {part.path for part in listed}
        self._held = {path: of for path, of in held.items() if path in now}
        self._damaged |= damaged & now
        self._known_done = self._known_places = None
        self._places()

    def extended(self, path: str, written: Sequence[JournalRow]) -> JournalIndex:
        """This index with one more part, which holds these rows."""
        if path in self._held:
            return self
        more = {**self._held, path: held_in(journal_rows.to_table(written))}
        return JournalIndex(self._store, self.dialogue, more, self._strict)

    @property
    def n_parts(self) -> int:
        return len(self._held)

    @property
    def damaged(self) -> list[str]:
        """Paths of parts that cannot be read, as far as this index has come across them."""
        return sorted(self._damaged)

    @property
    def any_killed(self) -> bool:
        """Whether there is a row of an item that killed whoever ran it."""
        return any(held.kinds & _FLAGS[KILLED] for held in self._held.values())

    @property
    def retried_until(self) -> float:
        """Unix seconds of the latest retry row; 0.0 where nothing was put back."""
        return max((held.retried_until for held in self._held.values()), default=0.0)

    def now(self) -> float:
        """Unix seconds for a new row: after everything that a retry row voids, wherever a clock was ahead."""
        return max(time.time(), math.nextafter(self.retried_until, math.inf))

    @_reloading
    def keys_done(self) -> int:
        """Items that have a done row."""
        return len(self._done())

    @_reloading
    def keys_failed(self) -> int:
        """Items that have a failure, or killed whoever ran them, and no done row."""
        ended = np.union1d(self._with_a(FAILED), self._with_a(KILLED))
        failed = np.setdiff1d(ended, self._done(), assume_unique=True)
        retried = np.intersect1d(failed, self._with_a(RETRY), assume_unique=True)
        return len(failed) - len(retried) + len(self._standing(retried, RETRY, {FAILED, KILLED}))

    def n_keys(self) -> int:
        """Items that have any row."""
        prefixes = [held.prefixes for held in self._held.values()]
        return len(np.unique(np.concatenate(prefixes))) if prefixes else 0

    @_reloading
    def is_done(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which of the keys have a done row; reads no more than what was put back to be asked again. (Two of
        a million keys have the same 64 bits once in 37 million indexes.)"""
        return _among(self._done(), journal_rows.key_prefixes(keys))

    def turns(self, key: str) -> list[JournalRow]:
        """The rows of one item, resolved (see `rows.resolve`); [] for an unknown key."""
        return self.lookup([key]).get(key, [])

    def lookup(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        """The resolved rows of many items at once; keys without rows are absent. Each part is read once."""
        return {key: journal_rows.resolve(rows) for key, rows in self.all_rows(keys).items()}

    def all_rows(self, keys: Iterable[str]) -> dict[str, list[JournalRow]]:
        """As `lookup`, but every row that was ever written. Raises StoreError."""
        return self._rows(list(dict.fromkeys(keys)))

    @_reloading
    def rows_like(self, prefixes: Prefixes) -> dict[str, list[JournalRow]]:
        """As `all_rows`, of all items whose keys begin so. Raises StoreError."""
        return self._read(self._keys_like(prefixes))

    @_reloading
    def failed(self) -> dict[str, list[JournalRow]]:
        """All rows of the items that have a failure and no done row."""
        failed = np.setdiff1d(self._with_a(FAILED), self._done(), assume_unique=True)
        return self._standing(failed, FAILED, {FAILED})

    def _with_a(self, kind: str) -> Prefixes:
        """Prefixes of what has a row of this kind, rising, each once."""
        found = [held.with_a(kind) for held in self._held.values()]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *found]))

    def _done(self) -> Prefixes:
        """Rising prefixes of the items with a done row that no retry row voids. Found once: what parts hold
        does not change."""
        if self._known_done is None:
            done = self._with_a(DONE)
            if any(held.kinds & _FLAGS[RETRY] for held in self._held.values()):
                retried = np.intersect1d(done, self._with_a(RETRY), assume_unique=True)
                still = journal_rows.key_prefixes(list(self._standing(retried, RETRY, {DONE})))
                done = np.setdiff1d(done, np.setdiff1d(retried, still), assume_unique=True)
            self._known_done = done
        return self._known_done

    def _standing(
        self, prefixes: Prefixes, kind: str, wanted: Collection[str]
    ) -> dict[str, list[JournalRow]]:
        """The resolved rows of the items that begin so, have a row of this kind, and one of the wanted kinds
        that stands."""
        found = self._read(self._keys_like(prefixes, kind))
        resolved = {key: journal_rows.resolve(rows) for key, rows in found.items()}
        return {key: rows for key, rows in resolved.items() if any(row.kind in wanted for row in rows)}

    def _keys_like(self, prefixes: Prefixes, kind: str | None = None) -> list[str]:
        """The keys that begin so (rising), and have rows of this kind where one is named."""
        keys: dict[str, None] = {}
        for path, held in self._held.items():
            own = held.prefixes if kind is None else held.with_a(kind)
            if _among(prefixes, own).any() and (decoded := self._decoded(path)):
                keys.update(dict.fromkeys(decoded.of(prefixes).column("key").to_pylist()))
        return list(keys)

    def _places(self) -> tuple[list[str], Prefixes, npt.NDArray[np.uint32]]:
        """The paths of all parts; the prefixes of all, rising, and which part each is in. To look in one part
        after the other would take longer the more there are."""
        if self._known_places is None:
            held = self._held
            own = [part.prefixes for part in held.values()]
            prefixes = np.concatenate([np.empty(0, np.uint64), *own])
            order = np.argsort(prefixes, kind="stable")
            parts = np.repeat(np.arange(len(own), dtype=np.uint32), list(map(len, own)))
            self._known_places = list(held), prefixes[order], parts[order]
        return self._known_places

    def _read(self, keys: Sequence[str]) -> dict[str, list[JournalRow]]:
        wanted = journal_rows.key_prefixes(keys)
        paths, prefixes, parts = self._places()
        places, whose = spread(*(np.searchsorted(prefixes, wanted, side) for side in ("left", "right")))
        found: dict[str, list[JournalRow]] = {}
        for part in np.unique(parts[places]).tolist():
            if decoded := self._decoded(paths[part]):
                for row in journal_rows.from_table(decoded.of(wanted[whose[parts[places] == part]])):
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
    _log.warning("%s. It is left out, and what it held is asked for again", error)
