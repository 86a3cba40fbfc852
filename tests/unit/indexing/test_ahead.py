"""What an update says that it will ask for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.changes import MOST_READ, _some, expected, told
from graphrag_ray.store.parts import Part

sizes = st.lists(st.integers(0, 50), min_size=1, max_size=20).map(np.array)


@given(sizes, st.integers(1, 100), st.integers(0, 50))
def test_no_more_are_expected_than_there_are_and_the_more_that_comes_the_more(chunks_of, chunks, touched):
    found = expected(chunks_of, chunks, touched)
    assert 0 <= found <= (chunks_of > 0).sum() + 1e-9
    assert found <= expected(chunks_of, chunks, touched + 1) + 1e-9


def test_what_rests_on_everything_is_expected_and_nothing_where_nothing_changed():
    assert expected(np.array([100, 100, 0]), 100, 1) == 2
    assert expected(np.array([5]), 100, 0) == 0 and expected(np.array([5]), 0, 7) == 0
    assert expected(np.array([1]), 100, 1) == pytest.approx(0.01)


@given(st.lists(st.integers(1, 9), max_size=100))
def test_of_a_table_of_many_parts_a_few_stand_for_all(rows):
    parts = [Part(f"{n}", of, 1) for n, of in enumerate(rows)]
    some, times = _some(parts)
    assert len(some) <= MOST_READ and (some == parts or len(parts) > MOST_READ)
    assert times * sum(part.rows for part in some) == pytest.approx(sum(rows))


def test_it_is_one_line_for_people():
    line = told({"new": 1, "changed": 0, "removed": 2_000}, 1, 1_200, 3, 40)
    assert line == (
        "Documents: 1 new, 2,000 removed. To come: at most 1 chunk to extract, at most some "
        "1,200 descriptions, and about 3 of 40 reports, which rest on what changed."
    )
