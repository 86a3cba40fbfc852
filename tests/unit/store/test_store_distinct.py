"""Values that are counted once each, however often and in whatever batches they come."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store.distinct import Distinct, hashes

values = st.integers(0, 2**64 - 1) | st.integers(0, 20)


@given(st.lists(st.lists(values, max_size=30), max_size=12))
def test_of_each_value_the_first_is_new(batches):
    met, known = Distinct(), set()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value not in known)
            known.add(value)
        assert met.add(np.array(batch, dtype=np.uint64)).tolist() == expected
        assert len(met) == len(known)


def test_many_small_batches_come_to_few_arrays():
    met = Distinct()
    for start in range(0, 30_000, 30):
        met.add(np.arange(start, start + 30, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    assert len(met) == 30_000 and len(met._runs) < 15


RECORD = np.dtype([("prefix", "u8"), ("at", "f8"), ("turn", "i4"), ("reported", "?"), ("kind", "i1")])
records = st.tuples(values, st.floats(0, 1e10), st.integers(0, 2**31 - 1), st.booleans(), st.integers(-1, 4))


@given(st.lists(records | st.tuples(*[st.sampled_from([0, 1])] * 5), max_size=40))
def test_records_have_the_same_hash_where_they_are_the_same(rows):
    made = np.array(rows, dtype=RECORD)
    assert len(np.unique(hashes(made))) == len({tuple(row) for row in made.tolist()})


def test_places_that_differ_little_have_hashes_of_their_own():
    made = np.zeros(200_000, dtype=RECORD)
    made["prefix"], made["turn"] = np.arange(200_000) // 400, np.arange(200_000) % 20
    made["at"] = 1.7e9 + (np.arange(200_000) % 400 // 20) / 1024
    assert len(np.unique(hashes(made))) == 200_000
