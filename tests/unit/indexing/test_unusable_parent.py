"""Runs that cannot use their parent snapshot or damaged journals."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.stored_settings import snapshot_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.indexing.repair import repair
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import communities_stage, reused_reports
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalWriter
from graphrag_ray.store.journal_rows import DONE, JournalRow
from graphrag_ray.store.snapshots import Manifest


class RecordingObserver(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, message: str) -> None:
        self.messages.append(message)


def run_at(folder: Path, parent: Manifest | None = None) -> tuple[Run, list[str]]:
    settings, observer = parse_settings({}), RecordingObserver()
    executor = LocalExecutor(Store(str(folder)), Models.from_settings(settings))
    return Run(executor, settings, load_prompts(), parent, observer), observer.messages


@pytest.mark.parametrize("error", [ZeroDivisionError(), MemoryError(), OSError("disk full")])
def test_step_that_cannot_continue_from_a_snapshot_is_repeated_without_it(tmp_path: Path, error: Exception):
    run, messages = run_at(tmp_path, Manifest(1, None, "", "", {}, steps={"read": {"tables": {}}}))
    attempts = []

    def fail() -> Result:
        attempts.append(run.parent_result("merge"))
        raise error

    is_environment = isinstance(error, MemoryError | OSError)
    with pytest.raises(type(error)) as raised:
        run.step("merge", None, fail)
    assert len(attempts) == (1 if is_environment else 2) and raised.value.__notes__ == ["step merge"]
    assert len(messages) == len(attempts) - 1
    assert run.forced_steps == (set() if is_environment else {"read", "merge"})


def test_hierarchies_in_the_format_of_another_version_are_not_reused(tmp_path: Path):
    settings = snapshot_settings(parse_settings({}))
    steps = {name: {"tables": {}} for name in ("read", "merge", "describe", "communities", "reports")}
    steps["communities"] = {"tables": {"hierarchy_nodes": [[["tables/a.parquet", 1, 1]]]}}
    run, _ = run_at(tmp_path, Manifest(1, None, "", "", {}, steps=steps, settings=settings))
    assert communities_stage._previous_partition(run) is None
    none: dict[str, object] = {}
    assert reused_reports.earlier_reports(run, Result(), none, "", none) is None  # type: ignore[arg-type]


def test_all_damaged_parts_of_a_journal_are_set_aside_together(tmp_path: Path):
    run, messages = run_at(tmp_path)
    for n in range(3):
        writer = JournalWriter(run.store, "extract", f"w{n}")
        writer.append(JournalRow(f"{n:064x}", 0, 0, "", DONE, at=1.0))
        writer.flush()
    paths = [info.path for info in run.store.list("work/extract")]
    for path in paths[:2]:
        run.store.write(path, b"?" * 40)
    repair(run, CorruptPart("it is damaged", path=paths[0]))
    assert len(messages) == 2
    assert [path for path in paths if run.store.size(path) is not None] == paths[2:]
