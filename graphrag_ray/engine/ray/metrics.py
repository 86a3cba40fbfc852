"""Metrics through Ray's metrics API.

The Ray agent on each node serves them to Prometheus as `ray_graphrag_ray_<name>`; counters end in `_total`.
Gauges disappear if they are not set for 20 s.

The driver of a run records all metrics of the run: the merged accounts of a sweep, its queue, and the state
of the endpoints according to the limiters. Restarted workers or limiters therefore count nothing twice, and
workers spend no time on metrics.

Each replica of a service records its questions and their calls under the same names, with the application
instead of the run. Endpoint metrics come from the process that applies the limits: a single replica, or the
limiter that all replicas share (`limiter_actors.py`). Sums over replicas are therefore correct.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import metrics as ray_metrics

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.instruments import PREFIX, Instrument
from graphrag_ray.engine.executor import SweepResult
from graphrag_ray.llm.call_metrics import CALL_METRICS, ENDPOINT_METRICS, CallMeter, metric_values

UPDATE_S = 2.0
"""Minimum time between updates. Ray sends metrics to the agent every ten seconds."""
LIMITER_TIMEOUT_S = 5.0
"""How long to wait for the limiters at the end of a sweep."""
FIRST_VALUE = sys.float_info.min
"""Initial value of a counter. Prometheus does not count a series' first value as an increase, so a counter
must exist before its first count. Ray does not accept zero, and this value is negligible in any sum."""

_STAGE = ("stage",)

DECLARED = (
    Instrument("counter", "items", "Items that ended: result complete, failed", ("stage", "result")),
    Instrument("gauge", "items_expected", "Items of the stage, ended or not, where known", _STAGE),
    Instrument("gauge", "queue_items", "Items by state: waiting for a worker, leased", ("stage", "state")),
    Instrument("gauge", "workers", "LLM workers, without those that are about to leave", _STAGE),
    Instrument("counter", "leases_reissued", "Items handed out again because their worker was lost", _STAGE),
    Instrument("gauge", "journal_lag_seconds", "Age of the oldest reply that is not journalled", _STAGE),
    *CALL_METRICS,
    *ENDPOINT_METRICS,
)


class RunMetrics:
    """The metrics of one run. `models` contains the models with endpoints, by logical name."""

    def __init__(self, run: str, models: Mapping[str, Model]) -> None:
        self._meter = CallMeter(RayRecorder((DECLARED, {"run": run})), models)
        self._ended = Counter[str]()  # finished items of earlier sweeps, by stage

    def begin(self, stage: str, limiters: Sequence[Any]) -> None:
        """Begin a sweep. A stage may have several."""
        self._stage, self._limiters = stage, limiters
        self._pending: list[Any] = []
        self._updated_at, self._sweep = -math.inf, object()
        self._total: int | None = None

    def update(
        self, sweep: SweepResult, total: int | None, waiting: int, leased: int, lag_s: float, workers: int
    ) -> None:
        """Record the state of a sweep with `total` items, at most once every UPDATE_S."""
        now = time.monotonic()
        if now - self._updated_at < UPDATE_S:
            return
        self._updated_at, self._total = now, total
        self._record(sweep, waiting, leased, lag_s, workers)
        if self._pending and not ray.wait(self._pending, num_returns=len(self._pending), timeout=0)[1]:
            self._record_endpoints()
        if not self._pending:
            self._pending = [limiter.endpoint_states.remote() for limiter in self._limiters]

    def end(self, sweep: SweepResult) -> None:
        """Record the result of a sweep."""
        self._record(sweep, 0, 0, 0.0, 0)
        self._ended[self._stage] += sweep.finished
        with suppress(RayError):
            self._pending = [limiter.endpoint_states.remote() for limiter in self._limiters]
            self._record_endpoints(finished=True)

    def _record_endpoints(self, finished: bool = False) -> None:
        pending, self._pending = self._pending, []
        with suppress(RayError):  # a limiter is gone; the next update tries again
            for watched in ray.get(pending, timeout=LIMITER_TIMEOUT_S):
                self._meter.endpoints(self._stage, watched, finished)

    def _record(self, sweep: SweepResult, waiting: int, leased: int, lag_s: float, workers: int) -> None:
        meter, labels = self._meter, {"stage": self._stage}
        for result, items in (("complete", sweep.finished - sweep.failed), ("failed", sweep.failed)):
            meter.count_up_to("items", items, {**labels, "result": result}, (self._sweep, result))
        if self._total is not None:
            meter.set("items_expected", self._ended[self._stage] + self._total, labels)
        meter.set("queue_items", waiting, {**labels, "state": "waiting"})
        meter.set("queue_items", leased, {**labels, "state": "leased"})
        meter.set("workers", workers, labels)
        meter.count_up_to("leases_reissued", sweep.reissued, labels, self._sweep)
        meter.set("journal_lag_seconds", lag_s, labels)
        for (stage, model), totals in sweep.accounts.by_stage.items():
            for name, so_far in metric_values(totals).items():
                meter.count_up_to(name, so_far, {"stage": stage, "model": model}, (self._sweep, stage, model))


class RayRecorder:
    """A recorder that uses Ray's metrics API. Must be created in a process connected to Ray.

    Each group of `declared` instruments comes with its common labels, such as the run or the replica.
    """

    def __init__(self, *declared: tuple[Iterable[Instrument], Mapping[str, str]]) -> None:
        self._metrics: dict[str, tuple[Any, Mapping[str, str]]] = {}
        self._begun: set[tuple[str, ...]] = set()
        classes = {"counter": ray_metrics.Counter, "gauge": ray_metrics.Gauge}
        for instruments, common in declared:
            for d in instruments:
                name, labels = PREFIX + d.name, (*common, *d.labels)
                if d.kind == "histogram":
                    metric = ray_metrics.Histogram(name, d.description, list(d.buckets), labels)
                else:
                    metric = classes[d.kind](name, d.description, tag_keys=labels)
                self._metrics[d.name] = metric, common

    def count(self, name: str, by: float, labels: Mapping[str, str]) -> None:
        """Increase a counter. An increase by zero creates the series."""
        metric, common = self._metrics[name]
        tags = {**common, **labels}
        if (series := (name, *tags.values())) not in self._begun:
            self._begun.add(series)
            metric.inc(FIRST_VALUE, tags)
        if by > 0:
            metric.inc(by, tags)

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        metric, common = self._metrics[name]
        metric.observe(value, {**common, **labels})

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        metric, common = self._metrics[name]
        metric.set(value, {**common, **labels})
