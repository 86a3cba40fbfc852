"""Call models for a question, within its budget and without waiting long for an unreachable endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeVar

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.errors import BudgetSpent, CallError, PermanentCallError
from graphrag_ray.base.index_settings import Query
from graphrag_ray.base.messages import (
    Dialogue,
    EmbeddingRequest,
    Reply,
    Request,
    RerankRequest,
    StreamListener,
    Usage,
)
from graphrag_ray.engine.in_process import run_dialogues
from graphrag_ray.engine.model_access import Ask, Models, StreamingAsk, open_gateway
from graphrag_ray.engine.reply_cache import ReplyCache
from graphrag_ray.engine.work import Outcome
from graphrag_ray.llm.accounting import Accounts, CallRecord
from graphrag_ray.llm.call_failures import RetriesExhausted
from graphrag_ray.llm.limiter import Limiter, LocalLimiter
from graphrag_ray.llm.model_client import CallResult
from graphrag_ray.llm.pricing import cost_usd, highest_price
from graphrag_ray.llm.request_sizes import (
    count_prompt_tokens,
    count_rerank_tokens,
    count_text_tokens,
    output_limit,
    reasoning_room,
)
from graphrag_ray.query import traces
from graphrag_ray.query.methods.budget import CostBound, describe_budget

T = TypeVar("T")

FIRST_ATTEMPTS = 4
"""Attempts before an endpoint counts as unreachable, with waits of at most 0.5, 1 and 2 s between them. A run
of hours should outlast a restart of the endpoint, but somebody who waits for one answer should soon learn
that the endpoint is down."""
RETRY_REFUSED_AFTER_S = 30.0
"""Time until an endpoint that refused all requests is tried again: while a service or a conversation is
running, a quota may be raised or a proxy repaired."""


@dataclass
class QuestionBudget:
    """The budget of a question in progress. A call that could exceed it is not sent.

    Answered calls count with their usage at the price of the most expensive endpoint, and calls in flight
    with their upper bound, so concurrent calls cannot exceed the budget together. The budget can still be
    exceeded by unanswered requests that are billed (counted only when their call ends), by hedged calls, and
    by endpoints that count tokens differently.

    Attributes:
        reserve: Upper bound of the call that writes the answer. Without it, all other calls would be wasted.
    """

    query: Query
    models: Mapping[str, Model]
    reserve: CostBound = field(default_factory=CostBound)
    _spent: CostBound = field(default_factory=CostBound)
    _in_flight: CostBound = field(default_factory=CostBound)

    def wrap(self, ask: Ask, is_answer: bool) -> Ask:
        """Wrap `ask` so that it respects the budget. See `admit` for `is_answer`."""

        async def ask_within_budget(request: Request, stage: str) -> CallResult[Reply]:
            bound = self.admit(request, is_answer)
            usage: Usage | None = None
            try:
                answer = await ask(request, stage)
                usage = answer.reply.usage
            finally:
                self.settle(bound, request, usage)
            return answer

        return ask_within_budget

    def admit(self, request: Request, is_answer: bool) -> CostBound:
        """Count a request as in flight, and return its upper bound for `settle`.

        Raises:
            BudgetSpent: The budget does not allow a necessary call: an embedding or, with `is_answer`, the
                call that writes the answer.
            PermanentCallError: The budget does not allow another call. The answer will lack its contribution.
        """
        model = self.models.get(request.call.model, Model())
        if isinstance(request, EmbeddingRequest):
            bound = self._cost(request, Usage(count_text_tokens(request.text, model)))
        elif isinstance(request, RerankRequest):
            bound = self._cost(request, Usage(count_rerank_tokens(request, model), searches=1))
        else:
            prompt = count_prompt_tokens(request, model)
            room = reasoning_room(request, model, prompt, request.call.reasoning_tokens)
            bound = self._cost(request, Usage(prompt, output_limit(request, model) + room))
        needed = is_answer or isinstance(request, EmbeddingRequest)
        reserve = CostBound() if needed else self.reserve
        if not (self._spent + self._in_flight + bound + reserve).within(self.query):
            used = (self._spent + self._in_flight).tokens
            message = f"Not sent: {describe_budget(self.query)}, and {used:,} tokens are spent or in flight"
            raise BudgetSpent(message) if needed else PermanentCallError(message)
        self._in_flight += bound
        return bound

    def settle(self, bound: CostBound, request: Request, usage: Usage | None) -> None:
        """Replace the bound of a request by the usage of its reply, or by nothing if it had no reply."""
        self._in_flight -= bound
        if usage is not None:
            self._spent += self._cost(request, usage)

    def note(self, call: CallRecord) -> None:
        """Count the unanswered requests of a call that has ended."""
        models = {name: m for name, m in self.models.items() if m.model_id == call.model_id}
        for usage in call.unanswered:
            costs = [cost_usd(usage, highest_price(model)) for model in models.values()]
            known = [cost for cost in costs if cost is not None]
            tokens = usage.prompt_tokens + usage.completion_tokens
            self._spent += CostBound(
                1, tokens, max(known, default=None), "" if known else next(iter(models), "")
            )

    def _cost(self, request: Request, usage: Usage) -> CostBound:
        model = self.models.get(request.call.model, Model())
        # Leave out cached tokens, which may be cheaper: the bound must not be too low.
        usage = replace(usage, cached_tokens=0)
        tokens = usage.prompt_tokens + usage.completion_tokens
        price = highest_price(model)
        return CostBound(1, tokens, cost_usd(usage, price), "" if price else request.call.model)


@dataclass(kw_only=True)
class BaseAsker:
    """Base class of objects that call models for one question at a time.

    Attributes:
        accounts: Usage of the question.
        budget: Budget of the question, or None.
        cached: Number of replies from the cache, and number of all replies.
    """

    accounts: Accounts = field(default_factory=Accounts)
    budget: QuestionBudget | None = None
    cached: tuple[int, int] = (0, 0)

    async def run(
        self,
        stage: str,
        factories: Sequence[Callable[[], Dialogue[T]]],
        is_answer: bool = False,
        listener: StreamListener | None = None,
    ) -> list[Outcome[T]]:
        """Create dialogues and run them concurrently.

        Args:
            is_answer: Whether the dialogues write the answer.
            listener: Receives the replies as they arrive.

        Raises:
            ModelUnavailable: The endpoint refuses all requests.
            BudgetSpent: A necessary call could exceed the budget.
        """
        raise NotImplementedError


_current_asker: ContextVar[Asker] = ContextVar("asking")
"""The asker that a call is made for, because concurrent questions share gateways."""


@dataclass
class Connections:
    """Gateways to the models with one limiter, shared by any number of questions of one event loop.

    Attributes:
        limiter: Limiter of the calls. None creates one.
        ask_key: Asks the user for an API key that neither the environment nor a file contains.
        offline_executor: Executor of the offline engine. None runs the engine in the event loop, which suits
            a single question.
        n_questions: Number of questions in progress, if the owner counts them.
        exit_stack: Closes the gateways, and any resources that the owner adds.
    """

    models: Models
    limiter: Limiter | None = None
    ask_key: Callable[[str], str | None] | None = None
    offline_executor: Executor | None = None
    n_questions: int = 0
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _gateways: dict[int, StreamingAsk] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if self.limiter is None:
            self.limiter = LocalLimiter(self.models.online, self.models.initial_in_flight, lend_first=True)

    async def gateway(self, attempts_before: int) -> StreamingAsk:
        """Return the gateway for the first FIRST_ATTEMPTS of a call, or for attempts after `attempts_before`.

        Usage is reported to the question that makes the call, or the first that shares an embedding call.
        """
        async with self._opening:
            if attempts_before not in self._gateways:
                limit = self.models.max_attempts
                if not attempts_before:
                    limit = min(FIRST_ATTEMPTS, limit)
                opened = open_gateway(
                    replace(self.models, max_attempts=limit),
                    self.limiter,
                    _note,
                    self.ask_key,
                    attempts_before=attempts_before,
                    thread_pool=self.offline_executor,
                    dropped_for_s=RETRY_REFUSED_AFTER_S,
                )
                self._gateways[attempts_before] = await self.exit_stack.enter_async_context(opened)
        return self._gateways[attempts_before]


def _note(call: CallRecord) -> None:
    asker = _current_asker.get()
    asker.accounts.add(call)
    if asker.budget:
        asker.budget.note(call)
    traces.note_call(call)


@dataclass
class Asker(BaseAsker):
    """Calls models over connections, which several askers may share.

    Attributes:
        cache: Cache of replies. None calls the model every time.
        override: Answers instead of the models, without the cache. Embeddings still come from the model.
        on_phase: Called with (name, number of dialogues, ended) when a phase begins and when it ends.
    """

    connections: Connections
    cache: ReplyCache | None = None
    override: Ask | None = None
    on_phase: Callable[[str, int, bool], None] = lambda *phase: None

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Flush the cache, and close the connections."""
        try:
            if self.cache:
                await asyncio.to_thread(self.cache.flush)
        finally:
            await self.connections.exit_stack.aclose()

    async def run(
        self,
        stage: str,
        factories: Sequence[Callable[[], Dialogue[T]]],
        is_answer: bool = False,
        listener: StreamListener | None = None,
    ) -> list[Outcome[T]]:
        """Run dialogues like `BaseAsker.run`.

        A call makes up to FIRST_ATTEMPTS attempts. The remaining attempts of the settings follow only if an
        endpoint responded to any of the calls, even with an error.
        """
        if self.override and stage != "embed":
            return await run_dialogues(stage, [s() for s in factories], self.override)
        responded, pending, decided = False, 0, asyncio.Event()

        async def ask_patiently(request: Request, stage: str) -> CallResult[Reply]:
            nonlocal responded, pending
            pending += 1
            try:
                gateway = await self.connections.gateway(0)
                answer = await gateway(request, stage, listener)
                responded = True
                return answer
            except CallError as e:
                responded = responded or e.status is not None
                if (
                    not isinstance(e, RetriesExhausted)
                    or self.connections.models.max_attempts <= FIRST_ATTEMPTS
                ):
                    raise
                failure = e
            finally:
                pending -= 1
                if responded or not pending:
                    decided.set()
            await decided.wait()
            if not responded:
                raise failure
            gateway = await self.connections.gateway(FIRST_ATTEMPTS)
            return await gateway(request, stage, listener)

        _current_asker.set(self)
        ask = self.budget.wrap(ask_patiently, is_answer) if self.budget else ask_patiently
        self.on_phase(stage, len(factories), False)
        outcomes = await run_dialogues(stage, [s() for s in factories], ask, self.cache)
        self.on_phase(stage, len(factories), True)
        replies = sum(len(o.replies) for o in outcomes)
        cached = replies - sum(o.turns for o in outcomes)
        self.cached = self.cached[0] + cached, self.cached[1] + replies
        return outcomes
