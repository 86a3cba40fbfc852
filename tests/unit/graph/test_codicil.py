from __future__ import annotations

import time
from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.attributed_communities import codicil
from graphrag_ray.graph.leiden import canonical_edges
from graphrag_ray.graph.nearest_neighbours import nearest_neighbours

pairs = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40)
vectors = st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=12, max_size=12).map(
    lambda rows: np.array(rows, dtype=np.float32)
)


def sparsify(n, edges, vectors, k, alpha=0.5):
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(length > 0, length, 1)
    return codicil(n, edges, unit, nearest_neighbours(vectors, k)[0], alpha)


def graph(n, pairs):
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return canonical_edges(n, ends[:, 0], ends[:, 1], np.ones(len(ends)))


def all_links(edges, content, k):
    near, _, _ = nearest_neighbours(content, k)
    ends = {tuple(e) for e in edges.ends.tolist()}
    return ends | {(min(i, j), max(i, j)) for i, row in enumerate(near.tolist()) for j in row if j >= 0}


@given(pairs, vectors, st.integers(0, 4), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_result_is_a_subset_of_all_links_and_every_node_retains_an_edge(pairs, content, k, alpha):
    edges = graph(12, pairs)
    found = sparsify(12, edges, content, k, alpha)
    everything = all_links(edges, content, k)
    ends = [tuple(e) for e in found.ends.tolist()]
    assert ends == sorted(set(ends)) and set(ends) <= everything
    assert (found.weight > 0).all() and (found.weight <= 1).all()
    degree, remaining = np.bincount(np.array([*everything, (0, 0)]).ravel(), minlength=12), [0] * 12
    degree[0] -= 2
    for a, b in ends:
        remaining[a] += 1
        remaining[b] += 1
    assert all(have >= ceil(sqrt(had)) for have, had in zip(remaining, degree.tolist(), strict=True))
    again = sparsify(12, edges, content, k, alpha)
    assert np.array_equal(again.ends, found.ends) and np.array_equal(again.weight, found.weight)


def by_definition(n, edges, content, k, alpha):
    near = {v: {v} for v in range(n)}
    everything = sorted(all_links(edges, content, k))
    for a, b in everything:
        near[a].add(b)
        near[b].add(a)
    unit = content / np.linalg.norm(content, axis=1)[:, None]

    def normal(values):
        values = np.array(values)
        return (values - values.mean()) / (values.std() or 1)

    kept = set()
    for v in range(n):
        own = [(min(v, w), max(v, w)) for w in near[v] - {v}]
        topology = [len(near[a] & near[b]) / len(near[a] | near[b]) for a, b in own]
        cosine = [float(unit[a] @ unit[b]) for a, b in own]
        strength = alpha * normal(topology) + (1 - alpha) * normal(cosine)
        kept |= {own[i] for i in np.argsort(-strength)[: ceil(sqrt(len(own)))]}
    return kept


@pytest.mark.parametrize("seed", range(5))
def test_edges_with_the_highest_similarity_are_retained(seed):
    rng = np.random.default_rng(seed)
    edges = graph(30, rng.integers(0, 30, (90, 2)))
    content = rng.standard_normal((30, 5)).astype(np.float32)
    found = sparsify(30, edges, content, 3, 0.4)
    assert {tuple(e) for e in found.ends.tolist()} == by_definition(30, edges, content, 3, 0.4)


def test_alpha_decides_between_topology_and_content():
    # 0 is in a triangle with 1 and 2, and linked to 3 and 4, which have the same content.
    edges = graph(5, [(0, 1), (0, 2), (1, 2), (0, 3), (0, 4)])
    content = np.array([[1, 0], [0, 1], [0, 1], [1, 0], [1, 0]], dtype=np.float32)
    neighbours_of_zero = {
        alpha: [b for a, b in sparsify(5, edges, content, 0, alpha).ends.tolist() if a == 0]
        for alpha in (0.0, 1.0)
    }
    assert {3, 4} <= set(neighbours_of_zero[0.0]) and {1, 2} <= set(neighbours_of_zero[1.0])


@pytest.mark.parametrize("n", [0, 1])
def test_graph_without_edges_is_unchanged(n):
    assert len(sparsify(n, graph(n, []), np.ones((n, 2), dtype=np.float32), 3)) == 0


def test_nodes_without_content_keep_their_links():
    found = sparsify(4, graph(4, [(0, 1), (2, 3)]), np.zeros((4, 2), dtype=np.float32), 3)
    assert found.ends.tolist() == [[0, 1], [2, 3]]


def test_hub_with_20_000_leaves_takes_seconds():
    n = 20_000
    leaves = np.arange(1, n)
    edges = canonical_edges(n, np.zeros_like(leaves), leaves, np.ones(n - 1))
    started = time.process_time()
    found = sparsify(n, edges, np.zeros((n, 2), dtype=np.float32), 4)
    assert time.process_time() - started < 10
    assert len(found) == n - 1  # the only edge of each leaf
