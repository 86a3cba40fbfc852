"""When a run commits a snapshot, and what the snapshot records about the run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import toy_model
from endpoint import Endpoint

from graphrag_ray.base import schema
from graphrag_ray.base.errors import StoreError
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.observer import Observer
from graphrag_ray.graph import report_dialogue
from graphrag_ray.graph.report_dialogue import ReplyProblem, ReportDraft, parse_report
from graphrag_ray.indexing import run_record, step_result
from graphrag_ray.indexing.index import IndexResult, index
from graphrag_ray.indexing.repair import FEW_PARTS, MANY_PARTS
from graphrag_ray.store import compaction, run_records, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalWriter
from graphrag_ray.store.journal_rows import JournalRow


class RecordingObserver(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[str] = []
        self.done: list[tuple[str, bool]] = []

    def message(self, message: str) -> None:
        self.notes.append(message)

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        self.steps.append(name)
        self.done.append((name, reused))


class Small:
    """An index of one document, and the messages of its runs."""

    def __init__(self, folder: Path, endpoint: Endpoint) -> None:
        self.store = Store(str(folder / "index"))
        self.told = RecordingObserver()
        self.endpoint = endpoint
        self._input = folder / "in"
        self._input.mkdir()
        (self._input / "a.txt").write_text("ALICE met BOB.")

    def index(self, input_url: str = "", **changes: Any) -> IndexResult:
        given = {"base_url": self.endpoint.base_url, "api_key_env": None}
        model = {"provider": "openai", "model": "m", "endpoints": [given]}
        settings = parse_settings({"models": {"default": model}, "reports": {"model_from": 0}, **changes})
        executor = LocalExecutor(self.store, Models.from_settings(settings))
        return index(input_url or str(self._input), executor, settings, self.told)

    def leave_parts(self, n: int) -> None:
        """Leave small journal parts behind, like stopped runs do."""
        for i in range(n):
            writer = JournalWriter(self.store, "extract", f"stopped-{i}")
            key = hashlib.sha256(b"%d" % i).hexdigest()
            writer.append(JournalRow(key, 0, 0, "", "done", 1e9 + i))
            writer.flush()

    def parts(self) -> int:
        return len(self.store.list("work/extract"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    with Endpoint(respond=toy_model.respond) as endpoint:
        yield Small(tmp_path, endpoint)


def test_changed_settings_are_committed_without_changed_tables(small: Small):
    first = small.index()
    again = small.index(query={"response_type": "one sentence"})
    assert again.committed and again.manifest.tables == first.manifest.tables
    newest = snapshots.open_latest(small.store)
    assert newest.settings["query"]["response_type"] == "one sentence", "which a question is asked with"
    assert not small.index(query={"response_type": "one sentence"}).committed


def test_changed_code_derives_all_tables_again_once(small: Small, monkeypatch: pytest.MonkeyPatch):
    first = small.index()
    asked = len(small.endpoint.requests)
    small.told.done.clear()
    monkeypatch.setattr(step_result, "_code_digest", lambda: "edited")
    again = small.index()
    assert again.committed and not any(reused for _, reused in small.told.done)
    assert {n: p for n, p in again.manifest.tables.items() if n in schema.TABLES} == {
        n: p for n, p in first.manifest.tables.items() if n in schema.TABLES
    }
    assert len(small.endpoint.requests) == asked
    (told,) = [note for note in small.told.notes if "re-deriving" in note]
    assert "re-deriving tables from stored replies." in told
    assert not small.index().committed
    assert len([note for note in small.told.notes if "re-deriving" in note]) == 1


def test_repaired_parser_reuses_stored_replies_of_failed_items(small: Small, monkeypatch: pytest.MonkeyPatch):
    def strange(body: dict[str, Any]) -> str:
        reply = toy_model.respond(body)
        return f"<<{reply}>>" if reply.startswith("{") else reply

    def repaired(text: str, finish_reason: str) -> ReportDraft | ReplyProblem:
        return parse_report(text.removeprefix("<<").removesuffix(">>"), finish_reason)

    monkeypatch.setattr(report_dialogue, "parse_report", lambda *_: ReplyProblem("it is strange"))
    small.endpoint.respond = strange
    assert small.index().failed == 1
    asked = len(small.endpoint.requests)
    assert small.index().failed == 1 and len(small.endpoint.requests) == asked
    monkeypatch.setattr(report_dialogue, "parse_report", repaired)
    monkeypatch.setattr(step_result, "_code_digest", lambda: "repaired")
    done = small.index()
    assert done.failed == 0 and done.manifest.counts["reports"] == 1
    assert len(small.endpoint.requests) == asked


def test_failed_compaction_does_not_undo_the_commit(small: Small, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> int:
        raise StoreError("no space left")

    small.leave_parts(8)
    monkeypatch.setattr(compaction, "merge_parts", full)
    assert small.index().committed
    assert snapshots.list_numbers(small.store) == [1]
    assert any("no space left" in note for note in small.told.notes)


def test_small_parts_of_stopped_runs_are_merged_before_reading(small: Small):
    small.index()
    before = small.parts()
    small.leave_parts(MANY_PARTS)
    assert not small.index().committed and small.parts() <= before + 1
    steps = small.told.steps
    assert "compact" in steps and steps.index("compact", len(steps) // 2) < steps.index(
        "extract", len(steps) // 2
    )


def test_small_parts_of_a_sweep_are_merged_before_the_next(small: Small, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("graphrag_ray.indexing.index.MANY_PARTS", 2)
    small.leave_parts(1)
    small.index()
    ended = small.told.steps
    assert "compact" in ended[: ended.index("merge")] and small.parts() == 1


def test_compaction_is_visible_to_observers(small: Small, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_record, "BEAT_INTERVAL_S", 0.01)
    small.leave_parts(FEW_PARTS)
    seen: list[Any] = []
    real = compaction.merge_parts

    def looking(*given: Any) -> int:
        record, end = run_records.latest_run(small.store), time.monotonic() + 10
        assert record is not None
        while (live := run_records.read_live(small.store, record.epoch)) is None or live.step != "compact":
            assert time.monotonic() < end
            time.sleep(0.01)
        seen.append((record.outcome, record.snapshot))
        return real(*given)

    monkeypatch.setattr(compaction, "merge_parts", looking)
    done = small.index()
    record = run_records.latest_run(small.store)
    assert seen == [("running", 1)] and record is not None and record.outcome == "committed"
    assert done.seconds["compact"] > 0 and record.steps["compact"]["counts"]["merged_into"] == 1


def test_run_stopped_during_compaction_has_committed(small: Small, monkeypatch: pytest.MonkeyPatch):
    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    small.leave_parts(FEW_PARTS)
    monkeypatch.setattr(compaction, "merge_parts", stop)
    with pytest.raises(KeyboardInterrupt):
        small.index()
    record = run_records.latest_run(small.store)
    assert record is not None and (record.outcome, record.snapshot) == ("committed", 1)


def test_password_in_the_input_url_is_not_stored(small: Small, monkeypatch: pytest.MonkeyPatch):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/me:secret@docs/a.txt", b"ALICE met BOB.")
    small.index("memory://me:secret@docs")
    for info in small.store.list():
        assert b"secret" not in small.store.read(info.path), info.path
