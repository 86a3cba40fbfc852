"""Periods of groups of documents."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.dates import UNKNOWN_END, UNKNOWN_START, end_number, start_number
from graphrag_ray.indexing.stages.document_periods import Periods

written = st.sampled_from(["", "2020", "2020-03", "2020-03-05", "2021-01-31", "2019-12", "1999-01-01"])
starts = st.lists(written.map(start_number), min_size=1, max_size=30)


def periods(numbers: list[int]) -> Periods:
    return Periods(np.array(numbers), np.array([end_number(n) for n in numbers]))


@given(starts, st.data())
def test_group_covers_earliest_to_latest_date_of_its_records(numbers: list[int], data: st.DataObject):
    group = data.draw(st.lists(st.integers(0, 4), min_size=len(numbers), max_size=len(numbers)))
    merged = periods(numbers).merge(np.array(group), 5)
    for g in range(5):
        of_group = [n for n, other in zip(numbers, group, strict=True) if other == g]
        assert merged.start[g] == min(of_group, default=UNKNOWN_START)
        assert merged.end[g] == max(map(end_number, of_group), default=UNKNOWN_END)


@given(starts, st.data())
def test_ranges_may_be_nested(numbers: list[int], data: st.DataObject):
    bound = st.integers(0, len(numbers) - 1)
    pairs = data.draw(st.lists(st.tuples(bound, bound).map(sorted), max_size=10))
    first = np.array([a for a, _ in pairs], np.int64)
    last = np.array([b + 1 for _, b in pairs], np.int64)
    found = periods(numbers).between(first, last)
    assert found.start.tolist() == [min(numbers[a : b + 1]) for a, b in pairs]
    assert found.end.tolist() == [max(map(end_number, numbers[a : b + 1])) for a, b in pairs]


def test_periods_are_as_precise_as_their_dates():
    merged = periods([start_number(t) for t in ("2020", "2020-03-05", "", "2019-12")]).merge(
        np.array([0, 0, 1, 0]), 2
    )
    assert merged.columns(np.array([0, 1])) == {
        "period_start": ["2019-12", None],
        "period_end": ["2020", None],
    }
    assert merged.describe(0) == "2019-12 to 2020" and merged.describe(1) == ""
    assert not merged.take(np.array([1, -1])).any_known
