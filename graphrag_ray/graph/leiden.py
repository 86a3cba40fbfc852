"""Canonical edge lists of undirected graphs, and a single Leiden run with igraph or leidenalg.

igraph's random generator is global to the process; only `seeded_igraph` sets it.
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
from graphrag_ray.graph.integer_arrays import Bools, Floats, Ints

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
    """Make igraph use a private, seeded generator, for one caller at a time.

    On exit, igraph uses `random`, its default, again.
    """
    generator = random.Random(seed)
    with _lock:
        igraph.set_random_number_generator(generator)
        try:
            yield generator
        finally:
            igraph.set_random_number_generator(random)


def leiden(
    n_nodes: int,
    ends: Ints,
    weight: Floats,
    options: Communities,
    generator: random.Random,
    initial: Ints | None = None,
    fixed: Bools | None = None,
) -> Ints:
    """Run Leiden once. Communities are numbered 0…k-1 in the order of their smallest nodes.

    Args:
        ends, weight: [E, 2] and [E] edges in canonical order, which breaks ties.
        generator: From `seeded_igraph`. It is reseeded, so that equal graphs get equal communities.
        initial: [n_nodes] partition to start from.
        fixed: [n_nodes] mask. Connected fixed nodes with the same community in `initial` stay together.
    """
    if len(ends) == 0:
        return np.arange(n_nodes, dtype=np.int64)
    generator.seed(options.seed)
    start = None if initial is None else canonical_labels(initial)
    if fixed is not None and not fixed.any():
        fixed = None
    if options.library == "leidenalg":
        label = _leidenalg(igraph.Graph(n=n_nodes, edges=ends), weight, options, start, fixed)
        if fixed is not None:
            label = connected_components(n_nodes, ends[label[ends[:, 0]] == label[ends[:, 1]]])
    elif start is not None and fixed is not None:
        label = _igraph_with_fixed_nodes(n_nodes, ends, weight, options, start, fixed)
    else:
        label = _igraph(igraph.Graph(n=n_nodes, edges=ends), weight, None, options, start)
    return canonical_labels(label)


def _igraph(
    graph: igraph.Graph, weight: Floats, node_weights: Floats | None, options: Communities, start: Ints | None
) -> Ints:
    partition = graph.community_leiden(
        objective_function=_IGRAPH[options.quality],
        weights=weight,
        node_weights=None if node_weights is None else node_weights.tolist(),
        resolution=options.resolution,
        n_iterations=options.iterations,
        initial_membership=None if start is None else start.tolist(),
    )
    return np.asarray(partition.membership, dtype=np.int64)


def _igraph_with_fixed_nodes(
    n_nodes: int, ends: Ints, weight: Floats, options: Communities, start: Ints, fixed: Bools
) -> Ints:
    """Run igraph on a graph in which fixed nodes are contracted, because igraph cannot fix nodes."""
    source, target = ends.T
    is_contracted = fixed[source] & fixed[target] & (start[source] == start[target])
    piece = connected_components(n_nodes, ends[is_contracted])
    n = int(piece.max()) + 1
    piece_pairs = np.sort(piece[ends], axis=1)
    key, inverse = np.unique(piece_pairs[:, 0] * n + piece_pairs[:, 1], return_inverse=True)
    new_ends, new_weight = np.stack([key // n, key % n], axis=1), np.bincount(inverse, weights=weight)
    # Add the weight of edges inside a contracted node to the node, because igraph ignores self-loops.
    if options.quality == "cpm":
        node_weight = np.bincount(piece, minlength=n).astype(np.float64)
    else:
        node_weight = np.bincount(piece[ends].ravel(), np.repeat(weight, 2), n).astype(np.float64)
    initial = np.empty(n, dtype=np.int64)
    initial[piece] = start
    is_cross_edge = new_ends[:, 0] != new_ends[:, 1]
    if not is_cross_edge.any():
        return piece
    graph = igraph.Graph(n=n, edges=new_ends[is_cross_edge])
    return _igraph(graph, new_weight[is_cross_edge], node_weight, options, initial)[piece]


def _leidenalg(
    graph: igraph.Graph, weight: Floats, options: Communities, start: Ints | None, fixed: Bools | None
) -> Ints:
    import leidenalg  # imported lazily, because it takes 250 ms

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


def connected_components(n_nodes: int, ends: Ints) -> Ints:
    """[n_nodes] connected component of each node, numbered 0…k-1 in the order of their smallest nodes."""
    if len(ends) == 0:
        return np.arange(n_nodes, dtype=np.int64)
    clusters = igraph.Graph(n=n_nodes, edges=ends).connected_components(mode="weak")
    return canonical_labels(np.asarray(clusters.membership, dtype=np.int64))


def canonical_labels(labels: Ints) -> Ints:
    """Renumber the labels of a partition 0…k-1 in the order of their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


@dataclass(frozen=True, slots=True)
class Edges:
    """Sorted edges: ends [E, 2] with ends[:, 0] < ends[:, 1], and positive weights [E]."""

    ends: Ints
    weight: Floats

    def __getitem__(self, rows: Bools | npt.NDArray[np.intp] | slice) -> Edges:
        return Edges(self.ends[rows], self.weight[rows])

    def __len__(self) -> int:
        return len(self.weight)

    def inside(self, label: Ints) -> Bools:
        """[E] mask of the edges whose ends have the same label, other than -1."""
        source, target = label[self.ends[:, 0]], label[self.ends[:, 1]]
        is_inside: Bools = (source == target) & (source >= 0)
        return is_inside


def subgraphs(label: Ints, n_labels: int, edges: Edges) -> Iterator[tuple[Ints, Edges]]:
    """Yield (nodes, edges inside) for each label 0…n_labels-1. Edge ends are positions in `nodes`."""
    labels = np.arange(n_labels + 1)
    nodes = np.argsort(label, kind="stable")
    bounds = np.searchsorted(label[nodes], labels)
    edges = edges[edges.inside(label)]
    edge_label = label[edges.ends[:, 0]]
    edges = edges[np.argsort(edge_label, kind="stable")]
    edge_bounds = np.searchsorted(np.sort(edge_label), labels)
    position = np.empty(len(label), dtype=np.int64)
    for k in range(n_labels):
        members, inside = nodes[bounds[k] : bounds[k + 1]], edges[edge_bounds[k] : edge_bounds[k + 1]]
        position[members] = np.arange(len(members))
        yield members, Edges(position[inside.ends], inside.weight)


def canonical_edges(n_nodes: int, source: Ints, target: Ints, weight: Floats) -> Edges:
    """Sort edges into canonical order. Self-loops and edges of weight 0 are dropped.

    Raises:
        ValueError: If a weight is negative or not finite, or an end is not a node.
    """
    ends = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1).astype(np.int64)
    weight = np.asarray(weight, dtype=np.float64)
    if len(ends) and (ends.min() < 0 or ends.max() >= n_nodes):
        raise ValueError(f"Edge ends must be node numbers from 0 to {n_nodes - 1}")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError("Edge weights must be finite and non-negative")
    is_edge = (ends[:, 0] != ends[:, 1]) & (weight > 0)
    ends, weight = ends[is_edge], weight[is_edge]
    key = ends[:, 0] * n_nodes + ends[:, 1]
    order = np.argsort(key)
    if (np.diff(key[order]) == 0).any():  # sort parallel edges by weight, so that their order does not matter
        order = np.lexsort((weight, key))
    return Edges(ends[order], weight[order])


def modularity(label: Ints, edges: Edges) -> float:
    """Return the weighted modularity (Newman 2004) of a partition. Components labelled -1 are ignored."""
    is_labelled = label[edges.ends[:, 0]] >= 0
    ends, weight = edges.ends[is_labelled], edges.weight[is_labelled]
    total = float(weight.sum())
    if total == 0:
        return 0.0
    strength = np.bincount(label[ends].ravel(), weights=np.repeat(weight, 2))
    inner_weight = weight[label[ends[:, 0]] == label[ends[:, 1]]].sum()
    return float(inner_weight / total - ((strength / (2 * total)) ** 2).sum())
