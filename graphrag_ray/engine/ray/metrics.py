"""Metrics through Ray's metrics API: the agent of a process's node serves them to Prometheus, as
`ray_graphrag_ray_<name>`, counters with `_total` behind it.

Those of a run are recorded by its driver, every few seconds, from what it is told anyway: the merged accounts
of a sweep, its queue, and what the limiters see of the endpoints. So nothing is counted twice where a worker
or a limiter comes back, workers spend nothing on them, and a run leaves one set of counters
with the agent, which keeps them for good, however many processes it had. A gauge that is not set goes after
20 s.

Those of a service are recorded by each replica: its questions, and the calls for them, under the names that a
run has for these, with the application in the place of the run. Of endpoints, whoever holds their limits
tells: the replica where it is alone, else the limiter that all share (`limiter_actors.py`). So sums over
replicas are right.
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

from graphrag_ray.base.index_settings import Model
from graphrag_ray.base.instruments import PREFIX, Instrument
from graphrag_ray.engine.executor import Sweep
from graphrag_ray.llm.call_metrics import CALLS, ENDPOINTS, CallMeter, sums

EVERY_S = 2.0
"""Between looks. Ray's processes hand what was recorded to their agent every ten seconds."""

ANSWERED_WITHIN_S = 5.0
"""Limiters that say nothing at the end of a sweep are not waited for any longer."""

NOTHING = sys.float_info.min
"""What a counter begins with, so that Prometheus sees it rise: the first value that it finds is no increase.
Ray takes no zero; this one vanishes in any sum."""

_STAGE = ("stage",)

DECLARED = (
    Instrument("counter", "items", "Items that ended: result complete, failed", ("stage", "result")),
    Instrument("gauge", "items_expected", "Items of the stage, ended or not, where known", _STAGE),
    Instrument("gauge", "queue_items", "Items by state: waiting for a worker, leased", ("stage", "state")),
    Instrument("gauge", "workers", "LLM workers, without those that are about to leave", _STAGE),
    Instrument("counter", "leases_reissued", "Items handed out again, since their worker was lost", _STAGE),
    Instrument("gauge", "journal_lag_seconds", "For how long some reply has not been journalled", _STAGE),
    *CALLS,
    *ENDPOINTS,
)


class RunMetrics:
    """What one run records. models: those with endpoints, by logical name."""

    def __init__(self, run: str, models: Mapping[str, Model]) -> None:
        self._meter = CallMeter(RayRecorder((DECLARED, {"run": run})), models)
        self._ended = Counter[str]()  # items, in earlier sweeps of each stage

    def begin(self, stage: str, limiters: Sequence[Any]) -> None:
        """A sweep begins, a stage's or a part of one's."""
        self._stage, self._limiters = stage, limiters
        self._asked: list[Any] = []
        self._looked_at, self._sweep = -math.inf, object()
        self._total: int | None = None

    def look(
        self, sweep: Sweep, total: int | None, waiting: int, leased: int, lag_s: float, workers: int
    ) -> None:
        """Record how it goes, unless that was done a moment ago. total: items, None where it is not known;
        waiting: for a worker; leased: with one."""
        now = time.monotonic()
        if now - self._looked_at < EVERY_S:
            return
        self._looked_at, self._total = now, total
        self._record(sweep, waiting, leased, lag_s, workers)
        if self._asked and not ray.wait(self._asked, num_returns=len(self._asked), timeout=0)[1]:
            self._hear()
        if not self._asked:
            self._asked = [limiter.watched.remote() for limiter in self._limiters]

    def end(self, sweep: Sweep) -> None:
        """Record what it came to."""
        self._record(sweep, 0, 0, 0.0, 0)
        self._ended[self._stage] += sweep.finished
        with suppress(RayError):
            self._asked = [limiter.watched.remote() for limiter in self._limiters]
            self._hear(over=True)

    def _hear(self, over: bool = False) -> None:
        asked, self._asked = self._asked, []
        with suppress(RayError):  # a limiter that is gone: another look will tell
            for watched in ray.get(asked, timeout=ANSWERED_WITHIN_S):
                self._meter.endpoints(self._stage, watched, over)

    def _record(self, sweep: Sweep, waiting: int, leased: int, lag_s: float, workers: int) -> None:
        meter, of = self._meter, {"stage": self._stage}
        for result, done in (("complete", sweep.finished - sweep.failed), ("failed", sweep.failed)):
            meter.rise("items", done, {**of, "result": result}, (self._sweep, result))
        if self._total is not None:
            meter.set("items_expected", self._ended[self._stage] + self._total, of)
        meter.set("queue_items", waiting, {**of, "state": "waiting"})
        meter.set("queue_items", leased, {**of, "state": "leased"})
        meter.set("workers", workers, of)
        meter.rise("leases_reissued", sweep.reissued, of, self._sweep)
        meter.set("journal_lag_seconds", lag_s, of)
        for (stage, model), totals in sweep.accounts.by_stage.items():
            for name, so_far in sums(totals).items():
                meter.rise(name, so_far, {"stage": stage, "model": model}, (self._sweep, stage, model))


class RayRecorder:
    """A recorder for Ray's agent. To be made in a process of Ray.

    declared   instruments, each with the labels that all of them bear: the run, or the replica
    """

    def __init__(self, *declared: tuple[Iterable[Instrument], Mapping[str, str]]) -> None:
        self._metrics = {d.name: (made(d, *labels), labels) for those, labels in declared for d in those}

    def count(self, name: str, by: float, labels: Mapping[str, str]) -> None:
        metric, common = self._metrics[name]
        metric.inc(by, {**common, **labels})

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        metric, common = self._metrics[name]
        metric.observe(value, {**common, **labels})

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        metric, common = self._metrics[name]
        metric.set(value, {**common, **labels})


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


def made(declared: Instrument, *common: str) -> Any:
    """A metric of Ray's API. common: labels that all have."""
    name, labels = PREFIX + declared.name, (*common, *declared.labels)
    if declared.kind == "histogram":
        return ray_metrics.Histogram(name, declared.about, list(declared.buckets), labels)
    if declared.kind == "gauge":
        return ray_metrics.Gauge(name, declared.about, labels)
    return Rising(ray_metrics.Counter(name, declared.about, labels))
