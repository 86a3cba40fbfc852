"""The limiter: acquire permits to call an endpoint, settle the tokens used, and report 429s.

A process has one `LocalLimiter`. On a cluster, one actor per model wraps a `LocalLimiter`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.errors import RequestTooLarge
from graphrag_ray.llm.limits import CallOutcome, EndpointState, FreedPermit, LimiterState

MAX_WANTS = 256  # maximum number of waiters per `acquire`, which never grants more

_credited: set[str] = set()  # addresses to which this process has sent a first request


class Limiter(Protocol):
    """Rate limits shared by callers. Endpoints are numbered as in the settings. Only `acquire` waits."""

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        """Wait for permits at the `usable` endpoints, for at least the first waiter.

        `wants` contains the tokens of each waiter's call. Returns the endpoints for the first n >= 1 waiters;
        the others have to ask again. A caller may have only one pending call per model.
        """

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None) -> None:
        """Release a permit. `delta_tokens`: tokens used minus wanted; `ended`: describes the call, if any."""

    def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        """Pause an endpoint for all callers after a 429 or a request to wait, which may not state a time."""

    def learn(self, model: str, endpoint: int, quirks: Iterable[str]) -> None:
        """Share quirks of an endpoint (`quirks.NAMES`) with all callers."""

    def quirks(self, model: str, endpoint: int) -> frozenset[str]:
        """Return the quirks of an endpoint that are known so far."""


class ClosableLimiter(Limiter, Protocol):
    """A limiter that has to be closed after use."""

    def close(self) -> None: ...


class LocalLimiter:
    """A limiter for one process, or for use within an actor. Needs no tasks, locks or polling.

    A limiter starts with empty buckets. With `lend_first`, this process's first request to an endpoint goes
    immediately, so that a single question does not wait. A shared limiter must not do this, because it may
    have been restarted. `initial_in_flight` is the initial bound on calls in flight without a known limit.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        initial_in_flight: int,
        clock: Callable[[], float] = time.monotonic,
        lend_first: bool = False,
    ) -> None:
        now = clock()
        self._clock = clock
        self.all_quirks: dict[tuple[str, int], frozenset[str]] = {}
        self._lines = {
            name: _Line(LimiterState(model.endpoints, initial_in_flight, now), clock)
            for name, model in models.items()
            if not model.is_local
        }
        if lend_first:
            for name, line in self._lines.items():
                urls = [e.base_url for e in models[name].endpoints]
                line.state.lend(now, [i for i, url in enumerate(urls) if url not in _credited])
                _credited.update(urls)

    async def acquire(
        self, model: str, wants: Sequence[int], usable: Sequence[int], holder: str = ""
    ) -> Sequence[int]:
        return await self._lines[model].acquire(holder, wants, usable)

    def settle(
        self, model: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None, holder: str = ""
    ) -> None:
        self.settle_all(model, [FreedPermit(endpoint, delta_tokens, ended)], holder)

    def settle_all(self, model: str, settled: Iterable[FreedPermit], holder: str = "") -> None:
        """Release several permits of one holder, and then serve waiting tickets once."""
        line = self._lines[model]
        for permit in settled:
            line.state.settle(self._clock(), holder, *permit)
        line.serve()

    def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        self._lines[model].state.penalise(self._clock(), endpoint, retry_after_s)

    def learn(self, model: str, endpoint: int, quirks: Iterable[str]) -> None:
        self.all_quirks[model, endpoint] = self.quirks(model, endpoint) | frozenset(quirks)

    def quirks(self, model: str, endpoint: int) -> frozenset[str]:
        return self.all_quirks.get((model, endpoint), frozenset())

    def drop_holder(self, holder: str) -> None:
        """Drop the tickets and the calls in flight of a holder that died."""
        for line in self._lines.values():
            line.forget(holder)

    def take_peak(self) -> int:
        """Return the maximum number of calls in flight to one model since the last `take_peak`."""
        return max((line.state.take_peak() for line in self._lines.values()), default=0)

    def in_flight(self, model: str) -> tuple[int, ...]:
        return self._lines[model].state.in_flight

    def endpoint_states(self, model: str) -> list[EndpointState]:
        return self._lines[model].state.endpoint_states(self._clock())


class _Line:
    """The futures and the timer around the limits of one model."""

    def __init__(self, state: LimiterState, clock: Callable[[], float]) -> None:
        self.state = state
        self._clock = clock
        # Holder, wants and answer by ticket.
        self._waiting: dict[int, tuple[str, Sequence[int], asyncio.Future[Sequence[int]]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, holder: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        ticket = self.state.ask(holder, wants, usable)
        answer: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = holder, wants, answer
        self.serve()
        try:
            return await answer
        except asyncio.CancelledError:
            self.state.withdraw(ticket)
            self._waiting.pop(ticket, None)
            if not answer.cancelled():  # granted, but nobody will use the permits
                self._give_back(holder, wants, answer.result())
            self.serve()
            raise

    def forget(self, holder: str) -> None:
        self.state.forget(holder)
        for ticket, (waiter, _, answer) in list(self._waiting.items()):
            if waiter == holder:
                answer.cancel()
                del self._waiting[ticket]
        self.serve()

    def serve(self) -> None:
        """Answer the tickets that can be served, and set a timer for the next check."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        now = self._clock()
        granted, check_again_at = self.state.grants(now)
        for grant in granted:
            holder, wants, answer = self._waiting.pop(grant.ticket)
            if answer.done():  # cancelled in this event loop cycle
                self._give_back(holder, wants, grant.endpoints)
                check_again_at = now
            else:
                answer.set_result(grant.endpoints)
        if check_again_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, check_again_at - now), self.serve)

    def _give_back(self, holder: str, wants: Sequence[int], endpoints: Sequence[int]) -> None:
        for endpoint, tokens in zip(endpoints, wants, strict=False):
            self.state.settle(self._clock(), holder, endpoint, -tokens)


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to call an endpoint, with reserved tokens."""

    endpoint: int
    tokens: int


class PermitQueue:
    """Gets permits for waiters in order. `usable` returns the endpoints for a request of this many tokens."""

    def __init__(self, model: str, limiter: Limiter, usable: Callable[[int], Sequence[int]]) -> None:
        self._model = model
        self._limiter = limiter
        self._usable = usable
        self._waiters: deque[tuple[Callable[[], int], asyncio.Future[Permit]]] = deque()
        self._acquiring: asyncio.Task[None] | None = None

    async def acquire(self, tokens: Callable[[], int]) -> Permit:
        """Wait for a permit, which the caller must settle. `tokens` returns how many tokens to reserve."""
        permit: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiters.append((tokens, permit))
        if self._acquiring is None or self._acquiring.done():
            self._acquiring = asyncio.ensure_future(self._acquire())
        try:
            return await permit
        except asyncio.CancelledError:
            if not permit.cancelled() and permit.exception() is None:
                self.give_back(permit.result())
            raise

    async def close(self) -> None:
        if self._acquiring is not None and not self._acquiring.done():
            self._acquiring.cancel()
            await asyncio.gather(self._acquiring, return_exceptions=True)

    async def _acquire(self) -> None:
        """Acquire and distribute permits until nobody is waiting."""
        while waiters := list(islice((w for w in self._waiters if not w[1].done()), MAX_WANTS)):
            wants: list[int] = []
            try:
                wants = [tokens() for tokens, _ in waiters]
                endpoints = await self._limiter.acquire(self._model, wants, self._usable(max(wants)))
            except Exception as e:  # noqa: BLE001 - handed to the waiters, with its type
                failed = [permit for _, permit in self._waiters]
                if isinstance(e, RequestTooLarge):
                    failed = [p for (_, p), n in zip(waiters, wants, strict=True) if n == max(wants)]
                for permit in failed:
                    if not permit.done():
                        permit.set_exception(e)
                endpoints = ()
            for (_, permit), endpoint, tokens in zip(waiters, endpoints, wants, strict=False):
                if permit.done():
                    self.give_back(Permit(endpoint, tokens))
                else:
                    permit.set_result(Permit(endpoint, tokens))
            while self._waiters and self._waiters[0][1].done():
                self._waiters.popleft()

    def give_back(self, permit: Permit) -> None:
        """Release an unused permit."""
        self._limiter.settle(self._model, permit.endpoint, -permit.tokens)
