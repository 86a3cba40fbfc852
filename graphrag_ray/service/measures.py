"""What is counted of questions: for /metrics in Prometheus' text format, of this process alone; and for a
collector that hears of all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from graphrag_ray.instruments import PREFIX, Instrument
from graphrag_ray.llm.accounting import Accounts

if TYPE_CHECKING:
    from graphrag_ray.service.live import Live
    from graphrag_ray.service.places import Places

EVERY_S = 5.0
"""Between looks at what a gauge tells."""

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_MODEL = ("stage", "model")

DECLARED = (
    Instrument("counter", "service_questions", "Questions that have ended", ("method", "status")),
    Instrument(
        "histogram",
        "service_question_seconds",
        "From a question's arrival to its end",
        ("method",),
        _SECONDS,
    ),
    Instrument("counter", "service_model_calls", "Calls of models", _MODEL),
    Instrument("counter", "service_model_tokens", "Tokens of these calls", (*_MODEL, "kind")),
    Instrument("counter", "service_model_cost_usd", "What they cost, as far as prices are known", _MODEL),
    Instrument("counter", "service_model_rate_limited", "Requests that models answered 429", _MODEL),
    Instrument("gauge", "service_questions_running", "Questions that are being answered"),
    Instrument("gauge", "service_questions_waiting", "Questions that wait for a place"),
    Instrument("gauge", "service_snapshot", "Number of the snapshot that is asked; 0: none"),
    Instrument("gauge", "service_snapshot_looks_failed", "Looks for a newer snapshot that failed"),
)

_KINDS: Mapping[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class Collector(Protocol):
    """Is told of the metrics of `DECLARED`, by name, beside /metrics."""

    def count(self, name: str, by: float, labels: Mapping[str, str]) -> None: ...

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...

    def set(self, name: str, value: float) -> None: ...


class Measures:
    """replica: a label of all, since each process counts its own."""

    def __init__(
        self, live: Live, places: Places, replica: str = "", collector: Collector | None = None
    ) -> None:
        self._live, self._places, self._replica, self._collector = live, places, replica, collector
        self._registry = CollectorRegistry()
        self._own = {d.name: self._made(d) for d in DECLARED}

    def question(self, method: str, status: int, seconds: float) -> None:
        """A question has ended. status: of HTTP; 499: the client went away."""
        self._count("service_questions", 1, method=method, status=str(status))
        name, labels = "service_question_seconds", {"method": method}
        self._own[name].labels(replica=self._replica, **labels).observe(seconds)
        if self._collector:
            self._collector.observe(name, seconds, labels)

    def calls(self, accounts: Accounts) -> None:
        """What a question asked of models, whether or not there was an answer."""
        for (stage, model), totals in accounts.by_stage.items():
            own = {"stage": stage, "model": model}
            self._count("service_model_calls", totals.calls, **own)
            self._count("service_model_tokens", totals.prompt_tokens, **own, kind="prompt")
            self._count("service_model_tokens", totals.completion_tokens, **own, kind="completion")
            self._count("service_model_cost_usd", totals.cost_usd or 0.0, **own)
            self._count("service_model_rate_limited", totals.rate_limited, **own)

    async def follow(self) -> None:
        """Keep what the collector knows of gauges true, until it is cancelled."""
        while True:
            self._look()
            await asyncio.sleep(EVERY_S)

    def text(self) -> bytes:
        self._look()
        return generate_latest(self._registry)

    def _look(self) -> None:
        now = {
            "service_questions_running": self._places.running,
            "service_questions_waiting": self._places.waiting,
            "service_snapshot": self._live.current.number if self._live.current else 0,
            "service_snapshot_looks_failed": self._live.failed_looks,
        }
        for name, value in now.items():
            self._own[name].labels(replica=self._replica).set(value)
            if self._collector:
                self._collector.set(name, value)

    def _count(self, name: str, by: float, **labels: str) -> None:
        self._own[name].labels(replica=self._replica, **labels).inc(by)
        if self._collector:
            self._collector.count(name, by, labels)

    def _made(self, declared: Instrument) -> Any:
        buckets = {"buckets": declared.buckets} if declared.buckets else {}
        name, labels = PREFIX + declared.name, ("replica", *declared.labels)
        return _KINDS[declared.kind](name, declared.about, labels, registry=self._registry, **buckets)
