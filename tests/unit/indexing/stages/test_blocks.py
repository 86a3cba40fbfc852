"""Elements are read by their place, and a process keeps a bounded number of bytes of them."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.stages.communities_stage import BlockCache, ElementBlocks
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import write_part

N = 23
ENDS = [1, 6, 11, 16, 21, N]
"""Of the blocks, which differ in size."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    store = Store(str(tmp_path_factory.mktemp("blocks")))
    table = pa.table({"id": [str(i) for i in range(N)], "text": ["x" * 1000] * N})
    return store, [
        [write_part(store, "elements", table.slice(start, end - start))]
        for start, end in pairwise([0, *ENDS])
    ]


@given(places=st.lists(st.integers(0, N - 1)))
def test_elements_come_in_the_order_asked_for_with_the_columns_asked_for(stored, places):
    store, parts = stored
    found = ElementBlocks(parts).rows(store, np.array(places, dtype=np.int64), ["id"])
    assert found == [{"id": str(p)} for p in places]


@pytest.mark.parametrize(("start", "end"), [(0, N), (3, 3), (4, 6), (5, 10), (22, 23)])
def test_a_slice_holds_the_places_between_its_ends(stored, start, end):
    store, parts = stored
    found = ElementBlocks(parts).between(store, start, end, ["id"])
    assert found["id"].to_pylist() == [str(p) for p in range(start, end)]


def test_a_cache_keeps_the_blocks_last_used_up_to_its_bytes(stored):
    store, parts = stored
    one = BlockCache(1 << 30).get(store, parts[1][0]).nbytes
    cache = BlockCache(2 * one)
    for part in [p for group in parts[:4] for p in group]:
        cache.get(store, part)
        assert 0 < cache.nbytes <= 2 * one
    kept = cache.get(store, parts[3][0])
    assert cache.get(store, parts[3][0]) is kept
    assert cache.get(store, parts[0][0]) is not kept


def test_a_block_larger_than_the_cache_is_kept_until_the_next_one(stored):
    store, parts = stored
    cache = BlockCache(1)
    first = cache.get(store, parts[0][0])
    assert cache.get(store, parts[0][0]) is first
    cache.get(store, parts[1][0])
    assert cache.get(store, parts[0][0]) is not first
