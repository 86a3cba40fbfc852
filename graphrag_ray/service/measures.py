"""What is counted for /metrics, in Prometheus' text format: of this process alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from graphrag_ray.llm.accounting import Accounts

if TYPE_CHECKING:
    from graphrag_ray.service.live import Live
    from graphrag_ray.service.places import Places

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)


class Measures:
    """replica: a label of all, since each process counts its own."""

    def __init__(self, live: Live, places: Places, replica: str) -> None:
        self._registry = CollectorRegistry()
        self._replica = replica
        self._questions = self._counter("questions", "Questions that have ended.", "method", "status")
        self._seconds = Histogram(
            "graphrag_ray_service_question_seconds",
            "From a question's arrival to its end.",
            ("replica", "method"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        model = ("stage", "model")
        self._calls = self._counter("model_calls", "Calls of models.", *model)
        self._tokens = self._counter("model_tokens", "Tokens of these calls.", *model, "kind")
        self._cost = self._counter("model_cost_usd", "What they cost, as far as prices are known.", *model)
        self._limited = self._counter("model_rate_limited", "Requests that models answered 429.", *model)
        self._gauge("questions_running", "Questions that are being answered.", lambda: places.running)
        self._gauge("questions_waiting", "Questions that wait for a place.", lambda: places.waiting)
        self._gauge(
            "snapshot",
            "Number of the snapshot that is asked; 0: none.",
            lambda: live.current.number if live.current else 0,
        )
        self._gauge(
            "snapshot_looks_failed", "Looks for a newer snapshot that failed.", lambda: live.failed_looks
        )

    def question(self, method: str, status: int, seconds: float) -> None:
        """A question has ended. status: of HTTP; 499: the client went away."""
        self._questions.labels(self._replica, method, str(status)).inc()
        self._seconds.labels(self._replica, method).observe(seconds)

    def calls(self, accounts: Accounts) -> None:
        """What a question asked of models, whether or not there was an answer."""
        for (stage, model), totals in accounts.by_stage.items():
            own = (self._replica, stage, model)
            self._calls.labels(*own).inc(totals.calls)
            self._tokens.labels(*own, "prompt").inc(totals.prompt_tokens)
            self._tokens.labels(*own, "completion").inc(totals.completion_tokens)
            self._cost.labels(*own).inc(totals.cost_usd or 0.0)
            self._limited.labels(*own).inc(totals.rate_limited)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, told: str, *labels: str) -> Counter:
        full = f"graphrag_ray_service_{name}"
        return Counter(full, told, ("replica", *labels), registry=self._registry)

    def _gauge(self, name: str, told: str, now: object) -> None:
        gauge = Gauge(f"graphrag_ray_service_{name}", told, ("replica",), registry=self._registry)
        gauge.labels(self._replica).set_function(now)  # type: ignore[arg-type]
