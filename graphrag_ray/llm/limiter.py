"""The limiter: wait for places to call an endpoint, settle what was used, report a 429.

A process has one `LocalLimiter`; on a cluster, one actor per model wraps a `LocalLimiter` of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from graphrag_ray.base.errors import RequestTooLarge
from graphrag_ray.base.index_settings import Model
from graphrag_ray.llm.limits import CallOutcome, EndpointState, FreedPlace, LimiterState

MAX_ASKED = 256  # Waiters per question. More are never granted in one answer.

_lent: set[str] = set()  # addresses to which this process has sent a first request


class Limiter(Protocol):
    """Rate limits shared by callers. Endpoints are numbered as in the settings; only `acquire` waits."""

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        """Wait for places at the `usable` endpoints for the first one or more waiters.

        `wants` are the tokens of each waiter's call. Returns the endpoints for the first n waiters, n at
        least 1; the others have to ask again. A caller has one such call per model at a time.
        """

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None) -> None:
        """Free a place. `delta_tokens` is tokens used minus wanted; `ended` describes the call, if any."""

    def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        """Pause an endpoint for all callers after a 429 or a request to wait (None: for no given time)."""

    def learn(self, model: str, endpoint: int, quirks: Iterable[str]) -> None:
        """Share quirks of an endpoint (`quirks.NAMES`) with all callers."""

    def quirks(self, model: str, endpoint: int) -> frozenset[str]:
        """The quirks of an endpoint that are known here so far."""


class ClosableLimiter(Limiter, Protocol):
    """A limiter that has to be closed after use."""

    def close(self) -> None: ...


class LocalLimiter:
    """Limits within one process, or behind an actor, without tasks, locks or polling.

    A limiter starts empty. With `lend_first`, the first request of this process to an endpoint goes at once,
    so that a single question does not wait. A shared limiter must not do this, as it may have been restarted.
    `initial_in_flight` is the initial number of concurrent calls without a known limit.
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
                line.state.lend(now, [i for i, url in enumerate(urls) if url not in _lent])
                _lent.update(urls)

    async def acquire(
        self, model: str, wants: Sequence[int], usable: Sequence[int], holder: str = ""
    ) -> Sequence[int]:
        return await self._lines[model].acquire(holder, wants, usable)

    def settle(
        self, model: str, endpoint: int, delta_tokens: int, ended: CallOutcome | None = None, holder: str = ""
    ) -> None:
        self.settle_all(model, [FreedPlace(endpoint, delta_tokens, ended)], holder)

    def settle_all(self, model: str, settled: Iterable[FreedPlace], holder: str = "") -> None:
        """Free several places of one holder, and answer waiting tickets once."""
        line = self._lines[model]
        for one in settled:
            line.state.settle(self._clock(), holder, *one)
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
        """The most calls of one model in flight at once since the last `take_peak`."""
        return max((line.state.take_peak() for line in self._lines.values()), default=0)

    def in_flight(self, model: str) -> tuple[int, ...]:
        """Calls in flight at each endpoint."""
        return self._lines[model].state.in_flight

    def endpoint_states(self, model: str) -> list[EndpointState]:
        """The current state of each endpoint."""
        return self._lines[model].state.seen(self._clock())


class _Line:
    """Futures and a timer around the limits of one model. `_waiting`: holder, wants and answer by ticket."""

    def __init__(self, state: LimiterState, clock: Callable[[], float]) -> None:
        self.state = state
        self._clock = clock
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
            if not answer.cancelled():  # granted, but nobody will use the places
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
        """Answer tickets that can be served, and set the timer for the next look."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        now = self._clock()
        granted, look_again_at = self.state.grants(now)
        for grant in granted:
            holder, wants, answer = self._waiting.pop(grant.ticket)
            if answer.done():  # cancelled in this iteration of the event loop
                self._give_back(holder, wants, grant.endpoints)
                look_again_at = now
            else:
                answer.set_result(grant.endpoints)
        if look_again_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, look_again_at - now), self.serve)

    def _give_back(self, holder: str, wants: Sequence[int], places: Sequence[int]) -> None:
        for endpoint, tokens in zip(places, wants, strict=False):
            self.state.settle(self._clock(), holder, endpoint, -tokens)


@dataclass(frozen=True, slots=True)
class Place:
    """Permission to call an endpoint, with tokens reserved."""

    endpoint: int
    tokens: int


class PermitQueue:
    """Serves waiters in order, at the endpoints that `usable` returns for a number of tokens."""

    def __init__(self, model: str, limiter: Limiter, usable: Callable[[int], Sequence[int]]) -> None:
        self._model = model
        self._limiter = limiter
        self._usable = usable
        self._waiters: deque[tuple[Callable[[], int], asyncio.Future[Place]]] = deque()
        self._asking: asyncio.Task[None] | None = None

    async def place(self, tokens: Callable[[], int]) -> Place:
        """Wait for a place, which the caller has to settle. `tokens` estimates what to reserve when asked."""
        place: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiters.append((tokens, place))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        try:
            return await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:
                self.give_back(place.result())
            raise

    async def close(self) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        """Ask for all waiters and hand out granted places until nobody waits."""
        while asked := list(islice((w for w in self._waiters if not w[1].done()), MAX_ASKED)):
            wants: list[int] = []
            try:
                wants = [tokens() for tokens, _ in asked]
                endpoints = await self._limiter.acquire(self._model, wants, self._usable(max(wants)))
            except Exception as e:  # noqa: BLE001 - handed to the waiters, with its type
                failed = [place for _, place in self._waiters]
                if isinstance(e, RequestTooLarge):
                    failed = [p for (_, p), n in zip(asked, wants, strict=True) if n == max(wants)]
                for place in failed:
                    if not place.done():
                        place.set_exception(e)
                endpoints = ()
            for (_, place), endpoint, tokens in zip(asked, endpoints, wants, strict=False):
                if place.done():
                    self.give_back(Place(endpoint, tokens))
                else:
                    place.set_result(Place(endpoint, tokens))
            while self._waiters and self._waiters[0][1].done():
                self._waiters.popleft()

    def give_back(self, place: Place) -> None:
        """Free a place that nobody will use."""
        self._limiter.settle(self._model, place.endpoint, -place.tokens)
