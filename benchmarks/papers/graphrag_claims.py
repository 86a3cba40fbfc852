"""GraphRAG, Table 3: claims per answer, and the agreement of claim counts with the judge (section 5.2).

python benchmarks/papers/graphrag_claims.py TRANSCRIPTS --questions questions.csv --limit 10
"""

from harness import paper_conditions, paper_run, show

PUBLISHED = {  # podcasts
    "C0": {"claims": 32.2},
    "C1": {"claims": 32.2},
    "C2": {"claims": 32.5},
    "C3": {"claims": 32.3},
    "TS": {"claims": 31.4},
    "SS": {"claims": 26.5},
}
AGREEMENT = {"claims": {"percent": 78}, "clusters": {"percent": 69.5}}

with paper_run(__doc__, "the podcast transcripts (Kevin Scott), whole files", "the 125 questions") as run:
    index = run.index(chunking={"size": "document"}, reports={"model_from": 0})
    criteria = ("comprehensiveness", "diversity")
    tables = run.compare(index, paper_conditions(index), criteria=criteria, claims=True)
    counts = tables["claim_counts"].set_index("condition")
    clusters = [name for name in counts.columns if name.startswith("clusters")]
    show("Claims and clusters per answer", PUBLISHED, counts[["claims", *clusters]].to_dict("index"))
    shares = {
        row["measure"]: {"percent": 100 * row["agreement"]} for row in tables["agreement"].to_dict("records")
    }
    show("Agreement of counts with the majority of the judge, percent", AGREEMENT, shares)
