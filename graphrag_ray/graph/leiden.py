"""One run of Leiden over one graph, by igraph or leidenalg.

igraph's random generator is process-global; `seeded_igraph` is the one place that sets it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import igraph
import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.arrays import Ints
from graphrag_ray.settings import Communities

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
) -> Ints:
    """[n_nodes] the community of each node, numbered 0…k-1 by their smallest nodes.

    ends [E, 2], weight [E]: edges in canonical order (their order decides ties); generator: from
    `seeded_igraph`, started afresh here, so that the same graph has the same communities wherever it
    stands among others; initial [n_nodes]: a partition to start from.
    """
    if len(ends) == 0:
        return np.arange(n_nodes, dtype=np.int64)
    generator.seed(options.seed)
    graph = igraph.Graph(n=n_nodes, edges=ends)
    start = None if initial is None else initial.tolist()
    if options.library == "igraph":
        found = graph.community_leiden(
            objective_function=_IGRAPH[options.quality],
            weights=weight,
            resolution=options.resolution,
            n_iterations=options.iterations,
            initial_membership=start,
        )
    else:
        found = _leidenalg(graph, weight, options, start)
    return numbered(np.asarray(found.membership, dtype=np.int64))


def _leidenalg(graph: igraph.Graph, weight: Floats, options: Communities, start: list[int] | None) -> object:
    import leidenalg  # only here: it costs a quarter of a second

    kwargs: dict[str, object] = {}
    if options.quality in _WITH_RESOLUTION:
        kwargs["resolution_parameter"] = options.resolution
    if options.quality not in _UNWEIGHTED:
        kwargs["weights"] = weight.tolist()
    return leidenalg.find_partition(
        graph,
        getattr(leidenalg, _LEIDENALG[options.quality]),
        initial_membership=start,
        n_iterations=options.iterations,
        seed=options.seed & 0x7FFFFFFF,
        **kwargs,
    )


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
