"""Spectral clustering (Shi and Malik 2000; Yu and Shi 2003) with scikit-learn, component by component.

Edge weights are affinities. `discretize` turns the eigenvectors of a component's normalised Laplacian into
clusters. On graphs of many small groups it gave better results than k-means and pivoted QR. Unlike in the
papers, a component is divided recursively into at most `MAX_PARTS` clusters at a time, because computing one
eigenvector per cluster would take cubic time. Above `MAX_EXACT_NODES`, where exact eigenvectors take minutes,
they are approximated by randomised subspace iteration (Halko, Martinsson and Tropp 2011) in linear time, and
clustered by k-means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Edges, canonical_labels, connected_components, subgraphs

MAX_EXACT_NODES = 10_000  # eigenvectors of larger components are approximated
MAX_PARTS = 64
_MAX_DEPTH = 4  # maximum depth of recursive division
_MIN_WEIGHT = 1e-9  # minimum affinity relative to the largest
_ROUNDS, _QR_EVERY, _EXTRA_VECTORS = 32, 8, 16  # of the approximation


def spectral(n: int, edges: Edges, n_clusters: int, seed: int) -> Ints:
    """[n] cluster of each node, numbered 0…k-1 in the order of their smallest nodes.

    Every connected component gets a share of `n_clusters` in proportion to its nodes, but at least one.
    Clusters do not span components, so there can be more than `n_clusters`.

    Raises:
        SettingsError: If scikit-learn is not installed.
    """
    check_installed()
    if len(edges) == 0:
        return np.arange(n, dtype=np.int64)
    return canonical_labels(_divide(n, edges, n_clusters, seed, _MAX_DEPTH))


def _divide(n: int, edges: Edges, n_clusters: int, seed: int, depth: int) -> Ints:
    """[n] cluster of each node, numbered from 0 in any order."""
    component = connected_components(n, edges.ends)
    size = np.bincount(component)
    share = np.clip(np.rint(n_clusters * size / n).astype(np.int64), 1, size)
    label = component.copy()
    singletons = np.flatnonzero((share == size)[component])
    label[singletons] = len(size) + singletons
    next_label = len(size) + n
    for c, (nodes, inside) in enumerate(subgraphs(component, len(size), edges)):
        if 1 < share[c] < size[c]:
            part = _cluster(len(nodes), inside, int(share[c]), seed, depth)
            label[nodes] = next_label + part
            next_label += int(part.max()) + 1
    return canonical_labels(label)


def _cluster(n: int, edges: Edges, n_clusters: int, seed: int, depth: int) -> Ints:
    """[n] cluster of each node of a connected graph."""
    from scipy import sparse
    from sklearn.cluster import KMeans, SpectralClustering

    weight = np.maximum(edges.weight / edges.weight.max(), _MIN_WEIGHT)
    source, target = edges.ends.astype(np.int32).T  # scikit-learn does not accept wider indices
    upper = sparse.coo_array((weight, (source, target)), shape=(n, n))
    n_parts, seed = min(n_clusters, MAX_PARTS), seed & 0x7FFFFFFF
    affinity = sparse.csr_matrix(upper + upper.T)
    if n > MAX_EXACT_NODES:
        embedding = _approximate_eigenvectors(affinity, n_parts, seed)
        label = KMeans(n_parts, n_init=1, max_iter=50, random_state=seed).fit_predict(embedding)
    else:
        clustering = SpectralClustering(
            n_parts, affinity="precomputed", assign_labels="discretize", random_state=seed
        )
        try:
            label = clustering.fit_predict(affinity)
        except np.linalg.LinAlgError:  # the rotation of discretize did not converge
            label = clustering.set_params(assign_labels="cluster_qr").fit_predict(affinity)
    part = canonical_labels(np.asarray(label, dtype=np.int64))
    if n_clusters <= MAX_PARTS or depth == 1 or part.max() == 0:
        return part
    # Without the edges between parts, each part consists of one or more components.
    return _divide(n, edges[edges.inside(part)], n_clusters, seed, depth - 1)


def _approximate_eigenvectors(affinity: Any, k: int, seed: int) -> npt.NDArray[np.float64]:
    """[n, k] the approximate leading eigenvectors of the normalised affinities, as rows of length 1.

    Random vectors are repeatedly smoothed by a lazy random walk, which damps all but the leading ones.
    """
    from scipy import sparse

    n = affinity.shape[0]
    scale = sparse.diags_array(1 / np.sqrt(np.asarray(affinity.sum(axis=1)).ravel()))
    walk = sparse.csr_array(scale @ affinity @ scale)
    basis = np.random.default_rng(seed).standard_normal((n, min(n, k + _EXTRA_VECTORS)))
    for n_rounds in range(1, _ROUNDS + 1):
        basis = (basis + walk @ basis) / 2
        if n_rounds % _QR_EVERY == 0:
            basis, _ = np.linalg.qr(basis)
    values, rotation = np.linalg.eigh(basis.T @ (walk @ basis))
    vectors = basis @ rotation[:, np.argsort(-values)[:k]]
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def check_installed() -> None:
    """Raise SettingsError if scikit-learn is missing."""
    try:
        import sklearn.cluster  # noqa: F401
    except ImportError as e:
        raise SettingsError(
            f"Spectral clustering needs scikit-learn ({e}). Run pip install 'graphrag-ray[archrag]', or "
            "choose Leiden or SCAN."
        ) from e
