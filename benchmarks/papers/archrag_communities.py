"""ArchRAG, quality of communities: Calinski-Harabasz index and mean cosine to the centroid.

    python benchmarks/papers/archrag_communities.py corpus.json --embedding-model MODEL

The paper has one figure for each hierarchy and data set; we print every level. Without --embedding-model, the
bundled embeddings are used.

C-HNSW is measured by benchmarks/chnsw.py (published: on average 3.5 times as fast as one HNSW per
level, recall .55 and .61).
"""

from harness import evaluate, paper_run, show

PUBLISHED = {
    "attributed, Multihop-RAG": {"Calinski-Harabasz": 4.68, "mean cosine": 0.89},
    "leiden, Multihop-RAG": {"Calinski-Harabasz": 3.02, "mean cosine": 0.71},
    "attributed, HotpotQA": {"Calinski-Harabasz": 4.82, "mean cosine": 0.88},
    "leiden, HotpotQA": {"Calinski-Harabasz": 3.42, "mean cosine": 0.71},
}

with paper_run(__doc__, "passages of Multihop-RAG or HotpotQA") as run:
    table = evaluate.communities(run.index(hierarchies=["leiden", "attributed"]))
    ours = {
        f"{row['hierarchy']}, level {row['level']}, {row['communities']} communities": {
            "Calinski-Harabasz": row["calinski_harabasz"],
            "mean cosine": row["mean_cosine"],
        }
        for row in table.to_dict("records")
    }
    show("Quality of communities", PUBLISHED, ours, 2)
