"""Hybrid search: keywords (BM25) and embeddings, each list by its own measure, fused by score.

Over chunks, and over entities, relationships and reports as `query.hybrid_over` asks: all lists become one,
and what stands first in it fills one context.
"""

from __future__ import annotations

from graphrag_ray.query.methods.embedded import check_embedded
from graphrag_ray.query.methods.method import Given, Method, Question, Search
from graphrag_ray.query.methods.nearest import nearest
from graphrag_ray.query.methods.one_context import answered, read
from graphrag_ray.query.methods.where import among, within

NAME = "hybrid"


def search(question: Question, given: Given) -> Method:
    """Answer from what both searches find. Raises UsageError for an index without embeddings of a kind that
    is asked for, and for conditions that cannot be met."""
    kinds = list(dict.fromkeys(given.settings.query.hybrid_over))
    check_embedded(given, NAME, kinds)
    chunks = yield from within(question.where)
    searches = []
    for kind in kinds:
        ids = yield from among(kind, chunks)
        searches += [
            Search(kind, "vector", question.text, 0, ids),
            Search(kind, "keyword", question.text, 0, ids),
        ]
    context = yield from nearest(searches, given, chunks)
    what = yield from read(question.text, given, context)
    return (yield from answered(question.text, NAME, what))
