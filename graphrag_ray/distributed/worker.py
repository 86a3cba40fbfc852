"""A worker actor: runs dialogues, many at once, and journals every turn within seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from dataclasses import dataclass
from typing import Any

import ray

from graphrag_ray.distributed.coordinator import Report
from graphrag_ray.distributed.limits import RayLimiter
from graphrag_ray.engine.drive import Driver
from graphrag_ray.engine.gateways import Ask, Models, open_gateway
from graphrag_ray.engine.work import Asking, Outcome, Row, Work, run_item
from graphrag_ray.errors import FatalCallError
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """Plain values only: constructor arguments outlive restarts, and hold no secret."""

    name: str
    store: Store
    models: Models
    workers: int
    flush_s: float
    key_holder: str
    limiters: str


class Worker:
    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._limiter = RayLimiter(settings.limiters, settings.name)

    async def run(self, work: Work[Any], index: JournalIndex, coordinator: Any) -> None:
        """Lease items and run them until the sweep is over. Called again after a restart of this actor."""
        await _WorkerSweep(self._settings, self._limiter, work, index, coordinator).run()


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
        self.running: set[asyncio.Task[None]] = set()
        self.unflushed: list[tuple[int, Outcome[Any]]] = []
        self.journalled: list[tuple[int, Outcome[Any]]] = []
        self.fatal: str | None = None
        self.flushed_at = time.monotonic()
        self.places = settings.models.places(work.name, settings.workers)

    async def run(self) -> None:
        incarnation = await self.coordinator.register.remote(self.settings.name)
        # No two lives of a worker may write under one name.
        name = f"{self.settings.name}-{uuid.uuid4().hex[:8]}"
        self.writer = JournalWriter(self.settings.store, self.work.name, name)
        keys = await _keys(self.settings)
        async with open_gateway(self.settings.models, self.limiter, self.accounts, keys.get) as ask:
            try:
                await self._loop(incarnation, ask)
            finally:
                for task in self.running:
                    task.cancel()
                await asyncio.gather(*self.running, return_exceptions=True)
                await asyncio.to_thread(self.writer.flush)

    async def _loop(self, incarnation: int, ask: Ask) -> None:
        asking = Asking(ask, self.writer, time.time)
        while True:
            await self._flush_if_due()
            places = 0 if self.fatal else max(0, self.places - len(self.running))
            items = await self.coordinator.lease.remote(
                self.settings.name, incarnation, places, self._report()
            )
            if items is None:
                return
            for number, row in items:
                task = asyncio.ensure_future(self._item(number, row, asking))
                self.running.add(task)
                task.add_done_callback(self.running.discard)
            if self.running:
                await asyncio.wait(self.running, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)

    async def _flush_if_due(self) -> None:
        idle = not self.running
        if not (self.unflushed and idle) and time.monotonic() - self.flushed_at < self.settings.flush_s:
            return
        finished, self.unflushed = self.unflushed, []
        await asyncio.to_thread(self.writer.flush)
        self.journalled += finished
        self.flushed_at = time.monotonic()

    def _report(self) -> Report:
        report = Report(self.journalled, self.accounts.take(), len(self.running), self.fatal)
        self.journalled = []
        return report

    async def _item(self, number: int, row: Row, asking: Asking) -> None:
        try:
            driver = Driver(self.work.start(self.settings.store, row))
            rows = self.index.turns(driver.key) if driver.key else []
            outcome = await run_item(self.work.name, driver, rows, asking)
        except FatalCallError as e:
            self.fatal = self.fatal or str(e)
            return
        if not self.work.returns and outcome.status == "complete":
            outcome = Outcome(outcome.key, "complete")
        self.unflushed.append((number, outcome))


async def _keys(settings: WorkerSettings) -> dict[str, str]:
    """The keys that this node's environment lacks, asked for once."""
    missing = [v for v in settings.models.key_variables() if v not in os.environ]
    if not missing:
        return {}
    holder = ray.get_actor(settings.key_holder)
    found = {v: await holder.get.remote(v) for v in missing}
    return {v: key for v, key in found.items() if key is not None}


class KeyHolder:
    """Keys that only the driver's environment had, in memory, for workers that ask."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def put(self, variable: str, key: str) -> None:
        self._keys[variable] = key

    def get(self, variable: str) -> str | None:
        return self._keys.get(variable)


WorkerActor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Worker)
KeyHolderActor = ray.remote(num_cpus=0)(KeyHolder)
