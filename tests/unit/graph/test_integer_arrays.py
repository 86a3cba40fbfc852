from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import ids
from graphrag_ray.graph.integer_arrays import encode_sorted, id_hash64, node_degrees, same_lists

IDS = sorted(ids.entity_id(f"NAME {i}") for i in range(50))


def test_hashes_are_the_halves_of_ids():
    column = pa.chunked_array([IDS[:20], IDS[20:]], type=pa.string())
    assert id_hash64(column).tolist() == ids.id_prefixes(IDS).tolist()
    assert (
        id_hash64(pa.array(IDS, type=pa.large_string()).slice(7, 9)).tolist()
        == ids.id_prefixes(IDS[7:16]).tolist()
    )


@pytest.mark.parametrize("odd", [None, "short", "G" * 32, "A" * 32, "é" * 16])
def test_invalid_ids_have_no_hash(odd):
    assert id_hash64(pa.array([IDS[0], odd])) is None


def test_degrees_count_relationships_at_both_ends():
    assert node_degrees(np.array([0, 0, 1]), np.array([1, 2, 2]), 4).tolist() == [2, 2, 2, 0]


@given(st.lists(st.none() | st.text(max_size=3), max_size=30), st.integers(0, 30))
def test_codes_sort_like_values(values, cut):
    column = pa.chunked_array([values[:cut], values[cut:]], type=pa.string())
    code, distinct = encode_sorted(column)
    assert distinct.to_pylist() == sorted({v for v in values if v is not None})
    assert [None if c < 0 else distinct[int(c)].as_py() for c in code] == values


texts = st.lists(st.lists(st.sampled_from(["", "a", "b", "ab"]), max_size=3), max_size=6)


@given(texts, st.data())
def test_same_lists_compares_texts(one: list[list[str]], data: st.DataObject):
    other = [data.draw(st.sampled_from([of, [*of, "a"], of[::-1]])) for of in one]
    type_ = pa.large_list(pa.large_string())
    found = same_lists(pa.array(one, type_), pa.array(other, type_))
    assert found.tolist() == [a == b for a, b in zip(one, other, strict=True)]
