"""Replies to questions, kept in a journal for whoever asks the same again."""

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
"""The name in a journal of all dialogues of questions, whichever phase of an answer they are."""

FLUSH_S = 2.0
"""What was added is written so soon; where answers follow each other, no part is written more often."""
FLUSH_ROWS = 4096
"""Rows that wait to be written; from so many on they wait no longer."""
MOST_WAITING = 16_384
"""Rows that are held for a storage that takes none; those that come then are not kept."""
MANY = 256
"""Small parts from which on they are merged."""
FEW = 8
"""The same at the end of a batch."""
LOOK_EVERY = 64
"""Parts that this process writes between looks whether there are as many."""

_log = logging.getLogger(__name__)


class ReplyCache:
    """The journal at a store: of single questions, or of a batch. Opened when it is first looked into; many
    may write to it at once. What is added is known at once, and written within FLUSH_S.

    In memory is what is not written yet, and the index of what is: some 21 bytes a reply.

    failure: why what was added could not be written the last time; "" where it could
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._index: JournalIndex | None = None
        self._writer = JournalWriter(store, JOURNAL, f"cache-{uuid.uuid4().hex[:12]}", self._note_written)
        self._added: dict[str, list[JournalRow]] = {}
        self._timer: threading.Timer | None = None
        self._written_at = -FLUSH_S
        self._not_looked = 0
        self.failure = ""

    def lookup(self, keys: Sequence[str]) -> Mapping[str, list[JournalRow]]:
        """The rows of these items. Reads the store. Raises StoreError."""
        with self._lock:
            if self._index is None:
                self._index = JournalIndex.load(self.store, JOURNAL)
                self._not_looked = LOOK_EVERY if self._index.n_parts >= MANY else 0
            index = self._index
            added = {key: tuple(self._added.get(key, ())) for key in keys}
        found = index.lookup(keys)
        return {key: [*found.get(key, []), *added[key]] for key in keys}

    def look_again(self) -> None:
        """Find what others have written since; of what is there, only that is read."""
        with self._lock:
            index = self._index
        if index is None:
            return
        try:
            fresh = index.again()
        except StoreError as e:
            _log.warning("what others wrote to the cache is not known yet: %s", e)
            return
        with self._lock:
            # Where a part of our own came in meanwhile, the next look will do.
            self._index = fresh if self._index is index else self._index

    def append(self, row: JournalRow) -> None:
        """Take a row. Raises ValueError for a bad one."""
        row = journal_rows.checked(row)
        with self._lock:
            if self.failure and self._writer.pending >= MOST_WAITING:
                return
            self._added.setdefault(row.key, []).append(row)
            self._writer.append(row)
            self._write_in(FLUSH_S)

    def settle(self) -> None:
        """At the end of an answer: write what was added, unless that was done just now; then it is soon."""
        if time.monotonic() - self._written_at >= FLUSH_S or self._writer.pending >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what was added. Where the storage does not take it, `failure` tells: nobody shall lose an
        answer that is paid for."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        try:
            if self._writer.flush() is not None:
                self._written_at = time.monotonic()
                if self._not_looked >= LOOK_EVERY:
                    # No answer waits for the merging; a program that ends does.
                    self._not_looked = 0
                    threading.Thread(target=self._merge, name="cache").start()
            self.failure = ""
        except StoreError as e:
            self.failure = str(e)
            with self._lock:
                self._write_in(FLUSH_S)

    def _write_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = threading.Timer(seconds, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def _note_written(self, path: str, written: Sequence[JournalRow]) -> None:
        """What stands in a part need not be kept beside it."""
        with self._lock:
            if self._index is not None:
                self._index = self._index.extended(path, written)
            for row in written:
                own = self._added[row.key]
                own.remove(row)
                if not own:
                    del self._added[row.key]
            self._not_looked += 1

    def _merge(self) -> None:
        try:
            if compaction.due(self.store, JOURNAL, MANY):
                with locks.acquire(self.store, note="merging the parts of a cache") as lock:
                    tidy(self.store, lock.check, MANY)
        except StoreError as e:  # a batch that has the lock merges them itself
            _log.info("the parts of the cache were not merged: %s", e)


def tidy(store: Store, check: Callable[[], object], at_least: int) -> None:
    """Merge the small parts of a journal of replies, where there are as many. For the holder of its lock.
    What fails is logged: the parts stand as they were."""
    try:
        compaction.compact(store, JOURNAL, at_least=at_least, check=check)
    except StoreError as e:
        _log.warning("the journal of replies was not tidied up; the next time it will be: %s", e)
