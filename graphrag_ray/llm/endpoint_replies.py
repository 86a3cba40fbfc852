"""Parse an endpoint's replies, decoded from JSON: text, vectors and tokens, or a clear error. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeGuard

import numpy as np
import orjson

from graphrag_ray.base.errors import FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.base.messages import (
    ChatReply,
    ChatRequest,
    EmbeddingReply,
    EmbeddingRequest,
    Usage,
    join_surrogates,
)
from graphrag_ray.base.reasoning import strip_reasoning
from graphrag_ray.llm.call_failures import HttpRefusal, PromptTruncated, Unanswered, UselessVector, failure_of

MOST_TOKENS = 10**9  # Larger counts of one call are nonsense.
# Below this size, chat templates and unusual vocabularies change counts too much to conclude anything.
TRUNCATION_FROM_TOKENS = 500
# An endpoint that reports less than this share of our own count did not read the whole prompt.
TRUNCATED_BELOW = 0.5
MANY_TIMES = 10  # No vocabulary explains a count this many times our own.


def decoded(content: bytes, where: str) -> Mapping[str, Any]:
    """The JSON object of a reply. Raises the CallError of an {"error": …} or of a body that is not JSON."""
    body = loaded(content)
    if not isinstance(body, dict):
        start = content[:80].decode("utf-8", "replace")
        raise TransientCallError(f"{where} sent a reply that is not JSON: {start!r}")
    if refusal := HttpRefusal.within(body):
        raise failure_of(refusal, where)
    return body


def loaded(content: bytes) -> Any:
    """The JSON value of some bytes, tolerating lone surrogates in strings; None if it is not JSON."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            return None


def read_chat(
    body: Mapping[str, Any],
    request: ChatRequest,
    prompt_tokens: int,
    count: Callable[[str], int],
    where: str,
    limit: int = MOST_TOKENS,
    window: int = MOST_TOKENS,
) -> ChatReply:
    """The reply of a chat call, including reasoning within its text.

    Args:
        prompt_tokens: Our own count.
        count: Counts a text, for endpoints that report no usage or an implausible one.
        limit: Most tokens of the reply.
        window: The model's context window.

    Raises:
        TransientCallError: The body has no choice.
        PermanentCallError: A content filter left the reply empty.
        PromptTruncated: The endpoint read much less than was sent.
    """
    try:
        choice = body["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):  # a list of parts
            text = "".join(part.get("text") or "" for part in text if part.get("type", "text") == "text")
        text = join_surrogates(text)
        finish = str(choice.get("finish_reason") or "stop")
        refused = choice["message"].get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise TransientCallError(f"{where} sent a reply without a message: {str(body)[:200]}") from None
    usage = _usage(body.get("usage"))
    counted = Usage(prompt_tokens, count(text), 0, reported=False)
    if usage is None or not plausible(usage, counted, limit, window):
        usage = counted
    least = prompt_tokens * TRUNCATED_BELOW
    if usage.reported and prompt_tokens > TRUNCATION_FROM_TOKENS and usage.prompt_tokens < least:
        raise PromptTruncated(
            f"{where} read only {usage.prompt_tokens} tokens of a prompt of about {prompt_tokens}: it "
            "truncates prompts to its context size. Raise that size, or lower context_window and the sizes "
            "of chunks and contexts.",
            usage=usage,
        )
    if not text and (refused or finish == "content_filter"):
        reason = refused if isinstance(refused, str) else "content filter"
        raise PermanentCallError(f"The model at {where} refused to answer: {reason}")
    if request.response == "yes_no" and text and finish == "length":
        finish = "stop"  # We asked for a single word.
    return ChatReply(text, finish, usage)


def read_embeddings(
    body: Mapping[str, Any], requests: Sequence[EmbeddingRequest], counts: Sequence[int], where: str
) -> list[EmbeddingReply]:
    """The replies of one call that embedded all `requests`, in order.

    The reported usage is divided in proportion to our own `counts`, without a remainder.

    Raises:
        TransientCallError: The body does not have one vector per text.
        FatalCallError: The vectors do not have the requested length.
        UselessVector: A vector is all zeros.
    """
    try:
        data = body["data"]
        numbers = [d.get("index", 0) if len(data) == 1 else d["index"] for d in data]
        if any(type(n) is not int for n in numbers) or sorted(numbers) != list(range(len(data))):
            raise ValueError("not numbered from 0")
        with np.errstate(over="ignore"):  # Infinities are reported below.
            vectors = [
                np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
                if isinstance(value := data[at]["embedding"], str)
                else np.asarray(value, dtype="<f4").reshape(-1)
                for at in np.argsort(numbers)
            ]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise TransientCallError(f"{where} sent a reply without embeddings: {str(body)[:200]}") from None
    lengths = {v.size for v in vectors}
    if len(vectors) != len(requests) or len(lengths) != 1 or 0 in lengths:
        raise TransientCallError(f"{where} sent {len(vectors)} embeddings for {len(requests)} texts")
    if not all(np.isfinite(v).all() for v in vectors):
        raise TransientCallError(f"{where} sent an embedding with values that are not finite")
    wanted = requests[0].dimensions
    if wanted is not None and lengths != {wanted}:
        raise FatalCallError(
            f"{where} sent embeddings of {lengths.pop()} dimensions instead of {wanted}. Change "
            "embedding_dimensions or the model."
        )
    usage, counted = _usage(body.get("usage")), Usage(sum(counts), reported=False)
    if usage is not None and not plausible(usage, counted, 0, MOST_TOKENS):
        usage = None
    if not all(v.any() for v in vectors):
        raise UselessVector(f"{where} sent an embedding that is all zeros", usage=usage or counted)
    if usage is None:
        usages = [Usage(n, reported=False) for n in counts]
    else:
        usages = [Usage(n) for n in split_proportionally(usage.prompt_tokens, counts)]
    return [EmbeddingReply(v.tobytes(), u) for v, u in zip(vectors, usages, strict=True)]


def split_proportionally(total: int, weights: Sequence[int]) -> list[int]:
    """Integer shares of `total` in proportion to the weights, or equal shares if all weights are 0."""
    seen = [0, *accumulate(weights if sum(weights) else [1] * len(weights))]
    return [total * b // seen[-1] - total * a // seen[-1] for a, b in pairwise(seen)]


def _usage(reported: Any) -> Usage | None:
    """Reported usage; None if it is missing or malformed."""
    if not isinstance(reported, Mapping):
        return None
    details = reported.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    cached = reported.get("prompt_cache_hit_tokens") if cached is None else cached
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens") or 0
    if not (_is_count(prompt) and _is_count(completion)) or prompt == completion == 0:
        return None
    return Usage(prompt, completion, min(cached, prompt) if _is_count(cached) else 0)


def plausible(usage: Usage, counted: Usage, limit: int, window: int) -> bool:
    """Whether usage can be true, given our own count, the `limit` of the reply and the `window`."""
    written = max(limit, counted.completion_tokens) * 2 + TRUNCATION_FROM_TOKENS
    return (
        usage.prompt_tokens <= max(counted.prompt_tokens, TRUNCATION_FROM_TOKENS) * MANY_TIMES
        and usage.completion_tokens <= written
        and usage.prompt_tokens + usage.completion_tokens <= max(window, counted.prompt_tokens + limit)
    )


def has_thoughts(body: Mapping[str, Any], text: str) -> bool:
    """Whether a model has reasoned: next to its text, within it, or according to its usage."""
    message, usage = body["choices"][0]["message"], body.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, Mapping) else None
    counted = details.get("reasoning_tokens") if isinstance(details, Mapping) else 0
    return bool(
        message.get("reasoning_content")
        or message.get("reasoning")
        or (_is_count(counted) and counted > 0)
        or strip_reasoning(text) != text
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


async def events_of(received: AsyncIterator[bytes], where: str) -> AsyncIterator[object]:
    """Yield the events of a chat reply in linear time. Raises the CallError of one, or of invalid JSON."""

    async def lines() -> AsyncIterator[bytes]:
        cut: list[bytes] = []
        async for some in received:
            *ended, rest = (some + b"\0").splitlines()
            for line in ended:
                yield b"".join([*cut, line])
                cut = []
            cut.append(rest[:-1])
        yield b"".join(cut)
        yield b""

    data: list[bytes] = []
    async for line in lines():
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        if line or not data:
            continue
        one, data = b"\n".join(data), []
        if one.startswith(b"[DONE]"):
            return
        try:
            event = json.loads(one)
        except (ValueError, RecursionError):
            raise TransientCallError(f"{where} sent an event that is not JSON") from None
        if isinstance(event, dict) and (refusal := HttpRefusal.within(event)):
            raise failure_of(refusal, where)
        yield event


class StreamedReply:
    """Collects the events of a streamed chat reply. `where` is the endpoint's display address."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._texts: list[str] = []
        self._half = ""
        self._finish_reason: str | None = None
        self._refusals: list[str] = []
        self._thought = False
        self._usage: Any = None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, event: object) -> str:
        """Add an event and return its text. Raises TransientCallError if it is malformed."""
        try:
            assert isinstance(event, Mapping)
            self._usage = event.get("usage") or self._usage
            choices = event.get("choices") or []
            if not choices:
                return ""
            self._finish_reason = choices[0].get("finish_reason") or self._finish_reason
            delta = choices[0].get("delta") or {}
            self._refusals.append("" + (delta.get("refusal") or ""))
            self._thought = self._thought or bool(delta.get("reasoning_content") or delta.get("reasoning"))
            text = self._half + (delta.get("content") or "")
            # Half of a surrogate pair at the end waits for the next piece.
            self._half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
            piece = join_surrogates(text.removesuffix(self._half))
            self._texts.append(piece)
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError):
            raise TransientCallError(
                f"{self._where} sent an event without a message: {str(event)[:200]}"
            ) from None
        return piece

    def body(self) -> dict[str, Any]:
        """The body of the whole reply. Raises Unanswered if the stream ended early."""
        if self._finish_reason is None:
            raise Unanswered(f"{self._where} ended the stream before the end of the reply")
        refusal, reasoning = "".join(self._refusals) or None, self._thought or None
        message = {"content": self.text, "refusal": refusal, "reasoning": reasoning}
        choice = {"message": message, "finish_reason": self._finish_reason}
        return {"choices": [choice], "usage": self._usage}
