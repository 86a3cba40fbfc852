"""Hedging: a second request for a call that takes longer than nearly all others of its prompt.

Dean and Barroso, "The Tail at Scale" (CACM 2013). The first good answer counts and the other request is
cancelled, so a call still has one reply. A second request that fails, or is as slow, is followed by a third.

While work is queued, a slow call holds up nothing but itself, and one in a hundred is hedged. Where none is
left to send, at the end of a stage, everyone waits for the slowest: one in four is hedged then, as long as
few of all calls were. By prompt and not by stage: a question that is answered by one word has another pace.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from graphrag_ray.llm.accounting import Latencies
from graphrag_ray.llm.limiter import Place

T = TypeVar("T")

SLOW = 0.99
"""A call is slow when so many of its prompt's calls took less."""
SLOW_AT_THE_END = 0.75
"""The same where nothing else is left to send."""
MOST_HEDGED = 0.08
"""Of a prompt's calls: with more hedges only SLOW counts."""
FEWEST_SEEN = 100
"""Calls of a prompt that must have been seen."""
MOST_REQUESTS = 3
"""Of one attempt."""
ASK_AGAIN_S = 1.0
"""Between looks at what is slow: enough may have been seen by now, or nothing be left to send."""
_LOOK_AGAIN = 25
"""Calls after which the quantile is computed anew."""


class CallDurations:
    """How long the calls of each prompt take. A call that its hedge has overtaken counts with the time it
    had taken by then: left out, the slow would vanish from the quantile, and more and more were hedged."""

    def __init__(self) -> None:
        self._latencies: dict[str, Latencies] = {}
        self._slow: dict[tuple[str, float], tuple[int, float]] = {}
        self._seen, self._hedged = Counter[str](), Counter[str]()

    def note(self, prompt: str, seconds: float) -> None:
        self._latencies.setdefault(prompt, Latencies()).add(seconds)
        self._seen[prompt] += 1

    def hedged(self, prompt: str) -> None:
        """A second request was sent."""
        self._hedged[prompt] += 1

    def slow_s(self, prompt: str, at_the_end: bool = False) -> float | None:
        """From when on a call of this prompt is slow; None where too few were seen. at_the_end: nothing else
        is left to send."""
        seen = self._seen[prompt]
        if seen < FEWEST_SEEN:
            return None
        few = self._hedged[prompt] < MOST_HEDGED * seen
        share = SLOW_AT_THE_END if at_the_end and few else SLOW
        at, seconds = self._slow.get((prompt, share), (0, 0.0))
        if seen >= at + _LOOK_AGAIN:
            seconds = self._latencies[prompt].quantile(share) or 0.0
            self._slow[prompt, share] = (seen, seconds)
        return seconds


@dataclass(frozen=True, slots=True)
class Raced(Generic[T]):
    """result   the first good one, else the first request's
    winner      number of its request: 0 the first, 1, 2 those after it
    lost        the endpoints of requests that were cancelled
    """

    result: T
    winner: int = 0
    lost: tuple[int, ...] = ()


async def race(
    place: Place,
    slow_s: Callable[[], float | None],
    send: Callable[[Place], Awaitable[T]],
    another: Callable[[], Awaitable[Place]],
    give_back: Callable[[Place], None],
    good: Callable[[T], bool],
    sleep: Callable[[float], Awaitable[None]],
) -> Raced[T]:
    """Send a request; send another when the last one takes longer than slow_s, or has failed while the first
    still runs, and `another` has found a place. slow_s is asked again and again: None while too few others
    were seen, it falls when the end has come.

    Each request settles its place itself, also when cancelled; one that came too late is given back. One that
    cannot be sent changes nothing.
    """
    sent: list[tuple[asyncio.Future[T], Place]] = []

    async def next_place(last: asyncio.Future[T]) -> Place:
        """As soon as the last request is slow or over."""
        waited_s = 0.0
        while not last.done() and ((slow := slow_s()) is None or waited_s < slow):
            step_s = ASK_AGAIN_S if slow is None else min(ASK_AGAIN_S, slow - waited_s)
            await sleep(step_s)
            waited_s += step_s
        return await another()

    def start(at: Place) -> asyncio.Future[Place] | None:
        sent.append((asyncio.ensure_future(send(at)), at))
        if len(sent) == MOST_REQUESTS:
            return None
        return asyncio.ensure_future(next_place(sent[-1][0]))

    coming = start(place)
    try:
        while True:
            flying = {request for request, _ in sent if not request.done()}
            waited_for: set[asyncio.Future[Any]] = {*flying} | ({coming} if coming is not None else set())
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            flying = {request for request, _ in sent if not request.done()}
            over = [n for n, (request, _) in enumerate(sent) if request.done() and _has_result(request)]
            won = next((n for n in over if good(sent[n][0].result())), None)
            if won is not None or not flying:
                lost = tuple(at.endpoint for request, at in sent if request in flying)
                return Raced(await sent[won or 0][0], won or 0, lost)
            if coming is not None and coming.done():
                coming = start(coming.result()) if _has_result(coming) else None
    finally:
        left: list[asyncio.Future[Any]] = [request for request, _ in sent]
        if coming is not None and coming.done() and _has_result(coming):
            give_back(coming.result())
        elif coming is not None:
            left.append(coming)
        for future in left:
            future.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _has_result(done: asyncio.Future[Any]) -> bool:
    return not done.cancelled() and done.exception() is None
