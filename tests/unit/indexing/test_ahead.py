"""What an update says that it will ask for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.changes import expected_matches

sizes = st.lists(st.integers(0, 50), min_size=1, max_size=20).map(np.array)


@given(sizes, st.integers(1, 100), st.integers(0, 50))
def test_no_more_are_expected_than_there_are_and_the_more_that_comes_the_more(chunks_of, chunks, touched):
    found = expected_matches(chunks_of, chunks, touched)
    assert 0 <= found <= (chunks_of > 0).sum() + 1e-9
    assert found <= expected_matches(chunks_of, chunks, touched + 1) + 1e-9


def test_what_rests_on_everything_is_expected_and_nothing_where_nothing_changed():
    assert expected_matches(np.array([100, 100, 0]), 100, 1) == 2
    assert expected_matches(np.array([5]), 100, 0) == 0 and expected_matches(np.array([5]), 0, 7) == 0
    assert expected_matches(np.array([1]), 100, 1) == pytest.approx(0.01)
