"""The expected work of an update."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.changes import expected_matches

sizes = st.lists(st.integers(0, 50), min_size=1, max_size=20).map(np.array)


@given(sizes, st.integers(1, 100), st.integers(0, 50))
def test_expectation_grows_with_touched_chunks_up_to_all_sets(set_sizes, n_chunks, touched):
    expected = expected_matches(set_sizes, n_chunks, touched)
    assert 0 <= expected <= (set_sizes > 0).sum() + 1e-9
    assert expected <= expected_matches(set_sizes, n_chunks, touched + 1) + 1e-9


def test_sets_of_all_chunks_are_expected_and_none_without_changes():
    assert expected_matches(np.array([100, 100, 0]), 100, 1) == 2
    assert expected_matches(np.array([5]), 100, 0) == 0 and expected_matches(np.array([5]), 0, 7) == 0
    assert expected_matches(np.array([1]), 100, 1) == pytest.approx(0.01)
