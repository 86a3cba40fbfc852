"""Tables that `evaluate` prints."""

from __future__ import annotations

import pyarrow as pa
import pytest

from graphrag_ray.cli.commands.evaluate_command import _print_tables
from graphrag_ray.evaluate.comparison import CONDITIONS


@pytest.mark.parametrize(
    ("indexes", "shown"), [([None, None], False), (["a", "a"], False), (["a", "b"], True)]
)
def test_indexes_of_conditions_are_printed_if_they_differ(
    indexes: list[str | None], shown: bool, capsys: pytest.CaptureFixture[str]
):
    rows = [{"name": f"c{n}", "method": "vector", "index": index} for n, index in enumerate(indexes)]
    _print_tables({"conditions": pa.Table.from_pylist(rows, schema=CONDITIONS)})
    printed = capsys.readouterr().out
    assert "c1" in printed and ("index" in printed) == shown
