"""Instances of a range after an update: those that were held, less those that went, with those that came."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import schema
from graphrag_ray.indexing.stages import instance_ranges
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import write_part

OF = schema.ENTITY_INSTANCES
units = st.lists(st.integers(0, 4), max_size=6)


def instances(units: Sequence[int]) -> pa.Table:
    """One of each chunk: an entity for two of them."""
    rows = [
        dict.fromkeys(OF.names)
        | {"entity_id": f"{n % 2:032x}", "text_unit_id": f"{n:032x}", "document_id": "d", "description": "x"}
        | {"position": n, "turn": 0, "ordinal": 0}
        for n in units
    ]
    return pa.Table.from_pylist(rows, schema=OF)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder: Path = tmp_path_factory.mktemp("ranges")
    return Store(str(folder))


def updated(store: Store, held: Sequence[int], come: Sequence[int], went: Sequence[int]) -> list[int] | None:
    """The chunks of the instances; None: nothing changed."""
    part = partial(write_part, store, "entity_instances")
    signed = [([part(instances(rows))], sign) for rows, sign in ((come, 1), (went, -1))]
    rows = pa.concat_tables(list(instance_ranges.partitioned(1, store, signed)))
    old = [[part(instances(held))]]
    if not rows.num_rows:
        return None
    made = instance_ranges._reduce(store, OF, "made", lambda: old, lambda table: {}, rows)
    return [int(unit, 16) for unit in made["made"]["text_unit_id"].to_pylist()] if made else None


@given(units, units, units)
def test_an_update_comes_to_the_rows_of_now(store: Store, stay: list[int], come: list[int], went: list[int]):
    """Also where several rows are equal."""
    found = updated(store, [*stay, *went], come, went)
    expected = sorted([*stay, *come], key=lambda n: (n % 2, n))
    assert found == (None if sorted(come) == sorted(went) else expected)


def test_a_row_that_goes_and_never_was_there_is_none(store: Store):
    assert updated(store, [1], [3], [2]) == [1, 3]
