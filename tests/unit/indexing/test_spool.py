"""What a run comes back to lies in a file, and reads as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.spool import Spool

VALUES = st.one_of(st.text(max_size=50), st.tuples(st.integers(), st.text(max_size=5)))


@given(values=st.lists(st.tuples(st.integers(0, 9), VALUES), max_size=30))
def test_a_spool_reads_as_a_dictionary_whatever_order_values_come_in(values):
    spool, expected = Spool(), {}
    for number, value in values:
        spool[number] = expected[number] = value
        assert spool[number] == value
    assert spool.numbers() == sorted(expected)
    assert len(spool) == len(expected)
    assert {number: spool[number] for number in spool.numbers()} == expected


def test_a_number_without_a_value_is_an_error():
    with pytest.raises(KeyError):
        Spool()[3]
