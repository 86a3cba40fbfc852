"""Algorithms that compare the neighbours of linked nodes: SCAN and CODICIL, for ArchRAG's communities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Edges, Floats, components, numbered
from graphrag_ray.graph.nearest_neighbours import units

_PAIRS = 1 << 21  # pairs of edges looked at at a time


def common_neighbours(n_nodes: int, ends: npt.NDArray[np.int64]) -> Ints:
    """[E] the number of nodes that are linked with both ends of each edge.

    ends [E, 2]: distinct edges, no self-loops, in any order

    Every triangle is found once, at its node of the smallest degree (Chiba and Nishizeki 1985; Latapy 2008):
    an edge is directed from the end with fewer edges to the one with more, so that no node has more than
    sqrt(2 E) edges out, however many it has. Work is below the sum over edges of the smaller degree of their
    ends: a hub with a hundred thousand leaves costs as much as its leaves do.
    """
    shared = np.zeros(len(ends), dtype=np.int64)
    degree = np.bincount(ends.ravel(), minlength=n_nodes)
    rank = np.empty(n_nodes, dtype=np.int64)
    rank[np.argsort(degree, kind="stable")] = np.arange(n_nodes)
    directed = np.sort(rank[ends], axis=1)
    key = directed[:, 0] * n_nodes + directed[:, 1]
    order = np.argsort(key)
    key, source, target = key[order], directed[order, 0], directed[order, 1]
    last = np.searchsorted(source, source, side="right")  # end of the edges that leave the same node
    later = last - np.arange(len(ends)) - 1  # edges with which an edge makes a pair
    before = np.concatenate([[0], np.cumsum(later)])
    at = 0
    while at < len(ends):
        end = max(at + 1, int(np.searchsorted(before, before[at] + _PAIRS, side="right")) - 1)
        one = np.repeat(np.arange(at, end), later[at:end])
        other = one + 1 + np.arange(len(one)) - (before[one] - before[at])
        wanted = target[one] * n_nodes + target[other]
        closing = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        closed = key[closing] == wanted
        for side in (one, other, closing):
            np.add.at(shared, order[side[closed]], 1)
        at = end
    return shared


def distinct(ends: npt.NDArray[np.int64], n_nodes: int) -> npt.NDArray[np.int64]:
    """Edges [E, 2], each once, in canonical order; ends [E, 2] with ends[:, 0] < ends[:, 1]."""
    key = np.unique(ends[:, 0] * n_nodes + ends[:, 1])
    return np.stack([key // max(n_nodes, 1), key % max(n_nodes, 1)], axis=1)


_LEAST = 1e-4  # edges have weights above 0
_ROWS = 1 << 16  # edges whose vectors are held at a time


def codicil(n: int, edges: Edges, vectors: npt.NDArray[np.float32], near: Ints, alpha: float = 0.5) -> Edges:
    """CODICIL (Ruan, Fuhry, Parthasarathy 2013): the graph with links by content, thinned out.

    1. Each node is linked with the k nearest to it in content, besides the links that there are.
    2. Every edge has a similarity of topology, the Jaccard coefficient of the neighbours of its ends, and one
       of content, the cosine of their vectors. Each is brought to mean 0 and deviation 1 among the edges of a
       node, and the two are combined: alpha * topology + (1 - alpha) * content.
    3. Of its d edges a node keeps the ceil(sqrt(d)) with the highest. What either end keeps stays.

    Departures: neighbours include the node itself, so that linked nodes are never wholly unlike. The
    coefficient is exact and not estimated by hashes.

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
    around = np.bincount(ends.ravel(), minlength=n) + 1
    both = common_neighbours(n, ends) + 2
    topology: Floats = both / (around[ends].sum(axis=1) - both)
    content = _cosines(ends, vectors)
    node, edge = ends.T.ravel(), np.tile(np.arange(len(ends)), 2)
    strength = alpha * _among(node, topology[edge], n) + (1 - alpha) * _among(node, content[edge], n)
    degree = np.bincount(node, minlength=n)
    order = np.lexsort((-np.round(strength, 6), node))  # stable: of equals the first
    first = np.concatenate([[0], np.cumsum(degree)])[node[order]]
    stays = np.arange(len(order)) - first < np.ceil(np.sqrt(degree))[node[order]]
    kept = np.unique(edge[order[stays]])
    weight = alpha * topology[kept] + (1 - alpha) * np.maximum(content[kept], 0)
    return Edges(ends[kept], np.maximum(weight, _LEAST))


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


def scan(n: int, edges: Edges, epsilon: float = 0.5, mu: int = 2) -> Ints:
    """SCAN (Xu, Yuruk, Feng, Schweiger 2007): clusters around nodes that share many neighbours.

    The structural similarity of two linked nodes is |N(u) ∩ N(v)| / sqrt(|N(u)| |N(v)|), where N(u) is u and
    its neighbours. A core has at least `mu` nodes at similarity `epsilon` or above, itself among them. Cores
    that are so similar are one cluster, and what is similar to a core belongs to it. Weights do not count.

    Departures: what belongs to several clusters goes to the core that it is most similar to (ties: the
    smallest), where the paper takes whichever comes last; hubs and outliers, which are in no cluster there,
    are clusters of their own.

    Returns [n] the cluster of each node, numbered 0…k-1 by their smallest nodes.
    """
    ends = distinct(edges.ends, n)
    around = np.bincount(ends.ravel(), minlength=n) + 1
    both = common_neighbours(n, ends) + 2
    similarity = both / np.sqrt(around[ends[:, 0]] * around[ends[:, 1]])
    similar = similarity >= epsilon
    ends, similarity = ends[similar], similarity[similar]
    core = np.bincount(ends.ravel(), minlength=n) + 1 >= mu
    label = components(n, ends[core[ends].all(axis=1)])
    # Borders: nodes similar to a core and no cores themselves.
    one_way = np.concatenate([ends, ends[:, ::-1]])
    border, its_core = one_way[core[one_way[:, 1]] & ~core[one_way[:, 0]]].T
    by = np.concatenate([similarity, similarity])[core[one_way[:, 1]] & ~core[one_way[:, 0]]]
    order = np.lexsort((-its_core, by, border))  # the last of each border is its best
    label[border[order]] = label[its_core[order]]
    return numbered(label)
