"""A sweep's source, watched: whether the run may go on, and what it asked that was not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from graphrag_ray.engine.executor import ItemSource
from graphrag_ray.engine.work import Outcome, Row
from graphrag_ray.store.journal import JournalIndex

T = TypeVar("T")

KEYS_AT_ONCE = 10_000
"""Keys that are held until they are looked up together."""


class Guarded(Generic[T]):
    """A source that is checked whenever it is asked. It counts the items that the journal did not answer
    before, and tells why the first one failed: nobody need wait for the end of a stage that is in vain."""

    def __init__(
        self,
        source: ItemSource[T],
        check: Callable[[], None],
        index: JournalIndex,
        tell_failure: Callable[[str], None],
    ) -> None:
        self._source = source
        self._check = check
        self._index = index
        self._tell_failure: Callable[[str], None] | None = tell_failure
        self._keys: list[str] = []
        self._answered = 0

    @property
    def total(self) -> int | None:
        # Asked for a few times a second, also while all items wait for their first calls and none ends.
        self._check()
        return self._source.total

    def take(self) -> list[Row] | None:
        self._check()
        return self._source.take()

    def finished(self, number: int, outcome: Outcome[T]) -> None:
        self._check()
        if outcome.key and outcome.status == "complete":
            self._keys.append(outcome.key)
            if len(self._keys) >= KEYS_AT_ONCE:
                self.answered()
        elif outcome.error and self._tell_failure:
            self._tell_failure(outcome.error)
            self._tell_failure = None
        self._source.finished(number, outcome)

    def answered(self) -> int:
        """Items completed so far that had no end in the journal."""
        self._answered += int((~self._index.is_done(self._keys)).sum())
        self._keys.clear()
        return self._answered
