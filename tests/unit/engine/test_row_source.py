"""RowSource: items from a stream of tables that a thread reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from graphrag_ray.engine.executor import RowSource
from graphrag_ray.engine.work import Row

WITHIN_S = 30


def test_closing_a_source_closes_its_stream_and_ends_its_thread():
    closed = threading.Event()

    def endless() -> Iterator[pa.Table]:
        try:
            number = 0
            while True:
                number += 1
                yield pa.table({"text": ["x"], "key": [f"{number:064x}"]})
        finally:
            closed.set()

    source: RowSource[str] = RowSource(endless(), None)
    while not source.take():
        pass
    source.close()
    assert closed.wait(WITHIN_S)


def test_an_error_of_the_stream_is_raised_by_take():
    def broken() -> Iterator[pa.Table]:
        yield pa.table({"text": ["x"], "key": ["a" * 64]})
        raise OSError("the disk is gone")

    source: RowSource[str] = RowSource(broken(), None)
    rows: list[Row] = []

    def take_all() -> None:
        while True:
            rows.extend(source.take() or [])

    with pytest.raises(OSError, match="the disk is gone"):
        take_all()
    assert rows == [{"text": "x"}]
