"""Rows have the same hash if they hold the same, however their columns are stored."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.row_hashes import row_hashes

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.sampled_from([None, "", "a", "b", "ab", "ba", "\0", "a\0", "é", "e\u0301"])
    | st.text(max_size=3),
    pa.large_string(): st.sampled_from(["", "x" * 70_000, "x" * 69_999 + "y", "x" * 70_001]),
    pa.float64(): st.sampled_from([None, 0.0, -0.0, 1.0, 1e300, float("nan"), float("inf")]),
    pa.int64(): st.sampled_from([None, 0, 1, -1, 2**62]),
    pa.bool_(): st.sampled_from([None, True, False]),
    pa.list_(pa.string()): st.none() | st.lists(st.sampled_from(["a", "b", "", None]), max_size=3),
}


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[Any]]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    of = st.tuples(*(VALUES[type_] for type_ in types)).map(list)
    return types, draw(st.lists(of, max_size=12))


def columns_of(types: list[pa.DataType], values: list[list[Any]], cuts: list[int]) -> list[pa.ChunkedArray]:
    """Each column as slices of an array that has other values before and behind."""
    found = []
    for n, type_ in enumerate(types):
        held = [row[n] for row in values]
        whole = pa.array([*held[:1], *held, *held[:1]], type_).slice(min(1, len(held)), len(held))
        ends = sorted({min(cut, len(held)) for cut in cuts} | {0, len(held)})
        pieces = [whole.slice(a, b - a) for a, b in pairwise(ends)]
        found.append(pa.chunked_array(pieces, type_))
    return found


@given(rows(), st.lists(st.integers(0, 12), max_size=3))
def test_equal_rows_have_equal_hashes_and_no_others(
    drawn: tuple[list[pa.DataType], list[list[Any]]], cuts: list[int]
):
    types, values = drawn
    hashes = row_hashes(columns_of(types, values, cuts), len(values)).tolist()
    assert hashes == row_hashes(columns_of(types, values, []), len(values)).tolist()
    plain = [orjson.dumps([str(v) if v in (np.inf, -np.inf) else v for v in row]) for row in values]
    for a in range(len(values)):
        for b in range(a):
            assert (hashes[a] == hashes[b]) == (plain[a] == plain[b]), (values[a], values[b])


def test_without_columns_all_rows_hold_the_same():
    assert len(set(row_hashes([], 3).tolist())) == 1


def test_a_hash_is_of_the_row_alone():
    texts = [f"word {n} " * (n % 50) for n in range(5_000)]
    whole = row_hashes([pa.chunked_array([texts])], len(texts))
    alone = [row_hashes([pa.chunked_array([[text]])], 1)[0] for text in texts[::97]]
    assert whole[::97].tolist() == alone
    assert len(np.unique(whole)) == len(set(texts))


def test_of_many_texts_that_are_alike_no_two_have_the_same():
    texts = [f"{n:07}{n % 7}{'ab' * (n % 3)}" for n in range(300_000)]
    assert len(np.unique(row_hashes([pa.chunked_array([texts])], len(texts)))) == len(texts)


def test_a_type_that_is_not_known_is_an_error():
    with pytest.raises(TypeError, match="struct"):
        row_hashes([pa.chunked_array([[{"a": 1}]])], 1)
