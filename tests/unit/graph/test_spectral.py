from __future__ import annotations

import builtins
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import SpectralClustering

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph import spectral as module
from graphrag_ray.graph.leiden import canonical_edges, canonical_labels, connected_components
from graphrag_ray.graph.spectral import spectral

links = st.lists(
    st.tuples(st.integers(0, 24), st.integers(0, 24), st.sampled_from([1e-300, 0.2, 1, 5, 1e200])),
    max_size=60,
)


def graph(n, pairs):
    source, target, weight = np.array([(*p, 1)[:3] for p in pairs], dtype=np.float64).reshape(-1, 3).T
    return canonical_edges(n, source.astype(np.int64), target.astype(np.int64), weight)


def clique(nodes):
    return [(a, b) for a in nodes for b in nodes if a < b]


def ring(n_cliques, size):
    edges = [e for i in range(n_cliques) for e in clique(range(i * size, (i + 1) * size))]
    return [*edges, *((i * size, (i + 1) % n_cliques * size + 1) for i in range(n_cliques))]


@pytest.fixture(autouse=True)
def _nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@settings(deadline=None)
@given(links, st.integers(1, 26), st.integers(-5, 2**40))
def test_components_are_divided_separately_without_warnings(links, n_clusters, seed):
    edges = graph(25, links)
    label = spectral(25, edges, n_clusters, seed)
    assert label.dtype == np.int64 and np.array_equal(label, canonical_labels(label)) and len(label) == 25
    component = connected_components(25, edges.ends)
    assert len(set(zip(label.tolist(), component.tolist(), strict=True))) == label.max() + 1
    assert np.array_equal(label, spectral(25, edges, n_clusters, seed))


def test_two_cliques_joined_by_an_edge_are_two_clusters():
    edges = graph(10, [*clique(range(5)), *clique(range(5, 10)), (4, 5)])
    assert spectral(10, edges, 2, 0).tolist() == [0] * 5 + [1] * 5


def test_cliques_are_found_in_a_ring_and_weights_count():
    label = spectral(48, graph(48, ring(8, 6)), 8, 3)
    assert label.tolist() == np.repeat(np.arange(8), 6).tolist()
    square = graph(4, [(0, 1, 9), (1, 2, 1), (2, 3, 9), (0, 3, 1)])
    assert spectral(4, square, 2, 0).tolist() == [0, 0, 1, 1]


def test_components_get_their_share_and_isolated_nodes_are_separate():
    edges = graph(25, [*ring(3, 6), (18, 19), (19, 20)])
    label = spectral(25, edges, 4, 0)
    assert label.tolist() == [*np.repeat(np.arange(3), 6).tolist(), 3, 3, 3, 4, 5, 6, 7]


def test_many_clusters_are_computed_recursively(monkeypatch):
    monkeypatch.setattr(module, "MAX_PARTS", 4)
    edges = graph(96, ring(16, 6))
    label = spectral(96, edges, 16, 0)
    assert 12 <= label.max() + 1 <= 20
    assert (label.reshape(16, 6) == label.reshape(16, 6)[:, :1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_large_graphs_are_divided_by_approximate_eigenvectors(monkeypatch, seed):
    edges = graph(96, ring(16, 6))
    exact = spectral(96, edges, 16, seed)
    monkeypatch.setattr(module, "MAX_EXACT_NODES", 50)
    monkeypatch.setattr(SpectralClustering, "fit_predict", None)
    label = spectral(96, edges, 16, seed)
    assert np.array_equal(label, spectral(96, edges, 16, seed))
    assert 10 <= label.max() + 1 <= 16

    def n_cut(label):
        return int((label[edges.ends[:, 0]] != label[edges.ends[:, 1]]).sum())

    assert n_cut(label) <= 2 * n_cut(exact) + 10


@pytest.mark.parametrize("n", [0, 1, 3])
def test_graph_without_edges_has_only_single_node_clusters(n):
    assert spectral(n, graph(n, []), 2, 0).tolist() == list(range(n))


def test_missing_scikit_learn_is_reported(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError("No module named 'sklearn'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingsError, match=r"scikit-learn.*pip install 'graphrag-ray\[archrag\]'"):
        spectral(2, graph(2, [(0, 1)]), 2, 0)
