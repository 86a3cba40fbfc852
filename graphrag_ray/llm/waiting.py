"""The line of one caller's requests for one model: one outstanding question to the limiter for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from graphrag_ray.llm.bucket import RequestTooLarge
from graphrag_ray.llm.limiter import Limiter

MAX_ASKED = 256
"""Waiters named in one question; more are never granted in one answer."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    tokens: int
    place: asyncio.Future[int]


class Line:
    """Waiters are served in order. A waiter that is cancelled gives its place back."""

    def __init__(self, model: str, limiter: Limiter, usable: Callable[[int], Sequence[int]]) -> None:
        """usable: the endpoints that may be called now, at least one of them with a request of so many
        tokens; what it raises, every waiter gets."""
        self._model = model
        self._limiter = limiter
        self._usable = usable
        self._waiters: deque[_Waiter] = deque()
        self._asking: asyncio.Task[None] | None = None

    async def place(self, tokens: int) -> int:
        """Wait for a place for a call of so many tokens; returns the endpoint to call.

        Whoever gets a place settles it with the limiter.
        """
        waiter = _Waiter(tokens, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if not waiter.place.cancelled() and waiter.place.exception() is None:
                self._give_back(waiter, waiter.place.result())
            raise

    async def close(self) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        """Ask for all who wait, hand out what is granted, until nobody waits."""
        while asked := list(islice((w for w in self._waiters if not w.place.done()), MAX_ASKED)):
            wants = [w.tokens for w in asked]
            try:
                endpoints = await self._limiter.acquire(self._model, wants, self._usable(max(wants)))
            except RequestTooLarge as e:
                self._fail([w for w in asked if w.tokens == max(wants)], e)
                continue
            except Exception as e:  # noqa: BLE001 - handed to those who wait, with its type
                self._fail(self._waiters, e)
                continue
            for waiter, endpoint in zip(asked, endpoints, strict=False):
                if waiter.place.done():
                    self._give_back(waiter, endpoint)
                else:
                    waiter.place.set_result(endpoint)
            while self._waiters and self._waiters[0].place.done():
                self._waiters.popleft()

    def _fail(self, waiters: Iterable[_Waiter], error: Exception) -> None:
        for waiter in waiters:
            if not waiter.place.done():
                waiter.place.set_exception(error)
        self._waiters = deque(w for w in self._waiters if not w.place.done())

    def _give_back(self, waiter: _Waiter, endpoint: int) -> None:
        self._limiter.settle(self._model, endpoint, -waiter.tokens)
