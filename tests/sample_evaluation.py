"""A comparison of conditions in the format of `evaluate compare`, with verdicts from a formula."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pyarrow as pa

from graphrag_ray.evaluate.comparison import CONDITIONS, INDEXES, Comparison
from graphrag_ray.evaluate.judging.head_to_head import JUDGEMENTS, RELIABILITY, WIN_RATES, count_tests

CRITERIA = {
    "comprehensiveness": "How much detail does the answer provide? Does it cover all aspects?",
    "directness": "How specifically and clearly does the answer address the question?",
}
ANSWERS = pa.schema(
    [(name, pa.string()) for name in ("condition", "question_id", "question", "text", "error")]
)
MEASURES = ("claims", *(f"clusters_0_{n}" for n in (5, 6, 7, 8)))
CLAIMS = pa.schema(
    [("condition", pa.string()), ("answers", pa.int64()), *((m, pa.float64()) for m in MEASURES)]
)
AGREEMENT = pa.schema(
    [
        *((name, pa.string()) for name in ("measure", "criterion")),
        ("cases", pa.int64()),
        *((name, pa.float64()) for name in ("agreement", "majorities")),
    ]
)


def table(schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def sample(
    names: Sequence[str] = ("C0", "TS", "SS"), questions: int = 3, replicates: int = 2, **changes: Any
) -> Comparison:
    """Of two conditions, the later one wins more often, significantly if there is another one between them.

    The second has no answers, and the first judgement of each criterion has no verdict.
    """
    pairs = list(itertools.combinations(range(len(names)), 2))
    judgements = [
        {
            "question_id": f"q{question}",
            "criterion": criterion,
            "first": names[a],
            "second": names[b],
            "replicate": replicate,
            "swapped": replicate % 2 == 1,
            "winner": (names[b], names[a], "")[(question + replicate) % 3],
            "reason": f"Reason {replicate} for {criterion}, question {question}.",
        }
        for question in range(questions)
        for criterion in CRITERIA
        for a, b in pairs
        for replicate in range(replicates)
    ]
    for failed in {row["criterion"]: row for row in reversed(judgements)}.values():
        failed |= {"winner": None, "reason": None, "error": "no JSON in the reply"}
    rates = [
        {
            "criterion": criterion,
            "first": names[a],
            "second": names[b],
            "questions": questions,
            "win_rate": 50 - 12.0 * (b - a) / len(names) * 2,
            "low": 45 - 12.0 * (b - a) / len(names) * 2,
            "high": 55 - 12.0 * (b - a) / len(names) * 2,
            "ties": 0.125,
            "z": -1.75 * (b - a),
            "p": 0.08 if b - a == 1 else 0.0004,
            "p_holm": 0.16 if b - a == 1 else 0.0008,
            "normal_p": 0.002,
            "failed": int(a == 0 and b == 1),
        }
        for criterion in CRITERIA
        for a, b in pairs
    ]
    conditions = [
        {
            "name": name,
            "method": "global",
            "level": str(n or ""),
            "index": "/indexes/podcasts",
            "settings": f"level: {n}\nmap_tokens: 8000",
            "questions": questions,
            "failed": int(n == 1),
            "calls": 10 * (n + 1) * questions,
            "tokens": 5000 * (n + 1) * questions,
            "cost_usd": 0.01 * (n + 1) * questions,
            "cost_usd_per_answer": 0.01 * (n + 1),
            "seconds": 2.25 * (n + 1),
            "model_seconds": 3.5 * (n + 1),
            "words": 300.0 + n,
        }
        for n, name in enumerate(names)
    ]
    answers = [
        {
            "condition": name,
            "question_id": f"q{question}",
            "question": f"What are the themes of part {question}?",
            "text": None
            if n == 1
            else f"## Themes\n\n**{name}** of part {question}: [source](https://example.org/{n})",
            "error": "the endpoint gave up" if n == 1 else None,
        }
        for n, name in enumerate(names)
        for question in range(questions)
    ]
    measured = {name: {m: 30.0 - n - 4 * k for k, m in enumerate(MEASURES)} for n, name in enumerate(names)}
    reliability = [
        {
            "criterion": criterion,
            "verdicts": len(judgements) // 2 - 1,
            "failed": 1,
            "first_shown": 0.56,
            "position_bias": 0.24,
            "agreement": 0.81,
        }
        for criterion in CRITERIA
    ]
    agreement = [
        {"measure": m, "criterion": c, "cases": 40, "agreement": 0.78, "majorities": 0.9}
        for m in MEASURES
        for c in CRITERIA
    ]
    index = {"index": "/indexes/podcasts", "snapshot": 7, "documents": 72, "text_units": 1669, "calls": 9_000}
    counts = {
        m: {(f"q{q}", name): 30.0 - n for n, name in enumerate(names) for q in range(questions)}
        for m in MEASURES
    }
    tables = {
        "conditions": table(CONDITIONS, conditions),
        "indexes": table(INDEXES, [index | {"tokens": 5_000_000, "cost_usd": 12.5, "seconds": 3_600.5}]),
        "win_rates": table(WIN_RATES, rates),
        "reliability": table(RELIABILITY, reliability),
        "judgements": table(JUDGEMENTS, judgements),
        "answers": table(ANSWERS, answers),
        "claim_counts": table(
            CLAIMS, [{"condition": name, "answers": questions, **m} for name, m in measured.items()]
        ),
        "count_tests": count_tests(counts, list(combinations(names, 2))),
        "agreement": table(AGREEMENT, agreement),
    }
    tables |= {name: changes.pop(name) for name in {*changes} & {*tables}}
    made = Comparison(
        title="Podcasts, snapshot 7",
        description="Transcripts of conversations.",
        judge="gpt-5-mini",
        criteria=CRITERIA,
        tables={name: own for name, own in tables.items() if own is not None},
    )
    return replace(made, **changes)
