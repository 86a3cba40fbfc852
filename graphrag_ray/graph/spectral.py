"""Spectral clustering (Shi and Malik 2000; Yu and Shi 2003) by scikit-learn, component by component.

Edge weights are affinities. `discretize` turns the eigenvectors of a component's normalised Laplacian into
clusters; on graphs of many small groups it did better than k-means and pivoted QR. Departure: as many
eigenvectors as clusters would take cubic time, so a component is divided into at most `AT_ONCE` clusters at a
time, and each of these again. 5,000 nodes with 15,000 edges take 9 seconds of CPU, 20,000 more than 3
minutes.
"""

from __future__ import annotations

import numpy as np

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Edges, canonical_labels, connected_components, subgraphs

MAX_NODES = 10_000  # the eigenvectors of larger graphs take too long: use another clustering
AT_ONCE = 64
_DEPTH = 4  # maximum nesting of divisions
_MIN_WEIGHT = 1e-9  # smallest affinity, as a share of the largest


def spectral(n: int, edges: Edges, n_clusters: int, seed: int) -> Ints:
    """[n] cluster of each node, numbered 0…k-1 by their smallest nodes.

    Every connected component gets a share of `n_clusters` in proportion to its nodes, at least one. No
    cluster spans two components, so there can be more than `n_clusters`.

    Raises:
        SettingsError: If scikit-learn is not installed.
    """
    check_installed()
    if len(edges) == 0:
        return np.arange(n, dtype=np.int64)
    return canonical_labels(_divide(n, edges, n_clusters, seed, _DEPTH))


def _divide(n: int, edges: Edges, n_clusters: int, seed: int, depth: int) -> Ints:
    """[n] clusters, numbered from 0 in any order."""
    component = connected_components(n, edges.ends)
    size = np.bincount(component)
    share = np.clip(np.rint(n_clusters * size / n).astype(np.int64), 1, size)
    label = component.copy()
    alone = np.flatnonzero((share == size)[component])
    label[alone] = len(size) + alone
    next_label = len(size) + n
    for c, (nodes, inside) in enumerate(subgraphs(component, len(size), edges)):
        if 1 < share[c] < size[c]:
            part = _cluster(len(nodes), inside, int(share[c]), seed, depth)
            label[nodes] = next_label + part
            next_label += int(part.max()) + 1
    return canonical_labels(label)


def _cluster(n: int, edges: Edges, n_clusters: int, seed: int, depth: int) -> Ints:
    """[n] clusters of a connected graph."""
    from scipy import sparse
    from sklearn.cluster import SpectralClustering

    weight = np.maximum(edges.weight / edges.weight.max(), _MIN_WEIGHT)
    source, target = edges.ends.astype(np.int32).T  # the widest indices that scikit-learn accepts
    upper = sparse.coo_array((weight, (source, target)), shape=(n, n))
    clustering = SpectralClustering(
        min(n_clusters, AT_ONCE),
        affinity="precomputed",
        assign_labels="discretize",
        random_state=seed & 0x7FFFFFFF,
    )
    affinity = sparse.csr_matrix(upper + upper.T)
    try:
        label = clustering.fit_predict(affinity)
    except np.linalg.LinAlgError:  # its rotation did not converge
        label = clustering.set_params(assign_labels="cluster_qr").fit_predict(affinity)
    part = canonical_labels(np.asarray(label, dtype=np.int64))
    if n_clusters <= AT_ONCE or depth == 1 or part.max() == 0:
        return part
    # Without the edges between parts, every part is a component of its own, or several.
    return _divide(n, edges[edges.inside(part)], n_clusters, seed, depth - 1)


def check_installed() -> None:
    """Raise SettingsError if scikit-learn is missing."""
    try:
        import sklearn.cluster  # noqa: F401
    except ImportError as e:
        raise SettingsError(
            f"Spectral clustering needs scikit-learn ({e}). Run pip install 'graphrag-ray[archrag]', or "
            "choose Leiden or SCAN."
        ) from e
