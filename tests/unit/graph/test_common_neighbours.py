from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph import attributed_communities as module
from graphrag_ray.graph.attributed_communities import common_neighbours, distinct_edges

pairs = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda p: p[0] < p[1]), max_size=60)


def around(n, ends):
    near = [set() for _ in range(n)]
    for a, b in ends.tolist():
        near[a].add(b)
        near[b].add(a)
    return near


@given(pairs, st.integers(1, 8))
def test_common_neighbours_are_counted_for_every_edge(edges, at_a_time):
    ends = distinct_edges(np.array(edges, dtype=np.int64).reshape(-1, 2), 12)
    assert ends.tolist() == sorted(map(list, set(edges)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_PAIRS", at_a_time)
        found = common_neighbours(12, ends[::-1])[::-1]
    near = around(12, ends)
    assert found.tolist() == [len(near[a] & near[b]) for a, b in ends.tolist()]


def test_hubs_with_shared_leaves_take_linear_time():
    n = 200_000
    leaves = np.arange(2, n)
    to_one = np.stack([np.zeros_like(leaves), leaves], axis=1)
    ends = np.concatenate([[[0, 1]], to_one, to_one + np.array([1, 0])])
    begun = time.process_time()
    found = common_neighbours(n, ends)
    assert time.process_time() - begun < 10
    assert found[0] == n - 2 and (found[1:] == 1).all()
