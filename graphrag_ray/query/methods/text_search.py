"""Text search: map-reduce over the shuffled chunks of all or selected documents (the paper's TS, 4.1.2)."""

from __future__ import annotations

import numpy as np

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods.budget import check_budget, map_reduce_bound, recount_tokens
from graphrag_ray.query.methods.document_filters import matching_chunks, matching_ids
from graphrag_ray.query.methods.method import Method, Notice, Question, Rows, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.partial_answers import RecordsToRead, combined_answer, map_reduce
from graphrag_ray.query.methods.record_loading import label_tokens

NAME = "text"
ADVICE = (
    "Raise the budget, or use reports: --method global --level auto reads the finest level within the budget."
)


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from all chunks, or all chunks of the selected documents."""
    chosen = yield from matching_ids("text_unit", (yield from matching_chunks(question.where)))
    chunks = yield Rows("text_units", ["id", "n_tokens"], chosen)
    if not chunks.num_rows:
        raise UsageError("There is no text to read: all documents are empty")
    chunks = yield from recount_tokens("text_unit", chunks, env)
    sizes = np.add(chunks["n_tokens"].to_numpy(), label_tokens(env))
    bound = map_reduce_bound(question.text, env, sizes)
    check_budget(bound, env.settings.query, ADVICE)
    yield Notice(f"Reading {plural(chunks.num_rows, 'chunk')}: {bound}.")
    wanted = RecordsToRead("text_unit", chunks["id"].to_pylist(), chunks["n_tokens"].to_pylist())
    parts = yield from map_reduce(question.text, env, wanted)
    return (yield from combined_answer(question.text, NAME, "chunks", parts))


METHOD = MethodKind(search, stages=("map", "reduce"), description="the full text")
