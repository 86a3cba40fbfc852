"""Indexes of rows that are derived from earlier ones: byte by byte those that are made of all parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from examples import fewer
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import schema
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.base.ids import stable_id
from graphrag_ray.indexing.stages import finish_stage
from graphrag_ray.indexing.stages.finish_stage import CoveredParts, RowIndexPlan, build_row_index
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import mark_for_row_access
from graphrag_ray.store.parts import Part, read_part, write_part

TABLES = ("text_units", "relationships", "covariates", "communities", "community_reports")


def value(type_: pa.DataType, name: str, dice: Random) -> Any:
    if pa.types.is_list(type_):
        return [value(type_.value_type, name, dice) for _ in range(dice.randrange(4))]
    if pa.types.is_struct(type_):
        return {f.name: value(f.type, f.name, dice) for f in type_}
    if pa.types.is_boolean(type_):
        return dice.random() < 0.5
    if pa.types.is_floating(type_):
        return dice.choice([None, 0.5, 1.0, 7.0])
    if pa.types.is_integer(type_):
        return dice.randrange(5)
    if name == "id":
        return stable_id("row", str(dice.random()))
    if name.endswith(("_id", "_ids")):
        return stable_id("other", str(dice.randrange(9)))
    return "word " * dice.randrange(9)


def part_of(store: Store, table: str, dice: Random) -> Part:
    of = schema.TABLES[table]
    rows = [{f.name: value(f.type, f.name, dice) for f in of} for _ in range(dice.randint(1, 40))]
    return write_part(store, table, mark_for_row_access(pa.Table.from_pylist(rows, schema=of)))


def made(store: Store, wanted: RowIndexPlan) -> Part:
    (row,) = next(iter(build_row_index(store, wanted))).to_pylist()
    return Part(row["path"], wanted.covered.rows, row["bytes"])


def index_of(store: Store, table: str, parts: Sequence[Part]) -> tuple[Part, CoveredParts]:
    covered = CoveredParts(table, list(parts))
    return made(store, RowIndexPlan(covered)), covered


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """The parts that were read to make indexes."""
    found: list[Part] = []

    def told(store: Store, table: str, part: Part) -> Any:
        found.append(part)
        return of_part(store, table, part)

    of_part = finish_stage._read_part
    monkeypatch.setattr(finish_stage, "_read_part", told)
    return found


@fewer(2)
@given(st.sampled_from(TABLES), st.integers(1, 6), st.integers(0, 3), st.randoms(use_true_random=False))
def test_whatever_parts_are_replaced_the_bytes_are_those_of_an_index_made_afresh(
    table: str, n_earlier: int, n_new: int, dice: Random
):
    with TemporaryDirectory() as folder:
        store = Store(folder)
        parts = [part_of(store, table, dice) for _ in range(n_earlier)]
        earlier = index_of(store, table, parts)
        now = dice.sample(parts, dice.randint(1, len(parts)))
        for _ in range(n_new):
            now.insert(dice.randint(0, len(now)), part_of(store, table, dice))
        covered = CoveredParts(table, now)
        derived = made(store, RowIndexPlan(covered, earlier))
        assert derived == made(store, RowIndexPlan(covered)), "its name holds the hash of its bytes"


@pytest.mark.parametrize("table", schema.ROW_INDEXES)
def test_only_new_parts_are_read(tmp_path: Path, table: str, read: list[Part]):
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [part_of(store, table, dice) for _ in range(5)]
    earlier = index_of(store, table, parts)
    new = part_of(store, table, dice)
    read.clear()
    made(store, RowIndexPlan(CoveredParts(table, [*parts[:2], new, *parts[3:]]), earlier))
    assert read == [new]


def test_where_the_earlier_index_is_damaged_all_parts_are_read(tmp_path: Path, read: list[Part]):
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [part_of(store, "entities", dice) for _ in range(3)]
    stored, covered = index_of(store, "entities", parts)
    now = CoveredParts("entities", [*parts[1:], part_of(store, "entities", dice)])
    afresh = made(store, RowIndexPlan(now))
    whole = store.read(stored.path)
    for damaged in (whole[:100] + b"?" + whole[101:], whole[:-1], whole[:40], b""):
        store.write(stored.path, damaged)
        read.clear()
        assert made(store, RowIndexPlan(now, (stored, covered))) == afresh
        assert read == now.parts
    store.delete(stored.path)
    assert made(store, RowIndexPlan(now, (stored, covered))) == afresh


def test_an_index_of_other_parts_is_not_believed(tmp_path: Path):
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [part_of(store, "entities", dice) for _ in range(3)]
    stored, _ = index_of(store, "entities", parts[:2])
    now = CoveredParts("entities", parts[:2])
    derived = made(store, RowIndexPlan(now, (stored, CoveredParts("entities", parts[1:]))))
    assert derived == made(store, RowIndexPlan(now))


def test_an_index_that_lacks_pages_of_a_column_is_made_afresh(tmp_path: Path):
    """As of a part of an earlier version, which is gone now."""
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [part_of(store, "entities", dice) for _ in range(3)]
    older = write_part(
        store, "entities", mark_for_row_access(read_part(store, parts[0]).drop_columns("n_instances"))
    )
    earlier = index_of(store, "entities", [older, *parts[1:]])
    now = CoveredParts("entities", parts)
    assert made(store, RowIndexPlan(now, earlier)) == made(store, RowIndexPlan(now))


def test_a_damaged_part_of_the_table_is_an_error_that_names_it(tmp_path: Path):
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [part_of(store, "entities", dice) for _ in range(3)]
    earlier = index_of(store, "entities", parts[:2])
    store.write(parts[2].path, store.read(parts[2].path)[:-1])
    with pytest.raises(CorruptPart) as raised:
        made(store, RowIndexPlan(CoveredParts("entities", parts), earlier))
    assert raised.value.path == parts[2].path
