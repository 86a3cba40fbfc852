"""Embed index records and questions in the same way, so that their vectors are comparable."""

from __future__ import annotations

from dataclasses import dataclass

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.messages import CallParameters, Dialogue, EmbeddingReply, EmbeddingRequest
from graphrag_ray.corpus.tokens import truncate, vocabulary_for


@dataclass(frozen=True, slots=True)
class Embedder:
    """Embeds texts with the configured model."""

    call: CallParameters
    dimensions: int | None  # None uses the model's default
    max_tokens: int  # texts are truncated to this length because embedding models reject longer ones
    vocabulary: str

    @classmethod
    def from_settings(cls, settings: Settings) -> Embedder:
        call = settings.call_parameters("embed")
        model = settings.model(call.model)
        vocabulary = vocabulary_for(model.model, model.tokenizer).name
        return cls(call, model.embedding_dimensions, settings.embeddings.max_tokens, vocabulary)

    def embed(self, text: str) -> Dialogue[bytes]:
        """Return the vector of a text as little-endian float32."""
        reply: EmbeddingReply = yield EmbeddingRequest(self.truncate(text), self.call, self.dimensions)
        return reply.vector

    def truncate(self, text: str) -> str:
        """Truncate a text to `max_tokens`."""
        return truncate(text, self.max_tokens, self.vocabulary)
