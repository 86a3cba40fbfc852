"""Hedging: a second request for a call that takes longer than nearly all others of its prompt.

Dean and Barroso, "The Tail at Scale" (CACM 2013). The first good reply wins and the other requests are
cancelled, so a call still has one reply. A second request that fails, or is as slow, is followed by a third.

While work is queued, a slow call delays nothing but itself, and 1% of calls are hedged. At the end of a
stage, everything waits for the slowest call, and 25% are hedged as long as few of all calls were. Durations
are kept by prompt rather than by stage, since a one-word reply takes less time than others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from graphrag_ray.llm.accounting import Latencies
from graphrag_ray.llm.limiter import Place

T = TypeVar("T")

SLOW, SLOW_AT_THE_END = (
    0.99,
    0.75,
)  # quantiles above which a call is slow; the second if nothing is left to send
MOST_HEDGED = 0.08  # share of a prompt's calls; with more hedges, only SLOW applies
FEWEST_SEEN = 100  # calls of a prompt before any is hedged
MOST_REQUESTS = 3  # per attempt
# Seconds between checks: by then enough calls may have been seen, or nothing may be left to send.
ASK_AGAIN_S = 1.0
_RECOMPUTE_AFTER = 25  # calls after which the quantile is computed again


class CallDurations:
    """How long the calls of each prompt take.

    A call overtaken by its hedge counts with the time it had taken by then. Without it, slow calls would
    vanish from the quantile, and ever more calls would be hedged.
    """

    def __init__(self) -> None:
        self._latencies: dict[str, Latencies] = {}
        self._slow: dict[tuple[str, float], tuple[int, float]] = {}
        self._seen, self._hedged = Counter[str](), Counter[str]()

    def note(self, prompt: str, seconds: float) -> None:
        self._latencies.setdefault(prompt, Latencies()).add(seconds)
        self._seen[prompt] += 1

    def hedged(self, prompt: str) -> None:
        """Count a hedge."""
        self._hedged[prompt] += 1

    def slow_s(self, prompt: str, at_the_end: bool = False) -> float | None:
        """Seconds after which a call of this prompt is slow; None if too few were seen."""
        seen = self._seen[prompt]
        if seen < FEWEST_SEEN:
            return None
        few = self._hedged[prompt] < MOST_HEDGED * seen
        share = SLOW_AT_THE_END if at_the_end and few else SLOW
        computed_at, seconds = self._slow.get((prompt, share), (0, 0.0))
        if seen >= computed_at + _RECOMPUTE_AFTER:
            seconds = self._latencies[prompt].quantile(share) or 0.0
            self._slow[prompt, share] = (seen, seconds)
        return seconds


async def race(
    place: Place,
    slow_s: Callable[[], float | None],
    send: Callable[[Place], Awaitable[T]],
    another: Callable[[], Awaitable[Place]],
    give_back: Callable[[Place], None],
    good: Callable[[T], bool],
    sleep: Callable[[float], Awaitable[None]],
) -> tuple[T, int, tuple[int, ...]]:
    """Send a request, and hedge it.

    The next request follows when the last one is slow, or has failed while an earlier one still runs, and
    `another` has found a place. `slow_s` is called repeatedly: it is None while too few calls were seen, and
    falls at the end of a stage. Each request settles its place itself, also when cancelled. A place that
    comes too late is given back. Returns the first good result, else that of the first request; its number;
    the endpoints of cancelled requests.
    """
    sent: list[tuple[asyncio.Future[T], Place]] = []

    async def next_place(last: asyncio.Future[T]) -> Place:
        """Wait until the last request is slow or done, then for a place."""
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
            awaited: set[asyncio.Future[Any]] = {*flying} | ({coming} if coming is not None else set())
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            flying = {request for request, _ in sent if not request.done()}
            done = [n for n, (request, _) in enumerate(sent) if request.done() and _has_result(request)]
            won = next((n for n in done if good(sent[n][0].result())), None)
            if won is not None or not flying:
                lost = tuple(at.endpoint for request, at in sent if request in flying)
                return await sent[won or 0][0], won or 0, lost
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
