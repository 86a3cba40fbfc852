"""`POST /query` and `GET /index`: this project's own protocol."""

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
from graphrag_ray.query.methods.where import MAX_CHARACTERS, MAX_CONDITIONS
from graphrag_ray.service.answering import AnsweringPhase, Asked, Event, Replied, Service
from graphrag_ray.service.faults import Fault, invalid
from graphrag_ray.service.service_options import ServiceOptions

MAX_TURNS = 1_000
MAX_KEYS = 100


class KnownKeys(BaseModel):
    """Takes known keys only. Of very many keys, or items of a list, not each one is told as a fault: that
    would take seconds."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few_keys(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MAX_KEYS:
            raise ValueError(f"there are {len(given):,} keys; {MAX_KEYS} at most")
        return given


class EarlierTurn(KnownKeys):
    """An earlier question of the conversation and the text of its answer."""

    question: str
    answer: str


class QueryBody(KnownKeys):
    """A question. What it leaves out is as the service's settings say."""

    question: str
    method: Annotated[str | None, Field(description=f"One of {', '.join(methods.METHODS)}.")] = None
    level: Annotated[str | int | None, Field(description='"C0", "C1", …, a number, or "auto".')] = None
    where: Annotated[
        list[Annotated[str, Field(max_length=MAX_CHARACTERS)]],
        Field(
            max_length=MAX_CONDITIONS,
            fail_fast=True,
            description="Conditions on documents: path~*.md, date>=2023.",
        ),
    ] = []
    history: Annotated[
        list[EarlierTurn],
        Field(max_length=MAX_TURNS, fail_fast=True, description="What was said before, the oldest first."),
    ] = []
    stream: Annotated[bool, Field(description="Server-sent events; also by Accept: text/event-stream.")] = (
        False
    )
    sources: Annotated[bool, Field(description="Say what lies under the references.")] = False
    contexts: Annotated[bool, Field(description="Say which records models were shown.")] = False
    response_type: Annotated[str | None, Field(max_length=500)] = None
    dynamic: bool | None = None
    hierarchy: HierarchyName | None = None
    traversal: Literal["collapsed", "tree"] | None = None
    map_protocol: Literal["answer", "points"] | None = None
    mode: Annotated[
        Literal["local", "global", "hybrid", "mix"] | None, Field(description="Of the method lightrag.")
    ] = None
    steps: Annotated[
        int | None,
        Field(ge=0, le=10, description="Of the method ppr: how often what is missing is looked up."),
    ] = None
    budget_tokens: Annotated[int | None, Field(gt=0, description="At most the service's own.")] = None
    budget_usd: Annotated[float | None, Field(gt=0, description="At most the service's own.")] = None
    max_seconds: Annotated[float | None, Field(gt=0, description="At most the service's own.")] = None


def as_json(content: Any) -> bytes:
    """An answer is paid for: what orjson takes for no JSON (half a surrogate pair, a number of more than 64
    bits) is written all the same."""
    try:
        return orjson.dumps(content, default=str)
    except TypeError:
        return json.dumps(content, default=str).encode()


def event(data: Any, name: str | None = None) -> bytes:
    """One event. data: bytes as they are, anything else as JSON."""
    told = data if isinstance(data, bytes) else as_json(data)
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + told + b"\n\n"


def asked_of(body: QueryBody, options: ServiceOptions) -> Asked:
    """The level of the service goes with its method. Raises Refused for more time than there is, UsageError
    for a mode of a method that has none."""
    if body.max_seconds is not None and body.max_seconds > options.max_seconds:
        raise invalid(f"max_seconds can be {options.max_seconds:g} at most", "max_seconds")
    method = body.method or options.method
    methods.check_modes(method, dict(body))
    level = options.level if body.level is None and body.method is None else body.level
    history = tuple((turn.question, turn.answer) for turn in body.history)
    more: dict[str, Any] = {
        "changed": partial(changed, body),
        "seconds": body.max_seconds,
        "sources": body.sources,
    }
    return Asked(body.question, level, tuple(body.where), history, method, **more)


def changed(body: QueryBody, query: Query) -> Query:
    """The settings of a question. Raises Refused for a budget above that of the service."""
    named = ("response_type", "dynamic", "hierarchy", "map_protocol", "budget_tokens", "budget_usd")
    options = [(name, name) for name in named]
    options += [kind.option for kind in methods.usable().values() if kind.option[0]]
    update = {setting: value for option, setting in options if (value := getattr(body, option)) is not None}
    for name in ("budget_tokens", "budget_usd"):
        most = getattr(query, name)
        if most is not None and update.get(name, 0) > most:
            raise invalid(f"{name} can be {most:,} at most", name)
    return query.model_copy(update=update)


def answer_json(replied: Replied, contexts: bool) -> dict[str, Any]:
    """An answer as `query --json` writes it, with the names and numbers of what it cites."""
    answer = replied.answer if contexts else replace(replied.answer, contexts=())
    told = {"id": replied.id, "snapshot": replied.snapshot, **answer.as_dict()}
    if not contexts:
        del told["contexts"]
    told |= {"references": references(replied), "usage": usage(answer), "cost_usd": answer.cost_usd}
    if replied.sources is not None:
        told["sources"] = [asdict(source) for source in replied.sources]
    return told


def references(replied: Replied) -> list[dict[str, Any]]:
    """What the answer cites: section, id, short number (as in the text) and name."""
    names = {(cited.section, cited.number): cited.name for cited in replied.cited}
    out = []
    for r in replied.answer.references:
        number = replied.numbers.get(r)
        name = names.get((r.section, number)) if number is not None else None
        out.append({"section": r.section, "id": r.id, "number": number, "name": name})
    return out


def usage(answer: Answer) -> dict[str, int]:
    """Calls and tokens of all phases."""
    names = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")
    total = {name: sum(getattr(phase, name) for phase in answer.phases.values()) for name in names}
    return total | {"total_tokens": total["prompt_tokens"] + total["completion_tokens"]}


def told(contexts: bool, one: Event) -> Iterable[bytes]:
    """Events of a stream.

    phase     a phase begins or has ended
    text      the next piece of the answer's text
    restart   what was shown counts no more, and why; the text begins again
    answer    the whole answer, as without a stream; the last event
    error     there is no answer, or the rest of it; the last event
    """
    if isinstance(one, AnsweringPhase):
        yield event({"phase": one.name, "dialogues": one.dialogues, "ended": one.ended}, "phase")
    elif isinstance(one, Replied):
        yield event(answer_json(one, contexts), "answer")
    elif isinstance(one, StartsAgain):
        yield event({"reason": one.strip()}, "restart")
    else:
        yield event({"text": one}, "text")


def failed(fault: Fault) -> Iterable[bytes]:
    yield event({"status": fault.status, **fault.body()}, "error")


def index_json(service: Service) -> dict[str, Any]:
    """What is asked now. Raises Refused where there is no snapshot."""
    served = service.live.now()
    manifest, kept = served.index.manifest, served.index.reader.kept
    return {
        "snapshot": served.number,
        "created_at": manifest.created_at,
        "version": manifest.version,
        "counts": dict(manifest.counts),
        "levels": [asdict(row) for row in served.levels],
        "methods": list(methods.METHODS),
        "default": {"method": service.options.method, "level": service.options.level},
        "notes": list(manifest.notes.values()),
        "memory": {"limit_bytes": kept.limit_bytes, **kept.told()},
        "problem": service.live.problem,
    }
