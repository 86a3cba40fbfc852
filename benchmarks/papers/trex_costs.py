"""TREX, costs of indexing and of a question: a summary tree compared with GraphRAG.

    python benchmarks/papers/trex_costs.py TRANSCRIPTS --questions questions.csv --price 2.5 10 --limit 5

The paper uses GPT-4o; --price gives the prices of its tokens. GraphRAG answers with global search.
"""

from harness import paper_run, show

from graphrag_ray.llm.accounting import Accounts

PUBLISHED = {
    "Kevin Scott, GraphRAG": {"index, USD": 63.27, "question, USD": 1.41},
    "Kevin Scott, TREX": {"index, USD": 7.03, "question, USD": 0.01},
    "Earnings, GraphRAG": {"index, USD": 116.71},
    "Earnings, TREX": {"index, USD": 4.19},
    "HotpotQA, GraphRAG": {"index, USD": 389.12},
    "HotpotQA, TREX": {"index, USD": 36.51},
}

with paper_run(__doc__, "the podcast transcripts (Kevin Scott)", "the 125 questions") as run:
    ours = {}
    for name, hierarchy, condition in (("GraphRAG", "leiden", "global"), ("TREX", "tree", "trex")):
        index = run.index(hierarchy, hierarchies=[hierarchy], reports={"model_from": 0})
        paid = Accounts.from_dict(index.manifest.usage).total
        answers = [index.ask(q["question"], method=condition) for q in run.questions()]
        costs = [phase.cost_usd or 0 for answer in answers for phase in answer.phases.values()]
        ours[f"ours, {name}"] = {
            "index, USD": paid.cost_usd,
            "index, tokens": paid.prompt_tokens + paid.completion_tokens,
            "question, USD": sum(costs) / len(answers),
        }
    show("Costs", PUBLISHED, ours, 3)
