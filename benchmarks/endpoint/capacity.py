"""The speed of a server with many concurrent calls: slots with a queue, and slowing beyond a batch size.

Calls progress in virtual time, which advances at `rate` seconds per second: 1 for up to `batch` calls, and
batch/n for n calls (egalitarian processor sharing). A change of n, the settings or the speed therefore
applies immediately to all running calls.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Capacity:
    """Slots and processing time of a simulated server. Use it from one event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: int | None = None
        self._batch: int | None = None
        self._speed = 1.0
        self._held = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._work: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._running = 0
        self._virtual = 0.0
        self._rate = 1.0
        self._at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = 0.0

    @property
    def queued(self) -> int:
        return sum(not f.done() for f in self._queue)

    def set(self, slots: int | None, batch: int | None, speed: float) -> None:
        self._slots, self._batch, self._speed = slots, batch, speed
        self._changed()
        self._let_in()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot. Callers wait in order of arrival."""
        if self._slots is not None and (self._held >= self._slots or self._queue):
            place = self._loop.create_future()
            self._queue.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._release()
                raise
        else:
            self._held += 1
        try:
            yield
        finally:
            self._release()

    async def work(self, seconds: float) -> None:
        """Work for this many seconds at full speed."""
        if seconds <= 0:
            return
        done = self._loop.create_future()
        self._running += 1
        self._changed()
        heapq.heappush(self._work, (self._virtual + seconds, next(self._numbers), done))
        self._set_timer()
        try:
            await done
        finally:
            self._running -= 1
            self._changed()

    def _release(self) -> None:
        self._held -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and (self._slots is None or self._held < self._slots):
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                self._held += 1

    def _changed(self) -> None:
        self._advance()
        sharing = self._batch is not None and self._running > self._batch
        rate = self._speed * (self._batch / self._running if sharing and self._batch else 1.0)
        if rate != self._rate:
            self._rate = rate
            self._set_timer(restart=True)

    def _advance(self) -> None:
        now = self._loop.time()
        self._virtual += (now - self._at) * self._rate
        self._at = now

    def _set_timer(self, restart: bool = False) -> None:
        while self._work and self._work[0][2].done():  # Cancelled by its caller.
            heapq.heappop(self._work)
        if self._timer is not None:
            if self._work and self._work[0][0] == self._timer_for and not restart:
                return
            self._timer.cancel()
            self._timer = None
        if self._work:
            self._timer_for = self._work[0][0]
            delay_s = max(0.0, self._timer_for - self._virtual) / self._rate
            self._timer = self._loop.call_at(self._at + delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        while self._work and self._work[0][0] <= self._virtual + 1e-9:
            _, _, done = heapq.heappop(self._work)
            if not done.done():
                done.set_result(None)
        self._set_timer()
