"""The data that the in-process shuffle sends to other processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.executor import PARTITION
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.store.files import Store

PARTITIONS = 20


def rows(store: Store, start: int) -> Iterator[pa.Table]:
    texts = [f"{start} {n} " * 50 for n in range(200)]
    yield pa.table({"text": texts, PARTITION: pa.array([n % PARTITIONS for n in range(200)], pa.int32())})


def test_each_partition_is_pickled_without_the_rows_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store(str(tmp_path))
    executor = LocalExecutor(store, Models.from_settings(parse_settings({})))
    sent: list[int] = []

    def noted(fn: Callable[[pa.Table], object], inputs: Iterable[pa.Table]) -> Iterator[object]:
        held = pa.total_allocated_bytes()
        for table in inputs:
            assert held < pa.total_allocated_bytes() < held + whole / 2, "one by one"
            sent.append(len(pickle.dumps(table)))
            yield fn(table)

    whole = sum(table.nbytes for start in range(3) for table in rows(store, start))
    monkeypatch.setattr(executor.pool, "processes", 0)
    monkeypatch.setattr(executor.pool, "map", noted)
    executor.shuffle("step", rows, range(3), lambda table: {"texts": table}, PARTITIONS)
    assert len(sent) == PARTITIONS and sum(sent) < 2 * whole
