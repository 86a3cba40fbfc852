"""ArchRAG, main table: accuracy and recall of answers, and tokens of all questions.

    python benchmarks/papers/archrag_answers.py corpus.json --questions MultiHopRAG.json
    python benchmarks/papers/archrag_answers.py corpus.json --questions hotpotqa.json --dataset hotpotqa

The paper answers with Llama-3.1-8B and embeds with nomic-embed-text. HippoRAG is our `ppr` without further
steps.
"""

from harness import SHORT, answer_figures, paper_run, show

PUBLISHED = {
    "multihop-rag": {
        "vector": {"accuracy": 58.6, "recall": 31.4},
        "global": {"accuracy": 45.9, "recall": 28.4},
        "raptor": {"accuracy": 59.1, "recall": 34.1},
        "hipporag": {"accuracy": 38.9, "recall": 19.1},
        "archrag": {"accuracy": 68.8, "recall": 37.2},
    },
    "hotpotqa": {
        "vector": {"accuracy": 50.6, "recall": 56.1},
        "global": {"tokens": 1.394e9},
        "archrag": {"accuracy": 65.4, "recall": 69.2, "tokens": 5.1e6},
    },
}

with paper_run(__doc__, "passages of the data set", "questions of the data set", tuple(PUBLISHED)) as run:
    index = run.index(hierarchies=["leiden", "attributed", "tree"], query={"response_type": SHORT})
    hipporag = "hipporag=ppr,query.ppr_steps=0"
    conditions = ["vector=vector", "global=global", "raptor=raptor", hipporag, "archrag=archrag"]
    columns = {"accuracy": "accuracy", "recall": "recall", "tokens": "tokens"}
    ours = answer_figures(run.qa(index, conditions, judge=False), columns)
    show(f"{run.args.dataset}, percent", PUBLISHED[run.args.dataset], ours)
