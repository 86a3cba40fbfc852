"""The client for one logical model: chooses endpoints, makes calls, retries them and accounts for them."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.errors import CallError, FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.base.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    RerankReply,
    RerankRequest,
    StreamListener,
    Usage,
)
from graphrag_ray.base.providers import Client
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.accounting import CallRecord, InFlight, sum_usage
from graphrag_ray.llm.call_failures import BilledFailure, NoAnswer, ParameterRefused, RetriesExhausted
from graphrag_ray.llm.hedging import CallDurations, race
from graphrag_ray.llm.limiter import Limiter, Permit, PermitQueue
from graphrag_ray.llm.limits import CallOutcome
from graphrag_ray.llm.request_sizes import (
    count_prompt_tokens,
    count_rerank_tokens,
    count_text_tokens,
    output_limit,
)
from graphrag_ray.llm.token_bucket import check_within_limit

T = TypeVar("T")
logger = logging.getLogger(__name__)

REST_AFTER_FAILURES = 3  # consecutive failures after which an endpoint is not used for a while
FIRST_REST_S, MAX_REST_S = 1.0, 60.0
FIRST_BACK_OFF_S, MAX_BACK_OFF_S = 0.5, 60.0
FIRST_GUESS_TOKENS = 500  # assumed length of the first reply
REMEMBERED_REPLIES = 200  # window of the mean reply length, so that it adapts to changes


class EndpointPool:
    """Tracks which endpoints of a model are usable: neither dropped after fatal errors nor resting.

    `limits` contains their tokens per minute.
    """

    def __init__(
        self, names: Sequence[str], limits: Sequence[float | None], dropped_for_s: float = math.inf
    ) -> None:
        self._names = names
        self._limits = limits
        self._failures = [0] * len(names)
        self._rests = [0] * len(names)
        self._resting_until = [0.0] * len(names)
        self._dropped_for_s = dropped_for_s
        self._dropped: dict[int, tuple[FatalCallError, float]] = {}

    def usable(self, now: float, tokens: int, other_than: int | None = None) -> list[int]:
        """Return endpoints to choose from, at least one. Raises FatalCallError if all were dropped.

        Prefers endpoints that are not resting and differ from `other_than`, if one of them accepts a request
        of this size. The second choice is all endpoints that are not resting.
        """
        remaining = self.remaining(now)
        awake = [i for i in remaining if self._resting_until[i] <= now]
        others = [i for i in awake if i != other_than]
        for candidates in (others, awake):
            if any((limit := self._limits[i]) is None or tokens <= limit for i in candidates):
                return candidates
        return remaining

    def remaining(self, now: float) -> list[int]:
        """Return the endpoints that were not dropped. Raises FatalCallError if all were."""
        self._dropped = {i: (error, until) for i, (error, until) in self._dropped.items() if until > now}
        remaining = [i for i in range(len(self._names)) if i not in self._dropped]
        if not remaining:
            last, _ = list(self._dropped.values())[-1]
            raise type(last)(str(last), status=last.status)
        return remaining

    def has(self, endpoint: int) -> bool:
        return endpoint not in self._dropped

    def max_tokens(self, now: float) -> float | None:
        """Return the maximum request size in tokens at the remaining endpoints, or None if unlimited."""
        limits = [self._limits[i] for i in self.remaining(now)]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def record_success(self, endpoint: int) -> None:
        self._failures[endpoint] = self._rests[endpoint] = 0

    def record_failure(self, endpoint: int, now: float) -> None:
        """Record a transient failure. Not for 429s, which the limiter handles for all callers."""
        self._failures[endpoint] += 1
        if self._failures[endpoint] >= REST_AFTER_FAILURES and self._resting_until[endpoint] <= now:
            rest_s = min(MAX_REST_S, FIRST_REST_S * 2.0 ** self._rests[endpoint])
            self._rests[endpoint] += 1
            self._resting_until[endpoint] = now + rest_s
            if len(self._names) - len(self._dropped) > 1:
                logger.warning("%s keeps failing: not using it for %.0f s", self._names[endpoint], rest_s)

    def drop(self, endpoint: int, error: FatalCallError, now: float = math.inf) -> None:
        """Stop using an endpoint for `dropped_for_s`, or forever if `now` is infinite."""
        if endpoint in self._dropped:
            return
        self._dropped[endpoint] = error, now + self._dropped_for_s
        n_left = len(self._names) - len(self._dropped)
        if n_left:
            # Do not log the endpoint's message, which may quote the request.
            why = str(error) if error.status is None else f"it answered {error.status}"
            until = "any more" if math.isinf(self._dropped_for_s) else f"for {self._dropped_for_s:.0f} s"
            logger.warning("Not using %s %s: %s (%d left)", self._names[endpoint], until, why, n_left)
            logger.debug("%s said: %s", self._names[endpoint], error)


class Processes(Protocol):
    """The interface of a pool of processes that compute for this one once they are up."""

    def is_up(self) -> bool: ...

    def run_here(self, fn: Callable[..., T], *args: Any) -> T: ...

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T] | None: ...

    def result(self, future: Future[T]) -> T: ...


@dataclass(frozen=True)
class Runtime:
    """The environment of calls, in addition to models and clients.

    Attributes:
        on_call: Receives every finished logical call, for example `Accounts.add`.
        nothing_queued: Returns whether every remaining request is already in flight.
        attempts_before: Attempts of each call by an earlier process, which count towards `max_attempts`.
        dropped_for_s: Seconds until an endpoint that failed fatally is tried again.
        thread_pool: Threads in which local models answer. None uses the event loop.
        pool: Processes in which local models answer once the processes are up.
    """

    limiter: Limiter
    on_call: Callable[[CallRecord], None]
    max_attempts: int
    in_flight: InFlight = field(default_factory=InFlight)
    rng: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    hedge: bool = False
    nothing_queued: Callable[[], bool] = lambda: False
    attempts_before: int = 0
    dropped_for_s: float = math.inf
    thread_pool: Executor | None = None
    pool: Processes | None = None


@dataclass(frozen=True)
class CallResult(Generic[T]):
    """A reply with its endpoint's address and the latency of the successful attempt, including hedges."""

    reply: T
    endpoint: str = ""
    latency_s: float = 0.0
    attempts: int = 1


@dataclass(frozen=True)
class _Call(Generic[T]):
    """One logical call. `tokens` returns how many tokens to reserve; `usage`, the usage of a result.

    `searches` is the expected number of billed searches.
    """

    stage: str
    prompt: str
    prompt_tokens: int
    tokens: Callable[[], int]
    send: Callable[[Client], Awaitable[T]]
    usage: Callable[[T], Usage]
    hedge: bool = True
    searches: int = 0


class ModelClient:
    """Calls a logical model: waits for the limiter, retries, hedges, and accounts for each call."""

    def __init__(
        self, name: str, model: Model, clients: Sequence[Client | FatalCallError], runtime: Runtime
    ) -> None:
        self.model = model
        self._name = name
        self._clients = clients
        self._runtime = runtime
        limits = [e.tokens_per_minute for e in model.endpoints]
        self._pool = EndpointPool(
            [display_url(e.base_url) for e in model.endpoints], limits, runtime.dropped_for_s
        )
        self._permits = PermitQueue(
            name, runtime.limiter, lambda tokens: self._pool.usable(runtime.clock(), tokens)
        )
        self._permits_elsewhere: dict[int, PermitQueue] = {}
        self._durations = CallDurations()
        self._reply_tokens: dict[str, tuple[int, float]] = {}
        for i, client in enumerate(clients):
            if isinstance(client, FatalCallError):
                self._pool.drop(i, client)
        count_text_tokens("", model)  # load the vocabulary now rather than during a call

    def chat(
        self, request: ChatRequest, stage: str, listener: StreamListener | None = None
    ) -> Awaitable[CallResult[ChatReply]]:
        """Make a chat call. A `listener` receives each attempt as it is generated, and prevents hedging."""
        size = count_prompt_tokens(request, self.model)
        yes_no = request.response == "yes_no"
        guess = 1 if yes_no else min(FIRST_GUESS_TOKENS, output_limit(request, self.model))

        def tokens() -> int:
            """Estimate the size. Replies are expected to be as long as earlier ones, including reasoning."""
            expected = size + round(self._reply_tokens.get(request.prompt, (0, guess))[1])
            max_tokens = self._pool.max_tokens(self._runtime.clock())
            return expected if max_tokens is None else min(expected, int(max_tokens))

        call = _Call[ChatReply](
            stage,
            request.prompt,
            size,
            tokens,
            lambda c: c.chat(request, size, listener),
            lambda reply: reply.usage,
            hedge=listener is None,
        )
        return self._run(call)

    def embed(
        self, requests: Sequence[EmbeddingRequest], stage: str
    ) -> Awaitable[CallResult[list[EmbeddingReply]]]:
        """Embed all texts in one call."""
        size = sum(count_text_tokens(r.text, self.model) for r in requests)
        call = _Call[list[EmbeddingReply]](
            stage,
            requests[0].prompt,
            size,
            lambda: size,
            lambda c: c.embed(requests),
            lambda replies: sum_usage(r.usage for r in replies),
        )
        return self._run(call)

    def rerank(self, request: RerankRequest, stage: str) -> Awaitable[CallResult[RerankReply]]:
        size = count_rerank_tokens(request, self.model)
        call = _Call[RerankReply](
            *(
                stage,
                request.prompt,
                size,
                lambda: size,
                lambda c: c.rerank(request),
                lambda reply: reply.usage,
            ),
            searches=1,
        )
        return self._run(call)

    async def close(self) -> None:
        for permits in (self._permits, *self._permits_elsewhere.values()):
            await permits.close()
        for client in self._clients:
            if not isinstance(client, FatalCallError):
                await client.close()

    async def _run(self, call: _Call[T]) -> CallResult[T]:
        """Make a call, with retries as long as they may help. Accounts for it as one call."""
        runtime, permits = self._runtime, self._permits
        check_within_limit(call.prompt_tokens, self._pool.max_tokens(runtime.clock()))
        record = CallRecord(call.stage, call.prompt, self.model.model_id)
        try:
            while True:
                permit = await permits.acquire(call.tokens)
                if not self._pool.has(permit.endpoint):  # dropped in the meantime
                    permits.give_back(permit)
                    continue
                attempt = self._hedged if runtime.hedge and call.hedge else self._attempt
                result = await attempt(permit, call, record)
                attempts = runtime.attempts_before + record.attempts
                if not isinstance(result, CallError):
                    self._durations.note(call.prompt, record.latency_s)
                    n, mean = self._reply_tokens.get(call.prompt, (0, 0.0))
                    n = min(n + 1, REMEMBERED_REPLIES)
                    written = call.usage(result).completion_tokens
                    self._reply_tokens[call.prompt] = n, mean + (written - mean) / n
                    record.status = "ok"
                    return CallResult(result, record.endpoint, record.latency_s, attempts)
                permits = self._permits
                if isinstance(result, PermanentCallError):
                    record.status = "permanent"
                    raise result
                if isinstance(result, FatalCallError):
                    record.status = "fatal"
                    self._pool.remaining(runtime.clock())  # raises if no endpoint is left
                if isinstance(result, FatalCallError | ParameterRefused):
                    record.excused += 1
                    continue
                assert isinstance(result, TransientCallError)
                record.status = "transient"
                attempts -= record.excused
                if attempts >= runtime.max_attempts:
                    message = f"{result} (attempt {attempts} of {runtime.max_attempts})"
                    raise RetriesExhausted(message, status=result.status, attempts=attempts)
                if result.status != 429 or result.retry_after_s is None:  # otherwise the limiter waits
                    max_wait_s = min(MAX_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** (attempts - 1))
                    await runtime.sleep(runtime.rng.uniform(0.0, max_wait_s))  # full jitter
                # Prefer another endpoint, or a call could spend all its attempts on one that is down. The
                # limiter already avoids endpoints that answered 429.
                if result.status != 429 and len(self._clients) > 1:
                    permits = self._elsewhere(permit.endpoint)
        except asyncio.CancelledError:
            runtime.in_flight.add(record.abandon())
            raise
        finally:
            runtime.in_flight.add(record.failed_attempts, -1)
            if record.attempts:
                runtime.on_call(record)

    async def _attempt(self, permit: Permit, call: _Call[T], record: CallRecord) -> T | CallError:
        """Call the permit's endpoint, settle, and account for the attempt. Returns a CallError on failure."""
        runtime, limiter, in_flight = self._runtime, self._runtime.limiter, self._runtime.in_flight
        endpoint, started = permit.endpoint, self._runtime.clock()
        client = self._clients[endpoint]
        assert not isinstance(client, FatalCallError)  # the pool never uses these
        used = permit.tokens  # the best estimate if the call is not answered
        outcome: tuple[int, bool] | None = None
        expected = Usage(
            call.prompt_tokens, max(0, permit.tokens - call.prompt_tokens), searches=call.searches
        )
        expected_cost = record.begin(client.display_address, expected, client.price)
        in_flight.add(expected_cost)
        client.add_quirks(limiter.quirks(self._name, endpoint))
        try:
            reply = await call.send(client)
            record.sent = None
            usage = call.usage(reply)
            used = usage.prompt_tokens + usage.completion_tokens
            outcome = usage.completion_tokens or usage.prompt_tokens, True
            record.add_attempt(usage, client.price)
            self._pool.record_success(endpoint)
            return reply
        except CallError as e:
            if isinstance(e, NoAnswer):
                in_flight.add(record.abandon())
            elif isinstance(e, BilledFailure):
                in_flight.add(record.add_failed_attempt(e.usage, client.price))
            elif e.status is not None and e.status < 500:
                used = 0  # refused before it was processed
            record.sent = None
            # Update the endpoint's state before the permit is released for another call.
            if isinstance(e, FatalCallError):
                self._pool.drop(endpoint, e, runtime.clock())
            elif isinstance(e, ParameterRefused | PermanentCallError):
                self._pool.record_success(endpoint)
            elif isinstance(e, TransientCallError):
                outcome = 0, False
                limited = e.status == 429
                record.rate_limited += limited
                if limited or e.retry_after_s is not None:
                    limiter.penalise(self._name, endpoint, e.retry_after_s)
                if not limited:
                    self._pool.record_failure(endpoint, runtime.clock())
            return e
        finally:
            record.latency_s = runtime.clock() - started
            record.busy_s += record.latency_s
            in_flight.add(expected_cost, -1)
            if news := client.quirks - limiter.quirks(self._name, endpoint):
                record.learned |= news
                limiter.learn(self._name, endpoint, news)
            limits = client.limits.news(runtime.clock()) if outcome and client.limits else None
            ended = CallOutcome(record.latency_s, *outcome, limits) if outcome else None
            limiter.settle(self._name, endpoint, used - permit.tokens, ended)

    async def _hedged(self, permit: Permit, call: _Call[T], record: CallRecord) -> T | CallError:
        """Like `_attempt`, but hedge a request that is slow for its prompt, elsewhere if possible."""
        runtime = self._runtime
        hedges: list[CallRecord] = []
        started = runtime.clock()

        async def send(p: Permit) -> T | CallError:
            if p is permit:
                return await self._attempt(p, call, record)
            self._durations.count_hedge(call.prompt)
            hedges.append(CallRecord(call.stage, call.prompt, self.model.model_id))
            return await self._attempt(p, call, hedges[-1])

        try:
            result, winner, lost = await race(
                permit,
                lambda: self._durations.slow_s(call.prompt, self._runtime.nothing_queued()),
                send,
                lambda: self._elsewhere(permit.endpoint).acquire(call.tokens),
                self._permits.give_back,
                lambda result: not isinstance(result, CallError),
                runtime.sleep,
            )
            record.sent = None  # if it lost, it is accounted for below
        except asyncio.CancelledError:
            for hedge in hedges:
                runtime.in_flight.add(hedge.abandon())
            raise
        finally:
            for hedge in hedges:
                record.add_hedge(hedge)
        if winner:
            record.endpoint = hedges[winner - 1].endpoint
        if not isinstance(result, CallError):
            usage = replace(call.usage(result), reported=False)
            for client in (self._clients[endpoint] for endpoint in lost):
                record.add_attempt(usage, None if isinstance(client, FatalCallError) else client.price)
        record.latency_s = runtime.clock() - started
        return result

    def _elsewhere(self, endpoint: int) -> PermitQueue:
        """Return a queue for permits of other endpoints than this one, if any is usable."""
        if endpoint not in self._permits_elsewhere:
            self._permits_elsewhere[endpoint] = PermitQueue(
                self._name,
                self._runtime.limiter,
                lambda tokens: self._pool.usable(self._runtime.clock(), tokens, other_than=endpoint),
            )
        return self._permits_elsewhere[endpoint]
