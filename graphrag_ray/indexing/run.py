"""One indexing run: what every step needs, and how a step is skipped if none of its inputs has changed."""

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

X = TypeVar("X")
T = TypeVar("T")
_log = logging.getLogger(__name__)

ROWS_AT_ONCE = 512  # items replayed together, with one batch of journal look-ups
_KEYS_AT_ONCE = 10_000  # keys of a sweep that are looked up together
_ERROR_CHARACTERS = 500  # shown of the first failure's reason


@dataclass
class Run:
    """The state of one run of `index`.

    Attributes:
        step_records: By step, what the snapshot records: fingerprint, tables, counts.
        input_hashes: Hashes of the folders whose documents the index holds after the run.
        asked: By dialogue, the number of items that a model completed.
        damaged: Paths of damaged or missing parts of the parent. Steps that lost parts reuse nothing.
        repaired_parts: Paths of parts that were found to be damaged during the run and set aside.
        forced_steps: Steps that run even if nothing changed, and reuse nothing.
        reused_steps: Steps whose result was taken from the parent.
        reused_inputs: By step, how many of its inputs' results were reused, and how many inputs it has.
        item_totals: By step, the number of items of which a model is asked about some, and what they are
            called.
        current_step: Name and start on the monotonic clock; None between steps.
        maintenance: Counts of maintenance tasks, by name. No snapshot depends on them.
        about_failure: The failure to describe the corpus as a whole, if any.
        after_step, after_sweep: Called when a step, or the sweep of the named dialogue, has ended.
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
    asked: dict[str, int] = field(default_factory=dict)
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
    _of_parent: tuple[Manifest | None, Mapping[str, Result]] = (None, {})

    @property
    def store(self) -> Store:
        return self.executor.store

    def step(
        self, name: str, depends_on: Any, compute: Callable[[], Result], journal: str | None = None
    ) -> Result:
        """Run a step, or reuse the parent's result if nothing that it depends on has changed.

        The result is a function of `depends_on`: JSON values and `Result`s, whose parts are named by their
        content; None to always run the step. Items retried in the `journal` of its dialogue count as a
        change, too.
        """
        self.executor.stop.check(InFlight())
        started = self._begin_step(name)
        self.reused_inputs.pop(name, None)  # of an aborted attempt
        asked = self.asked.get(journal or "", 0)
        retried = retry_rows.retry_marker(self.store, journal) if journal else ""
        fingerprint = ""
        if depends_on is not None:
            fingerprint = fingerprint_of([name, code_version(), depends_on, retried])
        before = self.parent.steps.get(name) if self.parent and fingerprint else None
        known = self.parent_results[name] if before and before["fingerprint"] == fingerprint else None
        has_lost_parts = known is not None and any(
            part.path in self.damaged
            for groups in known.tables.values()
            for group in groups
            for part in group
        )
        reused = known is not None and name not in self.forced_steps and not has_lost_parts
        if known is not None and reused:
            result = known
        else:
            try:
                result = compute()
            except BaseException as e:
                # An index may come from a stranger or a version with a bug. If its parent cannot be used, all
                # later steps do without it. Out of memory and I/O errors are no evidence of that.
                suspicious = is_unexpected(e) and not isinstance(e, MemoryError | OSError)
                if suspicious and self.parent is not None and name not in self.forced_steps:
                    self.observer.message(
                        f"Step {name} failed to continue from snapshot {self.parent.number}. Rebuilding its "
                        f"tables and those of later steps: {unexpected_errors.describe_error(e)}"
                    )
                    self.forced_steps = frozenset([*self.parent.steps, name])
                    return self.step(name, depends_on, compute, journal)
                if is_unexpected(e):
                    e.add_note(f"step {name}")
                raise
        self.current_step = None
        pa.default_memory_pool().release_unused()  # It keeps the memory of threads that have ended.
        self.reused_steps = self.reused_steps | {name} if reused else self.reused_steps - {name}
        self.step_records[name] = {"fingerprint": fingerprint if result.final else "", **result.to_json()}
        self.seconds[name] = time.monotonic() - started
        self.after_step()
        counts: dict[str, Any] = {}
        reused_n, inputs_n = self.reused_inputs.get(name, (0, 0))
        if reused_n:
            n, items = self.item_totals.get(name, (0, ""))
            if n:
                done = self.asked.get(journal or "", 0) - asked
                counts["asked"] = {"items": done, "of": n, "called": items}
            counts["parts_kept"] = {"kept": reused_n, "of": inputs_n}
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
        """A step's result in the parent snapshot; None if nothing of it can be reused."""
        if self.code_changed or self.damaged or name in self.forced_steps:
            return None
        return self.parent_results.get(name)

    @property
    def code_changed(self) -> bool:
        """Whether other code made the parent snapshot, or there is none. Then all tables are derived anew."""
        return self.parent is None or self.parent.run.get("code") != code_version()

    @property
    def parent_results(self) -> Mapping[str, Result]:
        """The parent snapshot's results, by step."""
        if self.parent is None:
            return {}
        if self._of_parent[0] is not self.parent:
            steps = self.parent.steps.items()
            self._of_parent = self.parent, {name: Result.from_json(step) for name, step in steps}
        return self._of_parent[1]

    def reuse_plan(
        self,
        step: str,
        inputs: Sequence[X],
        depends_on: Any,
        names: Sequence[str],
        *,
        identities: Sequence[Any] | None = None,
        journal: str | None = None,
        forced_inputs: Collection[int] = (),
    ) -> ReusePlan[X]:
        """Find the inputs of a step whose results the parent snapshot has.

        Args:
            depends_on: What the result of each input depends on, besides the input.
            names: Tables that come from an input, one group of parts each.
            identities: JSON values and `Part`s that identify each input, None for one that every run
                processes.
            journal: A dialogue. Inputs with failures are processed again once items of it are retried.
            forced_inputs: Numbers of inputs to process even if they have not changed.
        """
        retried = retry_rows.retry_marker(self.store, journal) if journal else ""
        plan = ReusePlan.of(
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
        fn: TableFunction[X],
        inputs: Iterable[X],
        parted: InputSplitter[X] | None = None,
        ended: Callable[[int], None] = lambda number: None,
    ) -> WrittenParts:
        """`Executor.map`, with the step's folder for its tables."""
        if parted is not None:
            parted = InputSplitter(parted.split, partial(_in_place, step, parted.failure_tables))
        written = self.executor.map(step, partial(_each_in_place, step, fn), inputs, parted, ended)
        return [_by_name(tables) for tables in written]

    def shuffle(
        self,
        step: str,
        fn: Callable[[Store, X], Iterable[pa.Table]],
        inputs: Sequence[X],
        reduce: Callable[[pa.Table], Tables],
        partitions: int,
        bundles: int | None = None,
    ) -> WrittenParts:
        """`Executor.shuffle`, with the step's folder for its tables."""
        make = partial(_in_place, step, reduce)
        written = self.executor.shuffle(step, fn, inputs, make, partitions, bundles)
        return [_by_name(tables) for tables in written]

    def write(
        self, step: str, table: str, rows: Iterable[pa.Table], max_rows: int = MAX_PART_ROWS
    ) -> list[Part]:
        """Write a table of a step from this process."""
        return write_parts(self.store, schema.table_location(step, table), rows, max_rows=max_rows)

    @contextmanager
    def maintenance_task(self, name: str) -> Iterator[dict[str, Any]]:
        """Report a maintenance task like a step. The block adds its counts; repeated tasks are added up."""
        before = self.current_step
        started = self._begin_step(name)
        counts: dict[str, Any] = {}
        try:
            yield counts
        finally:
            self.current_step = before
        seconds, known = time.monotonic() - started, self.maintenance.get(name, {})
        self.maintenance[name] = {n: known.get(n, 0) + count for n, count in counts.items()}
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.after_step()
        self._end_step(name, seconds, counts, False)

    def unchanged(self) -> bool:
        """Whether the parent is intact and has the same tables, code and settings (also of queries)."""
        if self.parent is None or self.code_changed or self.damaged:
            return False
        before = {name: step for name, step in self.parent.steps.items() if name != "finish"}
        # A step that no longer runs (claims, embeddings) is a change, too.
        return (
            self.step_records.keys() == before.keys()
            and all(self.step_records[n]["tables"] == before[n]["tables"] for n in before)
            and self.parent.settings == self.settings.for_snapshot()
        )

    def sweep(self, work: Work[T], source: ItemSource[T], index: JournalIndex) -> SweepResult:
        """Run every item of the source. Stops spending as soon as the lock is known to be lost."""
        checked = LockCheckedSource(source, self, work.name, index)
        sweep = self.executor.sweep(work, checked, index)
        self.asked[work.name] = self.asked.get(work.name, 0) + checked.answered()
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
        """Run every item (a row of `load`) that the journal does not answer; return the journal after it."""
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
                "look at every item instead, and identify the one that kills them."
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
        """Sweep all items, whether the journal answers them or not."""
        everything = self.executor.stream(work.name, partial(_all_items, work, load), inputs)
        with closing(RowSource[T](everything, total)) as source:
            self.sweep(work, source, self.journal(work.name))

    def journal(self, name: str) -> JournalIndex:
        """The journal of a dialogue. Raises CorruptPart for a damaged part, which has to be set aside."""
        index = JournalIndex.load(self.store, name, strict=True)
        for path in index.damaged:
            raise CorruptPart(f"{self.store.url_of(path)} is damaged", path=path)
        return index

    def check(self) -> None:
        """Raise LockLost if another process took over."""
        if self.lock is not None:
            self.lock.check()

    def has_lost_parts(self, parts: Sequence[Part]) -> bool:
        """Whether any of these parts is damaged and was not rebuilt yet."""
        return any(part.path in self.damaged and self.store.size(part.path) != part.bytes for part in parts)

    @property
    def accounts(self) -> Accounts:
        return Accounts.merged(self.usage.values())

    def expecting_silence(self, seconds: float) -> AbstractContextManager[None]:
        """Ask other writers for patience during work that stops every thread of this process."""
        return self.lock.allow_silence(seconds) if self.lock else nullcontext()


class LockCheckedSource(Generic[T]):
    """Checks the lock on every access, counts newly answered items, and reports the first failure at once."""

    def __init__(self, source: ItemSource[T], run: Run, stage: str, index: JournalIndex) -> None:
        self._source, self._run, self._stage, self._index = source, run, stage, index
        self._failure_reported = False
        self._keys: list[str] = []
        self._answered = 0

    @property
    def total(self) -> int | None:
        # Read a few times per second, also while all items wait for their first calls and none ends.
        self._check()
        return self._source.total

    def take(self) -> list[Row] | None:
        self._check()
        return self._source.take()

    def on_finished(self, number: int, outcome: Outcome[T]) -> None:
        self._check()
        if outcome.key and outcome.status == "complete":
            self._keys.append(outcome.key)
            if len(self._keys) >= _KEYS_AT_ONCE:
                self.answered()
        elif outcome.error and not self._failure_reported:
            self._failure_reported = True
            error = outcome.error[:_ERROR_CHARACTERS]
            self._run.observer.message(f"First failure in stage {self._stage}: {error}")
        self._source.on_finished(number, outcome)

    def answered(self) -> int:
        """The number of completed items that were not complete in the journal."""
        self._answered += int((~self._index.is_done(self._keys)).sum())
        self._keys.clear()
        return self._answered

    def _check(self) -> None:
        if self._run.lock is not None and self._run.lock.lost:
            self._run.check()


def _each_in_place(step: str, fn: TableFunction[X], store: Store, x: X) -> Iterator[Tables]:
    for tables in fn(store, x):
        yield {schema.table_location(step, name): table for name, table in tables.items()}


def _in_place(step: str, make: Callable[..., Tables], *args: Any) -> Tables:
    return {schema.table_location(step, name): table for name, table in make(*args).items()}


def _by_name(tables: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    return {name.rpartition("/")[2]: parts for name, parts in tables.items()}


def replay_rows(
    work: Work[T], index: JournalIndex, store: Store, tables: Iterable[pa.Table]
) -> Iterator[list[tuple[Row, Outcome[T]]]]:
    """Yield the rows of tables with their outcomes, in order and in batches."""
    for table in tables:
        for start in range(0, table.num_rows, ROWS_AT_ONCE):
            yield replay_outcomes(work, store, index, table.slice(start, ROWS_AT_ONCE).to_pylist())


def _open_items(
    work: Work[T],
    index: Callable[[], JournalIndex],
    load: Callable[[Store, Any], Iterable[pa.Table]],
    store: Store,
    x: Any,
) -> Iterator[pa.Table]:
    """Rows that need a model, with their keys: not answered, or failed transiently."""
    journal = index()
    for table in load(store, x):
        start = 0
        for batch in replay_rows(work, journal, store, [table]):
            keys = [o.key if o.status in ("open", "retry") else None for _, o in batch]
            rows = table.slice(start, len(batch)).append_column("key", pa.array(keys, pa.string()))
            start += len(batch)
            yield rows.filter(rows["key"].is_valid())


def _all_items(
    work: Work[T], load: Callable[[Store, Any], Iterable[pa.Table]], store: Store, x: Any
) -> Iterator[pa.Table]:
    """All rows, with no dialogue started. Rows that ask for the same are not recognised as one here."""
    for table in load(store, x):
        keys = [row_key(work, row) for row in table.to_pylist()]
        yield table.append_column("key", pa.array(keys, pa.string()))


def apply_or_report(rows: pa.Table, do: Callable[[pa.Table], Sequence[X]]) -> Iterator[tuple[Row, X | str]]:
    """Yield rows with the results of `do`, called row by row if it fails; failing rows with the reason."""
    try:
        results: Sequence[X | str] = do(rows)
    except BaseException as e:
        if not is_unexpected(e):
            raise
        results = [record_bug(e)] if rows.num_rows == 1 else []
    if len(results) == rows.num_rows:
        yield from zip(rows.to_pylist(), results, strict=True)
    else:
        for n in range(rows.num_rows):
            yield from apply_or_report(rows.slice(n, 1), do)


def failure_rows(stage: str, work: Work[T], batch: Iterable[tuple[Row, Outcome[T]]]) -> pa.Table:
    """The items of a batch without a result, as rows of the failures table with document ids."""
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
    """Unix seconds as an ISO time in UTC; empty for 0."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else ""
