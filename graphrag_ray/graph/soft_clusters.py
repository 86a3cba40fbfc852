"""Overlapping clusters of embedded texts, as in RAPTOR (Sarthi et al. 2024, section 3), within one group.

UMAP reduces the dimension of the vectors, and a Gaussian mixture is fitted, with the number of components
selected by the Bayesian information criterion (BIC). A text belongs to each component with a probability
above `MIN_MEMBERSHIP`. This is done for all texts and again within each cluster. Clusters above the size
limit are divided further. Differences from the paper limit the cost; see
docs/concepts/decisions/summary-trees.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from math import isqrt
from typing import Literal, TypeAlias

import numpy as np

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.integer_arrays import Floats, Ints
from graphrag_ray.graph.nearest_neighbours import Vectors

Reduction: TypeAlias = Literal["umap", "pca"]

# Values from RAPTOR's code.
DIMENSIONS = 10
LOCAL_NEIGHBOURS = 10
MIN_MEMBERSHIP = 0.1
MAX_COMPONENTS = 49

MAX_CLUSTERS = 3  # maximum number of clusters per text; only the first division assigns several
MAX_PART_SHARE = 0.8  # dividing a cluster failed if one part has a larger share of its texts
_LADDER = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, MAX_COMPONENTS)
_SEED = 20_240_131
_DIGITS = 4
_SAMPLE = 20_000  # maximum number of rows used to compute a principal direction


def check_installed(reduction: Reduction) -> None:
    """Raise SettingsError if a required library is missing."""
    needed = {"umap": ("umap", "sklearn"), "pca": ("sklearn",)}[reduction]
    if missing := [name for name in needed if find_spec(name) is None]:
        packages = {"umap": "umap-learn", "sklearn": "scikit-learn"}
        names = " and ".join(packages[name] for name in missing)
        raise SettingsError(
            f"Hierarchy tree needs {names}. Run pip install '.[tree]' in the project's folder"
            + (
                ", or set tree.dimensionality_reduction: pca, which needs no umap-learn."
                if "umap" in missing
                else "."
            )
        )


def soft_clusters(
    vectors: Vectors, sizes: Ints, max_tokens: int, reduction: Reduction = "umap"
) -> list[Ints]:
    """Cluster nodes. Returns sorted, distinct sets of row numbers. Every row is in at least one set.

    Args:
        vectors: [n, dimensions] of length 1, or zeros. UMAP compares all pairs of up to 4,096 rows, so the
            caller must limit the number of rows (`summary_tree.MAX_NODES`).
        sizes: [n] tokens of each node.
        max_tokens: Maximum tokens of a cluster. A single node may exceed it.
    """
    if not len(vectors):
        return []

    def divide(members: Ints, neighbours: int, soft: bool) -> list[Ints]:
        if len(members) <= DIMENSIONS + 1:
            return [members]
        points = np.round(_reduce_dimensions(vectors[members], neighbours, reduction), _DIGITS)
        return [members[rows] for rows in _mixture_components(points, soft)]

    def divide_twice(members: Ints, soft: bool) -> list[Ints]:
        global_parts = divide(members, isqrt(max(1, len(members) - 1)), soft)
        return [local for part in global_parts for local in divide(part, LOCAL_NEIGHBOURS, soft)]

    pending, clusters = divide_twice(np.arange(len(vectors)), True)[::-1], []
    while pending:
        cluster = pending.pop()
        if len(cluster) == 1 or sizes[cluster].sum() <= max_tokens:
            clusters.append(cluster)
            continue
        parts = divide_twice(cluster, False)
        if max(len(part) for part in parts) <= MAX_PART_SHARE * len(cluster):
            pending += parts[::-1]
        else:
            clusters += split_to_size(cluster, vectors, sizes, max_tokens)
    by_rows = {tuple(c.tolist()): c for c in _merge_singletons(clusters, vectors, sizes, max_tokens)}
    return [by_rows[rows] for rows in sorted(by_rows)]


def _reduce_dimensions(vectors: Vectors, neighbours: int, reduction: Reduction) -> Floats:
    """[n, at most DIMENSIONS] from UMAP, or from PCA if UMAP fails, for example on equal texts."""
    if reduction == "umap" and len(np.unique(vectors, axis=0)) > DIMENSIONS + 1:
        from umap import UMAP

        errors = (ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError)
        with warnings.catch_warnings(), suppress(*errors):
            warnings.simplefilter("ignore")  # warnings about the seed and disconnected graphs
            # Use one thread, because results are not reproducible with several.
            points = UMAP(
                n_neighbors=max(2, neighbours),
                n_components=min(DIMENSIONS, len(vectors) - 2),
                metric="cosine",
                random_state=_SEED,
                n_jobs=1,
            ).fit_transform(vectors)
            if np.isfinite(points).all():
                return np.asarray(points, dtype=np.float64)
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ axes[:DIMENSIONS].T)


def _mixture_components(points: Floats, soft: bool) -> list[Ints]:
    """Return the rows of each non-empty component of the best mixture."""
    from sklearn.mixture import GaussianMixture

    fitted: dict[int, tuple[float, GaussianMixture]] = {}

    def bic(n: int) -> float:
        if n not in fitted:
            model = GaussianMixture(n, random_state=_SEED)
            try:
                model.fit(points)
                fitted[n] = float(model.bic(points)), model
            except ValueError:  # too few distinct points for a covariance matrix
                fitted[n] = np.inf, model
        return fitted[n][0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about non-convergence
        n = _lowest_bic(bic, min(MAX_COMPONENTS, len(points) - 1))
        best, model = fitted[n]
        if n == 1 or not np.isfinite(best):
            return [np.arange(len(points))]
        probability = model.predict_proba(points)
    order = np.argsort(-probability, axis=1, kind="stable")
    is_member = np.zeros(probability.shape, dtype=np.bool_)
    rows = np.arange(len(points))
    is_member[rows, order[:, 0]] = True
    for rank in range(1, min(MAX_CLUSTERS, n) if soft else 1):
        component = order[:, rank]
        is_member[rows, component] = probability[rows, component] > MIN_MEMBERSHIP
    return [np.flatnonzero(is_member[:, c]) for c in range(n) if is_member[:, c].any()]


def _lowest_bic(bic: Callable[[int], float], limit: int) -> int:
    """Return the number of components with the lowest BIC, searched on the ladder and then by bisection."""
    tried = sorted({n for n in _LADDER if n < limit} | {limit})
    while True:
        best = min(range(len(tried)), key=lambda i: (bic(tried[i]), i))
        neighbours = tried[max(0, best - 1) : best + 2]
        midpoints = {(low + high) // 2 for low, high in pairwise(neighbours)} - set(tried)
        if not midpoints:
            return tried[best]
        tried = sorted({*tried, *midpoints})


def _merge_singletons(clusters: list[Ints], vectors: Vectors, sizes: Ints, max_tokens: int) -> list[Ints]:
    """Move each row that is alone in a cluster to the nearest cluster with room for it."""
    others = [c for c in clusters if len(c) > 1]
    covered = np.zeros(len(vectors), dtype=np.bool_)
    for cluster in others:
        covered[cluster] = True
    single = sorted({int(c[0]) for c in clusters if len(c) == 1 and not covered[c[0]]})
    if not single or not others:
        return [*others, *(np.array([row]) for row in single)]
    centres = np.stack([vectors[c].mean(axis=0) for c in others])
    free = np.array([max_tokens - sizes[c].sum() for c in others])
    for row in single:
        cosines = np.round(centres @ vectors[row], _DIGITS)
        cosines[free < sizes[row]] = -np.inf
        nearest = int(np.argmax(cosines))
        if free[nearest] < sizes[row]:
            others.append(np.array([row]))
            centres = np.concatenate([centres, vectors[row : row + 1]])
            free = np.append(free, max_tokens - sizes[row])
        else:
            others[nearest] = np.sort(np.append(others[nearest], row))
            free[nearest] -= sizes[row]
    return others


def split_to_size(members: Ints, vectors: Vectors, sizes: Ints, max_size: int) -> list[Ints]:
    """Halve a set of nodes until each piece has a total size of at most `max_size`, or one member.

    Members are halved along their principal direction (Boley 1998), but at the middle by size rather than at
    the mean, so that few rounds suffice even if all vectors are equal.

    Members and pieces are sorted. `vectors` and `sizes` contain all nodes.
    """
    pending, pieces = [members], []
    while pending:
        piece = pending.pop()
        if len(piece) < 2 or sizes[piece].sum() <= max_size:
            pieces.append(piece)
            continue
        order = np.argsort(_principal_projection(vectors, piece), kind="stable")
        total = np.cumsum(sizes[piece[order]])
        middle = int(np.clip(np.searchsorted(total, total[-1] / 2, "right"), 1, len(piece) - 1))
        pending += [np.sort(piece[order[middle:]]), np.sort(piece[order[:middle]])]
    return pieces


def _principal_projection(vectors: Vectors, members: Ints) -> Floats:
    """[members] projection onto the first principal axis, computed by power iteration."""
    sample = vectors[members[:: -(-len(members) // _SAMPLE)]]
    mean = sample.mean(axis=0, dtype=np.float64)
    centred = sample.astype(np.float64) - mean
    axis = centred[np.argmax(np.einsum("ij,ij->i", centred, centred))]
    for _ in range(8):
        axis = centred.T @ (centred @ axis)
        length = np.linalg.norm(axis)
        if length == 0:
            break
        axis = axis / length
    projected: Floats = np.empty(len(members))
    for start in range(0, len(members), _SAMPLE):
        rows = slice(start, start + _SAMPLE)
        projected[rows] = (vectors[members[rows]].astype(np.float64) - mean) @ axis
    return np.round(projected, _DIGITS)
