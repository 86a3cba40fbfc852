"""OpenTelemetry traces: spans for questions, their reads, searches and phases, and calls of models.

Attribute names follow the semantic conventions for generative AI where these apply. Spans contain names and
numbers, but no text of questions, documents or replies. They go to the exporter of the host program.
`export_traces` configures an exporter for a command if the standard variables request it. Unless the program
has imported OpenTelemetry, spans are not recorded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.messages import RERANK
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.accounting import CallRecord
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import (
    LevelSearch,
    NameCounts,
    Need,
    Notice,
    Rows,
    Search,
    Similarities,
    Walk,
)
from graphrag_ray.version import __version__

_EXPORT_VARIABLES = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
"""Standard variables. Setting any of them requests traces."""


@contextmanager
def question_span(method: str, snapshot: int) -> Iterator[Callable[[Answer], None]]:
    """Open a span for a question. Call the yielded function with the answer."""
    name = f"graphrag {method}"
    attributes = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": name}
    with _span(f"invoke_workflow {name}", {**attributes, "graphrag.snapshot": snapshot}) as span:

        def note(answer: Answer) -> None:
            if span is not None:
                phases = answer.phases.values()
                span.set_attributes(
                    {
                        "gen_ai.usage.input_tokens": sum(p.prompt_tokens for p in phases),
                        "gen_ai.usage.output_tokens": sum(p.completion_tokens for p in phases),
                        "graphrag.calls": sum(p.calls for p in phases),
                        "graphrag.found": answer.found,
                        "graphrag.references": len(answer.references),
                        "graphrag.contexts": len(answer.contexts),
                        **_known(level=answer.level, cost_usd=answer.cost_usd),
                    }
                )

        yield note


def note_call(call: CallRecord) -> None:
    """Record a finished call as a child of the current span."""
    tracer = _tracer()
    if tracer is None:
        return
    from opentelemetry.trace import SpanKind, StatusCode

    operation = {"embed": "embeddings", RERANK: RERANK}.get(call.prompt, "chat")
    ended, endpoint = time.time_ns(), urlsplit(display_url(call.endpoint))
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "openai" if call.endpoint else "graphrag_ray.offline",
        "gen_ai.request.model": call.model_id,
        "gen_ai.prompt.name": call.prompt,
        "gen_ai.usage.input_tokens": call.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": call.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.usage.cached_tokens,
        "graphrag.phase": call.stage,
        "graphrag.attempts": call.attempts,
        "graphrag.rate_limited": call.rate_limited,
        **_known(cost_usd=call.cost_usd),
    }
    if call.status != "ok":
        attributes["error.type"] = call.status
    if endpoint.hostname:
        attributes["server.address"] = endpoint.hostname
        if endpoint.port is not None:
            attributes["server.port"] = endpoint.port
    span = tracer.start_span(
        f"{operation} {call.model_id}",
        kind=SpanKind.CLIENT,
        attributes=attributes,
        start_time=ended - round(call.latency_s * 1e9),
    )
    if call.status != "ok":
        span.set_status(StatusCode.ERROR, call.status)
    span.end(ended)


@contextmanager
def export_traces(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Export the traces of this block if the standard variables request it.

    Traces go to an OTLP endpoint (`OTEL_EXPORTER_OTLP_ENDPOINT`) or, with `OTEL_TRACES_EXPORTER=console`, to
    stderr as JSON lines.

    Raises:
        UsageError: The exporter is unknown or not installed.
    """
    requested = any(environ.get(name) for name in _EXPORT_VARIABLES)
    kind = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if not requested or kind == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield
        return
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    exporter: Any
    if kind == "console":
        exporter = ConsoleSpanExporter(
            out=sys.stderr, formatter=lambda span: f"{span.to_json(indent=None)}\n"
        )
    elif kind == "otlp":
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise UsageError(
                "Exporting traces needs the extra `traces`. Run `pip install '.[traces]'` in the project's "
                "directory."
            ) from None
        exporter = OTLPSpanExporter()
    else:
        raise UsageError(f"Unknown OTEL_TRACES_EXPORTER {kind!r}. Choose from: otlp, console, none.")
    named = "service.name" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "") or environ.get("OTEL_SERVICE_NAME")
    resource = Resource.create({} if named else {"service.name": "graphrag-ray"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _tracer() -> Any:
    """Return the tracer, or None if OpenTelemetry is not imported."""
    api = sys.modules.get("opentelemetry.trace")
    return api.get_tracer("graphrag_ray", __version__) if api else None


@contextmanager
def _span(name: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Open a span, or yield None without a tracer. Record errors by type only: messages may quote text."""
    tracer = _tracer()
    if tracer is None:
        yield None
        return
    from opentelemetry.trace import StatusCode

    with tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as e:
            span.set_attribute("error.type", type(e).__qualname__)
            span.set_status(StatusCode.ERROR)
            raise


def need_span(need: Need) -> AbstractContextManager[Any]:
    """Open a span for a request of a search method."""
    retrieval: dict[str, Any] = {"gen_ai.operation.name": "retrieval"}
    if isinstance(need, Rows):
        attributes = {"graphrag.table": need.table, **_known(ids=need.ids and len(need.ids))}
        return _span(f"read {need.table}", attributes)
    if isinstance(need, Search):
        attributes = {"graphrag.kind": need.kind, "graphrag.by": need.by, "graphrag.k": need.k}
        return _span(f"retrieval {need.kind}", retrieval | attributes)
    if isinstance(need, LevelSearch):
        attributes = {"graphrag.hierarchy": need.hierarchy, "graphrag.by": "vector", "graphrag.k": need.k}
        return _span(f"retrieval {need.hierarchy}", retrieval | attributes)
    if isinstance(need, NameCounts):
        return _span("count names", {"graphrag.names": len(need.names)})
    if isinstance(need, Walk):
        starts = {"graphrag.names": len(need.names), "graphrag.chunks": len(need.chunks)}
        return _span("walk", retrieval | starts | {"graphrag.k": need.k})
    if isinstance(need, Similarities):
        return _span("compare texts", {"graphrag.texts": len(need.texts)})
    if isinstance(need, Notice):
        return _span("notice", {})
    return _span(
        f"phase {need.phase}", {"graphrag.phase": need.phase, "graphrag.dialogues": len(need.factories)}
    )


def _known(**values: Any) -> dict[str, Any]:
    """Build `graphrag.` attributes from the values that are known."""
    return {f"graphrag.{name}": value for name, value in values.items() if value is not None}
