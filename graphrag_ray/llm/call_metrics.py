"""Metrics of model calls, recorded by a run or by a service."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.instruments import Instrument, Recorder
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.accounting import CallTotals, Latencies
from graphrag_ray.llm.limits import EndpointState

# Upper bounds of the latency buckets, in seconds.
LATENCY_S = (
    0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 30.0, 45.0, 60.0,
    90.0, 120.0, 180.0, 300.0, 600.0,
)  # fmt: skip

_MODEL = ("stage", "model")
_ENDPOINT = ("stage", "model", "endpoint")

CALL_METRICS = (
    Instrument("counter", "llm_calls", "Logical calls of a model, each with all its attempts", _MODEL),
    Instrument("counter", "llm_calls_failed", "Logical calls that ended without a reply", _MODEL),
    Instrument("counter", "llm_retries", "Requests sent again after a failure", _MODEL),
    Instrument("counter", "llm_hedges", "Additional requests sent because a call was slow", _MODEL),
    Instrument("counter", "llm_prompt_tokens", "Prompt tokens, including cached ones", _MODEL),
    Instrument("counter", "llm_cached_tokens", "Prompt tokens served from the endpoint's cache", _MODEL),
    Instrument("counter", "llm_completion_tokens", "Completion tokens", _MODEL),
    Instrument("counter", "llm_cost_usd", "Cost in US dollars, if every price is known", _MODEL),
)

ENDPOINT_METRICS = (
    Instrument("counter", "llm_requests", "Requests by result: answered or failed", (*_ENDPOINT, "result")),
    Instrument("counter", "llm_rate_limited", "Requests answered with 429", _ENDPOINT),
    Instrument("counter", "llm_charged_tokens", "Tokens charged against the limit", _ENDPOINT),
    Instrument("histogram", "llm_latency_seconds", "Latency of answered requests", _ENDPOINT, LATENCY_S),
    Instrument("gauge", "llm_requests_in_flight", "Requests in flight", _ENDPOINT),
    Instrument(
        "gauge", "llm_max_in_flight", "Bound on requests in flight; absent if rates decide", _ENDPOINT
    ),
    Instrument("gauge", "llm_limit_tokens_per_minute", "Token limit in use", _ENDPOINT),
    Instrument("gauge", "llm_limit_requests_per_minute", "Request limit in use", _ENDPOINT),
    Instrument("gauge", "llm_pause_seconds", "Seconds for which requests are paused", _ENDPOINT),
)

# A limiter does not know a request's stage. A run has one stage at a time; a service uses this label instead.
SERVICE_STAGE = "questions"


@dataclass(frozen=True)
class WatchedEndpoints:
    """A model's endpoints, in the order of the settings. `life` identifies one incarnation of the limiter."""

    model: str
    life: str
    endpoints: Sequence[EndpointState]


class CallMeter:
    """Reports running totals to a recorder. `models` contains the models with endpoints, by logical name."""

    def __init__(self, recorder: Recorder, models: Mapping[str, Model]) -> None:
        self._recorder = recorder
        self._models = {name: (model.model_id, endpoint_names(model)) for name, model in models.items()}
        self._counted: dict[Hashable, float] = {}

    def count_up_to(self, name: str, so_far: float, labels: Mapping[str, str], of: Hashable = None) -> None:
        """Raise a counter to a running total. `of` identifies the total if the labels do not suffice."""
        key = (name, tuple(labels.items()) if of is None else of)
        previous = self._counted.get(key, 0.0)
        self._counted[key] = max(previous, so_far)
        self._recorder.count(name, max(0.0, so_far - previous), labels)

    def set(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        """Set a gauge, unless its value is unknown."""
        if value is not None:
            self._recorder.set(name, value, labels)

    def endpoints(self, stage: str, watched: WatchedEndpoints, finished: bool = False) -> None:
        """Report the state of a model's endpoints. `finished` means that nothing is in flight any more."""
        model, endpoints = self._models[watched.model]
        for endpoint, seen in zip(endpoints, watched.endpoints, strict=True):
            labels = {"stage": stage, "model": model, "endpoint": endpoint}
            now = replace(seen, in_flight=0, pause_s=0.0) if finished else seen
            of = watched.life, watched.model, endpoint  # A restarted limiter counts from zero.
            tally = now.tally
            for result, count in (("answered", tally.answered), ("failed", tally.failed)):
                self.count_up_to("llm_requests", count, {**labels, "result": result}, (of, result))
            self.count_up_to("llm_rate_limited", tally.rate_limited, labels, of)
            self.count_up_to("llm_charged_tokens", tally.tokens, labels, of)
            for bucket, so_far in tally.latency.counts.items():
                key = ("llm_latency_seconds", of, bucket)
                for _ in range(so_far - int(self._counted.get(key, 0))):
                    self._recorder.observe("llm_latency_seconds", Latencies.midpoint_s(bucket), labels)
                self._counted[key] = so_far
            self.set("llm_requests_in_flight", now.in_flight, labels)
            self.set("llm_max_in_flight", now.max_in_flight, labels)
            self.set("llm_limit_tokens_per_minute", now.tokens_per_minute, labels)
            self.set("llm_limit_requests_per_minute", now.requests_per_minute, labels)
            self.set("llm_pause_seconds", now.pause_s, labels)


def metric_values(totals: CallTotals) -> dict[str, float]:
    """Return the totals by the names of `CALL_METRICS`."""
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
    """Name each endpoint of a model by its address, with a number if several endpoints share it."""
    urls = [display_url(e.base_url) for e in model.endpoints]
    n_earlier = [urls[:i].count(url) for i, url in enumerate(urls)]
    return [f"{url} ({n + 1})" if n else url for url, n in zip(urls, n_earlier, strict=True)]
