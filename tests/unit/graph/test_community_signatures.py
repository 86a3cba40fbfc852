"""Signatures of communities detect exactly the communities with changed inputs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.communities import sort_edges_by_community
from graphrag_ray.graph.community_signatures import signatures, unchanged_subtrees
from graphrag_ray.graph.context_plan import GraphElements, order_elements
from graphrag_ray.graph.hierarchy import Hierarchy, number_depth_first


def ints(*values: int):
    return np.array(values, dtype=np.int64)


LEAF = ints(1, 1, 2, 2, 3, 3)
HIERARCHY = number_depth_first(LEAF, ints(-1, 0, 0, -1), ints(0, 1, 1, 0), np.zeros(4, bool), 0.0)
"""Two at the top, of which the first has two below it."""
SOURCE, TARGET = ints(0, 0, 2, 4, 1), ints(1, 2, 3, 5, 4)


def signed(nodes=range(6), edges=range(5), claims=(), cut=False, extra=()):
    """Compute signatures. `extra` edges change degrees."""
    h: Hierarchy = HIERARCHY
    source, target = (
        np.append(of, [e[n] for e in extra]).astype(np.int64) for n, of in enumerate((SOURCE, TARGET))
    )
    order, community = sort_edges_by_community(h, source, target)
    says = np.append(np.array(list(edges), np.uint64), np.arange(90, 90 + len(extra), dtype=np.uint64))
    of_claims = ints(*(node for node, _ in claims))
    elements: GraphElements
    elements, by_place = order_elements(
        h, np.ones(6, np.int64), source, target, np.ones(len(source), np.int64), order, community, of_claims,
        np.ones(len(claims), np.int64),
    )  # fmt: skip
    contents = (
        np.array(list(nodes), np.uint64)[h.node_at_place],
        says[order],
        np.array([text for _, text in claims], np.uint64)[by_place],
    )
    ids = np.arange(h.n_communities, dtype=np.uint64) + np.uint64(7)
    return signatures(h, elements, contents, ids, np.full(h.n_communities, cut))


def differing(one, other) -> set[frozenset[int]]:
    """The members of the communities with different signatures."""
    h = HIERARCHY
    rows = np.flatnonzero((one != other).any(axis=1))
    return {frozenset(h.node_at_place[h.start[c] : h.end[c]].tolist()) for c in rows.tolist()}


FIRST, SECOND = frozenset({0, 1, 2, 3}), frozenset({4, 5})


def test_changed_node_changes_the_communities_that_contain_it():
    assert differing(signed(), signed(nodes=[0, 1, 99, 3, 4, 5])) == {FIRST, frozenset({2, 3})}


def test_changed_edge_changes_the_communities_that_contain_both_ends():
    assert differing(signed(), signed(edges=[0, 99, 2, 3, 4])) == {FIRST}
    assert differing(signed(), signed(edges=[0, 1, 2, 3, 99])) == set()  # between two communities


def test_claims_change_the_communities_of_their_subjects():
    assert differing(signed(claims=[(5, 1)]), signed(claims=[(5, 2)])) == {SECOND}


def test_degrees_matter_only_in_cut_contexts():
    more = [(0, 4)]
    assert differing(signed(), signed(extra=more)) == set()
    cut = differing(signed(cut=True), signed(cut=True, extra=more))
    assert cut == {FIRST, frozenset({0, 1}), SECOND}


@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_subtree_is_unchanged_only_if_all_descendants_are(same: list[bool]):
    h = HIERARCHY
    found = unchanged_subtrees(h, np.array(same))
    assert found.tolist() == [all(same[d] for d in range(c, h.subtree_end[c])) for c in range(4)]
