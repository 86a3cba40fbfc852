from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrag_ray.graph import summary_tree
from graphrag_ray.graph.soft_clusters import soft_clusters
from graphrag_ray.graph.summary_tree import (
    Clusters,
    PreviousLevel,
    SummaryTree,
    TreeLevel,
    has_next_level,
    main_clusters,
    merge_divided,
    partition_into_groups,
    split_large_sets,
    update_level,
)
from graphrag_ray.store.search.vector_index import normalize


def vectors_of(n, seed=0, topics=12):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((topics, 16))
    return normalize((centres[np.arange(n) % topics] + 0.3 * rng.standard_normal((n, 16))).astype(np.float32))


def level(clusters, n):
    made = Clusters.from_sets(np.array(own) for own in clusters)
    return PreviousLevel(
        TreeLevel(made, np.arange(len(made), dtype=np.uint64) + 500, 2.0), np.arange(n, dtype=np.uint64)
    )


def as_lists(clusters):
    return [own.tolist() for own in clusters]


@st.composite
def trees(draw):
    """Levels of clusters that cover every node."""
    n, levels = draw(st.integers(1, 30)), []
    while n > 1 and len(levels) < 4:
        n_clusters = draw(st.integers(1, max(1, n // 2)))
        of = draw(st.lists(st.sets(st.integers(0, n_clusters - 1), min_size=1), min_size=n, max_size=n))
        own = [[node for node in range(n) if c in of[node]] for c in range(n_clusters)]
        levels.append(Clusters.from_sets(np.array(members) for members in own if members))
        n = len(levels[-1])
    return levels


@given(trees())
def test_every_summary_covers_texts_and_every_text_is_below_the_top(levels):
    main = [
        np.array([next(c for c, own in enumerate(of) if node in own) for node in range(of.member.max() + 1)])
        for of in levels
    ]
    tree = SummaryTree(levels, main)
    n = len(levels[0].member) and int(levels[0].member.max()) + 1 if levels else 0
    assert (tree.sizes() > 0).all() and len(tree.texts) == sum(map(len, levels)) == len(tree.level)
    for height in range(len(levels)):
        at = np.flatnonzero(tree.level == height)
        assert {text for c in at.tolist() for text in tree.texts[c].tolist()} == set(range(n))
    for community in range(len(tree.level)):
        below = tree.children(community)
        assert bool(below) == (tree.level[community] < len(levels) - 1)
        assert all(tree.level[child] == tree.level[community] + 1 for child in below)
        if below:
            texts = {text for child in below for text in tree.texts[child].tolist()}
            assert texts == set(tree.texts[community].tolist())
        parent = tree.parent[community]
        assert (parent < 0) == (tree.level[community] == 0)
        assert parent < 0 or community in tree.children(int(parent))


def test_main_cluster_has_the_nearest_mean():
    vectors = normalize(np.array([[1, 0], [1, 0.1], [0.5, 0.9], [0, 1]], dtype=np.float32))
    clusters = Clusters.from_sets([np.array([0, 1, 2]), np.array([2, 3])])
    assert main_clusters(clusters, vectors).tolist() == [0, 0, 1, 1]


@given(st.integers(0, 300), st.sampled_from(["topics", "same", "zeros"]))
@settings(deadline=None)
def test_groups_partition_the_nodes_and_are_limited_in_size(n, what):
    vectors = vectors_of(n) if what == "topics" else np.full((n, 16), 0.25 * (what == "same"), np.float32)
    before = summary_tree.MAX_NODES, summary_tree._PER_GROUP
    summary_tree.MAX_NODES, summary_tree._PER_GROUP = 20, 10
    try:
        found = partition_into_groups(vectors)
    finally:
        summary_tree.MAX_NODES, summary_tree._PER_GROUP = before
    assert sorted(node for own in found for node in own.tolist()) == list(range(n))
    assert all(len(own) <= 20 for own in found)


@given(st.integers(0, 200), st.integers(0, 10))
def test_number_of_levels_is_limited(n, most):
    height = 0
    while has_next_level(n, height, most):
        n, height = max(1, n - 1), height + 1
    assert height <= most and (height == most or n <= max(1, summary_tree.MIN_NODES))


def test_two_texts_have_a_summary_but_a_single_text_has_none():
    assert (
        has_next_level(2, 0, 5)
        and not has_next_level(1, 0, 5)
        and not has_next_level(11, 1, 5)
        and has_next_level(12, 1, 5)
    )


def test_new_node_joins_the_nearest_cluster():
    vectors = normalize(np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [0.1, 0.9]], dtype=np.float32))
    found = update_level(
        np.arange(5, dtype=np.uint64), vectors, np.ones(5, np.int64), 10, level([[0, 1], [2, 3]], 4)
    )
    assert found is not None and not found.divided
    assert as_lists(found.clusters) == [[0, 1], [2, 3, 4]] and found.names.tolist() == [500, 501]


def test_too_long_cluster_is_divided_and_its_largest_part_inherits_the_name():
    vectors, n = vectors_of(9, topics=2), 9
    earlier = level([[0, 2, 4], [1, 3, 5, 7]], 8)
    found = update_level(np.arange(n, dtype=np.uint64), vectors, np.ones(n, np.int64), 3, earlier)
    assert found is not None
    # Node 6 was in no cluster and node 8 is new. Both join the first cluster.
    assert as_lists(found.clusters) == [[1, 3, 5, 7]] and as_lists(found.divided) == [[0, 2, 4, 6, 8]]
    parts = [[np.array([0, 2]), np.array([4, 6, 8])]]
    after = merge_divided(found, parts, [np.array([1, 2], dtype=np.uint64)])
    assert as_lists(after.clusters) == [[0, 2], [1, 3, 5, 7], [4, 6, 8]]
    assert after.names.tolist() == [1, 501, 500]


def test_removed_nodes_leave_their_clusters_and_empty_clusters_are_dropped():
    vectors = vectors_of(4)
    keys = np.array([0, 2, 3, 5], dtype=np.uint64)
    found = update_level(keys, vectors, np.ones(4, np.int64), 10, level([[0, 1], [1, 4], [2, 3, 5]], 6))
    # Node 0 is the last member of its cluster, so it joins the nearest one.
    assert found is not None and as_lists(found.clusters) == [[0, 1, 2, 3]] and found.names.tolist() == [502]


def test_clusters_that_become_equal_are_merged():
    vectors, keys = vectors_of(3), np.arange(3, dtype=np.uint64)
    found = update_level(keys, vectors, np.ones(3, np.int64), 10, level([[0, 1, 3], [0, 1, 4], [1, 2]], 5))
    assert found is not None and as_lists(found.clusters) == [[0, 1], [0, 1], [1, 2]]
    after = merge_divided(found, [], [])
    assert as_lists(after.clusters) == [[0, 1], [1, 2]] and after.names.tolist() == [500, 502]


def test_level_that_lost_most_nodes_is_clustered_from_scratch():
    vectors, keys = vectors_of(60), np.array([at for at in range(60) if at % 5 < 2], dtype=np.uint64)
    before = level([list(range(at, at + 5)) for at in range(0, 60, 5)], 60)
    usual = PreviousLevel(replace(before.level, average_size=5.0), before.nodes)
    sizes = np.ones(len(keys), np.int64)
    assert update_level(keys, vectors[keys.astype(int)], sizes, 10, before) is not None
    assert update_level(keys, vectors[keys.astype(int)], sizes, 10, usual) is None


def test_large_additions_to_a_cluster_are_split_before_clustering(monkeypatch):
    monkeypatch.setattr(summary_tree, "MAX_NODES", 10)
    whole = [np.arange(25), np.arange(25, 30)]
    pieces, of = split_large_sets(whole, vectors_of(30))
    assert sorted(set(of)) == [0, 1] and all(len(piece) <= 10 for piece in pieces)
    assert sorted(np.concatenate(pieces).tolist()) == list(range(30))


def test_level_with_many_new_nodes_is_clustered_from_scratch():
    vectors = vectors_of(10)
    args = np.arange(10, dtype=np.uint64), vectors, np.ones(10, np.int64), 10
    assert update_level(*args, level([[0, 1, 2, 3, 4, 5]], 6)) is None
    assert update_level(*args, level([[0, 1, 2, 3, 4, 5, 6]], 7)) is not None
    assert update_level(*args, None) is None


@given(st.integers(2, 40), st.sets(st.integers(0, 39)), st.sets(st.integers(100, 108), max_size=8))
@settings(deadline=None)
def test_update_covers_all_current_nodes(n, gone, new):
    vectors = vectors_of(200)
    before = np.arange(n)
    clusters = soft_clusters(vectors[before], np.ones(n, np.int64), 6, "pca")
    keys = np.array([k for k in range(n) if k not in gone] + sorted(new), dtype=np.uint64)
    most = 6
    sizes = np.ones(len(keys), np.int64)
    found = update_level(keys, vectors[keys.astype(int)], sizes, most, level(as_lists_of(clusters), n))
    if found is None:  # too many nodes are new, or none are left
        return
    every = [*found.clusters, *found.divided]
    assert {node for own in every for node in own.tolist()} == set(range(len(keys)))
    assert len(found.names) == len(found.clusters) and len(found.divided_names) == len(found.divided)


def as_lists_of(clusters):
    return [own.tolist() for own in clusters]
