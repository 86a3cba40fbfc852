"""Hybrid search: keywords (BM25) and embeddings, each list by its own measure, fused by score.

Over chunks, and over entities, relationships and reports as `query.hybrid_over` asks: all lists become one,
and what stands first in it fills one context.
"""

from __future__ import annotations

from graphrag_ray.query.methods.asked_hierarchy import check_embedded
from graphrag_ray.query.methods.method import By, Given, Method, Question, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import nearest
from graphrag_ray.query.methods.one_context import answer_from
from graphrag_ray.query.methods.where import among, within

NAME = "hybrid"
WAYS: tuple[By, ...] = ("vector", "keyword")


def search(question: Question, given: Given) -> Method:
    """Answer from what both searches find. Raises UsageError for an index without embeddings of a kind that
    is asked for, and for conditions that cannot be met."""
    kinds = list(dict.fromkeys(given.settings.query.hybrid_over))
    check_embedded(given, NAME, kinds)
    chunks = yield from within(question.where)
    searches = []
    for kind in kinds:
        ids = yield from among(kind, chunks)
        searches += [Search(kind, by, question.text, among=ids) for by in WAYS]
    context = yield from nearest(searches, given, chunks)
    return (yield from answer_from(question.text, given, NAME, context))


METHOD = MethodKind(
    search,
    asks=("embed", "answer"),
    reads="passages, by words and meaning",
    others=("local", "global"),
)
