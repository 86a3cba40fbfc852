"""GraphRAG, Figure 2 and Table 6: win rates of C0 to C3, TS and SS, with Wilcoxon's Z and Holm's p.

    python benchmarks/papers/graphrag_win_rates.py TRANSCRIPTS --questions questions.csv --limit 10

The default criteria are the paper's. 125 questions take 125 × 15 × 4 × 5 judgements.
"""

from harness import paper_conditions, paper_run, show, win_rates

CRITERIA = ("comprehensiveness", "diversity")
PUBLISHED = {  # over SS, podcasts
    "TS": {"comprehensiveness": 83, "diversity": 82},
    "C0": {"comprehensiveness": 72, "diversity": 77},
    "C1": {"comprehensiveness": 75, "diversity": 75},
    "C2": {"comprehensiveness": 78, "diversity": 81},
    "C3": {"comprehensiveness": 79, "diversity": 81},
}
Z = {  # comprehensiveness, podcasts
    ("C0", "TS"): -0.06,
    ("C1", "TS"): -1.56,
    ("C2", "TS"): -4.1,
    ("C3", "TS"): -3.42,
    ("C0", "SS"): -6.2,
    ("C1", "SS"): -7.45,
    ("C2", "SS"): -8.17,
    ("C3", "SS"): -8.12,
    ("TS", "SS"): -8.85,
    ("C0", "C1"): -1.96,
    ("C0", "C2"): -0.23,
    ("C1", "C2"): -1.62,
    ("C0", "C3"): -0.56,
    ("C1", "C3"): -0.66,
    ("C2", "C3"): -1.97,
}

with paper_run(__doc__, "the podcast transcripts (Kevin Scott), whole files", "the 125 questions") as run:
    index = run.index(chunking={"size": "document"}, reports={"model_from": 0})
    table = run.compare(index, paper_conditions(index))["win_rates"]
    show("Win rate over SS, percent", PUBLISHED, win_rates(table, CRITERIA, "SS"), 0)
    rows = table[table.criterion == "comprehensiveness"].to_dict("records")
    ours = {frozenset((row["first"], row["second"])): row for row in rows}
    show(
        "Comprehensiveness: Z and Holm-corrected p",
        {f"{a}, {b}": {"Z": abs(z)} for (a, b), z in Z.items()},
        {
            f"{a}, {b}": {"Z": abs(row["z"]), "p": row["p_holm"]}
            for a, b in Z
            if (row := ours.get(frozenset((a, b))))
        },
        2,
    )
