"""OpenAI's protocol: `/v1/models` and `/v1/chat/completions`.

The model's name says how the answer is found: `graphrag-ray`, as the service is told; `graphrag-ray/METHOD`;
`graphrag-ray/METHOD/LEVEL` (`graphrag-ray/global/C1`). The last message is the question, those before it
the conversation that it may lean on. System messages are not used: how an answer is written is said by the
prompts of each way of answering, which a general instruction would contradict. So are temperature, length and
the like; what would change the form of a reply (n, tools, JSON) is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from graphrag_ray.query.methods import methods
from graphrag_ray.service.answering import AnsweringPhase, Asked, Event, Replied
from graphrag_ray.service.faults import INVALID, Fault, RefusedQuestion, invalid
from graphrag_ray.service.live import Served
from graphrag_ray.service.query_api import event, references, usage
from graphrag_ray.service.service_options import ServiceOptions

MODEL = "graphrag-ray"
CITED = "\n\n---\n"
"""Stands before the names of what an answer cites, at the end of its text."""
_LIST = re.compile(r"\n\n---\n(?:\*\*[A-Z][a-z]+ cited:\*\* .*(?:\n|\Z))+\Z")
_LONGEST_NAME = 120
MAX_MESSAGES = 10_000
_ACTIVE, ESCAPED = re.compile(r"[\\`*\[\]<>]|:(?=//)"), r"\\\g<0>"
"""In a name that comes from the corpus: front ends that render Markdown are to show it, and not to fetch a
picture or follow an address that stands in it."""
_DONE = event(b"[DONE]")


class ContentPart(BaseModel):
    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """Further keys, such as `name`, mean nothing here."""

    role: str
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatBody(BaseModel):
    """Keys of the protocol that are not named here are passed over."""

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
    """The models that can be asked of this snapshot. only: the one of this name. Raises Refused where there
    is none."""
    levels = [row.name for row in served.levels if row.name.startswith("C") and row.n_units]
    names = [MODEL]
    for method, kind in methods.usable().items():
        names.append(f"{MODEL}/{method}")
        names += [f"{MODEL}/{method}/{level}" for level in levels if kind.levels]
    if only is not None and only not in names:
        raise _no_model(only)
    created = int(time.time())
    return [
        {"id": name, "object": "model", "created": created, "owned_by": MODEL}
        for name in ([only] if only else names)
    ]


def asked_of(body: ChatBody, options: ServiceOptions) -> Asked:
    """Raises Refused for a model that there is not, and for what cannot be done."""
    first, *rest = body.model.split("/")
    if first != MODEL or len(rest) > 2 or (rest and rest[0] not in methods.METHODS):
        raise _no_model(body.model)
    method, level = [*rest, None][:2] if rest else (options.method, options.level)
    if body.n not in (None, 1):
        raise invalid("one answer is given to a question: n must be 1", "n")
    if (body.tools and body.tool_choice != "none") or (body.functions and body.function_call != "none"):
        raise invalid("tools are not called here", "tools" if body.tools else "functions")
    if body.response_format and body.response_format.get("type", "text") != "text":
        raise invalid("answers are text: response_format must be of type text", "response_format")
    said = [m for m in body.messages if m.role not in ("system", "developer")]
    if not said or said[-1].role != "user":
        raise invalid("the last message must be the user's question", "messages")
    turns, question = _conversation(said)
    return Asked(question, level, history=turns, method=str(method))


def _no_model(name: str) -> RefusedQuestion:
    known = f"{MODEL}, {MODEL}/METHOD and {MODEL}/METHOD/LEVEL; methods are {', '.join(methods.METHODS)}"
    message = f"the model {name[:200]!r} does not exist; there are {known}"
    return RefusedQuestion(Fault(404, INVALID, "model_not_found", message, "model"))


def _conversation(messages: Sequence[ChatMessage]) -> tuple[tuple[tuple[str, str], ...], str]:
    """Questions with their answers, and the question of now. What is said in several messages is one text,
    and what is sent twice, as after an error, counts once. Tools had nothing to do with an answer of ours."""
    turns: list[tuple[dict[str, None], dict[str, None]]] = []
    for message in messages:
        if message.role not in ("user", "assistant", "tool", "function"):
            raise invalid(f"messages of the role {message.role[:40]!r} are not understood", "messages")
        if message.role == "user" and (not turns or turns[-1][1]):
            turns.append(({}, {}))
        if turns and message.role in ("user", "assistant"):
            asks = message.role == "user"
            text = _text(message) if asks else _LIST.sub("", _text(message))
            turns[-1][0 if asks else 1].update({text: None} if text else {})
    told = [("\n".join(asked), "\n".join(answered)) for asked, answered in turns]
    return tuple(told[:-1]), told[-1][0]


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content or []
    if strange := [part.type for part in parts if part.type != "text"]:
        raise invalid(f"only text can be asked, not {strange[0][:40]!r}", "messages")
    return "\n".join(part.text or "" for part in parts)


def cited_list(replied: Replied) -> str:
    """Names of the records that the text cites by number, as its end; "" where it cites none."""
    by_section: dict[str, list[str]] = {}
    for cited in replied.cited:
        name = " ".join(cited.name.split())
        short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        by_section.setdefault(cited.section, []).append(f"{cited.number} {_ACTIVE.sub(ESCAPED, short)}")
    if not by_section:
        return ""
    return CITED + "\n".join(f"**{name} cited:** {'; '.join(of)}" for name, of in by_section.items())


def completion(body: ChatBody, replied: Replied) -> dict[str, Any]:
    message = {"role": "assistant", "content": replied.answer.text + cited_list(replied), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    head = {"id": f"chatcmpl-{replied.id}", "object": "chat.completion", "created": int(time.time())}
    told = {"model": body.model, "choices": [choice], "usage": _usage(replied)}
    return head | told | {"graphrag": _extra(replied)}


def chunks(body: ChatBody, id_: str) -> Callable[[Event], Iterable[bytes]]:
    """The events of one stream. id_: of all its chunks."""
    head = {"id": f"chatcmpl-{id_}", "object": "chat.completion.chunk", "created": int(time.time())}
    head["model"] = body.model
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    begun = False

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return event(head | {"choices": [choice]} | ({"usage": None} if with_usage else {}) | more)

    def told(one: Event) -> Iterable[bytes]:
        nonlocal begun
        if not begun:
            begun = True
            yield chunk({"role": "assistant", "content": ""})
        if isinstance(one, Replied):
            if listed := cited_list(one):
                yield chunk({"content": listed})
            yield chunk({}, "stop", graphrag=_extra(one))
            if with_usage:
                yield event(head | {"choices": [], "usage": _usage(one)})
            yield _DONE
        elif not isinstance(one, AnsweringPhase):
            yield chunk({"content": str(one)})

    return told


def failed(fault: Fault) -> Iterable[bytes]:
    yield event(fault.body())
    yield _DONE


def _usage(replied: Replied) -> dict[str, Any]:
    all_ = usage(replied.answer)
    counted = {name: all_[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return counted | {"prompt_tokens_details": {"cached_tokens": all_["cached_tokens"]}}


def _extra(replied: Replied) -> dict[str, Any]:
    """What the protocol has no place for."""
    names = ("method", "level", "failed_parts", "cost_usd", "seconds")
    told = {name: getattr(replied.answer, name) for name in names}
    more = {"references": references(replied), "notes": list(replied.answer.notes)}
    return {"snapshot": replied.snapshot, **told, **more}
