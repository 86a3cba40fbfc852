"""What is counted of a service: for /metrics in Prometheus' text format, of this process alone; and for a
recorder that hears of all processes. Calls of models have the names that they have in a run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphrag_ray.base.instruments import PREFIX, Instrument, Recorder
from graphrag_ray.engine.gateways import Models
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.llm.call_metrics import CALLS, ENDPOINTS, SERVED, CallMeter, Watched, sums
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.service.access import HEALTH, METRICS, path_of
from graphrag_ray.service.faults import CLIENT_GONE

if TYPE_CHECKING:
    from graphrag_ray.service.answering import QuestionPlaces
    from graphrag_ray.service.live import LiveIndex

EVERY_S = 5.0
"""Between looks at what a gauge tells, and at what limiters saw."""

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)

DECLARED = (
    Instrument("counter", "service_requests", "HTTP requests, refused ones too", ("path", "status")),
    Instrument("counter", "service_questions", "Questions that have ended", ("method", "status")),
    Instrument(
        "histogram",
        "service_question_seconds",
        "From a question's arrival to its end",
        ("method",),
        _SECONDS,
    ),
    Instrument("gauge", "service_questions_running", "Questions that are being answered"),
    Instrument("gauge", "service_questions_waiting", "Questions that wait for a place"),
    Instrument("gauge", "service_snapshot", "Number of the snapshot that is asked; 0: none"),
    Instrument("gauge", "service_snapshot_looks_failed", "Looks for a newer snapshot that failed"),
    Instrument("gauge", "service_kept_bytes", "Rows that were read, and are kept for the next question"),
    Instrument("counter", "service_kept_hits", "Columns or pages that were looked for, and were kept"),
    Instrument("counter", "service_kept_misses", "Columns or pages that were looked for, and had to be read"),
)
"""Of the service alone: what models are asked is told as a run tells it."""
OF_MODELS = (*CALLS, *ENDPOINTS)

_MODELS_PATH = "/v1/models"
PATHS = ("/", "/query", "/index", "/v1/chat/completions", _MODELS_PATH, HEALTH, METRICS, "/openapi.json")
"""By which requests are counted. `/v1/models/NAME` is the path above it, all else is OTHER: there would be no
end of what clients make up."""
OTHER = "other"

_KINDS: Mapping[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class Measures:
    """replica: a label of all, since each process counts its own."""

    def __init__(
        self, live: LiveIndex, places: QuestionPlaces, replica: str = "", recorder: Recorder | None = None
    ) -> None:
        self._live, self._places = live, places
        self._registry = CollectorRegistry()
        self._recorder = _Both(self._registry, replica, recorder)
        self._watched: list[Callable[[], None]] = []
        self._counted: Mapping[str, int] = {}

    def request(self, path: str, status: int) -> None:
        """An HTTP request was answered, or refused. path: below the service's prefix."""
        known = _MODELS_PATH if path.startswith(f"{_MODELS_PATH}/") else path
        labels = {"path": known if known in PATHS else OTHER, "status": str(status)}
        self._recorder.count("service_requests", 1, labels)

    def question(self, method: str, status: int, seconds: float) -> None:
        """A question has ended. status: of HTTP; 499: the client went away."""
        self._recorder.count("service_questions", 1, {"method": method, "status": str(status)})
        self._recorder.observe("service_question_seconds", seconds, {"method": method})

    def calls(self, accounts: Accounts) -> None:
        """What a question asked of models, whether or not there was an answer."""
        for (stage, model), totals in accounts.by_stage.items():
            for name, by in sums(totals).items():
                self._recorder.count(name, by, {"stage": stage, "model": model})

    def watch(self, models: Models, limiter: LocalLimiter) -> Callable[[], None]:
        """Tell what the limiter of this process alone sees of endpoints, until what is returned is called."""
        life, meter = uuid.uuid4().hex, CallMeter(self._recorder, models.online)

        def look(over: bool = False) -> None:
            for name in models.online:
                meter.endpoints(SERVED, Watched(name, life, limiter.seen(name)), over)

        def over() -> None:
            look(over=True)
            self._watched.remove(look)
            self._look()  # its gauges may be another one's, too

        self._watched.append(look)
        return over

    async def follow(self) -> None:
        """Keep what is known of gauges and limiters true, until it is cancelled."""
        while True:
            self._look()
            await asyncio.sleep(EVERY_S)

    def text(self) -> bytes:
        self._look()
        return generate_latest(self._registry)

    def _look(self) -> None:
        current = self._live.current
        kept = current.index.reader.kept.told() if current else {}
        now = {
            "service_questions_running": self._places.running,
            "service_questions_waiting": self._places.waiting,
            "service_snapshot": current.number if current else 0,
            "service_snapshot_looks_failed": self._live.failed_looks,
        }
        if kept:
            now["service_kept_bytes"] = kept["bytes"]
        for name, value in now.items():
            self._recorder.set(name, value, {})
        for name in ("hits", "misses"):
            more = kept.get(name, 0) - self._counted.get(name, 0)
            self._recorder.count(f"service_kept_{name}", max(0, more), {})
        self._counted = kept
        for look in list(self._watched):  # of the same endpoint under two limiters, the newer one counts
            look()


class Counting:
    """Counts each request of an ASGI application by what it was answered."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self._app, self._measures = app, measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, answered = path_of(scope), False

        async def counted(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                self._measures.request(path, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except BaseException as e:
            if not answered:  # of a bug, what is around us makes an answer
                self._measures.request(path, 500 if isinstance(e, Exception) else CLIENT_GONE)
            raise


class _Both:
    """Records for prometheus_client, and with another recorder if there is one."""

    def __init__(self, registry: CollectorRegistry, replica: str, other: Recorder | None) -> None:
        self._replica, self._other = replica, other
        self._own: dict[str, Any] = {}
        for d in (*DECLARED, *OF_MODELS):
            buckets = {"buckets": d.buckets} if d.buckets else {}
            labels = ("replica", *d.labels)
            self._own[d.name] = _KINDS[d.kind](PREFIX + d.name, d.about, labels, registry=registry, **buckets)

    def _record(self, how: str, own: str, name: str, value: float, labels: Mapping[str, str]) -> None:
        getattr(self._own[name].labels(replica=self._replica, **labels), own)(value)
        if self._other:
            getattr(self._other, how)(name, value, labels)

    count = partialmethod(_record, "count", "inc")
    observe = partialmethod(_record, "observe", "observe")
    set = partialmethod(_record, "set", "set")
