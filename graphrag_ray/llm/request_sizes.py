"""Our own token counts of requests, and whether requests fit a model's context window."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.errors import RequestTooLarge
from graphrag_ray.base.messages import ChatRequest, RerankRequest
from graphrag_ray.corpus.tokens import Vocabulary, count_tokens, vocabulary_for

TOKENS_PER_MESSAGE = 4  # approximate overhead of a chat template per message
PACK_TOKENS = 100_000  # maximum size of an embedding call; endpoints refuse about 300,000 tokens
_MAX_CACHED_CHARS = 20_000  # Counts of longer texts are not cached, to limit the cache to a few megabytes.


@lru_cache(maxsize=64)
def vocabulary_of(model: str, tokenizer: str | None) -> Vocabulary:
    return vocabulary_for(model, tokenizer)


def guessed_vocabularies(models: Mapping[str, Model]) -> list[str]:
    """Return a message for each model without a known vocabulary."""
    return [
        f"Unknown vocabulary of {m.model!r}: counting tokens with "
        f"{vocabulary_of(m.model, m.tokenizer).name}. If you know the right one, set models.{name}.tokenizer."
        for name, m in models.items()
        if not m.is_local and not vocabulary_of(m.model, m.tokenizer).known
    ]


def count_text_tokens(text: str, model: Model) -> int:
    """Count the tokens of a text. At least 1, because endpoints bill at least one."""
    count_text = _cached_count if len(text) < _MAX_CACHED_CHARS else count_tokens
    return max(1, count_text(text, vocabulary_of(model.model, model.tokenizer).name))


def count_rerank_tokens(request: RerankRequest, model: Model) -> int:
    """Count the tokens of a rerank request. A cross-encoder reads the query with each document."""
    query = count_text_tokens(request.query, model)
    return sum(query + count_text_tokens(document, model) for document in request.documents)


@lru_cache(maxsize=512)
def _cached_count(text: str, vocabulary: str) -> int:
    """Count tokens with a cache, because fixed parts of prompts and earlier turns recur in many calls."""
    return count_tokens(text, vocabulary)


def count_prompt_tokens(request: ChatRequest, model: Model) -> int:
    """Count the tokens of a chat request. Raises RequestTooLarge if the context window is too small."""
    size = sum(count_text_tokens(m.content, model) + TOKENS_PER_MESSAGE for m in request.messages)
    limit = output_limit(request, model)
    if size + limit > model.context_window:
        raise RequestTooLarge(
            f"The {request.prompt!r} prompt was not sent: its {size} tokens and {limit} for the reply exceed "
            f"the context window of {model.context_window} tokens of {model.model or 'the model'}"
        )
    return size


def reasoning_room(request: ChatRequest, model: Model, prompt_tokens: int, room: int) -> int:
    """Return how many of `room` reasoning tokens fit the context window in addition to prompt and reply."""
    return max(0, min(room, model.context_window - prompt_tokens - output_limit(request, model)))


def output_limit(request: ChatRequest, model: Model) -> int:
    """Return the maximum number of tokens in the reply."""
    return request.call.max_output_tokens or model.max_output_tokens
