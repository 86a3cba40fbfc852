"""A cache of replies to questions, stored as a journal."""

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
"""Name of the journal for all dialogues that answer questions."""

FLUSH_S = 2.0
"""Maximum delay before added rows are written, and minimum time between two writes."""
FLUSH_ROWS = 4096
"""Number of pending rows that are written immediately at the end of an answer."""
MAX_PENDING = 16_384
"""Maximum number of pending rows while writes fail; further rows are dropped."""
MERGE_FROM_PARTS = 256
"""Small parts are merged once there are this many."""
MERGE_FROM_PARTS_AT_END = 8
"""Small parts are merged at the end of a batch if there are this many."""
CHECK_AFTER_PARTS = 64
"""Parts that this process writes between two checks whether to merge."""

_log = logging.getLogger(__name__)


class ReplyCache:
    """The reply cache of a store, for single questions or a batch. Several processes may write to it.

    It is loaded on first use. Added rows are visible immediately and written within FLUSH_S. Memory contains
    the unwritten rows and an index of the others, about 21 bytes per reply. `failure` says why the last write
    failed.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._index: JournalIndex | None = None
        self._writer = JournalWriter(store, JOURNAL, f"cache-{uuid.uuid4().hex[:12]}", self._index_written)
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
                self._unchecked_parts = CHECK_AFTER_PARTS if self._index.n_parts >= MERGE_FROM_PARTS else 0
            index = self._index
            added = {key: tuple(self._added.get(key, ())) for key in keys}
        written = index.lookup(keys)
        return {key: [*written.get(key, []), *added[key]] for key in keys}

    def refresh(self) -> None:
        """Load parts that other processes have written since the last load."""
        with self._lock:
            index = self._index
        if index is None:
            return
        try:
            reloaded = index.reload()
        except StoreError as e:
            _log.warning("Cannot load the replies that other processes added to the cache: %s", e)
            return
        with self._lock:
            # If this process wrote a part meanwhile, the reloaded index may lack it.
            self._index = reloaded if self._index is index else self._index

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
        """Write added rows at the end of an answer, unless the last write is recent: then a timer does it."""
        if time.monotonic() - self._written_at >= FLUSH_S or self._writer.pending >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write added rows. An error only sets `failure`, because the answer is already paid for."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        try:
            if self._writer.flush() is not None:
                self._written_at = time.monotonic()
                if self._unchecked_parts >= CHECK_AFTER_PARTS:
                    # Not a daemon thread, so the program does not exit before the merge is done.
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

    def _index_written(self, path: str, written: Sequence[JournalRow]) -> None:
        """Move written rows to the index."""
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
        except StoreError as e:  # for example, a batch has the lock; it merges at its end
            _log.info("Cannot merge the parts of the cache: %s", e)


def merge_small_parts(store: Store, check: Callable[[], object], at_least: int) -> None:
    """Merge the small parts of the journal if there are `at_least` this many. The caller must hold the lock.

    A failure is only logged, because it leaves the parts unchanged.
    """
    try:
        compaction.compact(store, JOURNAL, at_least=at_least, check=check)
    except StoreError as e:
        _log.warning("Cannot merge the parts of the cache, will try again later: %s", e)
