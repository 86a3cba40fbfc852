"""The check that a change of a stage's code comes with a decision on its version."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "checks/stage_versions.py"
spec = importlib.util.spec_from_file_location("stage_versions", SCRIPT)
assert spec and spec.loader
stage_versions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stage_versions)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The record of today's code."""
    record = tmp_path / "versions.json"
    monkeypatch.setattr(stage_versions, "RECORD", record)
    monkeypatch.setattr("sys.argv", ["stage_versions.py", "--record"])
    assert stage_versions.main() == ""
    monkeypatch.setattr("sys.argv", ["stage_versions.py"])
    return record


def of(tmp_path: Path, code: str) -> str:
    path = tmp_path / f"{hash(code)}.py"
    path.write_text(code)
    return stage_versions.meaning(path)


def test_comments_docstrings_and_layout_are_no_change(tmp_path: Path):
    one = of(tmp_path, '"""One."""\ndef f(x):\n    """Says."""\n    return x + 1  # why\n')
    assert one == of(tmp_path, '"""Two."""\n\n\ndef f(\n    x,\n):\n    """Other."""\n    return (x + 1)\n')
    assert one != of(tmp_path, '"""One."""\ndef f(x):\n    """Says."""\n    return x + 2\n')
    assert one != of(tmp_path, '"""One."""\ndef f(x):\n    """Says."""\n    return x - 1\n')


def test_changed_code_of_a_stage_wants_a_decision(recorded: Path, monkeypatch: pytest.MonkeyPatch):
    assert stage_versions.main() == ""
    before = json.loads(recorded.read_text())
    before["merge"]["code"] = "other"
    recorded.write_text(json.dumps(before))
    assert "these stages has changed: merge. " in stage_versions.main()
    version = stage_versions.STAGES["merge"].version + 1
    raised = replace(stage_versions.STAGES["merge"], version=version)
    monkeypatch.setitem(stage_versions.STAGES, "merge", raised)
    assert stage_versions.main().startswith("A version was raised")
    monkeypatch.setattr("sys.argv", ["stage_versions.py", "--record"])
    assert stage_versions.main() == "" and json.loads(recorded.read_text())["merge"]["version"] == version


def test_a_stage_is_made_by_its_own_file_and_what_that_imports_of_the_pure_rooms():
    made_by = stage_versions.modules_of("claims")
    assert "graphrag_ray.indexing.stages.extract_stage" in made_by
    assert "graphrag_ray.graph.delimited_records" in made_by
    assert "graphrag_ray.indexing.run" not in made_by
