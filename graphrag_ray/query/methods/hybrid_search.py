"""Hybrid search: fill one context with the results of keyword (BM25) and vector search, fused by score.

`query.hybrid_record_kinds` lists the kinds of records to search: chunks, entities, relationships, reports.
"""

from __future__ import annotations

from graphrag_ray.query.methods.document_filters import matching_chunks, matching_ids
from graphrag_ray.query.methods.hierarchy_choice import check_embedded
from graphrag_ray.query.methods.method import By, Method, Question, Search, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import nearest_context
from graphrag_ray.query.methods.single_context import answer_from

NAME = "hybrid"
BOTH: tuple[By, ...] = ("vector", "keyword")


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the results of both searches."""
    kinds = list(dict.fromkeys(env.settings.query.hybrid_record_kinds))
    check_embedded(env, NAME, kinds)
    chunks = yield from matching_chunks(question.where)
    searches = []
    for kind in kinds:
        ids = yield from matching_ids(kind, chunks)
        searches += [Search(kind, by, question.text, only_ids=ids) for by in BOTH]
    context = yield from nearest_context(searches, env, chunks)
    return (yield from answer_from(question.text, env, NAME, context))


METHOD = MethodKind(
    search,
    stages=("embed", "rerank", "answer"),
    description="passages by keywords and embedding",
    suggestions=("local", "global"),
)
