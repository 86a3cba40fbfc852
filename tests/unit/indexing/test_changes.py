"""Counting changed rows gives the same result as comparing all rows."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pyarrow as pa
import pytest
from examples import fewer
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import CHANGE_TRACKED_TABLES
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing import changes
from graphrag_ray.indexing.run import Run
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import mark_for_row_access
from graphrag_ray.store.parts import Part, write_part
from graphrag_ray.store.snapshots import Manifest

TABLES = ("text_units", "entities", "relationships", "covariates", "communities", "community_reports")
Rows = Mapping[int, Mapping[str, Any]]
"""Rows by a number, from which an id is made."""


def random_row(name: str, n: int, dice: Random) -> dict[str, Any]:
    def value(field: pa.Field) -> Any:
        if field.name == "id":
            return stable_id(name, str(n))
        if field.name.endswith("_id") and pa.types.is_string(field.type):
            return stable_id("other", str(n))
        if pa.types.is_nested(field.type):
            return []
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            return dice.choice([None, "", "a", "b" * 40])
        return None if pa.types.is_boolean(field.type) else dice.choice([0, 1, 2])

    return {field.name: value(field) for field in schema.TABLES[name]}


def write_rows(store: Store, name: str, rows: Rows, part_rows: int) -> list[Part]:
    ordered = [row for _, row in sorted(rows.items())]
    batches = [ordered[start : start + part_rows] for start in range(0, len(ordered), part_rows)]
    tables = (pa.Table.from_pylist(batch, schema=schema.TABLES[name]) for batch in batches)
    return [write_part(store, name, mark_for_row_access(table)) for table in tables]


def run_after(store: Store, tables: Mapping[str, list[Part]] | None) -> Run:
    settings = parse_settings({})
    parent = None if tables is None else Manifest(1, None, "", "", tables)
    return Run(LocalExecutor(store, Models.from_settings(settings)), settings, {}, parent, Observer())


def compare_one_by_one(name: str, before: Rows, now: Rows) -> dict[str, int]:
    _, columns = CHANGE_TRACKED_TABLES[name]
    old, new = (
        {n: orjson.dumps([row[c] for c in columns]) for n, row in rows.items()} for rows in (before, now)
    )
    both = old.keys() & new.keys()
    changed = sum(old[n] != new[n] for n in both)
    return {
        "added": len(new) - len(both),
        "changed": changed,
        "removed": len(old) - len(both),
        "unchanged": len(both) - changed,
    }


@fewer(2)
@given(
    st.sampled_from(TABLES),
    st.randoms(use_true_random=False),
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 8), st.integers(0, 8)),
    st.sampled_from([1, 1 << 17]),
)
def test_counts_are_the_same_as_when_rows_are_compared_one_by_one(
    name: str, dice: Random, numbers: tuple[int, int, int, int], task_rows: int
):
    n, n_changed, n_removed, n_added = numbers
    before = {n: random_row(name, n, dice) for n in range(n)}
    now = dict(before)
    for number in dice.choices(range(n), k=n_changed) if n else ():
        now[number] = random_row(name, number, dice)
    for number in dice.choices(range(n), k=n_removed) if n else ():
        now.pop(number, None)
    now |= {n + k: random_row(name, n + k, dice) for k in range(n_added)}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "TASK_ROWS", task_rows)
        store = Store(folder)
        old, new = ({name: write_rows(store, name, rows, dice.randint(1, 9))} for rows in (before, now))
        counts = changes.count_changes(run_after(store, old), new)
        assert counts[name] == compare_one_by_one(name, before, now)
