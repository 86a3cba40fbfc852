"""Spectral clustering (Shi and Malik 2000; Yu and Shi 2003) by scikit-learn, component by component.

The weights of edges are affinities. The eigenvectors of a component's normalised Laplacian are turned into
clusters by `discretize`, which on graphs of many small groups did better than k-means and pivoted QR.

Departure: as many eigenvectors as clusters would cost the third power of the nodes. Where more than `AT_ONCE`
clusters are wanted, a component is divided into so many first, and each of these again. 5,000 nodes with
15,000 edges, a third of them at random, into 333 clusters take 9 seconds of CPU; 20,000 nodes more than 3
minutes.
"""

from __future__ import annotations

import numpy as np

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Edges, components, numbered

MOST_NODES = 10_000
"""Eigenvectors of larger graphs would take too long."""
AT_ONCE = 64
"""Clusters that one component is divided into at a time."""
_DEPTH = 4  # divisions one inside another
_LEAST = 1e-9  # of the largest weight; what is below counts as much


def spectral(n: int, edges: Edges, n_clusters: int, seed: int) -> Ints:
    """[n] the cluster of each node, numbered 0…k-1 by their smallest nodes.

    Every connected component has its share of `n_clusters` by its nodes, rounded, and at least one: no
    cluster spans two, and there are more than `n_clusters` where there are more components.

    Raises SettingsError above `MOST_NODES` nodes and where scikit-learn is not installed.
    """
    if n > MOST_NODES:
        raise SettingsError(
            f"spectral clustering takes up to {MOST_NODES:,} nodes and this graph has {n:,}: "
            "Leiden or SCAN will do"
        )
    check_installed()
    if len(edges) == 0:
        return np.arange(n, dtype=np.int64)
    return numbered(_divided(n, edges, n_clusters, seed, _DEPTH))


def _divided(n: int, edges: Edges, n_clusters: int, seed: int, depth: int) -> Ints:
    """[n] clusters, numbered from 0 in any order."""
    component = components(n, edges.ends)
    size = np.bincount(component)
    share = np.clip(np.rint(n_clusters * size / n).astype(np.int64), 1, size)
    label = component.copy()
    alone = np.flatnonzero((share == size)[component])
    label[alone] = len(size) + alone
    born = len(size) + n
    order = np.argsort(component, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(size)])
    of_edge = component[edges.ends[:, 0]] if len(edges) else np.zeros(0, dtype=np.int64)
    by_component = np.argsort(of_edge, kind="stable")
    edge_bounds = np.searchsorted(of_edge[by_component], np.arange(len(size) + 1))
    local = np.empty(n, dtype=np.int64)
    for c in np.flatnonzero((share > 1) & (share < size)).tolist():
        nodes = order[bounds[c] : bounds[c + 1]]
        local[nodes] = np.arange(len(nodes))
        inside = edges[by_component[edge_bounds[c] : edge_bounds[c + 1]]]
        among = Edges(local[inside.ends], inside.weight)
        part = numbered(_parts(len(nodes), among, int(share[c]), seed, depth))
        label[nodes] = born + part
        born += int(part.max()) + 1
    return numbered(label)


def _parts(n: int, edges: Edges, n_clusters: int, seed: int, depth: int) -> Ints:
    """[n] clusters of a connected graph."""
    from scipy import sparse
    from sklearn.cluster import SpectralClustering

    weight = np.maximum(edges.weight / edges.weight.max(), _LEAST)
    one, other = edges.ends.astype(np.int32).T  # scikit-learn takes no wider ones
    upper = sparse.coo_array((weight, (one, other)), shape=(n, n))
    clustering = SpectralClustering(
        min(n_clusters, AT_ONCE),
        affinity="precomputed",
        assign_labels="discretize",
        random_state=seed & 0x7FFFFFFF,
    )
    affinity = sparse.csr_matrix(upper + upper.T)
    try:
        found = clustering.fit_predict(affinity)
    except np.linalg.LinAlgError:  # its rotation did not converge
        found = clustering.set_params(assign_labels="cluster_qr").fit_predict(affinity)
    part = numbered(np.asarray(found, dtype=np.int64))
    if n_clusters <= AT_ONCE or depth == 1 or part.max() == 0:
        return part
    # The rest is a graph of as many components as parts, or more.
    return _divided(n, edges[edges.inside(part)], n_clusters, seed, depth - 1)


def check_installed() -> None:
    """Raises SettingsError where scikit-learn is missing."""
    try:
        import sklearn.cluster  # noqa: F401
    except ImportError as e:
        raise SettingsError(
            f"spectral clustering needs scikit-learn ({e}): pip install 'graphrag-ray[archrag]', "
            "or take Leiden or SCAN"
        ) from e
