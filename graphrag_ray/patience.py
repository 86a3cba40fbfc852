"""How long a question waits for an endpoint: long for one that answers, briefly for one that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Protocol, TypeVar

from graphrag_ray import traces
from graphrag_ray.engine.allowance import Allowance
from graphrag_ray.engine.cache import ReplyCache
from graphrag_ray.engine.gateways import Ask, AskAloud, Models, open_gateway
from graphrag_ray.engine.local import run_dialogues
from graphrag_ray.engine.work import Answer, Outcome
from graphrag_ray.errors import CallError
from graphrag_ray.llm.accounting import Accounts, CallRecord
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.messages import Dialogue, Listener, Request

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
    _ways: dict[int, AskAloud] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def way(self, attempts: int) -> AskAloud:
        """That makes so many attempts of a call, or as many as the settings allow. What it comes to is told
        to the question that asks; an embedding call that several share, to the first."""
        attempts = min(attempts, self.models.max_attempts)
        async with self._opening:
            if attempts not in self._ways:
                models = replace(self.models, max_attempts=attempts)
                opened = open_gateway(
                    models,
                    self.limiter,
                    _note,
                    self.ask_key,
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
    _asking.get().accounts.add(call)
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
        """Start and run dialogues at once, each with FIRST_ATTEMPTS. Those whose calls failed are started
        again with all attempts of the settings, unless no endpoint has answered at all, were it with an
        error. last: they write the answer; listener: hears their replies. Raises ModelRefused when no
        request will succeed, BudgetSpent."""
        _asking.set(self)
        outcomes, heard = await self._round(stage, start, FIRST_ATTEMPTS, last, listener)
        failed = [i for i, o in enumerate(outcomes) if o.status == "retry"]
        most = self.connections.models.max_attempts
        if failed and heard and most > FIRST_ATTEMPTS:
            again, _ = await self._round(stage, [start[i] for i in failed], most, last, listener)
            for i, outcome in zip(failed, again, strict=True):
                outcomes[i] = outcome
        known = sum(len(o.replies) - o.turns for o in outcomes)
        self.kept = self.kept[0] + known, self.kept[1] + sum(len(o.replies) for o in outcomes)
        return outcomes

    async def _round(
        self,
        stage: str,
        start: Sequence[Callable[[], Dialogue[T]]],
        attempts: int,
        last: bool,
        listener: Listener | None,
    ) -> tuple[list[Outcome[T]], bool]:
        heard = False

        def listening(ask: Ask) -> Ask:
            async def listen(request: Request, stage: str) -> Answer:
                nonlocal heard
                try:
                    answer = await ask(request, stage)
                except CallError as e:
                    heard = heard or e.status is not None
                    raise
                heard = True
                return answer

            return listen

        way = await self.connections.way(attempts)
        ask: Ask = partial(way, listener=listener) if listener else way
        heeding = self.allowance.around(listening(ask), last) if self.allowance else listening(ask)
        return await run_dialogues(stage, [s() for s in start], heeding, self.cache), heard
