"""Answer the questions of clients, from arrival to answer.

A question takes a place, is answered from the newest snapshot over shared connections within a time limit,
and is counted.
"""

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
    failed_by_bug,
    fault_of,
)
from graphrag_ray.service.live import LiveIndex, Served
from graphrag_ray.service.service_metrics import ServiceMetrics
from graphrag_ray.service.service_options import ServiceOptions

log = logging.getLogger(__name__)


KEEP_ALIVE_S = 10.0
FIRST_ESTIMATE_S = 5.0  # estimated duration of a question before one has been answered
MIN_RETRY_S, MAX_RETRY_S = 1, 60
SMOOTHING = 0.1  # weight of the latest question in the mean duration


@dataclass(frozen=True)
class ClientQuestion(AskRequest):
    """A question from a client. changed applies its query settings; id names it in logs and answers."""

    changed: Callable[[Query], Query] | None = None
    seconds: float | None = None
    sources: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(12))


@dataclass(frozen=True)
class ServedAnswer:
    """An answer with short numbers and names of the cited records. sources: None unless requested."""

    id: str
    answer: Answer
    snapshot: int
    numbers: Mapping[Reference, int]
    cited: Sequence[Cited]
    sources: Sequence[Source] | None


@dataclass(frozen=True)
class AnsweringPhase:
    """Start or end of a phase of an answer. dialogues: number of dialogues that run concurrently."""

    name: str
    dialogues: int
    ended: bool


Event = AnsweringPhase | str | ServedAnswer
"""A string is a piece of the answer's text. A `StartsAgain` invalidates the pieces before it."""
Emit = Callable[[Event], None]


class QuestionPlaces:
    """Limits how many questions run and wait at once. Belongs to one event loop."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running, self._max_waiting = max_running, max_waiting
        self._free = asyncio.Semaphore(max_running)
        self._mean_s = FIRST_ESTIMATE_S
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold a place for a question. Raises QuestionRejected if too many wait."""
        if self._free.locked() and self.waiting >= self._max_waiting:
            # By then, about half of those waiting will have a place.
            seconds = self._mean_s * max(1, self.waiting / 2) / self._max_running
            retry_s = min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(seconds)))
            message = f"{plural(self.waiting, 'question')} already waiting. Retry in {retry_s} s."
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
        self.places = QuestionPlaces(options.max_running, options.max_waiting)
        self.metrics = ServiceMetrics(live, self.places, replica, recorder)

    async def answer(self, question: ClientQuestion, emit: Emit) -> ServedAnswer:
        """Answer a question. Raises QuestionRejected, and GraphRagError as `Index.prepare` does.

        An unexpected error is logged here and becomes a QuestionRejected, because the server would log all of
        it.
        """
        started = time.monotonic()
        logs.set_question_context(question.id)
        status, accounts = CLIENT_GONE, Accounts()
        limit = min(question.seconds or self.options.max_seconds, self.options.max_seconds)
        timer = asyncio.timeout(limit)
        try:
            _answering(self.live.now().index, question)  # refuses an invalid question before it waits
            async with timer, self.places.one():
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
                refused = QuestionRejected(Fault(504, SERVER, "timeout", message))
            else:
                log.exception("Unexpected error while answering a question")
                refused = failed_by_bug(question.id)
            status = refused.fault.status
            raise refused from e
        finally:
            seconds = time.monotonic() - started
            # A name made up by a client must not become a label, because there is no limit to them.
            method = question.method if question.method in methods.METHODS else "unknown"
            self.metrics.question(method, status, seconds)
            self.metrics.calls(accounts)
            logs.log_event(
                log,
                "Question ended",
                question=question.id,
                method=method,
                status=status,
                seconds=round(seconds, 3),
                calls=accounts.total.calls,
                tokens=accounts.total.total_tokens,
                cost_usd=accounts.total.cost_usd,
            )

    async def _answer(self, question: ClientQuestion, emit: Emit, accounts: Accounts) -> ServedAnswer:
        served = self.live.now()
        answering = _answering(served.index, question)
        connections = served.connections  # kept to the end, because a new key replaces those of the snapshot
        asker = served.index.asker(connections)
        asker.on_phase = lambda *phase: emit(AnsweringPhase(*phase))
        connections.n_questions += 1
        try:
            answer = await answering(asker, ReplyStreamer(emit))
            if answer.unread:
                raise GraphRagError(answer.text)
            return await asyncio.to_thread(_served_answer, question, served, answer)
        finally:
            connections.n_questions -= 1
            accounts.absorb(asker.accounts)


def _answering(index: Index, question: ClientQuestion) -> Any:
    """Prepare a question. Raises UsageError if it is invalid."""
    query = question.changed(index.settings.query) if question.changed else None
    return index.prepare(replace(question, query=query))


def _served_answer(question: ClientQuestion, served: Served, answer: Answer) -> ServedAnswer:
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
    """Yield the events of a question, the `ServedAnswer` last, and None after every KEEP_ALIVE_S without one.

    Raises like `Service.answer`. Closing the iterator cancels the question.
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
