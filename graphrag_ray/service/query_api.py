"""The native protocol: `POST /query` and `GET /index`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from graphrag_ray.base.index_settings import HierarchyName, Query
from graphrag_ray.query.answer_streams import StartsAgain
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.document_filters import MAX_CHARACTERS, MAX_CONDITIONS
from graphrag_ray.service.answering import AnsweringPhase, ClientQuestion, Event, ServedAnswer, Service
from graphrag_ray.service.faults import Fault, invalid
from graphrag_ray.service.service_options import ServiceOptions

MAX_TURNS = 1_000
MAX_KEYS = 100


class StrictModel(BaseModel):
    """Rejects unknown keys, and more than MAX_KEYS keys, because reporting all of them would take seconds."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_key_count(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_KEYS:
            raise ValueError(f"Got {len(data):,} keys, but at most {MAX_KEYS} are allowed")
        return data


class EarlierTurn(StrictModel):
    """An earlier question of the conversation and its answer."""

    question: str
    answer: str


class QueryBody(StrictModel):
    """A question. Omitted fields default to the service's settings."""

    question: str
    method: Annotated[str | None, Field(description=f"One of {', '.join(methods.METHODS)}.")] = None
    level: Annotated[str | int | None, Field(description='"C0", "C1", …, a number, or "auto".')] = None
    where: Annotated[
        list[Annotated[str, Field(max_length=MAX_CHARACTERS)]],
        Field(
            max_length=MAX_CONDITIONS,
            fail_fast=True,
            description="Conditions on documents: path~*.md, date>=2023. global: on date only.",
        ),
    ] = []
    history: Annotated[
        list[EarlierTurn],
        Field(max_length=MAX_TURNS, fail_fast=True, description="Earlier turns, oldest first."),
    ] = []
    stream: Annotated[
        bool, Field(description="Send server-sent events, as with Accept: text/event-stream.")
    ] = False
    sources: Annotated[bool, Field(description="Include the sources of the references.")] = False
    contexts: Annotated[bool, Field(description="Include the records that models received.")] = False
    response_type: Annotated[str | None, Field(max_length=500)] = None
    dynamic: bool | None = None
    hierarchy: HierarchyName | None = None
    traversal: Literal["collapsed", "tree"] | None = None
    map_protocol: Literal["answer", "points"] | None = None
    mode: Annotated[
        Literal["local", "global", "hybrid", "mix"] | None, Field(description="Only for method lightrag.")
    ] = None
    steps: Annotated[
        int | None,
        Field(ge=0, le=10, description="Only for method ppr: maximum number of searches for missing facts."),
    ] = None
    budget_tests: Annotated[
        int | None,
        Field(gt=0, le=10_000, description="Only for method lazy: maximum number of passages to test."),
    ] = None
    budget_tokens: Annotated[int | None, Field(gt=0, description="At most the service's limit.")] = None
    budget_usd: Annotated[float | None, Field(gt=0, description="At most the service's limit.")] = None
    max_seconds: Annotated[float | None, Field(gt=0, description="At most the service's limit.")] = None


def as_json(content: Any) -> bytes:
    """Serialise to JSON, including what orjson rejects: lone surrogates and integers over 64 bits."""
    try:
        return orjson.dumps(content, default=str)
    except TypeError:
        return json.dumps(content, default=str).encode()


def server_event(data: Any, name: str | None = None) -> bytes:
    """Render a server-sent event. Bytes are sent unchanged, anything else as JSON."""
    payload = data if isinstance(data, bytes) else as_json(data)
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + payload + b"\n\n"


def question_of(body: QueryBody, options: ServiceOptions) -> ClientQuestion:
    """Parse a request. The service's default level applies only to its default method.

    Raises QuestionRejected if the time limit is too long, and UsageError for unsupported options.
    """
    if body.max_seconds is not None and body.max_seconds > options.max_seconds:
        raise invalid(f"max_seconds can be at most {options.max_seconds:g}", "max_seconds")
    method = body.method or options.method
    methods.check_options(method, dict(body))
    return ClientQuestion(
        body.question,
        options.level if body.level is None and body.method is None else body.level,
        tuple(body.where),
        tuple((turn.question, turn.answer) for turn in body.history),
        method,
        change_settings=partial(query_settings, body),
        seconds=body.max_seconds,
        sources=body.sources,
    )


def query_settings(body: QueryBody, query: Query) -> Query:
    """Apply a request's settings. Raises QuestionRejected for a budget above the service's."""
    names = ("response_type", "dynamic", "hierarchy", "map_protocol", "budget_tokens", "budget_usd")
    options = [(name, name) for name in names]
    options += [kind.option for kind in methods.load_all().values() if kind.option[0]]
    update = {setting: value for option, setting in options if (value := getattr(body, option)) is not None}
    for name in ("budget_tokens", "budget_usd"):
        limit = getattr(query, name)
        if limit is not None and update.get(name, 0) > limit:
            raise invalid(f"{name} can be at most {limit:,}", name)
    return query.model_copy(update=update)


def answer_json(served: ServedAnswer, contexts: bool) -> dict[str, Any]:
    """Return an answer as in `query --json`, with names and numbers of the cited records."""
    answer = served.answer if contexts else replace(served.answer, contexts=())
    content = {"id": served.id, "snapshot": served.snapshot, **answer.as_dict()}
    if not contexts:
        del content["contexts"]
    content |= {"references": references(served), "usage": usage(answer), "cost_usd": answer.cost_usd}
    if served.sources is not None:
        content["sources"] = [asdict(source) for source in served.sources]
    return content


def references(served: ServedAnswer) -> list[dict[str, Any]]:
    """List the cited records with section, id, number (as in the text) and name."""
    names = {(cited.section, cited.number): cited.name for cited in served.cited}
    numbered = [(r, served.numbers.get(r)) for r in served.answer.references]
    return [
        {
            "section": r.section,
            "id": r.id,
            "number": n,
            "name": None if n is None else names.get((r.section, n)),
        }
        for r, n in numbered
    ]


def usage(answer: Answer) -> dict[str, int]:
    """Sum calls and tokens over all phases."""
    names = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")
    total = {name: sum(getattr(phase, name) for phase in answer.phases.values()) for name in names}
    return total | {"total_tokens": total["prompt_tokens"] + total["completion_tokens"]}


def stream_events(contexts: bool, event: Event) -> Iterable[bytes]:
    """Render an event of a stream.

    phase     a phase starts or ends
    text      the next piece of the answer
    restart   why the text so far is invalid; the text starts again
    answer    the complete answer, as without a stream; ends a successful stream
    error     why the answer is missing or incomplete; ends a failed stream
    """
    if isinstance(event, AnsweringPhase):
        phase = {"phase": event.name, "dialogues": event.dialogues, "ended": event.ended}
        yield server_event(phase, "phase")
    elif isinstance(event, ServedAnswer):
        yield server_event(answer_json(event, contexts), "answer")
    elif isinstance(event, StartsAgain):
        yield server_event({"reason": event.strip()}, "restart")
    else:
        yield server_event({"text": event}, "text")


def failure_events(fault: Fault) -> Iterable[bytes]:
    yield server_event({"status": fault.status, **fault.body()}, "error")


def index_json(service: Service) -> dict[str, Any]:
    """Describe the current snapshot. Raises QuestionRejected if there is none."""
    served = service.live.require_current()
    manifest, cache = served.index.manifest, served.index.reader.cache
    return {
        "snapshot": served.number,
        "created_at": manifest.created_at,
        "version": manifest.version,
        "counts": dict(manifest.counts),
        "levels": [asdict(row) for row in served.levels],
        "methods": list(methods.METHODS),
        "default": {"method": service.options.method, "level": service.options.level},
        "notes": list(manifest.notes.values()),
        "memory": {"limit_bytes": cache.limit_bytes, **cache.stats()},
        "problem": service.live.problem,
    }
