"""One logical model: its endpoints, and the one place where a call is made, paid for and tried again."""

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

from graphrag_ray.base.errors import CallError, FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.base.index_settings import Model
from graphrag_ray.base.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Listener,
    Usage,
)
from graphrag_ray.base.providers import Client
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.accounting import CallRecord, InFlight, sum_usage
from graphrag_ray.llm.call_failures import GaveUp, Paid, ParameterRefused, Unanswered
from graphrag_ray.llm.hedging import CallDurations, race
from graphrag_ray.llm.limiter import Limiter, PermitQueue, Place
from graphrag_ray.llm.limits import Ended
from graphrag_ray.llm.request_sizes import output_limit, prompt_size, text_size
from graphrag_ray.llm.token_bucket import check_within_limit

logger = logging.getLogger(__name__)

REST_AFTER_FAILURES = 3
"""Failures in a row before an endpoint is left alone."""
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0


class Roster:
    def __init__(
        self, names: Sequence[str], limits: Sequence[float | None], dropped_for_s: float = math.inf
    ) -> None:
        """names: the endpoints' addresses as they may be shown; limits: their tokens per minute."""
        self._names = names
        self._limits = limits
        self._in_a_row = [0] * len(names)
        self._rests = [0] * len(names)
        self._resting_until = [0.0] * len(names)
        self._dropped_for_s = dropped_for_s
        self._dropped: dict[int, tuple[FatalCallError, float]] = {}

    def usable(self, now: float, tokens: int, other_than: int | None = None) -> list[int]:
        """Endpoints to choose from, never empty: those that are not resting, and not `other_than`, if one of
        them may take a request of so many tokens; else that one too; else resting ones too.

        Raises FatalCallError when every endpoint was dropped.
        """
        left = self.left(now)
        awake = [i for i in left if self._resting_until[i] <= now]
        others = [i for i in awake if i != other_than]
        for some in (others, awake):
            if any((limit := self._limits[i]) is None or tokens <= limit for i in some):
                return some
        return left

    def left(self, now: float) -> list[int]:
        """Endpoints that were not dropped, never empty. Raises FatalCallError when all were."""
        self._dropped = {i: (error, until) for i, (error, until) in self._dropped.items() if until > now}
        left = [i for i in range(len(self._names)) if i not in self._dropped]
        if not left:
            last, _ = list(self._dropped.values())[-1]
            raise type(last)(str(last), status=last.status)
        return left

    def has(self, endpoint: int) -> bool:
        return endpoint not in self._dropped

    def largest(self, now: float) -> float | None:
        """The most tokens that one request may have at any endpoint that is left; None: no limit."""
        limits = [self._limits[i] for i in self.left(now)]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def worked(self, endpoint: int) -> None:
        self._in_a_row[endpoint] = self._rests[endpoint] = 0

    def failed(self, endpoint: int, now: float) -> None:
        """A transient failure other than a 429, which the limiter handles for everyone."""
        self._in_a_row[endpoint] += 1
        if self._in_a_row[endpoint] >= REST_AFTER_FAILURES and self._resting_until[endpoint] <= now:
            rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** self._rests[endpoint])
            self._rests[endpoint] += 1
            self._resting_until[endpoint] = now + rest_s
            if len(self._names) - len(self._dropped) > 1:
                logger.warning("%s keeps failing: left alone for %.0f s", self._names[endpoint], rest_s)

    def drop(self, endpoint: int, error: FatalCallError, now: float = math.inf) -> None:
        """Use an endpoint no more, or not for as long as one is dropped. The next `usable` raises if it was
        the last. now: inf for one that there is no way to at all."""
        if endpoint in self._dropped:
            return
        self._dropped[endpoint] = error, now + self._dropped_for_s
        left = len(self._names) - len(self._dropped)
        if left:
            # What an endpoint says may quote what it was asked.
            why = str(error) if error.status is None else f"it answered {error.status}"
            again = "" if math.isinf(self._dropped_for_s) else f" for {self._dropped_for_s:.0f} s"
            logger.warning("%s is not used any more%s: %s (%d left)", self._names[endpoint], again, why, left)
            logger.debug("%s said: %s", self._names[endpoint], error)


T = TypeVar("T")

FIRST_BACK_OFF_S = 0.5
LONGEST_BACK_OFF_S = 60.0
FIRST_GUESS_TOKENS = 500
"""Length of a reply before the first was seen."""
REMEMBERED_REPLIES = 200
"""Replies over which the mean length runs, so that it follows a change of what is asked."""


class Processes(Protocol):
    """Processes that compute beside this one, once they are up."""

    def is_up(self) -> bool: ...

    def here(self, fn: Callable[..., T], *args: Any) -> T: ...

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T] | None: ...

    def result(self, future: Future[T]) -> T: ...


@dataclass(frozen=True)
class Runtime:
    """What asking needs besides models and clients; tests give their own clock and sleep.

    limiter    of all models with endpoints, shared with whoever else calls them
    on_call    told of every logical call when it has ended: `Accounts.add`, say
    in_flight  kept up to date with what is sent and not yet answered
    rng        for the jitter of back-offs
    hedge      send a second request for a call slower than nearly all of its prompt
    at_the_end whether nothing is left to send beside what is in flight
    attempts_before  made of each call before, by somebody else: they count, and the waits go on growing
    dropped_for_s  an endpoint that refused us as a whole is tried again then
    aside      where local models answer; None: in the event loop, which has nothing better to do
    pool       of processes where they answer once these are up
    """

    limiter: Limiter
    on_call: Callable[[CallRecord], None]
    max_attempts: int
    in_flight: InFlight = field(default_factory=InFlight)
    rng: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    hedge: bool = False
    at_the_end: Callable[[], bool] = lambda: False
    attempts_before: int = 0
    dropped_for_s: float = math.inf
    aside: Executor | None = None
    pool: Processes | None = None


@dataclass(frozen=True)
class Called(Generic[T]):
    """What came back, and how. endpoint: its address; latency_s: of the attempt that succeeded, from
    its first request on."""

    reply: T
    endpoint: str = ""
    latency_s: float = 0.0
    attempts: int = 1


@dataclass(frozen=True)
class _Call(Generic[T]):
    """One logical call. prompt_tokens: our own count; tokens: how many to reserve now; usage: of its
    result; hedge: whether a second request may be sent."""

    stage: str
    prompt: str
    prompt_tokens: int
    tokens: Callable[[], int]
    send: Callable[[Client], Awaitable[T]]
    usage: Callable[[T], Usage]
    hedge: bool = True


class Lane:
    def __init__(
        self, name: str, model: Model, clients: Sequence[Client | FatalCallError], runtime: Runtime
    ) -> None:
        """name: under `models:`. clients: one per endpoint, or why there is none."""
        self.model = model
        self._name = name
        self._clients = clients
        self._runtime = runtime
        names = [display_url(e.base_url) for e in model.endpoints]
        limits = [e.tokens_per_minute for e in model.endpoints]
        self._roster = Roster(names, limits, runtime.dropped_for_s)
        self._line = PermitQueue(
            name, runtime.limiter, lambda tokens: self._roster.usable(runtime.clock(), tokens)
        )
        self._pace = CallDurations()
        self._beside: dict[int, PermitQueue] = {}
        self._reply_tokens: dict[str, tuple[int, float]] = {}
        for i, client in enumerate(clients):
            if isinstance(client, FatalCallError):
                self._roster.drop(i, client)
        text_size("", model)  # loads the vocabulary now rather than between two calls

    def chat(
        self, request: ChatRequest, stage: str, listener: Listener | None = None
    ) -> Awaitable[Called[ChatReply]]:
        """listener: hears each attempt while it is written. Such a call is not hedged."""
        size = prompt_size(request, self.model)
        yes_no = request.response == "yes_no"
        guess = 1 if yes_no else min(FIRST_GUESS_TOKENS, output_limit(request, self.model))

        def tokens() -> int:
            """The reply is expected to be as long as those before, with thoughts."""
            expected = size + round(self._reply_tokens.get(request.prompt, (0, guess))[1])
            largest = self._roster.largest(self._runtime.clock())
            return expected if largest is None else min(expected, int(largest))

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
    ) -> Awaitable[Called[list[EmbeddingReply]]]:
        """One call for all texts."""
        size = sum(text_size(r.text, self.model) for r in requests)
        call = _Call[list[EmbeddingReply]](
            stage,
            requests[0].prompt,
            size,
            lambda: size,
            lambda c: c.embed(requests),
            lambda replies: sum_usage(r.usage for r in replies),
        )
        return self._run(call)

    async def close(self) -> None:
        for line in (self._line, *self._beside.values()):
            await line.close()
        for client in self._clients:
            if not isinstance(client, FatalCallError):
                await client.close()

    async def _run(self, call: _Call[T]) -> Called[T]:
        """Attempts until one succeeds or there is no point in another; accounts for them as one call. Raises
        RequestTooLarge where the prompt alone is more than a minute's limit."""
        runtime, line = self._runtime, self._line
        check_within_limit(call.prompt_tokens, self._roster.largest(runtime.clock()))
        record = CallRecord(call.stage, call.prompt, self.model.model_id)
        try:
            while True:
                place = await line.place(call.tokens)
                if not self._roster.has(place.endpoint):  # dropped while we waited
                    line.give_back(place)
                    continue
                attempt = self._hedged if runtime.hedge and call.hedge else self._attempt
                result = await attempt(place, call, record)
                attempts = runtime.attempts_before + record.attempts
                if not isinstance(result, CallError):
                    self._pace.note(call.prompt, record.latency_s)
                    n, mean = self._reply_tokens.get(call.prompt, (0, 0.0))
                    n = min(n + 1, REMEMBERED_REPLIES)
                    made = call.usage(result).completion_tokens
                    self._reply_tokens[call.prompt] = n, mean + (made - mean) / n
                    record.status = "ok"
                    return Called(result, record.endpoint, record.latency_s, attempts)
                line = self._line
                if isinstance(result, PermanentCallError):
                    record.status = "permanent"
                    raise result
                if isinstance(result, FatalCallError):
                    record.status = "fatal"
                    self._roster.left(runtime.clock())  # raises when no endpoint is left
                if isinstance(result, FatalCallError | ParameterRefused):
                    record.excused += 1
                    continue
                assert isinstance(result, TransientCallError)
                record.status = "transient"
                attempts -= record.excused
                if attempts >= runtime.max_attempts:
                    told = f"{result} (attempt {attempts}, the last)"
                    raise GaveUp(told, status=result.status, attempts=attempts)
                if result.status != 429 or result.retry_after_s is None:  # else the limiter makes us wait
                    longest_s = min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** (attempts - 1))
                    await runtime.sleep(runtime.rng.uniform(0.0, longest_s))  # full jitter
                # What failed at an endpoint goes elsewhere, or a call could use up its attempts at one that
                # is gone. Of a 429 the limiter knows.
                if result.status != 429 and len(self._clients) > 1:
                    line = self._line_beside(place.endpoint)
        except asyncio.CancelledError:
            runtime.in_flight.add(record.give_up())
            raise
        finally:
            runtime.in_flight.add(record.owed, -1)
            if record.attempts:
                runtime.on_call(record)

    async def _attempt(self, place: Place, call: _Call[T], record: CallRecord) -> T | CallError:
        """One call of one endpoint, for which the limiter gave a place: call, settle, price."""
        runtime, limiter, in_flight = self._runtime, self._runtime.limiter, self._runtime.in_flight
        at, started = place.endpoint, self._runtime.clock()
        client = self._clients[at]
        assert not isinstance(client, FatalCallError)  # these were dropped from the roster at the start
        spent = place.tokens  # of a call without an answer we know no better
        made: tuple[int, bool] | None = None
        expected = Usage(call.prompt_tokens, max(0, place.tokens - call.prompt_tokens))
        flying = record.begin(client.where, expected, client.price)
        in_flight.add(flying)
        client.learn(limiter.quirks(self._name, at))
        try:
            reply = await call.send(client)
            record.sent = None
            usage = call.usage(reply)
            spent = usage.prompt_tokens + usage.completion_tokens
            made = usage.completion_tokens or usage.prompt_tokens, True
            record.pay(usage, client.price)
            self._roster.worked(at)
            return reply
        except CallError as e:
            if isinstance(e, Unanswered):
                in_flight.add(record.give_up())
            elif isinstance(e, Paid):
                in_flight.add(record.owe(e.usage, client.price))
            elif e.status is not None and e.status < 500:
                spent = 0  # refused, not run
            record.sent = None
            # What it says about the endpoint is known before the place is free for another.
            if isinstance(e, FatalCallError):
                self._roster.drop(at, e, runtime.clock())
            elif isinstance(e, ParameterRefused | PermanentCallError):
                self._roster.worked(at)
            elif isinstance(e, TransientCallError):
                made = 0, False
                limited = e.status == 429
                record.rate_limited += limited
                if limited or e.retry_after_s is not None:
                    limiter.penalise(self._name, at, e.retry_after_s)
                if not limited:
                    self._roster.failed(at, runtime.clock())
            return e
        finally:
            record.latency_s = runtime.clock() - started
            record.busy_s += record.latency_s
            in_flight.add(flying, -1)
            if news := client.quirks - limiter.quirks(self._name, at):
                record.learned |= news
                limiter.learn(self._name, at, news)
            told = client.limits.news(runtime.clock()) if made and client.limits else None
            ended = Ended(record.latency_s, *made, told) if made else None
            limiter.settle(self._name, at, spent - place.tokens, ended)

    async def _hedged(self, place: Place, call: _Call[T], record: CallRecord) -> T | CallError:
        """`_attempt`, with further requests, elsewhere if possible, when it is slow for its stage."""
        runtime = self._runtime
        others: list[CallRecord] = []
        started = runtime.clock()

        async def send(p: Place) -> T | CallError:
            if p is place:
                return await self._attempt(p, call, record)
            self._pace.hedged(call.prompt)
            others.append(CallRecord(call.stage, call.prompt, self.model.model_id))
            return await self._attempt(p, call, others[-1])

        try:
            raced = await race(
                place,
                lambda: self._pace.slow_s(call.prompt, self._runtime.at_the_end()),
                send,
                lambda: self._line_beside(place.endpoint).place(call.tokens),
                self._line.give_back,
                lambda result: not isinstance(result, CallError),
                runtime.sleep,
            )
            record.sent = None  # where it lost, it is paid for as the winner is
        except asyncio.CancelledError:
            for one in others:
                runtime.in_flight.add(one.give_up())
            raise
        finally:
            for other in others:
                record.add_hedge(other)
        if raced.winner:
            record.endpoint = others[raced.winner - 1].endpoint
        if not isinstance(raced.result, CallError):
            usage = replace(call.usage(raced.result), reported=False)
            for endpoint in raced.lost:
                lost = self._clients[endpoint]
                record.pay(usage, None if isinstance(lost, FatalCallError) else lost.price)
        record.latency_s = runtime.clock() - started
        return raced.result

    def _line_beside(self, endpoint: int) -> PermitQueue:
        """Where calls wait for another endpoint, if one is usable."""
        if endpoint not in self._beside:
            self._beside[endpoint] = PermitQueue(
                self._name,
                self._runtime.limiter,
                lambda tokens: self._roster.usable(self._runtime.clock(), tokens, other_than=endpoint),
            )
        return self._beside[endpoint]
