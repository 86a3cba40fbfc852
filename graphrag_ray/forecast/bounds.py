"""What a stage costs, and the least time in which its endpoints can answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphrag_ray.llm.pricing import cost_usd, price_of
from graphrag_ray.messages import Usage
from graphrag_ray.settings import Model


@dataclass(frozen=True, slots=True)
class Volume:
    """What a stage asks for.

    calls                  requests that are sent; prompt_tokens, completion_tokens: of all of them
    items                  dialogues (an embedding call holds many)
    chain                  calls of its longest chain, each of which waits for the one before
    exact                  what is counted and not modelled, for people; "" for nothing
    """

    stage: str
    model: str
    items: float = 0.0
    calls: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    chain: float = 1.0
    exact: str = ""

    def times(self, share: float) -> Volume:
        """A share of it."""
        return Volume(
            self.stage,
            self.model,
            self.items * share,
            self.calls * share,
            self.prompt_tokens * share,
            self.completion_tokens * share,
            self.chain if share else 0.0,
            self.exact,
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """ttft_s: to the first token of a reply; tokens_per_s: after it."""

    ttft_s: float
    tokens_per_s: float

    def of(self, volume: Volume) -> float:
        """Seconds of a call, on average."""
        if not volume.calls:
            return 0.0
        return self.ttft_s + volume.completion_tokens / volume.calls / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class Bound:
    """seconds: the least; by: what makes it so long."""

    seconds: float
    by: str


def bound_of(volume: Volume, model: Model, latency: Latency, default_in_flight: int) -> Bound | None:
    """The least time of a stage at its model's limits, its endpoints working together; None for the
    offline engine. Limits of all endpoints add up where each of them has one.

    Without any limit, `default_in_flight` calls per endpoint are at work at once.
    """
    if model.provider == "offline":
        return None
    if not volume.calls:
        return Bound(0.0, "nothing to do")
    ends = model.endpoints
    tpm = _sum([e.tokens_per_minute for e in ends])
    rpm = _sum([e.requests_per_minute for e in ends])
    in_flight = _sum(
        [
            e.max_in_flight or (None if e.tokens_per_minute or e.requests_per_minute else default_in_flight)
            for e in ends
        ]
    )
    seconds = latency.of(volume)
    bounds = [Bound(volume.chain * seconds, "one call after another")]
    if tpm:
        tokens = volume.prompt_tokens + volume.completion_tokens
        bounds.append(Bound(tokens / tpm * 60, "tokens per minute"))
    if rpm:
        bounds.append(Bound(volume.calls / rpm * 60, "requests per minute"))
    if in_flight:
        bounds.append(Bound(volume.calls * seconds / in_flight, f"{in_flight:g} calls in flight"))
    return max(bounds, key=lambda b: b.seconds)


def has_limit(model: Model) -> bool:
    """Whether every endpoint of the model has a limit in the settings."""
    return all(e.tokens_per_minute or e.requests_per_minute or e.max_in_flight for e in model.endpoints)


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
