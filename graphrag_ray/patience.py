"""How long a question waits for an endpoint: long for one that answers, briefly for one that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
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


@dataclass
class Asker:
    """Runs the dialogues of questions, phase after phase, under one limiter and over the same connections.
    Belongs to one event loop.

    accounts   of the question that is asked now; allowance: its budget, None where it has none
    cache      of replies; None: each is asked for
    kept       replies of the question that is asked now that were in the cache, and all
    """

    models: Models
    limiter: Limiter
    accounts: Accounts
    allowance: Allowance | None = None
    cache: ReplyCache | None = None
    kept: tuple[int, int] = (0, 0)
    _ways: dict[int, AskAloud] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    def of(cls, models: Models, accounts: Accounts, allowance: Allowance | None = None) -> Asker:
        limiter = LocalLimiter(models.online, models.default_in_flight, lend_first=True)
        return cls(models, limiter, accounts, allowance)

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._open.aclose()

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
        outcomes, heard = await self._round(stage, start, FIRST_ATTEMPTS, last, listener)
        failed = [i for i, o in enumerate(outcomes) if o.status == "retry"]
        if failed and heard and self.models.max_attempts > FIRST_ATTEMPTS:
            again, _ = await self._round(
                stage, [start[i] for i in failed], self.models.max_attempts, last, listener
            )
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

        way = await self._way(min(attempts, self.models.max_attempts))
        ask: Ask = partial(way, listener=listener) if listener else way
        heeding = self.allowance.around(listening(ask), last) if self.allowance else listening(ask)
        return await run_dialogues(stage, [s() for s in start], heeding, self.cache), heard

    def _note(self, call: CallRecord) -> None:
        self.accounts.add(call)
        traces.note_call(call)

    async def _way(self, attempts: int) -> AskAloud:
        async with self._opening:
            if attempts not in self._ways:
                models = replace(self.models, max_attempts=attempts)
                opened = open_gateway(models, self.limiter, self._note)
                self._ways[attempts] = await self._open.enter_async_context(opened)
        return self._ways[attempts]
