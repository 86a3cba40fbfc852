"""A worker actor: runs dialogues, many at once, and journals every turn within seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayActorError

from graphrag_ray import logs
from graphrag_ray.distributed.coordinator import Leased, Report
from graphrag_ray.distributed.limits import RayLimiter
from graphrag_ray.engine.drive import Driver
from graphrag_ray.engine.gateways import DRAIN_S, Ask, Gate, Models, open_gateway
from graphrag_ray.engine.journalling import Keeper
from graphrag_ray.engine.sent import Sent, current_item
from graphrag_ray.engine.work import BEGUN_TOGETHER, Answer, Asking, Outcome, Work, begin, run_item
from graphrag_ray.errors import FatalCallError, GraphRagError
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.logs import Logging
from graphrag_ray.messages import EmbeddingRequest, Request
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.rows import JournalRow

_log = logging.getLogger(__name__)

Begun: TypeAlias = asyncio.Future[list[tuple[Driver[Any], list[JournalRow]]]]

LOOK_S = 0.05
"""Between lease calls."""
LEASE_CALLS_S = 400
"""Lease calls a second, of all workers together: half of what one actor answers. Many look less often."""
LONGEST_LOOK_S = 0.5
IDLE_LOOK_S = 0.2
"""The same where nothing was to be had and nothing has ended: calls are only waited for."""
WAITED_FOR_S = 0.5
"""Between journal writes where other items wait for the results."""
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

    async def run(self, work: Work[Any], index: JournalIndex, coordinator: Any) -> bool:
        """Lease items and run them until the sweep is over, or this worker was told to leave; whether that
        is so. Called again after a restart of this actor."""
        self._limiter.start_afresh()
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
        self.coordinator = coordinator
        self.accounts = Accounts()
        self.sent = Sent()
        self.running: dict[int, asyncio.Task[None]] = {}
        self.unflushed: list[tuple[int, Outcome[Any]]] = []
        self.journalled: list[tuple[int, Outcome[Any]]] = []
        self.fatal: str | None = None
        self.error: Exception | None = None
        self.last_loss = 0
        self.hungry = True
        self.flushed_at = time.monotonic()
        self.workers = 1

    async def run(self) -> bool:
        try:
            incarnation = await self.coordinator.register.remote(self.settings.name)
            keys = await _keys(self.settings.models, self.coordinator)
            logs.hide(keys.values())
        except RayActorError:
            return False  # the driver starts another coordinator
        logs.about(self.work.name)
        logs.event(_log, "worker joined", worker=self.settings.name, life=incarnation)
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
        async with opened as ask:
            try:
                # Where the coordinator died, what is in flight is paid for all the same.
                last = Leased([], drain_s=DRAIN_S)
                with suppress(RayActorError):
                    last = await self._loop(incarnation, ask)
                if last.leave:
                    await self._hand_back_unasked(incarnation)
                await gate.drain(last.drain_s or 0.0, self.writer.flush)
                with suppress(RayActorError):  # nobody is interested any more
                    if last.leave:
                        await self._leave(incarnation)
                    taken = self.accounts.take()
                    await self.coordinator.hand_in.remote(self.settings.name, incarnation, taken)
            except GraphRagError:
                await gate.drain()
                raise
            finally:
                await self._call_off(list(self.running))
                await self.keeper.close()
        return last.leave

    async def _hand_back_unasked(self, incarnation: int) -> None:
        """Send nothing more, and let others begin what has not begun here."""
        self.gate.shut()
        unasked = [number for number in self.running if number not in self.sent.begun]
        await self._call_off(unasked)
        with suppress(RayActorError):
            await self.coordinator.hand_back.remote(self.settings.name, incarnation, unasked)

    async def _leave(self, incarnation: int) -> None:
        """Hand back what is left. All that was answered is journalled before."""
        await self._call_off(list(self.running))
        await self._flush()
        await self.coordinator.leave.remote(self.settings.name, incarnation, self._report())

    async def _call_off(self, numbers: list[int]) -> None:
        tasks = [self.running[number] for number in numbers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _loop(self, incarnation: int, ask: Ask) -> Leased:
        """Until the sweep is over, or this worker shall leave; the coordinator's last answer."""
        asking = Asking(self._marking(ask), self.writer, self.index.now)
        while True:
            await self._flush_if_due()
            if self.error is not None:
                raise self.error
            leased: Leased = await self.coordinator.lease.remote(
                self.settings.name, incarnation, self._free_places(), self._report()
            )
            if leased.drain_s is not None:
                return leased
            self.workers = leased.workers
            self.hungry = not leased.items
            await self._start(leased, asking)
            if self.running:
                await asyncio.wait(list(self.running.values()), timeout=self._look_s())

    def _look_s(self) -> float:
        """Not at every reply: a lease call costs as much CPU as half a model call."""
        look_s = IDLE_LOOK_S if self.hungry and not self.unflushed else LOOK_S
        return max(look_s, min(LONGEST_LOOK_S, self.workers / LEASE_CALLS_S))

    def _marking(self, ask: Ask) -> Ask:
        """Embeddings are packed: once asked for, one may be in flight with others."""

        async def marked(request: Request, stage: str) -> Answer:
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

    async def _flush(self) -> None:
        finished, self.unflushed = self.unflushed, []
        await self.keeper.flush()
        self.journalled += finished
        self.flushed_at = time.monotonic()

    def _report(self) -> Report:
        taken, in_flight = self.accounts.take(), self.sent.totals()
        running, lag_s = len(self.running), self.keeper.lag_s
        report = Report(self.journalled, taken, running, in_flight, self.fatal, lag_s)
        self.journalled = []
        return report

    async def _start(self, leased: Leased, asking: Asking) -> None:
        store = self.settings.store
        if leased.last_loss > self.last_loss:
            # What the lost worker journalled came after our look at the journal, and is paid for.
            self.index = await asyncio.to_thread(self.index.again)
            self.last_loss = leased.last_loss
        for at in range(0, len(leased.items), BEGUN_TOGETHER):
            items = leased.items[at : at + BEGUN_TOGETHER]
            rows = [row for _, row in items]
            begun = asyncio.ensure_future(asyncio.to_thread(begin, self.work, store, self.index, rows))
            for place, (number, _) in enumerate(items):
                task = asyncio.ensure_future(self._run_item(number, begun, place, asking))
                self.running[number] = task
                task.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self.running[number]
        self.sent.begun.discard(number)

    async def _run_item(self, number: int, begun: Begun, place: int, asking: Asking) -> None:
        current_item.set(number)
        try:
            driver, rows = (await begun)[place]
            outcome = await run_item(self.work.name, driver, rows, asking)
        except FatalCallError as e:
            self.fatal = self.fatal or str(e)
            return
        except Exception as e:  # noqa: BLE001 - raised again by the loop: a lease must not hang for ever
            self.error = self.error or e
            return
        if not self.work.returns and outcome.status == "complete":
            outcome = Outcome(outcome.key, "complete")
        self.unflushed.append((number, outcome))


async def _keys(models: Models, coordinator: Any) -> dict[str, str]:
    """The keys that this node's environment lacks, asked for once a sweep."""
    missing = [v for v in models.key_variables() if not os.environ.get(v, "").strip()]
    found = {v: await coordinator.key.remote(v) for v in missing}
    return {v: key for v, key in found.items() if key is not None}


WorkerActor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Worker)
