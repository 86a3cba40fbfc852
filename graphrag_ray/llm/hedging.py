"""Hedging: a second request for a call that takes longer than nearly all others with the same prompt.

Dean and Barroso, "The Tail at Scale" (CACM 2013). The first good reply wins and the other requests are
cancelled, so a call still has one reply. If the second request fails or is slow, too, a third follows.

While work is queued, a slow call delays nothing else, and 1% of calls are hedged. At the end of a stage,
everything waits for the slowest call, so 25% are hedged as long as few calls were hedged in total. Durations
are recorded by prompt rather than by stage, because one-word replies take less time than others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from graphrag_ray.llm.accounting import Latencies
from graphrag_ray.llm.limiter import Permit

T = TypeVar("T")

SLOW_QUANTILE = 0.99  # quantile of durations above which a call is slow
FINAL_SLOW_QUANTILE = 0.75  # the same when nothing else is left to send
MAX_HEDGED_SHARE = 0.08  # maximum share of hedged calls for which FINAL_SLOW_QUANTILE applies
MIN_SEEN = 100  # number of calls of a prompt before any is hedged
MAX_REQUESTS = 3  # maximum number of requests per attempt
CHECK_INTERVAL_S = 1.0  # seconds between checks whether a call counts as slow by now
_RECOMPUTE_AFTER = 25  # calls after which the quantile is computed again


class CallDurations:
    """Durations of the calls of each prompt.

    A call that lost to its hedge counts with its duration so far. Otherwise the quantile would not include
    slow calls, and more and more calls would be hedged.
    """

    def __init__(self) -> None:
        self._latencies: dict[str, Latencies] = {}
        self._slow: dict[tuple[str, float], tuple[int, float]] = {}
        self._seen, self._hedged = Counter[str](), Counter[str]()

    def note(self, prompt: str, seconds: float) -> None:
        self._latencies.setdefault(prompt, Latencies()).add(seconds)
        self._seen[prompt] += 1

    def count_hedge(self, prompt: str) -> None:
        self._hedged[prompt] += 1

    def slow_s(self, prompt: str, finishing: bool = False) -> float | None:
        """Return the seconds after which a call of this prompt is slow, or None if too few were seen."""
        n_seen = self._seen[prompt]
        if n_seen < MIN_SEEN:
            return None
        few_hedged = self._hedged[prompt] < MAX_HEDGED_SHARE * n_seen
        quantile = FINAL_SLOW_QUANTILE if finishing and few_hedged else SLOW_QUANTILE
        computed_at, seconds = self._slow.get((prompt, quantile), (0, 0.0))
        if n_seen >= computed_at + _RECOMPUTE_AFTER:
            seconds = self._latencies[prompt].quantile(quantile) or 0.0
            self._slow[prompt, quantile] = (n_seen, seconds)
        return seconds


async def race(
    permit: Permit,
    slow_s: Callable[[], float | None],
    send: Callable[[Permit], Awaitable[T]],
    another: Callable[[], Awaitable[Permit]],
    give_back: Callable[[Permit], None],
    good: Callable[[T], bool],
    sleep: Callable[[float], Awaitable[None]],
) -> tuple[T, int, tuple[int, ...]]:
    """Send a request, and hedge it.

    The next request follows when the last one is slow, or failed while an earlier one is still running, and
    `another` returned a permit. `slow_s` is called repeatedly, because its result changes as more calls are
    seen. Each request settles its own permit, even if it is cancelled. `give_back` receives a permit that
    comes too late.

    Returns:
        The first good result, or the first request's result if none is good; the number of the request with
        that result; and the endpoints of cancelled requests.
    """
    requests: list[tuple[asyncio.Future[T], Permit]] = []

    async def next_permit(last: asyncio.Future[T]) -> Permit:
        """Wait until the last request is slow or done, and then for a permit."""
        waited_s = 0.0
        while not last.done() and ((slow := slow_s()) is None or waited_s < slow):
            step_s = CHECK_INTERVAL_S if slow is None else min(CHECK_INTERVAL_S, slow - waited_s)
            await sleep(step_s)
            waited_s += step_s
        return await another()

    def start(permit: Permit) -> asyncio.Future[Permit] | None:
        requests.append((asyncio.ensure_future(send(permit)), permit))
        if len(requests) == MAX_REQUESTS:
            return None
        return asyncio.ensure_future(next_permit(requests[-1][0]))

    upcoming = start(permit)
    try:
        while True:
            in_flight = {request for request, _ in requests if not request.done()}
            awaited: set[asyncio.Future[Any]] = {*in_flight} | ({upcoming} if upcoming is not None else set())
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            in_flight = {request for request, _ in requests if not request.done()}
            done = [n for n, (request, _) in enumerate(requests) if request.done() and _has_result(request)]
            winner = next((n for n in done if good(requests[n][0].result())), None)
            if winner is not None or not in_flight:
                lost = tuple(permit.endpoint for request, permit in requests if request in in_flight)
                return await requests[winner or 0][0], winner or 0, lost
            if upcoming is not None and upcoming.done():
                upcoming = start(upcoming.result()) if _has_result(upcoming) else None
    finally:
        unfinished: list[asyncio.Future[Any]] = [request for request, _ in requests]
        if upcoming is not None and upcoming.done() and _has_result(upcoming):
            give_back(upcoming.result())
        elif upcoming is not None:
            unfinished.append(upcoming)
        for future in unfinished:
            future.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


def _has_result(done: asyncio.Future[Any]) -> bool:
    return not done.cancelled() and done.exception() is None
