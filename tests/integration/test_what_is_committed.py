"""When a run commits a snapshot, and what it says of itself there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_model
from endpoint import Endpoint

from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.local import LocalExecutor
from graphrag_ray.errors import StoreError
from graphrag_ray.index import Indexed, index
from graphrag_ray.settings_file import parse_settings
from graphrag_ray.steps import run
from graphrag_ray.store import compaction, snapshots
from graphrag_ray.store.files import Store
from graphrag_ray.terminal.progress import Observer


class Told(Observer):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


class Small:
    """An index of one document, and what its observer was told."""

    def __init__(self, folder: Path, endpoint: Endpoint) -> None:
        self.store = Store(str(folder / "index"))
        self.told = Told()
        self._input, self._endpoint = folder / "in", endpoint
        self._input.mkdir()
        (self._input / "a.txt").write_text("ALICE met BOB.")

    def index(self, input_url: str = "", **changes: Any) -> Indexed:
        given = {"base_url": self._endpoint.base_url, "api_key_env": None}
        model = {"provider": "openai", "model": "m", "endpoints": [given]}
        settings = parse_settings({"models": {"default": model}, **changes})
        executor = LocalExecutor(self.store, Models.of(settings))
        return index(input_url or str(self._input), executor, settings, self.told)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    with Endpoint(respond=toy_model.respond) as endpoint:
        yield Small(tmp_path, endpoint)


def test_changed_settings_are_committed_though_no_table_changes(small: Small):
    first = small.index()
    again = small.index(query={"response_type": "one sentence"})
    assert again.committed and again.manifest.tables == first.manifest.tables
    newest = snapshots.open_latest(small.store)
    assert newest.settings["query"]["response_type"] == "one sentence", "which a question is asked with"
    assert not small.index(query={"response_type": "one sentence"}).committed


def test_what_other_code_wrote_is_written_anew(small: Small, monkeypatch: pytest.MonkeyPatch):
    small.index()
    monkeypatch.setattr(run, "code", lambda: "another")
    monkeypatch.setattr("graphrag_ray.index.code", lambda: "another")
    assert small.index().committed and not small.index().committed


def test_a_journal_that_cannot_be_tidied_up_does_not_undo_the_commit(
    small: Small, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object, **__: object) -> int:
        raise StoreError("no space left")

    monkeypatch.setattr(compaction, "compact", full)
    assert small.index().committed
    assert snapshots.numbers(small.store) == [1]
    assert any("no space left" in note for note in small.told.notes)


def test_a_password_in_the_address_of_the_input_is_not_kept(small: Small, monkeypatch: pytest.MonkeyPatch):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/me:secret@docs/a.txt", b"ALICE met BOB.")
    small.index("memory://me:secret@docs")
    for info in small.store.list():
        assert b"secret" not in small.store.read(info.path), info.path
