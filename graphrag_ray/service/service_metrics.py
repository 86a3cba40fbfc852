"""Service metrics: /metrics shows those of this process, a recorder collects those of all processes.

Model calls have the same metric names as in an index run.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphrag_ray.base.instruments import PREFIX, Instrument, Recorder
from graphrag_ray.engine.model_access import Models
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.call_metrics import (
    CALL_METRICS,
    ENDPOINT_METRICS,
    SERVICE_STAGE,
    CallMeter,
    WatchedEndpoints,
    metric_values,
)
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.service.access import HEALTH, METRICS, path_of
from graphrag_ray.service.faults import CLIENT_GONE

if TYPE_CHECKING:
    from graphrag_ray.service.answering import QuestionSlots
    from graphrag_ray.service.live import LiveIndex

UPDATE_INTERVAL_S = 5.0
"""Interval between updates of gauges and limiter metrics."""

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)

SERVICE_METRICS = (
    Instrument("counter", "service_requests", "HTTP requests, including rejected ones", ("path", "status")),
    Instrument("counter", "service_questions", "Finished questions", ("method", "status")),
    Instrument(
        "histogram",
        "service_question_seconds",
        "Time from receiving a question to finishing it",
        ("method",),
        _SECONDS,
    ),
    Instrument("gauge", "service_questions_running", "Questions being answered"),
    Instrument("gauge", "service_questions_waiting", "Questions waiting for a slot"),
    Instrument("gauge", "service_snapshot", "Number of the served snapshot, or 0 if there is none"),
    Instrument("gauge", "service_snapshot_checks_failed", "Failed checks for a newer snapshot"),
    Instrument("gauge", "service_cache_bytes", "Bytes of rows cached for later questions"),
    Instrument("counter", "service_cache_hits", "Columns or pages found in the cache"),
    Instrument("counter", "service_cache_misses", "Columns or pages that had to be read"),
)
MODEL_METRICS = (*CALL_METRICS, *ENDPOINT_METRICS)

_MODELS_PATH = "/v1/models"
PATHS = ("/", "/query", "/index", "/v1/chat/completions", _MODELS_PATH, HEALTH, METRICS, "/openapi.json")
"""Values of the label `path`. `/v1/models/NAME` counts as `/v1/models`, and every other path as OTHER,
because clients can make up any number of paths."""
OTHER = "other"

_KINDS: Mapping[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class ServiceMetrics:
    """Metrics of one process, labelled with the name of its replica."""

    def __init__(
        self, live: LiveIndex, slots: QuestionSlots, replica: str = "", recorder: Recorder | None = None
    ) -> None:
        self._live, self._slots = live, slots
        self._registry = CollectorRegistry()
        self._recorder = _Recorders(self._registry, replica, recorder)
        self._watched: list[Callable[[], None]] = []
        self._last_cache_stats: Mapping[str, int] = {}

    def count_request(self, path: str, status: int) -> None:
        """Count an HTTP request. `path` is without the service's prefix."""
        label = _MODELS_PATH if path.startswith(f"{_MODELS_PATH}/") else path
        labels = {"path": label if label in PATHS else OTHER, "status": str(status)}
        self._recorder.count("service_requests", 1, labels)

    def count_question(self, method: str, status: int, seconds: float) -> None:
        """Count a finished question. `status` is its HTTP status, or CLIENT_GONE."""
        self._recorder.count("service_questions", 1, {"method": method, "status": str(status)})
        self._recorder.observe("service_question_seconds", seconds, {"method": method})

    def count_calls(self, accounts: Accounts) -> None:
        """Count the model calls of a question, answered or not."""
        for (stage, model), totals in accounts.by_stage.items():
            for name, amount in metric_values(totals).items():
                self._recorder.count(name, amount, {"stage": stage, "model": model})

    def watch(self, models: Models, limiter: LocalLimiter) -> Callable[[], None]:
        """Report the endpoints of a limiter of this process until the returned function is called."""
        limiter_id, meter = uuid.uuid4().hex, CallMeter(self._recorder, models.online)

        def report(ended: bool = False) -> None:
            for name in models.online:
                meter.endpoints(
                    SERVICE_STAGE, WatchedEndpoints(name, limiter_id, limiter.endpoint_states(name)), ended
                )

        def stop() -> None:
            report(ended=True)
            self._watched.remove(report)
            self._update()  # Another limiter may share the gauges.

        self._watched.append(report)
        return stop

    async def follow(self) -> None:
        """Update gauges and limiter metrics periodically, until cancelled."""
        while True:
            self._update()
            await asyncio.sleep(UPDATE_INTERVAL_S)

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        self._update()
        return generate_latest(self._registry)

    def _update(self) -> None:
        current = self._live.current
        cache = current.index.reader.cache.stats() if current else {}
        gauges = {
            "service_questions_running": self._slots.running,
            "service_questions_waiting": self._slots.waiting,
            "service_snapshot": current.number if current else 0,
            "service_snapshot_checks_failed": self._live.failed_refreshes,
        }
        if cache:
            gauges["service_cache_bytes"] = cache["bytes"]
        for name, value in gauges.items():
            self._recorder.set(name, value, {})
        for name in ("hits", "misses"):
            increase = cache.get(name, 0) - self._last_cache_stats.get(name, 0)
            self._recorder.count(f"service_cache_{name}", max(0, increase), {})
        self._last_cache_stats = cache
        # If two limiters have the same endpoint, the newer one is reported last.
        for report in list(self._watched):
            report()


class RequestCounter:
    """ASGI middleware that counts requests by path and status."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, answered = path_of(scope), False

        async def counted(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                self._metrics.count_request(path, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except BaseException as e:
            if not answered:  # The server will send the response.
                self._metrics.count_request(path, 500 if isinstance(e, Exception) else CLIENT_GONE)
            raise


class _Recorders:
    """Records metrics for prometheus_client and for another recorder, if there is one."""

    def __init__(self, registry: CollectorRegistry, replica: str, other: Recorder | None) -> None:
        self._replica, self._other = replica, other
        self._instruments: dict[str, Any] = {}
        for declared in (*SERVICE_METRICS, *MODEL_METRICS):
            name, labels = PREFIX + declared.name, ("replica", *declared.labels)
            buckets = {"buckets": declared.buckets} if declared.buckets else {}
            instrument = _KINDS[declared.kind](
                name, declared.description, labels, registry=registry, **buckets
            )
            self._instruments[declared.name] = instrument

    def _record(
        self, recorder_method: str, method: str, name: str, value: float, labels: Mapping[str, str]
    ) -> None:
        getattr(self._instruments[name].labels(replica=self._replica, **labels), method)(value)
        if self._other:
            getattr(self._other, recorder_method)(name, value, labels)

    count = partialmethod(_record, "count", "inc")
    observe = partialmethod(_record, "observe", "observe")
    set = partialmethod(_record, "set", "set")
