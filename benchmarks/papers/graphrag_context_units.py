"""GraphRAG, Table 2: context units and tokens of each level of communities, and of the source texts.

python benchmarks/papers/graphrag_context_units.py TRANSCRIPTS [--base-url URL --model MODEL]
"""

from harness import paper_run, show

PUBLISHED = {
    "C0": {"units": 34, "tokens": 26_657},
    "C1": {"units": 367, "tokens": 225_756},
    "C2": {"units": 969, "tokens": 565_720},
    "C3": {"units": 1_310, "tokens": 746_100},
    "TS": {"units": 1_669, "tokens": 1_014_611},
}

with paper_run(__doc__, "the podcast transcripts (Kevin Scott)") as run:
    index = run.index(chunking={"size": "document"}, reports={"model_from": 0})
    sizes = {row.name: {"units": row.n_units, "tokens": row.n_tokens} for row in index.levels()}
    show("Podcasts", PUBLISHED, {name: row for name, row in sizes.items() if name in PUBLISHED}, 0)
