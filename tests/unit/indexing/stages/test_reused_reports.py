"""The most similar earlier community of each community."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.hierarchy import Hierarchy, number_depth_first
from graphrag_ray.indexing.stages.reused_reports import most_similar

KEYS = np.arange(100, 160, dtype=np.uint64)


def flat(community_of: list[int]) -> Hierarchy:
    """Return a hierarchy with one level, whose communities are renumbered."""
    _, leaf = np.unique(community_of, return_inverse=True)
    n = int(leaf.max()) + 1
    none = np.full(n, -1, dtype=np.int64)
    return number_depth_first(leaf.astype(np.int64), none, none + 1, np.zeros(n, dtype=np.bool_), 0.0)


def members(hierarchy: Hierarchy, keys: np.ndarray, community: int) -> set[int]:
    start, end = hierarchy.start[community], hierarchy.end[community]
    return set(keys[hierarchy.node_at_place[start:end]].tolist())


partitions = st.lists(st.integers(0, 4), min_size=1, max_size=30)


@given(partitions)
def test_communities_of_an_unchanged_graph_are_most_similar_to_themselves(partition: list[int]):
    hierarchy, keys = flat(partition), KEYS[: len(partition)]
    assert most_similar(hierarchy, keys, hierarchy, keys).tolist() == list(range(hierarchy.n_communities))


@given(
    partitions, partitions, st.sets(st.integers(0, 59), min_size=30), st.sets(st.integers(0, 59), min_size=30)
)
def test_most_similar_community_shares_most_members(
    partition_before: list[int], partition_now: list[int], nodes_before: set[int], nodes_now: set[int]
):
    keys_before = KEYS[sorted(nodes_before)][: len(partition_before)]
    keys_now = KEYS[sorted(nodes_now)][: len(partition_now)]
    before, now = flat(partition_before[: len(keys_before)]), flat(partition_now[: len(keys_now)])
    similar = most_similar(before, keys_before, now, keys_now)
    for community, partner in enumerate(similar.tolist()):
        nodes = members(now, keys_now, community)
        shared = [len(nodes & members(before, keys_before, c)) for c in range(before.n_communities)]
        assert (partner == -1) == (max(shared) == 0)
        assert partner == -1 or partner == shared.index(max(shared))


def test_communities_of_different_levels_are_not_similar():
    nodes, keys = np.zeros(3, dtype=np.int64), KEYS[:3]
    both = np.zeros(2, dtype=np.bool_)
    deep = number_depth_first(nodes + 1, np.array([-1, 0]), np.array([0, 1]), both, 0.0)
    shallow = flat([0, 0, 0])
    assert most_similar(shallow, keys, deep, keys).tolist() == [0, -1]
