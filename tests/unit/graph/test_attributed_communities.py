from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrag_ray.base.index_settings import Attributed, Communities
from graphrag_ray.graph.attributed_communities import (
    LevelNodes,
    cluster_level,
    has_next_level,
    neighbour_count,
    stack_levels,
    unit_edges,
    with_cosine_weights,
)
from graphrag_ray.graph.leiden import Edges
from graphrag_ray.graph.seeded_partition import PreviousPartition
from graphrag_ray.store.search.vector_index import normalize

LEIDEN = Communities()


def nodes(n, edges, vectors, **more):
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    matrix = normalize(np.asarray(vectors, dtype=np.float32))
    keys = np.arange(n, dtype=np.uint64)
    return LevelNodes(unit_edges(n, source, target), matrix, np.full(n, 10), keys, **more)


def cluster(given_, pack_tokens=100, **options):
    return cluster_level(given_, Attributed(**options), LEIDEN, pack_tokens)


def groups(level):
    return [np.flatnonzero(level.cluster == c).tolist() for c in range(len(level.packed))]


def about(n, topics, dimensions=8, seed=0):
    """Vectors of n nodes that alternate between topics, with a little noise."""
    rng = np.random.default_rng(seed)
    centres = np.eye(dimensions)[:topics]
    return centres[np.arange(n) % topics] + 0.05 * rng.standard_normal((n, dimensions))


@st.composite
def levels(draw):
    n = draw(st.integers(0, 40))
    pair = st.tuples(st.integers(0, max(0, n - 1)), st.integers(0, max(0, n - 1)))
    edges = draw(st.lists(pair, max_size=80)) if n else []
    number = st.sampled_from([0.0, 0.0, 1.0, -1.0, 0.3, 1e-30, 1e30])
    vectors = draw(st.lists(st.tuples(number, number, number), min_size=n, max_size=n))
    return nodes(n, edges, np.array(vectors, dtype=np.float32).reshape(n, 3))


@given(levels(), st.sampled_from(["knn", "codicil", "none"]), st.sampled_from(["leiden", "scan", "spectral"]))
@settings(deadline=None)
def test_a_level_is_a_partition_into_clusters_that_are_not_too_large(level, augment, clustering):
    found = cluster(level, max_size=3, similarity_links=augment, clustering=clustering)
    n, k = len(level.keys), len(found.packed)
    assert found.cluster.shape == (n,) and set(found.cluster.tolist()) == set(range(k))
    sizes = np.bincount(found.cluster, minlength=k)
    assert (sizes[~found.packed] <= 3).all()
    smallest = [int(np.flatnonzero(found.cluster == c)[0]) for c in range(k)]
    assert smallest == sorted(smallest)
    again = cluster(level, max_size=3, similarity_links=augment, clustering=clustering)
    assert np.array_equal(found.cluster, again.cluster)
    links = found.links
    assert not len(links) or (links.ends.max() < k and (links.ends[:, 0] < links.ends[:, 1]).all())


def test_similar_nodes_without_links_are_clustered_together():
    level = nodes(12, [(0, 1), (2, 3)], about(12, 3))
    assert groups(cluster(level, max_size=4, n_neighbours=3)) == [list(range(t, 12, 3)) for t in range(3)]
    alone = cluster(level, max_size=4, similarity_links="none")
    assert not any(
        len(group) > 2 for group, packed in zip(groups(alone), alone.packed, strict=True) if not packed
    )


def test_links_are_weighted_by_similarity():
    """A ring with one link within each topic."""
    ends = [(i, (i + 1) % 8) for i in range(8)]
    vectors = np.repeat(np.eye(4), 2, axis=0)
    assert groups(cluster(nodes(8, ends, vectors), similarity_links="none")) == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]


def test_edge_weight_is_the_cosine_or_the_median_if_unknown():
    edges = Edges(np.array([[0, 1], [0, 2], [0, 3], [1, 3]]), np.ones(4))
    apart = with_cosine_weights(edges, normalize(np.array([[1, 0], [2, 0], [-1, 0], [0, 1]], np.float32)))
    assert apart.ends.tolist() == [[0, 1]] and apart.weight.tolist() == [1.0]
    known = with_cosine_weights(edges, normalize(np.array([[1, 0], [1, 1], [3, 0], [0, 0]], np.float32)))
    median = (0.7071 + 1) / 2
    assert known.weight.tolist() == pytest.approx([0.7071, 1.0, median, median], abs=1e-4)
    assert with_cosine_weights(edges, np.zeros((4, 2), np.float32)).weight.tolist() == [1.0] * 4


@pytest.mark.parametrize("links", ["knn", "codicil"])
def test_only_neighbours_with_enough_similarity_are_linked(links: str):
    angles = np.arange(12) * 0.3
    level = nodes(12, [], np.stack([np.cos(angles), np.sin(angles)], axis=1))
    options = {"similarity_links": links, "n_neighbours": 4}
    assert (cluster(level, **options).edges.weight < 0.9).any()
    near = cluster(level, min_similarity=0.9, **options).edges
    assert len(near) and (np.abs(np.subtract(*near.ends.T)) == 1).all()
    assert not len(cluster(level, min_similarity=0.99, **options).edges)


def test_nodes_without_an_edge_share_packs_by_their_tokens():
    found = cluster(nodes(30, [], np.zeros((30, 4))), pack_tokens=100)
    assert 3 <= len(found.packed) <= 10 and found.packed.all()
    assert len(cluster(nodes(0, [], np.zeros((0, 4)))).packed) == 0
    assert groups(cluster(nodes(1, [], np.ones((1, 4))))) == [[0]]


@pytest.mark.parametrize("clustering", ["leiden", "scan"])
def test_many_similar_nodes_with_a_hub_are_divided_into_small_clusters(clustering: str):
    n = 3000
    level = nodes(n, [(0, i) for i in range(1, n)], np.ones((n, 4)))
    sizes = np.bincount(cluster(level, clustering=clustering).cluster)
    assert sizes.sum() == n and sizes.max() <= 15 and np.mean(sizes) > 4


def test_number_of_neighbours_is_the_mean_degree_and_is_reused_on_update():
    ring = [(i, (i + 1) % 10) for i in range(10)]
    level = nodes(10, ring, about(10, 2))
    assert neighbour_count(level, Attributed()) == 2
    above = nodes(10, ring, about(10, 2), neighbours=3, neighbours_below=5)
    assert neighbour_count(above, Attributed()) == 5
    assert neighbour_count(above, Attributed(n_neighbours="level")) == 2
    assert neighbour_count(nodes(10, ring, about(10, 2), neighbours=1), Attributed()) == 2
    assert neighbour_count(nodes(10, [*ring, (0, 5)], about(10, 2), neighbours=3), Attributed()) == 3
    assert neighbour_count(nodes(10, [], about(10, 2)), Attributed()) == 1
    assert neighbour_count(level, Attributed(n_neighbours=7)) == 7


def test_level_seeded_from_the_previous_one_changes_little():
    n = 300
    rng = np.random.default_rng(5)
    edges = [(i, int(j)) for i in range(n) for j in (i // 10 * 10 + rng.integers(0, 10, 3)) if j != i]
    vectors = about(n, 8) + np.repeat(rng.standard_normal((n // 10, 8)), 10, axis=0)
    first = cluster(nodes(n, edges, vectors))
    past = PreviousPartition(
        first.inner, np.arange(n, dtype=np.uint64), *first.edges.ends.T, first.edges.weight
    )
    vectors = np.concatenate([vectors, vectors[:1]])
    then = cluster(nodes(n + 1, [*edges, (0, n)], vectors, previous=past, neighbours=first.neighbours))
    before = {tuple(group) for group in groups(first)}
    assert len(before - {tuple(group) for group in groups(then)}) <= 4


@given(st.integers(1, 60), st.integers(0, 4), st.integers(0, 99))
def test_levels_are_stacked_into_one_hierarchy(n, height, seed):
    rng = np.random.default_rng(seed)
    clusters, packed, nodes_ = [], [], n
    for _ in range(height):
        label = rng.integers(0, max(1, nodes_ // 2), nodes_)
        label = np.unique(label, return_inverse=True)[1]
        nodes_ = int(label.max()) + 1
        clusters.append(label)
        packed.append(rng.random(nodes_) < 0.3)
    hierarchy, places = stack_levels(n, clusters, packed)
    assert hierarchy.n_levels == height and hierarchy.n_communities == sum(map(len, packed))
    of_node = np.arange(n)
    for at in range(height):
        below, of_node = of_node, clusters[at][of_node]
        level = height - 1 - at
        assert np.array_equal(places[at][of_node], hierarchy.community_of(level))
        assert (hierarchy.level[places[at]] == level).all()
        assert np.array_equal(hierarchy.packed[places[at]], packed[at])
        if at:
            assert np.array_equal(hierarchy.parent[places[at - 1][below]], places[at][of_node])


def test_too_few_or_too_many_clusters_end_the_levels():
    options = Attributed(min_communities=5)
    assert has_next_level(100, 20, options)
    assert not has_next_level(100, 4, options)
    assert not has_next_level(100, 95, options)
