"""The source text itself, all of it: map-reduce over the shuffled chunks (the paper's TS, 4.1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphrag_ray.errors import UsageError
from graphrag_ray.query.budget import reading, refuse_beyond
from graphrag_ray.query.method import Given, Method, Question, Rows
from graphrag_ray.query.parts import ToRead, answered, read
from graphrag_ray.reports.context import Record, source

NAME = "text"
TABLE = "text_units"
ADVICE = (
    "Raise the budget, or ask the reports: --method global --level auto takes the finest level within it."
)


def search(question: Question, given: Given) -> Method:
    """Read all chunks. Raises UsageError where there are none, BudgetSpent."""
    if question.level is not None:
        raise UsageError("--method text reads the source text, which has no levels: leave --level out")
    chunks = yield Rows(TABLE, ["id", "n_tokens"])
    if not chunks.num_rows:
        raise UsageError("this index holds no text: none of its documents had any")
    refuse_beyond(reading(question.text, given, chunks["n_tokens"]), given.settings.query, ADVICE)
    ids, sizes = chunks["id"].to_pylist(), chunks["n_tokens"].to_pylist()
    what = yield from read(question.text, given, ToRead(TABLE, ["id", "text"], record_of, ids, sizes))
    return (yield from answered(question.text, NAME, "chunks", what))


def record_of(row: Mapping[str, Any]) -> Record:
    return source(row["id"], row["text"])
