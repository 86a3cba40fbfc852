"""Run the questions of a batch as coroutines, and their dialogues as items of one sweep."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from graphrag_ray.base.connection_settings import OFFLINE_MODEL_ID, Model
from graphrag_ray.base.errors import GraphRagError, PermanentCallError, StoreError, UsageError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import Dialogue, Request, StreamListener
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.base.urls import display_url
from graphrag_ray.engine.dialogue_runner import DialogueRunner, Waiting, record_bug
from graphrag_ray.engine.executor import Executor, SweepProgress
from graphrag_ray.engine.feed import Feed, label_item, start_item
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.interrupts import InterruptState
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray.discovery import starts_private_ray
from graphrag_ray.engine.reply_cache import JOURNAL
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.work import URGENT_FLUSH_S, Outcome, ReplyUsage, Work
from graphrag_ray.indexing.spool import Spool
from graphrag_ray.llm.accounting import Accounts, CallRecord, sum_usage
from graphrag_ray.llm.pricing import cost_pico_usd, price_of
from graphrag_ray.query.answer_streams import Background
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.budget import CostBound
from graphrag_ray.query.methods.method import AskRequest
from graphrag_ray.query.model_calls import BaseAsker
from graphrag_ray.query.question_files import BatchQuestion, answer_row, failed_row
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

if TYPE_CHECKING:
    from graphrag_ray.query.ask import Index

T = TypeVar("T")

MAX_WAITING_ITEMS = 256
"""No further question is started while this many items are waiting to be sent."""
MAX_OPEN_QUESTIONS = 1_000
"""Maximum number of questions in progress. The contexts of all of them are in memory."""
MAX_STARTING_QUESTIONS = 4
"""Maximum number of questions that are reading the index before their first call."""
POLL_INTERVAL_S = 0.01
MAX_IDENTICAL_REFUSALS = 3
"""The batch stops if this many questions are refused for the same reason before as many are answered, because
the options are then at fault, not the questions."""


@contextmanager
def question_executor(
    store: Store,
    settings: Settings,
    models: Models,
    on_progress: Callable[[SweepProgress], None],
    stop: InterruptState,
    spending: Spending,
    on_ray: bool,
    address: str | None,
    count_bad_replies: bool = True,
) -> Iterator[Executor]:
    """Open an executor for the dialogues of many questions. `store` contains their journal."""
    run = settings.run
    shared: dict[str, Any] = {
        "on_progress": on_progress,
        "spending": spending,
        "stop": stop,
        "count_bad_replies": count_bad_replies,
    }
    if not (on_ray or address):
        journal_flush_s = min(run.journal_flush_s, URGENT_FLUSH_S)
        yield LocalExecutor(store, models, run.max_failed_fraction, journal_flush_s, **shared)
        return
    # Importing Ray takes a second.
    from graphrag_ray.engine.ray.cluster import check_nodes, connect
    from graphrag_ray.engine.ray.ray_executor import RayExecutor

    with connect(address):
        shared["checked_nodes"] = set() if starts_private_ray(address) else check_nodes(store, [])
        limits = run.max_failed_fraction, run.journal_flush_s
        executor = RayExecutor(store, models, *limits, workers_per_node=run.workers_per_node, **shared)
        executor.start()
        try:
            yield executor
        finally:
            executor.close()


@dataclass(frozen=True)
class BatchResult:
    """Totals of a batch, and its rows. `failed` counts questions with no answer or an incomplete one."""

    url: str
    questions: int
    failed: int
    accounts: Accounts
    seconds: float
    rows: Callable[[], Iterator[Mapping[str, Any]]] = field(repr=False, compare=False)


def run_sweep(
    executor: Executor, store: Store, feed_questions: Callable[[Feed], Coroutine[Any, Any, None]]
) -> Accounts:
    """Run one sweep over all dialogues that a coroutine puts into the feed. The coroutine closes the feed.

    Raises:
        GraphRagError: See `Executor.sweep`. Errors of the coroutine are raised too.
    """
    work: Work[Any] = Work(JOURNAL, start_item, label_item, needs_results=True)
    journal = JournalIndex.load(store, JOURNAL)
    feed = Feed(work, store, journal)
    background = Background()
    feeding = background.run(feed_questions(feed))
    try:
        sweep = executor.sweep(work, feed, journal)
        feeding.result()
    finally:
        feeding.cancel()
        background.close()
    return sweep.accounts


class QuestionSweep:
    """Answers the questions of a batch. Identical questions are asked once.

    Args:
        index: Index to ask.
        questions: Questions of the batch, including unreadable rows.
        store: Store of the journal.
        ask: Options for every question.
        extra_columns: Computes extra columns of a row from the answer and the usage of its replies.

    Attributes:
        failed: Number of questions so far with no answer or an incomplete one.
    """

    def __init__(
        self,
        index: Index,
        questions: Sequence[BatchQuestion],
        store: Store,
        ask: AskRequest,
        extra_columns: Callable[[Answer, Accounts], Mapping[str, Any]] = lambda *_: {},
    ) -> None:
        self._index, self._questions, self._store = index, questions, store
        self._ask, self._extra_columns = ask, extra_columns
        self._repeats = Counter(p.text for p in questions if not p.fault)
        self._first_rows: dict[str, int] = {}
        for number, p in enumerate(questions):
            if not p.fault:
                self._first_rows.setdefault(p.text, number)
        self._rows: Spool[dict[str, Any]] = Spool()
        self._answered = 0
        self._open: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._refused: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self.failed = len(questions) - self._repeats.total()

    def run(self, executor: Executor) -> Accounts:
        """Answer all questions.

        Raises:
            UsageError: No question can be asked with these options.
            GraphRagError: See `Executor.sweep`; also if the index cannot be read.
        """
        return run_sweep(executor, self._store, self._ask_all)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the answers in the order of the questions."""
        for p in self._questions:
            if p.fault:
                yield failed_row(p, self._ask.method, p.fault)
            else:
                yield self._rows[self._first_rows[p.text]] | {"question_id": p.id}

    def progress(self, p: SweepProgress) -> SweepProgress:
        """Convert progress from items, whose number is unknown, to questions."""
        total = self._repeats.total()
        return replace(
            p, stage="questions", done=self._answered, total=total, failed=self.failed, expected_turns=None
        )

    async def _ask_all(self, feed: Feed) -> None:
        prices = ReplyPrices(self._index.settings.models)

        def is_full() -> bool:
            return (
                self._starting >= MAX_STARTING_QUESTIONS
                or feed.waiting >= MAX_WAITING_ITEMS
                or len(self._open) >= MAX_OPEN_QUESTIONS
            )

        def raise_failure() -> None:
            """Raise the error that stops the batch, if any."""
            if self._failure is not None:
                raise self._failure

        def on_first_call() -> None:
            self._starting -= 1

        try:
            for number in self._first_rows.values():
                while is_full():
                    raise_failure()
                    await asyncio.sleep(POLL_INTERVAL_S)
                raise_failure()
                self._starting += 1
                asker = _FeedAsker(feed, number, self._questions[number].id, prices, on_first_call)
                self._open.add(asyncio.ensure_future(self._answer(number, asker)))
            while self._open:
                raise_failure()
                await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
            raise_failure()
            feed.close()
        except BaseException as e:
            feed.close(e)
            raise
        finally:
            for task in self._open:
                task.cancel()

    async def _answer(self, number: int, asker: _FeedAsker) -> None:
        question = self._questions[number]
        incomplete = True
        try:
            answer_question = self._index.prepare(
                replace(self._ask, text=question.text, chunks=question.chunks)
            )
            answer: Answer = await answer_question(asker, None)
            cited = answer.references
            numbers, answer = await asyncio.to_thread(
                self._index.show_or_note, answer, lambda: self._index.short_numbers(cited), "Short numbers"
            )
            extra = await asyncio.to_thread(self._extra_columns, answer, asker.accounts)
            row = {**answer_row(question, answer, numbers or {}), **extra}
            incomplete = bool(answer.failed_parts)
        except StoreError as e:
            self._failure = self._failure or e
            return
        except GraphRagError as e:
            row = failed_row(question, self._ask.method, str(e))
            if isinstance(e, UsageError):
                self._refused[str(e)] += 1
                limit = min(MAX_IDENTICAL_REFUSALS, len(self._first_rows))
                if self._refused[str(e)] >= limit > self._answered:
                    self._failure = self._failure or e
        except Exception as e:  # noqa: BLE001 - `_ask_all` re-raises engine errors
            if not is_unexpected(e):
                self._failure = self._failure or e
                return
            row = failed_row(question, self._ask.method, record_bug(e))
        finally:
            asker.note_first_call()
            self._open.discard(asyncio.current_task())
        self._rows[number] = row
        self._answered += self._repeats[question.text]
        self.failed += incomplete * self._repeats[question.text]


@dataclass
class _FeedAsker(BaseAsker):
    """Calls models for the question at position `order` through a feed."""

    feed: Feed
    order: int
    id: str
    prices: ReplyPrices
    on_first_call: Callable[[], None]
    _has_called: bool = False

    def note_first_call(self) -> None:
        if not self._has_called:
            self._has_called = True
            self.on_first_call()

    async def run(
        self,
        stage: str,
        factories: Sequence[Callable[[], Dialogue[T]]],
        is_answer: bool = False,
        listener: StreamListener | None = None,
    ) -> list[Outcome[T]]:
        refused: dict[int, Outcome[T]] = {}
        # Requests of each dialogue that the question's budget has admitted, with their bounds.
        admitted: dict[int, list[tuple[CostBound, Request]]] = {}
        for i, create in enumerate(factories):
            state = DialogueRunner(create()).state if self.budget else None
            requests = state.requests if isinstance(state, Waiting) else ()
            try:
                admitted[i] = [(self.budget.admit(r, is_answer), r) for r in requests if self.budget]
            except PermanentCallError as e:
                refused[i] = Outcome("", "failed", error=str(e))
        name = f"question {self.id}, {stage}"
        admitted_factories = [factories[i] for i in admitted]
        outcomes = await self.feed.ask(self.order, name, admitted_factories, self.note_first_call)
        for outcome, bounds in zip(outcomes, admitted.values(), strict=True):
            for reply in outcome.replies:
                self.accounts.add(self.prices.record(stage, reply))
            used = sum_usage(reply.usage for reply in outcome.replies) if outcome.replies else None
            for bound, request in bounds:
                assert self.budget is not None
                self.budget.settle(bound, request, used)
                used = None
        by_position = refused | dict(zip(admitted, outcomes, strict=True))
        return [by_position[i] for i in range(len(factories))]


class ReplyPrices:
    """Computes the cost of replies from the settings of the questions."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = {m.model_id: m for m in models.values()} | {OFFLINE_MODEL_ID: Model()}

    def record(self, stage: str, reply: ReplyUsage) -> CallRecord:
        cost: int | None = None
        if model := self._models.get(reply.model_id):
            endpoint = next((e for e in model.endpoints if display_url(e.base_url) == reply.endpoint), None)
            cost = cost_pico_usd(reply.usage, price_of(model, endpoint))
        origin = reply.prompt, reply.model_id, reply.endpoint
        return CallRecord(stage, *origin, "ok", reply.usage, cost, reply.latency_s, 1, 0, reply.latency_s)
