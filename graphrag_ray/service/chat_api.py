"""OpenAI's protocol: `/v1/models` and `/v1/chat/completions`.

The model name selects the search method: `graphrag-ray` (the service's default), `graphrag-ray/METHOD` or
`graphrag-ray/METHOD/LEVEL`, as in `graphrag-ray/global/C1`. The last message is the question, and earlier
messages are the conversation. System messages and sampling parameters are ignored, because they would
conflict with the search method. Parameters that change the form of a reply (n, tools, JSON) are rejected.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from graphrag_ray.base.wording import collapse_whitespace, escape_markdown
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.answer import PASSAGES_HEADING, passages_markdown
from graphrag_ray.service.answering import AnsweringPhase, ClientQuestion, Event, ServedAnswer
from graphrag_ray.service.faults import INVALID, Fault, QuestionRejected, invalid
from graphrag_ray.service.live import Served
from graphrag_ray.service.query_api import references, server_event, usage
from graphrag_ray.service.service_options import ServiceOptions

MODEL = "graphrag-ray"
CITED_SEPARATOR = "\n\n---\n"
"""Separates an answer from the names of its cited records."""
_APPENDIX = re.compile(
    r"\n\n---\n(?:(?:\*\*[A-Z][a-z]+ cited:\*\* .*(?:\n|\Z))+"
    rf"|\*\*{PASSAGES_HEADING}:\*\*\n\n(?:- .*(?:\n|\Z))+)\Z"
)
"""The names of cited records or the passages after an answer, which are not part of the conversation."""
_MAX_NAME_CHARS = 120
MAX_MESSAGES = 10_000
_DONE = server_event(b"[DONE]")


class ContentPart(BaseModel):
    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """A message. Other keys, such as `name`, are ignored."""

    role: str
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatBody(BaseModel):
    """A request. Other keys of the protocol are ignored."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None


def models_json(served: Served, only: str | None = None) -> list[dict[str, Any]]:
    """List the models of a snapshot, or only the named one. Raises QuestionRejected for an unknown name."""
    levels = [row.name for row in served.levels if row.name.startswith("C") and row.n_units]
    names = [MODEL]
    for method, kind in methods.load_all().items():
        names.append(f"{MODEL}/{method}")
        names += [f"{MODEL}/{method}/{level}" for level in levels if kind.levels]
    if only is not None and only not in names:
        raise _no_model(only)
    created = int(time.time())
    return [
        {"id": name, "object": "model", "created": created, "owned_by": MODEL}
        for name in ([only] if only else names)
    ]


def question_of(body: ChatBody, options: ServiceOptions) -> ClientQuestion:
    """Parse a request. Raises QuestionRejected for an unknown model and for unsupported parameters."""
    prefix, *selection = body.model.split("/")
    if prefix != MODEL or len(selection) > 2 or (selection and selection[0] not in methods.METHODS):
        raise _no_model(body.model)
    method, level = [*selection, None][:2] if selection else (options.method, options.level)
    if body.n not in (None, 1):
        raise invalid("n must be 1: a question has one answer", "n")
    if (body.tools and body.tool_choice != "none") or (body.functions and body.function_call != "none"):
        raise invalid("Tool calls are not supported", "tools" if body.tools else "functions")
    if body.response_format and body.response_format.get("type", "text") != "text":
        raise invalid("response_format must be of type text", "response_format")
    messages = [m for m in body.messages if m.role not in ("system", "developer")]
    if not messages or messages[-1].role != "user":
        raise invalid("The last message must be the user's question", "messages")
    turns, question = _conversation(messages)
    return ClientQuestion(question, level, history=turns, method=str(method))


def _no_model(name: str) -> QuestionRejected:
    message = (
        f"The model {name[:200]!r} does not exist. Choose from: {MODEL}, {MODEL}/METHOD, "
        f"{MODEL}/METHOD/LEVEL. Methods: {', '.join(methods.METHODS)}."
    )
    return QuestionRejected(Fault(404, INVALID, "model_not_found", message, "model"))


def _conversation(messages: Sequence[ChatMessage]) -> tuple[tuple[tuple[str, str], ...], str]:
    """Split messages into earlier questions with their answers, and the current question.

    Consecutive messages of a role are joined. Repeated messages, as after an error, are used once. Tool
    messages are ignored.
    """
    turns: list[tuple[dict[str, None], dict[str, None]]] = []
    for message in messages:
        if message.role not in ("user", "assistant", "tool", "function"):
            raise invalid(f"Unknown message role {message.role[:40]!r}", "messages")
        if message.role == "user" and (not turns or turns[-1][1]):
            turns.append(({}, {}))
        if turns and message.role in ("user", "assistant"):
            is_question = message.role == "user"
            text = _text(message) if is_question else _APPENDIX.sub("", _text(message))
            turns[-1][0 if is_question else 1].update({text: None} if text else {})
    joined = [("\n".join(questions), "\n".join(answers)) for questions, answers in turns]
    return tuple(joined[:-1]), joined[-1][0]


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content or []
    if unsupported := [part.type for part in parts if part.type != "text"]:
        raise invalid(f"Unsupported content type {unsupported[0][:40]!r}: only text is supported", "messages")
    return "\n".join(part.text or "" for part in parts)


def appendix(answer: ServedAnswer) -> str:
    """Return the names of cited records or the passages that may help, as text to append to the answer."""
    if answer.answer.passages:
        return passages_markdown(answer.answer.passages)
    by_section: dict[str, list[str]] = {}
    for cited in answer.cited:
        name = escape_markdown(collapse_whitespace(cited.name, _MAX_NAME_CHARS))
        by_section.setdefault(cited.section, []).append(f"{cited.number} {name}")
    lines = [f"**{section} cited:** {'; '.join(names)}" for section, names in by_section.items()]
    return CITED_SEPARATOR + "\n".join(lines) if lines else ""


def completion(body: ChatBody, answer: ServedAnswer) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.answer.text + appendix(answer), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model,
        "choices": [choice],
        "usage": _usage(answer),
        "graphrag": _extension(answer),
    }


def stream_chunks(body: ChatBody, id_: str) -> Callable[[Event], Iterable[bytes]]:
    """Return a function that renders the events of one stream. All chunks have this id."""
    head = {"id": f"chatcmpl-{id_}", "object": "chat.completion.chunk", "created": int(time.time())}
    head["model"] = body.model
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    started = False

    def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return server_event(head | {"choices": [choice]} | ({"usage": None} if with_usage else {}) | fields)

    def render(event: Event) -> Iterable[bytes]:
        nonlocal started
        if not started:
            started = True
            yield chunk({"role": "assistant", "content": ""})
        if isinstance(event, ServedAnswer):
            if cited := appendix(event):
                yield chunk({"content": cited})
            yield chunk({}, "stop", graphrag=_extension(event))
            if with_usage:
                yield server_event(head | {"choices": [], "usage": _usage(event)})
            yield _DONE
        elif not isinstance(event, AnsweringPhase):
            yield chunk({"content": str(event)})

    return render


def failure_events(fault: Fault) -> Iterable[bytes]:
    yield server_event(fault.body())
    yield _DONE


def _usage(answer: ServedAnswer) -> dict[str, Any]:
    total = usage(answer.answer)
    tokens = {name: total[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return tokens | {"prompt_tokens_details": {"cached_tokens": total["cached_tokens"]}}


def _extension(served: ServedAnswer) -> dict[str, Any]:
    """Return the fields that OpenAI's protocol lacks."""
    names = ("method", "level", "failed_parts", "cost_usd", "seconds")
    fields = {name: getattr(served.answer, name) for name in names}
    notes = list(served.answer.notes)
    passages = [asdict(passage) for passage in served.answer.passages]
    return {
        **{"snapshot": served.snapshot, **fields},
        **{"references": references(served), "passages": passages, "notes": notes},
    }
