"""A dialogue that wants JSON of a certain form, and asks once more where it gets something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import GenericAlias
from typing import Any, TypeVar

from pydantic import create_model

from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, read_reply, schema_of
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.query.methods.map_reduce import AnswerSpec, request_of, usable_reply

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
    found, _ = yield from usable_reply(request, read, spec, spec.prompt.name)
    return found


@lru_cache
def list_reply(key: str, entry: str) -> type[JsonReply]:
    """{key: [{entry: text}, …]}."""
    fields: dict[str, Any] = {entry: (str, "")}
    one = create_model(entry, __base__=JsonReply, **fields)
    one.aliases = {entry: ("text", "description")}
    lists: dict[str, Any] = {key: (GenericAlias(list, one), ...)}
    return create_model(key, __base__=JsonReply, **lists)


def list_schema(key: str, entry: str) -> Mapping[str, Any]:
    return schema_of(list_reply(key, entry))


def texts_in(reply: ChatReply, key: str, entry: str) -> list[str] | ReplyProblem:
    """The texts of such a list, each once; [] where the reply says that there are none."""
    found = read_reply(reply.text, list_reply(key, entry), reply.finish_reason)
    if isinstance(found, ReplyProblem):
        return found
    listed = getattr(found, key)
    texts = list(dict.fromkeys(text for one in listed if (text := getattr(one, entry))))
    return texts if texts or not listed else ReplyProblem(f"no entry of `{key}` has a text `{entry}`")
