"""The line of one caller's requests for one model: one outstanding question to the limiter for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from graphrag_ray.llm.limiter import Limiter
from graphrag_ray.llm.token_bucket import RequestTooLarge

MAX_ASKED = 256
"""Waiters named in one question; more are never granted in one answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Leave to call an endpoint, with so many tokens reserved."""

    endpoint: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Waiter:
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
        self._waiters: deque[_Waiter] = deque()
        self._asking: asyncio.Task[None] | None = None

    async def place(self, tokens: Callable[[], int]) -> Place:
        """Wait for a place; whoever gets one settles it with the limiter.

        tokens: what to reserve, by the best estimate at the time when the limiter is asked.
        """
        waiter = _Waiter(tokens, asyncio.get_running_loop().create_future())
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

    def _fail(self, waiters: Iterable[_Waiter], error: Exception) -> None:
        for waiter in waiters:
            if not waiter.place.done():
                waiter.place.set_exception(error)
        self._waiters = deque(w for w in self._waiters if not w.place.done())

    def give_back(self, place: Place) -> None:
        """A place that nobody will use."""
        self._limiter.settle(self._model, place.endpoint, -place.tokens)
