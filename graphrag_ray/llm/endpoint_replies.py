"""Parsing of an endpoint's replies to text, vectors and token counts, or a clear error. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
    RerankReply,
    Usage,
    join_surrogates,
)
from graphrag_ray.base.reasoning import strip_reasoning
from graphrag_ray.llm.call_failures import (
    HttpRefusal,
    NoAnswer,
    PromptTruncated,
    ZeroVector,
    error_for_refusal,
)

MAX_TOKENS = 10**9  # Larger token counts for one call are invalid.
# For shorter prompts, chat templates and unusual vocabularies change counts too much to detect truncation.
MIN_TRUNCATED_TOKENS = 500
# An endpoint that reports less than this share of our own count has truncated the prompt.
TRUNCATED_SHARE = 0.5
IMPLAUSIBLE_FACTOR = 10  # No vocabulary explains a count this many times our own.


def decode_object(content: bytes, where: str) -> Mapping[str, Any]:
    """Decode the JSON object of a reply. Raises a CallError if it is an {"error": …} or not JSON."""
    body = load_json(content)
    if not isinstance(body, dict):
        start = content[:80].decode("utf-8", "replace")
        raise TransientCallError(f"{where} sent a reply that is not JSON: {start!r}")
    if refusal := HttpRefusal.in_body(body):
        raise error_for_refusal(refusal, where)
    return body


def load_json(content: bytes) -> Any:
    """Decode JSON, tolerating lone surrogates in strings. Returns None if it is not JSON."""
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
    limit: int = MAX_TOKENS,
    window: int = MAX_TOKENS,
) -> ChatReply:
    """Parse the reply of a chat call. Its text may include reasoning.

    Args:
        prompt_tokens: Our own count of the prompt tokens.
        count: Counts the tokens of a text, for endpoints that report no usage or implausible usage.
        limit: Maximum number of tokens in the reply.
        window: The model's context window.

    Raises:
        TransientCallError: The body has no message.
        PermanentCallError: A content filter left the reply empty.
        PromptTruncated: The endpoint read much less than the whole prompt.
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
    if usage is None or not is_plausible(usage, counted, limit, window):
        usage = counted
    min_tokens = prompt_tokens * TRUNCATED_SHARE
    if usage.reported and prompt_tokens > MIN_TRUNCATED_TOKENS and usage.prompt_tokens < min_tokens:
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
        finish = "stop"  # The limit is a single word.
    return ChatReply(text, finish, usage)


def read_embeddings(
    body: Mapping[str, Any], requests: Sequence[EmbeddingRequest], counts: Sequence[int], where: str
) -> list[EmbeddingReply]:
    """Parse the replies of a call that embeds all `requests`, in order.

    Divides the reported usage among the replies in proportion to our own `counts`, without remainder.

    Raises:
        TransientCallError: The body does not have one vector per text.
        FatalCallError: The vectors do not have the requested length.
        ZeroVector: A vector is all zeros.
    """
    try:
        data = body["data"]
        numbers = [d.get("index", 0) if len(data) == 1 else d["index"] for d in data]
        if any(type(n) is not int for n in numbers) or sorted(numbers) != list(range(len(data))):
            raise ValueError("not numbered from 0")
        with np.errstate(over="ignore"):  # Infinities are reported below.
            vectors = [
                np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
                if isinstance(value := data[i]["embedding"], str)
                else np.asarray(value, dtype="<f4").reshape(-1)
                for i in np.argsort(numbers)
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
    if usage is not None and not is_plausible(usage, counted, 0, MAX_TOKENS):
        usage = None
    if not all(v.any() for v in vectors):
        raise ZeroVector(f"{where} sent an embedding that is all zeros", usage=usage or counted)
    if usage is None:
        usages = [Usage(n, reported=False) for n in counts]
    else:
        usages = [Usage(n) for n in split_proportionally(usage.prompt_tokens, counts)]
    return [EmbeddingReply(v.tobytes(), u) for v, u in zip(vectors, usages, strict=True)]


def read_rerank(body: Mapping[str, Any], n_documents: int, n_tokens: int, where: str) -> RerankReply:
    """Parse the reply of a rerank call.

    The results are under `results` (Cohere, Jina, vLLM) or `data` (Voyage), in any order. Results without a
    valid index or a finite score are ignored, and the first of several with the same index counts.

    Args:
        n_tokens: Our own count, for endpoints that report no usage or implausible usage.

    Raises:
        TransientCallError: The body has no usable result.
    """
    results = body.get("results", body.get("data"))
    scores = np.full(n_documents, np.nan, "<f4")
    for result in reversed(results) if isinstance(results, list) else ():
        if not isinstance(result, Mapping):
            continue
        index, score = result.get("index"), result.get("relevance_score", result.get("score"))
        if type(index) is int and 0 <= index < n_documents and type(score) in (int, float):
            with suppress(OverflowError), np.errstate(over="ignore"):
                number = np.float32(score)
                scores[index] = number if np.isfinite(number) else scores[index]
    if np.isnan(scores).all():
        raise TransientCallError(f"{where} sent a reply without relevance scores: {str(body)[:200]}")
    reported, meta = body.get("usage"), body.get("meta")
    total = reported.get("total_tokens") if isinstance(reported, Mapping) else None
    usage = _usage({"prompt_tokens": total})  # rerankers write nothing; some report only the total
    if usage is None or not is_plausible(usage, Usage(n_tokens), 0, MAX_TOKENS):
        usage = Usage(n_tokens, reported=False)
    billed = meta.get("billed_units") if isinstance(meta, Mapping) else None
    searches = billed.get("search_units") if isinstance(billed, Mapping) else None
    searches = round(searches) if isinstance(searches, float) and searches.is_integer() else searches
    n_searches = searches if _is_count(searches) and searches <= n_documents else 1
    return RerankReply(scores.tobytes(), replace(usage, searches=n_searches))


def split_proportionally(total: int, weights: Sequence[int]) -> list[int]:
    """Divide `total` into integers in proportion to the weights, or equally if all weights are 0."""
    bounds = [0, *accumulate(weights if sum(weights) else [1] * len(weights))]
    return [total * b // bounds[-1] - total * a // bounds[-1] for a, b in pairwise(bounds)]


def _usage(reported: Any) -> Usage | None:
    """Parse reported usage. Returns None if it is missing or malformed."""
    if not isinstance(reported, Mapping):
        return None
    details = reported.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    cached = reported.get("prompt_cache_hit_tokens") if cached is None else cached
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens") or 0
    if not (_is_count(prompt) and _is_count(completion)) or prompt == completion == 0:
        return None
    return Usage(prompt, completion, min(cached, prompt) if _is_count(cached) else 0)


def is_plausible(usage: Usage, counted: Usage, limit: int, window: int) -> bool:
    """Whether usage is plausible, given our own count, the `limit` of the reply and the context `window`."""
    max_completion = max(limit, counted.completion_tokens) * 2 + MIN_TRUNCATED_TOKENS
    return (
        usage.prompt_tokens <= max(counted.prompt_tokens, MIN_TRUNCATED_TOKENS) * IMPLAUSIBLE_FACTOR
        and usage.completion_tokens <= max_completion
        and usage.prompt_tokens + usage.completion_tokens <= max(window, counted.prompt_tokens + limit)
    )


def has_reasoning(body: Mapping[str, Any], text: str) -> bool:
    """Whether a model has reasoned: in a separate field, within its text, or according to its usage."""
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
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS


async def read_events(received: AsyncIterator[bytes], where: str) -> AsyncIterator[object]:
    """Yield the events of a streamed reply, in linear time. Raises a CallError for errors and bad JSON."""

    async def lines() -> AsyncIterator[bytes]:
        pending: list[bytes] = []
        async for chunk in received:
            *ended, incomplete = (chunk + b"\0").splitlines()
            for line in ended:
                yield b"".join([*pending, line])
                pending = []
            pending.append(incomplete[:-1])
        yield b"".join(pending)
        yield b""

    data: list[bytes] = []
    async for line in lines():
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        if line or not data:
            continue
        payload, data = b"\n".join(data), []
        if payload.startswith(b"[DONE]"):
            return
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            raise TransientCallError(f"{where} sent an event that is not JSON") from None
        if isinstance(event, dict) and (refusal := HttpRefusal.in_body(event)):
            raise error_for_refusal(refusal, where)
        yield event


class StreamedReply:
    """Collects the events of a streamed chat reply. `where` is the endpoint's display address."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._texts: list[str] = []
        self._half = ""
        self._finish_reason: str | None = None
        self._refusals: list[str] = []
        self._reasoned = False
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
            self._reasoned = self._reasoned or bool(delta.get("reasoning_content") or delta.get("reasoning"))
            text = self._half + (delta.get("content") or "")
            # Keep half of a surrogate pair at the end until the next piece arrives.
            self._half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
            piece = join_surrogates(text.removesuffix(self._half))
            self._texts.append(piece)
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError):
            raise TransientCallError(
                f"{self._where} sent an event without a message: {str(event)[:200]}"
            ) from None
        return piece

    def body(self) -> dict[str, Any]:
        """Return the body of the whole reply. Raises NoAnswer if the stream ended early."""
        if self._finish_reason is None:
            raise NoAnswer(f"{self._where} ended the stream before the end of the reply")
        refusal, reasoning = "".join(self._refusals) or None, self._reasoned or None
        message = {"content": self.text, "refusal": refusal, "reasoning": reasoning}
        choice = {"message": message, "finish_reason": self._finish_reason}
        return {"choices": [choice], "usage": self._usage}
