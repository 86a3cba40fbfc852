"""A sweep whose items come from coroutines: each asks for dialogues and waits for what becomes of them.

So what answers one question can answer many at once: all that they ask for goes through one sweep, with its
limits, its journal and its budget. The coroutines run in an event loop of their own; the sweep takes items
from its thread.
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
from graphrag_ray.engine.drive import Driver
from graphrag_ray.engine.work import Outcome, Row, Work, outcomes
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

TAKEN_TOGETHER = 64
ITEM, LABEL = "item", "label"


class Item:
    """A dialogue, by how it is started. It shows itself by its key: so it has the same name in every run."""

    __slots__ = ("key", "start")

    def __init__(self, start: Callable[[], Dialogue[Any]]) -> None:
        self.start = start
        self.key = Driver(start()).key

    def __repr__(self) -> str:
        return self.key


def started(store: Store, row: Row) -> Dialogue[Any]:
    """`Work.start` of a feed's rows."""
    item: Item = row[ITEM]
    return item.start()


def label(row: Row) -> tuple[str, str]:
    """`Work.label` of a feed's rows."""
    return str(row[LABEL]), ""


class Feed:
    """The items that wait to be taken, those of the lowest order first, and who waits for each.

    total   for people: what they will be together; None: not known
    """

    def __init__(self, work: Work[Any], store: Store, index: JournalIndex) -> None:
        self._work, self._store, self._index = work, store, index
        self._lock = threading.Lock()
        self._ready: list[tuple[int, int, Row, asyncio.Future[Outcome[Any]]]] = []
        self._taken: dict[int, asyncio.Future[Outcome[Any]]] = {}
        self._asked: dict[str, asyncio.Future[Outcome[Any]]] = {}
        self._added, self._numbers = count(), count()
        self._closed = False
        self._failure: BaseException | None = None
        self.total: int | None = None

    # For the coroutines.

    async def ask(
        self,
        order: int,
        name: str,
        start: Sequence[Callable[[], Dialogue[Any]]],
        asked: Callable[[], None] = lambda: None,
    ) -> list[Outcome[Any]]:
        """What becomes of some dialogues. What the journal answers is not asked for, and of equal ones that
        wait at the same time one is.

        order: of whoever asks, among others; name: for the list of failures; asked: called when they wait
        """
        known = await asyncio.to_thread(self._known, name, start)
        waited_for: list[Outcome[Any] | asyncio.Future[Outcome[Any]]] = []
        for row, outcome in known:
            key = row[ITEM].key
            if (
                outcome.status not in ("open", "retry") or not key
            ):  # without one it never came to ask anything
                waited_for.append(outcome)
                continue
            if key not in self._asked:
                waits: asyncio.Future[Outcome[Any]] = asyncio.get_running_loop().create_future()
                self._asked[key] = waits
                waits.add_done_callback(partial(self._answered, key))
                with self._lock:
                    heapq.heappush(self._ready, (order, next(self._added), row, waits))
            waited_for.append(asyncio.shield(self._asked[key]))
        asked()
        return [found if isinstance(found, Outcome) else await found for found in waited_for]

    def _answered(self, key: str, waits: asyncio.Future[Outcome[Any]]) -> None:
        del self._asked[key]

    @property
    def waiting(self) -> int:
        """Items that nobody has taken yet."""
        with self._lock:
            return len(self._ready)

    def close(self, failure: BaseException | None = None) -> None:
        """There will be no more items. failure: and why the sweep shall end with it."""
        with self._lock:
            self._closed, self._failure = True, failure

    # For the sweep.

    def take(self) -> list[Row] | None:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            rows: list[Row] = []
            while self._ready and len(rows) < TAKEN_TOGETHER:
                _, _, row, waits = heapq.heappop(self._ready)
                self._taken[next(self._numbers)] = waits
                rows.append(row)
            return rows if rows or not self._closed else None

    def finished(self, number: int, outcome: Outcome[Any]) -> None:
        waits = self._taken.pop(number)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            waits.get_loop().call_soon_threadsafe(_tell, waits, outcome)

    def _known(
        self, name: str, start: Sequence[Callable[[], Dialogue[Any]]]
    ) -> list[tuple[Row, Outcome[Any]]]:
        """Each as a row, and what the journal says of it."""
        rows: list[Row] = [{ITEM: Item(s), LABEL: name} for s in start]
        return outcomes(self._work, self._store, self._index, rows)


def _tell(waits: asyncio.Future[Outcome[Any]], outcome: Outcome[Any]) -> None:
    if not waits.done():
        waits.set_result(outcome)
