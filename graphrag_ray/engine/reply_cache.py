"""A journal of replies to questions, which answers the same requests again."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from graphrag_ray.base.errors import StoreError
from graphrag_ray.store import compaction, journal_rows, locks
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import JournalRow

JOURNAL = "answer"
"""Journal name of all dialogues of questions, whatever their phase."""

FLUSH_S = 2.0
"""Maximum delay before added rows are written, and minimum time between two parts."""
FLUSH_ROWS = 4096
"""Pending rows from which on they are written at the end of an answer without delay."""
MAX_PENDING = 16_384
"""Rows held while the storage accepts none; further rows are dropped."""
MERGE_FROM_PARTS = 256
"""Number of small parts from which on they are merged."""
MERGE_FROM_PARTS_AT_END = 8
"""The same at the end of a batch."""
CHECK_EVERY = 64
"""Parts that this process writes between two checks for MANY."""

_log = logging.getLogger(__name__)


class ReplyCache:
    """The journal of a store, for single questions or a batch. Several processes may write to it.

    It is loaded on first use. Added rows are found at once and written within FLUSH_S. In memory it holds
    unwritten rows and an index of the others, some 21 bytes per reply. `failure` says why the last write
    failed.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._index: JournalIndex | None = None
        self._writer = JournalWriter(store, JOURNAL, f"cache-{uuid.uuid4().hex[:12]}", self._note_written)
        self._added: dict[str, list[JournalRow]] = {}
        self._timer: threading.Timer | None = None
        self._written_at = -FLUSH_S
        self._unchecked_parts = 0
        self.failure = ""

    def lookup(self, keys: Sequence[str]) -> Mapping[str, list[JournalRow]]:
        """Read the rows of these items. Raises StoreError."""
        with self._lock:
            if self._index is None:
                self._index = JournalIndex.load(self.store, JOURNAL)
                self._unchecked_parts = CHECK_EVERY if self._index.n_parts >= MERGE_FROM_PARTS else 0
            index = self._index
            added = {key: tuple(self._added.get(key, ())) for key in keys}
        written = index.lookup(keys)
        return {key: [*written.get(key, []), *added[key]] for key in keys}

    def refresh(self) -> None:
        """Load the parts that other processes have written since."""
        with self._lock:
            index = self._index
        if index is None:
            return
        try:
            fresh = index.reloaded()
        except StoreError as e:
            _log.warning("Cannot read what other processes added to the cache: %s", e)
            return
        with self._lock:
            # If we wrote a part meanwhile, leave it to the next call.
            self._index = fresh if self._index is index else self._index

    def append(self, row: JournalRow) -> None:
        """Add a row. Raises ValueError if it is invalid."""
        row = journal_rows.validate(row)
        with self._lock:
            if self.failure and self._writer.pending >= MAX_PENDING:
                return
            self._added.setdefault(row.key, []).append(row)
            self._writer.append(row)
            self._schedule_flush()

    def flush_if_due(self) -> None:
        """Write added rows at the end of an answer, or leave them to the timer after a recent write."""
        if time.monotonic() - self._written_at >= FLUSH_S or self._writer.pending >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write added rows. An error only sets `failure`, since the answer is paid for."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        try:
            if self._writer.flush() is not None:
                self._written_at = time.monotonic()
                if self._unchecked_parts >= CHECK_EVERY:
                    # Not a daemon: no answer waits for the merge, but the end of the program does.
                    self._unchecked_parts = 0
                    threading.Thread(target=self._merge, name="cache").start()
            self.failure = ""
        except StoreError as e:
            self.failure = str(e)
            with self._lock:
                self._schedule_flush()

    def _schedule_flush(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(FLUSH_S, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def _note_written(self, path: str, written: Sequence[JournalRow]) -> None:
        """Move written rows from memory to the index."""
        with self._lock:
            if self._index is not None:
                self._index = self._index.with_part(path, written)
            for row in written:
                rows = self._added[row.key]
                rows.remove(row)
                if not rows:
                    del self._added[row.key]
            self._unchecked_parts += 1

    def _merge(self) -> None:
        try:
            if compaction.find_mergeable(self.store, JOURNAL, MERGE_FROM_PARTS):
                with locks.acquire(self.store, note="merging the parts of a cache") as lock:
                    merge_small_parts(self.store, lock.check, MERGE_FROM_PARTS)
        except StoreError as e:  # a batch that holds the lock merges them itself
            _log.info("Did not merge the parts of the cache: %s", e)


def merge_small_parts(store: Store, check: Callable[[], object], at_least: int) -> None:
    """Merge the small parts of the journal if there are `at_least` as many. The caller must hold its lock.

    A failure is only logged, since it leaves the parts as they were.
    """
    try:
        compaction.compact(store, JOURNAL, at_least=at_least, check=check)
    except StoreError as e:
        _log.warning("Did not merge the parts of the cache; trying again next time: %s", e)
