"""How a question asks models: within its budget (`Allowance`), and waiting long for an endpoint that answers,
briefly for one that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeVar

from graphrag_ray.base.errors import BudgetSpent, CallError, PermanentCallError
from graphrag_ray.base.index_settings import Model, Query
from graphrag_ray.base.messages import Dialogue, EmbeddingRequest, Listener, Reply, Request, Usage
from graphrag_ray.engine.gateways import Ask, AskAloud, Models, open_gateway
from graphrag_ray.engine.in_process import run_dialogues
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.engine.work import Outcome
from graphrag_ray.llm.accounting import Accounts, CallRecord
from graphrag_ray.llm.call_failures import GaveUp
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.llm.model_client import Called
from graphrag_ray.llm.pricing import cost_usd, dearest_price
from graphrag_ray.llm.request_sizes import output_limit, prompt_size, text_size, thought_room
from graphrag_ray.query import traces
from graphrag_ray.query.methods.budget import Most, budget_in_words


@dataclass
class Allowance:
    """A question's budget while it is asked: a call that could exceed it is not sent.

    What was answered counts as it was, at the dearest endpoint's price; what is in flight as the most that it
    can come to. So calls that run at once cannot exceed the budget together; what can is a request that was
    never answered and may be billed, a hedge, and what an endpoint counts otherwise than we do. The first of
    these is counted when its call is over.

    kept_back: for the call that writes the answer, without which all others were paid in vain."""

    query: Query
    models: Mapping[str, Model]
    kept_back: Most = field(default_factory=Most)
    _spent: Most = field(default_factory=Most)
    _in_flight: Most = field(default_factory=Most)

    def around(self, ask: Ask, last: bool) -> Ask:
        """The same way to the models, within the budget. last: see `admit`."""

        async def within(request: Request, stage: str) -> Called[Reply]:
            own = self.admit(request, last)
            usage: Usage | None = None
            try:
                answer = await ask(request, stage)
                usage = answer.reply.usage
            finally:
                self.settle(own, request, usage)
            return answer

        return within

    def admit(self, request: Request, last: bool) -> Most:
        """Count a request as in flight, to be settled; the most that it can come to.

        Where nothing is left for it: raises BudgetSpent for the call that writes the answer (`last`) and for
        an embedding, without which nothing is found; PermanentCallError for any other, whose part is missing.
        """
        model = self.models.get(request.call.model, Model())
        if isinstance(request, EmbeddingRequest):
            own = self._taken(request, Usage(text_size(request.text, model)))
        else:
            prompt = prompt_size(request, model)
            room = thought_room(request, model, prompt, request.call.reasoning_tokens)
            own = self._taken(request, Usage(prompt, output_limit(request, model) + room))
        needed = last or isinstance(request, EmbeddingRequest)
        later = Most() if needed else self.kept_back
        if not (self._spent + self._in_flight + own + later).within(self.query):
            spent = (self._spent + self._in_flight).tokens
            message = f"{budget_in_words(self.query)}, and {spent:,} tokens are spent or asked for: not sent"
            raise BudgetSpent(message) if needed else PermanentCallError(message)
        self._in_flight += own
        return own

    def settle(self, own: Most, request: Request, usage: Usage | None) -> None:
        """It came back. own: as admitted; usage: of its reply, None where it has none."""
        self._in_flight -= own
        if usage is not None:
            self._spent += self._taken(request, usage)

    def note(self, call: CallRecord) -> None:
        """A call is over: its requests that were sent and never answered."""
        priced = [m for m in self.models.values() if m.model_id == call.model_id]
        for usage in call.unanswered:
            costs = [cost_usd(usage, dearest_price(model)) for model in priced]
            known = [cost for cost in costs if cost is not None]
            tokens = usage.prompt_tokens + usage.completion_tokens
            self._spent += Most(1, tokens, max(known, default=None))

    def _taken(self, request: Request, usage: Usage) -> Most:
        model = self.models.get(request.call.model, Model())
        usage = Usage(usage.prompt_tokens, usage.completion_tokens)  # what is cached may be cheaper
        return Most(1, usage.prompt_tokens + usage.completion_tokens, cost_usd(usage, dearest_price(model)))


T = TypeVar("T")

FIRST_ATTEMPTS = 4
"""With waits of 0.5, 1 and 2 s at most between them. A run of hours should outlast an endpoint that is
restarted; somebody who waits for one answer should rather be told that nothing listens there."""
REFUSED_FOR_S = 30.0
"""An endpoint that refused us as a whole is tried again after this: a quota is topped up, and a proxy that
takes us for somebody else is put right, while a service or a conversation goes on."""


@dataclass(kw_only=True)
class Asks:
    """Asks models for one question at a time.

    accounts   what the question came to; allowance: its budget, None where it has none
    kept       how many of its replies were in the cache, and how many there were
    """

    accounts: Accounts = field(default_factory=Accounts)
    allowance: Allowance | None = None
    kept: tuple[int, int] = (0, 0)

    async def run(
        self,
        stage: str,
        start: Sequence[Callable[[], Dialogue[T]]],
        last: bool = False,
        listener: Listener | None = None,
    ) -> list[Outcome[T]]:
        """Start and run dialogues at once. last: they write the answer; listener: hears their replies. Raises
        ModelRefused when no request will succeed, BudgetSpent."""
        raise NotImplementedError


_asking: ContextVar[Asker] = ContextVar("asking")
"""For whom a call is made: gateways are shared by questions that are asked at once."""


@dataclass
class Connections:
    """The ways to the models, under one limiter; shared by any number of questions. Belong to one event loop.

    limiter   None: one of their own
    ask_key   where a key may be had that neither the environment nor a file holds
    aside     where the offline engine answers; None: in the event loop, which serves nobody else
    questions that use them now, as far as somebody counts
    open      closes what is opened here, and what its owner adds
    """

    models: Models
    limiter: Limiter | None = None
    ask_key: Callable[[str], str | None] | None = None
    aside: Executor | None = None
    questions: int = 0
    open: AsyncExitStack = field(default_factory=AsyncExitStack)
    _ways: dict[int, AskAloud] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if self.limiter is None:
            self.limiter = LocalLimiter(self.models.online, self.models.default_in_flight, lend_first=True)

    async def way(self, before: int) -> AskAloud:
        """For the first FIRST_ATTEMPTS of a call, or for those that the settings allow after so many. What it
        comes to is told to the question that asks; an embedding call that several share, to the first."""
        async with self._opening:
            if before not in self._ways:
                most = self.models.max_attempts
                opened = open_gateway(
                    replace(self.models, max_attempts=most if before else min(FIRST_ATTEMPTS, most)),
                    self.limiter,
                    _note,
                    self.ask_key,
                    attempts_before=before,
                    aside=self.aside,
                    dropped_for_s=REFUSED_FOR_S,
                )
                self._ways[before] = await self.open.enter_async_context(opened)
        return self._ways[before]


def _note(call: CallRecord) -> None:
    asker = _asking.get()
    asker.accounts.add(call)
    if asker.allowance:
        asker.allowance.note(call)
    traces.note_call(call)


@dataclass
class Asker(Asks):
    """Asks over connections. For several questions at once, give each an asker over the same ones.

    cache   of replies; None: each is asked for
    instead answers in place of the models, but for embeddings; without a cache
    told    of each phase that begins or has ended: its name, how many dialogues it has, whether it has ended
    """

    connections: Connections
    cache: ReplyCache | None = None
    instead: Ask | None = None
    told: Callable[[str, int, bool], None] = lambda *phase: None

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """What is for the cache is written, and the connections are no more."""
        try:
            if self.cache:
                await asyncio.to_thread(self.cache.flush)
        finally:
            await self.connections.open.aclose()

    async def run(
        self,
        stage: str,
        start: Sequence[Callable[[], Dialogue[T]]],
        last: bool = False,
        listener: Listener | None = None,
    ) -> list[Outcome[T]]:
        """A call makes FIRST_ATTEMPTS, and then, unless no endpoint has answered any of them at all, were it
        with an error, what is left of those of the settings."""
        if self.instead and stage != "embed":
            return await run_dialogues(stage, [s() for s in start], self.instead)
        heard, asking, decided = False, 0, asyncio.Event()

        async def patiently(request: Request, stage: str) -> Called[Reply]:
            nonlocal heard, asking
            asking += 1
            try:
                way = await self.connections.way(0)
                answer = await way(request, stage, listener)
                heard = True
                return answer
            except CallError as e:
                heard = heard or e.status is not None
                if not isinstance(e, GaveUp) or self.connections.models.max_attempts <= FIRST_ATTEMPTS:
                    raise
                gave_up = e
            finally:
                asking -= 1
                if heard or not asking:
                    decided.set()
            await decided.wait()  # until it is known whether anything answers
            if not heard:
                raise gave_up
            again = await self.connections.way(FIRST_ATTEMPTS)
            return await again(request, stage, listener)

        _asking.set(self)
        ask = self.allowance.around(patiently, last) if self.allowance else patiently
        self.told(stage, len(start), False)
        outcomes = await run_dialogues(stage, [s() for s in start], ask, self.cache)
        self.told(stage, len(start), True)
        known = sum(len(o.replies) - o.turns for o in outcomes)
        self.kept = self.kept[0] + known, self.kept[1] + sum(len(o.replies) for o in outcomes)
        return outcomes
