"""How many claims answers make, and how many different ones (GraphRAG 4.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from graphrag_ray.evaluate.evaluation_run import EvaluationRun, Results
from graphrag_ray.evaluate.judging.claim_clusters import THRESHOLDS, agreement, clusters, distinct
from graphrag_ray.evaluate.judging.judge_dialogue import CLAIMS_STAGE, answer_claims, answer_claims_spec
from graphrag_ray.query.question_files import Posed

AGREE_WITH: Mapping[str, str] = {"claims": "comprehensiveness", "clusters": "diversity"}
"""The criterion that a count stands for (GraphRAG 4.2)."""

COUNTS = ("claims", *(f"clusters_{str(t).replace('.', '_')}" for t in THRESHOLDS))
"""Columns: claims of an answer, each once; clusters of these at a distance of .5, .6, …"""

CLAIMS = pa.schema(
    [
        ("condition", pa.string()),
        ("question_id", pa.string()),
        ("texts", pa.list_(pa.string())),  # each once; null where they could not be listed
        *((name, pa.int64()) for name in COUNTS),
        ("error", pa.string()),
    ]
)
CLAIM_COUNTS = pa.schema(
    [("condition", pa.string()), ("answers", pa.int64()), *((name, pa.float64()) for name in COUNTS)]
)
AGREEMENT = pa.schema(
    [
        ("measure", pa.string()),
        ("criterion", pa.string()),
        ("cases", pa.int64()),  # pairs of answers with a winner, whose counts differ
        ("agreement", pa.float64()),  # share of these where the winner has more; null without any
    ]
)


def count_claims(
    run: EvaluationRun,
    posed: Sequence[Posed],
    texts: Mapping[str, Mapping[str, str]],
    judgements: pa.Table | None,
) -> Results:
    """The tables claims, claim_counts, judging and, with judgements, agreement.

    texts: of the answers, by condition and id of the question. Raises RunStopped."""
    spec = answer_claims_spec(run.index.settings, run.index.given.prompts)
    questions = {p.id: p.text for p in posed}
    each = [(condition, id_, text) for condition, own in texts.items() for id_, text in own.items()]
    asked = (
        (f"question {id_}, {condition}", partial(answer_claims, questions[id_], text, spec))
        for condition, id_, text in each
    )
    rows: list[dict[str, Any]] = []
    for (condition, id_, _), outcome in zip(each, run.ask(CLAIMS_STAGE, asked, len(each)), strict=True):
        row: dict[str, Any] = {"condition": condition, "question_id": id_, "error": outcome.error or None}
        if outcome.result is not None:
            own = distinct(outcome.result)
            row |= {"texts": own, **dict(zip(COUNTS, [len(own), *clusters(own).values()], strict=True))}
        rows.append(row)
    claims = pa.Table.from_pylist(rows, schema=CLAIMS)
    counted = claims.group_by("condition", use_threads=False).aggregate(
        [("claims", "count"), *((name, "mean") for name in COUNTS)]
    )
    columns = [counted[name] for name in ("condition", "claims_count", *(f"{name}_mean" for name in COUNTS))]
    tables = {"claims": claims, "claim_counts": pa.table(columns, CLAIM_COUNTS.names).cast(CLAIM_COUNTS)}
    if judgements is not None:
        tables["agreement"] = _agreement(claims, judgements)
    tables["judging"] = run.costs()
    for name, table in tables.items():
        run.write(name, table)
    errors = [row["error"] for row in rows if row["error"]]
    warnings = []
    if errors:
        (why, _), *_ = Counter(errors).most_common(1)
        missing = f"the claims of {len(errors):,} of {len(rows):,} answers could not be listed"
        warnings = [f"{missing}, mostly: {why}"]
    return Results(tables, warnings, len(errors))


def _agreement(claims: pa.Table, judgements: pa.Table) -> pa.Table:
    judged = set(judgements["criterion"].to_pylist())
    rows = []
    for name in COUNTS:
        criterion = AGREE_WITH[name.partition("_")[0]]
        if criterion in judged:
            columns = (claims[c].to_pylist() for c in ("question_id", "condition", name))
            counts = {(q, c): float(n) for q, c, n in zip(*columns, strict=True) if n is not None}
            share, cases = agreement(counts, judgements, criterion)
            rows.append({"measure": name, "criterion": criterion, "cases": cases, "agreement": share})
    return pa.Table.from_pylist(rows, schema=AGREEMENT)
