"""How many neighbours the two ends of each edge share.

Every triangle is found once, at its node of the smallest degree (Chiba and Nishizeki 1985; Latapy 2008):
an edge is directed from the end with fewer edges to the one with more, so that no node has more than
sqrt(2 E) edges out, however many it has. Work is below the sum over edges of the smaller degree of their
ends: a hub with a hundred thousand leaves costs as much as its leaves do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.integer_arrays import Ints

_PAIRS = 1 << 21  # pairs of edges looked at at a time


def common_neighbours(n_nodes: int, ends: npt.NDArray[np.int64]) -> Ints:
    """[E] the number of nodes that are linked with both ends of each edge.

    ends [E, 2]: distinct edges, no self-loops, in any order
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
