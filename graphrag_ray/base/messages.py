"""Requests, replies and dialogues.

A dialogue is a generator that yields requests and is sent replies. It does no I/O.
`engine/dialogue_runner.py` runs it with endpoints or the offline engine, tests with a list of replies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import orjson

from graphrag_ray.base.reasoning import strip_reasoning

RERANK = "rerank"
"""Prompt name and phase of rerank requests."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `raw` is a reply with its reasoning, if it has any."""

    role: Literal["system", "user", "assistant"]
    content: str
    raw: str = ""


@dataclass(frozen=True, slots=True)
class CallParameters:
    """How a stage calls its model. Item keys cover all fields except `model` and `reasoning_tokens`.

    Attributes:
        model: Name under `models` in the settings. It determines the endpoints.
        model_id: Id of the model.
        reasoning_tokens: Tokens reserved for reasoning, in addition to `max_output_tokens`.
    """

    model: str
    model_id: str
    temperature: float | None = 0.0
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class ChatRequest:
    """A chat request, independent of any endpoint's quirks.

    Attributes:
        prompt: Name of the prompt of this turn ("extract", "report", …).
        messages: The conversation so far.
        variables: Values of the prompt's placeholders, for the offline engine. Not part of the key, because
            the messages contain them.
        response: "json" requests `schema` from endpoints that support it; "yes_no" requests one word.
        sample: Number of the replicate. It gives repeated judgements different keys.
        first_prompt: Name of the prompt of the first turn, if this is a later turn.
        optional: Whether the dialogue continues if the endpoint rejects the request for good. The reply is
            then empty and has the finish reason "rejected".
    """

    prompt: str
    messages: tuple[Message, ...]
    call: CallParameters
    variables: Mapping[str, str] = field(default_factory=dict, compare=False)
    response: Literal["text", "json", "yes_no"] = "text"
    schema: Mapping[str, Any] | None = field(default=None, compare=False)
    sample: int = 0
    first_prompt: str = field(default="", compare=False)
    optional: bool = field(default=False, compare=False)

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of messages, model id, parameters, response format and sample number."""
        return _sha256(
            {
                "messages": [[m.role, m.raw or m.content] for m in self.messages],
                "model": self.call.model_id,
                "temperature": self.call.temperature,
                "max_output_tokens": self.call.max_output_tokens,
                "response": self.response,
                "schema": self.schema,
                "sample": self.sample,
            }
            | ({"reasoning_effort": effort} if (effort := self.call.reasoning_effort) else {})
        )

    def next_turn(self, reply: ChatReply, prompt: str, text: str, **changes: Any) -> ChatRequest:
        """Return the next turn of this conversation: the reply, then a user message."""
        from dataclasses import replace

        turns = (*self.messages, Message("assistant", reply.text, reply.raw), Message("user", text))
        first = self.first_prompt or self.prompt
        return replace(self, prompt=prompt, messages=turns, first_prompt=first, **changes)


@dataclass(frozen=True)
class EmbeddingRequest:
    """A text to embed. The engine packs many into one call."""

    text: str
    call: CallParameters
    dimensions: int | None = None
    prompt: str = "embed"

    @cached_property
    def hash(self) -> str:
        return _sha256({"text": self.text, "model": self.call.model_id, "dimensions": self.dimensions})


@dataclass(frozen=True)
class RerankRequest:
    """Documents to score by their relevance to a query."""

    query: str
    documents: tuple[str, ...]
    call: CallParameters
    prompt: str = RERANK

    @cached_property
    def hash(self) -> str:
        return _sha256({"query": self.query, "documents": self.documents, "model": self.call.model_id})


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `prompt_tokens` includes `cached_tokens`. `reported` is False if the endpoint
    reported no usage and these are our own counts. `searches` are the units in which some rerankers bill."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reported: bool = True
    searches: int = 0


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A chat reply.

    Attributes:
        finish_reason: "stop", "length" (truncated), "content_filter", or another value from the endpoint.
        raw: The text with its reasoning, if reasoning was removed.
    """

    text: str
    finish_reason: str = "stop"
    usage: Usage = Usage()
    raw: str = ""

    @property
    def without_reasoning(self) -> ChatReply:
        text = strip_reasoning(self.text)
        return self if text == self.text else ChatReply(text, self.finish_reason, self.usage, self.text)


@dataclass(frozen=True, slots=True)
class EmbeddingReply:
    """An embedding. `vector` contains little-endian float32 bytes, as journals and tables store them."""

    vector: bytes
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class RerankReply:
    """The relevance of each document of a RerankRequest, in order. Higher is more relevant.

    `vector` contains little-endian float32 bytes, like that of an EmbeddingReply. NaN: not scored.
    """

    vector: bytes
    usage: Usage = Usage()


class StreamListener(Protocol):
    """Receives a chat reply while it is written."""

    def on_start(self) -> None:
        """A reply begins. Earlier pieces belong to a failed attempt."""

    def on_text(self, text: str) -> None:
        """The next piece of the text."""


Request: TypeAlias = ChatRequest | EmbeddingRequest | RerankRequest
Reply: TypeAlias = ChatReply | EmbeddingReply | RerankReply

T = TypeVar("T")
# Yields a request and is sent its reply, or yields a list of requests and is sent the list of replies.
Dialogue: TypeAlias = Generator[Any, Any, T]


def join_surrogates(text: str) -> str:
    """Join halves of surrogate pairs and replace lone ones.

    JSON and command lines can contain them, but they cannot be hashed, stored or sent.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def item_key(first_turn: Request | Sequence[Request]) -> str:
    """Return the journal key of an item: the hash of its first request, or of its first list of requests."""
    if isinstance(first_turn, Request):
        return first_turn.hash
    return _sha256([request.hash for request in first_turn])


def _sha256(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
