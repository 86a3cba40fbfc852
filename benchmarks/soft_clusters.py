"""What cheaper soft clustering costs in quality: UMAP or PCA, all mixture sizes or a ladder of them.

    python benchmarks/soft_clusters.py --root ./index --nodes 2000

Clusters the embeddings of an index's first chunks. `all` fits a mixture for every number of components, as
RAPTOR's code does. `ladder` is our method. Prints CPU seconds, the number of clusters, clusters per chunk,
the mean cosine similarity of chunks to the mean of their cluster, and the Calinski-Harabasz index of the
nearest clusters. Asserts nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from graphrag_ray import open_index
from graphrag_ray.graph import soft_clusters as module
from graphrag_ray.graph.soft_clusters import Reduction, soft_clusters
from graphrag_ray.graph.summary_tree import Clusters, main_clusters
from graphrag_ray.store.search.vector_index import normalize

VARIANTS: tuple[tuple[Reduction, str], ...] = (
    ("umap", "all"),
    ("umap", "ladder"),
    ("pca", "all"),
    ("pca", "ladder"),
)
NUMBER_TOKENS = 3


def lowest_of_all(bic: Callable[[int], float], most: int) -> int:
    return min(range(1, most + 1), key=lambda n: (bic(n), n))


def row(
    vectors: npt.NDArray[np.float32],
    tokens: npt.NDArray[np.int64],
    most: int,
    reduction: Reduction,
    fits: str,
) -> str:
    from sklearn.metrics import calinski_harabasz_score

    ladder = module._lowest_bic
    module._lowest_bic = lowest_of_all if fits == "all" else ladder
    started = time.process_time()
    try:
        clusters = Clusters.from_sets(soft_clusters(vectors, tokens, most, reduction))
    finally:
        module._lowest_bic = ladder
    seconds = time.process_time() - started
    means = [normalize(vectors[members].mean(axis=0, keepdims=True))[0] for members in clusters]
    cosine = np.mean(
        [(vectors[members] @ mean).mean() for members, mean in zip(clusters, means, strict=True)]
    )
    nearest = main_clusters(clusters, vectors)
    each = len(clusters.member) / len(vectors)
    score = calinski_harabasz_score(vectors, nearest)
    figures = f"{seconds:.1f} | {len(clusters)} | {each:.2f} | {cosine:.3f} | {score:.2f}"
    return f"| {reduction} | {fits} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True)
    parser.add_argument("--nodes", type=int, default=2_000, help="number of chunks")
    parser.add_argument("--tokens", type=int, default=3_436, help="maximum tokens of a cluster")
    args = parser.parse_args()
    index = open_index(args.root)
    sizes = dict(zip(*index.table("text_units", ["id", "n_tokens"]).to_pydict().values(), strict=True))
    frame = index.to_pandas("embeddings_text_unit")[: args.nodes]
    vectors = normalize(np.stack(frame["vector"].to_numpy()).astype(np.float32))
    tokens = np.array([sizes[id_] + NUMBER_TOKENS for id_ in frame["id"]], dtype=np.int64)
    soft_clusters(vectors[:60], tokens[:60], args.tokens)  # Compile UMAP before measuring.
    print(f"{args.root}: {len(vectors):,} chunks\n")
    print("| reduced by | mixtures | CPU s | clusters | clusters per chunk | cosine | Calinski-Harabasz |")
    print("| --- " * 7 + "|")
    for reduction, fits in VARIANTS:
        print(row(vectors, tokens, args.tokens, reduction, fits), flush=True)


if __name__ == "__main__":
    main()
