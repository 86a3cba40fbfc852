"""A baseline that answers from the documents known to contain the answer (TREX). Only `evaluate` offers it.

It has the prompt and context size of vector search, so their difference is due to imperfect retrieval.
"""

from __future__ import annotations

from graphrag_ray.query.methods.context_filling import Share, fill
from graphrag_ray.query.methods.method import Method, Question, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.record_loading import load_records, prefix_that_fits
from graphrag_ray.query.methods.single_context import answer_from

NAME = "oracle"


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the chunks of the question, in their order."""
    ids, _ = yield from prefix_that_fits(question.chunks, env)
    records = yield from load_records([("text_unit", id_) for id_ in ids], env, distinct_texts=True)
    context = fill([Share(records)], env.settings.query.context_tokens, env.count)
    return (yield from answer_from(question.text, env, NAME, context))


METHOD = MethodKind(search, stages=("answer",), description="the documents that contain the answer")
