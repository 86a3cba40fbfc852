"""Whether a snapshot has the embeddings that a way of answering searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.method import Given, Kind

TABLE_OF: Mapping[Kind, str] = {
    "entity": "entities",
    "relationship": "relationships",
    "text_unit": "text_units",
    "community_report": "community_reports",
}
"""The table whose rows are embedded under a kind."""


def check_embedded(given: Given, method: str, kinds: Sequence[Kind]) -> None:
    """Raises UsageError where the snapshot has rows of a kind but no embedding of any."""
    missing = [
        TABLE_OF[k].replace("_", " ")
        for k in kinds
        if given.n_rows.get(TABLE_OF[k]) and not given.n_rows.get(f"embeddings_{k}")
    ]
    if missing:
        raise UsageError(
            f"{method} search needs embeddings of {' and '.join(missing)}, and this snapshot has none: run "
            "`graphrag-ray index` again, with embeddings.enabled: true. Only the embeddings are asked for; "
            "nothing that was answered is paid for again"
        )
