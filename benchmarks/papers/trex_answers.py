"""TREX, questions with known answers: accuracy by a judge, and recall of the gold passages.

    python benchmarks/papers/trex_answers.py corpus.json --questions hotpotqa.json
    python benchmarks/papers/trex_answers.py PASSAGES --questions msmarco.jsonl --dataset msmarco

`oracle` reads the gold passages. TREX fuses ranks (k = 60) and reads five nodes; its baseline `Azure` is
hybrid search with the same fusion. The paper uses GPT-4o.
"""

from harness import answer_figures, paper_run, show

PUBLISHED = {
    "hotpotqa": {
        "oracle": {"accuracy": 85.2},
        "trex": {"accuracy": 80.9, "recall": 98.8},
        "raptor": {"recall": 90.4},
        "local": {"recall": 98.8},
        "global": {"recall": 61.9},
    },
    "msmarco": {
        "trex": {"accuracy": 62.7},
        "raptor": {"accuracy": 64.3},
        "Azure": {"accuracy": 61.7},
        "global": {"accuracy": 54.9},
    },
}

with paper_run(__doc__, "passages of the data set", "questions of the data set", tuple(PUBLISHED)) as run:
    index = run.index(hierarchies=["leiden", "tree"], embeddings={"include_titles": True})
    conditions = [
        "oracle=oracle",
        "trex=trex,query.fusion=rrf",
        "raptor=raptor",
        "local=local",
        "global=global",
    ]
    conditions.append("Azure=hybrid,query.fusion=rrf")
    summary = run.qa(index, conditions)
    ours = answer_figures(summary, {"judged_correct": "accuracy", "recall@10": "recall"})
    show(f"{run.args.dataset}, percent", PUBLISHED[run.args.dataset], ours)
