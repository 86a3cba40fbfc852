"""The offline engine: our named prompts answered by classical methods, without a model.

    extract    sentences ─► capitalised runs ─► names, types, relations ─► the paper's tuples
    questions  a context ─► its sentences ─► BM25, MMR ─► quotations with references (`answerer.py`)
    digests    the same without a question: LexRank, MMR ─► descriptions, summaries, reports (`digests.py`)
    evaluation fixed sentences for users, tasks and questions; answers judged by counting

What it sees is what the prompt carries and a static lexicon of ordinary words. It writes quotations,
exact but for white space, and few fixed phrases of its own; the same request always has the same reply.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphrag_ray.base.messages import ChatReply, ChatRequest, EmbeddingReply, EmbeddingRequest
from graphrag_ray.base.providers import LocalProvider


def answer(request: ChatRequest) -> ChatReply:
    """The reply to one of our named prompts (`replies.answer`)."""
    from graphrag_ray.offline import replies  # read when first needed: a model's answers need none of it

    return replies.answer(request)


def embed_many(texts: Sequence[str]) -> list[bytes]:
    """One vector per text (`static_embeddings.embed_many`)."""
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
