"""One indexing run: its state, and how it skips steps whose inputs have not changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

from graphrag_ray.base import logs, schema, unexpected_errors
from graphrag_ray.base.errors import CorruptPart, ProcessDied
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import Prompt
from graphrag_ray.base.stored_settings import snapshot_settings
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.engine.dialogue_runner import record_bug
from graphrag_ray.engine.executor import (
    Executor,
    InputSplitter,
    ItemSource,
    RowSource,
    SweepResult,
    TableFunction,
    Tables,
    WrittenParts,
)
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.work import Outcome, Row, Work, replay_outcomes, row_key
from graphrag_ray.indexing.step_result import Result, ReusePlan, code_version, fingerprint_of
from graphrag_ray.llm.accounting import Accounts, InFlight, new_quirks
from graphrag_ray.llm.quirks import describe_quirks
from graphrag_ray.store import locks, retry_rows
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import NO_PARTS, JournalIndex
from graphrag_ray.store.parts import MAX_PART_ROWS, Part, write_parts
from graphrag_ray.store.snapshots import Manifest

InputT = TypeVar("InputT")
T = TypeVar("T")
_log = logging.getLogger(__name__)

REPLAY_BATCH_ROWS = 512  # items replayed with one batch of journal look-ups
_KEY_BATCH = 10_000  # keys of completed items that are looked up in one batch
_MAX_ERROR_CHARS = 500


@dataclass
class Run:
    """The state of one run of `index`.

    Attributes:
        step_records: By step, the fingerprint, tables and counts for the snapshot.
        input_hashes: Hashes of the input folders whose documents the index contains after the run.
        completed_items: By dialogue, the number of items that a model completed in this run.
        damaged: Paths of damaged or missing parts of the parent. Steps that lost parts reuse nothing.
        repaired_parts: Paths of parts that were found to be damaged during the run and set aside.
        forced_steps: Steps that run even if nothing changed, and reuse nothing.
        reused_steps: Steps that reused the parent's result.
        reused_inputs: By step, the number of inputs with a reused result and the number of all inputs.
        item_totals: By step, the number of items, answered or not, and the plural noun that messages use.
        current_step: Name and monotonic start time; None between steps.
        maintenance: Counts of maintenance tasks, by name. No snapshot depends on them.
        about_failure: The result with the failure to describe the corpus as a whole, if it failed.
        after_step: Called when a step has ended.
        after_sweep: Called with the name of a dialogue when its sweep has ended.
    """

    executor: Executor
    settings: Settings
    prompts: Mapping[str, Prompt]
    parent: Manifest | None
    observer: Observer
    step_records: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    usage: dict[str, Accounts] = field(default_factory=dict)
    lock: locks.Lock | None = None
    input_hashes: list[str] = field(default_factory=list)
    completed_items: dict[str, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    repaired_parts: set[str] = field(default_factory=set)
    forced_steps: frozenset[str] = frozenset()
    reused_steps: set[str] = field(default_factory=set)
    current_step: tuple[str, float] | None = None
    maintenance: dict[str, dict[str, Any]] = field(default_factory=dict)
    about_failure: Result | None = None
    after_step: Callable[[], None] = lambda: None
    after_sweep: Callable[[str], None] = lambda name: None
    reused_inputs: dict[str, tuple[int, int]] = field(default_factory=dict)
    item_totals: dict[str, tuple[int, str]] = field(default_factory=dict)
    _parent_results: tuple[Manifest | None, Mapping[str, Result]] = (None, {})

    @property
    def store(self) -> Store:
        return self.executor.store

    def step(
        self, name: str, depends_on: Any, compute: Callable[[], Result], journal: str | None = None
    ) -> Result:
        """Run a step, or reuse the parent's result if nothing that it depends on has changed.

        The result must be a function of `depends_on`: JSON values and `Result`s, whose parts are
        content-addressed. Pass None to run the step always. Items marked for retry in `journal`, the step's
        dialogue, also count as a change.
        """
        self.executor.stop.check(InFlight())
        started = self._begin_step(name)
        self.reused_inputs.pop(name, None)  # An aborted attempt may have set it.
        completed_before = self.completed_items.get(journal or "", 0)
        retried = retry_rows.retry_marker(self.store, journal) if journal else ""
        fingerprint = ""
        if depends_on is not None:
            fingerprint = fingerprint_of([name, code_version(), depends_on, retried])
        previous = self.parent.steps.get(name) if self.parent and fingerprint else None
        reusable = self.parent_results[name] if previous and previous["fingerprint"] == fingerprint else None
        if reusable is not None and any(
            part.path in self.damaged
            for groups in reusable.tables.values()
            for group in groups
            for part in group
        ):
            reusable = None
        reused = reusable is not None and name not in self.forced_steps
        if reusable is not None and reused:
            result = reusable
        else:
            try:
                result = compute()
            except BaseException as e:
                # The parent may be untrusted, or written by a version with a bug. If continuing from it
                # fails, do without it from this step on. Memory and I/O errors do not point to the parent.
                suspicious = is_unexpected(e) and not isinstance(e, MemoryError | OSError)
                if suspicious and self.parent is not None and name not in self.forced_steps:
                    self.observer.message(
                        f"Step {name} failed to continue from snapshot {self.parent.number}. Rebuilding the "
                        f"tables of this step and all later ones: "
                        f"{unexpected_errors.describe_unexpected_error(e)}"
                    )
                    self.forced_steps = frozenset([*self.parent.steps, name])
                    return self.step(name, depends_on, compute, journal)
                if is_unexpected(e):
                    e.add_note(f"step {name}")
                raise
        self.current_step = None
        pa.default_memory_pool().release_unused()  # Arrow retains the memory of threads that have ended.
        self.reused_steps = self.reused_steps | {name} if reused else self.reused_steps - {name}
        self.step_records[name] = {"fingerprint": fingerprint if result.final else "", **result.to_json()}
        self.seconds[name] = time.monotonic() - started
        self.after_step()
        counts: dict[str, Any] = {}
        n_reused, n_inputs = self.reused_inputs.get(name, (0, 0))
        if n_reused:
            n_items, noun = self.item_totals.get(name, (0, ""))
            if n_items:
                completed = self.completed_items.get(journal or "", 0) - completed_before
                counts["asked"] = {"items": completed, "total": n_items, "noun": noun}
            counts["reused_parts"] = {"reused": n_reused, "total": n_inputs}
        self._end_step(name, self.seconds[name], counts | result.counts, reused)
        return result

    def _begin_step(self, name: str) -> float:
        self.observer.step_started(name)
        logs.log_event(_log, "step started", step=name)
        started = time.monotonic()
        self.current_step = name, started
        return started

    def _end_step(self, name: str, seconds: float, counts: dict[str, Any], reused: bool) -> None:
        logs.log_event(_log, "step ended", step=name, seconds=round(seconds, 3), reused=reused, counts=counts)
        self.observer.step_ended(name, seconds, counts, reused)

    def parent_result(self, name: str) -> Result | None:
        """Return a step's result in the parent snapshot, or None if none of it can be reused."""
        if self.code_changed or self.damaged or name in self.forced_steps:
            return None
        return self.parent_results.get(name)

    @property
    def code_changed(self) -> bool:
        """Whether all tables must be derived again: there is no parent, or other code wrote it."""
        return self.parent is None or self.parent.run.get("code") != code_version()

    @property
    def parent_results(self) -> Mapping[str, Result]:
        if self.parent is None:
            return {}
        if self._parent_results[0] is not self.parent:
            steps = self.parent.steps.items()
            self._parent_results = self.parent, {name: Result.from_json(step) for name, step in steps}
        return self._parent_results[1]

    def reuse_plan(
        self,
        step: str,
        inputs: Sequence[InputT],
        depends_on: Any,
        names: Sequence[str],
        *,
        identities: Sequence[Any] | None = None,
        journal: str | None = None,
        forced_inputs: Collection[int] = (),
    ) -> ReusePlan[InputT]:
        """Find out for which inputs of a step the parent snapshot has results that can be reused.

        Args:
            depends_on: Everything that the result of an input depends on, apart from the input.
            names: Tables to which an input contributes one group of parts each.
            identities: JSON values and `Part`s that identify each input. Pass None for an input that every
                run must process.
            journal: The step's dialogue. Inputs with failures are processed again when its items are retried.
            forced_inputs: Positions of inputs to process even if they have not changed.
        """
        retried = retry_rows.retry_marker(self.store, journal) if journal else ""
        plan = ReusePlan.create(
            self.parent_result(step),
            step,
            inputs,
            depends_on,
            names,
            identities or inputs,
            retried,
            forced_inputs,
        )
        reused, total = self.reused_inputs.get(step, (0, 0))
        self.reused_inputs[step] = (reused + len(inputs) - len(plan.new_inputs), total + len(inputs))
        return plan

    def map(
        self,
        step: str,
        fn: TableFunction[InputT],
        inputs: Iterable[InputT],
        splitter: InputSplitter[InputT] | None = None,
        on_end: Callable[[int], None] = lambda number: None,
    ) -> WrittenParts:
        """Call `Executor.map`, and store the tables in the step's folder."""
        if splitter is not None:
            splitter = InputSplitter(splitter.split, partial(_add_folder, step, splitter.failure_tables))
        written = self.executor.map(step, partial(_add_folder_to_each, step, fn), inputs, splitter, on_end)
        return [_remove_folder(tables) for tables in written]

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, InputT], Iterable[pa.Table]],
        inputs: Sequence[InputT],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
        bundles: int | None = None,
    ) -> WrittenParts:
        """Call `Executor.shuffle`, and store the tables in the step's folder."""
        make = partial(_add_folder, step, reduce)
        written = self.executor.shuffle(step, fn, inputs, make, partitions, bundles)
        return [_remove_folder(tables) for tables in written]

    def write(
        self, step: str, table: str, rows: Iterable[pa.Table], max_rows: int = MAX_PART_ROWS
    ) -> list[Part]:
        """Write a table of a step from this process."""
        return write_parts(self.store, schema.table_location(step, table), rows, max_rows=max_rows)

    @contextmanager
    def maintenance_task(self, name: str) -> Iterator[dict[str, Any]]:
        """Report a maintenance task like a step. The block fills in its counts; they add up over the run."""
        interrupted_step = self.current_step
        started = self._begin_step(name)
        counts: dict[str, Any] = {}
        try:
            yield counts
        finally:
            self.current_step = interrupted_step
        seconds, totals = time.monotonic() - started, self.maintenance.get(name, {})
        self.maintenance[name] = {n: totals.get(n, 0) + count for n, count in counts.items()}
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.after_step()
        self._end_step(name, seconds, counts, False)

    def unchanged(self) -> bool:
        """Whether the parent is intact and has the same tables, code and settings (including queries)."""
        if self.parent is None or self.code_changed or self.damaged:
            return False
        before = {name: step for name, step in self.parent.steps.items() if name != "finish"}
        # A step that no longer runs (claims, embeddings) is also a change.
        return (
            self.step_records.keys() == before.keys()
            and all(self.step_records[n]["tables"] == before[n]["tables"] for n in before)
            and self.parent.settings == snapshot_settings(self.settings)
        )

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> SweepResult:
        """Run every item of the source. Stops spending as soon as the lock is known to be lost."""
        checked = LockCheckedSource(source, self, work.name, index)
        sweep = self.executor.sweep(work, checked, index)
        self.completed_items[work.name] = self.completed_items.get(work.name, 0) + checked.count_completed()
        for endpoint, quirks in new_quirks(
            sweep.accounts.quirks, self.executor.models.quirks, self.accounts.quirks
        ):
            self.observer.message(describe_quirks(endpoint, quirks))
        before = self.usage.get(work.name, Accounts())
        self.usage[work.name] = Accounts.merged([before, sweep.accounts])
        logs.log_event(_log, "stage asked", **sweep.summary(work.name))
        self.after_sweep(work.name)
        return sweep

    def sweep_rows(
        self,
        work: Work[T],
        load: Callable[[Store, Any], Iterable[pa.Table]],
        inputs: Sequence[Any],
        total: int | None = None,
    ) -> Callable[[], JournalIndex]:
        """Run every item (a row of `load`) without an answer in the journal, and return the new journal."""
        if not inputs:
            return self.executor.share(JournalIndex(self.store, work.name, NO_PARTS))
        index = self.journal(work.name)
        find_open = partial(_open_items, work, self.executor.share(index), load)
        tables = self.executor.stream(work.name, find_open, inputs)
        try:
            # The number of open items is known in advance only if the journal is empty.
            with closing(RowSource[T](tables, None if index.n_parts else total)) as source:
                self.sweep(work, source, index)
        except ProcessDied:
            self.observer.message(
                f"Processes looking for open items of stage {work.name} died repeatedly. The workers now "
                "check every item themselves, to identify the one that crashes them."
            )
            self.sweep_all(work, load, inputs, total)
        return self.executor.share(self.journal(work.name))

    def sweep_all(
        self,
        work: Work[T],
        load: Callable[[Store, Any], Iterable[pa.Table]],
        inputs: Sequence[Any],
        total: int | None,
    ) -> None:
        """Sweep all items, including those with an answer in the journal."""
        tables = self.executor.stream(work.name, partial(_all_items, work, load), inputs)
        with closing(RowSource[T](tables, total)) as source:
            self.sweep(work, source, self.journal(work.name))

    def journal(self, name: str) -> JournalIndex:
        """Load the journal of a dialogue. Raises CorruptPart for a damaged part, so that it is set aside."""
        index = JournalIndex.load(self.store, name, strict=True)
        for path in index.damaged:
            raise CorruptPart(f"{self.store.url_of(path)} is damaged", path=path)
        return index

    def check(self) -> None:
        """Raise LockLost if another process took over."""
        if self.lock is not None:
            self.lock.check()

    def has_lost_parts(self, parts: Sequence[Part]) -> bool:
        """Whether any of these parts is damaged and has not been rebuilt yet."""
        return any(part.path in self.damaged and self.store.size(part.path) != part.bytes for part in parts)

    @property
    def accounts(self) -> Accounts:
        return Accounts.merged(self.usage.values())

    def expecting_silence(self, seconds: float) -> AbstractContextManager[None]:
        """Keep the lock without heartbeats while work blocks every thread of this process."""
        return self.lock.allow_silence(seconds) if self.lock else nullcontext()


class LockCheckedSource(Generic[T]):
    """Checks the lock on every access, counts newly completed items, and reports the first failure."""

    def __init__(self, source: ItemSource[T], run: Run, stage: str, index: JournalIndex) -> None:
        self._source, self._run, self._stage, self._index = source, run, stage, index
        self._failure_reported = False
        self._keys: list[str] = []
        self._n_completed = 0

    @property
    def total(self) -> int | None:
        # Executors read this a few times per second, even while no item starts or ends.
        self._check()
        return self._source.total

    def take(self) -> list[Row] | None:
        self._check()
        return self._source.take()

    def on_finished(self, number: int, outcome: Outcome[T]) -> None:
        self._check()
        if outcome.key and outcome.status == "complete":
            self._keys.append(outcome.key)
            if len(self._keys) >= _KEY_BATCH:
                self.count_completed()
        elif outcome.error and not self._failure_reported:
            self._failure_reported = True
            error = outcome.error[:_MAX_ERROR_CHARS]
            self._run.observer.message(f"First failure in stage {self._stage}: {error}")
        self._source.on_finished(number, outcome)

    def count_completed(self) -> int:
        """Count the completed items that were not complete in the journal before."""
        self._n_completed += int((~self._index.is_done(self._keys)).sum())
        self._keys.clear()
        return self._n_completed

    def _check(self) -> None:
        if self._run.lock is not None and self._run.lock.lost:
            self._run.check()


def _add_folder_to_each(step: str, fn: TableFunction[InputT], store: Store, item: InputT) -> Iterator[Tables]:
    for tables in fn(store, item):
        yield {schema.table_location(step, name): table for name, table in tables.items()}


def _add_folder(step: str, make: Callable[..., Tables], *args: Any) -> Tables:
    return {schema.table_location(step, name): table for name, table in make(*args).items()}


def _remove_folder(tables: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    return {name.rpartition("/")[2]: parts for name, parts in tables.items()}


def replay_rows(
    work: Work[T], index: JournalIndex, store: Store, tables: Iterable[pa.Table]
) -> Iterator[list[tuple[Row, Outcome[T]]]]:
    """Yield the rows of tables with their outcomes, in order and in batches."""
    for table in tables:
        for start in range(0, table.num_rows, REPLAY_BATCH_ROWS):
            yield replay_outcomes(work, store, index, table.slice(start, REPLAY_BATCH_ROWS).to_pylist())


def _open_items(
    work: Work[T],
    index: Callable[[], JournalIndex],
    load: Callable[[Store, Any], Iterable[pa.Table]],
    store: Store,
    input_: Any,
) -> Iterator[pa.Table]:
    """Yield the rows that need a model, with their keys: unanswered or failed transiently."""
    journal = index()
    for table in load(store, input_):
        start = 0
        for batch in replay_rows(work, journal, store, [table]):
            keys = [o.key if o.status in ("open", "retry") else None for _, o in batch]
            rows = table.slice(start, len(batch)).append_column("key", pa.array(keys, pa.string()))
            start += len(batch)
            yield rows.filter(rows["key"].is_valid())


def _all_items(
    work: Work[T], load: Callable[[Store, Any], Iterable[pa.Table]], store: Store, input_: Any
) -> Iterator[pa.Table]:
    """Yield all rows with their keys, without starting dialogues or merging items with equal requests."""
    for table in load(store, input_):
        keys = [row_key(work, row) for row in table.to_pylist()]
        yield table.append_column("key", pa.array(keys, pa.string()))


def apply_or_report(rows: pa.Table, fn: Callable[[pa.Table], Sequence[T]]) -> Iterator[tuple[Row, T | str]]:
    """Yield rows with the results of `fn`. If it fails, call it row by row, and yield errors as results."""
    try:
        results: Sequence[T | str] = fn(rows)
    except BaseException as e:
        if not is_unexpected(e):
            raise
        results = [record_bug(e)] if rows.num_rows == 1 else []
    if len(results) == rows.num_rows:
        yield from zip(rows.to_pylist(), results, strict=True)
    else:
        for n in range(rows.num_rows):
            yield from apply_or_report(rows.slice(n, 1), fn)


def failure_rows(stage: str, work: Work[T], batch: Iterable[tuple[Row, Outcome[T]]]) -> pa.Table:
    """Return the failed items of a batch as rows of the failures table, with document ids."""
    rows = []
    for row, outcome in batch:
        if outcome.status == "complete":
            continue
        item, document = work.label(row)
        rows.append(
            {
                "stage": stage,
                "item": item,
                "document": document,
                "kind": "permanent" if outcome.status == "failed" else "transient",
                "error": outcome.error or "Not answered: the run was stopped",
                "attempts": outcome.attempts,
                "first_at": format_utc(outcome.first_at),
                "last_at": format_utc(outcome.last_at),
                "key": outcome.key,
            }
        )
    return pa.Table.from_pylist(rows, schema=schema.FAILURES)


def format_utc(seconds: float) -> str:
    """Format Unix seconds as an ISO 8601 time in UTC; 0 gives an empty string."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else ""
