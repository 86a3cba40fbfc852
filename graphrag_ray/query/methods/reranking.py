"""Rerank the first records that a search finds with a model that reads the question with each of them.

`nearest_context` (vector, hybrid, drift), `walk_chunks` (ppr, local), trex and lightrag call `reranked`.
Without `query.rerank_model`, it changes nothing and makes no call.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from graphrag_ray.base.declarations import SEARCHABLE_KINDS
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Query, Settings
from graphrag_ray.base.messages import RERANK, Dialogue, RerankReply, RerankRequest
from graphrag_ray.corpus.tokens import count_tokens, truncate, vocabulary_for
from graphrag_ray.query.methods.method import DialogueOutcome, Dialogues, Kind, SearchEnv, Steps
from graphrag_ray.query.methods.record_loading import load_records

SPECIAL_TOKENS = 16
"""Allowance for the special tokens around a query and a document."""

RecordId: TypeAlias = tuple[Kind, str]


def n_candidates(query: Query, k: int) -> int:
    """Return how many records to retrieve, so that k remain after reranking."""
    return max(k, query.rerank_candidates) if query.rerank_model else k


def reranked(
    ranked: Sequence[tuple[str, Sequence[RecordId]]], env: SearchEnv, chunks: Collection[str] | None = None
) -> Steps[list[list[RecordId]]]:
    """Reorder the first `query.rerank_candidates` records of each ranking by their relevance to its text.

    Records that the model does not score follow in their order. If the call for a text fails, its ranking
    stays, and `ask.py` adds a note to the answer.

    Args:
        ranked: Texts, each with its records, best first.
        chunks: Restrict descriptions of elements to these chunks. None allows all.
    """
    query = env.settings.query
    orders = [list(order) for _, order in ranked]
    if not query.rerank_model:
        return orders
    heads = [order[: query.rerank_candidates] for order in orders]
    records = yield from load_records(dict.fromkeys(key for head in heads for key in head), env, chunks)
    text_of = {(record.section, record.id): "\n".join(filter(None, record.fields)) for record in records}
    texts = [
        {key: text for key in head if (text := text_of.get((SEARCHABLE_KINDS[key[0]].section, key[1])))}
        for head in heads
    ]
    asked = [n for n, of_head in enumerate(texts) if len(of_head) > 1]
    dialogues = [partial(rerank, ranked[n][0], tuple(texts[n].values()), env.settings) for n in asked]
    outcomes: list[DialogueOutcome[list[float]]] = (yield Dialogues(RERANK, dialogues)) if dialogues else []
    for n, outcome in zip(asked, outcomes, strict=True):
        if outcome.result is not None:
            orders[n] = list(dict.fromkeys([*by_score(list(texts[n]), outcome.result), *orders[n]]))
    return orders


def by_score(records: Sequence[RecordId], scores: Sequence[float]) -> list[RecordId]:
    """Sort records by descending score, without those whose score is NaN. Ties keep their order."""
    scored = [(score, key) for key, score in zip(records, scores, strict=True) if not math.isnan(score)]
    return [key for _, key in sorted(scored, key=lambda pair: -pair[0])]


def rerank(text: str, documents: Sequence[str], settings: Settings) -> Dialogue[list[float]]:
    """Return the relevance of each document to a text. Both are cut to fit the model's context window."""
    call = settings.call_parameters(RERANK)
    model = settings.model(call.model)
    vocabulary = vocabulary_for(model.model, model.tokenizer).name
    text = truncate(text, model.context_window // 2, vocabulary)
    room = max(1, model.context_window - count_tokens(text, vocabulary) - SPECIAL_TOKENS)
    cut = tuple(truncate(document, room, vocabulary) for document in documents)
    reply: RerankReply = yield RerankRequest(text, cut, call)
    scores: list[float] = np.frombuffer(reply.vector, "<f4").tolist()
    if len(scores) != len(documents):
        raise DialogueFailed(f"The model returned {len(scores)} scores for {len(documents)} documents")
    return scores
