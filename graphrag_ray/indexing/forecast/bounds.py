"""What a stage costs, and the time in which its endpoints answer it: the least that limits allow, and what
is lost when there is nothing left to send and the slow calls are waited for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Model
from graphrag_ray.base.messages import Usage
from graphrag_ray.llm.pricing import cost_usd, price_of

TTFT_S, TOKENS_PER_S = 0.5, 60.0
SLOW_SHARE, SLOW_FACTOR, HEDGED_FACTOR = 0.01, 5.0, 2.0
MIN_CALLS = 30
"""Fewer calls do not tell how latency follows length."""


@dataclass(frozen=True, slots=True)
class Volume:
    """What a stage asks for.

    calls                  requests that are sent; prompt_tokens, completion_tokens: of all of them
    items                  dialogues (an embedding call holds many)
    chain                  calls of its longest chain, each of which waits for the one before
    last                   tokens of the replies that come last; None: as long as the others
    exact                  what is counted and not modelled, for people; "" for nothing
    """

    stage: str
    model: str
    items: float = 0.0
    calls: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    chain: float = 1.0
    last: float | None = None
    exact: str = ""

    def plus(self, other: Volume) -> Volume:
        """Both, side by side: the longer chain is that of both."""
        sums = {n: getattr(self, n) + getattr(other, n) for n in _SUMMED}
        return replace(self, chain=max(self.chain, other.chain), **sums)

    def times(self, share: float) -> Volume:
        parts = {n: getattr(self, n) * share for n in _SUMMED}
        return replace(self, chain=self.chain if share else 0.0, **parts)


_SUMMED = ("items", "calls", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True)
class Replies:
    """The calls of one prompt: [n] each, as the endpoint counted. source: whose calls, for people."""

    prompt_tokens: npt.NDArray[np.float64]
    completion_tokens: npt.NDArray[np.float64]
    latency_s: npt.NDArray[np.float64]
    source: str

    @property
    def n(self) -> int:
        return len(self.completion_tokens)


@dataclass(frozen=True, slots=True)
class Latency:
    """ttft_s: to the first token of a reply; tokens_per_s: after it. slow_share: of calls, which take
    slow_factor times as long as others of their length."""

    ttft_s: float
    tokens_per_s: float
    slow_share: float = 0.0
    slow_factor: float = 1.0

    def of(self, volume: Volume) -> float:
        """Seconds of a call, on average."""
        if not volume.calls:
            return 0.0
        return self.ttft_s + volume.completion_tokens / volume.calls / self.tokens_per_s

    def drain_s(self, volume: Volume, calls_per_s: float) -> float:
        """Seconds from the last call that is sent until all are answered, at the median.

        Calls are sent at an even rate r and take as long as chance wants: t seconds after the last, those
        still out are a Poisson number of mean r E[(latency - t)+]. That is ln 2 at the t wanted.
        """
        if not volume.calls or not calls_per_s:
            return 0.0
        tokens = volume.completion_tokens / volume.calls if volume.last is None else volume.last
        mean = self.ttft_s + tokens / self.tokens_per_s
        usual = mean / (1.0 + self.slow_share * (self.slow_factor - 1.0))
        slow, wanted = usual * self.slow_factor, math.log(2.0) / calls_per_s
        if self.slow_share * (slow - usual) >= wanted:
            return slow - wanted / self.slow_share
        return max(0.0, mean - wanted)


def latency_of(
    replies: Mapping[str, Replies], take: Callable[[str, float, str], float], hedge: bool
) -> Latency:
    """From the calls that were made, where they tell (not too few, nor all of one length), else as assumed.

    take: notes an assumption's name, value and source
    """
    chats = [r for name, r in replies.items() if name != "embed" and r.n]
    x, y = (
        np.concatenate([np.zeros(0), *(getattr(r, n) for r in chats)])
        for n in ("completion_tokens", "latency_s")
    )
    ttft_s, tokens_per_s, source = TTFT_S, TOKENS_PER_S, "assumed"
    if len(x) >= MIN_CALLS and x.std() >= 1.0:
        slope, intercept = np.polyfit(x, y, 1)
        if slope > 0 and intercept >= 0:
            ttft_s, tokens_per_s, source = float(intercept), float(1 / slope), f"measured on {len(x):,} calls"
    # A second request follows when a call is about as slow as any usual one.
    factor, slow_source = (HEDGED_FACTOR, "assumed, hedged") if hedge else (SLOW_FACTOR, "assumed")
    return Latency(
        take("ttft_s", ttft_s, source),
        take("tokens_per_s", tokens_per_s, source),
        take("slow_share", SLOW_SHARE, slow_source),
        take("slow_factor", factor, slow_source),
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """seconds: that it takes; by: what makes it so long."""

    seconds: float
    by: str


def bound_of(volume: Volume, model: Model, latency: Latency, default_in_flight: int) -> Bound | None:
    """The time of a stage at its model's limits, its endpoints working together; None for a local one.
    Limits of all endpoints add up where each of them has one.

    The least that limits allow, then the slow ones of its last calls, and then those that wait for these:
    the rest of a chain (of reports that hold others, say).

    Without any limit, `default_in_flight` calls per endpoint are at work at once.
    """
    if model.is_local:
        return None
    if not volume.calls:
        return Bound(0.0, "nothing to do")
    ends, seconds = model.endpoints, latency.of(volume)
    tpm = _sum([e.tokens_per_minute for e in ends])
    rpm = _sum([e.requests_per_minute for e in ends])
    in_flight = _sum(
        [
            e.max_in_flight or (None if e.tokens_per_minute or e.requests_per_minute else default_in_flight)
            for e in ends
        ]
    )
    bounds = [Bound(volume.chain * seconds, "one call after another")]
    if tpm:
        tokens = volume.prompt_tokens + volume.completion_tokens
        bounds.append(Bound(tokens / tpm * 60, "tokens per minute"))
    if rpm:
        bounds.append(Bound(volume.calls / rpm * 60, "requests per minute"))
    if in_flight:
        bounds.append(Bound(volume.calls * seconds / in_flight, f"{in_flight:g} calls in flight"))
    least = max(bounds, key=lambda b: b.seconds)
    after = latency.drain_s(volume, volume.calls / least.seconds) if least.seconds else 0.0
    if least is not bounds[0] and volume.last is None:
        after += (volume.chain - 1.0) * seconds
    return Bound(least.seconds + after, least.by)


def cost_of(volume: Volume, model: Model) -> float | None:
    """US dollars; None where a price is unknown. Of endpoints with different prices, their mean."""
    if not volume.calls:
        return 0.0
    usage = Usage(round(volume.prompt_tokens), round(volume.completion_tokens))
    costs = [cost_usd(usage, price_of(model, e)) for e in (model.endpoints or (None,))]
    known = [c for c in costs if c is not None]
    return sum(known) / len(known) if len(known) == len(costs) else None


def _sum(limits: Sequence[float | None]) -> float | None:
    known = [limit for limit in limits if limit is not None]
    return sum(known) if known and len(known) == len(limits) else None
