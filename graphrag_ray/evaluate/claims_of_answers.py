"""How many claims answers make, and how many different ones (GraphRAG 4.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.engine.drive import note_bug
from graphrag_ray.evaluate.comparison import texts_of
from graphrag_ray.evaluate.evaluation_run import EvaluationRun
from graphrag_ray.evaluate.judging.claim_clusters import THRESHOLDS, agreement, clusters, distinct
from graphrag_ray.evaluate.judging.head_to_head import JUDGEMENTS
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
    run: EvaluationRun, posed: Sequence[Posed], answers: pa.Table, judgements: pa.Table | None
) -> dict[str, pa.Table]:
    """The tables claims, claim_counts and, with judgements, agreement.

    answers: of `comparison.ANSWERED`. Raises RunStopped."""
    spec = answer_claims_spec(run.index.settings, run.index.given.prompts)
    questions = {p.id: p.text for p in posed}
    each = [
        (condition, question, text)
        for condition, texts in texts_of(answers).items()
        for question, text in texts.items()
    ]
    asked = (
        (f"question {question}, {condition}", partial(answer_claims, questions[question], text, spec))
        for condition, question, text in each
    )
    rows: list[dict[str, Any]] = []
    for (condition, question, _), outcome in zip(each, run.ask(CLAIMS_STAGE, asked, len(each)), strict=True):
        row: dict[str, Any] = {"condition": condition, "question_id": question}
        row["error"] = outcome.error or None
        if outcome.result is not None:
            row |= _counted(outcome.result)
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
    return tables


def _counted(listed: Sequence[str]) -> dict[str, Any]:
    try:
        texts = distinct(listed)
        return {"texts": texts, **dict(zip(COUNTS, [len(texts), *clusters(texts).values()], strict=True))}
    except Exception as e:
        if not is_unforeseen(e):
            raise
        return {"error": note_bug(e)}


def failed_claims(claims: pa.Table) -> tuple[int, list[str]]:
    """How many answers have no list of claims, and a sentence on it."""
    errors = [error for error in claims["error"].to_pylist() if error]
    if not errors:
        return 0, []
    (why, _), *_ = Counter(errors).most_common(1)
    told = f"the claims of {len(errors):,} of {len(claims):,} answers could not be listed, mostly: {why}"
    return len(errors), [told]


def judgements_on(run: EvaluationRun, posed: Sequence[Posed]) -> pa.Table | None:
    """The judgements of the folder on these questions; None where there are none. Raises StoreError."""
    judgements, answers = run.read("judgements"), run.read("answers")
    if judgements is None or answers is None or not set(JUDGEMENTS.names) <= set(judgements.column_names):
        return None
    asked = {(p.id, p.text) for p in posed}
    known = zip(answers["question_id"].to_pylist(), answers["question"].to_pylist(), strict=True)
    same = pa.array({id_ for id_, text in known if (id_, text) in asked}, pa.string())
    return judgements.filter(pc.is_in(judgements["question_id"], same))


def _agreement(claims: pa.Table, judgements: pa.Table) -> pa.Table:
    judged = set(judgements["criterion"].to_pylist())
    rows = []
    for name in COUNTS:
        criterion = AGREE_WITH[name.partition("_")[0]]
        if criterion not in judged:
            continue
        columns = (claims[c].to_pylist() for c in ("question_id", "condition", name))
        counts = {(q, c): float(n) for q, c, n in zip(*columns, strict=True) if n is not None}
        share, cases = agreement(counts, judgements, criterion)
        rows.append({"measure": name, "criterion": criterion, "cases": cases, "agreement": share})
    return pa.Table.from_pylist(rows, schema=AGREEMENT)
