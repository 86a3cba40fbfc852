"""An item source for coroutines, each of which submits dialogues and awaits their outcomes.

This way the code that answers one question can answer many concurrently: all dialogues go through one sweep,
with its limits, journal and budget. The coroutines run in their own event loop; the sweep takes items in its
own thread.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from graphrag_ray.base.messages import Dialogue
from graphrag_ray.engine.dialogue_runner import DialogueRunner
from graphrag_ray.engine.work import Outcome, Row, Work, replay_outcomes
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

TAKE_BATCH = 64
ITEM, LABEL = "item", "label"


class Item:
    """A dialogue that can be started. Its repr is its key, so `work.row_key` is the same in every run."""

    def __init__(self, start: Callable[[], Dialogue[Any]]) -> None:
        self.start = start
        self.key = DialogueRunner(start()).key

    def __repr__(self) -> str:
        return self.key


def start_item(store: Store, row: Row) -> Dialogue[Any]:
    """`Work.start` for the rows of a feed."""
    item: Item = row[ITEM]
    return item.start()


def label_item(row: Row) -> tuple[str, str]:
    """`Work.label` for the rows of a feed."""
    return str(row[LABEL]), ""


class Feed:
    """An item source backed by a priority queue of dialogues, lowest `order` first.

    Coroutines call `ask`; the sweep calls `take` and `on_finished`.

    Attributes:
        total: Expected number of items, for progress displays, or None if it is unknown.
    """

    def __init__(self, work: Work[Any], store: Store, index: JournalIndex) -> None:
        self._work, self._store, self._index = work, store, index
        self._lock = threading.Lock()
        self._ready: list[tuple[int, int, Row, asyncio.Future[Outcome[Any]]]] = []
        self._taken: dict[int, asyncio.Future[Outcome[Any]]] = {}
        self._pending: dict[str, asyncio.Future[Outcome[Any]]] = {}
        self._added, self._numbers = count(), count()
        self._closed = False
        self._failure: BaseException | None = None
        self.total: int | None = None

    async def ask(
        self,
        order: int,
        name: str,
        start: Sequence[Callable[[], Dialogue[Any]]],
        on_queued: Callable[[], None] = lambda: None,
    ) -> list[Outcome[Any]]:
        """Run dialogues and return their outcomes.

        Journalled replies are reused, and equal dialogues run once. `on_queued` is called as soon as the
        dialogues are queued.
        """

        def look_up() -> list[tuple[Row, Outcome[Any]]]:
            rows: list[Row] = [{ITEM: Item(s), LABEL: name} for s in start]
            return replay_outcomes(self._work, self._store, self._index, rows)

        results: list[Outcome[Any] | asyncio.Future[Outcome[Any]]] = []
        for row, outcome in await asyncio.to_thread(look_up):
            key = row[ITEM].key
            # A dialogue without a key failed before its first request.
            if outcome.status not in ("open", "retry") or not key:
                results.append(outcome)
                continue
            if key not in self._pending:
                future: asyncio.Future[Outcome[Any]] = asyncio.get_running_loop().create_future()
                self._pending[key] = future
                future.add_done_callback(partial(self._resolved, key))
                with self._lock:
                    heapq.heappush(self._ready, (order, next(self._added), row, future))
            results.append(asyncio.shield(self._pending[key]))
        on_queued()
        return [result if isinstance(result, Outcome) else await result for result in results]

    def _resolved(self, key: str, future: asyncio.Future[Outcome[Any]]) -> None:
        del self._pending[key]

    @property
    def waiting(self) -> int:
        """Number of items that the sweep has not taken yet."""
        with self._lock:
            return len(self._ready)

    def close(self, failure: BaseException | None = None) -> None:
        """Stop accepting items. With a `failure`, the sweep ends by raising it."""
        with self._lock:
            self._closed, self._failure = True, failure

    def take(self) -> list[Row] | None:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            rows: list[Row] = []
            while self._ready and len(rows) < TAKE_BATCH:
                _, _, row, future = heapq.heappop(self._ready)
                self._taken[next(self._numbers)] = future
                rows.append(row)
            return rows if rows or not self._closed else None

    def on_finished(self, number: int, outcome: Outcome[Any]) -> None:
        future = self._taken.pop(number)

        def resolve() -> None:
            if not future.done():
                future.set_result(outcome)

        with suppress(RuntimeError):  # the loop is closed, so nobody is waiting
            future.get_loop().call_soon_threadsafe(resolve)
