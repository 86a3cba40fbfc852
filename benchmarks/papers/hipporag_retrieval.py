"""HippoRAG 2: recall@5 of the gold passages, and F1 of answers.

    python benchmarks/papers/hipporag_retrieval.py musique_corpus.json --questions musique.json \\
        --dataset musique

The files are those of HippoRAG. The index contains names only and costs nothing; the paper extracts triples
with a 70B model and embeds with a 7B model.
"""

from harness import SHORT, answer_figures, paper_run, show

PUBLISHED = {
    "2wiki": {"ppr": {"recall@5": 90.4, "F1": 71.0}, "raptor": {"F1": 52.1}, "global": {"F1": 58.6}},
    "musique": {"ppr": {"recall@5": 74.7, "F1": 48.6}, "raptor": {"F1": 28.9}, "global": {"F1": 38.5}},
    "hotpotqa": {"ppr": {"recall@5": 96.3, "F1": 75.5}, "raptor": {"F1": 69.5}, "global": {"F1": 68.6}},
}

with paper_run(__doc__, "passages of the data set", "questions of the data set", tuple(PUBLISHED)) as run:
    index = run.index("names", build="names", query={"response_type": SHORT})
    conditions = ["vector=vector", "hybrid=hybrid", "ppr=ppr,query.ppr_steps=0", "ppr, one step=ppr"]
    summary = run.qa(index, conditions, judge=False)
    ours = answer_figures(summary, {"recall@5": "recall@5", "f1": "F1"})
    show(f"{run.args.dataset}, percent", PUBLISHED[run.args.dataset], ours)
