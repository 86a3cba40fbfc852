"""Requests to models, their replies, and the dialogue: a generator that yields one and is sent the other.

A dialogue does no I/O. A test drives it with a list of replies, an executor against endpoints, the
offline engine without any (see `engine/drive.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import orjson

from graphrag_ray.base.thoughts import spoken

Role: TypeAlias = Literal["system", "user", "assistant"]
ResponseFormat: TypeAlias = Literal["text", "json", "yes_no"]


@dataclass(frozen=True, slots=True)
class Message:
    """said: a reply of the model with its thoughts, as it is journalled and hashed; "": it is the content."""

    role: Role
    content: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class CallParameters:
    """How a stage calls its model. Everything here except `model` and `reasoning_tokens` is part of an item's
    key.

    `model` is the name under `models:` in the settings and decides where the request goes;
    `model_id` says what answers there, and stands in the key. `reasoning_tokens` is room for thoughts,
    beside `max_output_tokens`.
    """

    model: str
    model_id: str
    temperature: float | None = 0.0
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class ChatRequest:
    """One logical chat request: what we want, before any endpoint's peculiarities.

    prompt       name of the prompt whose turn this is ("extract", "report", …)
    messages     the whole conversation so far
    variables    what the prompt was filled with. Not part of the key, since the messages hold it;
                 the offline engine reads it here instead of cutting it out of the text
    response     "json": `schema` is asked for where the endpoint can; "yes_no": one word
    sample       number of the replicate, so that repeated judgements differ
    first        name of the prompt of the conversation's first turn; "": this is it
    """

    prompt: str
    messages: tuple[Message, ...]
    call: CallParameters
    variables: Mapping[str, str] = field(default_factory=dict, compare=False)
    response: ResponseFormat = "text"
    schema: Mapping[str, Any] | None = field(default=None, compare=False)
    sample: int = 0
    first: str = field(default="", compare=False)

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of messages, model id, parameters, response format and sample number."""
        return _sha256(
            {
                "messages": [[m.role, m.said or m.content] for m in self.messages],
                "model": self.call.model_id,
                "temperature": self.call.temperature,
                "max_output_tokens": self.call.max_output_tokens,
                "response": self.response,
                "schema": self.schema,
                "sample": self.sample,
            }
            | ({"reasoning_effort": effort} if (effort := self.call.reasoning_effort) else {})
        )

    def followed_by(self, reply: ChatReply, prompt: str, text: str, **changes: Any) -> ChatRequest:
        """The next turn of this conversation: the model's reply, then a message of ours."""
        from dataclasses import replace

        turns = (*self.messages, Message("assistant", reply.text, reply.said), Message("user", text))
        first = self.first or self.prompt
        return replace(self, prompt=prompt, messages=turns, first=first, **changes)


@dataclass(frozen=True)
class EmbeddingRequest:
    """One text to embed. The engine packs many into one call."""

    text: str
    call: CallParameters
    dimensions: int | None = None
    prompt: str = "embed"

    @cached_property
    def hash(self) -> str:
        return _sha256({"text": self.text, "model": self.call.model_id, "dimensions": self.dimensions})


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `prompt_tokens` includes `cached_tokens`. `reported` is False where the
    endpoint said nothing and these are our own counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reported: bool = True


@dataclass(frozen=True, slots=True)
class ChatReply:
    """finish_reason: "stop", "length" (truncated), "content_filter", or what the endpoint said. said: the
    text with the thoughts that were taken off it; "": none were."""

    text: str
    finish_reason: str = "stop"
    usage: Usage = Usage()
    said: str = ""

    @property
    def without_thoughts(self) -> ChatReply:
        text = spoken(self.text)
        return self if text == self.text else ChatReply(text, self.finish_reason, self.usage, self.text)


@dataclass(frozen=True, slots=True)
class EmbeddingReply:
    """`vector`: little-endian float32 bytes, as journalled and stored."""

    vector: bytes
    usage: Usage = Usage()


class Listener(Protocol):
    """Hears a chat reply while it is written."""

    def begins(self) -> None:
        """A reply begins: what was heard of one before it, which failed midway, counts no more."""
        ...

    def piece(self, text: str) -> None:
        """The next piece of its text."""
        ...


Request: TypeAlias = ChatRequest | EmbeddingRequest
Reply: TypeAlias = ChatReply | EmbeddingReply

T = TypeVar("T")
# Yields one request, is sent its reply; or yields a list answered together, is sent the list of replies.
Dialogue: TypeAlias = Generator[Any, Any, T]
Turn: TypeAlias = Request | Sequence[Request]


def whole(text: str) -> str:
    """The text with halves of surrogate pairs joined, and those that stand alone replaced: JSON and command
    lines can bring them, and nothing that is hashed, stored or sent can hold them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def turn_hash(turn: Turn) -> str:
    """The hash of a turn: its request's, or the hash over the hashes of a list."""
    if isinstance(turn, ChatRequest | EmbeddingRequest):
        return turn.hash
    return _sha256([r.hash for r in turn])


def item_key(first_turn: Turn) -> str:
    """An item's key: the hash of its first turn, and nothing else."""
    return turn_hash(first_turn)


def _sha256(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
