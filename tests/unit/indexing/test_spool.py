"""A spool behaves like a dictionary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.spool import Spool

VALUES = st.one_of(st.text(max_size=50), st.tuples(st.integers(), st.text(max_size=5)))


@given(values=st.lists(st.tuples(st.integers(0, 9), VALUES), max_size=30))
def test_spool_returns_the_values_of_a_dictionary(values):
    spool, expected = Spool(), {}
    for number, value in values:
        spool[number] = expected[number] = value
        assert spool[number] == value
    assert spool.numbers() == sorted(expected)
    assert len(spool) == len(expected)
    assert {number: spool[number] for number in spool.numbers()} == expected


def test_missing_number_raises_key_error():
    with pytest.raises(KeyError):
        Spool()[3]
