"""Metrics through Ray's metrics API: the agent of a process's node serves them to Prometheus, as
`ray_graphrag_ray_<name>`, counters with `_total` behind it.

Those of a run are recorded by its driver, every few seconds, from what it is told anyway: the merged accounts
of a sweep, its queue, and what the limiters see of the endpoints. So nothing is counted twice where a worker,
a coordinator or a limiter comes back, workers spend nothing on them, and a run leaves one set of counters
with the agent, which keeps them for good, however many processes it had. A gauge that is not set goes after
20 s. Those of the service are recorded by each replica.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import metrics as ray_metrics

from graphrag_ray.distributed.limits import Watched
from graphrag_ray.engine.executor import Sweep
from graphrag_ray.instruments import PREFIX, Instrument
from graphrag_ray.llm.accounting import Latencies, Totals
from graphrag_ray.llm.limits import Seen
from graphrag_ray.settings import Model
from graphrag_ray.urls import display_url

EVERY_S = 2.0
"""Between looks. Ray's processes hand what was recorded to their agent every ten seconds."""

ANSWERED_WITHIN_S = 5.0
"""Limiters that say nothing at the end of a sweep are not waited for any longer."""

LATENCY_S = (
    0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 30.0, 45.0, 60.0,
    90.0, 120.0, 180.0, 300.0, 600.0,
)  # fmt: skip
"""Upper ends of the buckets of latencies, seconds."""


NOTHING = sys.float_info.min
"""What a counter begins with, so that Prometheus sees it rise: the first value that it finds is no increase.
Ray takes no zero; this one vanishes in any sum."""

_STAGE = ("stage",)
_MODEL = ("stage", "model")
_ENDPOINT = ("stage", "model", "endpoint")

DECLARED = (
    Instrument("counter", "items", "Items that ended: result complete, failed", ("stage", "result")),
    Instrument("gauge", "items_expected", "Items of the stage, ended or not, where known", _STAGE),
    Instrument("gauge", "queue_items", "Items by state: waiting for a worker, leased", ("stage", "state")),
    Instrument("gauge", "workers", "LLM workers, without those that are about to leave", _STAGE),
    Instrument("counter", "leases_reissued", "Items handed out again, since their worker was lost", _STAGE),
    Instrument("gauge", "journal_lag_seconds", "For how long some reply has not been journalled", _STAGE),
    Instrument("counter", "llm_calls", "Logical calls of a model, with all their attempts", _MODEL),
    Instrument("counter", "llm_calls_failed", "Of these, ended without a reply", _MODEL),
    Instrument("counter", "llm_retries", "Requests that were sent again after a failure", _MODEL),
    Instrument("counter", "llm_hedges", "Second requests for slow calls", _MODEL),
    Instrument("counter", "llm_prompt_tokens", "Tokens of prompts, cached ones included", _MODEL),
    Instrument("counter", "llm_cached_tokens", "Of these, taken from the endpoint's cache", _MODEL),
    Instrument("counter", "llm_completion_tokens", "Tokens of replies", _MODEL),
    Instrument("counter", "llm_cost_usd", "US dollars, as long as every price is known", _MODEL),
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


class Metrics:
    """What one run records. models: those with endpoints, by logical name.

    items   that ended in earlier sweeps of each stage
    """

    def __init__(self, run: str, models: Mapping[str, Model]) -> None:
        self._run = run
        self._models = {name: (model.model_id, endpoint_names(model)) for name, model in models.items()}
        self._metrics = {d.name: made(d, "run") for d in DECLARED}
        self._counted: dict[Hashable, float] = {}
        self.items: Counter[str] = Counter()

    def rise(self, name: str, so_far: float, labels: Mapping[str, str], of: Hashable = None) -> None:
        """A counter, told its sum so far: what came since it was told last is added. of: what the sum belongs
        to, where that is more than the labels say. A sum that falls is not heard until it has risen again."""
        key = (name, tuple(labels.items()) if of is None else of)
        before = self._counted.get(key, 0.0)
        self._counted[key] = max(before, so_far)
        self._metrics[name].inc(max(0.0, so_far - before), {"run": self._run, **labels})

    def set(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        """A gauge; None: nothing is known."""
        if value is not None:
            self._metrics[name].set(value, {"run": self._run, **labels})

    def spread(self, name: str, so_far: Latencies, labels: Mapping[str, str], of: Hashable) -> None:
        """A histogram, told all durations so far."""
        observe, tags = self._metrics[name].observe, {"run": self._run, **labels}
        for bucket, count in so_far.counts.items():
            key = (name, of, bucket)
            for _ in range(count - int(self._counted.get(key, 0))):
                observe(Latencies.middle_s(bucket), tags)
            self._counted[key] = count

    def endpoints(self, stage: str, watched: Watched, over: bool) -> None:
        """What a model's limiter saw. What it counted since the last look counts for this stage; over: of
        which nothing is in flight any more."""
        model, endpoints = self._models[watched.model]
        for endpoint, seen in zip(endpoints, watched.endpoints, strict=True):
            labels = {"stage": stage, "model": model, "endpoint": endpoint}
            now = replace(seen, in_flight=0, pause_s=0.0) if over else seen
            # A limiter that comes back counts from nothing.
            self._endpoint(now, labels, (watched.life, watched.model, endpoint))

    def _endpoint(self, seen: Seen, labels: Mapping[str, str], of: Hashable) -> None:
        tally = seen.tally
        for result, count in (("answered", tally.answered), ("failed", tally.failed)):
            self.rise("llm_requests", count, {**labels, "result": result}, (of, result))
        self.rise("llm_rate_limited", tally.rate_limited, labels, of)
        self.rise("llm_charged_tokens", tally.tokens, labels, of)
        self.spread("llm_latency_seconds", tally.latency, labels, of)
        self.set("llm_requests_in_flight", seen.in_flight, labels)
        self.set("llm_max_in_flight", seen.most_in_flight, labels)
        self.set("llm_limit_tokens_per_minute", seen.tokens_per_minute, labels)
        self.set("llm_limit_requests_per_minute", seen.requests_per_minute, labels)
        self.set("llm_pause_seconds", seen.pause_s, labels)


@dataclass(frozen=True)
class Queue:
    """Items of a sweep, and who works on them. total: None where it is not known; waiting: for a worker;
    leased: with one."""

    total: int | None
    waiting: int
    leased: int
    lag_s: float
    workers: int


class SweepMetrics:
    """The metrics of one sweep, a stage's or a part of one's."""

    def __init__(self, metrics: Metrics, stage: str, limiters: Sequence[Any]) -> None:
        self._metrics, self._stage, self._limiters = metrics, stage, limiters
        self._asked: list[Any] = []
        self._looked_at = -math.inf
        self._sweep = object()
        self._total: int | None = None

    def look(self, sweep: Sweep, queue: Queue) -> None:
        """Record how it goes, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked_at < EVERY_S:
            return
        self._looked_at = now
        self._record(sweep, queue)
        if self._asked and not ray.wait(self._asked, num_returns=len(self._asked), timeout=0)[1]:
            self._hear()
        if not self._asked:
            self._asked = [limiter.watched.remote() for limiter in self._limiters]

    def end(self, sweep: Sweep) -> None:
        """Record what it came to."""
        self._record(sweep, Queue(self._total, 0, 0, 0.0, 0))
        self._metrics.items[self._stage] += sweep.finished
        with suppress(RayError):
            self._asked = [limiter.watched.remote() for limiter in self._limiters]
            self._hear(over=True)

    def _hear(self, over: bool = False) -> None:
        asked, self._asked = self._asked, []
        with suppress(RayError):  # a limiter that is gone: another look will tell
            for watched in ray.get(asked, timeout=ANSWERED_WITHIN_S):
                self._metrics.endpoints(self._stage, watched, over)

    def _record(self, sweep: Sweep, queue: Queue) -> None:
        metrics, of = self._metrics, {"stage": self._stage}
        done = (("complete", sweep.finished - sweep.failed), ("failed", sweep.failed))
        for result, count in done:
            metrics.rise("items", count, {**of, "result": result}, (self._sweep, result))
        self._total = queue.total
        if queue.total is not None:
            metrics.set("items_expected", metrics.items[self._stage] + queue.total, of)
        metrics.set("queue_items", queue.waiting, {**of, "state": "waiting"})
        metrics.set("queue_items", queue.leased, {**of, "state": "leased"})
        metrics.set("workers", queue.workers, of)
        metrics.rise("leases_reissued", sweep.reissued, of, self._sweep)
        metrics.set("journal_lag_seconds", queue.lag_s, of)
        for (stage, model), totals in sweep.accounts.by_stage.items():
            self._totals(totals, {"stage": stage, "model": model})

    def _totals(self, totals: Totals, labels: Mapping[str, str]) -> None:
        counts = {
            "calls": totals.calls,
            "calls_failed": totals.failed,
            "retries": totals.retries,
            "hedges": totals.hedged,
            "prompt_tokens": totals.prompt_tokens,
            "cached_tokens": totals.cached_tokens,
            "completion_tokens": totals.completion_tokens,
            "cost_usd": totals.cost_usd or 0.0,
        }
        for name, so_far in counts.items():
            self._metrics.rise(f"llm_{name}", so_far, labels, (self._sweep, *labels.values()))


class ReplicaMetrics:
    """What a process that answers records, beside others: all have its labels (application, replica). To be
    made in a process of Ray."""

    def __init__(self, declared: Iterable[Instrument], labels: Mapping[str, str]) -> None:
        self._metrics = {d.name: made(d, *labels) for d in declared}
        self._labels = dict(labels)

    def count(self, name: str, by: float, labels: Mapping[str, str]) -> None:
        self._metrics[name].inc(by, {**self._labels, **labels})

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._metrics[name].observe(value, {**self._labels, **labels})

    def set(self, name: str, value: float) -> None:
        self._metrics[name].set(value, self._labels)


class Rising:
    """A counter of Ray's API all of whose series begin with nothing."""

    def __init__(self, counter: ray_metrics.Counter) -> None:
        self._counter = counter
        self._begun: set[tuple[str, ...]] = set()

    def inc(self, by: float, tags: dict[str, str]) -> None:
        """By zero, too: then there is a series."""
        if (series := tuple(tags.values())) not in self._begun:
            self._begun.add(series)
            self._counter.inc(NOTHING, tags)
        if by > 0:
            self._counter.inc(by, tags)


def endpoint_names(model: Model) -> list[str]:
    """A name for each endpoint of a model: its address, numbered where another has the same."""
    urls = [display_url(e.base_url) for e in model.endpoints]
    before = [urls[:i].count(url) for i, url in enumerate(urls)]
    return [f"{url} ({n + 1})" if n else url for url, n in zip(urls, before, strict=True)]


def made(declared: Instrument, *common: str) -> Any:
    """A metric of Ray's API. common: labels that all have."""
    name, labels = PREFIX + declared.name, (*common, *declared.labels)
    if declared.kind == "histogram":
        return ray_metrics.Histogram(name, declared.about, list(declared.buckets), labels)
    if declared.kind == "gauge":
        return ray_metrics.Gauge(name, declared.about, labels)
    return Rising(ray_metrics.Counter(name, declared.about, labels))
