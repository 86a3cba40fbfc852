"""A dialogue that wants JSON of a certain form, and asks once more where it gets something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.graph.report_reply import ReplyProblem
from graphrag_ray.query.methods.json_entries import entries, field, words
from graphrag_ray.query.methods.map_reduce import AnswerSpec, correction_of, request_of

T = TypeVar("T")


def asked_as_json(
    variables: Mapping[str, str],
    spec: AnswerSpec,
    schema: Mapping[str, Any],
    read: Callable[[ChatReply], T | ReplyProblem],
    sample: int = 0,
) -> Dialogue[T]:
    """What `read` makes of the reply. sample: number of the replicate, which makes it a request of its own.

    Raises DialogueFailed where the second reply cannot be used either.
    """
    request = replace(request_of(spec.prompt.name, variables, spec, schema), sample=sample)
    reply: ChatReply = yield request
    found = read(reply)
    if isinstance(found, ReplyProblem):
        reply = yield correction_of(request, reply, found, spec)
        found = read(reply)
    if isinstance(found, ReplyProblem):
        raise DialogueFailed(f"{spec.prompt.name}: still not usable after a correction: {found.text}")
    return found


def list_schema(key: str, entry: str) -> Mapping[str, Any]:
    """Of {key: [{entry: text}, …]}."""
    one = {
        "type": "object",
        "properties": {entry: {"type": "string"}},
        "required": [entry],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {key: {"type": "array", "items": one}},
        "required": [key],
        "additionalProperties": False,
    }


def texts_in(reply: ChatReply, key: str, entry: str) -> list[str] | ReplyProblem:
    """The texts of such a list, each once; [] where the reply says that there are none. Also of a list of
    plain texts, which models write instead."""
    found = entries(reply.text, key, reply.finish_reason)
    if isinstance(found, ReplyProblem):
        return _plain_texts(reply, key) or found
    texts = list(dict.fromkeys(text for one in found if (text := words(one, entry, "text", "description"))))
    return texts if texts or not found else ReplyProblem(f"no entry of `{key}` has a text `{entry}`")


def _plain_texts(reply: ChatReply, key: str) -> list[str]:
    """Of {key: [text, …]}. The text in which a reply was cut off does not count."""
    listed = field(reply.text, key)
    texts = [one.strip() for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    cut = reply.finish_reason == "length" and not reply.text.rstrip(" \n`").endswith("}")
    return list(dict.fromkeys(filter(None, texts[:-1] if cut else texts)))
