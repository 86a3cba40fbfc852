"""A worker actor: runs dialogues, many at once, and journals every turn within seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import ray
from ray.exceptions import RayActorError

from graphrag_ray.base import logs
from graphrag_ray.base.errors import FatalCallError
from graphrag_ray.base.logs import Logging
from graphrag_ray.base.messages import EmbeddingRequest, Request
from graphrag_ray.engine.drive import Driver
from graphrag_ray.engine.gateways import DRAIN_S, Ask, Gate, Models, open_gateway
from graphrag_ray.engine.journalling import Keeper
from graphrag_ray.engine.ray.coordinator import End, Leased, WorkerReport
from graphrag_ray.engine.ray.limiter_actors import RayLimiter
from graphrag_ray.engine.ray.once import ActorClient
from graphrag_ray.engine.sent import SentItems, current_item
from graphrag_ray.engine.work import (
    BEGUN_TOGETHER,
    WAITED_FOR_S,
    AnsweredCall,
    Asking,
    Outcome,
    Row,
    Work,
    begin,
    run_item,
)
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import JournalRow

_log = logging.getLogger(__name__)

T = TypeVar("T")
Begun: TypeAlias = asyncio.Future[list[tuple[Driver[Any], list[JournalRow]]]]

LOOK_S = 0.05
"""Between lease calls."""
LEASE_CALLS_S = 400
"""Lease calls a second, of all workers together: half of what one actor answers. Many look less often."""
LONGEST_LOOK_S = 0.5
IDLE_LOOK_S = 0.2
"""The same where nothing was to be had and nothing has ended: calls are only waited for."""
MOST_WAITING = 32
"""Items of a worker that wait for a call, where the order of items matters."""


@dataclass(frozen=True)
class WorkerSettings:
    """Plain values only: constructor arguments outlive restarts, and hold no secret."""

    name: str
    store: Store
    models: Models
    flush_s: float
    limiters: str
    logging: Logging | None = None


class Worker:
    def __init__(self, settings: WorkerSettings) -> None:
        logs.follow(settings.logging)
        self._settings = settings
        self._limiter = RayLimiter(settings.limiters, settings.name, settings.models.online)
        self._alone = asyncio.Lock()

    async def run(self, work: Work[Any], index: JournalIndex, coordinator: Any) -> End:
        """Lease items and run them until this worker's part is over; how it ended. All that was answered is
        journalled then. Called again after a restart of this actor, and where its answer was lost on the way:
        one that still runs ends first."""
        async with self._alone:
            await self._limiter.start_afresh()
            return await _WorkerSweep(self._settings, self._limiter, work, index, coordinator).run()


class _WorkerSweep:
    """One worker's part in one sweep."""

    def __init__(
        self,
        settings: WorkerSettings,
        limiter: RayLimiter,
        work: Work[Any],
        index: JournalIndex,
        coordinator: Any,
    ) -> None:
        self.settings, self.limiter, self.work, self.index = settings, limiter, work, index
        self.line = ActorClient(coordinator)
        self.incarnation = 0
        self.accounts = Accounts()
        self.sent = SentItems()
        self.running: dict[int, asyncio.Task[None]] = {}
        self.unflushed: list[tuple[int, Outcome[Any]]] = []
        self.journalled: list[tuple[int, Outcome[Any]]] = []
        self.fatal: FatalCallError | None = None
        self.error: Exception | None = None
        self.last_loss = 0
        self.reading: tuple[int, asyncio.Future[JournalIndex]] | None = None
        self.hungry = True
        self.flushed_at = time.monotonic()
        self.workers = 1

    async def run(self) -> End:
        try:
            self.incarnation = await self._tell("register")
            keys = await _keys(self.settings.models, self.line)
            logs.hide(keys.values())
        except RayActorError:
            return End.CUT_OFF
        logs.about(self.work.name)
        logs.event(_log, "worker joined", worker=self.settings.name, life=self.incarnation)
        # No two lives of a worker may write under one name.
        name = f"{self.settings.name}-{uuid.uuid4().hex[:8]}"
        self.writer = JournalWriter(self.settings.store, self.work.name, name)
        self.gate = gate = Gate(self.limiter)
        self.keeper = Keeper(self.writer, gate)
        opened = open_gateway(
            self.settings.models,
            gate,
            self.accounts.add,
            keys.get,
            in_flight=self.sent,
            at_the_end=self._at_the_end,
        )
        try:
            return await self._work(opened)
        finally:  # calls that are given up at the very end may be billed, too
            with suppress(RayActorError):  # nobody is interested any more
                await self._tell("hand_in", self.incarnation, self.accounts.take())

    async def _work(self, opened: AbstractAsyncContextManager[Ask]) -> End:
        gate = self.gate
        async with opened as ask:
            try:
                # Where the coordinator is out of sight, what is in flight is paid for all the same.
                last = Leased([], end=End.CUT_OFF, drain_s=DRAIN_S)
                with suppress(RayActorError):
                    last = await self._loop(ask)
                if last.end == End.LEFT:
                    await self._hand_back_unasked()
                await gate.drain(last.drain_s, self.writer.flush)
                if last.end == End.LEFT or (last.end == End.OVER and (self.unflushed or self.journalled)):
                    with suppress(RayActorError):
                        await self._leave()
            except Exception:
                await gate.drain()
                raise
            finally:
                await self._call_off(list(self.running))
                self.limiter.send()
                await self.keeper.close()
        return last.end or End.OVER

    async def _tell(self, method: str, *args: Any) -> Any:
        return await self.line.ask(method, self.settings.name, *args)

    async def _hand_back_unasked(self) -> None:
        """Send nothing more, and let others begin what has not begun here."""
        self.gate.shut()
        unasked = [number for number in self.running if number not in self.sent.begun]
        await self._call_off(unasked)
        with suppress(RayActorError):
            await self._tell("hand_back", self.incarnation, unasked)

    async def _leave(self) -> None:
        """Hand back what is left. All that was answered is journalled before."""
        await self._call_off(list(self.running))
        await self._flush()
        await self._tell("leave", self.incarnation, self._report())

    async def _call_off(self, numbers: list[int]) -> None:
        tasks = [self.running[number] for number in numbers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _loop(self, ask: Ask) -> Leased:
        """Until this worker's part is over; the coordinator's last answer."""
        asking = Asking(self._marking(ask), self.writer, self.index.now)
        while True:
            await self._flush_if_due()
            if self.error is not None:
                raise self.error
            lease = self._tell("lease", self.incarnation, self._free_places(), self._report())
            leased: Leased = await self._flushing(lease)
            if leased.end is not None:
                return leased
            self.workers = leased.workers
            self.hungry = not leased.items
            self._start(leased, asking)
            if self.running:
                await asyncio.wait(list(self.running.values()), timeout=self._look_s())

    def _look_s(self) -> float:
        """Not at every reply: a lease call costs as much CPU as half a model call."""
        look_s = IDLE_LOOK_S if self.hungry and not self.unflushed else LOOK_S
        return max(look_s, min(LONGEST_LOOK_S, self.workers / LEASE_CALLS_S))

    def _marking(self, ask: Ask) -> Ask:
        """Embeddings are packed: once asked for, one may be in flight with others."""

        async def marked(request: Request, stage: str) -> AnsweredCall:
            if isinstance(request, EmbeddingRequest):
                self.sent.begun.add(current_item.get())
            return await ask(request, stage)

        return marked

    def _at_the_end(self) -> bool:
        """Whether there was nothing more to be had, and all that was is sent."""
        return self.hungry and len(self.running) <= len(self.sent.items)

    def _free_places(self) -> int:
        if self.fatal:
            return 0
        places = self.settings.models.places(self.work.name, self.workers)
        free = max(0, places - len(self.running))
        if not self.work.returns:
            return free
        # Items that others wait for overtake in the source's queue, not in ours: ours is kept short.
        waiting = len(self.running) - len(self.sent.items)
        return min(free, max(0, MOST_WAITING - waiting))

    async def _flush_if_due(self) -> None:
        due_s = self.settings.flush_s
        if self.unflushed and self.hungry:  # somebody may wait for what is done here
            due_s = 0.0 if not self.running else min(due_s, WAITED_FOR_S) if self.work.returns else due_s
        if time.monotonic() - self.flushed_at >= due_s:
            await self._flush()

    async def _flushing(self, answer: Coroutine[Any, Any, T]) -> T:
        """What is waited for, however long that takes: what comes back meanwhile is journalled."""
        waited_for = asyncio.ensure_future(answer)
        try:
            while not (await asyncio.wait([waited_for], timeout=LONGEST_LOOK_S))[0]:
                await self._flush_if_due()
            return waited_for.result()
        finally:
            waited_for.cancel()

    async def _flush(self) -> None:
        finished, self.unflushed = self.unflushed, []
        await self.keeper.flush()
        self.journalled += finished
        self.flushed_at = time.monotonic()

    def _report(self) -> WorkerReport:
        taken, in_flight = self.accounts.take(), self.sent.totals()
        running, lag_s = len(self.running), self.keeper.lag_s
        report = WorkerReport(self.journalled, taken, running, in_flight, self.fatal, lag_s)
        self.journalled = []
        return report

    def _start(self, leased: Leased, asking: Asking) -> None:
        """Items that a lost worker had wait until the journal is read again; all others begin."""
        losses = leased.losses
        again = [item for item in leased.items if losses.get(item[0], 0) > self.last_loss]
        others = [item for item in leased.items if losses.get(item[0], 0) <= self.last_loss]
        for items in (others, again):
            for at in range(0, len(items), BEGUN_TOGETHER):
                together = items[at : at + BEGUN_TOGETHER]
                self._begin(together, max(losses.get(number, 0) for number, _ in together), asking)

    def _begin(self, items: list[tuple[int, Row]], loss: int, asking: Asking) -> None:
        begun = asyncio.ensure_future(self._begun([row for _, row in items], loss))  # noqa: RUF006 - held below
        for place, (number, _) in enumerate(items):
            task = asyncio.ensure_future(self._run_item(number, begun, place, asking))
            self.running[number] = task
            task.add_done_callback(partial(self._ended, number))

    async def _begun(self, rows: list[Row], loss: int) -> list[tuple[Driver[Any], list[JournalRow]]]:
        index = await self._read_after(loss)
        return await asyncio.to_thread(begin, self.work, self.settings.store, index, rows)

    async def _read_after(self, loss: int) -> JournalIndex:
        """The journal as it is after a loss: what the lost worker journalled may have come after our look at
        it, and is paid for."""
        if loss <= self.last_loss:
            return self.index
        if self.reading is None or self.reading[0] < loss:
            self.reading = loss, asyncio.ensure_future(asyncio.to_thread(self.index.again))
        loss, reading = self.reading
        index = await asyncio.shield(reading)
        if loss > self.last_loss:
            self.index, self.last_loss = index, loss
        return index

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self.running[number]
        self.sent.begun.discard(number)

    async def _run_item(self, number: int, begun: Begun, place: int, asking: Asking) -> None:
        current_item.set(number)
        try:
            driver, rows = (await begun)[place]
            outcome = await run_item(self.work.name, driver, rows, asking)
        except FatalCallError as e:
            self.fatal = self.fatal or e
            return
        except Exception as e:  # noqa: BLE001 - raised again by the loop: a lease must not hang for ever
            self.error = self.error or e
            return
        if not self.work.returns and outcome.status == "complete":
            outcome = Outcome(outcome.key, "complete")
        self.unflushed.append((number, outcome))


async def _keys(models: Models, coordinator: ActorClient) -> dict[str, str]:
    """The keys that this node's environment lacks, asked for once a sweep."""
    missing = [v for v in models.key_variables() if not os.environ.get(v, "").strip()]
    found = {v: await coordinator.ask("key", v) for v in missing}
    return {v: key for v, key in found.items() if key is not None}


WorkerActor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Worker)
