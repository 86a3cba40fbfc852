"""The offline engine: replies to our prompts with classical methods, without a model.

    extract     sentences ─► capitalised runs ─► names, types, relations ─► the paper's tuples
    questions   context ─► sentences ─► rank, MMR ─► quotations with references (`answerer.py`)
    digests     context ─► LexRank, MMR ─► descriptions, summaries, reports (`digests.py`)
    evaluation  templates for personas, tasks and questions; answers judged by counting

It uses only the variables of the prompt and a static lexicon of ordinary words. Replies consist of exact
quotations and a few fixed phrases, and are deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphrag_ray.base.messages import ChatReply, ChatRequest, EmbeddingReply, EmbeddingRequest
from graphrag_ray.base.providers import LocalProvider


def answer(request: ChatRequest) -> ChatReply:
    """Reply to one of our prompts."""
    from graphrag_ray.offline import replies  # Imported lazily, because it is not needed with a model.

    return replies.answer(request)


def embed_many(texts: Sequence[str]) -> list[bytes]:
    """Embed each text (see `static_embeddings`)."""
    from graphrag_ray.offline import static_embeddings

    return static_embeddings.embed_many(texts)


class OfflineProvider(LocalProvider):
    def chat(self, request: ChatRequest) -> ChatReply:
        return answer(request)

    def embed(self, requests: Sequence[EmbeddingRequest]) -> list[EmbeddingReply]:
        return [EmbeddingReply(vector) for vector in embed_many([r.text for r in requests])]

    def prepare(self) -> None:
        from graphrag_ray.offline import replies  # noqa: F401


PROVIDER = OfflineProvider()
