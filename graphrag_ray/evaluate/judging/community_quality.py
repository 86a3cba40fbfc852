"""How good a division into communities is: by the graph's edges, and by the embeddings of the members.

The embeddings' measures are those of ArchRAG's appendix. `community` is always [members], the number of each
member's community, negative for a member that is in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Vectors: TypeAlias = npt.NDArray[np.floating[Any]]

_BLOCK = 4_000_000
"""Numbers of a block of vectors that is worked on at once, in float64."""
_ROUNDING = 1e-24
"""Of the sum of squares: a smaller scatter is what rounding left."""


def sizes(community: npt.NDArray[np.integer[Any]]) -> dict[str, float | int | None]:
    """communities: how many there are; smallest, median and largest: how many members they have, None without
    a community; singletons: how many have one member; coverage: share of the members that are in one, None
    without members."""
    members = np.unique(community[community >= 0], return_counts=True)[1]
    some = len(members) > 0
    return {
        "communities": len(members),
        "smallest": int(members.min()) if some else None,
        "median": float(np.median(members)) if some else None,
        "largest": int(members.max()) if some else None,
        "singletons": int((members == 1).sum()),
        "coverage": float(members.sum() / len(community)) if len(community) else None,
    }


def modularity(
    community: npt.NDArray[np.integer[Any]],
    source: npt.NDArray[np.integer[Any]],
    target: npt.NDArray[np.integer[Any]],
    weight: npt.NDArray[np.floating[Any]],
) -> float | None:
    """Weighted modularity (Newman 2004); None where no edge has a weight.

    source, target, weight    [edges] of an undirected graph, each edge once: member numbers and weights

    A member that is in no community counts as one of its own. Raises ValueError for weights that are negative
    or not finite and for ends that are no member.
    """
    ends = np.stack([source, target])
    if ends.size and (ends.min() < 0 or ends.max() >= len(community)):
        raise ValueError("an edge ends at something that is no member")
    if not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError("an edge's weight is negative or not finite")
    weight = weight.astype(np.float64)
    total = float(weight.sum())
    if total == 0:
        return None
    # Far from all numbers of communities, whose largest may be anything.
    names, label = np.unique(community, return_inverse=True)
    alone = np.flatnonzero(community < 0)
    label[alone] = len(names) + np.arange(len(alone))
    label = label[ends]
    strength = np.bincount(label.ravel(), np.tile(weight, 2))
    inside = weight[label[0] == label[1]].sum()
    return float(inside / total - ((strength / (2 * total)) ** 2).sum())


def scatter(community: npt.NDArray[np.integer[Any]], vectors: Vectors) -> tuple[float | None, float | None]:
    """The Calinski-Harabasz index (1974), and the mean cosine of a member to its community's centroid.

    vectors    [members, dims]

    With N members in C communities of n_i, centroids c_i and their common mean c, the index is
    ((N - C) / (C - 1)) · Σ n_i‖c_i - c‖² / Σ_i Σ_x ‖x - c_i‖²; None for fewer than two communities, and where
    all members lie at their centroids. The cosine is None without members; with a vector of zeros it is 0.
    Members that are in no community do not count. Vectors are read block by block, twice.

    Raises ValueError where there is not one vector a member, and for a vector that is not finite.
    """
    if vectors.ndim != 2 or len(vectors) != len(community):
        raise ValueError(f"{len(community)} members have vectors of shape {vectors.shape}")
    inside = community >= 0
    names, own = np.unique(community[inside], return_inverse=True)
    if not len(names):
        return None, None
    label = np.full(len(community), -1)
    label[inside] = own
    n_members = np.bincount(own)
    centroids = np.zeros((len(names), vectors.shape[1]))
    for x, own in _blocks(label, vectors):
        if not np.isfinite(x).all():
            raise ValueError("a vector is not finite")
        here, place = np.unique(own, return_inverse=True)
        members = csr_array((np.ones(len(own)), (place, np.arange(len(own)))), (len(here), len(own)))
        centroids[here] += members @ x
    mean = centroids.sum(axis=0) / n_members.sum()
    centroids /= n_members[:, None]
    lengths = np.linalg.norm(centroids, axis=1)
    within = squares = cosines = 0.0
    for x, own in _blocks(label, vectors):
        centroid = centroids[own]
        norms = np.linalg.norm(x, axis=1)
        squares += float((norms**2).sum())
        within += float(((x - centroid) ** 2).sum())
        product = norms * lengths[own]
        dots = np.einsum("ij,ij->i", x, centroid)
        cosines += float(np.divide(dots, product, out=np.zeros_like(dots), where=product > 0).sum())
    between = float((n_members * ((centroids - mean) ** 2).sum(axis=1)).sum())
    n, c = int(n_members.sum()), len(n_members)
    defined = c > 1 and within > _ROUNDING * squares
    return (n - c) / (c - 1) * between / within if defined else None, cosines / n


def _blocks(
    label: npt.NDArray[np.int64], vectors: Vectors
) -> Iterator[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
    """(vectors [rows, dims], label [rows]) of those with a label that is not negative, block by block."""
    step = max(1, _BLOCK // max(vectors.shape[1], 1))
    for start in range(0, len(label), step):
        own = label[start : start + step]
        yield vectors[start : start + step][own >= 0].astype(np.float64), own[own >= 0]
