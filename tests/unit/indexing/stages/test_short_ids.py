"""Columns as the driver holds them: integers, whatever the table has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.indexing.stages.short_ids import GROUP, columns_of, entity_positions, find_positions
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import write_part


def test_ids_are_their_first_64_bits_and_rows_know_their_group(tmp_path: Path):
    store = Store(str(tmp_path))
    ids = pa.array(["ab" * 16, None], pa.string())
    first = write_part(store, "t", pa.table({"id": ids, "type": ["", "x"], "n": [1, 2]}))
    second = write_part(store, "t", pa.table({"id": ids[:1], "type": ["y"], "n": [3]}))
    of = pa.schema([("id", pa.uint64()), ("type", pa.bool_()), ("n", pa.int64())])
    found = columns_of(store, [[first], [], [second]], of)
    assert found[GROUP].to_pylist() == [0, 0, 2]
    assert found["id"].to_pylist() == [int("ab" * 8, 16), 0, int("ab" * 8, 16)]
    assert found["type"].to_pylist() == [False, True, True] and found["n"].to_pylist() == [1, 2, 3]
    assert columns_of(store, [], of).num_rows == 0


@given(st.lists(st.integers(0, 99), unique=True).map(sorted), st.lists(st.integers(0, 99)))
def test_positions_of_ids(ids: list[int], wanted: list[int]):
    keys = np.array(ids, np.uint64)
    found = find_positions(keys, np.array(wanted, np.uint64))
    assert found.tolist() == [ids.index(w) if w in ids else -1 for w in wanted]
    if -1 in found:
        with pytest.raises(ValueError, match="missing entity"):
            entity_positions(keys, np.array(wanted, np.uint64))
