"""A worker actor: runs dialogues, many at once, and journals every turn within seconds.

The driver calls it (`ray_executor.py`), one call at a time: it brings items and takes back what is
journalled.
Between calls a worker goes on with what it has.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import ray

from graphrag_ray.base import logs
from graphrag_ray.base.errors import FatalCallError
from graphrag_ray.base.logs import Logging
from graphrag_ray.base.messages import EmbeddingRequest, Reply, Request
from graphrag_ray.engine.drive import Driver
from graphrag_ray.engine.gateways import DRAIN_S, Gate, Keeper, Models, open_gateway
from graphrag_ray.engine.ray.limiter_actors import RayLimiter
from graphrag_ray.engine.work import (
    BEGUN_TOGETHER,
    WAITED_FOR_S,
    Asking,
    Outcome,
    Row,
    Work,
    begin,
    run_item,
)
from graphrag_ray.llm.accounting import Accounts, InFlight
from graphrag_ray.llm.model_client import Called
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import JournalRow

_log = logging.getLogger(__name__)

Begun: TypeAlias = asyncio.Future[list[tuple[Driver[Any], list[JournalRow]]]]

LOOK_S = 0.05
"""How long a call waits for news, and how often the journal is looked after."""
CALLS_S = 400
"""Calls a second, of all workers together, that the driver can make. Many workers are called less often."""
LONGEST_LOOK_S = 0.5
IDLE_LOOK_S = 0.2
"""The same where the driver had no more items and nothing has ended: model calls are only waited for."""
UNCALLED_S = 5.0
"""A worker that has not been called for so long sends nothing more until it is. One that the driver cannot
reach is started again in the end: by then most of what it had in flight is answered and journalled."""
MOST_WAITING = 32
"""Items of a worker that wait for a call, where the order of items matters."""

current_item: ContextVar[int] = ContextVar("current_item")
"""The number of the item that a task works on, and all that it starts."""


@dataclass(frozen=True)
class WorkerSettings:
    """Plain values only: constructor arguments outlive restarts, and hold no secret."""

    name: str
    store: Store
    models: Models
    flush_s: float
    limiters: str
    logging: Logging | None = None


@dataclass
class WorkerReport:
    """What a worker answers.

    finished   items whose turns are journalled
    accounts   of the calls since the last report
    free       items that it can take
    unasked    items that it hands back since it is to leave; nothing was asked for them
    lag_s      for how long it has had something that is not journalled
    """

    finished: list[tuple[int, Outcome[Any]]] = field(default_factory=list)
    accounts: Accounts = field(default_factory=Accounts)
    free: int = 0
    unasked: list[int] = field(default_factory=list)
    in_flight: InFlight = field(default_factory=InFlight)
    fatal: FatalCallError | None = None
    lag_s: float = 0.0


@dataclass
class SentItems(InFlight):
    """What is in flight, with the items that it is for. An embedding call counts for one of its items.

    items   how many calls of each are in flight
    begun   items that ever had one, until somebody takes them out
    """

    items: Counter[int] = field(default_factory=Counter)
    begun: set[int] = field(default_factory=set)

    def add(self, other: InFlight, sign: Literal[1, -1] = 1) -> None:
        super().add(other, sign)
        if (item := current_item.get(None)) is None:
            return
        if sign > 0:
            self.begun.add(item)
        self.items[item] += sign * other.calls
        if not self.items[item]:
            del self.items[item]


class Worker:
    def __init__(self, settings: WorkerSettings) -> None:
        logs.follow(settings.logging)
        self._settings = settings
        self._limiter = RayLimiter(settings.limiters, settings.name, settings.models.online)
        self._last: tuple[int, asyncio.Future[WorkerReport | None]] | None = None
        self._session: WorkerSession | None = None

    async def ask(self, number: int, session: int, method: str, *args: Any) -> WorkerReport | None:
        """Carry out the driver's calls, each once: where a connection breaks a call comes again, and gets the
        answer that was lost.

        number: of the call; session: the number of the call that began it. Returns None where the worker does
        not know the session, since its process has died meanwhile.
        """
        if self._last is None or number > self._last[0]:
            self._last = number, asyncio.ensure_future(self._carry_out(session, method, args))
        return await asyncio.shield(self._last[1]) if number == self._last[0] else None

    async def _carry_out(self, session: int, method: str, args: tuple[Any, ...]) -> WorkerReport | None:
        if method == "begin":
            if self._session is not None:  # a sweep that was broken off
                with suppress(Exception):
                    await self._session.end(0.0)
            await self._limiter.start_afresh()
            self._session = WorkerSession(session, self._settings, self._limiter, *args)
            return await self._session.begin()
        if self._session is None or self._session.number != session:
            return None
        report: WorkerReport = await getattr(self._session, method)(*args)
        return report


class WorkerSession:
    """One worker's part in one sweep. keys: values of environment variables that this node may lack."""

    def __init__(
        self,
        number: int,
        settings: WorkerSettings,
        limiter: RayLimiter,
        work: Work[Any],
        index: JournalIndex,
        keys: Mapping[str, str],
    ) -> None:
        self.number, self.settings, self.limiter = number, settings, limiter
        self.work, self.index, self.keys = work, index, keys
        # No two lives of a worker may write under one name.
        self.writer = JournalWriter(settings.store, work.name, f"{settings.name}-{uuid.uuid4().hex[:8]}")
        self.gate = Gate(limiter)
        self.keeper = Keeper(self.writer, self.gate)
        self.gateway = AsyncExitStack()
        self.accounts, self.sent = Accounts(), SentItems()
        self.running: dict[int, asyncio.Task[None]] = {}
        self.unflushed: list[tuple[int, Outcome[Any]]] = []
        self.journalled: list[tuple[int, Outcome[Any]]] = []
        self.news = asyncio.Event()
        self.fatal: FatalCallError | None = None
        self.error: Exception | None = None
        self.last_loss = 0
        self.reading: tuple[int, asyncio.Future[JournalIndex]] | None = None
        self.hungry = True
        self.flushed_at = self.called_at = time.monotonic()
        self.workers = 1
        self.ending: asyncio.Future[WorkerReport] | None = None

    async def begin(self) -> WorkerReport:
        logs.hide(self.keys.values())
        logs.about(self.work.name)
        logs.event(_log, "worker joined", worker=self.settings.name)
        opened = open_gateway(
            self.settings.models,
            self.gate,
            self.accounts.add,
            self.keys.get,
            in_flight=self.sent,
            # Nothing more was to be had, and all that was is sent.
            at_the_end=lambda: self.hungry and len(self.running) <= len(self.sent.items),
        )
        ask = await self.gateway.enter_async_context(opened)

        async def marking(request: Request, stage: str) -> Called[Reply]:
            if isinstance(
                request, EmbeddingRequest
            ):  # packed: once asked for, it may be in flight with others
                self.sent.begun.add(current_item.get())
            return await ask(request, stage)

        self.asking = Asking(marking, self.writer.append, self.index.now)
        self.journalling = asyncio.ensure_future(self._journal())
        return self._report()

    async def exchange(
        self, items: list[tuple[int, Row]], losses: Mapping[int, int], workers: int
    ) -> WorkerReport:
        """Take items; report when there is news, or soon.

        losses: for items that were lost with a worker, the number of the last such loss. What that worker
        journalled is not in a journal that was read before
        workers: that share the work
        """
        if self.error is not None:
            await self.end(DRAIN_S)
            raise self.error
        self.called_at = time.monotonic()
        self.gate.go_on("the driver")
        self.hungry, self.workers = not items, workers
        self.limiter.holders = workers
        # Items that a lost worker had wait until the journal is read again; all others begin.
        again = [item for item in items if losses.get(item[0], 0) > self.last_loss]
        others = [item for item in items if losses.get(item[0], 0) <= self.last_loss]
        for some in (others, again):
            for at in range(0, len(some), BEGUN_TOGETHER):
                together = some[at : at + BEGUN_TOGETHER]
                self._begin(together, max(losses.get(number, 0) for number, _ in together))
        if (self.running or self.unflushed) and not self.journalled:
            self.news.clear()
            look_s = IDLE_LOOK_S if self.hungry and not self.unflushed else LOOK_S
            with suppress(TimeoutError):
                look_s = max(look_s, min(LONGEST_LOOK_S, workers / CALLS_S))
                await asyncio.wait_for(self.news.wait(), look_s)
        return self._report()

    async def leave(self) -> WorkerReport:
        """Send nothing more, and hand back what has not begun: others can begin it meanwhile."""
        self.gate.shut()
        unasked = [number for number in self.running if number not in self.sent.begun]
        await self._call_off(unasked)
        return self._report(unasked)

    async def end(self, drain_s: float) -> WorkerReport:
        """Send nothing more, wait so long for calls in flight, and journal all that was answered."""
        if self.ending is None:
            self.ending = asyncio.ensure_future(self._end(drain_s))
        return await asyncio.shield(self.ending)

    async def _end(self, drain_s: float) -> WorkerReport:
        try:
            await self.gate.drain(drain_s, self.writer.flush)
        finally:
            self.journalling.cancel()
            await asyncio.gather(self.journalling, return_exceptions=True)
            await self._call_off(list(self.running))
            self.limiter.send()
            await self.gateway.aclose()  # calls that are given up at the very end may be billed, too
            await self.keeper.close()
        self.journalled += self.unflushed
        return self._report()

    async def _call_off(self, numbers: Iterable[int]) -> None:
        tasks = [self.running[number] for number in numbers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _journal(self) -> None:
        """Write down what comes back, whether the driver calls or not."""
        while self.error is None:
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - self.called_at > UNCALLED_S:
                self.gate.hold("the driver")
            due_s = self.settings.flush_s
            if self.unflushed and self.hungry:  # somebody may wait for what is done here
                due_s = min(due_s, WAITED_FOR_S) if self.work.returns else due_s
                due_s = due_s if self.running else 0.0
            if time.monotonic() - self.flushed_at < due_s:
                continue
            finished, self.unflushed = self.unflushed, []
            try:
                await self.keeper.flush()
            except Exception as e:  # noqa: BLE001 - raised again by the next call
                self.error = self.error or e
            else:
                self.journalled += finished
                self.flushed_at = time.monotonic()
            if finished or self.error:
                self.news.set()

    def _report(self, unasked: Iterable[int] = ()) -> WorkerReport:
        places = self.settings.models.places(self.work.name, self.workers)
        free = 0 if self.fatal else max(0, places - len(self.running))
        if self.work.returns:
            # Items that others wait for overtake in the source's queue, not in ours: ours is kept short.
            waiting = len(self.running) - len(self.sent.items)
            free = min(free, max(0, MOST_WAITING - waiting))
        in_flight = InFlight.sum([self.sent])
        journalled, self.journalled = self.journalled, []
        accounts, lag_s = self.accounts.take(), self.keeper.lag_s
        return WorkerReport(journalled, accounts, free, list(unasked), in_flight, self.fatal, lag_s)

    def _begin(self, items: list[tuple[int, Row]], loss: int) -> None:
        begun = asyncio.ensure_future(self._begun([row for _, row in items], loss))  # noqa: RUF006 - held below
        for place, (number, _) in enumerate(items):
            task = asyncio.ensure_future(self._run_item(number, begun, place))
            self.running[number] = task
            task.add_done_callback(partial(self._ended, number))

    async def _begun(self, rows: list[Row], loss: int) -> list[tuple[Driver[Any], list[JournalRow]]]:
        """loss: what the lost worker journalled may have come after our look at the journal, and is paid for:
        it is read again."""
        index = self.index
        if loss > self.last_loss:
            if self.reading is None or self.reading[0] < loss:
                self.reading = loss, asyncio.ensure_future(asyncio.to_thread(self.index.again))
            loss, reading = self.reading
            index = await asyncio.shield(reading)
            if loss > self.last_loss:
                self.index, self.last_loss = index, loss
        return await asyncio.to_thread(begin, self.work, self.settings.store, index, rows)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self.running[number]
        self.sent.begun.discard(number)
        if not self.running:
            self.news.set()

    async def _run_item(self, number: int, begun: Begun, place: int) -> None:
        current_item.set(number)
        try:
            driver, rows = (await begun)[place]
            outcome = await run_item(self.work.name, driver, rows, self.asking)
        except FatalCallError as e:
            self.fatal = self.fatal or e
        except Exception as e:  # noqa: BLE001 - raised again by the next call: a lease must not hang for ever
            self.error = self.error or e
        else:
            if not self.work.returns and outcome.status == "complete":
                outcome = Outcome(outcome.key, "complete", turns=outcome.turns)
            self.unflushed.append((number, outcome))
            return
        self.news.set()


WorkerActor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Worker)
