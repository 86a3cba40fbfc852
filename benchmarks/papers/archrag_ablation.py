"""ArchRAG, ablations on Multihop-RAG: accuracy of answers.

python benchmarks/papers/archrag_ablation.py corpus.json --questions MultiHopRAG.json
"""

from harness import SHORT, answer_figures, paper_run, show

PUBLISHED = {
    "archrag": {"accuracy": 68.8},
    "without hierarchy": {"accuracy": 63.8},
    "entities only": {"accuracy": 61.2},
    "Leiden instead of attributed": {"accuracy": 63.2},
    "without filtering": {"accuracy": 59.9},
}

with paper_run(__doc__, "the articles of Multihop-RAG", "its questions") as run:
    index = run.index("both", hierarchies=["leiden", "attributed"], query={"response_type": SHORT})
    conditions = [
        "archrag=archrag",
        "without hierarchy=archrag,query.archrag_levels=2",
        "entities only=archrag,query.archrag_levels=1",
        "Leiden instead of attributed=archrag,query.hierarchy=leiden",
        "without filtering=archrag,query.archrag_filtering=false",
    ]
    summary = run.qa(index, conditions, judge=False)
    show("Multihop-RAG, percent", PUBLISHED, answer_figures(summary, {"accuracy": "accuracy"}))
