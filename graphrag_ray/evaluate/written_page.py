"""The page of a comparison, written where it is wanted."""

from __future__ import annotations

import posixpath

from graphrag_ray.evaluate.comparison import Comparison
from graphrag_ray.evaluate.report_page import Evaluation, report_page
from graphrag_ray.query.ask import Index
from graphrag_ray.store.files import Store


def write_page(index: Index, found: Comparison, url: str) -> None:
    """Raises StoreError."""
    tables = found.tables
    name = posixpath.basename(index.store.url.rstrip("/")) or index.store.url
    page = report_page(
        Evaluation(
            title=f"{name}, snapshot {index.manifest.number}",
            description=found.description or index.settings.corpus.about or "",
            judge=found.judge,
            offline=found.offline,
            warnings=found.warnings,
            conditions=tables["conditions"],
            criteria=found.criteria,
            win_rates=tables["win_rates"],
            reliability=tables["reliability"],
            judgements=tables["judgements"],
            answers=tables["answers"].select(["condition", "question_id", "question", "text", "error"]),
            claims=tables.get("claim_counts"),
            agreement=tables.get("agreement"),
        )
    )
    store, file = Store.of_file(url, index.settings.storage.of(url))
    store.write(file, page.encode("utf-8"))
