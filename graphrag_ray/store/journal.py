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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import decoded, journal_rows, marks, parquet
from graphrag_ray.store.decoded import DecodedPart
from graphrag_ray.store.files import WHOLE_BYTES, FileInfo, Store
from graphrag_ray.store.journal_entries import NONE, Entries, Held, held_by, held_in
from graphrag_ray.store.journal_parts import NAME, RELOADS, folder, read_parts, vanishing
from graphrag_ray.store.journal_rows import JournalRow

FLUSH_BYTES = 64 << 20
"""A flush writes a new part when its rows hold more than this, as after a long outage of the storage."""

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
        more = self._entries.having([(path, held_by(written))])
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
            return decoded.cache.get(self._store, path)
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
    return replace(loaded, damaged=damaged, retried_until=_retried_until(store, dialogue, loaded))


def _scan(store: Store, info: FileInfo) -> Held | None:
    """None for a damaged part."""
    columns = ("key", "kind")
    try:
        if info.bytes <= WHOLE_BYTES:
            table = parquet.read_whole(store, info.path, columns)
        else:
            table = parquet.read_columns(store, info.path, columns, info.bytes)
    except CorruptPart as e:
        _warn_damaged(e)
        return None
    return held_in(table)


def _retried_until(store: Store, dialogue: str, entries: Entries) -> float:
    """As the mark says or, where that is damaged, the retry rows."""
    until = marks.until(store, dialogue)
    if until is not None:
        return until
    _log.warning("%s is damaged: the retry rows tell what it held", store.url_of(marks.path(dialogue)))
    found = [0.0]
    if entries.any_has(journal_rows.RETRY):
        read_parts(store, dialogue, partial(_latest_retry, store), lambda _, at: found.append(at))
    return max(found)


def _latest_retry(store: Store, info: FileInfo) -> float:
    """Unix seconds; 0.0 without any, or of a damaged part, which holds none for anybody."""
    try:
        table = parquet.read_columns(store, info.path, ("kind", "at"), info.bytes)
    except CorruptPart:
        return 0.0
    is_retry = journal_rows.coded(table["kind"], lambda kind: kind == journal_rows.RETRY, np.bool_)
    return float(journal_rows.numbers(table["at"], np.float64)[is_retry].max(initial=0.0))


def _warn_damaged(error: CorruptPart) -> None:
    _log.warning("%s. It is left out, and what it held is asked for again", error)
