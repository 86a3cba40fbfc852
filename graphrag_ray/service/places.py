"""How many questions are answered at once, how many wait for that, and when to come again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from graphrag_ray.service.faults import busy

FIRST_GUESS_S = 5.0
"""That a question takes, before one has been answered."""
SHORTEST_S, LONGEST_S = 1, 60
WEIGHT = 0.1
"""Of the last question in the mean."""


class QuestionPlaces:
    """Belongs to one event loop. running, waiting: questions now."""

    def __init__(self, most_running: int, most_waiting: int) -> None:
        self._most_running, self._most_waiting = most_running, most_waiting
        self._free = asyncio.Semaphore(most_running)
        self._mean_s = FIRST_GUESS_S
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place for a question, as long as the block lasts. Raises Refused where too many wait."""
        if self._free.locked() and self.waiting >= self._most_waiting:
            raise busy(self.waiting, self._retry_after_s())
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()
            took = asyncio.get_running_loop().time() - began
            self._mean_s += WEIGHT * (took - self._mean_s)

    def _retry_after_s(self) -> int:
        """When about half of those who wait will have a place."""
        seconds = self._mean_s * max(1, self.waiting / 2) / self._most_running
        return min(LONGEST_S, max(SHORTEST_S, math.ceil(seconds)))
