from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.soft_clusters import split_to_size

numbers = st.sampled_from([0.0, 1.0, -1.0, 0.3, 1e-30, 1e15])


@given(st.lists(st.tuples(numbers, numbers, st.integers(0, 20)), min_size=1, max_size=60), st.integers(1, 40))
def test_pieces_partition_the_members_and_fit_or_are_single(rows, max_size):
    vectors = np.array([row[:2] for row in rows], dtype=np.float32)
    sizes = np.array([row[2] for row in rows])
    pieces = split_to_size(np.arange(len(rows)), vectors, sizes, max_size)
    assert sorted(np.concatenate(pieces).tolist()) == list(range(len(rows)))
    assert all(len(piece) == 1 or sizes[piece].sum() <= max_size for piece in pieces)
    assert all(np.all(np.diff(piece) > 0) for piece in pieces)


def test_members_are_split_along_the_principal_direction():
    vectors = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], dtype=np.float32)
    pieces = split_to_size(np.arange(4), vectors, np.ones(4, np.int64), 2)
    assert sorted(piece.tolist() for piece in pieces) == [[0, 2], [1, 3]]


def test_large_member_is_separated_from_small_ones():
    vectors = np.linspace(0, 1, 6, dtype=np.float32)[:, None]
    pieces = split_to_size(np.arange(6), vectors, np.array([9, 1, 1, 1, 1, 1]), 9)
    assert sorted(piece.tolist() for piece in pieces) in ([[0], [1, 2, 3, 4, 5]], [[0, 1, 2, 3, 4], [5]])


def test_thousands_of_equal_vectors_take_few_rounds():
    pieces = split_to_size(np.arange(5_000), np.ones((5_000, 4), np.float32), np.ones(5_000, np.int64), 3)
    assert max(len(piece) for piece in pieces) <= 3 and len(pieces) <= 4_096
