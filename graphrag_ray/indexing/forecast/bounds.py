"""Compute the cost of a stage, and the time that it takes at the rate limits of its endpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.messages import Usage
from graphrag_ray.llm.accounting import CombinedLimits, sum_known
from graphrag_ray.llm.pricing import cost_usd, price_of

TTFT_S, TOKENS_PER_S = 0.5, 60.0
SLOW_SHARE, SLOW_FACTOR, HEDGED_FACTOR = 0.01, 5.0, 2.0
MIN_CALLS = 30  # minimum number of calls that show how latency depends on length
_SUMMED = ("items", "calls", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class Volume:
    """The requests of a stage.

    Attributes:
        model: Logical name of the model.
        items: Number of dialogues. An embedding call contains many.
        calls: Number of requests; `prompt_tokens` and `completion_tokens` are their totals.
        chain: Length of the longest chain of calls in which each waits for the previous one.
        last: Mean tokens of the last replies of dialogues; None if these are as long as the others.
        exact: A note for display on which numbers are counted rather than modelled.
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
        """Add the volume of a stage that runs at the same time."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMMED}
        return replace(self, chain=max(self.chain, other.chain), **sums)

    def times(self, share: float) -> Volume:
        parts = {name: getattr(self, name) * share for name in _SUMMED}
        return replace(self, chain=self.chain if share else 0.0, **parts)


@dataclass(frozen=True)
class Replies:
    """Calls with one prompt, as counted by the endpoint, in arrays [n], and their source for display."""

    prompt_tokens: npt.NDArray[np.float64]
    completion_tokens: npt.NDArray[np.float64]
    latency_s: npt.NDArray[np.float64]
    source: str

    @property
    def n(self) -> int:
        return len(self.completion_tokens)


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of calls. A share of calls takes `slow_factor` times as long as others of that length."""

    ttft_s: float
    tokens_per_s: float
    slow_share: float = 0.0
    slow_factor: float = 1.0

    def mean_s(self, volume: Volume) -> float:
        if not volume.calls:
            return 0.0
        return self.ttft_s + volume.completion_tokens / volume.calls / self.tokens_per_s

    def drain_s(self, volume: Volume, calls_per_s: float) -> float:
        """Return the median time from sending the last call until all calls are answered.

        Calls are sent at an even rate r with random latencies, so t seconds after the last one the number of
        calls in flight is Poisson with mean r E[(latency - t)+]. The median is the t at which this is ln 2.
        """
        if not volume.calls or not calls_per_s:
            return 0.0
        tokens = volume.completion_tokens / volume.calls if volume.last is None else volume.last
        mean = self.ttft_s + tokens / self.tokens_per_s
        typical = mean / (1.0 + self.slow_share * (self.slow_factor - 1.0))
        slow, target = typical * self.slow_factor, math.log(2.0) / calls_per_s
        if self.slow_share * (slow - typical) >= target:
            return slow - target / self.slow_share
        return max(0.0, mean - target)


def fit_latency(
    replies: Mapping[str, Replies], take: Callable[[str, float, str], float], hedge: bool
) -> Latency:
    """Fit the latency to measured calls, or assume it if these are too few or all have the same length."""
    chats = [r for name, r in replies.items() if name != "embed" and r.n]
    tokens, seconds = (
        np.concatenate([np.zeros(0), *(getattr(r, n) for r in chats)])
        for n in ("completion_tokens", "latency_s")
    )
    ttft_s, tokens_per_s, source = TTFT_S, TOKENS_PER_S, "assumed"
    if len(tokens) >= MIN_CALLS and tokens.std() >= 1.0:
        slope, intercept = np.polyfit(tokens, seconds, 1)
        if slope > 0 and intercept >= 0:
            source = f"measured on {len(tokens):,} calls"
            ttft_s, tokens_per_s = float(intercept), float(1 / slope)
    # A hedged call takes about as long as two typical ones.
    factor, slow_source = (HEDGED_FACTOR, "assumed, hedged") if hedge else (SLOW_FACTOR, "assumed")
    return Latency(
        take("ttft_s", ttft_s, source),
        take("tokens_per_s", tokens_per_s, source),
        take("slow_share", SLOW_SHARE, slow_source),
        take("slow_factor", factor, slow_source),
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """The seconds that a stage takes, and what limits it."""

    seconds: float
    limited_by: str


def estimate_bound(volume: Volume, model: Model, latency: Latency, initial_in_flight: int) -> Bound | None:
    """Compute the time of a stage at its model's limits, using all endpoints. Returns None for a local model.

    It is the minimum that the limits allow, plus the time that slow calls take at the end, plus the remaining
    calls of a chain, such as reports that contain other reports. Limits add up if every endpoint has one. An
    endpoint without any limit processes `initial_in_flight` calls at the same time.
    """
    if model.is_local:
        return None
    if not volume.calls:
        return Bound(0.0, "nothing to do")
    seconds, limits = latency.mean_s(volume), CombinedLimits.of(model)
    in_flight = sum_known(
        [
            e.max_in_flight or (None if e.tokens_per_minute or e.requests_per_minute else initial_in_flight)
            for e in model.endpoints
        ]
    )
    bounds = [Bound(volume.chain * seconds, "sequential calls")]
    if limits.tokens_per_minute:
        tokens = volume.prompt_tokens + volume.completion_tokens
        bounds.append(Bound(tokens / limits.tokens_per_minute * 60, "tokens per minute"))
    if limits.requests_per_minute:
        bounds.append(Bound(volume.calls / limits.requests_per_minute * 60, "requests per minute"))
    if in_flight:
        bounds.append(Bound(volume.calls * seconds / in_flight, f"{in_flight:g} calls in flight"))
    longest = max(bounds, key=lambda b: b.seconds)
    tail_s = latency.drain_s(volume, volume.calls / longest.seconds) if longest.seconds else 0.0
    if longest is not bounds[0] and volume.last is None:
        tail_s += (volume.chain - 1.0) * seconds
    return Bound(longest.seconds + tail_s, longest.limited_by)


def estimate_cost(volume: Volume, model: Model) -> float | None:
    """Return the cost in US dollars, averaged over endpoints, or None if a price is unknown."""
    if not volume.calls:
        return 0.0
    usage = Usage(round(volume.prompt_tokens), round(volume.completion_tokens))
    costs = [cost_usd(usage, price_of(model, e)) for e in (model.endpoints or (None,))]
    total = sum_known(costs)
    return None if total is None else total / len(costs)
