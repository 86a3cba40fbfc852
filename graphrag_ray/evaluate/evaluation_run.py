"""Make the model calls of an evaluation. Replies are journalled in its folder, so each is paid for once.

Files in the folder:

    work/answer/     the journal of all replies
    answers.parquet  and other tables, see `comparison.py`
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from graphrag_ray.base.errors import StoreError, UsageError
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.user_settings import require_known_addresses
from graphrag_ray.engine.executor import Executor, SweepProgress
from graphrag_ray.engine.feed import Feed
from graphrag_ray.engine.interrupts import InterruptState, handle_signals
from graphrag_ray.engine.model_access import Models, check_endpoints
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.reply_cache import MERGE_FROM_PARTS, MERGE_FROM_PARTS_AT_END, merge_small_parts
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.engine.work import Outcome
from graphrag_ray.evaluate.conditions import EvaluationCondition
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.query.ask import Index
from graphrag_ray.query.batch import uses_local_keys, wait_for_lock
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import AskRequest
from graphrag_ray.query.question_files import BatchQuestion
from graphrag_ray.query.question_sweep import (
    MAX_WAITING_ITEMS,
    POLL_INTERVAL_S,
    QuestionSweep,
    ReplyPrices,
    question_executor,
    run_sweep,
)
from graphrag_ray.store import parquet
from graphrag_ray.store.files import Store

T = TypeVar("T")

MODEL_STAGE = dict.fromkeys(("correct_answer", "check_statements"), "judge")
"""Stages that use the model of another stage."""
JUDGING = pa.schema(
    [("stage", pa.string()), ("calls", pa.int64()), ("tokens", pa.int64()), ("cost_usd", pa.float64())]
)
DIALOGUES_PER_BATCH = 256  # Number of dialogues to look up in the journal and start together.


@dataclass
class Results:
    """Result tables by name, warnings to display with them, and the number of missing results."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failed: int = 0

    def add_failures(self, warning: str, n: int = 1) -> None:
        self.failed += n
        self.warnings.append(warning)


@dataclass
class EvaluationRun:
    """An evaluation in progress. exit_stack closes the executors; accounts is the judging usage by stage."""

    index: Index
    store: Store
    observer: Observer
    on_ray: bool
    address: str | None
    spending: Spending
    stop: InterruptState
    exit_stack: ExitStack
    accounts: dict[str, Accounts] = field(default_factory=dict)
    _executors: dict[str, Executor] = field(default_factory=dict)
    _progress: Callable[[SweepProgress], SweepProgress] = lambda p: p

    def answer(
        self,
        condition: EvaluationCondition,
        questions: Sequence[BatchQuestion],
        extra_columns: Callable[[Answer, Accounts], Mapping[str, Any]] = lambda *_: {},
    ) -> list[Mapping[str, Any]]:
        """Answer questions in order. Returns rows of `question_files.ANSWERS` with `extra_columns`.

        Raises RunStopped, StoreError, and UsageError if the condition cannot answer any question.
        """
        index = condition.opened
        request = AskRequest(level=condition.level, method=condition.method)
        sweep = QuestionSweep(index, questions, self.store, request, extra_columns)

        def progress(p: SweepProgress) -> SweepProgress:
            return replace(sweep.progress(p), stage=condition.name)

        stages = methods.stages(condition.method, index.settings.query)
        with self._timed(condition.name):
            sweep.run(self._executor(index, stages, progress))
        return list(sweep.rows())

    def ask(
        self,
        stage: str,
        dialogues: Iterable[tuple[str, Callable[[], Dialogue[T]]]],
        total: int,
        step: str = "",
    ) -> Iterator[Outcome[T]]:
        """Run labelled dialogues with the model of a stage. Returns their outcomes in order, without replies.

        There may be millions of them. Dialogues start as capacity allows, and outcomes are spooled to a file.
        """
        step = step or stage
        spool: Spool[Outcome[T]] = Spool()
        failed = 0
        model_stage = MODEL_STAGE.get(stage, stage)
        prices = ReplyPrices(self.index.settings.models)
        accounts = self.accounts.setdefault(stage, Accounts())

        async def run_batch(
            feed: Feed,
            first: int,
            batch: Sequence[tuple[str, Callable[[], Dialogue[T]]]],
            waiting: asyncio.Event,
        ) -> None:
            nonlocal failed
            starts = [start for _, start in batch]
            outcomes = await feed.ask(first, f"{batch[0][0]} and those after it", starts, waiting.set)
            for number, outcome in enumerate(outcomes, first):
                failed += outcome.status != "complete"
                for reply in outcome.replies:
                    accounts.add(prices.record(model_stage, reply))
                spool[number] = replace(outcome, replies=())

        async def run_all(feed: Feed) -> None:
            feed.total = total
            remaining, first = iter(dialogues), 0
            tasks: list[asyncio.Task[None]] = []
            try:
                while batch := list(islice(remaining, DIALOGUES_PER_BATCH)):
                    while feed.waiting >= MAX_WAITING_ITEMS:
                        await asyncio.sleep(POLL_INTERVAL_S)
                    waiting = asyncio.Event()
                    tasks.append(asyncio.create_task(run_batch(feed, first, batch, waiting)))
                    tasks[-1].add_done_callback(lambda _, done=waiting: done.set())  # type: ignore[misc]
                    first += len(batch)
                    await waiting.wait()
                await asyncio.gather(*tasks)
                feed.close()
            except BaseException as e:
                feed.close(e)
                raise
            finally:
                for task in tasks:
                    task.cancel()

        def progress(p: SweepProgress) -> SweepProgress:
            return replace(p, stage=step, done=max(len(spool), p.done), total=total, failed=failed)

        with self._timed(step):
            run_sweep(self._executor(self.index, [model_stage], progress), self.store, run_all)
        return (spool[number] for number in range(total))

    def check_models(self, stages: Sequence[str]) -> None:
        """Check that the models of these stages respond. Raises SettingsError, ModelUnavailable."""
        require_known_addresses(self.index.settings, stages)
        if uses_local_keys(self.on_ray, self.address):
            models = Models.from_settings(self.index.settings, self.index.manifest.usage)
            check_endpoints(models, self.index.settings, stages, False, self.observer.message)

    def costs(self) -> pa.Table:
        """Return the usage of judging so far as a table `JUDGING`. cost_usd is null if a price is unknown."""
        totals = [(stage, accounts.total) for stage, accounts in self.accounts.items()]
        rows = [(stage, total.calls, total.total_tokens, total.cost_usd) for stage, total in totals]
        return pa.Table.from_pylist([dict(zip(JUDGING.names, row, strict=True)) for row in rows], JUDGING)

    def write_all(self, tables: Mapping[str, pa.Table]) -> None:
        """Write result tables to NAME.parquet. Raises StoreError."""
        for name, table in tables.items():
            self.store.write(f"{name}.parquet", parquet.encode(table))

    def read(self, name: str) -> pa.Table | None:
        """Read a result table, or return None if it does not exist. Raises StoreError."""
        path = f"{name}.parquet"
        if not self.store.exists(path):
            return None
        try:
            return pq.read_table(pa.BufferReader(self.store.read(path)))
        except (pa.ArrowException, OSError) as e:
            url = self.store.url_of(path)
            raise StoreError(f"Cannot read {url}. Run `evaluate compare` again to rewrite it.") from e

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        self.observer.step_started(name)
        yield
        self.observer.step_ended(name, time.monotonic() - started, {}, False)

    def _executor(
        self, index: Index, stages: Sequence[str], progress: Callable[[SweepProgress], SweepProgress]
    ) -> Executor:
        """Return the executor for these models. It is reused, because starting one on Ray is slow."""
        settings, self._progress = index.settings, progress
        key = repr((settings.models, settings.run))
        if key not in self._executors:
            models = Models.from_settings(settings, index.manifest.usage)
            check_prices(settings.budget, models)
            if uses_local_keys(self.on_ray, self.address):
                models = check_endpoints(
                    models, settings, stages, bool(self.store.list("work")), self.observer.message
                )
            executor = question_executor(
                self.store,
                settings,
                models,
                lambda p: self.observer.progress(self._progress(p)),
                self.stop,
                self.spending,
                self.on_ray,
                self.address,
                count_bad_replies=False,  # Unusable verdicts are a result of the evaluation.
            )
            self._executors[key] = self.exit_stack.enter_context(executor)
        return self._executors[key]


@contextmanager
def evaluation_run(
    index: Index,
    out: str,
    note: str,
    *,
    on_ray: bool = False,
    address: str | None = None,
    observer: Observer | None = None,
) -> Iterator[EvaluationRun]:
    """Open an evaluation that writes its results to the folder or URL `out`.

    Raises LockHeld if another evaluation is running there, and UsageError if `out` is the index or a file.
    """
    observer = observer or Observer()
    store = Store(out, index.settings.storage.fsspec_options(out))
    if store.url == index.store.url:
        raise UsageError(f"--out {out} is the index. An evaluation needs a separate folder.")
    if os.path.isfile(out):
        raise UsageError(f"--out {out} is a file. An evaluation needs a folder.")
    stop = InterruptState(notify=observer.message)
    with ExitStack() as exit_stack:
        lock = exit_stack.enter_context(wait_for_lock(store, f"evaluate {note}", 0.0))
        exit_stack.enter_context(observer)
        exit_stack.enter_context(handle_signals(stop))
        merge_small_parts(store, lock.check, MERGE_FROM_PARTS)
        spending = Spending(index.settings.budget, time.monotonic())
        with ExitStack() as engines:
            yield EvaluationRun(index, store, observer, on_ray, address, spending, stop, engines)
        merge_small_parts(store, lock.check, MERGE_FROM_PARTS_AT_END)
