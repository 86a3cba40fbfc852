"""Replies to questions, kept in a journal for whoever asks the same again."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence

from graphrag_ray.errors import StoreError
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.rows import JournalRow

JOURNAL = "answer"
"""The name in a journal of all dialogues of questions, whichever phase of an answer they are."""


class ReplyCache:
    """The journal at a store: of single questions, or of a batch. Opened when it is first looked into; many
    may write to it at once. What is added is known at once, and written by `flush`.

    failure: why what was added could not be written the last time; "" where it could
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._index: JournalIndex | None = None
        self._writer = JournalWriter(store, JOURNAL, f"cache-{uuid.uuid4().hex[:12]}")
        self._added: dict[str, list[JournalRow]] = {}
        self.failure = ""

    def lookup(self, keys: Sequence[str]) -> Mapping[str, list[JournalRow]]:
        """The rows of these items. Reads the store. Raises StoreError."""
        with self._lock:
            if self._index is None:
                self._index = JournalIndex.load(self.store, JOURNAL)
            found = self._index.lookup(keys)
        return {key: [*found.get(key, []), *self._added.get(key, [])] for key in keys}

    def append(self, row: JournalRow) -> None:
        self._added.setdefault(row.key, []).append(row)
        self._writer.append(row)

    def flush(self) -> None:
        """Write what was added. Where the storage does not take it, `failure` tells: nobody shall lose an
        answer that is paid for."""
        try:
            self._writer.flush()
            self.failure = ""
        except StoreError as e:
            self.failure = str(e)
