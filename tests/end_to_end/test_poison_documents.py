"""Documents that kill the processes that work on them, on a real Ray: read, queried, listed, put back."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from deadly import DeadlyFile, DeadlyNames
from world import TOWN, World, index_command

from graphrag_ray.cli.command_line import main
from graphrag_ray.indexing import index as index_module
from graphrag_ray.indexing.stages import read_stage as read_step
from graphrag_ray.indexing.stages.input_listing import Listing, scan_input


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def in_process(world: World) -> list[object]:
    """The same command without the workers of a cluster, which take long to start."""
    return index_command(world, "--in-process")


def failures(world: World) -> list[dict[str, Any]]:
    return json.loads(run("failures", "--root", world.root, "--json").stdout)  # type: ignore[no-any-return]


def scan_poison(*given: Any) -> Listing:
    found = scan_input(*given)
    files = [DeadlyFile(f.url, f.path, f.size) if "mill" in f.path else f for f in found.files]
    return replace(found, files=files)


@pytest.mark.timeout(480)
def test_a_file_that_kills_its_reader_fails_alone(
    world: World, on_ray: None, monkeypatch: pytest.MonkeyPatch
):
    world.write(TOWN)
    with monkeypatch.context() as poisoned:
        poisoned.setattr(read_step, "scan_input", scan_poison)
        assert run(*index_command(world)).exit_code == 3
    (failed,) = failures(world)
    assert (failed["stage"], failed["document"]) == ("read", "mill.txt")
    assert "3 processes that worked on it died" in failed["error"]
    assert {d["path"] for d in world.table("documents")} == TOWN.keys() - {"mill.txt"}
    assert run(*in_process(world)).exit_code == 0 and failures(world) == []


@pytest.mark.timeout(480)  # Some ten processes die and are restarted.
def test_a_reply_that_kills_its_reader_fails_one_item(
    world: World, on_ray: None, monkeypatch: pytest.MonkeyPatch
):
    world.write(TOWN)
    assert run(*in_process(world)).exit_code == 0
    asked = world.asked()
    load_names = index_module.load_names

    def load_deadly(settings: Any) -> DeadlyNames:
        found = load_names(settings)
        return DeadlyNames(**{f.name: getattr(found, f.name) for f in fields(found)})

    with monkeypatch.context() as poisoned:
        poisoned.setattr(index_module, "load_names", load_deadly)
        done = run(*index_command(world))
        assert done.exit_code == 3 and "The workers now check every item" in " ".join(done.stderr.split())
    (failed,) = failures(world)
    assert (failed["stage"], failed["document"], failed["kind"]) == ("extract", "mill.txt", "permanent")
    assert f"died {failed['attempts']} times" in failed["error"] and failed["attempts"] >= 3
    assert world.prompts(asked)["extract"] == 0, "what is journalled is not paid for again"
    assert "JUDY" not in {e["title"] for e in world.table("entities")}

    assert run(*in_process(world)).exit_code == 3, "not tried again of itself"
    assert "1 item reset" in run("failures", "--root", world.root, "--retry").stdout
    assert run(*in_process(world)).exit_code == 0 and failures(world) == []
    assert "JUDY" in {e["title"] for e in world.table("entities")}
