"""INPUT as rows: supported types, batches, and errors."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from graphrag_ray.base.errors import InputError
from graphrag_ray.engine import input_rows
from graphrag_ray.engine.input_rows import InputRows, read_batch


def opened(given: Any) -> InputRows:
    rows = InputRows(given)
    rows.resolve(lambda columns: "" if "text" in columns else f"no text in {', '.join(columns)}")
    return rows


def values(rows: InputRows) -> list[dict[str, Any]]:
    return [dict(row.values or {}) for batch in rows for row in read_batch(batch)]


def test_large_tables_are_split_and_small_batches_combined(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_rows, "BATCH_BYTES", 1000)
    table = pa.table({"text": [f"{n:0100}" for n in range(100)]})
    for given in (table, table.to_reader(3), table.to_pandas()):
        batches = list(opened(given))
        assert 5 <= len(batches) <= 20
        assert [text for batch in batches for text in batch["text"].to_pylist()] == table["text"].to_pylist()


def test_batches_are_read_lazily(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_rows, "BATCH_BYTES", 1)
    taken: list[int] = []

    def rows() -> Any:
        for n in range(10_000):
            taken.append(n)
            yield {"text": "x"}

    assert next(iter(opened(rows()))) and len(taken) < 1000


def test_a_dataframe_may_have_an_index_and_columns_of_mixed_types():
    frame = pd.DataFrame({"text": ["a", "b", "c"], "n": [1, 2, 3]})
    assert values(opened(frame[frame["n"] > 1])) == [{"text": "b", "n": 2}, {"text": "c", "n": 3}]
    mixed = pd.DataFrame({"text": ["a", "b"], "n": [1, "two"]})
    assert values(opened(mixed)) == [{"text": "a", "n": 1}, {"text": "b", "n": "two"}]


def test_an_iterator_cannot_be_read_twice():
    once, always = opened(iter([{"text": "a"}])), opened([{"text": "a"}])
    assert values(once) == values(always) == values(always)
    with pytest.raises(InputError, match="can be read only once"):
        list(once)


def test_a_function_is_called_when_the_rows_are_opened():
    rows = InputRows(lambda: [{"text": "a"}], "articles:rows")
    assert not rows.is_open and str(rows) == "articles:rows"
    rows.resolve(lambda columns: "")
    assert values(rows) == [{"text": "a"}] and str(rows) == "articles:rows"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (7, "INPUT has type int. It can be a file"),
        (["a text"], "A row has type str instead of dict"),
        ([{"words": "a"}], "no text in words"),
        (pa.table({"words": ["a"]}), "no text in words"),
        (pd.DataFrame({"words": ["a"]}), "no text in words"),
    ],
)
def test_input_without_text_rows_is_refused(given: Any, told: str):
    with pytest.raises(InputError, match=told):
        list(opened(given))
