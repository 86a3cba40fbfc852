"""How many tokens a request has, by our own count, and whether it fits its model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from graphrag_ray.base.errors import DoesNotFit
from graphrag_ray.base.index_settings import Model
from graphrag_ray.base.messages import ChatRequest
from graphrag_ray.corpus.tokens import Vocabulary, count, vocabulary_for

TOKENS_PER_MESSAGE = 4
"""What a chat template adds to each message, roughly."""

PACK_TOKENS = 100_000
"""A pack of texts to embed is sent when it holds so many; endpoints refuse calls of some 300,000."""


REMEMBERED_CHARACTERS = 20_000
"""Of a text whose tokens are remembered: so many of these take a few megabytes."""


@lru_cache(maxsize=64)
def vocabulary_of(model: str, tokenizer: str | None) -> Vocabulary:
    """The vocabulary of a model id, and whether it is the model's own for certain."""
    return vocabulary_for(model, tokenizer)


def guessed_vocabularies(models: Mapping[str, Model]) -> list[str]:
    """A sentence for each model, by its name in the settings, whose vocabulary is not known for certain."""
    return [
        f"The vocabulary of {m.model!r} is not known: its tokens are counted with "
        f"{vocabulary_of(m.model, m.tokenizer).name}. If you know it, set models.{name}.tokenizer."
        for name, m in models.items()
        if not m.is_local and not vocabulary_of(m.model, m.tokenizer).known
    ]


def text_size(text: str, model: Model) -> int:
    """Tokens of a text, at least 1: what an endpoint bills is never nothing."""
    counted = _counted if len(text) < REMEMBERED_CHARACTERS else count
    return max(1, counted(text, vocabulary_of(model.model, model.tokenizer).name))


@lru_cache(maxsize=512)
def _counted(text: str, vocabulary: str) -> int:
    """Prompts' fixed parts come again in each call, and a dialogue's first turns in each later one."""
    return count(text, vocabulary)


def prompt_size(request: ChatRequest, model: Model) -> int:
    """Tokens of a chat request's messages.

    Raises DoesNotFit where these and the reply's limit do not fit the context window.
    """
    size = sum(text_size(m.content, model) + TOKENS_PER_MESSAGE for m in request.messages)
    limit = output_limit(request, model)
    if size + limit > model.context_window:
        raise DoesNotFit(
            f"the {request.prompt!r} prompt has {size} tokens, which with {limit} for the reply is more than "
            f"the context window of {model.context_window} tokens of {model.model or 'the model'}: not sent"
        )
    return size


def thought_room(request: ChatRequest, model: Model, prompt_tokens: int, room: int) -> int:
    """Of `room` tokens for thoughts, those that the window leaves beside the prompt and the reply's limit."""
    return max(0, min(room, model.context_window - prompt_tokens - output_limit(request, model)))


def output_limit(request: ChatRequest, model: Model) -> int:
    """The most tokens that the reply may have."""
    return request.call.max_output_tokens or model.max_output_tokens
