"""GraphRAG, 4.1.2: vector retrieval with contexts of 8,000 to 64,000 tokens, compared head to head.

    python benchmarks/papers/graphrag_context_sizes.py TRANSCRIPTS --questions questions.csv --limit 10

In the paper, 8,000 tokens won on comprehensiveness (58.1% on average) and tied on the other criteria.
"""

from harness import paper_run, show, win_rates

SIZES = (8_000, 16_000, 32_000, 64_000)
CRITERIA = ("comprehensiveness", "diversity", "empowerment", "directness")

with paper_run(__doc__, "the podcast transcripts (Kevin Scott)", "the 125 questions") as run:
    conditions = [f"{size:,}=vector,query.context_tokens={size}" for size in SIZES]
    table = run.compare(run.index("names", build="names"), conditions)["win_rates"]
    rates = win_rates(table, CRITERIA, f"{SIZES[0]:,}")
    ours = {name: {criterion: 100 - rate for criterion, rate in row.items()} for name, row in rates.items()}
    means = {c: sum(row[c] for row in ours.values()) / len(ours) for c in CRITERIA}
    show("Win rate of 8,000 tokens, percent", {"mean": {"comprehensiveness": 58.1}}, {**ours, "mean": means})
