"""Formats of the OpenAI protocol: bodies, errors, rate-limit headers, streams."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from .options import Options
from .window import Refused, Windows

_VOLATILE = frozenset(
    ("stream", "stream_options", "user", "metadata", "store", "safety_identifier", "prompt_cache_key",
     "service_tier", "encoding_format")
)  # fmt: skip
"""Fields that do not affect the reply."""
_CHUNKS_PER_S = 20.0
_MOST_CHUNKS = 400
_WORDS = re.compile(r"\s*\S+\s*\Z|\s*\S+")


@dataclass(frozen=True, slots=True)
class Reply:
    """The text of a reply, its number of tokens and its finish reason."""

    text: str
    tokens: int
    finish_reason: str = "stop"


def key_of(path: str, body: Mapping[str, Any]) -> bytes:
    """Hash of a body without its volatile fields, 16 bytes."""
    kept = {name: value for name, value in body.items() if name not in _VOLATILE}
    data = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.blake2b(path.encode() + data, digest_size=16).digest()


def hash_of(text: str) -> bytes:
    """Hash of a text, 8 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()


def messages_of(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of each message. Raises ValueError if the body is not a chat call."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ValueError("messages must be a list of messages")
    return [(str(m.get("role")), _text(m.get("content"))) for m in messages]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(p.get("text") or "") for p in content if isinstance(p, dict))
    return content if isinstance(content, str) else ""


def max_tokens_of(body: Mapping[str, Any]) -> int | None:
    """Raises ValueError for values that are not a number of tokens."""
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError("max_tokens must be a whole number from 1")
    return limit


def texts_of(body: Mapping[str, Any]) -> list[Any]:
    """The inputs of an embedding call, texts or lists of token ids. Raises ValueError for anything else."""
    inputs = body.get("input")
    texts = inputs if isinstance(inputs, list) and not all(isinstance(t, int) for t in inputs) else [inputs]
    if not texts or not all(isinstance(t, str | list) and t for t in texts):
        raise ValueError("input must be a text, or a list of texts, none of them empty")
    return texts


def error(message: str, type_: str, code: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": type_, "param": None, "code": code}})


def chat_body(key: bytes, model: str, reply: Reply, prompt: int, cached: int) -> bytes:
    return orjson.dumps(
        {
            "id": f"chatcmpl-{key.hex()}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": reply.text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": reply.finish_reason,
                }
            ],
            "usage": usage(prompt, reply.tokens, cached),
        }
    )


def chat_chunks(key: bytes, model: str, reply: Reply, n: int) -> Iterator[bytes]:
    """The text of a reply as about n server-sent events, then the final one."""
    words = _WORDS.findall(reply.text) or [""]
    size = math.ceil(len(words) / n)
    created = int(time.time())

    def event(delta: Mapping[str, Any], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event(key, model, created, [choice], None)

    for i in range(0, len(words), size):
        role = {"role": "assistant"} if i == 0 else {}
        yield event({**role, "content": "".join(words[i : i + size])}, None)
    yield event({}, reply.finish_reason)


def n_chunks(text: str, seconds: float) -> int:
    return max(1, min(text.count(" ") + 1, round(seconds * _CHUNKS_PER_S), _MOST_CHUNKS))


def usage_event(key: bytes, model: str, reply: Reply, prompt: int, cached: int) -> bytes:
    return _event(key, model, int(time.time()), [], usage(prompt, reply.tokens, cached))


def _event(key: bytes, model: str, created: int, choices: list[Any], used: Any) -> bytes:
    chunk = {"id": f"chatcmpl-{key.hex()}", "object": "chat.completion.chunk", "created": created,
             "model": model, "choices": choices, "usage": used}  # fmt: skip
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def embeddings_body(model: str, texts: Sequence[Any], dimensions: int, encoded: bool, tokens: int) -> bytes:
    data = [
        {"object": "embedding", "index": i, "embedding": _vector(text, dimensions, encoded)}
        for i, text in enumerate(texts)
    ]
    used = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps(
        {"object": "list", "model": model, "data": data, "usage": used}, option=orjson.OPT_SERIALIZE_NUMPY
    )


def documents_of(body: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The query and documents of a rerank call. Raises ValueError for anything else."""
    query, documents = body.get("query"), body.get("documents")
    if not isinstance(query, str) or not isinstance(documents, list) or not documents:
        raise ValueError("query must be a text, and documents a list of texts")
    if not all(isinstance(document, str) for document in documents):
        raise ValueError("documents must be texts")
    return query, documents


def rerank_body(model: str, query: str, documents: Sequence[str], tokens: int) -> bytes:
    """Score documents by the share of the query's words that they contain, best first."""
    words = set(query.lower().split())
    shares = [len(words.intersection(text.lower().split())) / max(1, len(words)) for text in documents]
    results = [
        {"index": i, "relevance_score": shares[i], "document": {"text": documents[i]}}
        for i in sorted(range(len(documents)), key=lambda i: -shares[i])
    ]
    return orjson.dumps({"model": model, "results": results, "usage": {"total_tokens": tokens}})


def _vector(text: Any, dimensions: int, encoded: bool) -> Any:
    """A unit vector drawn from the hash of the text."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else orjson.dumps(text)
    seed = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
    vector = np.random.Generator(np.random.SFC64(seed)).standard_normal(dimensions, dtype=np.float32)
    vector = (vector / np.linalg.norm(vector)).astype("<f4")
    return base64.b64encode(vector.tobytes()).decode() if encoded else vector


def refusal(refused: Refused, model: str, tokens: int, options: Options) -> bytes:
    """The body of a 429."""
    by_requests = refused.limit == "requests"
    of = "requests per min (RPM)" if by_requests else "tokens per min (TPM)"
    limit, asked = (options.rpm, 1) if by_requests else (options.tpm, tokens)
    if math.isinf(refused.wait_s):
        message = f"Request too large for {model} on {of}: Limit {limit:.0f}, Requested {asked}."
    else:
        message = (
            f"Rate limit reached for {model} on {of}: Limit {limit:.0f}, Requested {asked}. "
            f"Please try again in {go_duration(refused.wait_s)}."
        )
    return error(message, refused.limit, "rate_limit_exceeded")


def limit_headers(windows: Windows, now: float, options: Options) -> dict[str, str]:
    """The x-ratelimit-* headers. The reset is the time when a window is empty if nothing more is admitted."""
    if not options.headers:
        return {}
    requests, tokens, reset_s = windows.used(now, 60.0 / options.speed)
    out = {}
    for name, limit, used in (("requests", options.rpm, requests), ("tokens", options.tpm, tokens)):
        if limit is not None:
            out[f"x-ratelimit-limit-{name}"] = f"{limit:.0f}"
            out[f"x-ratelimit-remaining-{name}"] = f"{max(0.0, limit - used):.0f}"
            out[f"x-ratelimit-reset-{name}"] = go_duration(reset_s)
    return out


def retry_headers(refused: Refused, options: Options) -> dict[str, str]:
    if not options.headers or math.isinf(refused.wait_s):
        return {}
    ms = math.ceil(refused.wait_s * 1000)
    return {"retry-after-ms": str(ms), "Retry-After": str(math.ceil(ms / 1000))}


def go_duration(seconds: float) -> str:
    """Format as OpenAI does: "6ms", "1.2s", "1m3s". Rounded up to a millisecond."""
    ms = math.ceil(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    rest = f"{ms / 1000:.3f}".rstrip("0").rstrip(".")
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"
