"""What an evaluation asks of models: answers and judgements, journalled in its folder and paid once.

work/answer/     the journal of all replies
answers.parquet  and other tables: see `comparison.py`
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
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.user_settings import require_known
from graphrag_ray.engine.executor import Executor, SweepProgress
from graphrag_ray.engine.feed import Feed
from graphrag_ray.engine.gateways import Models, probed
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.reply_cache import FEW, MANY, tidy
from graphrag_ray.engine.spending import Spending, check_prices
from graphrag_ray.engine.stopping import Stop, listening
from graphrag_ray.engine.work import Outcome
from graphrag_ray.evaluate.conditions import EvaluationCondition
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.query.ask import Index
from graphrag_ray.query.batch import asks_from_here, locked
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Ask
from graphrag_ray.query.question_files import Posed
from graphrag_ray.query.question_sweep import (
    LOOK_S,
    READY,
    QuestionSweep,
    ReplyPrices,
    question_executor,
    swept,
)
from graphrag_ray.store import parquet
from graphrag_ray.store.files import Store

T = TypeVar("T")

STAGE_OF = {"correct_answer": "judge"}
"""The stages of the settings whose models are asked, where they are called otherwise here."""
JUDGING = pa.schema(
    [("stage", pa.string()), ("calls", pa.int64()), ("tokens", pa.int64()), ("cost_usd", pa.float64())]
)
DIALOGUES_TOGETHER = 256
"""So many are looked up in the journal, and begun, at once."""


@dataclass
class Results:
    """tables: of results, by name; warnings: sentences for whoever reads the figures; failed: answers and
    verdicts that are missing."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failed: int = 0


@dataclass
class EvaluationRun:
    """held: closes the engines; accounts: what judging came to so far, by stage, with replies that the
    journal held."""

    index: Index
    store: Store
    observer: Observer
    on_ray: bool
    address: str | None
    spending: Spending
    stop: Stop
    held: ExitStack
    accounts: dict[str, Accounts] = field(default_factory=dict)
    _executors: dict[str, Executor] = field(default_factory=dict)
    _progress: Callable[[SweepProgress], SweepProgress] = lambda p: p

    def answer(
        self,
        condition: EvaluationCondition,
        posed: Sequence[Posed],
        more: Callable[[Answer, Accounts], Mapping[str, Any]] = lambda *_: {},
    ) -> list[Mapping[str, Any]]:
        """The rows of a condition's answers (`question_files.ANSWERS`, and `more`), in the order of the
        questions. Raises RunStopped, StoreError, UsageError where no question can be asked so."""
        index = condition.opened(self.index)
        sweep = QuestionSweep(
            index, posed, self.store, Ask(level=condition.level, method=condition.method), more
        )

        def progress(p: SweepProgress) -> SweepProgress:
            return replace(sweep.progress(p), stage=condition.name)

        stages = methods.stages(condition.method, index.settings.query.dynamic)
        with self._timed(condition.name):
            sweep.run(self._executor(index.settings, stages, progress))
        return list(sweep.rows())

    def ask(
        self, stage: str, asked: Iterable[tuple[str, Callable[[], Dialogue[T]]]], total: int, step: str = ""
    ) -> Iterator[Outcome[T]]:
        """What became of each dialogue, in order, without its replies. There may be millions: they are begun
        as there is room, and what became of them is kept in a file.

        stage: whose model is asked; asked: what each is called, for people, and how it is started; total: how
        many there are; step: what they are together, for people
        """
        step = step or stage
        found: Spool[Outcome[T]] = Spool()
        failed = 0
        model_of = STAGE_OF.get(stage, stage)
        prices = ReplyPrices(self.index.settings.models)
        own = self.accounts.setdefault(stage, Accounts())

        async def ask_some(
            feed: Feed, at: int, each: Sequence[tuple[str, Callable[[], Dialogue[T]]]], waits: asyncio.Event
        ) -> None:
            nonlocal failed
            start = [one for _, one in each]
            outcomes = await feed.ask(at, f"{each[0][0]} and those after it", start, waits.set)
            for number, outcome in enumerate(outcomes, at):
                failed += outcome.status != "complete"
                for told in outcome.replies:
                    own.add(prices.record(model_of, told))
                found[number] = replace(outcome, replies=())

        async def ask_all(feed: Feed) -> None:
            feed.total = total
            given, at = iter(asked), 0
            asking: list[asyncio.Task[None]] = []
            try:
                while each := list(islice(given, DIALOGUES_TOGETHER)):
                    while feed.waiting >= READY:
                        await asyncio.sleep(LOOK_S)
                    waits = asyncio.Event()
                    asking.append(asyncio.create_task(ask_some(feed, at, each, waits)))
                    asking[-1].add_done_callback(lambda _, waits=waits: waits.set())  # type: ignore[misc]
                    at += len(each)
                    await waits.wait()
                await asyncio.gather(*asking)
                feed.close()
            except BaseException as e:
                feed.close(e)
                raise
            finally:
                for task in asking:
                    task.cancel()

        def progress(p: SweepProgress) -> SweepProgress:
            return replace(p, stage=step, done=max(len(found), p.done), total=total, failed=failed)

        with self._timed(step):
            swept(self._executor(self.index.settings, [model_of], progress), self.store, ask_all)
        return (found[number] for number in range(total))

    def check_models(self, stages: Sequence[str]) -> None:
        """See that the models of these stages can be asked, before others are paid for. Raises SettingsError,
        ModelRefused."""
        require_known(self.index.settings, stages)
        if asks_from_here(self.on_ray, self.address):
            models = Models.of(self.index.settings, self.index.manifest.usage)
            probed(models, self.index.settings, stages, False, self.observer.note)

    def costs(self) -> pa.Table:
        """What judging came to so far: stage, calls, tokens, cost_usd (null where a price is unknown)."""
        totals = {stage: accounts.total for stage, accounts in self.accounts.items()}
        rows = [
            {"stage": stage, "calls": of.calls, "tokens": of.total_tokens, "cost_usd": of.cost_usd}
            for stage, of in totals.items()
        ]
        return pa.Table.from_pylist(rows, schema=JUDGING)

    def write(self, name: str, table: pa.Table) -> None:
        """Keep a table of results: NAME.parquet. Raises StoreError."""
        self.store.write(f"{name}.parquet", parquet.encode(table))

    def read(self, name: str) -> pa.Table | None:
        """A table of results; None where there is none yet. Raises StoreError."""
        path = f"{name}.parquet"
        if not self.store.exists(path):
            return None
        try:
            return pq.read_table(pa.BufferReader(self.store.read(path)))
        except (pa.ArrowException, OSError) as e:
            where = self.store.url_of(path)
            raise StoreError(f"{where} cannot be read: run `evaluate compare` again, which writes it") from e

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        self.observer.step_started(name)
        yield
        self.observer.step_ended(name, time.monotonic() - started, {}, False)

    def _executor(
        self, settings: Settings, stages: Sequence[str], progress: Callable[[SweepProgress], SweepProgress]
    ) -> Executor:
        """One for all sweeps with these models: on Ray it takes long to start. progress: of this sweep."""
        self._progress = progress
        key = repr((settings.models, settings.run))
        if key not in self._executors:
            models = Models.of(settings, self.index.manifest.usage)
            check_prices(settings.budget, models)
            if asks_from_here(self.on_ray, self.address):
                models = probed(models, settings, stages, bool(self.store.list("work")), self.observer.note)
            opened = question_executor(
                self.store,
                settings,
                models,
                lambda p: self.observer.progress(self._progress(p)),
                self.stop,
                self.spending,
                self.on_ray,
                self.address,
                bad_replies_count=False,  # a judge that answers nonsense is a finding
            )
            self._executors[key] = self.held.enter_context(opened)
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
    """Around an evaluation whose results go to the folder or URL `out`. Raises LockHeld where another one is
    at work there."""
    observer = observer or Observer()
    store = Store(out, index.settings.storage.of(out))
    if store.url == index.store.url:
        raise UsageError(f"{out} is the index: an evaluation needs a folder of its own (--out)")
    if os.path.isfile(out):
        raise UsageError(f"--out {out} is a file: an evaluation needs a folder")
    stop = Stop(say=observer.note)
    with ExitStack() as held:
        lock = held.enter_context(locked(store, f"evaluate {note}", 0.0))
        held.enter_context(observer)
        held.enter_context(listening(stop))
        tidy(store, lock.check, MANY)
        spending = Spending(index.settings.budget, time.monotonic())
        with ExitStack() as engines:
            yield EvaluationRun(index, store, observer, on_ray, address, spending, stop, engines)
        tidy(store, lock.check, FEW)
