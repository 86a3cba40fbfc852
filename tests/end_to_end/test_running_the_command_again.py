"""`index` run again: which settings apply, what is rejected, and what is reported."""

from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path

import pytest
from world import TOWN, Command, World, index_command

from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.ray import cluster, ray_executor

# Settings


def test_index_defaults_to_the_settings_of_the_newest_snapshot(run: Command, world: World):
    world.write(TOWN)
    assert run(*index_command(world, "--set", "chunking.size=300")).exit_code == 0
    world.write({"zoo.txt": "ZOE feeds YURI."})
    result = run("index", world.input, "--root", world.root)
    assert (
        result.exit_code == 0
        and "Using the settings of snapshot 1 (override with --config or --set)" in result.stderr
    )
    settings = world.open().settings
    assert (settings.model("default").model, settings.chunking.size) == ("m", 300)
    assert "ZOE" in {e["title"] for e in world.table("entities")}


def test_a_budget_applies_to_one_run_only(run: Command, world: World):
    world.write(TOWN)
    assert run(*index_command(world, "--set", "budget.max_total_tokens=1000000")).exit_code == 0
    result = run("index", world.input, "--root", world.root)
    assert "Nothing has changed" in result.stdout
    world.write({"zoo.txt": "ZOE feeds YURI."})
    run("index", world.input, "--root", world.root)
    assert world.open().settings.budget.max_total_tokens is None


def test_switching_back_to_the_offline_engine_is_reported(run: Command, world: World):
    world.write(TOWN)
    run(*index_command(world))
    again = ["index", world.input, "--root", world.root, "--set"]
    result = run(*again, "models.default.provider=offline")
    way = "models.default={provider: offline}"
    assert result.exit_code == 2 and f"--set '{way}'" in result.stderr
    result = run(*again, way)
    assert result.exit_code == 0 and "Snapshot 1 was built with m" in result.stderr


def test_a_model_missing_from_the_settings_file_is_reported(run: Command, world: World, tmp_path: Path):
    world.write(TOWN)
    run(*index_command(world))
    (tmp_path / "s.yaml").write_text("chunking: {size: 300}\n")
    result = run("index", world.input, "--root", world.root, "--config", tmp_path / "s.yaml")
    assert "Snapshot 1 was built with m, but these settings name no model" in result.stderr


def test_model_options_need_a_model_or_a_snapshot_with_one(run: Command, world: World):
    world.write(TOWN)
    result = run("index", world.input, "--root", world.root, "--rpm", 3)
    assert result.exit_code == 2 and "--rpm needs --model" in result.stderr
    assert run(*index_command(world)).exit_code == 0
    assert run("index", world.input, "--root", world.root, "--rpm", 6000).exit_code == 0
    assert world.open().settings.model("default").endpoints[0].requests_per_minute == 6000
    assert run("query", "What are the THEMES?", "--root", world.root, "--rpm", 6000).exit_code == 0
    assert run("estimate", world.input, "--root", world.root, "--rpm", 6000).exit_code == 0
    assert run("estimate", world.input, "--rpm", 6000).exit_code == 2


# Keys


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str | None = None) -> None:
        pytest.fail("Ray was started")

    monkeypatch.setattr(cluster, "connect", refuse)


def test_a_missing_key_is_reported_before_ray_starts(
    run: Command, world: World, no_ray: None, monkeypatch: pytest.MonkeyPatch
):
    world.write(TOWN)
    monkeypatch.delenv("MY_KEY", raising=False)
    result = run(*index_command(world)[:4], "--model", "m", "--api-key-env", "MY_KEY")
    assert result.exit_code == 2
    assert "MY_KEY is not set" in result.stderr and socket.gethostname() in result.stderr


def test_an_invalid_base_url_is_reported_instead_of_a_missing_key(
    run: Command, world: World, no_ray: None, monkeypatch: pytest.MonkeyPatch
):
    world.write(TOWN)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = run(*index_command(world)[:4], "--model", "m", "--base-url", "localhost:8000")
    assert result.exit_code == 2 and "'localhost:8000' is not an address" in result.stderr


@pytest.mark.parametrize(
    "unused",
    [
        ["--set", "models.default.endpoints.1.api_key_env=MY_KEY"],
        ["--set", "models.other={provider: openai, model: x, endpoints: [{api_key_env: MY_KEY}]}"],
    ],
    ids=["another endpoint has one", "no stage asks that model"],
)
def test_a_missing_key_that_is_not_needed_does_not_stop_a_run(
    run: Command, world: World, unused: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MY_KEY", raising=False)
    world.write(TOWN)
    assert run(*index_command(world, *unused)).exit_code == 0


def test_endpoints_are_remembered_only_for_runs_of_their_own(run: Command, world: World, own_settings: Path):
    world.write(TOWN)
    own_settings.unlink()  # It knows the world's endpoint.
    kept = own_settings.with_name("reached.json")
    command = index_command(world)
    nowhere = [str(part).replace(world.endpoint.base_url, "http://127.0.0.1:9/v1") for part in command]
    result = run(*nowhere)
    assert result.exit_code == 1 and "http://127.0.0.1:9/v1" in result.stderr
    assert not kept.exists() and not world.root.exists()
    result = run(*command)
    assert result.exit_code == 0 and world.endpoint.base_url in kept.read_text()


class OnCluster(LocalExecutor):
    """The in-process executor with the interface of the Ray executor."""

    def __init__(self, *given, workers_per_node, checked_nodes) -> None:
        self.checked_nodes = checked_nodes
        super().__init__(*given)

    def close(self) -> None: ...


def test_on_a_cluster_nodes_with_keys_get_workers(
    run: Command, world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(
        "graphrag_ray.indexing.build.check_endpoints", lambda settings: pytest.fail("looked here")
    )
    monkeypatch.setattr(cluster, "connect", lambda address: contextlib.nullcontext())
    monkeypatch.setattr(ray_executor, "RayExecutor", OnCluster)
    monkeypatch.setattr("graphrag_ray.engine.ray.cluster.check_nodes", lambda root, inputs: {"asked"})
    workers_on: list[set[str]] = []
    monkeypatch.setattr(OnCluster, "start", lambda made: workers_on.append(made.checked_nodes), raising=False)
    world.write(TOWN)
    assert run(*index_command(world)).exit_code == 0
    assert workers_on == [{"asked"}]


# --add


def other_input(world: World, tmp_path: Path, texts: dict[str, str]) -> Path:
    before, world.input = world.input, tmp_path / "other"
    world.input.mkdir(exist_ok=True)
    world.write(texts)
    return before


def test_add_does_not_replace_documents_of_another_input(run: Command, world: World, tmp_path: Path):
    world.write(TOWN)
    run(*index_command(world))
    other_input(world, tmp_path, dict.fromkeys(("mill.txt", "new.txt", "bridge.txt"), "ZOE met YURI."))
    result = run(*index_command(world, "--add"))
    assert result.exit_code == 2 and world.snapshots() == [1]
    assert "would replace 2 documents of another INPUT" in result.stderr
    assert "bridge.txt, mill.txt (" in result.stderr and "--allow-deletes" in result.stderr
    assert run(*index_command(world, "--add", "--allow-deletes")).exit_code == 0
    assert len(world.table("documents")) == len(TOWN) + 1


def test_add_updates_documents_of_every_added_input(run: Command, world: World, tmp_path: Path):
    world.write(TOWN)
    run(*index_command(world))
    first = other_input(world, tmp_path, {"new.txt": "ZOE met YURI.", "mill.txt": TOWN["mill.txt"]})
    assert run(*index_command(world, "--add")).exit_code == 0, "the same text under the same name"
    world.input = first
    world.write({"mill.txt": "ALICE met XENIA."})
    world.input = first / "mill.txt"
    assert run(*index_command(world, "--add")).exit_code == 0, "one file of a folder that is known"
    assert "XENIA" in {e["title"] for e in world.table("entities")}


# Messages


def test_unsupported_files_are_reported(run: Command, world: World):
    world.write(TOWN | {"a.png": b"x", "b.PNG": b"x", "c.pdf": b"x", "Makefile": b"x", ".hidden": b"x"})
    result = run(*index_command(world))
    assert "Skipped 4 files of other types (.png 2, no extension 1, .pdf 1)" in result.stderr


def test_a_file_that_became_unreadable_is_reported_with_its_retained_version(run: Command, world: World):
    world.write(TOWN | {"never.txt": b"\0\1" * 99})
    assert run(*index_command(world)).exit_code == 3
    world.write({"mill.txt": bytes(range(256)) * 9})
    result = run(*index_command(world))
    assert result.exit_code == 3
    assert "2 items failed (1 of them kept in its previous version): graphrag-ray failures" in result.stdout
    shown = run("failures", "--root", world.root).stdout
    assert shown.count("keeping its version from snapshot 1") == 1
    assert "read: mill.txt\n" in shown and "1 attempt;" in shown and "2 failed items" in shown
    assert "fails until the file changes" in shown
    result = run(*index_command(world))
    assert "Nothing has changed" in result.stdout, "the first snapshot is named as long as it fails"


def test_an_unreadable_row_is_reported_with_its_number(run: Command, world: World):
    world.write({"rows.jsonl": '{"text": "ALICE met BOB."}\n{broken\n{"text": "CAROL met DAVE."}\n'})
    result = run(*index_command(world))
    assert "1 item failed: " in result.stdout
    shown = run("failures", "--root", world.root).stdout
    assert "read: row 2 in rows.jsonl" in shown and "line 2: not JSON" in shown
    assert "1 failed item\n" in shown


def test_quiet_reports_failed_items_on_stderr(run: Command, world: World):
    world.write(TOWN | {"binary.txt": b"\0\1" * 99})
    result = run(*index_command(world, "--quiet"))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("graphrag-ray: 1 item failed: ") and result.stderr.count("\n") == 1


def test_a_document_moved_to_another_input_costs_nothing(world: World, tmp_path: Path):
    texts = {f"{i:03}.txt": f"ALICE met BOB, for the time number {i}." for i in range(10)}
    world.write(texts | {"bad.txt": b"\0\1" * 99})
    world.index()
    (world.input / "bad.txt").unlink()
    (world.input / "003.txt").unlink()
    asked = world.asked()
    done = world.index(add=True)
    assert done.committed and done.failed == 0 and world.asked() == asked
    again = {step for step, reused in world.observer.reused.items() if not reused}
    assert not again & {"describe", "communities"}
    assert not world.index(add=True).committed


def test_global_options_may_follow_the_command(run: Command, world: World, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    world.write(TOWN)
    run(*index_command(world))
    assert run("status", "--root", world.root, "-v").exit_code == 0
    assert logging.getLogger("graphrag_ray").level == logging.INFO
    assert "--traceback" in run("status", "--help").stdout
