"""What an executor can do, whichever it is: the contract that `in_process.py` and `ray/` share.

Steps of a run say what happens to tables and which dialogues are run; an executor says where. Table
functions get the store and one input and yield tables by name; the executor writes each as a
content-addressed part. One test suite holds both executors to this.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from graphrag_ray.base.errors import TooManyFailures
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.leases import FailureWatch
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.stopping import Stop
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.llm.accounting import Accounts, InFlight, Span
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, write_part

T = TypeVar("T")
X = TypeVar("X")

Tables: TypeAlias = Mapping[str, pa.Table]
TableFunction: TypeAlias = Callable[[Store, X], Iterable[Tables]]
Written: TypeAlias = list[dict[str, list[Part]]]
"""For each input (or partition), in order: the parts written under each table's name."""

TABLES_AHEAD = 8
TAKEN_BYTES = 1 << 30
LOOK_S = 0.2

PARTITION = "partition"
"""The column (int32) by which `shuffle` brings rows together."""


@dataclass(frozen=True)
class Parted(Generic[X]):
    """How an input is done whose processes die: in parts, one by one, so that all but the guilty one is done.

    parts    the smaller inputs that make up one, in order
    failed   the tables that stand for a part of which processes die too; told why
    """

    parts: Callable[[X], Sequence[X]]
    failed: Callable[[X, str], Tables]


@dataclass
class Sweep:
    """What a sweep did. `finished` counts every item, failed ones too; `turns` the replies these took."""

    finished: int = 0
    failed: int = 0
    turns: int = 0
    reissued: int = 0
    peak_in_flight: int = 0
    accounts: Accounts = field(default_factory=Accounts)

    def summary(self, stage: str) -> dict[str, Any]:
        """What it came to, in a few numbers."""
        total, span = self.accounts.total, self.accounts.spans.get(stage)
        return {
            "stage": stage,
            "items": self.finished,
            "failed": self.failed,
            "calls": total.calls,
            "retries": total.retries,
            "rate_limited": total.rate_limited,
            "tokens": total.total_tokens,
            "cost_usd": total.cost_usd,
            "seconds": span.ms / 1000 if span else None,
        }


@dataclass(frozen=True)
class SweepProgress:
    """A glimpse of a running sweep, for people. `total` is None while it is not known.

    accounts   of this sweep; before: of the sweeps of this run that have ended
    turns      replies that the items took which are done
    turns_each replies that an item takes, as expected beforehand; None: a call answers many items
    """

    stage: str
    done: int
    total: int | None
    failed: int
    in_flight: InFlight
    accounts: Accounts
    before: Accounts
    seconds: float
    turns: int = 0
    turns_each: float | None = None


class ItemSource(Protocol[T]):
    """Where a sweep's items come from, and where their outcomes go. Called from one thread."""

    @property
    def total(self) -> int | None: ...

    def take(self) -> list[Row] | None:
        """Items that may start now; [] when none can at the moment; None when there will be no more.

        Items are numbered in the order in which they are taken, from 0.
        """
        ...

    def finished(self, number: int, outcome: Outcome[T]) -> None:
        """An item ended, and its turns are journalled."""
        ...


@dataclass
class Executor(ABC):
    """flush_s       seconds between journal writes
    on_progress   called a few times a second during a sweep
    spending      what the sweeps of this executor came to so far, ended or broken off, and what they may
    bad_replies_count   see `leases.FailureWatch`
    """

    store: Store
    models: Models
    max_failed_fraction: float = 0.5
    flush_s: float = 2.0
    on_progress: Callable[[SweepProgress], None] = lambda progress: None
    spending: Spending = field(default_factory=Spending)
    stop: Stop = field(default_factory=Stop)
    bad_replies_count: bool = True

    @abstractmethod
    def share(self, value: T) -> Callable[[], T]:
        """A cheap handle to a large value that table functions need."""

    @abstractmethod
    def map(
        self,
        step: str,
        fn: TableFunction[X],
        inputs: Iterable[X],
        parted: Parted[X] | None = None,
        ended: Callable[[int], None] = lambda number: None,
    ) -> Written:
        """Run `fn` on every input and write what it yields. Raises ProcessDied where an input kills the
        process that works on it, again and again, unless the step says how it is parted.

        inputs: where they are no sequence, those alone are held that are being worked on; what a dataset
        (`GivenRows.dataset`) gives comes in any order
        ended: told the number of each input that is done
        """

    @abstractmethod
    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
        bundles: int | None = None,
    ) -> Written:
        """Run `fn` on every input, bring rows with equal PARTITION together, `reduce` and write each. A
        partition without rows comes to {}, without being reduced.

        The order of rows within a partition is not defined: `reduce` sorts.

        bundles: into how many the partitions are put together on their way, since many are small; None: each
        goes alone
        """

    @abstractmethod
    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        """Run `fn` on every input and bring the tables here, a few at a time, in any order. Raises
        ProcessDied as `map` does."""

    @abstractmethod
    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> Sweep:
        """Run every item of the source to its end. Raises RunStopped when the run must not go on."""


class RunningSweep(Generic[T]):
    """What both executors' sweeps do alike: count what ends, and tell people how it goes."""

    def __init__(self, executor: Executor, work: Work[T], source: ItemSource[T], index: JournalIndex) -> None:
        self.work, self.source, self.index = work, source, index
        self.spending, self.stop = executor.spending, executor.stop
        self.sweep = Sweep(accounts=Accounts(limits=executor.models.limits()))
        self.watch = FailureWatch(
            executor.max_failed_fraction, index.keys_done() == 0, executor.bad_replies_count
        )
        self.started_at = time.monotonic()
        self._executor = executor

    def count(self, outcome: Outcome[T]) -> None:
        self.sweep.finished += 1
        self.sweep.failed += outcome.status != "complete"
        self.sweep.turns += outcome.turns
        self.watch.note(outcome.status, outcome.error, outcome.known)

    def check(self, running: int, in_flight: InFlight) -> None:
        """running: items that are begun. Raises BudgetSpent, TooManyFailures; Interrupted where the run was
        told to stop."""
        if self.watch.tripped(running):
            raise TooManyFailures(self.watch.message(self.work.name))
        self.spending.check(self.sweep.accounts, in_flight, time.monotonic())
        self.stop.check(in_flight)

    def check_end(self) -> None:
        """Where all items have ended. Raises TooManyFailures."""
        if self.watch.tripped() or self.watch.in_vain:
            raise TooManyFailures(self.watch.message(self.work.name))

    def affordable(self, running: int, in_flight: InFlight) -> int | None:
        """Items that may be started now, for the budget; None: any number. running: those that are begun."""
        done, models = self.sweep.finished, self._executor.models
        items = self.spending.items(self.sweep.accounts, done, models, in_flight, self.work.turns)
        return None if items is None else max(0, items - done - running)

    def show(self, in_flight: InFlight) -> None:
        self._executor.on_progress(
            SweepProgress(
                self.work.name,
                self.sweep.finished,
                self.source.total,
                self.sweep.failed,
                in_flight,
                self.sweep.accounts,
                self.spending.before,
                time.monotonic() - self.started_at,
                self.sweep.turns,
                self.work.turns,
            )
        )

    def ended(self) -> None:
        """Note how long it took, so that the accounts can say how much of the limits was used."""
        took = Span(round((time.monotonic() - self.started_at) * 1000), self.sweep.peak_in_flight)
        self.sweep.accounts.spans[self.work.name] = took
        self.spending.before.absorb(self.sweep.accounts)


def by_partition(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each PARTITION that there is, in the order in which they stand."""
    if not table.num_rows:
        return
    partition = table[PARTITION].to_numpy()
    if table.nbytes > TAKEN_BYTES:  # a column of texts holds 2 GB in one piece, and no more
        for p in np.unique(partition).tolist():
            yield p, table.filter(pa.array(partition == p))
        return
    order = np.argsort(partition, kind="stable")
    there, starts = np.unique(partition[order], return_index=True)
    rows = table.take(pa.array(order))
    for p, start, end in zip(there.tolist(), starts, [*starts[1:], len(order)], strict=True):
        yield p, rows.slice(start, end - start)


def write_all(store: Store, tables: Iterable[Tables]) -> dict[str, list[Part]]:
    """Writes tables as parts; a table without rows is none. Returns the parts by the tables' names."""
    written: dict[str, list[Part]] = {}
    for named in tables:
        for name, table in named.items():
            parts = written.setdefault(name, [])
            if table.num_rows:
                parts.append(write_part(store, name, table))
    return written


class RowSource(Generic[T]):
    """The items of a stream of tables, each row one item; rows with an equal key run once.

    The column `key` holds the item key and is dropped before the row becomes an item. The stream is read in
    a thread, a few tables ahead: finding what is still open may take long, and must hold nothing up. The
    thread ends with the stream or at `close`.
    """

    def __init__(self, tables: Iterator[pa.Table], total: int | None) -> None:
        self._seen: set[int] = set()
        self._ahead: queue.Queue[pa.Table | BaseException | None] = queue.Queue(maxsize=TABLES_AHEAD)
        self._closed = threading.Event()
        threading.Thread(target=self._read, args=(tables,), name="items", daemon=True).start()
        self._taken = 0
        self.total = total
        """Before the stream has ended, what the caller knew; then the items there were."""

    def take(self) -> list[Row] | None:
        try:
            table = self._ahead.get_nowait()
        except queue.Empty:
            return []
        if table is None:
            self.total = self._taken
            return None
        if isinstance(table, BaseException):
            raise table
        rows = []
        for row in table.to_pylist():
            prefix = int(row.pop("key")[:16], 16)
            if prefix not in self._seen:
                self._seen.add(prefix)
                rows.append(row)
        self._taken += len(rows)
        return rows

    def close(self) -> None:
        """Read no more, as after a sweep that was broken off."""
        self._closed.set()

    def _read(self, tables: Iterator[pa.Table]) -> None:
        try:
            for table in tables:
                if table.num_rows and not self._put(table):
                    break
            else:
                self._put(None)
        except BaseException as e:  # noqa: BLE001 - it is raised again by `take`
            self._put(e)
        finally:
            if isinstance(tables, Generator):
                tables.close()  # what it has started ends with it

    def _put(self, found: pa.Table | BaseException | None) -> bool:
        """False where nobody will take it."""
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._ahead.put(found, timeout=LOOK_S)
                return True
        return False

    def finished(self, number: int, outcome: Outcome[T]) -> None:
        """Results are read from the journal afterwards."""
