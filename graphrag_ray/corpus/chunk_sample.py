"""Choose chunks that represent a corpus, by the embeddings of a random sample of its chunks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ITERATIONS = 10

Vectors = npt.NDArray[np.float32]


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
    centres = vectors[chosen]
    for _ in range(_ITERATIONS):
        cluster = (vectors @ centres.T).argmax(axis=1)
        sums = np.zeros_like(centres)
        np.add.at(sums, cluster, vectors)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(norms > 0, sums / np.maximum(norms, 1e-12), centres)
    similarities = vectors @ centres.T
    cluster = similarities.argmax(axis=1)
    nearest: list[int] = []
    for c in range(n):
        members = np.flatnonzero(cluster == c)
        if len(members):
            nearest.append(int(members[similarities[members, c].argmax()]))
    # Equal vectors leave clusters empty.
    return nearest + [i for i in range(len(vectors)) if i not in set(nearest)][: n - len(nearest)]
