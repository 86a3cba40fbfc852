"""Choose chunks that represent a corpus, by the embeddings of a random sample of its chunks."""

from __future__ import annotations

import numpy as np

from graphrag_ray.graph.nearest_neighbours import Vectors, k_means


def nearest_to_centroid(vectors: Vectors, n: int) -> list[int]:
    """Return the positions of the n vectors nearest to the centroid, nearest first."""
    return np.argsort(-(vectors @ vectors.mean(axis=0)), kind="stable")[:n].tolist() if len(vectors) else []


def diverse(vectors: Vectors, n: int) -> list[int]:
    """Return the positions of n vectors that cover all others: the members nearest to the centres of k-means.

    The first centres are far apart (Gonzalez 1985), starting with the vector nearest to the centroid. There
    is no randomness. `vectors` has one row of norm 1 (or 0) per chunk.
    """
    if n >= len(vectors) or n < 1:
        return list(range(len(vectors) if n > 0 else 0))
    chosen = nearest_to_centroid(vectors, 1)
    similarity = vectors @ vectors[chosen[0]]
    while len(chosen) < n:
        similarity[chosen] = np.inf
        chosen.append(int(similarity.argmin()))
        similarity = np.maximum(similarity, vectors @ vectors[chosen[-1]])
    centres = k_means(vectors, vectors[chosen])
    cosines = vectors @ centres.T
    cluster = cosines.argmax(axis=1)
    order = np.lexsort((-cosines.max(axis=1), cluster))
    nearest = order[np.unique(cluster[order], return_index=True)[1]].tolist()
    # Equal vectors leave clusters empty.
    others = np.setdiff1d(np.arange(len(vectors)), nearest)
    return [*nearest, *others[: n - len(nearest)].tolist()]
