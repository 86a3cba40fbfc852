"""Blocks of elements: reading by position, and the size-limited cache."""

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
"""Ends of the blocks, which differ in size."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    store = Store(str(tmp_path_factory.mktemp("blocks")))
    table = pa.table({"id": [str(i) for i in range(N)], "text": ["x" * 1000] * N})
    return store, [
        [write_part(store, "elements", table.slice(start, end - start))]
        for start, end in pairwise([0, *ENDS])
    ]


@given(positions=st.lists(st.integers(0, N - 1)))
def test_rows_returns_the_requested_columns_in_the_requested_order(stored, positions):
    store, parts = stored
    rows = ElementBlocks(parts).rows(store, np.array(positions, dtype=np.int64), ["id"])
    assert rows == [{"id": str(p)} for p in positions]


@pytest.mark.parametrize(("start", "end"), [(0, N), (3, 3), (4, 6), (5, 10), (22, 23)])
def test_between_returns_the_rows_between_two_positions(stored, start, end):
    store, parts = stored
    table = ElementBlocks(parts).between(store, start, end, ["id"])
    assert table["id"].to_pylist() == [str(p) for p in range(start, end)]


def test_cache_stores_the_last_used_blocks_up_to_its_limit(stored):
    store, parts = stored
    block_bytes = BlockCache(1 << 30).get(store, parts[1][0]).nbytes
    cache = BlockCache(2 * block_bytes)
    for part in [p for group in parts[:4] for p in group]:
        cache.get(store, part)
        assert 0 < cache.nbytes <= 2 * block_bytes
    cached = cache.get(store, parts[3][0])
    assert cache.get(store, parts[3][0]) is cached
    assert cache.get(store, parts[0][0]) is not cached


def test_block_larger_than_the_cache_stays_until_the_next_one(stored):
    store, parts = stored
    cache = BlockCache(1)
    first = cache.get(store, parts[0][0])
    assert cache.get(store, parts[0][0]) is first
    cache.get(store, parts[1][0])
    assert cache.get(store, parts[0][0]) is not first
