"""Reading what an endpoint answered: text, vectors and tokens, with a clear error for anything else.

Pure. A body is what the endpoint sent, decoded from JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeGuard

import numpy as np
import orjson

from graphrag_ray.base.errors import FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.base.messages import ChatReply, ChatRequest, EmbeddingReply, EmbeddingRequest, Usage, whole
from graphrag_ray.base.thoughts import spoken
from graphrag_ray.llm.call_failures import HttpRefusal, PromptTruncated, Unanswered, UselessVector, failure_of

MOST_TOKENS = 10**9
"""Of one call. Whoever reports more reports nonsense."""
TRUNCATION_FROM_TOKENS = 500
"""Below this, chat templates and odd vocabularies move counts too much to accuse anybody."""
TRUNCATED_BELOW = 0.5
"""Share of our own count of a prompt under which the endpoint cannot have read all of it."""
MANY_TIMES = 10
"""Our own count of a prompt, above which no vocabulary explains what is reported."""


def decoded(content: bytes, where: str) -> Mapping[str, Any]:
    """The JSON object of a reply. Raises TransientCallError for anything else, and what a body of the
    form {"error": …} means: some endpoints send one with status 200."""
    body = loaded(content)
    if not isinstance(body, dict):
        start = content[:80].decode("utf-8", "replace")
        raise TransientCallError(f"{where} answered with something that is not JSON: {start!r}")
    if refusal := HttpRefusal.within(body):
        raise failure_of(refusal, where)
    return body


def loaded(content: bytes) -> Any:
    """The JSON value of some bytes, also with halves of characters in its strings; None for what is none."""
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
    """The reply of a chat call, with thoughts that stand in its text.

    prompt_tokens: our own count; count: counts a text, for endpoints that report no usage, or nonsense;
    limit: tokens that the reply could have; window: of the model.
    Raises TransientCallError for a body without a choice, PermanentCallError for an empty reply by a
    content filter, PromptTruncated where the endpoint read much less than was sent.
    """
    try:
        choice = body["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):  # a list of parts
            text = "".join(part.get("text") or "" for part in text if part.get("type", "text") == "text")
        text = whole(text)
        finish = str(choice.get("finish_reason") or "stop")
        refused = choice["message"].get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise TransientCallError(f"{where} answered without a message: {str(body)[:200]}") from None
    usage = _usage(body.get("usage"))
    own = Usage(prompt_tokens, count(text), 0, reported=False)
    if usage is None or not plausible(usage, own, limit, window):
        usage = own
    least = prompt_tokens * TRUNCATED_BELOW
    if usage.reported and prompt_tokens > TRUNCATION_FROM_TOKENS and usage.prompt_tokens < least:
        raise PromptTruncated(
            f"{where} read {usage.prompt_tokens} tokens of a prompt of some {prompt_tokens}: it cuts prompts "
            "to its own context size. Raise that size at the endpoint, or lower context_window and the sizes "
            "of chunks and contexts",
            usage=usage,
        )
    if not text and (refused or finish == "content_filter"):
        reason = refused if isinstance(refused, str) else "content filter"
        raise PermanentCallError(f"the model at {where} would not answer: {reason}")
    if request.response == "yes_no" and text and finish == "length":
        finish = "stop"  # one word was all we asked for
    return ChatReply(text, finish, usage)


def read_embeddings(
    body: Mapping[str, Any], requests: Sequence[EmbeddingRequest], counts: Sequence[int], where: str
) -> list[EmbeddingReply]:
    """The replies of one call that embedded all `requests`, in their order; the call's usage is split
    in proportion to our own counts, exactly.

    Raises TransientCallError for a body without one vector per text, FatalCallError for vectors of
    another length than was asked for, UselessVector where one holds nothing but zeros.
    """
    try:
        data = body["data"]
        numbers = [d.get("index", 0) if len(data) == 1 else d["index"] for d in data]
        if any(type(n) is not int for n in numbers) or sorted(numbers) != list(range(len(data))):
            raise ValueError("they are not numbered from 0")
        with np.errstate(over="ignore"):  # an infinity is told below
            vectors = [
                np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
                if isinstance(value := data[at]["embedding"], str)
                else np.asarray(value, dtype="<f4").reshape(-1)
                for at in np.argsort(numbers)
            ]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise TransientCallError(f"{where} answered without embeddings: {str(body)[:200]}") from None
    lengths = {v.size for v in vectors}
    if len(vectors) != len(requests) or len(lengths) != 1 or 0 in lengths:
        raise TransientCallError(f"{where} answered {len(vectors)} embeddings for {len(requests)} texts")
    if not all(np.isfinite(v).all() for v in vectors):
        raise TransientCallError(f"{where} answered with an embedding that is not a number")
    wanted = requests[0].dimensions
    if wanted is not None and lengths != {wanted}:
        raise FatalCallError(
            f"{where} answered embeddings of {lengths.pop()} dimensions where {wanted} were asked for: "
            "change embedding_dimensions or the model"
        )
    usage, own = _usage(body.get("usage")), Usage(sum(counts), reported=False)
    if usage is not None and not plausible(usage, own, 0, MOST_TOKENS):
        usage = None
    if not all(v.any() for v in vectors):
        raise UselessVector(f"{where} answered an embedding that is nothing but zeros", usage=usage or own)
    if usage is None:
        usages = [Usage(n, reported=False) for n in counts]
    else:
        usages = [Usage(n) for n in split_proportionally(usage.prompt_tokens, counts)]
    return [EmbeddingReply(v.tobytes(), u) for v, u in zip(vectors, usages, strict=True)]


def split_proportionally(total: int, weights: Sequence[int]) -> list[int]:
    """Whole shares in proportion to the weights (to all alike if they are all 0) that add up to total."""
    seen = [0, *accumulate(weights if sum(weights) else [1] * len(weights))]
    return [total * b // seen[-1] - total * a // seen[-1] for a, b in pairwise(seen)]


def _usage(reported: Any) -> Usage | None:
    """Reported tokens; None where there are none, or what there is makes no sense."""
    if not isinstance(reported, Mapping):
        return None
    details = reported.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    cached = reported.get("prompt_cache_hit_tokens") if cached is None else cached
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens") or 0
    if not (_is_count(prompt) and _is_count(completion)) or prompt == completion == 0:
        return None
    return Usage(prompt, completion, min(cached, prompt) if _is_count(cached) else 0)


def plausible(usage: Usage, own: Usage, limit: int, window: int) -> bool:
    """Whether reported tokens can be true. own: by our own count, which odd vocabularies may miss by far, but
    not by MANY_TIMES; limit: tokens that the reply could have, unseen thoughts included."""
    written = max(limit, own.completion_tokens) * 2 + TRUNCATION_FROM_TOKENS
    return (
        usage.prompt_tokens <= max(own.prompt_tokens, TRUNCATION_FROM_TOKENS) * MANY_TIMES
        and usage.completion_tokens <= written
        and usage.prompt_tokens + usage.completion_tokens <= max(window, own.prompt_tokens + limit)
    )


def has_thoughts(body: Mapping[str, Any], text: str) -> bool:
    """Whether a model has thought: beside its text, within it, or by the tokens that it reports."""
    message, usage = body["choices"][0]["message"], body.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, Mapping) else None
    counted = details.get("reasoning_tokens") if isinstance(details, Mapping) else 0
    return bool(
        message.get("reasoning_content")
        or message.get("reasoning")
        or (_is_count(counted) and counted > 0)
        or spoken(text) != text
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


async def events_of(received: AsyncIterator[bytes], where: str) -> AsyncIterator[object]:
    """The events of a chat reply, up to its end, out of bytes as they come: linear, however these are cut.
    Raises the CallError of one that says what went wrong, and TransientCallError for one that is not JSON."""

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


class Pieces:
    """What the events of a streamed chat reply said so far."""

    def __init__(self, where: str) -> None:
        """where: the endpoint, as it may be shown."""
        self._where = where
        self._texts: list[str] = []
        self._half = ""
        self._finish_reason: str | None = None
        self._refusals: list[str] = []
        self._thought = False
        self._usage: Any = None

    @property
    def text(self) -> str:
        """Of the reply."""
        return "".join(self._texts)

    def add(self, event: object) -> str:
        """The piece of text that an event brings, "" for others. Raises TransientCallError for what is no
        event of a chat reply."""
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
            said = self._half + (delta.get("content") or "")
            # Half a character at its end is held back for the next piece.
            self._half = said[-1] if said and "\ud800" <= said[-1] <= "\udbff" else ""
            piece = whole(said.removesuffix(self._half))
            self._texts.append(piece)
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError):
            raise TransientCallError(
                f"{self._where} sent an event without a message: {str(event)[:200]}"
            ) from None
        return piece

    def body(self) -> dict[str, Any]:
        """The body of the whole reply. Raises Unanswered where its end is missing: what there is may
        be half of it."""
        if self._finish_reason is None:
            raise Unanswered(f"{self._where} ended a reply before its end")
        message = {
            "content": self.text,
            "refusal": "".join(self._refusals) or None,
            "reasoning": self._thought or None,
        }
        return {
            "choices": [{"message": message, "finish_reason": self._finish_reason}],
            "usage": self._usage,
        }
