"""Recordings of end-to-end results: equal code gives equal files, and a changed row is reported."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).parents[3] / "benchmarks" / "end_to_end_results.py")


def _script(*words: object, seed: int = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONHASHSEED": str(seed)}
    line = [sys.executable, SCRIPT, *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env=env, check=False)


def test_recordings_are_equal_until_a_row_changes(tmp_path: Path) -> None:
    for seed, name in enumerate(("before", "after"), 1):
        recorded = _script("record", tmp_path / name, "--only", "tiny", seed=seed)
        assert recorded.returncode == 0, recorded.stderr
    compared = _script("compare", tmp_path / "before", tmp_path / "after")
    assert (compared.returncode, compared.stdout) == (0, "no difference\n")

    table = tmp_path / "after" / "tiny" / "index" / "tables" / "entities.jsonl"
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows[0]["description"] += " And more."
    lost = rows.pop()
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.rmtree(tmp_path / "after" / "tiny" / "index" / "answers")

    compared = _script("compare", tmp_path / "before", tmp_path / "after")
    assert compared.returncode == 1
    assert "tiny/index/answers/local.jsonl: only before" in compared.stdout
    assert f"1 of {len(rows) + 1} rows only before" in compared.stdout
    assert lost["id"] in compared.stdout
    assert "rows changed, in description (1)" in compared.stdout
    assert ' And more."' in compared.stdout


def test_missing_recordings_are_not_equal(tmp_path: Path) -> None:
    compared = _script("compare", tmp_path / "before", tmp_path / "after")
    assert compared.returncode == 1
    assert "nothing to compare" in compared.stdout
