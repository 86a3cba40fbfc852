"""LazyGraphRAG and BenchmarkQED: win rates of lazy search by budget over other methods.

    python benchmarks/papers/lazygraphrag_win_rates.py CORPUS --questions questions.csv --limit 10

Microsoft reports, without further figures, that lazy search won all 96 comparisons of its benchmark (1,397
news articles, 200 questions). The lazy conditions read an index that was built without model calls.
"""

from harness import paper_run, show, win_rates

CRITERIA = ("comprehensiveness", "diversity", "empowerment")
OTHERS = ("vector", "local", "global", "drift", "lightrag", "raptor")

with paper_run(__doc__, "news articles", "questions about parts of the corpus and about the whole") as run:
    index, names = run.index("both", hierarchies=["leiden", "tree"]), run.index("names", build="names")
    lazy = {f"lazy {n}": f"lazy,index={names.store.url},query.lazy_tests={n}" for n in (100, 500, 1500)}
    conditions = [f"{name}={name}" for name in OTHERS] + [f"{name}={how}" for name, how in lazy.items()]
    table = run.compare(index, conditions, criteria=CRITERIA)["win_rates"]
    ours = {}
    for name in lazy:
        rates = win_rates(table, CRITERIA, name)
        won = [rates[other][c] < 50 for other in OTHERS for c in CRITERIA if c in rates.get(other, {})]
        ours[name] = {"comparisons won, percent": 100 * sum(won) / max(1, len(won))}
    show("Lazy search over the other methods", {"lazy 500": {"comparisons won, percent": 100}}, ours)
