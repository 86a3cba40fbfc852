"""SCAN (Xu, Yuruk, Feng, Schweiger 2007): clusters around nodes that share neighbours with many of theirs.

The structural similarity of two linked nodes is |N(u) ∩ N(v)| / sqrt(|N(u)| |N(v)|), where N(u) is u and
its neighbours. A core has at least `mu` nodes at similarity `epsilon` or above, itself among them. Cores
that are so similar are one cluster, and what is similar to a core belongs to it. Weights do not count.

Departures: what belongs to several clusters goes to the core that it is most similar to (ties: the
smallest), where the paper takes whichever comes last; hubs and outliers, which are in no cluster there,
are clusters of their own.
"""

from __future__ import annotations

import numpy as np

from graphrag_ray.graph.common_neighbours import common_neighbours, distinct
from graphrag_ray.graph.edges import Edges
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import components, numbered


def scan(n: int, edges: Edges, epsilon: float = 0.5, mu: int = 2) -> Ints:
    """[n] the cluster of each node, numbered 0…k-1 by their smallest nodes.

    Work is below the sum over edges of the smaller degree of their ends (`common_neighbours`).
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
