"""Which rows hold an id: found by an index as by looking at all."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.search import row_index
from graphrag_ray.search.mapped_arrays import arrays_in, packed
from graphrag_ray.search.row_index import RowIndex, build, check, halves, read

IDS = st.integers(0, 40).map(lambda n: f"{n * 2**61 % 2**64:016x}{n:016x}")
"""Several share their first half."""


def index_of(ids: list[str], held: list[list[str]]) -> RowIndex:
    high, low = (np.array([int(i[a:b], 16) for i in ids], np.uint64) for a, b in ((0, 16), (16, 32)))
    pairs = [(int(i[:16], 16), row) for row, of in enumerate(held) for i in of]
    keys, rows = np.array([k for k, _ in pairs], np.uint64), np.array([r for _, r in pairs], np.int64)
    return read(build(high, low, {"holds": (keys, rows)}))


@given(st.lists(IDS, min_size=1, max_size=30), st.lists(IDS, max_size=8), st.booleans())
def test_rows_are_found_by_their_own_ids(ids: list[str], asked: list[str], in_order: bool):
    ids = sorted(ids) if in_order else ids
    index = index_of(ids, [])
    check(index)
    high, low, own = halves([*asked, "no id", "X" * 32, ids[0].upper() + " "])
    rows, whose = index.rows_of(high, low)
    assert [own[at] for at in whose] == [ids[row] for row in rows]
    assert sorted(rows.tolist()) == [row for row, id_ in enumerate(ids) if id_ in asked]
    assert index.ids_of(rows) == [ids[row] for row in rows]


@given(st.lists(st.lists(IDS, max_size=6), min_size=1, max_size=20), st.lists(IDS, max_size=8))
def test_rows_are_found_by_what_they_hold(held: list[list[str]], asked: list[str]):
    ids = [f"{n:032x}" for n in range(len(held))]
    index = index_of(ids, held)
    check(index)
    high, _, own = halves(asked)
    rows, whose = index.rows_with("holds", high)
    firsts = {i[:16] for i in own}
    assert set(rows.tolist()) == {r for r, of in enumerate(held) if any(i[:16] in firsts for i in of)}
    assert all(own[at][:16] in {i[:16] for i in held[row]} for row, at in zip(rows, whose, strict=True))
    for most in (0, 1, 2):
        _, whose = index.rows_with("holds", high, most)
        assert np.bincount(whose, minlength=1).max(initial=0) <= most


def test_of_one_id_the_first_rows_by_rank_are_found():
    key = np.array([7, 7, 7], np.uint64)
    index = read(
        build(np.arange(3, dtype=np.uint64), np.zeros(3, np.uint64), {"of": (key, np.array([2, 0, 1]))})
    )
    rows, _ = index.rows_with("of", key[:1], 2)
    assert rows.tolist() == [2, 0]


PAGES = {
    "first": np.array([0, 2, 3]),
    "start": np.array([4, 90]),
    "size": np.array([86, 10]),
    "values": np.array([2, 1]),
    "sum": np.array([1, 2]),
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": np.zeros(2, np.uint64)},
        {"high": np.array([1, 9, 2], np.uint64)},
        {"order": np.array([0, 0, 1], np.uint32)},
        {"order": np.array([0, 1, 7], np.uint32)},
        {"key.of": np.array([9, 1], np.uint64)},
        {"row.of": np.array([0, 3], np.uint32)},
        {"row.of": np.array([0], np.uint32)},
        {"first.text": np.array([0, 2, 4], np.uint32)},
        {"first.text": np.array([0, 0, 3], np.uint32)},
        {"first.text": np.array([0, 3], np.uint32)},
        {"start.text": np.array([-4, 90])},
        {"start.text": np.array([4, 89])},
        {"size.text": np.array([0, 10], np.int32)},
        {"size.text": np.array([-(2**31), 10], np.int32)},
        {"start.text": np.array([4, 2**63 - 1])},
        {"values.text": np.array([-1, 1], np.int32)},
        {"values.text": np.array([2], np.int32)},
    ],
)
def test_what_leads_out_of_a_part_is_refused(wrong: dict[str, np.ndarray]):
    keys = np.array([1, 5, 9], np.uint64)
    data = build(keys, keys, {"of": (keys[:2], np.array([0, 2]))}, {"text": PAGES})
    check(read(data))
    arrays = arrays_in(data) | {name: pa.array(array) for name, array in wrong.items()}
    with pytest.raises(ValueError, match=r"."):
        check(read(packed(arrays)))


@given(st.binary(max_size=200))
def test_what_is_no_index_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r"."):
        read(pa.py_buffer(data))


def test_an_index_that_lacks_arrays_is_refused():
    arrays = arrays_in(build(np.zeros(1, np.uint64), np.zeros(1, np.uint64), {}, {}))
    for wrong in (
        {"key.of": pa.array([1], pa.uint64())},
        {"other": pa.array([1])},
        {"high": pa.array([1.0])},
        {"high": pa.array([None], pa.uint64())},
    ):
        with pytest.raises(ValueError, match=r"."):
            read(packed(arrays | wrong))
    assert row_index.read(packed(arrays)).n_rows == 1
