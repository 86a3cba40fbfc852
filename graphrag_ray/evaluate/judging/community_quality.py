"""Measure communities by the graph's edges and by their members' embeddings (ArchRAG, appendix).

`community` is always an array [members] with the community number of each member. A negative number means
that the member belongs to no community.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Vectors: TypeAlias = npt.NDArray[np.floating[Any]]

_BLOCK_SIZE = 4_000_000  # Maximum number of values per block of vectors converted to float64.
_ROUNDING = 1e-24  # A scatter below this share of the sum of squares is a rounding error.


def sizes(community: npt.NDArray[np.integer[Any]]) -> dict[str, float | int | None]:
    """Return statistics of community sizes, and coverage: the share of members that belong to a community."""
    members = np.unique(community[community >= 0], return_counts=True)[1]
    has_members = len(members) > 0
    return {
        "communities": len(members),
        "smallest": int(members.min()) if has_members else None,
        "median": float(np.median(members)) if has_members else None,
        "largest": int(members.max()) if has_members else None,
        "singletons": int((members == 1).sum()),
        "coverage": float(members.sum() / len(community)) if len(community) else None,
    }


def modularity(
    community: npt.NDArray[np.integer[Any]],
    source: npt.NDArray[np.integer[Any]],
    target: npt.NDArray[np.integer[Any]],
    weight: npt.NDArray[np.floating[Any]],
) -> float | None:
    """Return the weighted modularity (Newman 2004), or None if no edge has a weight.

    source, target and weight are arrays [edges] of an undirected graph and contain each edge once. A member
    without a community counts as a community. Raises ValueError for an invalid weight or member.
    """
    ends = np.stack([source, target])
    if ends.size and (ends.min() < 0 or ends.max() >= len(community)):
        raise ValueError("An edge refers to an unknown member")
    if not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError("An edge weight is negative or not finite")
    weight = weight.astype(np.float64)
    total = float(weight.sum())
    if total == 0:
        return None
    names, label = np.unique(community, return_inverse=True)
    alone = np.flatnonzero(community < 0)
    label[alone] = len(names) + np.arange(len(alone))
    label = label[ends]
    strength = np.bincount(label.ravel(), np.tile(weight, 2))
    inside = weight[label[0] == label[1]].sum()
    return float(inside / total - ((strength / (2 * total)) ** 2).sum())


def embedding_quality(
    community: npt.NDArray[np.integer[Any]], vectors: Vectors
) -> tuple[float | None, float | None]:
    """Return the Calinski-Harabasz index (1974), and the mean cosine of members to their centroid.

    With N members in C communities of sizes n_i, centroids c_i and overall mean c, the index is ((N - C) / (C
    - 1)) · Σ n_i‖c_i - c‖² / Σ_i Σ_x ‖x - c_i‖². It is None if there are fewer than two communities or if all
    members equal their centroids. A zero vector has cosine 0. If there are no members, the mean is None.
    Members without a community are ignored. Vectors are read twice, in blocks.

    Args:
        vectors: [members, dims].

    Raises:
        ValueError: The shape of `vectors` does not match, or a vector is not finite.
    """
    if vectors.ndim != 2 or len(vectors) != len(community):
        raise ValueError(
            f"{len(community)} members need one vector each, not an array of shape {vectors.shape}"
        )
    inside = community >= 0
    names, inside_label = np.unique(community[inside], return_inverse=True)
    if not len(names):
        return None, None
    label = np.full(len(community), -1)
    label[inside] = inside_label
    n_members = np.bincount(inside_label)
    centroids = np.zeros((len(names), vectors.shape[1]))
    for x, block_label in _blocks(label, vectors):
        if not np.isfinite(x).all():
            raise ValueError("A vector is not finite")
        labels, row = np.unique(block_label, return_inverse=True)
        members = csr_array((np.ones(len(x)), (row, np.arange(len(x)))), (len(labels), len(x)))
        centroids[labels] += members @ x
    mean = centroids.sum(axis=0) / n_members.sum()
    centroids /= n_members[:, None]
    lengths = np.linalg.norm(centroids, axis=1)
    within = squares = cosines = 0.0
    for x, block_label in _blocks(label, vectors):
        centroid = centroids[block_label]
        norms = np.linalg.norm(x, axis=1)
        squares += float((norms**2).sum())
        within += float(((x - centroid) ** 2).sum())
        product = norms * lengths[block_label]
        dots = np.einsum("ij,ij->i", x, centroid)
        cosines += float(np.divide(dots, product, out=np.zeros_like(dots), where=product > 0).sum())
    between = float((n_members * ((centroids - mean) ** 2).sum(axis=1)).sum())
    n, c = int(n_members.sum()), len(n_members)
    defined = c > 1 and within > _ROUNDING * squares
    return (n - c) / (c - 1) * between / within if defined else None, cosines / n


def _blocks(
    label: npt.NDArray[np.int64], vectors: Vectors
) -> Iterator[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
    """Yield vectors [rows, dims] and labels [rows] of the members with a label, block by block."""
    step = max(1, _BLOCK_SIZE // max(vectors.shape[1], 1))
    for start in range(0, len(label), step):
        block = label[start : start + step]
        yield vectors[start : start + step][block >= 0].astype(np.float64), block[block >= 0]
