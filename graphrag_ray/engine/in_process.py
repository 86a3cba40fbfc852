"""The in-process executor, for small corpora, batches of questions and tests.

It implements `executor.py`, including the journal, with asyncio and plain loops instead of Ray. Expensive
computations can also run in other processes (`process_pool.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa

from graphrag_ray.base.errors import FatalCallError, GraphRagError, RunStopped
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.engine.dialogue_runner import DialogueRunner
from graphrag_ray.engine.executor import (
    Executor,
    InputSplitter,
    ItemSource,
    RunningSweep,
    SweepResult,
    TableFunction,
    Tables,
    WrittenParts,
    iter_partitions,
    write_all,
)
from graphrag_ray.engine.model_access import Ask, Gate, JournalGuard, open_gateway
from graphrag_ray.engine.process_pool import ProcessPool
from graphrag_ray.engine.reply_cache import ReplyCache
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
from graphrag_ray.llm.accounting import InFlight
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.parts import Part

T = TypeVar("T")
X = TypeVar("X")
R = TypeVar("R")


@dataclass
class LocalExecutor(Executor):
    """Runs everything on this machine, with all dialogues in this process.

    Attributes:
        in_flight: Maximum number of concurrent items. None chooses enough that only the models' limits apply.
        limiter: None creates one for all sweeps, because they share the endpoints' limits.
    """

    in_flight: int | None = None
    limiter: Limiter | None = None
    pool: ProcessPool = field(default_factory=lambda: ProcessPool(0))

    def share(self, value: T) -> Callable[[], T]:
        return self.pool.share(value)

    def map(
        self,
        step: str,
        fn: TableFunction[X],
        inputs: Iterable[X],
        splitter: InputSplitter[X] | None = None,
        on_done: Callable[[int], None] = lambda number: None,
    ) -> WrittenParts:
        store, written = self.store, list[dict[str, list[Part]]]()
        for number, parts in enumerate(self.pool.map(lambda x: write_all(store, fn(store, x)), inputs)):
            written.append(parts)
            on_done(number)
        return written

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
        bundles: int | None = None,
    ) -> WrittenParts:
        store, rows = self.store, dict[int, list[pa.Table]]()
        for table in self.stream(step, fn, inputs):
            for partition, rows_of_partition in iter_partitions(table):
                rows.setdefault(partition, []).append(rows_of_partition)
        # Copy the slices because pickling a slice pickles its whole table. Be lazy to save memory.
        groups = (pa.concat_tables(rows[p]).combine_chunks() for p in sorted(rows))
        reduced = self.pool.map(lambda rows: write_all(store, [reduce(rows)]), groups)
        written = dict(zip(sorted(rows), reduced, strict=True))
        return [written.get(p, {}) for p in range(partitions)]

    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        store = self.store
        if self.pool.processes:
            yield from chain.from_iterable(self.pool.map(lambda x: list(fn(store, x)), inputs))
        else:  # yield each table as soon as it is ready
            yield from chain.from_iterable(fn(store, x) for x in inputs)

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> SweepResult:
        with self.stop.polling():
            return asyncio_runner()(_LocalSweep(self, work, source, index).run())


class _LocalSweep(RunningSweep[T]):
    def __init__(
        self, executor: LocalExecutor, work: Work[T], source: ItemSource[T], index: JournalIndex
    ) -> None:
        super().__init__(executor, work, source, index)
        self.executor = executor
        self.running: dict[asyncio.Task[Outcome[T]], int] = {}
        self.unflushed: list[tuple[int, Outcome[T]]] = []
        self.in_flight = InFlight()
        self.queued: deque[Row] = deque()
        self.taken = 0
        self.slots = executor.in_flight or executor.models.slots(work.name, 1, executor.pool.processes)

    async def run(self) -> SweepResult:
        self.check(0, self.in_flight)
        executor = self.executor
        writer = JournalWriter(executor.store, self.work.name, f"local-{uuid.uuid4().hex[:12]}")
        models = executor.models.with_quirks(self.spending.earlier.quirks)
        executor.limiter = executor.limiter or LocalLimiter(models.online, models.initial_in_flight)
        gate = Gate(executor.limiter)
        guard = JournalGuard(writer, gate)
        async with open_gateway(
            models,
            gate,
            self.sweep.accounts.add,
            in_flight=self.in_flight,
            # True if every item that may start now is in flight.
            nothing_queued=lambda: not self.queued and len(self.running) <= self.in_flight.calls,
            pool=executor.pool,
        ) as ask:
            try:
                await self._loop(DialogueIO(ask, writer.append, self.index.next_time), guard)
            except RunStopped:
                await gate.drain(self.stop.grace_s, writer.flush)
                # Also count items that finished while draining.
                for task in self.running:
                    if task.done() and not task.cancelled() and task.exception() is None:
                        self.count(task.result())
                with suppress(GraphRagError):  # the original error matters more
                    self.report_progress(copy(self.in_flight))
                raise
            except GraphRagError:
                await gate.drain()
                raise
            finally:
                for task in self.running:
                    task.cancel()
                await asyncio.gather(*self.running, return_exceptions=True)
                self.record_timing()
                await guard.close()
        return self.sweep

    async def _loop(self, io: DialogueIO, guard: JournalGuard) -> None:
        exhausted = False
        flushed_at = time.monotonic()
        while True:
            self.check(len(self.running), self.in_flight)
            while not exhausted and len(self.running) + len(self.queued) < self.slots:
                rows = self.source.take()
                if rows is None:
                    exhausted = True
                elif not rows:
                    break
                else:
                    self.queued.extend(rows)
            self._start(io)
            if self.running:
                self.sweep.peak_in_flight = max(self.sweep.peak_in_flight, self.in_flight.calls)
                done, _ = await asyncio.wait(self.running, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number = self.running.pop(task)
                    try:
                        outcome = task.result()
                    except FatalCallError as e:
                        raise e.as_run_error() from e
                    self.count(outcome)
                    self.unflushed.append((number, outcome))
            elif not exhausted:
                await asyncio.sleep(0.005)
            # Flush sooner if the source may be waiting for these results.
            urgent = self.work.needs_results and self.unflushed and not exhausted and not self.queued
            journal_flush_s = (
                min(self.executor.journal_flush_s, URGENT_FLUSH_S)
                if urgent
                else self.executor.journal_flush_s
            )
            if not self.running or time.monotonic() - flushed_at >= journal_flush_s:
                await guard.flush()
                flushed_at = time.monotonic()
                finished, self.unflushed = self.unflushed, []
                for number, outcome in finished:
                    self.source.on_finished(number, outcome)
                self.report_progress(copy(self.in_flight))
                if exhausted and not self.running and not self.queued:
                    return self.check_failures()

    def _start(self, io: DialogueIO) -> None:
        store, free = self.executor.store, self.slots - len(self.running)
        affordable = self.affordable(len(self.running), self.in_flight)
        if affordable is not None:
            free = min(free, affordable)
            if free <= 0 and self.queued and not self.running:
                raise self.spending.exhausted_error(self.sweep.accounts)

        async def run(started: asyncio.Future[StartedItems[T]], position: int) -> Outcome[T]:
            runner, rows = (await started)[position]
            return await run_item(self.work.name, runner, rows, io)

        while self.queued and free > 0:
            n = min(free, len(self.queued), BEGIN_BATCH)
            rows = [self.queued.popleft() for _ in range(n)]
            free -= n
            started = asyncio.ensure_future(
                asyncio.to_thread(start_items, self.work, store, self.index, rows)
            )
            for position in range(n):
                self.running[asyncio.ensure_future(run(started, position))] = self.taken
                self.taken += 1


def asyncio_runner() -> Callable[[Coroutine[Any, Any, R]], R]:
    """Return `asyncio.run`, run in another thread if this one has an event loop, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run

    def run(coroutine: Coroutine[Any, Any, R]) -> R:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, coroutine).result()

    return run


async def run_dialogues(
    stage: str, dialogues: Sequence[Dialogue[T]], ask: Ask, cache: ReplyCache | None = None
) -> list[Outcome[T]]:
    """Run dialogues concurrently, reusing replies from the cache.

    Raises:
        ModelUnavailable: The model refuses all requests.
        StoreError: The cache cannot be read.
    """
    runners = [DialogueRunner(dialogue) for dialogue in dialogues]
    keys = [runner.key for runner in runners if runner.key]
    journalled = await asyncio.to_thread(cache.lookup, keys) if cache else {}
    io = DialogueIO(ask, cache.append if cache else None, time.time)
    try:
        return await gather_all(run_item(stage, d, journalled.get(d.key, []), io) for d in runners)
    except FatalCallError as e:
        raise e.as_run_error() from e


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Gather coroutines. On failure or cancellation, cancel the others and wait for them first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
