"""The limiter that callers see: wait for places to call, settle what was used, report a 429.

One process has a `LocalLimiter`. A cluster has one actor per model, which is a shell around a
`LocalLimiter` of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from graphrag_ray.base.index_settings import Model
from graphrag_ray.llm.limits import Ended, EndpointState, LimiterState, Settled
from graphrag_ray.llm.token_bucket import RequestTooLarge


class Limiter(Protocol):
    """Endpoints are numbered as in the model's settings. Only `acquire` waits."""

    async def acquire(self, model: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        """Wait for places for the first one or more of the waiters.

        wants: tokens that each waiter's call will use, in order. usable: the endpoints to choose from.
        Returns the endpoint for each of the first n waiters, n at least 1; the others ask again.
        A caller has one such call outstanding per model.
        """
        ...

    def settle(self, model: str, endpoint: int, delta_tokens: int, ended: Ended | None = None) -> None:
        """A place is free again. delta_tokens: tokens used minus those asked for. ended: how the call went;
        None where none was made, or it says nothing about how much the endpoint can bear."""
        ...

    def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        """The endpoint answered 429, or asked to wait: everyone does for so long (None: it did not say)."""
        ...

    def learn(self, model: str, endpoint: int, quirks: Iterable[str]) -> None:
        """The endpoint taught somebody what it does not take (`quirks.NAMES`): everyone shall know."""
        ...

    def quirks(self, model: str, endpoint: int) -> frozenset[str]:
        """What it has taught so far, as far as is known here."""
        ...


class LentLimiter(Limiter, Protocol):
    """One that is given back."""

    def close(self) -> None: ...


_lent: set[str] = set()
"""Addresses of endpoints whose first request of this process has gone."""


class LocalLimiter:
    """Limits within one process, or behind an actor: no task of its own, no lock, no polling.

    It may outlive an event loop, but is used from one at a time.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        default_in_flight: int,
        clock: Callable[[], float] = time.monotonic,
        lend_first: bool = False,
    ) -> None:
        """default_in_flight: concurrent calls of an endpoint without any known limit, to start with.

        lend_first: let the first request to an endpoint go at once, where a limiter else starts empty:
        a single question would wait for what nobody uses. Once in a process, and never for a limiter
        that is shared: it may be a restarted one.
        """
        now = clock()
        self._quirks: dict[tuple[str, int], frozenset[str]] = {}
        self._lines = {
            name: _Line(LimiterState(model.endpoints, default_in_flight, now), clock)
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
        self, model: str, endpoint: int, delta_tokens: int, ended: Ended | None = None, holder: str = ""
    ) -> None:
        self.settle_all(model, [Settled(endpoint, delta_tokens, ended)], holder)

    def settle_all(self, model: str, settled: Iterable[Settled], holder: str = "") -> None:
        """Several places of one holder are free again; who waits for them is answered once."""
        self._lines[model].settle(holder, settled)

    def penalise(self, model: str, endpoint: int, retry_after_s: float | None) -> None:
        self._lines[model].penalise(endpoint, retry_after_s)

    def learn(self, model: str, endpoint: int, quirks: Iterable[str]) -> None:
        self._quirks[model, endpoint] = self.quirks(model, endpoint) | frozenset(quirks)

    def quirks(self, model: str, endpoint: int) -> frozenset[str]:
        return self._quirks.get((model, endpoint), frozenset())

    def all_quirks(self) -> Mapping[tuple[str, int], frozenset[str]]:
        """Of all endpoints that have taught anything."""
        return dict(self._quirks)

    def forget(self, holder: str) -> None:
        """A holder died: what it had in flight is over."""
        for line in self._lines.values():
            line.forget(holder)

    def take_peak(self) -> int:
        """The most calls of one model in flight at once since this was asked last."""
        return max((line.state.take_peak() for line in self._lines.values()), default=0)

    def in_flight(self, model: str) -> tuple[int, ...]:
        """Calls in flight for each endpoint."""
        return self._lines[model].state.in_flight

    def seen(self, model: str) -> list[EndpointState]:
        """Each endpoint as it is now."""
        line = self._lines[model]
        return line.state.seen(line.clock())


@dataclass(frozen=True, slots=True)
class _Waiter:
    holder: str
    wants: tuple[int, ...]
    future: asyncio.Future[Sequence[int]]


class _Line:
    """Futures and a timer around the state of one model."""

    def __init__(self, state: LimiterState, clock: Callable[[], float]) -> None:
        self.state = state
        self.clock = clock
        self._waiting: dict[int, _Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, holder: str, wants: Sequence[int], usable: Sequence[int]) -> Sequence[int]:
        ticket = self.state.ask(holder, wants, usable)
        waiter = _Waiter(holder, tuple(wants), asyncio.get_running_loop().create_future())
        self._waiting[ticket] = waiter
        self._serve()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self.state.withdraw(ticket)
            self._waiting.pop(ticket, None)
            if not waiter.future.cancelled():  # granted, but nobody will use the places
                self._give_back(waiter, waiter.future.result())
            if self._waiting:
                self._serve()
            raise

    def settle(self, holder: str, settled: Iterable[Settled]) -> None:
        now = self.clock()
        for one in settled:
            self.state.settle(now, holder, *one)
        if self._waiting:
            self._serve()

    def penalise(self, endpoint: int, retry_after_s: float | None) -> None:
        self.state.penalise(self.clock(), endpoint, retry_after_s)

    def forget(self, holder: str) -> None:
        self.state.forget(holder)
        for ticket, waiter in list(self._waiting.items()):
            if waiter.holder == holder:
                waiter.future.cancel()
                del self._waiting[ticket]
        if self._waiting:
            self._serve()

    def _serve(self) -> None:
        """Answer who may go now, and set the timer for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self.clock()
        granted, look_again_at = self.state.grants(now)
        for grant in granted:
            waiter = self._waiting.pop(grant.ticket)
            if waiter.future.done():  # cancelled in this turn of the event loop
                self._give_back(waiter, grant.endpoints)
                look_again_at = now
            else:
                waiter.future.set_result(grant.endpoints)
        if look_again_at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, look_again_at - now), self._serve)

    def _give_back(self, waiter: _Waiter, places: Sequence[int]) -> None:
        for endpoint, tokens in zip(places, waiter.wants, strict=False):
            self.state.settle(self.clock(), waiter.holder, endpoint, -tokens)


MAX_ASKED = 256
"""Waiters named in one question; more are never granted in one answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Leave to call an endpoint, with so many tokens reserved."""

    endpoint: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Queued:
    tokens: Callable[[], int]
    place: asyncio.Future[Place]


class PermitQueue:
    """Waiters are served in order. A waiter that is cancelled gives its place back."""

    def __init__(self, model: str, limiter: Limiter, usable: Callable[[int], Sequence[int]]) -> None:
        """usable: the endpoints that may be called now, at least one of them with a request of so many
        tokens; what it raises, every waiter gets."""
        self._model = model
        self._limiter = limiter
        self._usable = usable
        self._waiters: deque[_Queued] = deque()
        self._asking: asyncio.Task[None] | None = None

    async def place(self, tokens: Callable[[], int]) -> Place:
        """Wait for a place; whoever gets one settles it with the limiter.

        tokens: what to reserve, by the best estimate at the time when the limiter is asked.
        """
        waiter = _Queued(tokens, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if not waiter.place.cancelled() and waiter.place.exception() is None:
                self.give_back(waiter.place.result())
            raise

    async def close(self) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        """Ask for all who wait, hand out what is granted, until nobody waits."""
        while asked := list(islice((w for w in self._waiters if not w.place.done()), MAX_ASKED)):
            wants: list[int] = []
            try:
                wants = [w.tokens() for w in asked]
                endpoints = await self._limiter.acquire(self._model, wants, self._usable(max(wants)))
            except RequestTooLarge as e:
                self._fail([w for w, tokens in zip(asked, wants, strict=True) if tokens == max(wants)], e)
                continue
            except Exception as e:  # noqa: BLE001 - handed to those who wait, with its type
                self._fail(self._waiters, e)
                continue
            for waiter, endpoint, tokens in zip(asked, endpoints, wants, strict=False):
                if waiter.place.done():
                    self.give_back(Place(endpoint, tokens))
                else:
                    waiter.place.set_result(Place(endpoint, tokens))
            while self._waiters and self._waiters[0].place.done():
                self._waiters.popleft()

    def _fail(self, waiters: Iterable[_Queued], error: Exception) -> None:
        for waiter in waiters:
            if not waiter.place.done():
                waiter.place.set_exception(error)
        self._waiters = deque(w for w in self._waiters if not w.place.done())

    def give_back(self, place: Place) -> None:
        """A place that nobody will use."""
        self._limiter.settle(self._model, place.endpoint, -place.tokens)
