"""Clusters of texts by what they mean, in which one may be in several: those of RAPTOR (Sarthi et al. 2024,
section 3) within one group of texts.

Vectors are brought into few dimensions by UMAP, a Gaussian mixture is fitted, whose number of components the
Bayesian information criterion (BIC) decides, and a text belongs to each component that is likelier than
`MEMBERSHIP`: first of all texts, then within each cluster. Clusters longer than allowed are divided again.

Departures, so that the work is bounded and it always ends:

- Numbers of components are tried on a ladder, then about the best. As good by BIC within its noise.
- A text is in at most `MOST_CLUSTERS` components. Divided again, it is in its likeliest alone.
- Where dividing again brings little, or there are few texts, a cluster is cut into halves (`halved`).
- A text that stands alone joins the cluster nearest to it, where that has room.
- What UMAP cannot embed, equal texts for one, is brought into few dimensions by principal components.
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
import numpy.typing as npt

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.nearest_neighbours import Vectors

Reduction: TypeAlias = Literal["umap", "pca"]
_Floats: TypeAlias = npt.NDArray[np.float64]

DIMENSIONS = 10
LOCAL_NEIGHBOURS = 10
MEMBERSHIP = 0.1
MOST_COMPONENTS = 49
"""These four are those of RAPTOR's code."""
MOST_CLUSTERS = 3
LEAST_PROGRESS = 0.8
"""Dividing again has brought too little where one part has more than this share of the texts."""
_LADDER = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, MOST_COMPONENTS)
_SEED = 20_240_131
_DIGITS = 4
_SAMPLE = 20_000
"""Members by which the direction is found, where there are more."""


def check_installed(reduction: Reduction) -> None:
    """Raises SettingsError where a library is missing."""
    needed = {"umap": ("umap", "sklearn"), "pca": ("sklearn",)}[reduction]
    if missing := [name for name in needed if find_spec(name) is None]:
        packages = {"umap": "umap-learn", "sklearn": "scikit-learn"}
        names = " and ".join(packages[name] for name in missing)
        raise SettingsError(
            f"hierarchy tree needs {names}: pip install '.[tree]' in the project's folder"
            + ("; or, without umap-learn, tree.reduction: pca" if "umap" in missing else "")
        )


def soft_clusters(vectors: Vectors, sizes: Ints, most: int, reduction: Reduction = "umap") -> list[Ints]:
    """The clusters of some nodes: row numbers in ascending order, no two clusters the same, by their first
    rows. Every row is in one at least.

    vectors: [n, dimensions] of length 1, or zeros; sizes: [n] tokens of each; most: tokens of a cluster, but
    of one that is a single node. UMAP compares all pairs of up to 4,096 rows: a caller bounds their number
    (`summary_tree.MOST_NODES`).
    """
    if not len(vectors):
        return []

    def divided(members: Ints, neighbours: int, soft: bool) -> list[Ints]:
        if len(members) <= DIMENSIONS + 1:
            return [members]
        few = np.round(_reduced(vectors[members], neighbours, reduction), _DIGITS)
        return [members[rows] for rows in _mixture(few, soft)]

    def parts_of(members: Ints, soft: bool) -> list[Ints]:
        broad = divided(members, isqrt(max(1, len(members) - 1)), soft)
        return [narrow for part in broad for narrow in divided(part, LOCAL_NEIGHBOURS, soft)]

    open_, found = parts_of(np.arange(len(vectors)), True)[::-1], []
    while open_:
        own = open_.pop()
        if len(own) == 1 or sizes[own].sum() <= most:
            found.append(own)
            continue
        parts = parts_of(own, False)
        if max(len(part) for part in parts) <= LEAST_PROGRESS * len(own):
            open_ += parts[::-1]
        else:
            found += halved(own, vectors, sizes, most)
    by_rows = {tuple(c.tolist()): c for c in _with_company(found, vectors, sizes, most)}
    return [by_rows[rows] for rows in sorted(by_rows)]


def _reduced(vectors: Vectors, neighbours: int, reduction: Reduction) -> _Floats:
    """[n, DIMENSIONS or fewer] by UMAP or by principal components, which take its place where it fails."""
    if reduction == "umap" and len(np.unique(vectors, axis=0)) > DIMENSIONS + 1:
        from umap import UMAP

        errors = (ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError)
        with warnings.catch_warnings(), suppress(*errors):
            warnings.simplefilter("ignore")  # of what it does for a seed, and of graphs that fall apart
            # One thread: with several the same seed gives other results.
            found = UMAP(
                n_neighbors=max(2, neighbours),
                n_components=min(DIMENSIONS, len(vectors) - 2),
                metric="cosine",
                random_state=_SEED,
                n_jobs=1,
            ).fit_transform(vectors)
            if np.isfinite(found).all():
                return np.asarray(found, dtype=np.float64)
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ axes[:DIMENSIONS].T)


def _mixture(points: _Floats, soft: bool) -> list[Ints]:
    """The rows of each component of the best mixture; those of components without rows are not there."""
    from sklearn.mixture import GaussianMixture

    tried: dict[int, tuple[float, GaussianMixture]] = {}

    def bic(n: int) -> float:
        if n not in tried:
            model = GaussianMixture(n, random_state=_SEED)
            try:
                model.fit(points)
                tried[n] = float(model.bic(points)), model
            except ValueError:  # no component has a covariance: too few different points
                tried[n] = np.inf, model
        return tried[n][0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rounds that did not converge
        n = _lowest(bic, min(MOST_COMPONENTS, len(points) - 1))
        best, model = tried[n]
        if n == 1 or not np.isfinite(best):
            return [np.arange(len(points))]
        likely = model.predict_proba(points)
    order = np.argsort(-likely, axis=1, kind="stable")
    member = np.zeros(likely.shape, dtype=np.bool_)
    rows = np.arange(len(points))
    member[rows, order[:, 0]] = True
    for place in range(1, min(MOST_CLUSTERS, n) if soft else 1):
        component = order[:, place]
        member[rows, component] = likely[rows, component] > MEMBERSHIP
    return [np.flatnonzero(member[:, c]) for c in range(n) if member[:, c].any()]


def _lowest(bic: Callable[[int], float], most: int) -> int:
    """A number of components whose BIC is lowest, of those that are tried: the ladder, then ever narrower
    about the best."""
    tried = sorted({n for n in _LADDER if n < most} | {most})
    while True:
        at = min(range(len(tried)), key=lambda i: (bic(tried[i]), i))
        around = tried[max(0, at - 1) : at + 2]
        between = {(one + other) // 2 for one, other in pairwise(around)} - set(tried)
        if not between:
            return tried[at]
        tried = sorted({*tried, *between})


def _with_company(clusters: list[Ints], vectors: Vectors, sizes: Ints, most: int) -> list[Ints]:
    """Clusters of one row go to the nearest of the others that has room."""
    alone = [c for c in clusters if len(c) == 1]
    others = [c for c in clusters if len(c) > 1]
    covered = np.zeros(len(vectors), dtype=np.bool_)
    for cluster in others:
        covered[cluster] = True
    single = sorted({int(c[0]) for c in alone if not covered[c[0]]})
    if not single or not others:
        return [*others, *(np.array([row]) for row in single)]
    centres = np.stack([vectors[c].mean(axis=0) for c in others])
    free = np.array([most - sizes[c].sum() for c in others])
    for row in single:
        near = np.round(centres @ vectors[row], _DIGITS)
        near[free < sizes[row]] = -np.inf
        at = int(np.argmax(near))
        if free[at] < sizes[row]:
            others.append(np.array([row]))
            centres = np.concatenate([centres, vectors[row : row + 1]])
            free = np.append(free, most - sizes[row])
        else:
            others[at] = np.sort(np.append(others[at], row))
            free[at] -= sizes[row]
    return others


def halved(members: Ints, vectors: Vectors, sizes: Ints, most: int) -> list[Ints]:
    """Pieces whose sizes sum to at most `most`, or of one member; each in ascending order.

    Halves, and halves of these, each at the middle of the direction in which the members differ most: the
    principal direction divisive partitioning of Boley (1998), but at the middle by size and not at the mean,
    so that it ends after few rounds, also where all vectors are the same.

    members: ascending; vectors [nodes, dimensions], sizes [nodes]: of all nodes
    """
    open_, found = [members], []
    while open_:
        own = open_.pop()
        if len(own) < 2 or sizes[own].sum() <= most:
            found.append(own)
            continue
        order = np.argsort(_along(vectors, own), kind="stable")
        until = np.cumsum(sizes[own[order]])
        middle = int(np.clip(np.searchsorted(until, until[-1] / 2, "right"), 1, len(own) - 1))
        open_ += [np.sort(own[order[middle:]]), np.sort(own[order[:middle]])]
    return found


def _along(vectors: Vectors, members: Ints) -> npt.NDArray[np.float64]:
    """[members] where each stands on the first principal axis, by some steps of the power method."""
    some = vectors[members[:: -(-len(members) // _SAMPLE)]]
    mean = some.mean(axis=0, dtype=np.float64)
    less = some.astype(np.float64) - mean
    axis = less[np.argmax(np.einsum("ij,ij->i", less, less))]
    for _ in range(8):
        axis = less.T @ (less @ axis)
        length = np.linalg.norm(axis)
        if length == 0:
            break
        axis = axis / length
    found = np.empty(len(members))
    for at in range(0, len(members), _SAMPLE):
        found[at : at + _SAMPLE] = (vectors[members[at : at + _SAMPLE]].astype(np.float64) - mean) @ axis
    rounded: npt.NDArray[np.float64] = np.round(found, _DIGITS)
    return rounded
