"""The interface of the in-process executor (`in_process.py`) and the Ray executor (`ray/`).

A run's steps define the table operations and dialogues; an executor decides where they run. A table function
takes the store and one input and yields tables by name. The executor writes each table as a content-addressed
part. The same test suite runs against both executors.
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
from graphrag_ray.engine.interrupts import InterruptState
from graphrag_ray.engine.leases import FailureWatch
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.llm.accounting import Accounts, InFlight, StageTiming
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, write_part

T = TypeVar("T")
X = TypeVar("X")

Tables: TypeAlias = Mapping[str, pa.Table]
TableFunction: TypeAlias = Callable[[Store, X], Iterable[Tables]]
WrittenParts: TypeAlias = list[dict[str, list[Part]]]
"""The written parts by table name, for each input or partition in order."""

TABLES_AHEAD = 8
"""Maximum number of tables that a RowSource reads ahead."""
MAX_TAKE_BYTES = 1 << 30
POLL_S = 0.2

PARTITION = "partition"
"""The int32 column by which `shuffle` groups rows."""


@dataclass(frozen=True)
class InputSplitter(Generic[X]):
    """How to split an input that crashes its processes, so that only the piece responsible is lost.

    Attributes:
        split: Splits an input into smaller inputs, in order.
        failure_tables: Returns the tables that record a piece as failed, given the piece and the reason.
    """

    split: Callable[[X], Sequence[X]]
    failure_tables: Callable[[X, str], Tables]


@dataclass
class SweepResult:
    """The result of a sweep. `finished` includes failed items; `turns` counts the replies to all items."""

    finished: int = 0
    failed: int = 0
    turns: int = 0
    reissued: int = 0
    peak_in_flight: int = 0
    accounts: Accounts = field(default_factory=Accounts)

    def summary(self, stage: str) -> dict[str, Any]:
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
    """The state of a running sweep, for progress displays.

    Attributes:
        total: Number of items in the sweep, or None while it is unknown.
        accounts: Accounts of this sweep.
        earlier: Accounts of the run's earlier sweeps.
        turns: Number of replies to finished items.
        expected_turns: Expected replies per item, or None if one call serves many items.
    """

    stage: str
    done: int
    total: int | None
    failed: int
    in_flight: InFlight
    accounts: Accounts
    earlier: Accounts
    seconds: float
    turns: int = 0
    expected_turns: float | None = None


class ItemSource(Protocol[T]):
    """Provides the items of a sweep and receives their outcomes. All calls come from one thread."""

    @property
    def total(self) -> int | None: ...

    def take(self) -> list[Row] | None:
        """Return items that may start now: [] if none is ready yet, None if there are no more.

        Items are numbered from 0 in the order in which they are taken.
        """

    def on_finished(self, number: int, outcome: Outcome[T]) -> None:
        """Receive the outcome of an item once its turns are journalled."""


@dataclass
class Executor(ABC):
    """Runs table functions and dialogues.

    Attributes:
        journal_flush_s: Seconds between journal writes.
        on_progress: Receives the progress of a running sweep several times a second.
        count_bad_replies: See `leases.FailureWatch`.
    """

    store: Store
    models: Models
    max_failed_fraction: float = 0.5
    journal_flush_s: float = 2.0
    on_progress: Callable[[SweepProgress], None] = lambda progress: None
    spending: Spending = field(default_factory=Spending)
    stop: InterruptState = field(default_factory=InterruptState)
    count_bad_replies: bool = True

    @abstractmethod
    def share(self, value: T) -> Callable[[], T]:
        """Share a large value with table functions. Returns a function that is cheap to send and loads it."""

    @abstractmethod
    def map(
        self,
        step: str,
        fn: TableFunction[X],
        inputs: Iterable[X],
        splitter: InputSplitter[X] | None = None,
        on_done: Callable[[int], None] = lambda number: None,
    ) -> WrittenParts:
        """Run `fn` on every input and write the tables that it yields.

        Args:
            inputs: May be lazy; only the inputs in progress are in memory. The blocks of a dataset
                (`InputRows.dataset`) come in any order.
            splitter: How to split an input that repeatedly crashes its processes.
            on_done: Called with the number of each finished input.

        Raises:
            ProcessDied: An input repeatedly crashes its processes, and `splitter` is None.
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
    ) -> WrittenParts:
        """Run `fn` on every input, group the rows by PARTITION, `reduce` each group and write the result.

        The result for a partition without rows is {}. Rows within a partition have no defined order, so
        `reduce` must sort them.

        Args:
            bundles: Number of groups into which partitions are packed for transport; None does not pack them.
        """

    @abstractmethod
    def stream(
        self, step: str, fn: Callable[[Store, X], Iterable[pa.Table]], inputs: Sequence[X]
    ) -> Iterator[pa.Table]:
        """Run `fn` on every input and yield its tables, in any order. Raises ProcessDied like `map`."""

    @abstractmethod
    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> SweepResult:
        """Run every item of the source until it finishes. Raises RunStopped if the run must not continue."""


class RunningSweep(Generic[T]):
    """The part of a sweep that both executors share: counting outcomes and reporting progress."""

    def __init__(self, executor: Executor, work: Work[T], source: ItemSource[T], index: JournalIndex) -> None:
        self.work, self.source, self.index = work, source, index
        self.spending, self.stop = executor.spending, executor.stop
        self.sweep = SweepResult(accounts=Accounts(limits=executor.models.limits()))
        self.watch = FailureWatch(
            executor.max_failed_fraction, index.count_done() == 0, executor.count_bad_replies
        )
        self.started_at = time.monotonic()
        self._executor = executor

    def count(self, outcome: Outcome[T]) -> None:
        self.sweep.finished += 1
        self.sweep.failed += outcome.status != "complete"
        self.sweep.turns += outcome.turns
        self.watch.note(outcome.status, outcome.error, outcome.known_failure)

    def check(self, running: int, in_flight: InFlight) -> None:
        """Raise RunStopped if the sweep must end. `running` is the number of started, unfinished items."""
        if self.watch.tripped(running):
            raise TooManyFailures(self.watch.message(self.work.name))
        self.spending.check(self.sweep.accounts, in_flight, time.monotonic())
        self.stop.check(in_flight)

    def check_failures(self) -> None:
        """Raise TooManyFailures if too many of all items failed."""
        if self.watch.tripped() or self.watch.mostly_transient:
            raise TooManyFailures(self.watch.message(self.work.name))

    def affordable(self, running: int, in_flight: InFlight) -> int | None:
        """Return how many more items the budget allows to start now, or None if there is no budget."""
        done, models = self.sweep.finished, self._executor.models
        items = self.spending.affordable_items(
            self.sweep.accounts, done, models, in_flight, self.work.expected_turns
        )
        return None if items is None else max(0, items - done - running)

    def report_progress(self, in_flight: InFlight) -> None:
        self._executor.on_progress(
            SweepProgress(
                self.work.name,
                self.sweep.finished,
                self.source.total,
                self.sweep.failed,
                in_flight,
                self.sweep.accounts,
                self.spending.earlier,
                time.monotonic() - self.started_at,
                self.sweep.turns,
                self.work.expected_turns,
            )
        )

    def record_timing(self) -> None:
        """Record the duration, which the accounts need to compute the used share of the rate limits."""
        span = StageTiming(round((time.monotonic() - self.started_at) * 1000), self.sweep.peak_in_flight)
        self.sweep.accounts.spans[self.work.name] = span
        self.spending.earlier.merge(self.sweep.accounts)


def iter_partitions(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each partition number with its rows in their original order."""
    if not table.num_rows:
        return
    partition = table[PARTITION].to_numpy()
    # `take` returns a single chunk, and a chunk of a string column is limited to 2 GB.
    if table.nbytes > MAX_TAKE_BYTES:
        for p in np.unique(partition).tolist():
            yield p, table.filter(pa.array(partition == p))
        return
    order = np.argsort(partition, kind="stable")
    partitions, starts = np.unique(partition[order], return_index=True)
    rows = table.take(pa.array(order))
    for p, start, end in zip(partitions.tolist(), starts, [*starts[1:], len(order)], strict=True):
        yield p, rows.slice(start, end - start)


def write_all(store: Store, tables: Iterable[Tables]) -> dict[str, list[Part]]:
    """Write the non-empty tables as parts, and return the parts by table name."""
    written: dict[str, list[Part]] = {}
    for by_name in tables:
        for name, table in by_name.items():
            parts = written.setdefault(name, [])
            if table.num_rows:
                parts.append(write_part(store, name, table))
    return written


class RowSource(Generic[T]):
    """An item source that takes its rows from a stream of tables. Rows with the same key run once.

    The `key` column contains the item key and is dropped from the items. A thread reads a few tables ahead,
    because finding the open items can be slow and must not delay the sweep.

    Attributes:
        total: The caller's estimate until the stream ends, then the exact number of items.
    """

    def __init__(self, tables: Iterator[pa.Table], total: int | None) -> None:
        self._seen: set[int] = set()
        self._read_ahead: queue.Queue[pa.Table | BaseException | None] = queue.Queue(maxsize=TABLES_AHEAD)
        self._closed = threading.Event()
        threading.Thread(target=self._read, args=(tables,), name="items", daemon=True).start()
        self._taken = 0
        self.total = total

    def take(self) -> list[Row] | None:
        try:
            table = self._read_ahead.get_nowait()
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

    def on_finished(self, number: int, outcome: Outcome[T]) -> None:
        """Do nothing: results are read from the journal afterwards."""

    def close(self) -> None:
        """Stop reading, for example after an aborted sweep."""
        self._closed.set()

    def _read(self, tables: Iterator[pa.Table]) -> None:
        try:
            for table in tables:
                if table.num_rows and not self._put(table):
                    break
            else:
                self._put(None)
        except BaseException as e:  # noqa: BLE001 - raised again by `take`
            self._put(e)
        finally:
            if isinstance(tables, Generator):
                tables.close()

    def _put(self, entry: pa.Table | BaseException | None) -> bool:
        """Queue an entry. Returns False if the source was closed."""
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._read_ahead.put(entry, timeout=POLL_S)
                return True
        return False
