"""Spectral clustering (Shi and Malik 2000; Ng, Jordan, Weiss 2001) by scikit-learn, component by component.

The weights of edges are affinities. The eigenvectors of a component's normalised Laplacian are turned into
clusters by a pivoted QR factorisation (Damle, Minden, Ying 2019), which has no random start, and which
many clusters do not slow down as they do k-means.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.edges import Edges
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Floats, components, numbered

MOST_NODES = 20_000
"""Eigenvectors of larger graphs would take too long."""
_LEAST = 1e-9  # of the largest weight of a component; what is below counts as much


def spectral(n: int, edges: Edges, n_clusters: int, seed: int) -> Ints:
    """[n] the cluster of each node, numbered 0…k-1 by their smallest nodes.

    Every connected component has its share of `n_clusters` by its nodes, rounded, and at least one: no
    cluster spans two, and there are more than `n_clusters` where there are more components.

    Raises SettingsError above `MOST_NODES` nodes and where scikit-learn is not installed.
    """
    if n > MOST_NODES:
        raise SettingsError(
            f"spectral clustering is for graphs of up to {MOST_NODES:,} nodes and this one has {n:,}: "
            "choose leiden or scan"
        )
    clustering = _clustering()
    component = components(n, edges.ends)
    size = np.bincount(component)
    share = np.clip(np.rint(n_clusters * size / max(n, 1)).astype(np.int64), 1, size)
    label = component * n
    order = np.argsort(component[edges.ends[:, 0]], kind="stable") if len(edges) else np.zeros(0, np.int64)
    bounds = np.searchsorted(component[edges.ends[order, 0]], np.arange(len(size) + 1))
    nodes = np.split(np.argsort(component, kind="stable"), np.cumsum(size)[:-1])
    for c in np.flatnonzero(share > 1).tolist():
        if share[c] == size[c]:
            label[nodes[c]] += np.arange(size[c])
            continue
        own = edges[order[bounds[c] : bounds[c + 1]]]
        ends = np.searchsorted(nodes[c], own.ends)
        label[nodes[c]] += clustering(int(size[c]), ends, own.weight, int(share[c]), seed)
    return numbered(label)


def _clustering() -> Callable[[int, npt.NDArray[np.int64], Floats, int, int], Ints]:
    try:
        from scipy.sparse import coo_array
        from sklearn.cluster import SpectralClustering
    except ImportError as e:
        raise SettingsError(
            "spectral clustering needs scikit-learn: pip install 'graphrag-ray[archrag]', or choose leiden "
            "or scan"
        ) from e

    def divided(n: int, ends: npt.NDArray[np.int64], weight: Floats, k: int, seed: int) -> Ints:
        """[n] the cluster of each node of a connected graph."""
        weight = np.maximum(weight, _LEAST * weight.max())
        one, other = ends.astype(np.int32).T
        places = np.concatenate([one, other]), np.concatenate([other, one])
        affinity = coo_array((np.concatenate([weight, weight]), places), shape=(n, n)).tocsr()
        # Arpack looks for fewer eigenvectors than there are nodes; small graphs are solved whole.
        if k >= n - 1:
            return np.arange(n, dtype=np.int64) % k
        model = SpectralClustering(
            k, affinity="precomputed", assign_labels="cluster_qr", random_state=seed % 2**32
        )
        return np.asarray(model.fit_predict(affinity), dtype=np.int64)

    return divided
