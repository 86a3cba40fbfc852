"""The source text itself, all of it: map-reduce over the shuffled chunks (the paper's TS, 4.1.2).

With conditions on documents, all of the text of those that fulfil them.
"""

from __future__ import annotations

import numpy as np

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.wording import plural
from graphrag_ray.query.methods.budget import reading, recounted, refuse_beyond
from graphrag_ray.query.methods.map_parts import ToRead, answered, read
from graphrag_ray.query.methods.method import Given, Method, Notice, Question, Rows
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.record_rows import label_tokens
from graphrag_ray.query.methods.where import among, within

NAME = "text"
ADVICE = (
    "Raise the budget, or ask the reports: --method global --level auto takes the finest level within it."
)


def search(question: Question, given: Given) -> Method:
    """Read all chunks. Raises UsageError where there are none, BudgetSpent."""
    chosen = yield from among("text_unit", (yield from within(question.where)))
    chunks = yield Rows("text_units", ["id", "n_tokens"], chosen)
    if not chunks.num_rows:
        raise UsageError("there is no text to read: none of the documents has any")
    chunks = yield from recounted("text_unit", chunks, given)
    most = reading(question.text, given, np.add(chunks["n_tokens"].to_numpy(), label_tokens(given)))
    refuse_beyond(most, given.settings.query, ADVICE)
    yield Notice(f"All {plural(chunks.num_rows, 'chunk')} are read: {most}.")
    wanted = ToRead("text_unit", chunks["id"].to_pylist(), chunks["n_tokens"].to_pylist())
    what = yield from read(question.text, given, wanted)
    return (yield from answered(question.text, NAME, "chunks", what))


METHOD = MethodKind(
    search,
    asks=("map", "reduce"),
    reads="all of the text",
)
