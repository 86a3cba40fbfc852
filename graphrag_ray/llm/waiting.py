"""The line of one caller's requests for one model: one outstanding question to the limiter for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphrag_ray.llm.limiter import Limiter

MAX_ASKED = 256
"""Waiters named in one question; more are never granted in one answer."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    tokens: int
    place: asyncio.Future[int]


class Line:
    """Waiters are served in order. A waiter that is cancelled gives its place back."""

    def __init__(self, model: str, limiter: Limiter, usable: Callable[[], Sequence[int]]) -> None:
        """usable: the endpoints that may be called now; what it raises, every waiter gets."""
        self._model = model
        self._limiter = limiter
        self._usable = usable
        self._waiters: deque[_Waiter] = deque()
        self._asking: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiters)

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
            if waiter.place.cancelled():
                self._waiters = deque(w for w in self._waiters if w is not waiter)
            elif waiter.place.exception() is None:
                self._give_back(waiter, waiter.place.result())
            raise

    async def close(self) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        """Ask for all who wait, hand out what is granted, until nobody waits."""
        while self._waiters:
            asked = [self._waiters[i] for i in range(min(MAX_ASKED, len(self._waiters)))]
            try:
                endpoints = await self._limiter.acquire(self._model, [w.tokens for w in asked], self._usable())
            except Exception as e:  # noqa: BLE001 - handed to those who wait, with its type
                self._fail(e)
                return
            for waiter, endpoint in zip(asked, endpoints, strict=False):
                if waiter.place.done():
                    self._give_back(waiter, endpoint)
                else:
                    waiter.place.set_result(endpoint)
            self._waiters = deque(w for w in self._waiters if not w.place.done())

    def _fail(self, error: Exception) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.place.done():
                waiter.place.set_exception(error)

    def _give_back(self, waiter: _Waiter, endpoint: int) -> None:
        self._limiter.settle(self._model, endpoint, -waiter.tokens)
