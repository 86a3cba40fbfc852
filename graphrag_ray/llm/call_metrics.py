"""What is measured of models while they are asked, whoever records it: a run, or a service."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphrag_ray.base.index_settings import Model
from graphrag_ray.base.instruments import Instrument, Recorder
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.accounting import CallTotals, Latencies
from graphrag_ray.llm.limits import EndpointState

LATENCY_S = (
    0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 30.0, 45.0, 60.0,
    90.0, 120.0, 180.0, 300.0, 600.0,
)  # fmt: skip
"""Upper ends of the buckets of latencies, seconds."""

_MODEL = ("stage", "model")
_ENDPOINT = ("stage", "model", "endpoint")

CALLS = (
    Instrument("counter", "llm_calls", "Logical calls of a model, with all their attempts", _MODEL),
    Instrument("counter", "llm_calls_failed", "Of these, ended without a reply", _MODEL),
    Instrument("counter", "llm_retries", "Requests that were sent again after a failure", _MODEL),
    Instrument("counter", "llm_hedges", "Second requests for slow calls", _MODEL),
    Instrument("counter", "llm_prompt_tokens", "Tokens of prompts, cached ones included", _MODEL),
    Instrument("counter", "llm_cached_tokens", "Of these, taken from the endpoint's cache", _MODEL),
    Instrument("counter", "llm_completion_tokens", "Tokens of replies", _MODEL),
    Instrument("counter", "llm_cost_usd", "US dollars, as long as every price is known", _MODEL),
)
"""By the accounts."""

ENDPOINTS = (
    Instrument("counter", "llm_requests", "Requests by result: answered, failed", (*_ENDPOINT, "result")),
    Instrument("counter", "llm_rate_limited", "Requests that were answered 429", _ENDPOINT),
    Instrument("counter", "llm_charged_tokens", "Tokens that were charged against the limit", _ENDPOINT),
    Instrument("histogram", "llm_latency_seconds", "Of requests that were answered", _ENDPOINT, LATENCY_S),
    Instrument("gauge", "llm_requests_in_flight", "Requests that are not answered yet", _ENDPOINT),
    Instrument("gauge", "llm_max_in_flight", "The bound on these; no value where rates decide", _ENDPOINT),
    Instrument("gauge", "llm_limit_tokens_per_minute", "The limit that is kept to", _ENDPOINT),
    Instrument("gauge", "llm_limit_requests_per_minute", "The limit that is kept to", _ENDPOINT),
    Instrument("gauge", "llm_pause_seconds", "For so long nothing more is sent there", _ENDPOINT),
)
"""By the limiters. A limiter does not know for which stage a request is: a run has one stage at a time, and
tells it; a service has many, and tells `SERVED`."""

SERVED = "questions"
"""Stands for the stage of what endpoints are asked by a service."""


@dataclass(frozen=True)
class Watched:
    """A model's endpoints, in the order of its settings, in one life of its limiter."""

    model: str
    life: str
    endpoints: Sequence[EndpointState]


class CallMeter:
    """Tells a recorder of what is known as sums so far. models: those with endpoints, by logical name."""

    def __init__(self, recorder: Recorder, models: Mapping[str, Model]) -> None:
        self._recorder = recorder
        self._models = {name: (model.model_id, endpoint_names(model)) for name, model in models.items()}
        self._counted: dict[Hashable, float] = {}

    def rise(self, name: str, so_far: float, labels: Mapping[str, str], of: Hashable = None) -> None:
        """A counter, told its sum so far: what came since it was told last is added. of: what the sum belongs
        to, where that is more than the labels say. A sum that falls is not heard until it has risen again."""
        key = (name, tuple(labels.items()) if of is None else of)
        before = self._counted.get(key, 0.0)
        self._counted[key] = max(before, so_far)
        self._recorder.count(name, max(0.0, so_far - before), labels)

    def set(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        """A gauge; None: nothing is known."""
        if value is not None:
            self._recorder.set(name, value, labels)

    def endpoints(self, stage: str, watched: Watched, over: bool = False) -> None:
        """What a model's limiter saw. What it counted since the last look counts for this stage; over: of
        which nothing is in flight any more."""
        model, endpoints = self._models[watched.model]
        for endpoint, seen in zip(endpoints, watched.endpoints, strict=True):
            labels = {"stage": stage, "model": model, "endpoint": endpoint}
            now = replace(seen, in_flight=0, pause_s=0.0) if over else seen
            of = watched.life, watched.model, endpoint  # a limiter that comes back counts from nothing
            tally = now.tally
            for result, count in (("answered", tally.answered), ("failed", tally.failed)):
                self.rise("llm_requests", count, {**labels, "result": result}, (of, result))
            self.rise("llm_rate_limited", tally.rate_limited, labels, of)
            self.rise("llm_charged_tokens", tally.tokens, labels, of)
            for bucket, so_far in tally.latency.counts.items():
                key = ("llm_latency_seconds", of, bucket)
                for _ in range(so_far - int(self._counted.get(key, 0))):
                    self._recorder.observe("llm_latency_seconds", Latencies.middle_s(bucket), labels)
                self._counted[key] = so_far
            self.set("llm_requests_in_flight", now.in_flight, labels)
            self.set("llm_max_in_flight", now.most_in_flight, labels)
            self.set("llm_limit_tokens_per_minute", now.tokens_per_minute, labels)
            self.set("llm_limit_requests_per_minute", now.requests_per_minute, labels)
            self.set("llm_pause_seconds", now.pause_s, labels)


def sums(totals: CallTotals) -> dict[str, float]:
    """By the names of `CALLS`."""
    return {
        "llm_calls": totals.calls,
        "llm_calls_failed": totals.failed,
        "llm_retries": totals.retries,
        "llm_hedges": totals.hedged,
        "llm_prompt_tokens": totals.prompt_tokens,
        "llm_cached_tokens": totals.cached_tokens,
        "llm_completion_tokens": totals.completion_tokens,
        "llm_cost_usd": totals.cost_usd or 0.0,
    }


def endpoint_names(model: Model) -> list[str]:
    """A name for each endpoint of a model: its address, numbered where another has the same."""
    urls = [display_url(e.base_url) for e in model.endpoints]
    before = [urls[:i].count(url) for i, url in enumerate(urls)]
    return [f"{url} ({n + 1})" if n else url for url, n in zip(urls, before, strict=True)]
