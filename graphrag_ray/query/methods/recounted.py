"""Sizes of records in the vocabulary of the model that answers.

The tables count tokens as the indexing model does. Where another answers, its tokens may be more, and what a
question "takes at most" would not hold. To count all texts means to read them all; so a sample is counted,
and all sizes are raised by the worst ratio in it: a text outside of the sample may still be worse.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base.declarations import REPORTS, SEARCHED
from graphrag_ray.graph.report_context import shown_content
from graphrag_ray.query.methods.budget import has_budget
from graphrag_ray.query.methods.method import Given, Kind, Rows

SAMPLE = 50
"""Rows that are counted, evenly over the table, so over its documents or levels."""


def recounted(kind: Kind, rows: pa.Table, given: Given) -> Generator[Any, Any, pa.Table]:
    """Rows with their `n_tokens` raised where the answering model counts more; as they are without a budget,
    which is all that the sizes are bounds for. rows: at least the columns id and n_tokens."""
    if not rows.num_rows or not has_budget(given.settings.query):
        return rows
    places = np.unique(np.linspace(0, rows.num_rows - 1, SAMPLE).astype(np.int64))
    sample = rows.take(pa.array(places))
    size = dict(zip(sample["id"].to_pylist(), sample["n_tokens"].to_pylist(), strict=True))
    column = "full_content" if kind in REPORTS else "text"
    texts = yield Rows(SEARCHED[kind].table, ["id", column], list(size))
    worst = 1.0
    for id_, text in zip(texts["id"].to_pylist(), texts[column].to_pylist(), strict=True):
        n_tokens = given.count(shown_content(text) if kind in REPORTS else text)
        worst = max(worst, n_tokens / max(1, size[id_]))
    raised = np.ceil(rows["n_tokens"].to_numpy() * worst).astype(np.int64)
    return rows.set_column(rows.column_names.index("n_tokens"), "n_tokens", pa.array(raised))
