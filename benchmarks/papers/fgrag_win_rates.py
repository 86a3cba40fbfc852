"""FG-RAG, main table: its win rates, by a judge of all criteria in one call, and its ablations.

    python benchmarks/papers/fgrag_win_rates.py TRANSCRIPTS --questions questions.csv --limit 10

The paper has the means of five corpora, with gpt-4o-mini as model and judge.
"""

from harness import paper_run, show, win_rates

PUBLISHED = {
    "naive": {"fgrag": 69.0, "without expansion": 67.8, "without summaries": 52.9},
    "lightrag": {"fgrag": 58.6},
    "global": {"fgrag": 64.6},
}
CONDITIONS = {
    "fgrag": "fgrag",
    "naive": "vector",
    "lightrag": "lightrag",
    "global": "global",
    "without expansion": "fgrag,query.fgrag_expansion=false",
    "without summaries": "fgrag,query.fgrag_summaries=false",
}

with paper_run(__doc__, "any of the corpora", "questions about the whole corpus") as run:
    conditions = [f"{name}={condition}" for name, condition in CONDITIONS.items()]
    options = {
        "criteria": ("comprehensiveness", "diversity", "empowerment", "overall"),
        "judge_protocol": "joint",
    }
    table = run.compare(run.index(), conditions, **options)["win_rates"]
    ours = {
        other: {name: rate["overall"] for name, rate in win_rates(table, ("overall",), other).items()}
        for other in PUBLISHED
    }
    show("Overall win rate of the column over the row, percent", PUBLISHED, ours)
