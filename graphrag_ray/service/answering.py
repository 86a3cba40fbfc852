"""One question of a client, from its arrival to its answer: a place, the snapshot of that moment, an asker
over the shared connections, a time limit; and what it came to, counted."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError, SnapshotRemoved
from graphrag_ray.base.index_settings import Query
from graphrag_ray.base.instruments import Recorder
from graphrag_ray.base.records import Reference
from graphrag_ray.base.wording import plural
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.query.answer_streams import Telling
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Ask
from graphrag_ray.query.sources import Cited, Source
from graphrag_ray.service.faults import (
    CLIENT_GONE,
    LIMITED,
    SERVER,
    Fault,
    RefusedQuestion,
    failed_by_bug,
    fault_of,
)
from graphrag_ray.service.live import LiveIndex, Served
from graphrag_ray.service.service_metrics import Measures
from graphrag_ray.service.service_options import ServiceOptions

log = logging.getLogger(__name__)


KEEP_ALIVE_S = 10.0
FIRST_GUESS_S = 5.0
"""That a question takes, before one has been answered."""
SHORTEST_S, LONGEST_S = 1, 60
WEIGHT = 0.1
"""Of the last question in the mean."""


@dataclass(frozen=True)
class Asked(Ask):
    """A question as a client asks it.

    changed   changes of how it is answered
    seconds   after which it is given up
    sources   whether to say what lies under the references
    id        by which the log and the answer name it
    """

    changed: Callable[[Query], Query] | None = None
    seconds: float | None = None
    sources: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(12))


@dataclass(frozen=True)
class Replied:
    """An answer. id: of the question; numbers: the short ones of what it cites; cited: the same by name;
    sources: None where nobody asked for them."""

    id: str
    answer: Answer
    snapshot: int
    numbers: Mapping[Reference, int]
    cited: Sequence[Cited]
    sources: Sequence[Source] | None


@dataclass(frozen=True)
class AnsweringPhase:
    """A phase of an answer begins, or has ended. dialogues: that it asks models for at once."""

    name: str
    dialogues: int
    ended: bool


Event: TypeAlias = AnsweringPhase | str | Replied
"""A piece of the answer's text is a string; a `StartsAgain` says that those before it count no more."""
Say: TypeAlias = Callable[[Event], None]


class QuestionPlaces:
    """How many questions are answered at once, how many wait for that, and when to come again.

    Belongs to one event loop. running, waiting: questions now."""

    def __init__(self, most_running: int, most_waiting: int) -> None:
        self._most_running, self._most_waiting = most_running, most_waiting
        self._free = asyncio.Semaphore(most_running)
        self._mean_s = FIRST_GUESS_S
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place for a question, as long as the block lasts. Raises Refused where too many wait."""
        if self._free.locked() and self.waiting >= self._most_waiting:
            # When about half of those who wait will have a place.
            seconds = self._mean_s * max(1, self.waiting / 2) / self._most_running
            again_s = min(LONGEST_S, max(SHORTEST_S, math.ceil(seconds)))
            told = f"{self.waiting} questions wait already: ask again in {again_s} s"
            raise RefusedQuestion(Fault(429, LIMITED, "too_many_questions", told, retry_after_s=again_s))
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()
            took = asyncio.get_running_loop().time() - began
            self._mean_s += WEIGHT * (took - self._mean_s)


class Service:
    """Answers questions, many at once. Belongs to one event loop."""

    def __init__(
        self, options: ServiceOptions, live: LiveIndex, replica: str = "", recorder: Recorder | None = None
    ) -> None:
        self.options, self.live = options, live
        self.places = QuestionPlaces(options.max_running, options.max_waiting)
        self.measures = Measures(live, self.places, replica, recorder)

    async def answer(self, asked: Asked, say: Say) -> Replied:
        """Raises GraphRagError: Refused, what `Index.answering` and what it returns raise. An error that is a
        bug is logged, and Refused as such: whoever serves us would log the whole of it."""
        began = time.monotonic()
        logs.about_question(asked.id)
        status, accounts = CLIENT_GONE, Accounts()
        limit = min(asked.seconds or self.options.max_seconds, self.options.max_seconds)
        timer = asyncio.timeout(limit)
        try:
            _answering(self.live.now().index, asked)  # what cannot be asked is refused before it waits
            async with timer, self.places.one():
                replied = await self._answered(asked, say, accounts)
            status = 200
            return replied
        except GraphRagError as e:
            status = fault_of(e).status
            if isinstance(e, SnapshotRemoved):
                self.live.soon()
            raise
        except Exception as e:
            if isinstance(e, TimeoutError) and timer.expired():
                told = f"the question was given up after {limit:g} s, the time that it may take"
                if n := accounts.total.rate_limited:
                    told += f"; {plural(n, 'call')} of its models were answered 429, too many requests"
                refused = RefusedQuestion(Fault(504, SERVER, "timeout", told))
            else:
                log.exception("a question ended with an error that is a bug")
                refused = failed_by_bug(asked.id)
            status = refused.fault.status
            raise refused from e
        finally:
            seconds = time.monotonic() - began
            # A name that a client makes up is no label: there would be no end of them.
            method = asked.method if asked.method in methods.METHODS else "unknown"
            self.measures.question(method, status, seconds)
            self.measures.calls(accounts)
            total = accounts.total
            cost: dict[str, Any] = {
                "calls": total.calls,
                "tokens": total.total_tokens,
                "cost_usd": total.cost_usd,
            }
            about: dict[str, Any] = {
                "question": asked.id,
                "method": method,
                "status": status,
                "seconds": round(seconds, 3),
            }
            logs.event(log, "question ended", **about, **cost)

    async def _answered(self, asked: Asked, say: Say, accounts: Accounts) -> Replied:
        served = self.live.now()
        index, answering = served.index, _answering(served.index, asked)
        connections = served.connections  # of this question to its end: a key that comes makes others
        asker = index.asker(connections)
        asker.told = lambda *phase: say(AnsweringPhase(*phase))
        connections.questions += 1
        try:
            answer = await answering(asker, Telling(say))
            if answer.unread:
                raise GraphRagError(answer.text)
            return await asyncio.to_thread(_replied, asked, served, answer)
        finally:
            connections.questions -= 1
            accounts.absorb(asker.accounts)


def _answering(index: Index, asked: Asked) -> Any:
    """Raises UsageError for what cannot be asked."""
    query = asked.changed(index.settings.query) if asked.changed else None
    return index.answering(replace(asked, query=query))


def _replied(asked: Asked, served: Served, answer: Answer) -> Replied:
    index, references = served.index, answer.references
    under: Sequence[Source] | None = None
    if asked.sources:
        under, answer = index.beside(answer, lambda: index.sources(references, answer), "The sources")
    numbers, answer = index.beside(answer, lambda: index.numbers(references), "Short numbers")
    cited, answer = index.beside(answer, lambda: index.cited(references), "What the answer cites")
    return Replied(asked.id, answer, served.number, numbers or {}, cited or (), under)


async def events(service: Service, asked: Asked) -> AsyncIterator[Event | None]:
    """What a question comes to, as it comes, the `Replied` last; None after each KEEP_ALIVE_S in which
    nothing did. Raises as `Service.answer`. Whoever stops listening ends the question."""
    said: asyncio.Queue[Event | None] = asyncio.Queue()
    running = asyncio.ensure_future(service.answer(asked, said.put_nowait))
    running.add_done_callback(lambda _: said.put_nowait(None))
    try:
        while True:
            try:
                event = await asyncio.wait_for(said.get(), KEEP_ALIVE_S)
            except TimeoutError:
                yield None
                continue
            if event is None:
                break
            yield event
        yield await running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await running
