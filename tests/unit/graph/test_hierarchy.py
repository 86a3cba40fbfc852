from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.hierarchy import number_depth_first


def ints(*values):
    return np.array(values, dtype=np.int64)


def example():
    """Seven nodes: {0, 4, 5, 6} split into {0, 4} and {5, 6}; {2, 3}; {1} packed."""
    return number_depth_first(
        leaf=ints(4, 0, 2, 2, 4, 3, 3),
        parent=ints(-1, -1, -1, 1, 1),
        level=ints(0, 0, 0, 1, 1),
        packed=np.array([True, False, False, False, False]),
        modularity=0.5,
    )


def members(hierarchy, c):
    return hierarchy.node_at_place[hierarchy.start[c] : hierarchy.end[c]].tolist()


def test_communities_are_numbered_depth_first_with_the_largest_sibling_first():
    h = example()
    assert [members(h, c) for c in range(5)] == [[0, 4, 5, 6], [0, 4], [5, 6], [2, 3], [1]]
    assert h.parent.tolist() == [-1, 0, 0, -1, -1]
    assert h.level.tolist() == [0, 1, 1, 0, 0]
    assert h.subtree_end.tolist() == [3, 2, 3, 4, 5]
    assert h.packed.tolist() == [False, False, False, False, True]
    assert h.children(0).tolist() == [1, 2]
    assert h.sizes().tolist() == [4, 2, 2, 2, 1]


def test_level_includes_the_leaves_above_it():
    h = example()
    assert h.communities_at_level(0).tolist() == [0, 3, 4]
    assert h.communities_at_level(1).tolist() == h.communities_at_level(9).tolist() == [1, 2, 3, 4]
    assert h.community_of(1).tolist() == [1, 4, 3, 3, 1, 2, 2]


def test_nodes_in_no_community_come_last():
    h = number_depth_first(ints(-1, 0, -1, 0), ints(-1), ints(0), np.array([False]), 0.0)
    assert h.node_at_place.tolist() == [1, 3, 0, 2]
    assert h.community_of(0).tolist() == [-1, 0, -1, 0]


def test_hierarchy_can_be_empty():
    h = number_depth_first(ints(), ints(), ints(), np.zeros(0, bool), 0.0)
    assert (h.n_communities, h.n_levels, len(h.node_at_place), len(h.communities_at_level(0))) == (0, 0, 0, 0)
    h = number_depth_first(ints(-1, -1), ints(), ints(), np.zeros(0, bool), 0.0)
    assert (h.node_at_place.tolist(), h.community_of(0).tolist()) == ([0, 1], [-1, -1])


@st.composite
def trees(draw):
    """Communities of a random tree with nodes in each leaf and shuffled numbers."""
    parent, level, leaves = [], [], []
    queue = [(-1, 0)] * draw(st.integers(1, 4))
    while queue:
        above, depth = queue.pop(0)
        number = len(parent)
        parent.append(above)
        level.append(depth)
        width = draw(st.sampled_from([0, 0, 2, 3])) if depth < 3 else 0
        queue += [(number, depth + 1)] * width
        if not width:
            leaves.append(number)
    extra = draw(st.lists(st.sampled_from([*leaves, -1]), max_size=20))
    leaf = draw(st.permutations([*leaves, *extra]))
    packed = [lv == 0 and number in leaves and draw(st.booleans()) for number, lv in enumerate(level)]
    return ints(*leaf), ints(*parent), ints(*level), np.array(packed)


def walk(leaf, parent, packed):
    """A recursive reference implementation: [(members, old number)] in depth-first order."""
    inside = {c: set() for c in range(len(parent))}
    for node, smallest in enumerate(leaf.tolist()):
        c = smallest
        while c >= 0:
            inside[c].add(node)
            c = int(parent[c])

    def visit(above):
        below = [c for c in range(len(parent)) if parent[c] == above]
        for c in sorted(below, key=lambda c: (packed[c], -len(inside[c]), min(inside[c]))):
            yield inside[c], c
            yield from visit(c)

    return list(visit(-1))


@given(trees())
def test_numbering_matches_a_recursive_traversal(tree):
    leaf, parent, level, packed = tree
    h = number_depth_first(leaf, parent, level, packed, 0.0)
    expected = walk(leaf, parent, packed)
    assert [set(members(h, c)) for c in range(h.n_communities)] == [m for m, _ in expected]
    assert h.level.tolist() == [level[c] for _, c in expected]
    old = {c: new for new, (_, c) in enumerate(expected)} | {-1: -1}
    assert h.parent.tolist() == [old[parent[c]] for _, c in expected]
    assert sorted(h.node_at_place.tolist()) == list(range(len(leaf)))
    for c in range(h.n_communities):
        below = {c} | {
            d for d in range(h.n_communities) if h.parent[d] in range(c, d) and h.start[d] < h.end[c]
        }
        assert set(range(c, h.subtree_end[c])) == below
    for k in range(h.n_levels + 1):
        community = h.community_of(k)
        assert [n for n in range(len(leaf)) if community[n] < 0] == [
            n for n in range(len(leaf)) if leaf[n] < 0
        ]
        assert all(n in members(h, community[n]) for n in range(len(leaf)) if community[n] >= 0)
