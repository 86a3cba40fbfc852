"""The Ray executor: tables through Ray Data, dialogues through a pool of worker actors."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from graphrag_ray.distributed.coordinator import CoordinatorActor, Exchange
from graphrag_ray.distributed.desk import DeskActor
from graphrag_ray.distributed.limits import start_limiters
from graphrag_ray.distributed.tables import RayTables, unwrapped
from graphrag_ray.distributed.worker import WorkerActor, WorkerSettings
from graphrag_ray.engine.drive import Refused
from graphrag_ray.engine.executor import (
    Parted,
    Progress,
    Source,
    Sweep,
    TableFunction,
    Tables,
    Written,
)
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.leases import FailureWatch
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.stopping import Stop
from graphrag_ray.engine.work import Outcome, Row, Work, killed_row, outcome_of
from graphrag_ray.errors import GraphRagError, ModelRefused, TooManyFailures
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter

T = TypeVar("T")
X = TypeVar("X")

FLUSHED_WITHIN_S = 10.0
"""Workers of a sweep that ends early get so long, beyond the time for calls in flight, to journal them."""
ACCOUNTED_WITHIN_S = 5.0


@dataclass
class RayExecutor:
    """Runs on the connected Ray cluster (see `cluster.connected`).

    workers_per_node   LLM actors per node; None: two, or one per core for the offline engine
    on_progress        called a few times a second during a sweep
    """

    store: Store
    models: Models
    max_failed_fraction: float = 0.5
    flush_s: float = 2.0
    workers_per_node: int | None = None
    on_progress: Callable[[Progress], None] = lambda progress: None
    spending: Spending = field(default_factory=Spending)
    stop: Stop = field(default_factory=Stop)
    _desk: tuple[str, Any] | None = None
    _pool: list[tuple[str, Any]] = field(default_factory=list)
    _limiters: list[Any] = field(default_factory=list)

    def share(self, value: T) -> Callable[[], T]:
        return partial(ray.get, ray.put(value))

    def map(
        self, step: str, fn: TableFunction[X], inputs: Sequence[X], parted: Parted[X] | None = None
    ) -> Written:
        return self._tables().map(step, fn, inputs, parted)

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
    ) -> Written:
        return self._tables().shuffle(step, fn, inputs, reduce, partitions)

    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        return self._tables().stream(step, fn, inputs)

    def sweep(self, work: Work[T], source: Source[T], index: JournalIndex) -> Sweep:
        pool = self._workers()
        coordinator = CoordinatorActor.options(scheduling_strategy=_beside_driver()).remote()
        shared = ray.put(index)
        runs = {worker.run.remote(work, shared, coordinator): name for name, worker in pool}
        sweep, started_at = Sweep(), time.monotonic()
        self.stop.asking = True
        try:
            with unwrapped():
                self._feed(work, source, coordinator, runs, index.keys_done() == 0, sweep)
                for run in runs:
                    with suppress(RayActorError):  # it died for good: others finished what it had
                        ray.get(run)
            return sweep
        except BaseException as e:
            _stop(coordinator, list(runs), 0.0 if self.stop.twice else self.stop.grace_s)
            if isinstance(e, RayActorError):
                raise GraphRagError(
                    f"the coordinator of stage {work.name} died: {_told(e)} What was answered is kept: run "
                    "the same command again to continue."
                ) from e
            raise
        finally:
            self._account(sweep, work.name, started_at, coordinator)
            self.stop.asking = False
            ray.kill(coordinator)

    def start(self) -> None:
        """Start the worker pool, without waiting for it: workers take a few seconds to come up."""
        self._workers()

    def close(self) -> None:
        """End the worker pool."""
        for _, worker in self._pool:
            ray.kill(worker)
        for actor in self._limiters:
            ray.kill(actor)
        if self._desk:
            ray.kill(self._desk[1])
        self._pool, self._limiters, self._desk = [], [], None

    def _tables(self) -> RayTables:
        return RayTables(self.store, self._at_desk()[1])

    def _at_desk(self) -> tuple[str, Any]:
        """The name of the desk, and a handle to it."""
        if self._desk is None:
            name = f"graphrag-desk-{uuid.uuid4().hex[:12]}"
            self._desk = name, DeskActor.options(name=name, scheduling_strategy=_beside_driver()).remote()
        return self._desk

    def _workers(self) -> list[tuple[str, Any]]:
        if self._pool:
            return self._pool
        run = uuid.uuid4().hex[:12]
        desk, keys = self._at_desk()
        for variable in self.models.key_variables():
            if variable in os.environ:
                ray.get(keys.put.remote(variable, os.environ[variable]))
        limiters = f"graphrag-limiter-{run}"
        self._limiters = start_limiters(limiters, self.models)
        cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        count = sum(self.workers_per_node or self.models.workers_per_node(n) for n in cores)
        for i in range(count):
            settings = WorkerSettings(
                f"{run}-{i}", self.store, self.models, count, self.flush_s, desk, limiters
            )
            actor = WorkerActor.options(scheduling_strategy="SPREAD").remote(settings)
            self._pool.append((settings.name, actor))
        return self._pool

    def _feed(
        self,
        work: Work[T],
        source: Source[T],
        coordinator: Any,
        runs: dict[Any, str],
        fresh: bool,
        sweep: Sweep,
    ) -> None:
        """The driver's loop: give the coordinator items, learn outcomes, until there is nothing left."""
        watch = FailureWatch(self.max_failed_fraction, fresh)
        places = self.models.places(work.name, len(runs))
        # What is with the coordinator has its order; a source whose order changes keeps its items.
        low_water = 64 if work.returns else max(64, 2 * len(runs) * places)
        items: list[tuple[int, Row]] = []
        taken, closed, started_at = 0, False, time.monotonic()
        alive, limits = dict(runs), self.models.limits()
        self._peak_in_flight()  # that of earlier sweeps is theirs
        patience_s = 0.0
        while True:
            affordable = self.spending.items(sweep.accounts, sweep.finished, self.models)
            exchange = coordinator.exchange.remote(items, closed, low_water, patience_s, affordable)
            news: Exchange = ray.get(exchange)
            items = []
            for number, outcome in news.outcomes + self._give_up(work, news.given_up):
                failed = outcome.status != "complete"
                sweep.finished += 1
                sweep.failed += failed
                watch.note(outcome.status, outcome.error)
                source.finished(number, outcome)
            sweep.accounts, sweep.reissued = news.accounts, news.reissued
            sweep.accounts.limits = limits
            self.on_progress(
                Progress(
                    work.name,
                    sweep.finished,
                    source.total,
                    sweep.failed,
                    news.in_flight,
                    news.accounts,
                    self.spending.before,
                    time.monotonic() - started_at,
                )
            )
            if news.fatal:
                raise ModelRefused(news.fatal)
            over = closed and news.open == 0
            if watch.tripped or (over and watch.in_vain):
                raise TooManyFailures(watch.message(work.name))
            if over:
                return
            self.spending.check(sweep.accounts, news.in_flight, time.monotonic())
            self.stop.check(news.in_flight)
            if news.open == news.waiting > 0:  # none is leased: can another be paid for?
                affordable = self.spending.items(sweep.accounts, sweep.finished, self.models)
                if affordable is not None and sweep.finished >= affordable:
                    raise self.spending.exhausted(sweep.accounts)
            rows, closed = ([], True) if closed else _taken(source, low_water - news.waiting)
            items = list(enumerate(rows, taken))
            taken += len(rows)
            # A source that has nothing yet may have something any moment, unless it waits for outcomes.
            patience_s = 0.02 if not (rows or closed or work.returns) else 0.25
            self._drop_dead(alive, coordinator)

    def _account(self, sweep: Sweep, stage: str, started_at: float, coordinator: Any) -> None:
        """Add what a sweep came to, also one that was broken off, to what this run spent."""
        with suppress(RayError):  # some of it died: what was last heard of counts
            sweep.accounts = ray.get(coordinator.accounts.remote(), timeout=ACCOUNTED_WITHIN_S)
            sweep.peak_in_flight = self._peak_in_flight()
        sweep.accounts.limits = self.models.limits()
        sweep.ended(stage, time.monotonic() - started_at)
        self.spending.add(sweep.accounts)

    def _give_up(self, work: Work[T], given_up: list[tuple[int, Row, int]]) -> list[tuple[int, Outcome[T]]]:
        """Journal items that kill whoever works on them, as failures."""
        if not given_up:
            return []
        writer = JournalWriter(self.store, work.name, f"driver-{uuid.uuid4().hex[:12]}")
        ended: list[tuple[int, Outcome[T]]] = []
        for number, row, times in given_up:
            told = killed_row(work, row, times, time.time())
            writer.append(told)
            ended.append((number, outcome_of(told.key, Refused(told.error or ""), [told])))
        writer.flush()
        return ended

    def _peak_in_flight(self) -> int:
        return max(ray.get([limiter.take_peak.remote() for limiter in self._limiters]), default=0)

    def _drop_dead(self, alive: dict[Any, str], coordinator: Any) -> None:
        """Workers that died for good: what they had is free for others. Raises when none is left, and what a
        worker's run ended with."""
        ended, _ = ray.wait(list(alive), num_returns=len(alive), timeout=0)
        for ref in ended:
            name = alive.pop(ref)
            try:
                ray.get(ref)
            except RayActorError as e:
                ray.get(coordinator.lost.remote(name))
                for limiter in self._limiters:
                    limiter.forget.remote(name)
                if not alive:
                    raise GraphRagError(f"all LLM workers died; the last with: {_told(e)}") from e


def _taken(source: Source[Any], room: int) -> tuple[list[Row], bool]:
    """Some `room` items of a source, as far as it has them now; and whether these were the last."""
    rows: list[Row] = []
    while len(rows) < room:
        more = source.take()
        if more is None:
            return rows, True
        if not more:
            break
        rows += more
    return rows, False


def _told(error: BaseException) -> str:
    """What Ray says of an actor's death, without its ids."""
    return str(error).splitlines()[0]


def _beside_driver() -> NodeAffinitySchedulingStrategy:
    """For actors that a run cannot do without: on the driver's node, whose loss ends the run anyway."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)


def _stop(coordinator: Any, runs: list[Any], drain_s: float) -> None:
    """End a sweep early: workers wait for what is in flight, journal what they have and come back."""
    with suppress(RayActorError):  # the coordinator may be what died; then its workers know
        ray.get(coordinator.stop.remote(drain_s))
    ray.wait(runs, num_returns=len(runs), timeout=drain_s + FLUSHED_WITHIN_S)
