"""How long a question waits for an endpoint: long for one that answers, briefly for one that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, TypeVar

from graphrag_ray.base.errors import CallError
from graphrag_ray.base.messages import Dialogue, Listener, Reply, Request
from graphrag_ray.engine.allowance import Allowance
from graphrag_ray.engine.gateways import AskAloud, Models, open_gateway
from graphrag_ray.engine.in_process import run_dialogues
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.engine.work import Outcome
from graphrag_ray.llm.accounting import Accounts, CallRecord
from graphrag_ray.llm.call_failures import GaveUp
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.llm.model_client import Called
from graphrag_ray.query import traces

T = TypeVar("T")

FIRST_ATTEMPTS = 4
"""With waits of 0.5, 1 and 2 s at most between them. A run of hours should outlast an endpoint that is
restarted; somebody who waits for one answer should rather be told that nothing listens there."""
REFUSED_FOR_S = 30.0
"""An endpoint that refused us as a whole is tried again after this: a quota is topped up, and a proxy that
takes us for somebody else is put right, while a service or a conversation goes on."""


class Asks(Protocol):
    """Runs the dialogues of a question.

    accounts   what the question came to; allowance: its budget, None where it has none
    kept       how many replies were in a cache, and how many there were
    """

    accounts: Accounts
    allowance: Allowance | None
    kept: tuple[int, int]

    async def run(
        self,
        stage: str,
        start: Sequence[Callable[[], Dialogue[T]]],
        last: bool = False,
        listener: Listener | None = None,
    ) -> list[Outcome[T]]:
        """What became of each. last: they write the answer; listener: hears their replies. Raises
        ModelRefused when no request will succeed, BudgetSpent."""
        ...


_asking: ContextVar[Asker] = ContextVar("asking")
"""For whom a call is made: gateways are shared by questions that are asked at once."""


@dataclass
class Connections:
    """The ways to the models, under one limiter; shared by any number of questions. Belong to one event loop.

    ask_key   where a key may be had that neither the environment nor a file holds
    aside     where the offline engine answers; None: in the event loop, which serves nobody else
    questions that use them now, as far as somebody counts
    """

    models: Models
    limiter: Limiter
    ask_key: Callable[[str], str | None] | None = None
    aside: Executor | None = None
    questions: int = 0
    _ways: dict[tuple[int, int], AskAloud] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def way(self, before: int, most: int) -> AskAloud:
        """That makes attempts of a call until there are `most` of them, or as many as the settings allow,
        with those that were made before. What it comes to is told to the question that asks; an embedding
        call that several share, to the first."""
        attempts = before, min(most, self.models.max_attempts)
        async with self._opening:
            if attempts not in self._ways:
                models = replace(self.models, max_attempts=attempts[1])
                opened = open_gateway(
                    models,
                    self.limiter,
                    _note,
                    self.ask_key,
                    attempts_before=before,
                    aside=self.aside,
                    dropped_for_s=REFUSED_FOR_S,
                )
                self._ways[attempts] = await self._open.enter_async_context(opened)
        return self._ways[attempts]

    def when_closed(self, call: Callable[[], None]) -> None:
        """Do this, too, when they are closed."""
        self._open.callback(call)

    async def close(self) -> None:
        await self._open.aclose()


def _note(call: CallRecord) -> None:
    asker = _asking.get()
    asker.accounts.add(call)
    if asker.allowance:
        asker.allowance.note(call)
    traces.note_call(call)


@dataclass
class Asker:
    """Runs the dialogues of questions, phase after phase: of one question at a time. For several at once,
    give each an asker over the same connections.

    accounts   of the question that is asked now; allowance: its budget, None where it has none
    cache      of replies; None: each is asked for
    kept       replies of the question that is asked now that were in the cache, and all
    """

    connections: Connections
    accounts: Accounts = field(default_factory=Accounts)
    allowance: Allowance | None = None
    cache: ReplyCache | None = None
    kept: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, models: Models) -> Asker:
        """With connections and a limiter of its own."""
        limiter = LocalLimiter(models.online, models.default_in_flight, lend_first=True)
        return cls(Connections(models, limiter))

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """What is for the cache is written, and the connections are no more."""
        try:
            if self.cache:
                await asyncio.to_thread(self.cache.flush)
        finally:
            await self.connections.close()

    async def run(
        self,
        stage: str,
        start: Sequence[Callable[[], Dialogue[T]]],
        last: bool = False,
        listener: Listener | None = None,
    ) -> list[Outcome[T]]:
        """Start and run dialogues at once. A call makes FIRST_ATTEMPTS, and then, unless no endpoint has
        answered any of them at all, were it with an error, what is left of those of the settings. last: they
        write the answer; listener: hears their replies. Raises ModelRefused when no request will succeed,
        BudgetSpent."""
        _asking.set(self)
        patient = _Patience(self.connections, listener).ask
        heeding = self.allowance.around(patient, last) if self.allowance else patient
        outcomes = await run_dialogues(stage, [s() for s in start], heeding, self.cache)
        known = sum(len(o.replies) - o.turns for o in outcomes)
        self.kept = self.kept[0] + known, self.kept[1] + sum(len(o.replies) for o in outcomes)
        return outcomes


@dataclass
class _Patience:
    """The way to the models of dialogues that run at once.

    heard    an endpoint has answered one of their calls, were it with an error
    asking   calls whose first attempts are not over yet
    decided  when it is heard, or nobody is asking any more
    """

    connections: Connections
    listener: Listener | None
    heard: bool = False
    asking: int = 0
    decided: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, request: Request, stage: str) -> Called[Reply]:
        most = self.connections.models.max_attempts
        try:
            return await self._first(request, stage)
        except GaveUp:
            if most <= FIRST_ATTEMPTS:
                raise
            await self.decided.wait()  # until it is known whether anything answers
            if not self.heard:
                raise
        again = await self.connections.way(FIRST_ATTEMPTS, most)
        return await again(request, stage, self.listener)

    async def _first(self, request: Request, stage: str) -> Called[Reply]:
        self.asking += 1
        try:
            way = await self.connections.way(0, FIRST_ATTEMPTS)
            answer = await way(request, stage, self.listener)
            self.heard = True
            return answer
        except CallError as e:
            self.heard = self.heard or e.status is not None
            raise
        finally:
            self.asking -= 1
            if self.heard or not self.asking:
                self.decided.set()
