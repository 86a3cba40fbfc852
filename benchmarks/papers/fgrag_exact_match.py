"""FG-RAG, precise answers: exact match on multi-hop questions about news.

python benchmarks/papers/fgrag_exact_match.py corpus.json --questions MultiHopRAG.json
"""

from harness import SHORT, answer_figures, paper_run, show

PUBLISHED = {
    "fgrag": {"exact match": 69.9},
    "global": {"exact match": 65.3},
    "naive": {"exact match": 54.4},
    "lightrag": {"exact match": 43.5},
}

with paper_run(__doc__, "the articles of Multihop-RAG", "its questions") as run:
    conditions = ["fgrag=fgrag", "global=global", "naive=vector", "lightrag=lightrag"]
    summary = run.qa(run.index(query={"response_type": SHORT}), conditions, judge=False)
    show("Multihop-RAG, percent", PUBLISHED, answer_figures(summary, {"exact_match": "exact match"}))
