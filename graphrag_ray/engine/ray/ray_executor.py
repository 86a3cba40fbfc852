"""The Ray executor: tables run in tasks (`table_tasks.py`), dialogues in a pool of worker actors.

During a sweep the driver leases items to workers and collects their outcomes, with one open call to each
worker that has items. Only the driver knows which items are open, so the death of a worker loses only its
calls in flight. An item is finished when its turns are journalled. Before the items of a lost worker restart,
the journal is read again for the replies that it stored.
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
from graphrag_ray.base.wording import strip_ansi
from graphrag_ray.engine.dialogue_runner import GaveUp
from graphrag_ray.engine.executor import ItemSource, RunningSweep, SweepResult
from graphrag_ray.engine.leases import LeaseBook
from graphrag_ray.engine.ray.metrics import RunMetrics
from graphrag_ray.engine.ray.table_tasks import RayTables, unwrap_errors
from graphrag_ray.engine.ray.worker import WorkerReport
from graphrag_ray.engine.ray.worker_pool import Member, WorkerPool
from graphrag_ray.engine.work import Outcome, Row, Work, killed_row, outcome_from_journal
from graphrag_ray.llm.accounting import InFlight
from graphrag_ray.store.journal import JournalIndex, JournalWriter

T = TypeVar("T")
_log = logging.getLogger(__name__)

POLL_S = 0.02
"""How long to wait for answers before calling idle workers."""
MIN_ITEMS = 16
"""Minimum number of items to lease to a worker together, if it has room and the queue has as many."""
SHOW_INTERVAL_S = 0.1
ANSWER_TIMEOUT_S = 2.0
"""How long a sweep that ends early waits for answers to open calls, because they count too."""
FLUSH_TIMEOUT_S = 10.0
"""Time after draining for workers to journal their replies when a sweep ends early."""
UNREACHABLE_S = 30.0
"""A worker that is unreachable for this long is restarted, even if it is alive."""
MAX_RESTARTS = 3
"""Maximum consecutive restarts of an unreachable worker without a finished item in between."""
WORKER_DIED = (RayActorError, ActorUnschedulableError)
"""Errors for a permanent death: the worker's node is gone, or the worker cannot start there."""

_call_numbers = count(1)
"""Numbers the calls to all workers, across sweeps."""


@dataclass
class WorkerConnection:
    """The driver's connection to a worker during one sweep.

    Attributes:
        session: Number of the call that began the session. A restarted worker does not know this session.
        ref: Reference to the pending answer of the last call, which was to `method`.
        restarts: Restarts of an unreachable worker since its last finished item.
        leave_at: When a worker that must leave has to be gone, on the monotonic clock.
    """

    member: Member
    session: int = 0
    method: str = ""
    ref: Any = None
    report: WorkerReport = field(default_factory=WorkerReport)
    unreachable_since: float | None = None
    restarts: int = 0
    leave_at: float | None = None
    repeat: Callable[[], Any] = lambda: None

    def ask(self, method: str, *args: Any) -> None:
        number, self.method = next(_call_numbers), method
        if method == "begin":
            self.session, self.report = number, WorkerReport()
        # If the connection breaks, the call is repeated with the same number, so the worker executes it once.
        self.repeat = partial(self.member.actor.ask.remote, number, self.session, method, *args)
        self.ref = self.repeat()


@dataclass
class RayExecutor(RayTables):
    """Runs on the connected Ray cluster (see `cluster.connect`).

    Attributes:
        workers_per_node: LLM workers per node. None lets `worker_pool.workers_on` decide.
        run: Id of the run in metrics, logs and actor names.
        checked_nodes: Ids of the nodes that passed `cluster.check_nodes`. The driver's node needs no check.
    """

    workers_per_node: int | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    checked_nodes: Collection[str] = ()
    _pool: WorkerPool | None = None
    _index: tuple[JournalIndex, Any] | None = None
    _metrics: RunMetrics | None = None

    def share(self, value: T) -> Callable[[], T]:
        return partial(ray.get, self.put(value))

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> SweepResult:
        with unwrap_errors(work.name):
            return RaySweep(self, work, source, index).run()

    def put(self, value: Any) -> Any:
        """Put a value into the object store. A stream and a sweep share one copy of a journal index."""
        if not isinstance(value, JournalIndex):
            return ray.put(value)
        if self._index is None or self._index[0] is not value:
            self._index = (value, ray.put(value))
        return self._index[1]

    def start(self) -> WorkerPool:
        """Start the worker pool if necessary, without waiting until the workers are up."""
        if self._pool is None:
            logs.set_run(self.run)
            checked = {ray.get_runtime_context().get_node_id(), *self.checked_nodes}
            self._pool = WorkerPool(
                self.store, self.models, self.journal_flush_s, self.workers_per_node, checked, self.run
            )
        return self._pool

    def close(self) -> None:
        """Stop the worker pool."""
        if self._pool is not None:
            self._pool.close()
        if self._attempt_counter is not None:
            ray.kill(self._attempt_counter)
        self._pool = self._attempt_counter = None


class RaySweep(RunningSweep[T]):
    def __init__(
        self, executor: RayExecutor, work: Work[T], source: ItemSource[T], index: JournalIndex
    ) -> None:
        super().__init__(executor, work, source, index)
        self.executor, self.models, self.pool = executor, executor.models, executor.start()
        self._book: LeaseBook[Row] = LeaseBook()
        self._taken = 0
        self._exhausted = False
        self._shown_at = -math.inf
        executor._metrics = executor._metrics or RunMetrics(executor.run, executor.models.online)
        self._metrics = executor._metrics
        self._metrics.begin(work.name, self.pool.limiters)
        self._connections: dict[str, WorkerConnection] = {}
        self._last_death: RayError | None = None

    def run(self) -> SweepResult:
        """Run every item to its end. Raises the errors of `Executor.sweep`."""
        self._peak_in_flight()  # discards the peak of earlier sweeps
        with self.stop.polling():
            try:
                self.pool.poll()
                self.pool.dismiss()
                self._begin(self.pool.working)
                while not (self._exhausted and self._book.open == 0):
                    self.check(self._book.leased, self._in_flight())
                    if not self._book.leased and self._book.waiting and self._affordable() == 0:
                        raise self.spending.exhausted_error(self.sweep.accounts)
                    self._take()
                    self._follow_nodes()
                    self._call_workers()
                    self._collect_answers()
                    self._show()
                self.check_failures()
                self._end(0.0)
                self._show(force=True)
            except BaseException as e:
                with suppress(RayError, GraphRagError):  # the original error matters more
                    self._end(0.0 if self.stop.repeated else self.stop.grace_s)
                    if isinstance(e, RunStopped):
                        self._show(force=True)
                raise
            finally:
                with suppress(RayError):
                    self.sweep.peak_in_flight = self._peak_in_flight()
                self.record_timing()
                self._metrics.end(self.sweep)
        return self.sweep

    def _affordable(self) -> int | None:
        return self.affordable(self._book.leased, self._in_flight())

    def _in_flight(self) -> InFlight:
        return InFlight.sum(connection.report.in_flight for connection in self._connections.values())

    def _take(self) -> None:
        """Take about as many items as workers may want next. The source can still reorder the others."""
        workers = max(1, len(self._connections))
        wanted = (
            64 if self.work.needs_results else max(64, workers * self.models.slots(self.work.name, workers))
        )
        while self._book.waiting < wanted and not self._exhausted:
            rows = self.source.take()
            self._exhausted = rows is None
            if not rows:
                return
            self._book.add(enumerate(rows, self._taken))
            self._taken += len(rows)

    def _begin(self, members: Iterable[Member]) -> None:
        index = self.executor.put(self.index)
        keys = {v: os.environ[v] for v in self.models.key_variables() if v in os.environ}
        for member in members:
            connection = self._connections.setdefault(member.name, WorkerConnection(member))
            connection.ask("begin", self.work, index, keys)

    def _call_workers(self) -> None:
        """Call each idle worker that has items, gets new ones, or must leave."""
        affordable = self._affordable()
        for name, connection in self._connections.items():
            if connection.ref is not None:
                continue
            if connection.unreachable_since is not None:
                connection.ref = connection.repeat()
            elif connection.leave_at is not None:
                if connection.method == "leave":
                    connection.ask("end", max(0.0, connection.leave_at - time.monotonic()))
                else:
                    connection.ask("leave")
            else:
                # Split evenly, so that the first worker that is up does not take everything.
                share = max(MIN_ITEMS, math.ceil(self._book.waiting / len(self._connections)))
                free = min(connection.report.free, share if affordable is None else min(share, affordable))
                items = self._book.lease(name, free)
                if affordable is not None:
                    affordable -= len(items)
                if items or self._book.leases_of(name):
                    losses = self._book.losses_of(number for number, _ in items)
                    connection.ask("exchange", items, losses, len(self._connections))

    def _collect_answers(self) -> None:
        """Process the answers that arrive within POLL_S."""
        pending = {c.ref: c for c in self._connections.values() if c.ref is not None}
        if not pending:
            time.sleep(POLL_S)
            return
        for ref in ray.wait(list(pending), num_returns=len(pending), timeout=POLL_S)[0]:
            connection = pending[ref]
            connection.ref = None
            try:
                report: WorkerReport | None = ray.get(ref)
            except ActorUnavailableError as e:
                self._handle_unreachable(connection, e)
            except WORKER_DIED as e:
                self._handle_lost(connection, e)
            else:
                connection.unreachable_since = None
                self._handle_answer(connection, report)

    def _handle_answer(self, connection: WorkerConnection, report: WorkerReport | None) -> None:
        name = connection.member.name
        if report is None:  # its process died, and Ray restarted it
            self._requeue(name)
            self._begin([connection.member])
            return
        self._record(connection, report)
        if report.fatal:
            raise report.fatal.as_run_error()
        if connection.method == "leave":
            self._book.hand_back(name, report.not_begun, begun=False)
        elif connection.method == "end":
            self._book.hand_back(name, self._book.leases_of(name), begun=True)
            logs.log_event(_log, "worker left", stage=self.work.name, worker=name)
            self._remove(connection, None)

    def _record(self, connection: WorkerConnection, report: WorkerReport) -> None:
        connection.report = report
        self.sweep.accounts.merge(report.accounts)
        for number, outcome in report.finished:
            connection.restarts = 0
            if self._book.finish(number):
                self.count(outcome)
                self.source.on_finished(number, outcome)

    def _handle_unreachable(self, connection: WorkerConnection, error: ActorUnavailableError) -> None:
        """Repeat the call to a worker. Restart it after UNREACHABLE_S; give it up after MAX_RESTARTS."""
        now = time.monotonic()
        connection.unreachable_since = connection.unreachable_since or now
        if now - connection.unreachable_since < UNREACHABLE_S:
            return
        name = connection.member.name
        logs.log_event(_log, "worker cut off", logging.WARNING, stage=self.work.name, worker=name)
        connection.restarts += 1
        given_up = connection.restarts >= MAX_RESTARTS
        ray.kill(connection.member.actor, no_restart=given_up)
        self._book.hand_back(name, self._book.leases_of(name), begun=True)
        if given_up:
            self._handle_lost(connection, error)
        else:
            connection.unreachable_since = None
            self._begin([connection.member])

    def _handle_lost(self, connection: WorkerConnection, error: RayError) -> None:
        name = connection.member.name
        logs.log_event(_log, "worker lost", logging.WARNING, stage=self.work.name, worker=name)
        self._requeue(name)
        self._remove(connection, error)

    def _requeue(self, name: str) -> None:
        """Requeue the items of a dead worker. Journal items that crash their workers as failures."""
        self._book.lose(name)
        if (reissued := self._book.reissued - self.sweep.reissued) > 0:
            logs.log_event(
                _log, "leases of a lost worker", logging.WARNING, stage=self.work.name, items=reissued
            )
        self.sweep.reissued = self._book.reissued
        if not (given_up := self._book.give_up()):
            return
        writer = JournalWriter(self.executor.store, self.work.name, f"driver-{uuid.uuid4().hex[:12]}")
        killed = [
            (number, killed_row(self.work, row, n, self.index.next_time())) for number, row, n in given_up
        ]
        for _, row in killed:
            writer.append(row)
        writer.flush()
        for number, row in killed:
            outcome: Outcome[T] = outcome_from_journal(row.key, GaveUp(row.error or ""), [row])
            self.count(outcome)
            self.source.on_finished(number, outcome)

    def _remove(self, connection: WorkerConnection, why: RayError | None) -> None:
        """Remove a worker that left (`why` is None) or died."""
        del self._connections[connection.member.name]
        self.pool.remove(connection.member.name, died=why is not None)
        self._last_death = why or self._last_death

    def _follow_nodes(self) -> None:
        """Add workers on new nodes, and make workers on draining nodes leave.

        Raises:
            GraphRagError: No worker is left and none can be started.
        """
        for poll in (self.pool.poll, self.pool.poll_now):
            joined, leaving = poll()
            self._begin(joined)
            for name, seconds in leaving.items():
                if name in self._connections:
                    self._connections[name].leave_at = time.monotonic() + seconds
            if self._connections:
                return
        if (why := self._last_death) is None:
            raise GraphRagError(
                "All LLM workers left because their nodes are being drained. Add nodes and run the same "
                "command again; finished work is reused."
            )
        error = strip_ansi(str(why)).splitlines()[0]  # later lines contain Ray's ids
        raise GraphRagError(f"All LLM workers died. The last error was: {error}") from why

    def _end(self, drain_s: float) -> None:
        """End the session of every worker: drain and journal calls in flight, and count the results."""
        self._collect_remaining(ANSWER_TIMEOUT_S)
        for connection in self._connections.values():
            if connection.method != "begin" or connection.ref is None:  # a starting worker has no items
                connection.ask("end", drain_s)
        self._collect_remaining(drain_s + FLUSH_TIMEOUT_S)

    def _collect_remaining(self, timeout_s: float) -> None:
        """Process answers to open calls that arrive in time. Ignores workers that die now."""
        open_ = [c for c in self._connections.values() if c.ref is not None and c.method != "begin"]
        pending = {connection.ref: connection for connection in open_}
        if not pending:
            return
        for ref in ray.wait(list(pending), num_returns=len(pending), timeout=timeout_s)[0]:
            pending[ref].ref = None
            with suppress(*WORKER_DIED):
                if (report := ray.get(ref)) is not None:
                    self._record(pending[ref], report)

    def _show(self, force: bool = False) -> None:
        """Report progress, but not more often than every SHOW_INTERVAL_S unless forced."""
        now = time.monotonic()
        if not force and now - self._shown_at < SHOW_INTERVAL_S:
            return
        self._shown_at = now
        lag_s = max((connection.report.lag_s for connection in self._connections.values()), default=0.0)
        waiting, leased = self._book.waiting, self._book.leased
        self._metrics.update(self.sweep, self.source.total, waiting, leased, lag_s, len(self._connections))
        self.report_progress(self._in_flight())

    def _peak_in_flight(self) -> int:
        return max(ray.get([limiter.take_peak.remote() for limiter in self.pool.limiters]), default=0)
