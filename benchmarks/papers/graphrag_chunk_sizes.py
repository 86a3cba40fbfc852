"""GraphRAG, Figure 3: entity references by chunk size and number of gleanings.

    python benchmarks/papers/graphrag_chunk_sizes.py TRANSCRIPTS --documents 50

The paper's figure is about HotpotQA: at 600 tokens, nearly twice as many references are found as at 2,400.
Each gleaning adds some. `references` counts the entities found in each chunk.
"""

from harness import paper_run, show

PUBLISHED = {"600, 0 gleanings": {"over 2,400": 2.0}, "2400, 0 gleanings": {"over 2,400": 1.0}}

with paper_run(__doc__, "any of the corpora") as run:
    found = {}
    for size in (600, 1200, 2400):
        for gleanings in (0, 1, 2, 3):
            settings = {
                "extraction": {"gleaning": "check", "max_gleanings": gleanings},
                "chunking": {"size": size},
                "resolution": {"mode": "off"},
            }
            index = run.index(f"{size}-{gleanings}", reports={"model_from": 10}, **settings)
            entities = index.table("text_units", ["entity_ids"])["entity_ids"].to_pylist()
            found[f"{size}, {gleanings} gleanings"] = sum(len(ids or ()) for ids in entities)
    base = found["2400, 0 gleanings"]
    ours = {name: {"over 2,400": n / base, "references": n} for name, n in found.items()}
    show("Entity references", PUBLISHED, ours, 2)
