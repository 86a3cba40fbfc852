"""OpenTelemetry traces of questions: a span for each question, for what it reads, searches and asks, and for
each call of a model, with the attribute names of the semantic conventions for generative AI where these fit.

Spans hold names and numbers, no text of questions, documents or replies. They go wherever the program that
uses this package sends its own; `exported` sends those of a command where the standard variables say. Where
nobody has imported OpenTelemetry, nothing of it is imported here, and nothing is done.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ParamSpec, TypeAlias
from urllib.parse import urlsplit

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.urls import display_url
from graphrag_ray.llm.accounting import CallRecord
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import LevelSearch, NameCounts, Need, Notice, Rows, Search, Walk
from graphrag_ray.version import __version__

P = ParamSpec("P")
Fulfil: TypeAlias = Callable[[Need], Coroutine[Any, Any, Any]]

_EXPORTED_BY = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Standard variables of which any asks for traces."""


def of_needs(fulfil: Fulfil) -> Fulfil:
    """The same, with a span for everything that a method needs."""

    async def traced(need: Need) -> Any:
        name, attributes = _described(need)
        with _span(name, attributes):
            return await fulfil(need)

    return traced


def of_question(
    method: str, snapshot: int, answering: Callable[P, Coroutine[Any, Any, Answer]]
) -> Callable[P, Coroutine[Any, Any, Answer]]:
    """The same, with a span around it."""
    about = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": f"graphrag {method}",
        "graphrag.snapshot": snapshot,
    }

    async def traced(*given: P.args, **named: P.kwargs) -> Answer:
        with _span(f"invoke_workflow graphrag {method}", about) as span:
            answer = await answering(*given, **named)
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
                        **_if(level=answer.level, cost_usd=answer.cost_usd),
                    }
                )
            return answer

    return traced


def note_call(call: CallRecord) -> None:
    """A span for a call that has ended, below the one that asked for it."""
    tracer = _tracer()
    if tracer is None:
        return
    from opentelemetry.trace import SpanKind, StatusCode

    operation = "embeddings" if call.prompt == "embed" else "chat"
    ended = time.time_ns()
    span = tracer.start_span(
        f"{operation} {call.model_id}",
        kind=SpanKind.CLIENT,
        attributes={"gen_ai.operation.name": operation, **_of_call(call)},
        start_time=ended - round(call.latency_s * 1e9),
    )
    if call.status != "ok":
        span.set_status(StatusCode.ERROR, call.status)
    span.end(ended)


def exported(environ: Mapping[str, str] = os.environ) -> AbstractContextManager[None]:
    """Where the standard variables ask for it, the traces of what runs in this block go to an OTLP endpoint
    (`OTEL_EXPORTER_OTLP_ENDPOINT`), or as lines of JSON to stderr (`OTEL_TRACES_EXPORTER=console`). Raises
    UsageError for what cannot be exported to."""
    asked = any(environ.get(name) for name in _EXPORTED_BY)
    kind = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if not asked or kind == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return nullcontext()
    return _exporting(kind, environ)


@contextmanager
def _exporting(kind: str, environ: Mapping[str, str]) -> Iterator[None]:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter: Any
    if kind == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        exporter = ConsoleSpanExporter(
            out=sys.stderr, formatter=lambda span: f"{span.to_json(indent=None)}\n"
        )
    elif kind == "otlp":
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise UsageError("to export traces, `pip install '.[traces]'` in the project's folder") from None
        exporter = OTLPSpanExporter()
    else:
        raise UsageError(f"OTEL_TRACES_EXPORTER: {kind!r} is none of otlp, console, none")
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
    """None where nobody listens."""
    api = sys.modules.get("opentelemetry.trace")
    return api.get_tracer("graphrag_ray", __version__) if api else None


@contextmanager
def _span(name: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
    """A span that is the current one meanwhile; None where nobody listens. Of what fails it tells the type: a
    message may quote a text."""
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


def _described(need: Need) -> tuple[str, dict[str, Any]]:
    """Name and attributes of the span of something that is needed."""
    if isinstance(need, Rows):
        return f"read {need.table}", {"graphrag.table": need.table, **_if(ids=need.ids and len(need.ids))}
    if isinstance(need, Search):
        about = {"gen_ai.operation.name": "retrieval", "graphrag.kind": need.kind, "graphrag.by": need.by}
        return f"retrieval {need.kind}", {**about, "graphrag.k": need.k}
    if isinstance(need, LevelSearch):
        about = {"gen_ai.operation.name": "retrieval", "graphrag.hierarchy": need.hierarchy}
        return f"retrieval {need.hierarchy}", {**about, "graphrag.by": "vector", "graphrag.k": need.k}
    if isinstance(need, NameCounts):
        return "count names", {"graphrag.names": len(need.names)}
    if isinstance(need, Walk):
        begins = {"graphrag.names": len(need.names), "graphrag.chunks": len(need.chunks)}
        return "walk", {"gen_ai.operation.name": "retrieval", **begins, "graphrag.k": need.k}
    if isinstance(need, Notice):
        return "notice", {}
    return f"phase {need.phase}", {"graphrag.phase": need.phase, "graphrag.dialogues": len(need.start)}


def _of_call(call: CallRecord) -> dict[str, Any]:
    where = urlsplit(display_url(call.endpoint))
    server = {"server.address": where.hostname, "server.port": where.port} if where.hostname else {}
    return {
        "gen_ai.provider.name": "openai" if call.endpoint else "graphrag_ray.offline",
        "gen_ai.request.model": call.model_id,
        "gen_ai.prompt.name": call.prompt,
        "gen_ai.usage.input_tokens": call.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": call.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.usage.cached_tokens,
        "graphrag.phase": call.stage,
        "graphrag.attempts": call.attempts,
        "graphrag.rate_limited": call.rate_limited,
        **({} if call.status == "ok" else {"error.type": call.status}),
        **{name: value for name, value in server.items() if value is not None},
        **_if(cost_usd=call.cost_usd),
    }


def _if(**values: Any) -> dict[str, Any]:
    """Of our own attributes, those that are known."""
    return {f"graphrag.{name}": value for name, value in values.items() if value is not None}
