"""What changed since the parent snapshot is counted as by comparing all rows, whatever is read for it."""

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
from graphrag_ray.base.declarations import COMPARED_TABLES
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing import changes as comparing
from graphrag_ray.indexing.changes import count_changes
from graphrag_ray.indexing.run import Run
from graphrag_ray.store.files import Store
from graphrag_ray.store.parquet import mark_for_row_access
from graphrag_ray.store.parts import Part, write_part
from graphrag_ray.store.snapshots import Manifest

TABLES = ("text_units", "entities", "relationships", "covariates", "communities", "community_reports")
Rows = Mapping[int, Mapping[str, Any]]
"""By a number, of which an id is made."""


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


def written(store: Store, name: str, rows: Rows, size: int) -> list[Part]:
    """size: rows of a part"""
    found = [row for _, row in sorted(rows.items())]
    pieces = [found[at : at + size] for at in range(0, len(found), size)]
    tables = (pa.Table.from_pylist(piece, schema=schema.TABLES[name]) for piece in pieces)
    return [write_part(store, name, mark_for_row_access(table)) for table in tables]


def run_after(store: Store, tables: Mapping[str, list[Part]] | None) -> Run:
    settings = parse_settings({})
    parent = None if tables is None else Manifest(1, None, "", "", tables)
    return Run(LocalExecutor(store, Models.from_settings(settings)), settings, {}, parent, Observer())


def expected(name: str, before: Rows, now: Rows) -> dict[str, int]:
    _, columns = COMPARED_TABLES[name]
    old, new = ({n: orjson.dumps([row[c] for c in columns]) for n, row in of.items()} for of in (before, now))
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
def test_changes_are_counted_as_by_comparing_rows_one_by_one(
    name: str, dice: Random, of: tuple[int, int, int, int], rows_at_once: int
):
    """of: so many rows, of which some have other values, some go and some come"""
    n, changed, gone, come = of
    before = {n: random_row(name, n, dice) for n in range(n)}
    now = dict(before)
    for number in dice.choices(range(n), k=changed) if n else ():
        now[number] = random_row(name, number, dice)
    for number in dice.choices(range(n), k=gone) if n else ():
        now.pop(number, None)
    now |= {n + k: random_row(name, n + k, dice) for k in range(come)}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "TASK_ROWS", rows_at_once)
        store = Store(folder)
        old, new = ({name: written(store, name, rows, dice.randint(1, 9))} for rows in (before, now))
        assert count_changes(run_after(store, old), new)[name] == expected(name, before, now)
