"""Hedging: a second request for a call that takes longer than nearly all others of its stage.

Dean and Barroso, "The Tail at Scale" (CACM 2013). The first good answer counts and the other request is
cancelled, so a call still has one reply. A call is hedged at most once in each attempt.

While work is queued, a slow call holds up nothing but itself, and one in a hundred is hedged. Where none is
left to send, at the end of a stage, everyone waits for the slowest: one in twenty is hedged then, as long as
few of the stage's calls were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from graphrag_ray.llm.accounting import Latencies
from graphrag_ray.llm.waiting import Place

T = TypeVar("T")

SLOW = 0.99
"""A call is slow when so many of its stage's calls took less."""
SLOW_AT_THE_END = 0.95
"""The same where nothing else is left to send."""
MOST_HEDGED = 0.03
"""Of a stage's calls: with more hedges only SLOW counts."""
FEWEST_SEEN = 100
"""Calls of a stage that must have been seen."""
ASK_AGAIN_S = 1.0
"""Between looks at what is slow: enough may have been seen by now, or nothing be left to send."""
_LOOK_AGAIN = 25
"""Calls after which the quantile is computed anew."""


class Pace:
    """How long the calls of each stage take. A call that its hedge has overtaken counts with the time it
    had taken by then: left out, the slow would vanish from the quantile, and more and more were hedged."""

    def __init__(self) -> None:
        self._latencies: dict[str, Latencies] = {}
        self._slow: dict[tuple[str, float], tuple[int, float]] = {}
        self._seen: dict[str, int] = {}
        self._hedged: dict[str, int] = {}

    def note(self, stage: str, seconds: float) -> None:
        self._latencies.setdefault(stage, Latencies()).add(seconds)
        self._seen[stage] = self._seen.get(stage, 0) + 1

    def hedged(self, stage: str) -> None:
        """A second request was sent."""
        self._hedged[stage] = self._hedged.get(stage, 0) + 1

    def slow_s(self, stage: str, at_the_end: bool = False) -> float | None:
        """From when on a call of this stage is slow; None where too few were seen. at_the_end: nothing else
        is left to send."""
        seen = self._seen.get(stage, 0)
        if seen < FEWEST_SEEN:
            return None
        few = self._hedged.get(stage, 0) < MOST_HEDGED * seen
        share = SLOW_AT_THE_END if at_the_end and few else SLOW
        at, seconds = self._slow.get((stage, share), (0, 0.0))
        if seen >= at + _LOOK_AGAIN:
            seconds = self._latencies[stage].quantile(share) or 0.0
            self._slow[stage, share] = (seen, seconds)
        return seconds


@dataclass(frozen=True, slots=True)
class Raced(Generic[T]):
    """result   the first good one, else the first request's
    second      it is the second request's
    lost        the endpoint of the request that was cancelled; None: none was
    """

    result: T
    second: bool = False
    lost: int | None = None


async def race(
    place: Place,
    slow_s: Callable[[], float | None],
    send: Callable[[Place], Awaitable[T]],
    another: Callable[[], Awaitable[Place]],
    send_second: Callable[[Place], Awaitable[T]],
    good: Callable[[T], bool],
    sleep: Callable[[float], Awaitable[None]],
) -> Raced[T]:
    """Send a request; send a second one when it takes longer than slow_s and `another` has found a place.
    slow_s is asked again and again: None while too few others were seen, it falls when the end has come.

    Both settle their places themselves, also when cancelled. A second request that cannot be sent, or
    fails, changes nothing.
    """
    sent: list[Place] = []

    async def second_request() -> T:
        waited_s = 0.0
        while (slow := slow_s()) is None or waited_s < slow:
            step_s = ASK_AGAIN_S if slow is None else min(ASK_AGAIN_S, slow - waited_s)
            await sleep(step_s)
            waited_s += step_s
        second_place = await another()
        sent.append(second_place)
        return await send_second(second_place)

    first = asyncio.ensure_future(send(place))
    second = asyncio.ensure_future(second_request())
    try:
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done() and not _is_good(second, good):
            await asyncio.wait({first})
        if first.done() and sent and not _is_good(first, good):
            await asyncio.wait({second})
        if _is_good(first, good) or not _is_good(second, good):
            lost = sent[0].endpoint if sent and not second.done() else None
            return Raced(await first, lost=lost)
        return Raced(second.result(), second=True, lost=None if first.done() else place.endpoint)
    finally:
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


def _is_good(request: asyncio.Future[T], good: Callable[[T], bool]) -> bool:
    over = request.done() and not request.cancelled() and request.exception() is None
    return over and good(request.result())
