"""Thrift structures: what is rendered is parsed back, and hostile bytes are refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store import thrift
from graphrag_ray.store.pages import _footer
from graphrag_ray.store.thrift import BINARY, BYTE, DOUBLE, I16, I32, I64, LIST, STRUCT, TRUE, parse, rendered

INTS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.tuples(st.just(TRUE), st.booleans()),
    st.tuples(st.just(BYTE), st.integers(0, 255)),
    st.tuples(st.sampled_from([I16, I32, I64]), INTS),
    st.tuples(st.just(DOUBLE), st.binary(min_size=8, max_size=8)),
    st.tuples(st.just(BINARY), st.binary(max_size=200)),
    st.tuples(st.just(LIST), st.tuples(st.just(I64), st.lists(INTS, max_size=40))),
    st.tuples(st.just(LIST), st.tuples(st.just(TRUE), st.lists(st.booleans(), max_size=40))),
)


def structs(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.dictionaries(st.integers(1, 2000), values, max_size=8)


NESTED = st.recursive(
    structs(VALUES),
    lambda inner: structs(
        st.one_of(
            VALUES,
            st.tuples(st.just(STRUCT), inner),
            st.tuples(st.just(LIST), st.tuples(st.just(STRUCT), st.lists(inner, max_size=4))),
        )
    ),
    max_leaves=6,
)


@given(NESTED)
def test_what_is_rendered_is_parsed_back(struct):
    data = rendered(struct)
    assert parse(b"xy" + data + b"z", 2) == (struct, len(data) + 2)


@given(st.binary(max_size=200))
def test_of_any_bytes_a_structure_is_parsed_or_they_are_refused(data: bytes):
    try:
        _, end = parse(data)
    except ValueError:
        return
    assert 0 < end <= len(data)


@given(NESTED, st.data())
def test_a_structure_that_is_cut_short_is_refused(struct, data):
    whole = rendered(struct)
    with pytest.raises(ValueError, match=r"."):
        parse(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_what_is_nested_too_deeply_is_refused():
    for opens in (bytes([1 << 4 | STRUCT]), bytes([1 << 4 | LIST]) + bytes([1 << 4 | LIST]) * 10_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse(opens * 10_000)


def test_a_list_that_claims_more_than_there_is_costs_nothing():
    many = bytes([1 << 4 | LIST, 15 << 4 | I64]) + b"\xff\xff\xff\xff\x07"
    with pytest.raises(ValueError, match="longer than its bytes"):
        parse(many)


def test_a_footer_of_pyarrow_is_rendered_as_it_was():
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": ["x", None], "b": [[1], []], "c": [True, False]}), sink)
    data = sink.getvalue().to_pybytes()
    footer = _footer(data)
    size = int.from_bytes(data[-8:-4], "little")
    assert thrift.rendered(footer) == data[-8 - size : -8]
