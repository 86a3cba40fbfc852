from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.integer_arrays import node_degrees
from graphrag_ray.graph.prune import (
    entities_to_retain,
    log_likelihood,
    relationships_to_retain,
    strongest_relationships,
)


def g2(n_ab, n_a, n_b, n_units):
    return float(log_likelihood(*(np.array([n]) for n in (n_ab, n_a, n_b)), n_units)[0])


def test_ratio_matches_the_definition_of_g2():
    cells = [(10, 20 * 30 / 100), (10, 20 * 70 / 100), (20, 80 * 30 / 100), (60, 80 * 70 / 100)]
    assert g2(10, 20, 30, 100) == pytest.approx(2 * sum(o * math.log(o / e) for o, e in cells))


def test_independence_is_zero_and_avoidance_is_negative():
    assert g2(10, 20, 50, 100) == pytest.approx(0.0, abs=1e-9)
    assert g2(1, 50, 50, 100) < -3.84
    assert g2(50, 50, 50, 100) > 100


def test_ratio_is_zero_if_an_end_occurs_everywhere():
    assert g2(40, 100, 40, 100) == pytest.approx(0.0, abs=1e-9)
    assert g2(1, 1, 1, 1) == 0.0


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 500))
def test_the_ratio_is_symmetric_and_finite(n_ab, more_a, more_b, rest):
    a, b = n_ab + more_a, n_ab + more_b
    total = n_ab + more_a + more_b + rest
    assert math.isfinite(g2(n_ab, a, b, total))
    assert g2(n_ab, a, b, total) == pytest.approx(g2(n_ab, b, a, total), abs=1e-6)


def test_associations_are_retained_and_chance_is_pruned():
    # 0 and 1 are frequent and co-occur once. 2 and 3 are rare and co-occur once. 0 and 1 have a stronger link
    # to 4.
    source, target = np.array([0, 2, 0, 1]), np.array([1, 3, 4, 4])
    n_ab, frequency = np.array([1, 1, 20, 20]), np.array([40, 40, 1, 1, 25])
    assert relationships_to_retain(source, target, n_ab, frequency, 100, 3.84).tolist() == [
        False,
        True,
        True,
        True,
    ]


def test_relationships_of_a_ubiquitous_host_are_retained():
    """Host 0 is in all 1,000 units. Guests 1–20 are in 30 each, and each has a different firm."""
    guests, firms = np.arange(1, 21), np.arange(21, 41)
    source = np.concatenate([np.zeros(20, int), guests])
    target = np.concatenate([guests, firms])
    n_ab = np.concatenate([np.full(20, 5), np.full(20, 12)])
    frequency = np.concatenate([[1000], np.full(20, 30), np.full(20, 15)])
    association = log_likelihood(n_ab, frequency[source], frequency[target], 1000)
    assert (association[:20] < 3.84).all()
    assert relationships_to_retain(source, target, n_ab, frequency, 1000, 3.84).all()


def test_single_cooccurrence_with_a_host_is_pruned_unless_it_is_the_strongest():
    source, target = np.array([0, 0, 1, 0]), np.array([1, 2, 2, 3])
    n_ab, frequency = np.array([1, 1, 2, 1]), np.array([1000, 4, 4, 1])
    keep = relationships_to_retain(source, target, n_ab, frequency, 1000, 3.84)
    assert keep.tolist() == [False, False, True, True]


graphs = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        st.lists(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(1, 4)).filter(
                lambda e: e[0] < e[1]
            ),
            unique_by=lambda e: e[:2],
            max_size=25,
        ),
        st.lists(st.integers(4, 60), min_size=n, max_size=n),
    )
)


@given(graphs, st.floats(0, 30), st.randoms(use_true_random=False))
def test_every_node_retains_a_relationship_in_any_edge_order(graph, threshold, random):
    edges, frequency = graph
    frequency = np.array(frequency)
    source, target, n_ab = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    keep = relationships_to_retain(source, target, n_ab, frequency, 100, threshold)
    before, after = (
        node_degrees(source[m], target[m], len(frequency)) for m in (np.ones(len(keep), bool), keep)
    )
    assert ((after > 0) == (before > 0)).all()
    by = np.array(random.sample(range(len(edges)), len(edges)), dtype=np.int64)
    # The ends can be in either order.
    assert (
        relationships_to_retain(target[by], source[by], n_ab[by], frequency, 100, threshold) == keep[by]
    ).all()
    assert entities_to_retain(frequency * 0, frequency * 0, after)[np.unique(source)].all()


def test_the_strongest_is_by_count_then_association_then_neighbour():
    source, target = np.array([0, 0, 0, 0]), np.array([1, 2, 3, 4])
    best = strongest_relationships(source, target, np.array([1, 2, 2, 2]), np.array([9.0, 1.0, 3.0, 3.0]))
    # Each is the only edge of its leaf, so give the leaves stronger ones to test node 0.
    assert best.all()
    source, target = np.append(source, [1, 2, 3, 4]), np.append(target, [5, 5, 5, 5])
    best = strongest_relationships(
        source, target, np.array([1, 2, 2, 2, 9, 9, 9, 9]), np.array([9.0, 1, 3, 3, 0, 0, 0, 0])
    )
    assert best.tolist() == [False, False, True, False, True, True, True, True]


def test_name_seen_once_without_type_or_relationship_is_pruned():
    keep = entities_to_retain(np.array([1, 2, 1, 1]), np.array([0, 0, 1, 0]), np.array([0, 0, 0, 1]))
    assert keep.tolist() == [False, True, True, True]
