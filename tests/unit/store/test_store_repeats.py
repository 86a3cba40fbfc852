"""Requests that were answered twice, found while others merge; a reply that stands in two parts is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphrag_ray.store import compaction, parquet, repeats
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import TURN, JournalRow


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "index"))


def key(n: int) -> str:
    return f"{n:064x}"[::-1]


def write(store: Store, *rows: JournalRow, writer: str) -> str:
    journal = JournalWriter(store, "extract", writer)
    for row in rows:
        journal.append(row)
    return journal.flush() or ""


def reply(n: int, at: float, text: str = "one", latency_s: float = 1.0) -> JournalRow:
    return JournalRow(key(n), 0, 0, "h", TURN, at, reply=text, latency_s=latency_s)


def test_a_merge_that_overtakes_the_look_hides_no_second_reply(store: Store, monkeypatch):
    write(store, reply(1, 5.0), reply(2, 5.5), writer="a")
    write(store, reply(1, 6.0, "two"), writer="b")
    write(store, reply(3, 7.0), reply(3, 7.0, "a clock that is held", 2.0), writer="c")
    real, overtaken = parquet.read_columns, []

    def read(*args):
        if not overtaken:
            overtaken.append(args)
            assert compaction.compact(store, "extract", at_least=1) == 2
        return real(*args)

    monkeypatch.setattr(parquet, "read_columns", read)
    assert repeats.answered_twice(store, "extract") == {key(1), key(3)} and overtaken


def test_replies_that_a_merge_left_in_two_parts_are_not_read(store: Store, monkeypatch):
    paths = [write(store, reply(n, 5.0 + n), writer=f"w{n}") for n in range(3)]
    kept = {path: store.read(path) for path in paths}
    compaction.compact(store, "extract", at_least=1)
    for path, data in kept.items():
        store.write(path, data)
    monkeypatch.setattr(JournalIndex, "load", None)
    assert repeats.answered_twice(store, "extract") == set()
