"""Row indexes derived from earlier ones are identical to indexes built from all parts."""

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


def random_value(type_: pa.DataType, name: str, dice: Random) -> Any:
    if pa.types.is_list(type_):
        return [random_value(type_.value_type, name, dice) for _ in range(dice.randrange(4))]
    if pa.types.is_struct(type_):
        return {f.name: random_value(f.type, f.name, dice) for f in type_}
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


def write_random_part(store: Store, table: str, dice: Random) -> Part:
    columns = schema.TABLES[table]
    n_rows = dice.randint(1, 40)
    rows = [{f.name: random_value(f.type, f.name, dice) for f in columns} for _ in range(n_rows)]
    return write_part(store, table, mark_for_row_access(pa.Table.from_pylist(rows, schema=columns)))


def build(store: Store, plan: RowIndexPlan) -> Part:
    (row,) = next(iter(build_row_index(store, plan))).to_pylist()
    return Part(row["path"], plan.covered.rows, row["bytes"])


def build_from(store: Store, table: str, parts: Sequence[Part]) -> tuple[Part, CoveredParts]:
    covered = CoveredParts(table, list(parts))
    return build(store, RowIndexPlan(covered)), covered


@pytest.fixture
def parts_read(monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """The parts that were read to build indexes."""
    recorded: list[Part] = []

    def record(store: Store, table: str, part: Part) -> Any:
        recorded.append(part)
        return read_part_rows(store, table, part)

    read_part_rows = finish_stage._read_part
    monkeypatch.setattr(finish_stage, "_read_part", record)
    return recorded


@fewer(2)
@given(st.sampled_from(TABLES), st.integers(1, 6), st.integers(0, 3), st.randoms(use_true_random=False))
def test_derived_index_is_identical_to_one_built_from_scratch(
    table: str, n_earlier: int, n_new: int, dice: Random
):
    with TemporaryDirectory() as folder:
        store = Store(folder)
        parts = [write_random_part(store, table, dice) for _ in range(n_earlier)]
        earlier = build_from(store, table, parts)
        now = dice.sample(parts, dice.randint(1, len(parts)))
        for _ in range(n_new):
            now.insert(dice.randint(0, len(now)), write_random_part(store, table, dice))
        covered = CoveredParts(table, now)
        derived = build(store, RowIndexPlan(covered, earlier))
        assert derived == build(store, RowIndexPlan(covered)), "the name contains a hash of the bytes"


@pytest.mark.parametrize("table", schema.ROW_INDEXES)
def test_only_new_parts_are_read(tmp_path: Path, table: str, parts_read: list[Part]):
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [write_random_part(store, table, dice) for _ in range(5)]
    earlier = build_from(store, table, parts)
    new = write_random_part(store, table, dice)
    parts_read.clear()
    build(store, RowIndexPlan(CoveredParts(table, [*parts[:2], new, *parts[3:]]), earlier))
    assert parts_read == [new]


def test_all_parts_are_read_if_the_earlier_index_is_damaged(tmp_path: Path, parts_read: list[Part]):
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [write_random_part(store, "entities", dice) for _ in range(3)]
    stored, covered = build_from(store, "entities", parts)
    now = CoveredParts("entities", [*parts[1:], write_random_part(store, "entities", dice)])
    from_scratch = build(store, RowIndexPlan(now))
    whole = store.read(stored.path)
    for damaged in (whole[:100] + b"?" + whole[101:], whole[:-1], whole[:40], b""):
        store.write(stored.path, damaged)
        parts_read.clear()
        assert build(store, RowIndexPlan(now, (stored, covered))) == from_scratch
        assert parts_read == now.parts
    store.delete(stored.path)
    assert build(store, RowIndexPlan(now, (stored, covered))) == from_scratch


def test_earlier_index_of_other_parts_is_ignored(tmp_path: Path):
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [write_random_part(store, "entities", dice) for _ in range(3)]
    stored, _ = build_from(store, "entities", parts[:2])
    now = CoveredParts("entities", parts[:2])
    derived = build(store, RowIndexPlan(now, (stored, CoveredParts("entities", parts[1:]))))
    assert derived == build(store, RowIndexPlan(now))


def test_index_without_pages_of_a_column_is_rebuilt(tmp_path: Path):
    """An earlier version may have written a part without the column."""
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [write_random_part(store, "entities", dice) for _ in range(3)]
    older = write_part(
        store, "entities", mark_for_row_access(read_part(store, parts[0]).drop_columns("n_instances"))
    )
    earlier = build_from(store, "entities", [older, *parts[1:]])
    now = CoveredParts("entities", parts)
    assert build(store, RowIndexPlan(now, earlier)) == build(store, RowIndexPlan(now))


def test_error_names_the_damaged_part_of_the_table(tmp_path: Path):
    store, dice = Store(str(tmp_path)), Random(1)
    parts = [write_random_part(store, "entities", dice) for _ in range(3)]
    earlier = build_from(store, "entities", parts[:2])
    store.write(parts[2].path, store.read(parts[2].path)[:-1])
    with pytest.raises(CorruptPart) as raised:
        build(store, RowIndexPlan(CoveredParts("entities", parts), earlier))
    assert raised.value.path == parts[2].path
