"""Answer questions of clients from the newest snapshot, within limits on concurrency and time."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from graphrag_ray.base import logs
from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import GraphRagError, SnapshotRemoved
from graphrag_ray.base.index_settings import Query
from graphrag_ray.base.instruments import Recorder
from graphrag_ray.base.wording import plural
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.query.answer_streams import ReplyStreamer
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import AskRequest
from graphrag_ray.query.sources import Cited, Source
from graphrag_ray.service.faults import (
    CLIENT_GONE,
    LIMITED,
    SERVER,
    Fault,
    QuestionRejected,
    fault_of,
    internal_error,
)
from graphrag_ray.service.live import LiveIndex, Served
from graphrag_ray.service.service_metrics import ServiceMetrics
from graphrag_ray.service.service_options import ServiceOptions

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 10.0
INITIAL_ESTIMATE_S = 5.0
"""Estimated duration of the first question."""
MIN_RETRY_S, MAX_RETRY_S = 1, 60
SMOOTHING = 0.1
"""Weight of the latest question in the moving average of durations."""


@dataclass(frozen=True)
class ClientQuestion(AskRequest):
    """A question from a client. `change_settings` applies the query settings in the request."""

    change_settings: Callable[[Query], Query] | None = None
    seconds: float | None = None
    sources: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(12))


@dataclass(frozen=True)
class ServedAnswer:
    """An answer with the short numbers and names of cited records, and its sources if requested."""

    id: str
    answer: Answer
    snapshot: int
    numbers: Mapping[Reference, int]
    cited: Sequence[Cited]
    sources: Sequence[Source] | None


@dataclass(frozen=True)
class AnsweringPhase:
    """The start or end of a phase, which runs this number of dialogues concurrently."""

    name: str
    dialogues: int
    ended: bool


Event = AnsweringPhase | str | ServedAnswer
"""A string is a piece of the answer. A `StartsAgain` invalidates the earlier pieces."""
Emit = Callable[[Event], None]


class QuestionSlots:
    """Limits how many questions run and wait concurrently. Belongs to one event loop."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running, self._max_waiting = max_running, max_waiting
        self._free = asyncio.Semaphore(max_running)
        self._mean_s = INITIAL_ESTIMATE_S
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Wait for a slot and occupy it. Raises QuestionRejected if too many questions are waiting."""
        if self._free.locked() and self.waiting >= self._max_waiting:
            # By then, about half of the waiting questions will have a slot.
            seconds = self._mean_s * max(1, self.waiting / 2) / self._max_running
            retry_s = min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(seconds)))
            message = f"Too many questions ({self.waiting:,} waiting). Retry in {retry_s} s."
            raise QuestionRejected(Fault(429, LIMITED, "too_many_questions", message, retry_after_s=retry_s))
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        started = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()
            elapsed = asyncio.get_running_loop().time() - started
            self._mean_s += SMOOTHING * (elapsed - self._mean_s)


class Service:
    """Answers questions concurrently. Belongs to one event loop."""

    def __init__(
        self, options: ServiceOptions, live: LiveIndex, replica: str = "", recorder: Recorder | None = None
    ) -> None:
        self.options, self.live = options, live
        self.slots = QuestionSlots(options.max_running, options.max_waiting)
        self.metrics = ServiceMetrics(live, self.slots, replica, recorder)

    async def answer(self, question: ClientQuestion, emit: Emit) -> ServedAnswer:
        """Answer a question. Raises QuestionRejected, and GraphRagError as `Index.prepare` does.

        An unexpected error becomes a QuestionRejected and is logged here, without text of documents.
        """
        started = time.monotonic()
        logs.set_question_context(question.id)
        status, accounts = CLIENT_GONE, Accounts()
        limit = min(question.seconds or self.options.max_seconds, self.options.max_seconds)
        timer = asyncio.timeout(limit)
        try:
            _prepare(
                self.live.require_current().index, question
            )  # reject an invalid question before it waits
            async with timer, self.slots.acquire():
                answer = await self._answer(question, emit, accounts)
            status = 200
            return answer
        except GraphRagError as e:
            status = fault_of(e).status
            if isinstance(e, SnapshotRemoved):
                self.live.refresh_soon()
            raise
        except Exception as e:
            if isinstance(e, TimeoutError) and timer.expired():
                message = f"The question exceeded its time limit of {limit:g} s"
                if n := accounts.total.rate_limited:
                    message += f". {plural(n, 'model call')} received 429, too many requests."
                rejection = QuestionRejected(Fault(504, SERVER, "timeout", message))
            else:
                log.exception("Unexpected error while answering a question")
                rejection = internal_error(question.id)
            status = rejection.fault.status
            raise rejection from e
        finally:
            seconds = time.monotonic() - started
            # Clients can make up any number of names, so unknown ones must not become labels.
            method = question.method if question.method in methods.METHODS else "unknown"
            self.metrics.count_question(method, status, seconds)
            self.metrics.count_calls(accounts)
            logs.log_event(
                log,
                "Question finished",
                question=question.id,
                method=method,
                status=status,
                seconds=round(seconds, 3),
                calls=accounts.total.calls,
                tokens=accounts.total.total_tokens,
                cost_usd=accounts.total.cost_usd,
            )

    async def _answer(self, question: ClientQuestion, emit: Emit, accounts: Accounts) -> ServedAnswer:
        served = self.live.require_current()
        answering = _prepare(served.index, question)
        connections = served.connections  # a local variable: a refresh may replace them in `served`
        asker = served.index.asker(connections)
        asker.on_phase = lambda *phase: emit(AnsweringPhase(*phase))
        connections.n_questions += 1
        try:
            answer = await answering(asker, ReplyStreamer(emit))
            if answer.unread:
                raise GraphRagError(answer.text)
            return await asyncio.to_thread(_build_answer, question, served, answer)
        finally:
            connections.n_questions -= 1
            accounts.merge(asker.accounts)


def _prepare(index: Index, question: ClientQuestion) -> Any:
    """Prepare a question. Raises UsageError if it is invalid."""
    query = question.change_settings(index.settings.query) if question.change_settings else None
    return index.prepare(replace(question, query=query))


def _build_answer(question: ClientQuestion, served: Served, answer: Answer) -> ServedAnswer:
    index, references = served.index, answer.references
    sources: Sequence[Source] | None = None
    if question.sources:
        sources, answer = index.show_or_note(answer, lambda: index.sources(references, answer), "The sources")
    numbers, answer = index.show_or_note(answer, lambda: index.short_numbers(references), "Short numbers")
    cited, answer = index.show_or_note(
        answer, lambda: index.cited_records(references), "What the answer cites"
    )
    return ServedAnswer(question.id, answer, served.number, numbers or {}, cited or (), sources)


async def events(service: Service, question: ClientQuestion) -> AsyncIterator[Event | None]:
    """Yield the events of a question, ending with the `ServedAnswer`.

    Yields None after every KEEP_ALIVE_S without an event. Raises the errors of `Service.answer`. Closing the
    iterator cancels the question.
    """
    emitted: asyncio.Queue[Event | None] = asyncio.Queue()
    task = asyncio.ensure_future(service.answer(question, emitted.put_nowait))
    task.add_done_callback(lambda _: emitted.put_nowait(None))
    try:
        while True:
            try:
                event = await asyncio.wait_for(emitted.get(), KEEP_ALIVE_S)
            except TimeoutError:
                yield None
                continue
            if event is None:
                break
            yield event
        yield await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
