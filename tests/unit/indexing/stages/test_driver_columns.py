"""Columns that the driver keeps: those of groups that did not change are taken from those of before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.stages import driver_columns
from graphrag_ray.indexing.stages.driver_columns import GROUP, columns_of, same_groups
from graphrag_ray.indexing.stages.id_columns import places_in
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, write_part

COLUMNS = pa.schema([("n", pa.int64())])
groups = st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=5)


class Numbers:
    """Groups of parts that hold numbers: one part a number, with as many rows."""

    def __init__(self, folder: Path) -> None:
        self.run = SimpleNamespace(store=Store(str(folder)))

    def parts(self, numbers: list[list[int]]) -> list[list[Part]]:
        return [[self.written(pa.table({"n": [n] * (n + 1)})) for n in group] for group in numbers]

    def written(self, table: pa.Table) -> Part:
        return write_part(self.run.store, "numbers", table)

    def columns(
        self, now: list[list[Part]], then: Sequence[list[Part]] = (), held: Sequence[Part] = ()
    ) -> pa.Table:
        return columns_of(self.run, now, COLUMNS, same_groups(now, then), held)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    return Numbers(tmp_path_factory.mktemp("columns"))


@given(groups, groups)
def test_they_are_what_is_read_of_all_parts_whatever_was_held(
    stored: Numbers, before: list[list[int]], now: list[list[int]]
):
    then, parts = stored.parts(before), stored.parts(now)
    afresh = stored.columns(parts)
    assert afresh["n"].to_pylist() == [n for group in now for n in group for _ in range(n + 1)]
    assert stored.columns(parts, then, [stored.written(stored.columns(then))]).equals(afresh)


def test_of_groups_that_did_not_change_no_part_is_read(stored: Numbers, monkeypatch: pytest.MonkeyPatch):
    then, now = stored.parts([[1], [2, 3], [4]]), stored.parts([[4], [5], [2, 3]])
    held = stored.written(stored.columns(then))
    read = Counter[str]()
    inner = driver_columns.read_part

    def noted(store: Store, part: Part, columns: list[str]) -> pa.Table:
        read[part.path] += 1
        return inner(store, part, columns)

    monkeypatch.setattr(driver_columns, "read_part", noted)
    stored.columns(now, then, [held])
    assert read == {now[1][0].path: 1}


@pytest.mark.parametrize(
    "lie",
    [
        {GROUP: [0], "n": [7]},
        {GROUP: [1, 1, 0, 0, 0], "n": [1, 1, 2, 2, 2]},
        {GROUP: [-4, 9], "n": [1, 1]},
        {GROUP: pa.array([], pa.int32()), "n": pa.array([], pa.int64())},
    ],
    ids=["too few rows", "out of order", "no such groups", "nothing"],
)
def test_what_a_stranger_holds_is_not_believed(stored: Numbers, lie: dict[str, list[int]]):
    parts = stored.parts([[1], [2]])
    held = stored.written(pa.table(lie).cast(pa.schema([(GROUP, pa.int32()), *COLUMNS])))
    assert stored.columns(parts, parts, [held])["n"].to_pylist() == [1, 1, 2, 2, 2]


@given(st.lists(st.integers(0, 99), unique=True), st.lists(st.integers(0, 99)))
def test_places_of_ids_in_any_order(ids: list[int], wanted: list[int]):
    keys = np.array(ids, np.uint64)
    found = places_in(keys, np.array(wanted, np.uint64), np.argsort(keys))
    assert found.tolist() == [ids.index(w) if w in ids else -1 for w in wanted]
    rising = np.sort(keys)
    assert places_in(rising, rising).tolist() == list(range(len(ids)))


def test_an_id_that_is_not_there_is_zero(stored: Numbers):
    part = stored.written(pa.table({"subject": pa.array(["ab" * 16, None], pa.string())}))
    columns = columns_of(stored.run, [[part]], pa.schema([("subject", pa.uint64())]))  # type: ignore[arg-type]
    assert columns["subject"].to_pylist() == [int("ab" * 8, 16), 0]


def test_numbers_of_groups_that_there_never_were_take_no_memory():
    one = [[Part("numbers", 1, 1)]]
    assert driver_columns._believed(np.array([0, 2**31 - 1], np.int32), one, [0]) == [0]
