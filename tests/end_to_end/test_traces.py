"""Traces of questions: what waited for what, and what was used, without texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from collector import collecting
from endpoint import rate_limited
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from toy_model import respond
from world import REJECTED, TOWN, Built, Command, World, model_options, python

QUESTION = "What are the SECRETIVE THEMES?"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(
        trace, "get_tracer", provider.get_tracer
    )  # A process has one provider for its lifetime.
    return exporter


def parents(spans: tuple[ReadableSpan, ...]) -> dict[str, set[str]]:
    """The names of the enclosing spans, by span name."""
    names = {s.context.span_id: s.name for s in spans if s.context}
    out: dict[str, set[str]] = {}
    for span in spans:
        out.setdefault(span.name, set()).add(names[span.parent.span_id] if span.parent else "")
    return out


def total(spans: tuple[ReadableSpan, ...], name: str) -> int:
    return sum(int((s.attributes or {})[name]) for s in spans)  # type: ignore[call-overload]


def test_the_calls_in_a_trace_add_up_to_the_usage_of_the_answer(
    world: World,
    spans: InMemorySpanExporter,
    built: Built,
):
    world.take(built(TOWN))
    refused: list[int] = []

    def refusing_once(body: dict[str, Any]) -> Any:
        refused.append(1)
        return rate_limited("0.05") if len(refused) == 1 else respond(body)

    world.endpoint.respond = refusing_once
    answer = world.open().ask(QUESTION)
    found = spans.get_finished_spans()
    root = "invoke_workflow graphrag global"
    above = parents(found)
    assert above[root] == {""} and above["phase map"] == above["phase reduce"] == {root}
    assert above["read community_reports"] == {root}
    assert above["chat m"] == {"phase map", "phase reduce"}

    calls = [s for s in found if s.kind is SpanKind.CLIENT]
    used = tuple(s for s in found if s.name == root) + tuple(calls)
    for attribute, tokens in (("input", "prompt_tokens"), ("output", "completion_tokens")):
        of_answer = sum(getattr(p, tokens) for p in answer.phases.values())
        assert total(tuple(calls), f"gen_ai.usage.{attribute}_tokens") == of_answer
        assert total(used[:1], f"gen_ai.usage.{attribute}_tokens") == of_answer > 0
    assert len(calls) == sum(p.calls for p in answer.phases.values())
    assert total(tuple(calls), "graphrag.attempts") == len(calls) + 1
    assert all(s.end_time >= s.start_time and s.attributes["server.address"] == "127.0.0.1" for s in calls)
    told = " ".join(s.to_json() for s in found)
    assert "SECRETIVE" not in told and "ALICE" not in told and answer.text[:20] not in told


def test_searches_and_embeddings_are_children_of_their_question(world: World, spans: InMemorySpanExporter):
    world.write(TOWN)
    changes = {"models": world.settings().model_dump()["models"] | world.embedding["models"]}
    world.index(**changes)
    spans.clear()
    world.open(**changes).ask(QUESTION, method="vector")
    above = parents(spans.get_finished_spans())
    assert above["embeddings e"] == {"retrieval text_unit"}
    assert above["retrieval text_unit"] == {"invoke_workflow graphrag vector"}


def test_a_failed_call_has_its_error_type_without_the_endpoints_text(
    world: World, spans: InMemorySpanExporter, built: Built
):
    world.take(built(TOWN))
    world.endpoint.respond = lambda body: REJECTED
    answer = world.open().ask(QUESTION)
    assert answer.failed_parts
    failed = [s for s in spans.get_finished_spans() if s.status.status_code is StatusCode.ERROR]
    assert {s.name for s in failed} == {"chat m"}
    assert {s.attributes["error.type"] for s in failed} == {"permanent"}
    assert "rejected" not in " ".join(s.to_json() for s in failed)


def test_without_an_exporter_opentelemetry_is_not_imported(world: World, run: Command, built: Built):
    world.take(built(TOWN))
    options = [str(o) for o in ("query", QUESTION, "--root", world.root)]
    script = f"""
import sys
from graphrag_ray.cli.command_line import main
main({options!r}, standalone_mode=False)
print([m for m in sys.modules if m.startswith("opentelemetry")])
"""
    done = python(script)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_commands_export_traces_according_to_the_standard_variables(world: World, built: Built):
    world.take(built(TOWN))
    ours, of = [sys.executable, "-m", "graphrag_ray"], ["--root", str(world.root)]
    command, chat = [*ours, "query", QUESTION, *of], [*ours, "chat", "--method", "global", *of]
    with collecting() as to:
        for line, asked in ((command, None), (chat, QUESTION)):
            to.bodies.clear()
            sent = subprocess.run(
                line,
                input=asked,
                env=os.environ | to.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert sent.returncode == 0, sent.stderr
            assert b"invoke_workflow graphrag global" in to.received
            assert b"SECRETIVE" not in to.received

    console = {"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "mine"}
    shown = subprocess.run(
        command, env=os.environ | console, capture_output=True, text=True, check=False, timeout=60
    )
    lines = [json.loads(line) for line in shown.stderr.splitlines()]
    assert {line["resource"]["attributes"]["service.name"] for line in lines} == {"mine"}
    assert "phase map" in {line["name"] for line in lines}


def test_an_unknown_exporter_is_a_usage_error(
    world: World,
    run: Command,
    monkeypatch: pytest.MonkeyPatch,
    built: Built,
):
    world.take(built(TOWN))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    done = run("query", QUESTION, "--root", world.root, *model_options(world))
    assert done.exit_code == 2 and "'zipkin'. Choose from: otlp, console, none" in done.output
