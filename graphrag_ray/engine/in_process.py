"""The in-process executor: asyncio and plain loops. For small corpora, batches of questions and tests.

It keeps the whole contract of `executor.py`, journal included, without Ray. What takes long is computed in
other processes as well (`process_pool.py`).
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
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from graphrag_ray.base.errors import FatalCallError, GraphRagError, RunStopped
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.engine.drive import Driver
from graphrag_ray.engine.executor import (
    Executor,
    ItemSource,
    Parted,
    RunningSweep,
    Sweep,
    TableFunction,
    Tables,
    Written,
    by_partition,
    write_all,
)
from graphrag_ray.engine.gateways import Ask, Gate, Keeper, open_gateway
from graphrag_ray.engine.process_pool import ProcessPool
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.engine.work import BEGUN_TOGETHER, WAITED_FOR_S, Asking, Outcome, Row, Work, begin, run_item
from graphrag_ray.llm.accounting import InFlight
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import JournalRow
from graphrag_ray.store.parts import Part

T = TypeVar("T")
X = TypeVar("X")
R = TypeVar("R")

Begun: TypeAlias = asyncio.Future[list[tuple[Driver[Any], list[JournalRow]]]]


@dataclass
class LocalExecutor(Executor):
    """Runs everything on this machine, all dialogues in this process.

    in_flight      items that run at once; None: enough that the models' limits bind, and not this
    limiter        None: one of our own, which all sweeps share as they share the endpoints' limits
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
        parted: Parted[X] | None = None,
        ended: Callable[[int], None] = lambda number: None,
    ) -> Written:
        store, written = self.store, list[dict[str, list[Part]]]()
        for number, parts in enumerate(self.pool.each(lambda x: write_all(store, fn(store, x)), inputs)):
            written.append(parts)
            ended(number)
        return written

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
        bundles: int | None = None,
    ) -> Written:
        store, rows = self.store, dict[int, list[pa.Table]]()
        for table in self.stream(step, fn, inputs):
            for partition, own in by_partition(table):
                rows.setdefault(partition, []).append(own)
        # Combined, since a slice is pickled with all of what it is a slice of; one after another.
        found = (pa.concat_tables(rows[p]).combine_chunks() for p in sorted(rows))
        made = self.pool.each(lambda rows: write_all(store, [reduce(rows)]), found)
        written = dict(zip(sorted(rows), made, strict=True))
        return [written.get(p, {}) for p in range(partitions)]

    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        store = self.store
        if self.pool.processes:
            yield from chain.from_iterable(self.pool.each(lambda x: list(fn(store, x)), inputs))
        else:  # each table as soon as it is there
            yield from chain.from_iterable(fn(store, x) for x in inputs)

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> Sweep:
        with self.stop.while_asking():
            return runner()(_LocalSweep(self, work, source, index).run())


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
        self.places = executor.in_flight or executor.models.places(work.name, 1, executor.pool.processes)

    async def run(self) -> Sweep:
        self.check(0, self.in_flight)
        writer = JournalWriter(self.executor.store, self.work.name, f"local-{uuid.uuid4().hex[:12]}")
        models = self.executor.models.knowing(self.spending.before.quirks)
        executor = self.executor
        executor.limiter = executor.limiter or LocalLimiter(models.online, models.default_in_flight)
        gate = Gate(executor.limiter)
        keeper = Keeper(writer, gate)
        async with open_gateway(
            models,
            gate,
            self.sweep.accounts.add,
            in_flight=self.in_flight,
            # All that there is has been sent.
            at_the_end=lambda: not self.queued and len(self.running) <= self.in_flight.calls,
            pool=self.executor.pool,
        ) as ask:
            asking = Asking(ask, writer.append, self.index.now)
            try:
                await self._loop(asking, keeper)
            except RunStopped:
                await gate.drain(self.stop.grace_s, writer.flush)
                # What came back after the sweep was told to stop is journalled: people are told of it, too.
                for task in self.running:
                    if task.done() and not task.cancelled() and task.exception() is None:
                        self.count(task.result())
                with suppress(GraphRagError):  # what stopped the sweep is what it ends with
                    self.show(copy(self.in_flight))
                raise
            except GraphRagError:
                await gate.drain()
                raise
            finally:
                for task in self.running:
                    task.cancel()
                await asyncio.gather(*self.running, return_exceptions=True)
                self.ended()
                await keeper.close()
        return self.sweep

    async def _loop(self, asking: Asking, keeper: Keeper) -> None:
        exhausted = False
        flushed_at = time.monotonic()
        while True:
            self.check(len(self.running), self.in_flight)
            while not exhausted and len(self.running) + len(self.queued) < self.places:
                rows = self.source.take()
                if rows is None:
                    exhausted = True
                elif not rows:
                    break
                else:
                    self.queued.extend(rows)
            self._start(asking)
            if self.running:
                self.sweep.peak_in_flight = max(self.sweep.peak_in_flight, self.in_flight.calls)
                done, _ = await asyncio.wait(self.running, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number = self.running.pop(task)
                    try:
                        outcome = task.result()
                    except FatalCallError as e:
                        raise e.refusal() from e
                    self.count(outcome)
                    self.unflushed.append((number, outcome))
            elif not exhausted:
                await asyncio.sleep(0.005)
            if not self.running or time.monotonic() - flushed_at >= self._flush_s(exhausted):
                await keeper.flush()
                flushed_at = time.monotonic()
                finished, self.unflushed = self.unflushed, []
                for number, outcome in finished:
                    self.source.finished(number, outcome)
                self.show(copy(self.in_flight))
                if exhausted and not self.running and not self.queued:
                    return self.check_end()

    def _flush_s(self, exhausted: bool) -> float:
        """Between journal writes: shorter where the source may wait for what has come back."""
        waited_for = self.work.returns and bool(self.unflushed) and not exhausted and not self.queued
        return min(self.executor.flush_s, WAITED_FOR_S) if waited_for else self.executor.flush_s

    def _start(self, asking: Asking) -> None:
        store, free = self.executor.store, self.places - len(self.running)
        affordable = self.affordable(len(self.running), self.in_flight)
        if affordable is not None:
            free = min(free, affordable)
            if free <= 0 and self.queued and not self.running:
                raise self.spending.exhausted(self.sweep.accounts)

        async def item(begun: Begun, place: int) -> Outcome[T]:
            driver, rows = (await begun)[place]
            return await run_item(self.work.name, driver, rows, asking)

        while self.queued and free > 0:
            n = min(free, len(self.queued), BEGUN_TOGETHER)
            rows = [self.queued.popleft() for _ in range(n)]
            free -= n
            begun = asyncio.ensure_future(asyncio.to_thread(begin, self.work, store, self.index, rows))
            for place in range(n):
                self.running[asyncio.ensure_future(item(begun, place))] = self.taken
                self.taken += 1


def runner() -> Callable[[Coroutine[Any, Any, R]], R]:
    """`asyncio.run`; where this thread has a running event loop, as in a notebook, that of another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run

    def run(coroutine: Coroutine[Any, Any, R]) -> R:
        with ThreadPoolExecutor(1) as other:
            return other.submit(asyncio.run, coroutine).result()

    return run


async def run_dialogues(
    stage: str, dialogues: Sequence[Dialogue[T]], ask: Ask, cache: ReplyCache | None = None
) -> list[Outcome[T]]:
    """Run some dialogues at once. cache: of replies; what is in it is not asked. Raises ModelRefused when no
    request will succeed, StoreError where the cache cannot be read."""
    drivers = [Driver(dialogue) for dialogue in dialogues]
    keys = [driver.key for driver in drivers if driver.key]
    known = await asyncio.to_thread(cache.lookup, keys) if cache else {}
    asking = Asking(ask, cache.append if cache else None, time.time)
    running = [run_item(stage, driver, known.get(driver.key, []), asking) for driver in drivers]
    try:
        return await together(running)
    except FatalCallError as e:
        raise e.refusal() from e


async def together(running: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """What they return. Where one fails, or nobody wants it any more, the others end before this does."""
    tasks = [asyncio.ensure_future(one) for one in running]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
