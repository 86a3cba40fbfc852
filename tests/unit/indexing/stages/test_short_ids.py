"""Integer columns on the driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.stages.short_ids import (
    GROUP,
    entity_positions,
    find_positions,
    load_integer_columns,
)
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import write_part


def test_columns_are_loaded_as_integers_with_the_group_of_each_row(tmp_path: Path):
    store = Store(str(tmp_path))
    ids = pa.array(["ab" * 16, None], pa.string())
    first = write_part(store, "t", pa.table({"id": ids, "type": ["", "x"], "n": [1, 2]}))
    second = write_part(store, "t", pa.table({"id": ids[:1], "type": ["y"], "n": [3]}))
    schema = pa.schema([("id", pa.uint64()), ("type", pa.bool_()), ("n", pa.int64())])
    columns = load_integer_columns(store, [[first], [], [second]], schema)
    assert columns[GROUP].to_pylist() == [0, 0, 2]
    assert columns["id"].to_pylist() == [int("ab" * 8, 16), 0, int("ab" * 8, 16)]
    assert columns["type"].to_pylist() == [False, True, True] and columns["n"].to_pylist() == [1, 2, 3]
    assert load_integer_columns(store, [], schema).num_rows == 0


@given(st.lists(st.integers(0, 99), unique=True).map(sorted), st.lists(st.integers(0, 99)))
def test_positions_of_missing_ids_are_minus_one(ids: list[int], wanted: list[int]):
    keys = np.array(ids, np.uint64)
    positions = find_positions(keys, np.array(wanted, np.uint64))
    assert positions.tolist() == [ids.index(w) if w in ids else -1 for w in wanted]
    if -1 in positions:
        with pytest.raises(ValueError, match="missing entity"):
            entity_positions(keys, np.array(wanted, np.uint64))
