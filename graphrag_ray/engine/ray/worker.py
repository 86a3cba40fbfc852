"""The worker actor: runs many dialogues concurrently and journals every turn within seconds.

The driver (`ray_executor.py`) makes one call at a time, which delivers items and collects journalled results.
Between calls a worker continues with the items it has.
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
from typing import Any, Literal

import ray

from graphrag_ray.base import logs
from graphrag_ray.base.errors import FatalCallError
from graphrag_ray.base.logs import LogConfig
from graphrag_ray.base.messages import EmbeddingRequest, Reply, Request
from graphrag_ray.engine.model_access import DRAIN_S, Gate, JournalGuard, Models, open_gateway
from graphrag_ray.engine.ray.limiter_actors import RayLimiter
from graphrag_ray.engine.work import (
    BEGIN_BATCH,
    URGENT_FLUSH_S,
    DialogueIO,
    Outcome,
    Row,
    StartedItems,
    Work,
    run_item,
    start_items,
)
from graphrag_ray.llm.accounting import Accounts, InFlight
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter

_log = logging.getLogger(__name__)

POLL_S = 0.05
"""How long a call waits for results, and the interval between checks whether to write the journal."""
DRIVER_CALLS_PER_S = 400
"""Calls a second that the driver can make to all workers. With many workers, each is called less often."""
MAX_POLL_S = 0.5
IDLE_POLL_S = 0.2
"""Replaces POLL_S while the driver has no more items and none has finished."""
DRIVER_TIMEOUT_S = 5.0
"""A worker that has not been called for this long pauses its requests until the next call. The driver
eventually restarts an unreachable worker; by then most calls in flight are answered and journalled."""
MAX_WAITING = 32
"""Maximum number of a worker's items without a call in flight, if the order of items matters."""

current_item: ContextVar[int] = ContextVar("current_item")
"""Number of the item that the current asyncio task works on. Inherited by tasks that it starts."""


@dataclass(frozen=True)
class WorkerSettings:
    """A worker's settings. They contain no secrets because Ray stores constructor arguments for restarts."""

    name: str
    store: Store
    models: Models
    journal_flush_s: float
    limiters: str
    logging: LogConfig | None = None


@dataclass
class WorkerReport:
    """A worker's answer to a call of the driver.

    Attributes:
        finished: Journalled items, with their outcomes.
        accounts: Calls made since the last report.
        free: Number of items that the worker can accept.
        not_begun: Items that a leaving worker hands back, because no request was sent for them.
        lag_s: Age of the oldest reply that is not journalled yet.
    """

    finished: list[tuple[int, Outcome[Any]]] = field(default_factory=list)
    accounts: Accounts = field(default_factory=Accounts)
    free: int = 0
    not_begun: list[int] = field(default_factory=list)
    in_flight: InFlight = field(default_factory=InFlight)
    fatal: FatalCallError | None = None
    lag_s: float = 0.0


@dataclass
class InFlightItems(InFlight):
    """Calls in flight by item, and items that ever had one. An embedding call counts for one of its items."""

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
        logs.follow_driver(settings.logging)
        self._settings = settings
        self._limiter = RayLimiter(settings.limiters, settings.name, settings.models.online)
        self._last: tuple[int, asyncio.Future[WorkerReport | None]] | None = None
        self._session: WorkerSession | None = None

    async def ask(self, number: int, session: int, method: str, *args: Any) -> WorkerReport | None:
        """Execute a numbered call of the driver once. If the same call comes again, return the same answer.

        `session` is the number of the call that began the session. Returns None if this process does not know
        the session because it was restarted.
        """
        if self._last is None or number > self._last[0]:
            self._last = number, asyncio.ensure_future(self._execute(session, method, args))
        return await asyncio.shield(self._last[1]) if number == self._last[0] else None

    async def _execute(self, session: int, method: str, args: tuple[Any, ...]) -> WorkerReport | None:
        if method == "begin":
            if self._session is not None:  # left over from an aborted sweep
                with suppress(Exception):
                    await self._session.end(0.0)
            await self._limiter.reset()
            self._session = WorkerSession(session, self._settings, self._limiter, *args)
            return await self._session.begin()
        if self._session is None or self._session.number != session:
            return None
        report: WorkerReport = await getattr(self._session, method)(*args)
        return report


class WorkerSession:
    """A worker's part in one sweep. `keys` contains environment variables that this node may lack."""

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
        # The suffix is random because a restarted worker must not overwrite its earlier parts.
        self.writer = JournalWriter(settings.store, work.name, f"{settings.name}-{uuid.uuid4().hex[:8]}")
        self.gate = Gate(limiter)
        self.guard = JournalGuard(self.writer, self.gate)
        self.gateway = AsyncExitStack()
        self.accounts, self.in_flight = Accounts(), InFlightItems()
        self.running: dict[int, asyncio.Task[None]] = {}
        self.unflushed: list[tuple[int, Outcome[Any]]] = []
        self.journalled: list[tuple[int, Outcome[Any]]] = []
        self.results_ready = asyncio.Event()
        self.fatal: FatalCallError | None = None
        self.error: Exception | None = None
        self.last_loss = 0
        self.reloading: tuple[int, asyncio.Future[JournalIndex]] | None = None
        self.starved = True
        self.flushed_at = self.called_at = time.monotonic()
        self.workers = 1
        self.ending: asyncio.Future[WorkerReport] | None = None

    async def begin(self) -> WorkerReport:
        logs.redact_values(self.keys.values())
        logs.set_item_context(self.work.name)
        logs.log_event(_log, "worker joined", worker=self.settings.name)
        gateway = open_gateway(
            self.settings.models,
            self.gate,
            self.accounts.add,
            self.keys.get,
            in_flight=self.in_flight,
            # True if the driver has no more items, and every item of this worker is in flight.
            nothing_queued=lambda: self.starved and len(self.running) <= len(self.in_flight.items),
        )
        ask = await self.gateway.enter_async_context(gateway)

        async def ask_and_mark_begun(request: Request, stage: str) -> CallResult[Reply]:
            # Embeddings share calls, so this item may be in flight in a call that counts for another item.
            if isinstance(request, EmbeddingRequest):
                self.in_flight.begun.add(current_item.get())
            return await ask(request, stage)

        self.io = DialogueIO(ask_and_mark_begun, self.writer.append, self.index.next_time)
        self.journalling = asyncio.ensure_future(self._journal())
        return self._report()

    async def exchange(
        self, items: list[tuple[int, Row]], losses: Mapping[int, int], workers: int
    ) -> WorkerReport:
        """Accept items, and report as soon as items finish, or after a short wait.

        `losses` contains the number of the last loss of each item that a lost worker had. A journal index
        that was loaded before that loss may lack that worker's replies.
        """
        if self.error is not None:
            await self.end(DRAIN_S)
            raise self.error
        self.called_at = time.monotonic()
        self.gate.resume("driver")
        self.starved, self.workers = not items, workers
        self.limiter.holders = workers
        # Items of a lost worker wait until the journal is reloaded. All others begin now.
        reissued = [item for item in items if losses.get(item[0], 0) > self.last_loss]
        others = [item for item in items if losses.get(item[0], 0) <= self.last_loss]
        for group in (others, reissued):
            for start in range(0, len(group), BEGIN_BATCH):
                batch = group[start : start + BEGIN_BATCH]
                self._begin(batch, max(losses.get(number, 0) for number, _ in batch))
        if (self.running or self.unflushed) and not self.journalled:
            self.results_ready.clear()
            poll_s = IDLE_POLL_S if self.starved and not self.unflushed else POLL_S
            with suppress(TimeoutError):
                poll_s = max(poll_s, min(MAX_POLL_S, workers / DRIVER_CALLS_PER_S))
                await asyncio.wait_for(self.results_ready.wait(), poll_s)
        return self._report()

    async def leave(self) -> WorkerReport:
        """Stop sending requests, and hand back items that have not begun, for other workers."""
        self.gate.shut()
        not_begun = [number for number in self.running if number not in self.in_flight.begun]
        await self._cancel(not_begun)
        return self._report(not_begun)

    async def end(self, drain_s: float) -> WorkerReport:
        """Stop sending requests, wait up to `drain_s` for calls in flight, and journal every reply."""
        if self.ending is None:
            self.ending = asyncio.ensure_future(self._end(drain_s))
        return await asyncio.shield(self.ending)

    async def _end(self, drain_s: float) -> WorkerReport:
        try:
            await self.gate.drain(drain_s, self.writer.flush)
        finally:
            self.journalling.cancel()
            await asyncio.gather(self.journalling, return_exceptions=True)
            await self._cancel(list(self.running))
            self.limiter.send()
            await self.gateway.aclose()  # before the report, because calls abandoned here may be billed
            await self.guard.close()
        self.journalled += self.unflushed
        return self._report()

    async def _cancel(self, numbers: Iterable[int]) -> None:
        tasks = [self.running[number] for number in numbers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _journal(self) -> None:
        """Journal replies as they arrive, whether or not the driver calls."""
        while self.error is None:
            await asyncio.sleep(POLL_S)
            if time.monotonic() - self.called_at > DRIVER_TIMEOUT_S:
                self.gate.pause("driver")
            due_s = self.settings.journal_flush_s
            if self.unflushed and self.starved:  # the next items may depend on these results
                due_s = min(due_s, URGENT_FLUSH_S) if self.work.needs_results else due_s
                due_s = due_s if self.running else 0.0
            if time.monotonic() - self.flushed_at < due_s:
                continue
            finished, self.unflushed = self.unflushed, []
            try:
                await self.guard.flush()
            except Exception as e:  # noqa: BLE001 - raised by the next call
                self.error = self.error or e
            else:
                self.journalled += finished
                self.flushed_at = time.monotonic()
            if finished or self.error:
                self.results_ready.set()

    def _report(self, not_begun: Iterable[int] = ()) -> WorkerReport:
        slots = self.settings.models.slots(self.work.name, self.workers)
        free = 0 if self.fatal else max(0, slots - len(self.running))
        if self.work.needs_results:
            # Urgent items can overtake others in the source's queue but not in this one, so keep it short.
            waiting = len(self.running) - len(self.in_flight.items)
            free = min(free, max(0, MAX_WAITING - waiting))
        in_flight = InFlight.sum([self.in_flight])
        journalled, self.journalled = self.journalled, []
        accounts, lag_s = self.accounts.take(), self.guard.lag_s
        return WorkerReport(journalled, accounts, free, list(not_begun), in_flight, self.fatal, lag_s)

    def _begin(self, items: list[tuple[int, Row]], loss: int) -> None:
        started = asyncio.ensure_future(self._start([row for _, row in items], loss))  # noqa: RUF006 - the tasks below refer to it
        for position, (number, _) in enumerate(items):
            task = asyncio.ensure_future(self._run_item(number, started, position))
            self.running[number] = task
            task.add_done_callback(partial(self._item_ended, number))

    async def _start(self, rows: list[Row], loss: int) -> StartedItems[Any]:
        """Start the dialogues of `rows`.

        If a worker was lost since the journal was loaded, reload it first to reuse that worker's replies.
        """
        index = self.index
        if loss > self.last_loss:
            if self.reloading is None or self.reloading[0] < loss:
                self.reloading = loss, asyncio.ensure_future(asyncio.to_thread(self.index.reload))
            loss, reloading = self.reloading
            index = await asyncio.shield(reloading)
            if loss > self.last_loss:
                self.index, self.last_loss = index, loss
        return await asyncio.to_thread(start_items, self.work, self.settings.store, index, rows)

    def _item_ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self.running[number]
        self.in_flight.begun.discard(number)
        if not self.running:
            self.results_ready.set()

    async def _run_item(self, number: int, started: asyncio.Future[StartedItems[Any]], position: int) -> None:
        current_item.set(number)
        try:
            runner, rows = (await started)[position]
            outcome = await run_item(self.work.name, runner, rows, self.io)
        except FatalCallError as e:
            self.fatal = self.fatal or e
        except Exception as e:  # noqa: BLE001 - raised by the next call
            self.error = self.error or e
        else:
            if not self.work.needs_results and outcome.status == "complete":
                outcome = Outcome(outcome.key, "complete", turns=outcome.turns)
            self.unflushed.append((number, outcome))
            return
        self.results_ready.set()


WorkerActor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Worker)
