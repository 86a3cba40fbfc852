"""CODICIL (Ruan, Fuhry, Parthasarathy 2013): a graph of links and content, of which the strongest stay.

1. Each node is linked with the k nearest to it in content, besides the links that there are.
2. Every edge has a similarity of topology, the Jaccard coefficient of the neighbours of its ends, and one
   of content, the cosine of their vectors. Each is brought to mean 0 and deviation 1 among the edges of a
   node, and the two are combined: alpha * topology + (1 - alpha) * content.
3. Of its d edges a node keeps the ceil(sqrt(d)) with the highest. What either end keeps stays.

Departures: neighbours include the node itself, so that linked nodes are never wholly unlike. The
coefficient is exact and not estimated by hashes: triangles are counted (`common_neighbours`), which is not
quadratic in a hub's degree either.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.common_neighbours import common_neighbours, distinct
from graphrag_ray.graph.edges import Edges
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Floats
from graphrag_ray.graph.nearest_neighbours import units

_LEAST = 1e-4  # edges have weights above 0
_ROWS = 1 << 16  # edges whose vectors are held at a time


def codicil(n: int, edges: Edges, vectors: npt.NDArray[np.float32], near: Ints, alpha: float = 0.5) -> Edges:
    """The graph with links by content, thinned out.

    edges       their weights do not count
    vectors     [n, D]; a row of zeros has no content and is like nothing
    near        [N, k] links by content of each node (`nearest_neighbours`); -1: none
    alpha       share of topology, 0…1

    Weights are alpha * Jaccard + (1 - alpha) * cosine, at least 0.0001, cosines below 0 counting 0. Every
    node that had an edge still has one.
    """
    by_content = np.stack([np.repeat(np.arange(n), near.shape[1]), near.ravel()], axis=1)
    by_content = np.sort(by_content[by_content[:, 1] >= 0], axis=1)
    ends = distinct(np.concatenate([edges.ends, by_content]), n)
    topology, content = _jaccard(n, ends), _cosines(ends, vectors)
    node, edge = ends.T.ravel(), np.tile(np.arange(len(ends)), 2)
    strength = alpha * _among(node, topology[edge], n) + (1 - alpha) * _among(node, content[edge], n)
    kept = np.unique(edge[_strongest(node, strength, n)])
    weight = alpha * topology[kept] + (1 - alpha) * np.maximum(content[kept], 0)
    return Edges(ends[kept], np.maximum(weight, _LEAST))


def _jaccard(n: int, ends: npt.NDArray[np.int64]) -> Floats:
    around = np.bincount(ends.ravel(), minlength=n) + 1
    both = common_neighbours(n, ends) + 2
    return np.asarray(both / (around[ends].sum(axis=1) - both), dtype=np.float64)


def _cosines(ends: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]) -> Floats:
    """[E] cosines of the ends' vectors to four digits."""
    rows, unit = units(vectors)
    if len(rows) < len(vectors):
        of_rows, unit = unit, np.zeros(vectors.shape, dtype=np.float32)
        unit[rows] = of_rows
    found = [
        np.einsum("nd,nd->n", unit[some[:, 0]], unit[some[:, 1]])
        for some in (ends[at : at + _ROWS] for at in range(0, len(ends), _ROWS))
    ]
    return np.round(np.concatenate([np.zeros(0), *found]), 4)


def _among(node: Ints, value: Floats, n: int) -> Floats:
    """Values less their node's mean, in its standard deviations; 0 where all of a node are equal."""
    count = np.maximum(np.bincount(node, minlength=n), 1)
    apart = value - (np.bincount(node, weights=value, minlength=n) / count)[node]
    deviation = np.sqrt(np.bincount(node, weights=apart**2, minlength=n) / count)[node]
    return np.where(deviation > 1e-9, apart / np.maximum(deviation, 1e-9), 0)


def _strongest(node: Ints, strength: Floats, n: int) -> Ints:
    """Places of the ceil(sqrt(d)) strongest among a node's d; of equals the first."""
    degree = np.bincount(node, minlength=n)
    order = np.lexsort((-np.round(strength, 6), node))  # stable
    first = np.concatenate([[0], np.cumsum(degree)])[node[order]]
    stays = np.arange(len(order)) - first < np.ceil(np.sqrt(degree))[node[order]]
    strongest: Ints = order[stays]
    return strongest
