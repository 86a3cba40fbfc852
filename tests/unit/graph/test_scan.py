from __future__ import annotations

import time
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.attributed_communities import scan
from graphrag_ray.graph.leiden import Edges, canonical_edges, canonical_labels

pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=45)


def graph(n, pairs) -> Edges:
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return canonical_edges(n, ends[:, 0], ends[:, 1], np.ones(len(ends)))


def clique(nodes):
    return [(a, b) for a in nodes for b in nodes if a < b]


def by_definition(n, edges, epsilon, mu):
    """Clusters as sets of cores and nodes similar to them. Border nodes can be in several."""
    near = [{v} for v in range(n)]
    for a, b in edges.ends.tolist():
        near[a].add(b)
        near[b].add(a)

    def similarity(u, v):
        return len(near[u] & near[v]) / sqrt(len(near[u]) * len(near[v]))

    similar = [{v for v in near[u] if similarity(u, v) >= epsilon} for u in range(n)]
    core = [len(similar[u]) >= mu for u in range(n)]
    cluster_of = [-1] * n
    for start in range(n):
        if core[start] and cluster_of[start] < 0:
            reached = [start]
            while reached:
                u = reached.pop()
                cluster_of[u] = start
                reached += [v for v in similar[u] if core[v] and cluster_of[v] < 0]
    for u in range(n):
        if not core[u]:
            cores = [(-similarity(u, v), v) for v in similar[u] if core[v]]
            cluster_of[u] = cluster_of[min(cores)[1]] if cores else n + u
    return canonical_labels(np.array(cluster_of, dtype=np.int64))


@given(pairs, st.sampled_from([0.3, 0.5, 0.6, 0.7, 0.8, 1.0]), st.integers(1, 5))
def test_clusters_match_the_definition(pairs, epsilon, mu):
    edges = graph(10, pairs)
    label = scan(10, edges, epsilon, mu)
    assert label.dtype == np.int64
    assert np.array_equal(label, by_definition(10, edges, epsilon, mu))


def test_two_cliques_joined_by_an_edge_are_two_clusters():
    edges = graph(10, [*clique(range(5)), *clique(range(5, 10)), (4, 5)])
    assert scan(10, edges).tolist() == [0] * 5 + [1] * 5


def test_hubs_and_outliers_are_separate_clusters():
    edges = graph(
        14, [*clique(range(5)), *clique(range(5, 10)), (10, 0), (10, 5), (10, 11), (10, 12), (11, 13)]
    )
    label = scan(14, edges, 0.7, 3)
    assert label.tolist() == [0] * 5 + [1] * 5 + [2, 3, 4, 5]


@pytest.mark.parametrize("n", [0, 1, 3])
def test_isolated_nodes_are_separate_clusters(n):
    assert scan(n, graph(n, [])).tolist() == list(range(n))


def test_parallel_edges_and_weights_are_ignored():
    pairs = [*clique(range(4)), (3, 4)]
    plain, twice = graph(5, pairs), graph(5, pairs + pairs)
    heavy = Edges(plain.ends, plain.weight * np.arange(1, len(plain) + 1))
    for edges in (twice, heavy):
        assert np.array_equal(scan(5, edges, 0.7, 3), scan(5, plain, 0.7, 3))


def test_a_hub_of_a_hundred_thousand_takes_seconds():
    n = 100_000
    leaves = np.arange(1, n)
    source, target = (
        np.concatenate([np.zeros_like(leaves), leaves[:-1]]),
        np.concatenate([leaves, leaves[1:]]),
    )
    started = time.process_time()
    label = scan(n, canonical_edges(n, source, target, np.ones(len(source))), 0.6, 3)
    assert time.process_time() - started < 10
    assert (label == np.arange(n))[0] and (label[1:] == 1).all()
