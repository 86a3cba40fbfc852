import hashlib
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.stable_batches import stable_batches, stable_stream


def hashed(*key):
    return hashlib.sha256(repr(key).encode()).hexdigest()


def contents(items, limit):
    """Batches as tuples of hashes."""
    ranges = stable_batches([h for h, _ in items], [s for _, s in items], limit)
    return [tuple(items[i][0] for i in r) for r in ranges]


SIZES = st.lists(st.integers(0, 130), max_size=60)


@given(SIZES, st.integers(0, 200), st.booleans())
def test_batches_cover_all_items_in_order_within_the_limit(sizes, limit, same_hash):
    hashes = [hashed(0 if same_hash else i) for i in range(len(sizes))]
    batches = stable_batches(hashes, sizes, limit)
    assert [i for b in batches for i in b] == list(range(len(sizes)))
    for b in batches:
        assert len(b) == 1 or sum(sizes[i] for i in b) <= limit
        assert len(b) > 0


@given(SIZES, st.integers(0, 200))
def test_there_are_fewer_batches_than_items_if_two_neighbours_fit(sizes, limit):
    batches = stable_batches([hashed(i) for i in range(len(sizes))], sizes, limit)
    if any(a + b <= limit for a, b in pairwise(sizes)):
        assert len(batches) < len(sizes)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=60))
def test_small_items_are_never_alone_in_a_batch(sizes):
    batches = stable_batches([hashed(i) for i in range(len(sizes))], sizes, 150)
    assert all(len(b) >= 2 for b in batches)


def test_items_that_fit_are_one_batch_and_no_items_are_none():
    assert stable_batches([hashed(i) for i in range(9)], [10] * 9, 90) == [range(9)]
    assert stable_batches([], [], 10) == []
    assert stable_batches([hashed(1)], [99], 10) == [range(1)]


DISTRIBUTIONS = {
    "short": lambda r: max(1, int(r.lognormvariate(3.9, 0.6))),
    "summaries": lambda r: r.randint(200, 500),
    "uneven": lambda r: r.randint(1, 3000),
    "equal": lambda r: 1000,
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_inserting_or_removing_an_item_changes_few_batches(distribution):
    size, changed = DISTRIBUTIONS[distribution], []
    for seed in range(40):
        r = random.Random(seed)
        items = [(hashed(seed, i), size(r)) for i in range(400)]
        before = set(contents(items, 6000))
        at = r.randrange(400)
        more = [*items[:at], (hashed(seed, "new"), size(r)), *items[at:]]
        less = items[:at] + items[at + 1 :]
        changed += [len(set(contents(other, 6000)) - before) for other in (more, less)]
    assert max(changed) <= 4
    assert sum(changed) / len(changed) < 2


def test_batches_are_well_filled():
    r = random.Random(7)
    sizes = [r.randint(10, 200) for _ in range(3000)]
    batches = stable_batches([hashed(i) for i in range(3000)], sizes, 6000)
    filled = [sum(sizes[i] for i in b) / 6000 for b in batches]
    assert min(filled) > 0.45
    assert sum(filled) / len(filled) > 0.6


def test_hashes_in_sorted_order_give_no_worse_locality():
    items = sorted((hashed(i), 100) for i in range(2000))
    before = set(contents(items, 6000))
    for at in (0, 3, 700, 1500):
        assert len(set(contents(items[:at] + items[at + 1 :], 6000)) - before) <= 4


def test_many_items_take_little_time():
    batches = stable_batches([str(i) for i in range(100_000)], [60] * 100_000, 6000)
    assert 100_000 * 60 / 6000 <= len(batches) <= 2 * 100_000 * 60 / 6000


def streamed(items, limit):
    """Batches as tuples of hashes."""
    return [tuple(h for h, _ in batch) for batch in stable_stream(iter(items), lambda item: item, limit)]


@given(SIZES, st.integers(0, 200), st.booleans())
def test_a_stream_is_cut_in_order_and_within_the_limit(sizes, limit, same_hash):
    items = [(hashed(0 if same_hash else i), size) for i, size in enumerate(sizes)]
    batches = list(stable_stream(iter(items), lambda item: item, limit))
    assert [item for batch in batches for item in batch] == items
    assert all(batch and (len(batch) == 1 or sum(s for _, s in batch) <= limit) for batch in batches)


def test_stream_batches_of_small_items_are_at_least_half_full():
    items = [(hashed(i), 10) for i in range(1000)]
    sizes = [sum(s for _, s in batch) for batch in stable_stream(iter(items), lambda item: item, 300)]
    assert min(sizes[:-1]) >= 150 and max(sizes) <= 300


def test_inserted_item_changes_only_neighbouring_stream_batches():
    items = [(hashed(i), 5 + i % 11) for i in range(3000)]
    before = set(streamed(items, 400))
    changed = []
    for at in range(0, 3000, 150):
        after = streamed([*items[:at], (hashed("new", at), 10), *items[at:]], 400)
        changed.append(len(set(after) - before))
    assert max(changed) <= 12 and sum(changed) / len(changed) < 4, changed
