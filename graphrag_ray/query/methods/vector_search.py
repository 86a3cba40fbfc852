"""Vector search, the paper's SS (4.1.2): one call answers from the nearest chunks, which fill one context."""

from __future__ import annotations

from graphrag_ray.query.methods.document_filters import matching_chunks, matching_ids
from graphrag_ray.query.methods.hierarchy_choice import check_embedded
from graphrag_ray.query.methods.method import Method, Question, Search, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import nearest_context
from graphrag_ray.query.methods.single_context import answer_from

NAME = "vector"


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the nearest chunks."""
    check_embedded(env, NAME, ["text_unit"])
    chunks = yield from matching_chunks(question.where)
    ids = yield from matching_ids("text_unit", chunks)
    nearest = Search("text_unit", "vector", question.text, only_ids=ids)
    context = yield from nearest_context([nearest], env, chunks)
    return (yield from answer_from(question.text, env, NAME, context))


METHOD = MethodKind(
    search,
    stages=("embed", "rerank", "answer"),
    description="passages by embedding",
    suggestions=("hybrid", "local"),
)
