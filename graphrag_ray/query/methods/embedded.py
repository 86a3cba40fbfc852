"""Whether a snapshot has the embeddings that a way of answering searches."""

from __future__ import annotations

from collections.abc import Sequence

from graphrag_ray.base.declarations import SEARCHED
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods.method import Given, Kind


def check_embedded(given: Given, method: str, kinds: Sequence[Kind]) -> None:
    """Raises UsageError where the snapshot has rows of a kind but no embedding of any."""
    missing = [
        SEARCHED[k].table.replace("_", " ")
        for k in kinds
        if given.n_rows.get(SEARCHED[k].table) and not given.n_rows.get(f"embeddings_{k}")
    ]
    if missing:
        raise UsageError(
            f"{method} search needs embeddings of {' and '.join(missing)}, and this snapshot has none: run "
            "`graphrag-ray index` again, with embeddings.enabled: true. Only the embeddings are asked for; "
            "nothing that was answered is paid for again"
        )
