"""The edges of an undirected graph in one order, and one run of Leiden over them, by igraph or leidenalg.

igraph's random generator is process-global; `seeded_igraph` is the one place that sets it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import igraph
import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Communities
from graphrag_ray.graph.integer_arrays import Ints

Floats = npt.NDArray[np.float64]

_IGRAPH = {"modularity": "modularity", "cpm": "CPM"}
_LEIDENALG = {
    # Modularity with a resolution (Reichardt and Bornholdt 2006); at resolution 1 it is modularity.
    "modularity": "RBConfigurationVertexPartition",
    "rb_configuration": "RBConfigurationVertexPartition",
    "cpm": "CPMVertexPartition",
    "significance": "SignificanceVertexPartition",
    "surprise": "SurpriseVertexPartition",
}
_WITH_RESOLUTION = frozenset({"modularity", "rb_configuration", "cpm"})
_UNWEIGHTED = frozenset({"significance"})

_lock = threading.Lock()


@contextmanager
def seeded_igraph(seed: int) -> Iterator[random.Random]:
    """igraph draws from a generator of our own while this is open; afterwards from Python's `random`
    again, which is igraph's default. `seed()` on what is yielded starts it afresh. One at a time."""
    generator = random.Random(seed)
    with _lock:
        igraph.set_random_number_generator(generator)
        try:
            yield generator
        finally:
            igraph.set_random_number_generator(random)


def leiden(
    n_nodes: int,
    ends: npt.NDArray[np.int64],
    weight: Floats,
    options: Communities,
    generator: random.Random,
    initial: Ints | None = None,
    fixed: npt.NDArray[np.bool_] | None = None,
) -> Ints:
    """[n_nodes] the community of each node, numbered 0…k-1 by their smallest nodes.

    ends [E, 2], weight [E]: edges in canonical order (their order decides ties); generator: from
    `seeded_igraph`, started afresh here, so that the same graph has the same communities wherever it
    stands among others; initial [n_nodes]: a partition to start from; fixed [n_nodes]: nodes that stay
    with those that they are connected with in it.
    """
    if len(ends) == 0:
        return np.arange(n_nodes, dtype=np.int64)
    generator.seed(options.seed)
    start = None if initial is None else numbered(initial)
    if fixed is not None and not fixed.any():
        fixed = None
    if options.library == "igraph":
        if start is not None and fixed is not None:
            found = _contracted(n_nodes, ends, weight, options, start, fixed)
        else:
            found = _igraph(igraph.Graph(n=n_nodes, edges=ends), weight, None, options, start)
    else:
        found = _leidenalg(igraph.Graph(n=n_nodes, edges=ends), weight, options, start, fixed)
        if fixed is not None:
            found = components(n_nodes, ends[found[ends[:, 0]] == found[ends[:, 1]]])
    return numbered(found)


def _igraph(
    graph: igraph.Graph, weight: Floats, node_weights: Floats | None, options: Communities, start: Ints | None
) -> Ints:
    found = graph.community_leiden(
        objective_function=_IGRAPH[options.quality],
        weights=weight,
        node_weights=None if node_weights is None else node_weights.tolist(),
        resolution=options.resolution,
        n_iterations=options.iterations,
        initial_membership=None if start is None else start.tolist(),
    )
    return np.asarray(found.membership, dtype=np.int64)


def _contracted(
    n_nodes: int,
    ends: npt.NDArray[np.int64],
    weight: Floats,
    options: Communities,
    start: Ints,
    fixed: npt.NDArray[np.bool_],
) -> Ints:
    """igraph can hold no node where it is: those that stay together become one node."""
    one, other = ends[:, 0], ends[:, 1]
    stays = fixed[one] & fixed[other] & (start[one] == start[other])
    piece = components(n_nodes, ends[stays])
    n = int(piece.max()) + 1
    between = np.sort(piece[ends], axis=1)
    key, at = np.unique(between[:, 0] * n + between[:, 1], return_inverse=True)
    new_ends, new_weight = np.stack([key // n, key % n], axis=1), np.bincount(at, weights=weight)
    # An inner edge still counts: in the weight of its node, which igraph would not take from a loop.
    if options.quality == "cpm":
        of_node = np.bincount(piece, minlength=n).astype(np.float64)
    else:
        of_node = np.bincount(piece[ends].ravel(), np.repeat(weight, 2), n).astype(np.float64)
    initial = np.empty(n, dtype=np.int64)
    initial[piece] = start
    apart = new_ends[:, 0] != new_ends[:, 1]
    if not apart.any():
        return piece
    graph = igraph.Graph(n=n, edges=new_ends[apart])
    return _igraph(graph, new_weight[apart], of_node, options, initial)[piece]


def _leidenalg(
    graph: igraph.Graph,
    weight: Floats,
    options: Communities,
    start: Ints | None,
    fixed: npt.NDArray[np.bool_] | None,
) -> Ints:
    import leidenalg  # only here: it costs a quarter of a second

    kwargs: dict[str, object] = {}
    if options.quality in _WITH_RESOLUTION:
        kwargs["resolution_parameter"] = options.resolution
    if options.quality not in _UNWEIGHTED:
        kwargs["weights"] = weight.tolist()
    partition = getattr(leidenalg, _LEIDENALG[options.quality])(
        graph, initial_membership=None if start is None else start.tolist(), **kwargs
    )
    optimiser = leidenalg.Optimiser()
    optimiser.set_rng_seed(options.seed & 0x7FFFFFFF)
    optimiser.optimise_partition(
        partition, options.iterations, is_membership_fixed=None if fixed is None else fixed.tolist()
    )
    return np.asarray(partition.membership, dtype=np.int64)


def components(n_nodes: int, ends: npt.NDArray[np.int64]) -> Ints:
    """[n_nodes] the connected component of each node, numbered 0…k-1 by their smallest nodes."""
    if len(ends) == 0:
        return np.arange(n_nodes, dtype=np.int64)
    found = igraph.Graph(n=n_nodes, edges=ends).connected_components(mode="weak")
    return numbered(np.asarray(found.membership, dtype=np.int64))


def numbered(labels: Ints) -> Ints:
    """The same partition with labels 0…k-1 in the order of their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


@dataclass(frozen=True, slots=True)
class Edges:
    """ends [E, 2] with ends[:, 0] < ends[:, 1], sorted; weight [E], all above 0."""

    ends: npt.NDArray[np.int64]
    weight: Floats

    def __getitem__(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice) -> Edges:
        return Edges(self.ends[rows], self.weight[rows])

    def __len__(self) -> int:
        return len(self.weight)

    def inside(self, label: Ints) -> npt.NDArray[np.bool_]:
        """Edges whose two ends have the same label, -1 being none."""
        one, other = label[self.ends[:, 0]], label[self.ends[:, 1]]
        together: npt.NDArray[np.bool_] = (one == other) & (one >= 0)
        return together


def canonical(n_nodes: int, source: Ints, target: Ints, weight: Floats) -> Edges:
    """Edges in any order and direction as Edges; self-loops and those of weight 0 are passed over.

    Raises ValueError for weights that are negative or not finite and for ends that are no node.
    """
    ends = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1).astype(np.int64)
    weight = np.asarray(weight, dtype=np.float64)
    if len(ends) and (ends.min() < 0 or ends.max() >= n_nodes):
        raise ValueError(f"an edge ends outside of the {n_nodes} nodes")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError("edge weights must be finite and not negative")
    connects = (ends[:, 0] != ends[:, 1]) & (weight > 0)
    ends, weight = ends[connects], weight[connects]
    key = ends[:, 0] * n_nodes + ends[:, 1]
    order = np.argsort(key)
    if (np.diff(key[order]) == 0).any():  # parallel edges: their order must not matter either
        order = np.lexsort((weight, key))
    return Edges(ends[order], weight[order])


def modularity(label: Ints, edges: Edges) -> float:
    """Weighted modularity (Newman 2004) of a partition; nodes labelled -1 do not belong to the graph."""
    ends, weight = edges.ends, edges.weight
    belongs = label[ends[:, 0]] >= 0
    ends, weight = ends[belongs], weight[belongs]
    total = float(weight.sum())
    if total == 0:
        return 0.0
    strength = np.bincount(label[ends].ravel(), weights=np.repeat(weight, 2))
    inside = weight[label[ends[:, 0]] == label[ends[:, 1]]].sum()
    return float(inside / total - ((strength / (2 * total)) ** 2).sum())
