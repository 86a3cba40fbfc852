"""The Ray executor: tables through tasks (`table_tasks.py`), dialogues through a pool of worker actors.

In a sweep the driver hands items to the workers and hears what became of them. It has one call open at each
worker that has work, and calls it again when it has answered. Only the driver knows which items are open; a
worker that dies takes nothing with it but its calls in flight. An item is finished when its turns are
journalled. What a lost worker journalled is read before its items begin again.
"""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayError

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError, RunStopped
from graphrag_ray.base.wording import without_colors
from graphrag_ray.engine.drive import Refused
from graphrag_ray.engine.executor import ItemSource, RunningSweep, Sweep
from graphrag_ray.engine.leases import LeaseBook
from graphrag_ray.engine.ray.metrics import RunMetrics
from graphrag_ray.engine.ray.table_tasks import RayTables, unwrapped
from graphrag_ray.engine.ray.worker import WorkerReport
from graphrag_ray.engine.ray.worker_pool import Member, WorkerPool
from graphrag_ray.engine.work import Outcome, Row, Work, killed_row, outcome_of
from graphrag_ray.llm.accounting import InFlight
from graphrag_ray.store.journal import JournalIndex, JournalWriter

T = TypeVar("T")
_log = logging.getLogger(__name__)

LOOK_S = 0.02
"""How long answers are waited for before workers without an open call are looked after."""
FEWEST_ITEMS = 16
"""That a worker with room for them is given at once, if there are as many."""
SHOWN_EVERY_S = 0.1
ANSWERED_WITHIN_S = 2.0
"""Open calls of a sweep that ends early: their answers are counted, too."""
FLUSHED_WITHIN_S = 10.0
"""Workers of a sweep that ends early get so long, beyond the time for calls in flight, to journal them."""
UNREACHED_S = 30.0
"""A worker that cannot be reached for so long is started again, whether it lives or not."""
CUT_OFF_IN_A_ROW = 3
"""Times that this may happen to a worker without an item being finished between."""
WORKER_DIED = (RayActorError, ActorUnschedulableError)
"""For good: its node is gone, or it cannot start there."""

_numbers = count(1)
"""Of calls of workers, over all sweeps."""


@dataclass
class Line:
    """The driver's line to a worker, for one sweep.

    session       the number of the call that began the worker's part; a process that Ray starts later does
                  not know it
    method, ref   the last call, and its answer while that is awaited
    report        the last one
    unreached_at  since when the worker cannot be reached; None: it can
    cut_off       how often it was started again since, without an item being finished between
    leave_at      when the worker is to have left; None: it stays
    """

    member: Member
    session: int = 0
    method: str = ""
    ref: Any = None
    report: WorkerReport = field(default_factory=WorkerReport)
    unreached_at: float | None = None
    cut_off: int = 0
    leave_at: float | None = None
    repeat: Callable[[], Any] = lambda: None

    def ask(self, method: str, *args: Any) -> None:
        number, self.method = next(_numbers), method
        if method == "begin":
            self.session, self.report = number, WorkerReport()
        # Called again where a connection broke: the worker repeats an answer that was lost.
        self.repeat = partial(self.member.actor.ask.remote, number, self.session, method, *args)
        self.ref = self.repeat()


@dataclass
class RayExecutor(RayTables):
    """Runs on the connected Ray cluster (see `cluster.connected`).

    workers_per_node   LLM actors per node; None: as `worker_pool.workers_on` says
    run                names it in metrics, logs and among Ray's actors
    fit                nodes that were asked (`cluster.check_nodes`), besides our own
    """

    workers_per_node: int | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    fit: Collection[str] = ()
    _pool: WorkerPool | None = None
    _index: tuple[JournalIndex, Any] | None = None
    _metrics: RunMetrics | None = None

    def share(self, value: T) -> Callable[[], T]:
        return partial(ray.get, self.put(value))

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> Sweep:
        with unwrapped(work.name):
            return RaySweep(self, work, source, index).run()

    def put(self, value: Any) -> Any:
        """Into the object store; the journal's index, which a sweep needs beside a stream, once only."""
        if not isinstance(value, JournalIndex):
            return ray.put(value)
        if self._index is None or self._index[0] is not value:
            self._index = (value, ray.put(value))
        return self._index[1]

    def metrics(self) -> RunMetrics:
        """Of the run."""
        self._metrics = self._metrics or RunMetrics(self.run, self.models.online)
        return self._metrics

    def start(self) -> WorkerPool:
        """Start the worker pool, unless it is there, without waiting for it: workers take a few seconds to
        come up."""
        if self._pool is None:
            logs.set_run(self.run)
            fit = {ray.get_runtime_context().get_node_id(), *self.fit}
            self._pool = WorkerPool(
                self.store, self.models, self.flush_s, self.workers_per_node, fit, self.run
            )
        return self._pool

    def close(self) -> None:
        """End the worker pool."""
        if self._pool is not None:
            self._pool.close()
        if self._desk is not None:
            ray.kill(self._desk)
        self._pool = self._desk = None


class RaySweep(RunningSweep[T]):
    def __init__(
        self, executor: RayExecutor, work: Work[T], source: ItemSource[T], index: JournalIndex
    ) -> None:
        super().__init__(executor, work, source, index)
        self.executor, self.models, self.pool = executor, executor.models, executor.start()
        self._book: LeaseBook[Row] = LeaseBook()
        self._taken = 0
        self._closed = False
        self._shown_at = -math.inf
        self._metrics = executor.metrics()
        self._metrics.begin(work.name, self.pool.limiters)
        self._lines: dict[str, Line] = {}
        self._last_death: RayError | None = None

    def run(self) -> Sweep:
        """Every item to its end. Raises as `Executor.sweep`."""
        self._peak_in_flight()  # that of earlier sweeps is theirs
        with self.stop.while_asking():
            try:
                self.pool.look()
                self.pool.dismiss()
                self._begin(self.pool.working)
                while not (self._closed and self._book.open == 0):
                    self.check(self._book.leased, self._in_flight())
                    if not self._book.leased and self._book.waiting and self._affordable() == 0:
                        raise self.spending.exhausted(self.sweep.accounts)
                    self._take()
                    self._follow_nodes()
                    self._hand_out()
                    self._hear()
                    self._show()
                self.check_end()
                self._end(0.0)
                self._show(at_once=True)
            except BaseException as e:
                with suppress(RayError, GraphRagError):  # what stopped the sweep is what it ends with
                    self._end(0.0 if self.stop.twice else self.stop.grace_s)
                    if isinstance(e, RunStopped):
                        self._show(at_once=True)
                raise
            finally:
                with suppress(RayError):
                    self.sweep.peak_in_flight = self._peak_in_flight()
                self.ended()
                self._metrics.end(self.sweep)
        return self.sweep

    def _affordable(self) -> int | None:
        return self.affordable(self._book.leased, self._in_flight())

    def _in_flight(self) -> InFlight:
        return InFlight.sum(line.report.in_flight for line in self._lines.values())

    def _take(self) -> None:
        """Items that may start now, as many as workers may want next: a source whose order changes keeps its
        items."""
        workers = max(1, len(self._lines))
        wanted = 64 if self.work.returns else max(64, workers * self.models.places(self.work.name, workers))
        while self._book.waiting < wanted and not self._closed:
            rows = self.source.take()
            self._closed = rows is None
            if not rows:
                return
            self._book.add(enumerate(rows, self._taken))
            self._taken += len(rows)

    def _begin(self, members: Iterable[Member]) -> None:
        index = self.executor.put(self.index)
        keys = {v: os.environ[v] for v in self.models.key_variables() if v in os.environ}
        for member in members:
            line = self._lines.setdefault(member.name, Line(member))
            line.ask("begin", self.work, index, keys)

    def _hand_out(self) -> None:
        """Call the workers that have answered: those that have items, that get some, or that are to leave."""
        affordable = self._affordable()
        for name, line in self._lines.items():
            if line.ref is not None:
                continue
            if line.unreached_at is not None:
                line.ref = line.repeat()
            elif line.leave_at is not None:
                if line.method == "leave":
                    line.ask("end", max(0.0, line.leave_at - time.monotonic()))
                else:
                    line.ask("leave")
            else:
                # Shared out, so that the first worker that is up does not take all: it has one core.
                share = max(FEWEST_ITEMS, math.ceil(self._book.waiting / len(self._lines)))
                free = min(line.report.free, share if affordable is None else min(share, affordable))
                items = self._book.lease(name, free)
                if affordable is not None:
                    affordable -= len(items)
                if items or self._book.held(name):
                    losses = self._book.losses_of(number for number, _ in items)
                    line.ask("exchange", items, losses, len(self._lines))

    def _hear(self) -> None:
        """What workers have answered, or do within LOOK_S."""
        lines = {line.ref: line for line in self._lines.values() if line.ref is not None}
        if not lines:
            time.sleep(LOOK_S)
            return
        for ref in ray.wait(list(lines), num_returns=len(lines), timeout=LOOK_S)[0]:
            line = lines[ref]
            line.ref = None
            try:
                report: WorkerReport | None = ray.get(ref)
            except ActorUnavailableError as e:
                self._unreached(line, e)
            except WORKER_DIED as e:
                self._lost(line, e)
            else:
                line.unreached_at = None
                self._answered(line, report)

    def _answered(self, line: Line, report: WorkerReport | None) -> None:
        name = line.member.name
        if report is None:  # its process died, and Ray started another
            self._note_loss(name)
            self._begin([line.member])
            return
        self._note(line, report)
        if report.fatal:
            raise report.fatal.refusal()
        if line.method == "leave":
            self._book.hand_back(name, report.unasked, begun=False)
        elif line.method == "end":
            self._book.hand_back(name, self._book.held(name), begun=True)
            logs.event(_log, "worker left", stage=self.work.name, worker=name)
            self._gone(line, None)

    def _note(self, line: Line, report: WorkerReport) -> None:
        line.report = report
        self.sweep.accounts.absorb(report.accounts)
        for number, outcome in report.finished:
            line.cut_off = 0
            if self._book.finish(number):
                self.count(outcome)
                self.source.finished(number, outcome)

    def _unreached(self, line: Line, error: ActorUnavailableError) -> None:
        """A worker is called again. One that is not reached for long is started again; one that never is,
        however often it is started, is as good as dead."""
        now = time.monotonic()
        line.unreached_at = line.unreached_at or now
        if now - line.unreached_at < UNREACHED_S:
            return
        name = line.member.name
        logs.event(_log, "worker cut off", logging.WARNING, stage=self.work.name, worker=name)
        line.cut_off += 1
        ray.kill(line.member.actor, no_restart=line.cut_off >= CUT_OFF_IN_A_ROW)
        self._book.hand_back(name, self._book.held(name), begun=True)
        if line.cut_off >= CUT_OFF_IN_A_ROW:
            self._lost(line, error)
        else:
            line.unreached_at = None
            self._begin([line.member])

    def _lost(self, line: Line, error: RayError) -> None:
        """A worker died, and does not come back."""
        logs.event(_log, "worker lost", logging.WARNING, stage=self.work.name, worker=line.member.name)
        self._note_loss(line.member.name)
        self._gone(line, error)

    def _note_loss(self, name: str) -> None:
        """The items of a worker that died are handed out again, but those that kill whoever works on them:
        these are journalled as failures."""
        self._book.lose(name)
        if (again := self._book.reissued - self.sweep.reissued) > 0:
            logs.event(_log, "leases of a lost worker", logging.WARNING, stage=self.work.name, items=again)
        self.sweep.reissued = self._book.reissued
        if not (given_up := self._book.give_up()):
            return
        writer = JournalWriter(self.executor.store, self.work.name, f"driver-{uuid.uuid4().hex[:12]}")
        killed = [(number, killed_row(self.work, row, n, self.index.now())) for number, row, n in given_up]
        for _, told in killed:
            writer.append(told)
        writer.flush()
        for number, told in killed:
            outcome: Outcome[T] = outcome_of(told.key, Refused(told.error or ""), [told])
            self.count(outcome)
            self.source.finished(number, outcome)

    def _gone(self, line: Line, why: RayError | None) -> None:
        """A worker is gone: it left, or died of `why`."""
        del self._lines[line.member.name]
        self.pool.gone(line.member.name, died=why is not None)
        self._last_death = why or self._last_death

    def _follow_nodes(self) -> None:
        """Workers on new nodes join the sweep; those whose node is to go hand back what they have. Raises
        when no worker is left, nor can be started."""
        for look in (self.pool.look, self.pool.look_again):
            joined, leaving = look()
            self._begin(joined)
            for name, seconds in leaving.items():
                if name in self._lines:
                    self._lines[name].leave_at = time.monotonic() + seconds
            if self._lines:
                return
        if (why := self._last_death) is None:
            raise GraphRagError("all LLM workers left: their nodes are to go")
        told = without_colors(str(why)).splitlines()[0]  # without Ray's ids
        raise GraphRagError(f"all LLM workers died; the last with: {told}") from why

    def _end(self, drain_s: float) -> None:
        """End every worker's part: what is in flight is waited for so long and journalled, and counts."""
        self._collect(ANSWERED_WITHIN_S)
        for line in self._lines.values():
            if line.method != "begin" or line.ref is None:  # else it has nothing yet
                line.ask("end", drain_s)
        self._collect(drain_s + FLUSHED_WITHIN_S)

    def _collect(self, within_s: float) -> None:
        """The answers to open calls, as far as they come in time. A worker that dies now is not missed."""
        lines = {
            line.ref: line for line in self._lines.values() if line.ref is not None and line.method != "begin"
        }
        if not lines:
            return
        for ref in ray.wait(list(lines), num_returns=len(lines), timeout=within_s)[0]:
            lines[ref].ref = None
            with suppress(*WORKER_DIED):
                if (report := ray.get(ref)) is not None:
                    self._note(lines[ref], report)

    def _show(self, at_once: bool = False) -> None:
        """Tell people how it goes, a few times a second."""
        now = time.monotonic()
        if not at_once and now - self._shown_at < SHOWN_EVERY_S:
            return
        self._shown_at = now
        lag_s = max((line.report.lag_s for line in self._lines.values()), default=0.0)
        waiting, leased = self._book.waiting, self._book.leased
        self._metrics.look(self.sweep, self.source.total, waiting, leased, lag_s, len(self._lines))
        self.show(self._in_flight())

    def _peak_in_flight(self) -> int:
        return max(ray.get([limiter.take_peak.remote() for limiter in self.pool.limiters]), default=0)
