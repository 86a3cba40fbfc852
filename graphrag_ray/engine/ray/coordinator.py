"""The coordinating actor of one sweep: takes items from the driver, leases them to workers.

Workers pull. An item is finished when its turns are journalled; a worker hands back what it finished
with its next lease call. The leases of a worker that died are handed out again. A coordinator that dies is
replaced by the driver, which has all that is open (`sweep.py`). Driver and workers call it through a
`once.ActorClient`: an answer that is lost on its way is repeated.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import ray

from graphrag_ray.base.errors import FatalCallError
from graphrag_ray.engine.gateways import DRAIN_S
from graphrag_ray.engine.leases import LeaseBook
from graphrag_ray.engine.ray.once import Answers, once
from graphrag_ray.engine.work import Outcome, Row
from graphrag_ray.llm.accounting import Accounts, InFlight

LONG_POLL_S = 0.25

SILENCE_S = 10.0
"""Of a driver that is paused: nothing is handed out after it, before others may take it for dead
(`locks.STALE_S`) and work on the same items."""


@dataclass
class Exchange:
    """What the driver learns: outcomes since the last exchange, and how full the queue is.

    given_up: items that kill whoever works on them, and how many died of each; for the driver to journal
    lag_s: for how long a worker has had something that is not journalled
    """

    outcomes: list[tuple[int, Outcome[Any]]]
    given_up: list[tuple[int, Row, int]]
    waiting: int
    open: int
    in_flight: InFlight
    reissued: int
    accounts: Accounts
    fatal: FatalCallError | None
    lag_s: float = 0.0


@dataclass
class WorkerReport:
    """What a worker hands back with a lease call. running: items it works on; lag_s: for how long it has had
    something that is not journalled."""

    finished: list[tuple[int, Outcome[Any]]] = field(default_factory=list)
    accounts: Accounts = field(default_factory=Accounts)
    running: int = 0
    in_flight: InFlight = field(default_factory=InFlight)
    fatal: FatalCallError | None = None
    lag_s: float = 0.0


class End(Enum):
    """How a worker's part in a sweep ends.

    OVER     the sweep is over
    LEFT     the worker was told to leave: what it still has is handed back
    CUT_OFF  worker and coordinator lost sight of each other: what the worker has is not its own any more
    """

    OVER = "over"
    LEFT = "left"
    CUT_OFF = "cut off"


@dataclass
class Leased:
    """Items for a worker.

    losses      of items that are leased again: the number of the last loss of a worker that had it. What that
                worker journalled is not in a journal that was read before
    workers     that share the work now
    end         the worker's part is over; None: it goes on
    drain_s     then what is in flight is waited for so long
    """

    items: list[tuple[int, Row]]
    losses: dict[int, int] = field(default_factory=dict)
    workers: int = 1
    end: End | None = None
    drain_s: float = 0.0


class Coordinator:
    def __init__(self) -> None:
        self.answers = Answers()
        self._book: LeaseBook[Row] = LeaseBook()
        self._outcomes: list[tuple[int, Outcome[Any]]] = []
        self._accounts: dict[str, Accounts] = {}
        self._in_flight: dict[str, InFlight] = {}
        self._unjournalled_since: dict[str, float] = {}
        self._fatal: FatalCallError | None = None
        self._drain_s = DRAIN_S
        self._closed = False
        self._affordable: int | None = None
        self._workers = 1
        self._leaving: dict[str, float] = {}
        self._keys: dict[str, str] = {}
        self._heard_at = time.monotonic()
        self._items = asyncio.Event()
        self._news = asyncio.Event()

    @once
    async def exchange(
        self,
        items: list[tuple[int, Row]],
        closed: bool,
        low_water: int,
        patience_s: float,
        affordable: int | None = None,
        workers: int = 1,
    ) -> Exchange:
        """The driver's call: add items, learn outcomes. affordable: how many items may have been leased
        by now; None: any number. workers: that share the work.

        Returns as soon as there is news, else after `patience_s`; at once when items just given leave
        room for more.
        """
        self._heard_at = time.monotonic()
        self._workers = workers
        self._book.add(items)
        self._closed = self._closed or closed
        if affordable != self._affordable:
            self._affordable = affordable
            self._items.set()
        if items or closed:
            self._items.set()
        hungry = bool(items) and not self._closed and self._book.waiting < low_water
        if not self._outcomes and not self._fatal and not hungry and not self._book.condemned:
            self._news.clear()
            await _wait(self._news, patience_s)
        outcomes, self._outcomes = self._outcomes, []
        given_up = self._book.give_up()
        if given_up:
            self._items.set()
        return Exchange(
            outcomes,
            given_up,
            self._book.waiting,
            self._book.open,
            InFlight.sum(self._in_flight.values()),
            self._book.reissued,
            Accounts.merged(self._accounts.values()),
            self._fatal,
            max((time.monotonic() - since for since in self._unjournalled_since.values()), default=0.0),
        )

    @once
    async def hold_keys(self, keys: dict[str, str]) -> None:
        """Keys that maybe only the driver's environment has, kept in memory for workers that ask."""
        self._keys |= keys

    @once
    async def key(self, variable: str) -> str | None:
        return self._keys.get(variable)

    @once
    async def register(self, worker: str) -> int:
        """A worker (again): its number of this incarnation."""
        incarnation = self._book.register(worker)
        self._in_flight[worker] = InFlight()
        self._note_lag(worker, 0.0)
        self._tell_losses()
        return incarnation

    @once
    async def lease(self, worker: str, incarnation: int, places: int, report: WorkerReport) -> Leased:
        """A worker's call: hand back what is journalled, get items."""
        self._note(worker, incarnation, report)
        if (end := self._end(worker, incarnation)) is not None:
            return end
        given = self._book.lease(worker, incarnation, self._affords(places))
        if not given and places and not report.running:
            self._items.clear()
            await _wait(self._items, LONG_POLL_S)
            if (end := self._end(worker, incarnation)) is not None:
                return end
            given = self._book.lease(worker, incarnation, self._affords(places))
        if given:
            self._news.set()
        return Leased(given, self._book.losses_of(number for number, _ in given), self._workers)

    @once
    async def retire(self, workers: dict[str, float]) -> None:
        """The driver's call: these workers shall leave, each within so many seconds."""
        now = time.monotonic()
        self._leaving |= {worker: now + seconds for worker, seconds in workers.items()}
        self._items.set()

    @once
    async def hand_back(self, worker: str, incarnation: int, items: list[int]) -> None:
        """A worker that leaves: of these items it has asked nothing."""
        if self._book.is_current(worker, incarnation):
            self._note_lag(worker, 0.0)  # from now on it journals each second, and says nothing meanwhile
            self._book.hand_back(worker, items, begun=False)
            self._items.set()

    @once
    async def leave(self, worker: str, incarnation: int, report: WorkerReport) -> None:
        """A worker's last word: what is left is for others, who read first what it journalled. Where the
        sweep is over, it is for the next run."""
        self._note(worker, incarnation, report)
        if self._book.is_current(worker, incarnation):
            self._let_go(worker)

    @once
    async def left(self, worker: str) -> None:
        """The driver's call: a worker journalled what it has and has gone, whether it could say so or not.
        Others read that first."""
        self._let_go(worker)

    def _let_go(self, worker: str) -> None:
        self._book.leave(worker)
        self._in_flight.pop(worker, None)
        self._note_lag(worker, 0.0)
        self._items.set()

    def _note(self, worker: str, incarnation: int, report: WorkerReport) -> None:
        for number, outcome in report.finished:
            if self._book.finish(number):
                self._outcomes.append((number, outcome))
        self._hand_in(worker, incarnation, report.accounts)
        if self._book.is_current(worker, incarnation):  # a life that is over has nothing in flight
            self._in_flight[worker] = report.in_flight
            self._note_lag(worker, report.lag_s)
        self._fatal = self._fatal or report.fatal
        if report.finished or report.fatal:
            self._news.set()

    def _end(self, worker: str, incarnation: int) -> Leased | None:
        """Where a worker's part is over."""
        if self._over():
            self._items.set()
            return Leased([], end=End.OVER, drain_s=self._drain_s)
        if not self._book.is_current(worker, incarnation):
            return Leased([], end=End.CUT_OFF, drain_s=DRAIN_S)
        if worker in self._leaving:
            left_s = max(0.0, self._leaving[worker] - time.monotonic())
            return Leased([], end=End.LEFT, drain_s=left_s)
        return None

    @once
    async def lost(self, worker: str) -> None:
        """A worker will not come back: its leases are handed out again."""
        self._book.forget(worker)
        self._in_flight.pop(worker, None)
        self._note_lag(worker, 0.0)
        self._tell_losses()

    @once
    async def hand_in(self, worker: str, incarnation: int, accounts: Accounts) -> None:
        """What a worker asked for since it last said so."""
        self._hand_in(worker, incarnation, accounts)

    def _hand_in(self, worker: str, incarnation: int, accounts: Accounts) -> None:
        name = f"{worker}/{incarnation}"
        self._accounts[name] = Accounts.merged([self._accounts.get(name, Accounts()), accounts])

    @once
    async def accounts(self) -> Accounts:
        """All that was handed in."""
        return Accounts.merged(self._accounts.values())

    @once
    async def stop(self, drain_s: float) -> None:
        """No more leases: the driver ends the sweep early. drain_s: how long workers wait for calls in
        flight."""
        self._fatal = self._fatal or FatalCallError("stopped")
        self._drain_s = drain_s
        self._items.set()

    def _note_lag(self, worker: str, lag_s: float) -> None:
        """A worker whose storage does not take its journal says nothing until it does: the lag grows."""
        if lag_s > 0:
            self._unjournalled_since[worker] = time.monotonic() - lag_s
        else:
            self._unjournalled_since.pop(worker, None)

    def _tell_losses(self) -> None:
        self._items.set()
        if self._book.condemned:
            self._news.set()

    def _affords(self, places: int) -> int:
        if time.monotonic() - self._heard_at > SILENCE_S:
            return 0
        if self._affordable is None:
            return places
        return max(0, min(places, self._affordable - self._book.finished - self._book.leased))

    def _over(self) -> bool:
        return self._fatal is not None or (self._closed and self._book.open == 0)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


CoordinatorActor = ray.remote(num_cpus=0, max_concurrency=1000)(Coordinator)
