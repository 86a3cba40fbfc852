"""Vector search, the paper's SS (4.1.2): the chunks that are nearest to the question, as many as fill one
context, and one call."""

from __future__ import annotations

from graphrag_ray.query.methods.asked_hierarchy import check_embedded
from graphrag_ray.query.methods.method import Given, Method, Question, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import nearest
from graphrag_ray.query.methods.one_context import answer_from
from graphrag_ray.query.methods.where import among, within

NAME = "vector"


def search(question: Question, given: Given) -> Method:
    """Answer from the nearest chunks. Raises UsageError for an index without embeddings of chunks, and for
    conditions that cannot be met."""
    check_embedded(given, NAME, ["text_unit"])
    chunks = yield from within(question.where)
    find = Search("text_unit", "vector", question.text, among=(yield from among("text_unit", chunks)))
    context = yield from nearest([find], given, chunks)
    return (yield from answer_from(question.text, given, NAME, context))


METHOD = MethodKind(
    search,
    asks=("embed", "answer"),
    reads="passages, by meaning",
    others=("hybrid", "local"),
)
