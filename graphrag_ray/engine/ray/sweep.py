"""One sweep on Ray, as the driver sees it: items go to the coordinator, outcomes come back.

The driver keeps the items that are not finished. So a coordinator that dies takes nothing with it: workers
wait for the calls that are in flight and journal them, another coordinator is started, and what was open is
given to it.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError, RunStopped, TooManyFailures
from graphrag_ray.base.wording import without_colors
from graphrag_ray.engine.drive import Refused
from graphrag_ray.engine.executor import ItemSource, Sweep, SweepProgress
from graphrag_ray.engine.gateways import DRAIN_S, Models
from graphrag_ray.engine.leases import FailureWatch
from graphrag_ray.engine.ray.coordinator import End, Exchange
from graphrag_ray.engine.ray.metrics import Metrics, Queue, SweepMetrics
from graphrag_ray.engine.ray.once import ActorClient
from graphrag_ray.engine.ray.worker_pool import Changes, Member, WorkerPool
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.stopping import Stop
from graphrag_ray.engine.work import Outcome, Row, Work, killed_row, outcome_of
from graphrag_ray.llm.accounting import Accounts, InFlight
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter

T = TypeVar("T")
_log = logging.getLogger(__name__)

FLUSHED_WITHIN_S = 10.0
"""Workers of a sweep that ends early get so long, beyond the time for calls in flight, to journal them."""
ACCOUNTED_WITHIN_S = 5.0

DEATHS_IN_A_ROW = 3
"""Coordinators that may die without an item being finished between."""
GONE: Mapping[End | None, str] = {None: "worker lost", End.LEFT: "worker left", End.CUT_OFF: "worker cut off"}
"""How the log says that a worker's part is over before the sweep is; None: it died."""
CUT_OFF_IN_A_ROW = 3
"""Times that a worker may lose the coordinator from sight without an item being finished between."""

WORKER_DIED = (RayActorError, ActorUnschedulableError)
"""For good: its node is gone, or it cannot start there."""


class _CoordinatorDied(Exception): ...


class RaySweep(Generic[T]):
    """pool: the workers, which come and go; coordinator: a new one; put: a value into the object store;
    metrics: of the run."""

    def __init__(
        self,
        work: Work[T],
        source: ItemSource[T],
        index: JournalIndex,
        *,
        store: Store,
        models: Models,
        spending: Spending,
        stop: Stop,
        watch: FailureWatch,
        on_progress: Callable[[SweepProgress], None],
        pool: WorkerPool,
        coordinator: Callable[[], Any],
        put: Callable[[Any], Any],
        metrics: Metrics,
    ) -> None:
        self.work, self.source, self.index = work, source, index
        self.store, self.models, self.spending, self.watch = store, models, spending, watch
        self.stop = stop
        self.on_progress, self.pool = on_progress, pool
        self._put, self._new_coordinator = put, coordinator
        self.sweep = Sweep()
        self._open: dict[int, Row] = {}
        self._taken = 0
        self._closed = False
        self._started_at = time.monotonic()
        self._limits = models.limits()
        self._metrics = SweepMetrics(metrics, work.name, pool.limiters)
        self._runs: dict[Any, Member] = {}
        self._cut_off = Counter[str]()

    def run(self) -> Sweep:
        """Every item to its end. Raises as `Executor.sweep`."""
        self._peak_in_flight()  # that of earlier sweeps is theirs
        with self.stop.while_asking():
            try:
                self._to_the_end()
            finally:
                with suppress(RayError):
                    self.sweep.peak_in_flight = self._peak_in_flight()
                self.sweep.accounts.limits = self._limits
                self.sweep.ended(self.work.name, time.monotonic() - self._started_at)
                self.spending.add(self.sweep.accounts)
                self._metrics.end(self.sweep)
        return self.sweep

    def _to_the_end(self) -> None:
        deaths, finished = 0, 0
        while True:
            try:
                return self._under_a_coordinator()
            except _CoordinatorDied as e:
                deaths = deaths + 1 if self.sweep.finished == finished else 1
                finished = self.sweep.finished
                if deaths >= DEATHS_IN_A_ROW:
                    raise GraphRagError(
                        f"the coordinator of stage {self.work.name} died {deaths} times in a row: {e} "
                        "What was answered is kept: run the same command again to continue."
                    ) from e
                logs.event(_log, "coordinator lost", logging.WARNING, stage=self.work.name)
                # What its workers journalled meanwhile is not in the index that they were given.
                self.index = self.index.again()

    def _under_a_coordinator(self) -> None:
        """The sweep, as far as one coordinator lives. Raises _CoordinatorDied."""
        coordinator = ActorClient(self._new_coordinator())
        self._runs = {}
        self._cut_off.clear()
        before = self.sweep.accounts
        try:
            keys = {v: os.environ[v] for v in self.models.key_variables() if v in os.environ}
            if keys:
                _ask(coordinator, "hold_keys", keys)
            self.pool.look()
            self.pool.dismiss()
            self._start(self.pool.working, coordinator)
            self._feed(coordinator)
            for run in self._runs:
                with suppress(*WORKER_DIED):  # others finished what it had
                    ray.get(run)
        except _CoordinatorDied:
            ray.kill(coordinator.actor)  # it may live, out of our reach: its workers are to end
            _wait_for(list(self._runs), DRAIN_S)
            raise
        except BaseException as e:
            drain_s = 0.0 if self.stop.twice else self.stop.grace_s
            with suppress(RayError):
                coordinator.get("stop", drain_s, within_s=ACCOUNTED_WITHIN_S)
            _wait_for(list(self._runs), drain_s)
            if isinstance(e, RunStopped):
                self._count_the_rest(coordinator, before)
            raise
        finally:
            with suppress(RayError):  # it died: what was last heard of counts
                handed_in = coordinator.get("accounts", within_s=ACCOUNTED_WITHIN_S)
                self.sweep.accounts = Accounts.merged([before, handed_in])
            ray.kill(coordinator.actor)

    def _start(self, members: Iterable[Member], coordinator: ActorClient) -> None:
        shared = self._put(self.index)
        for member in members:
            self._runs[member.actor.run.remote(self.work, shared, coordinator.actor)] = member

    @property
    def _low_water(self) -> int:
        """Items that shall wait at the coordinator: what is there has its order, while a source whose order
        changes keeps its items."""
        workers = len(self.pool.working)
        places = self.models.places(self.work.name, max(1, workers))
        return 64 if self.work.returns else max(64, 2 * workers * places)

    def _feed(self, coordinator: ActorClient) -> None:
        """Give the coordinator items and learn outcomes, until there is nothing left."""
        sweep = self.sweep
        before, reissued, finished = sweep.accounts, sweep.reissued, sweep.finished
        items, patience_s, in_flight = list(self._open.items()), 0.0, InFlight()
        while True:
            affordable = self._affordable(in_flight)
            if affordable is not None:
                affordable -= finished  # before this coordinator's time
            low_water, workers = self._low_water, len(self.pool.working)
            news: Exchange = _ask(
                coordinator, "exchange", items, self._closed, low_water, patience_s, affordable, workers
            )
            sweep.accounts = Accounts.merged([before, news.accounts])
            sweep.accounts.limits = self._limits
            in_flight = news.in_flight
            if (again := reissued + news.reissued - sweep.reissued) > 0:
                logs.event(
                    _log, "leases of a lost worker", logging.WARNING, stage=self.work.name, items=again
                )
            sweep.reissued = reissued + news.reissued
            self._note(news)
            if news.fatal:
                raise news.fatal.refusal()
            over = self._closed and news.open == 0
            running = 0 if over else max(0, news.open - news.waiting)
            if self.watch.tripped(running) or (over and self.watch.in_vain):
                raise TooManyFailures(self.watch.message(self.work.name))
            if over:
                return
            self._check(news)
            items = self._take(low_water - news.waiting)
            # A source that has nothing yet may have something any moment, unless it waits for outcomes.
            patience_s = 0.02 if not (items or self._closed or self.work.returns) else 0.25
            self._follow_nodes(coordinator, self.pool.look())
            self._let_go(coordinator)

    def _affordable(self, in_flight: InFlight) -> int | None:
        """Items of the sweep that may have been started by now, for the budget; None: any number."""
        return self.spending.items(
            self.sweep.accounts, self.sweep.finished, self.models, in_flight, self.work.turns
        )

    def _note(self, news: Exchange) -> None:
        sweep = self.sweep
        if news.outcomes:
            self._cut_off.clear()
        for number, outcome in news.outcomes + self._give_up(news.given_up):
            del self._open[number]
            sweep.finished += 1
            sweep.failed += outcome.status != "complete"
            sweep.turns += outcome.turns
            self.watch.note(outcome.status, outcome.error, outcome.known)
            self.source.finished(number, outcome)
        leased = max(0, news.open - news.waiting)
        self._metrics.look(
            self.sweep, Queue(self.source.total, news.waiting, leased, news.lag_s, len(self.pool.working))
        )
        self.on_progress(
            SweepProgress(
                self.work.name,
                sweep.finished,
                self.source.total,
                sweep.failed,
                news.in_flight,
                sweep.accounts,
                self.spending.before,
                time.monotonic() - self._started_at,
                sweep.turns,
                self.work.turns,
            )
        )

    def _count_the_rest(self, coordinator: ActorClient, before: Accounts) -> None:
        """What came back after the sweep was told to stop is journalled: people are told of it, too.

        before: what earlier coordinators accounted for
        """
        with suppress(RayError, GraphRagError):  # what stopped the sweep is what it ends with
            news = coordinator.get("exchange", [], True, 0, 0.0, within_s=ACCOUNTED_WITHIN_S)
            self.sweep.accounts = Accounts.merged([before, news.accounts])
            self._note(news)

    def _give_up(self, given_up: list[tuple[int, Row, int]]) -> list[tuple[int, Outcome[T]]]:
        """Journal items that kill whoever works on them, as failures."""
        if not given_up:
            return []
        writer = JournalWriter(self.store, self.work.name, f"driver-{uuid.uuid4().hex[:12]}")
        ended: list[tuple[int, Outcome[T]]] = []
        for number, row, times in given_up:
            told = killed_row(self.work, row, times, self.index.now())
            writer.append(told)
            ended.append((number, outcome_of(told.key, Refused(told.error or ""), [told])))
        writer.flush()
        return ended

    def _check(self, news: Exchange) -> None:
        """Raises BudgetSpent; Interrupted where the run was told to stop."""
        sweep = self.sweep
        self.spending.check(sweep.accounts, news.in_flight, time.monotonic())
        self.stop.check(news.in_flight)
        if news.open == news.waiting > 0:  # none is leased: can another be paid for?
            affordable = self._affordable(news.in_flight)
            if affordable is not None and sweep.finished >= affordable:
                raise self.spending.exhausted(sweep.accounts)

    def _take(self, room: int) -> list[tuple[int, Row]]:
        """Some `room` items of the source, as far as it has them now."""
        rows: list[Row] = []
        while len(rows) < room and not self._closed:
            more = self.source.take()
            if not more:
                self._closed = more is None
                break
            rows += more
        items = list(enumerate(rows, self._taken))
        self._taken += len(items)
        self._open.update(items)
        return items

    def _peak_in_flight(self) -> int:
        return max(ray.get([limiter.take_peak.remote() for limiter in self.pool.limiters]), default=0)

    def _follow_nodes(self, coordinator: ActorClient, changes: Changes) -> None:
        """Workers on new nodes join the sweep; those whose node is to go hand back what they have."""
        self._start(changes.joined, coordinator)
        if changes.leaving:
            _ask(coordinator, "retire", changes.leaving)

    def _let_go(self, coordinator: ActorClient) -> None:
        """Workers that left, died for good or lost the coordinator from sight: what they had is free for
        others. Raises when none is left, and what a worker's run ended with."""
        why: BaseException | None = None
        ended = ray.wait(list(self._runs), num_returns=len(self._runs), timeout=0)[0] if self._runs else []
        for ref in ended:
            member = self._runs[ref]
            try:
                end, died = ray.get(ref), None
            except WORKER_DIED as e:
                end, died = None, e
            if end == End.OVER:
                continue
            del self._runs[ref]
            told_as = GONE[end]
            level = logging.INFO if end == End.LEFT else logging.WARNING
            logs.event(_log, told_as, level, stage=self.work.name, worker=member.name)
            _ask(coordinator, "left" if end else "lost", member.name)
            if end == End.CUT_OFF and (died := self._out_of_reach(member)) is None:
                self._start([member], coordinator)
                continue
            why = died or why
            self.pool.gone(member.name, died=died is not None)
        if self._runs:
            return
        self._follow_nodes(coordinator, self.pool.look_again())
        if not self._runs:
            last = f"died; the last with: {told(why)}" if why else "left: their nodes are to go"
            raise GraphRagError(f"all LLM workers {last}") from why

    def _out_of_reach(self, member: Member) -> RayActorError | None:
        """A worker that never reaches the coordinator, however often it is started, is as good as dead."""
        self._cut_off[member.name] += 1
        if self._cut_off[member.name] < CUT_OFF_IN_A_ROW:
            return None
        ray.kill(member.actor)
        times = f"{CUT_OFF_IN_A_ROW} times in a row"
        return RayActorError(error_msg=f"it could not reach its coordinator, {times}: is the network broken?")


def _ask(coordinator: ActorClient, method: str, *args: Any) -> Any:
    """What the coordinator answers. Raises _CoordinatorDied."""
    try:
        return coordinator.get(method, *args)
    except RayActorError as e:
        raise _CoordinatorDied(told(e)) from e


def told(error: BaseException) -> str:
    """What Ray says of an actor's death, without its ids."""
    return without_colors(str(error)).splitlines()[0]


def _wait_for(runs: list[Any], drain_s: float) -> None:
    """Workers whose sweep is over wait for what is in flight, journal what they have and come back."""
    if runs:
        ray.wait(runs, num_returns=len(runs), timeout=drain_s + FLUSHED_WITHIN_S)
