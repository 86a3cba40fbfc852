"""Small corpora are indexed without Ray: when, what is reported, and how to force it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from world import TOWN, Command, Silent, World, chain, everything, index_command, python

from graphrag_ray import build_index, open_index
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.process_pool import ProcessPool
from graphrag_ray.engine.ray import cluster, discovery
from graphrag_ray.indexing.index import index
from graphrag_ray.store.files import Store

HERE = "Running in this process: INPUT has"


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str | None = None) -> None:
        raise GraphRagError("Ray was started")

    monkeypatch.setattr(cluster, "connect", refuse)


def test_a_small_corpus_is_indexed_without_importing_ray(world: World):
    world.write(TOWN)
    done = python(
        "import sys\n"
        "from graphrag_ray.cli.command_line import main\n"
        f"main({[str(a) for a in index_command(world)]!r}, standalone_mode=False)\n"
        "print('imported' if 'ray' in sys.modules else 'not imported')"
    )
    assert done.stdout.endswith("not imported\n") and HERE in done.stderr, done.stderr
    assert world.snapshots() == [1]


@pytest.mark.parametrize(
    ("options", "variables", "started"),
    [
        ([], {}, False),
        (["--set", "run.in_process_max_mb=0"], {}, True),
        (["--ray"], {}, True),
        (["--set", "run.in_process_max_mb=0", "--in-process"], {}, False),
        ([], {"RAY_ADDRESS": "127.0.0.1:1"}, True),
        (["--in-process"], {"RAY_ADDRESS": "127.0.0.1:1"}, False),
        (["--address", "127.0.0.1:1"], {}, True),
    ],
)
def test_ray_is_used_for_large_input_or_on_request(
    run: Command,
    world: World,
    no_ray: None,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    variables: dict[str, str],
    started: bool,
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    world.write(TOWN)
    result = run(*index_command(world, *options))
    assert ("Ray was started" in result.stderr) == started and result.exit_code == started


def test_a_small_update_of_a_large_index_runs_in_process(run: Command, world: World, no_ray: None):
    long = {f"{n}.txt": f"ALICE met {'x' * n}BOB for the {n}th time. " * 40 for n in range(30)}
    world.write(TOWN | long)
    small = index_command(world, "--set", "run.in_process_max_mb=0.01")
    assert run(*index_command(world)).exit_code == 0
    for path in world.input.iterdir():
        os.utime(path, (1e9, 1e9))
    (world.input / "mill.txt").write_text("GRACE met IVAN at the mill.")
    assert "Running in this process: 0.0 MB of text may have changed" in run(*small).stderr
    for name, text in long.items():
        (world.input / name).write_text(text + "GRACE met IVAN.")
    told = run(*small).stderr
    assert "Starting Ray: 0.1 MB of text may have changed" in told and "Ray was started" in told


def test_a_cluster_started_on_this_machine_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(discovery, "_is_connected", lambda: False)
    assert discovery.starts_private_ray()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        discovery.address_file().parent.mkdir()
        discovery.address_file().write_text(f"127.0.0.1:{listening.getsockname()[1]}\n")
        assert not discovery.starts_private_ray()
    assert discovery.starts_private_ray(), "it was killed, and left its file"


def test_ray_looks_for_that_cluster_in_the_same_file(monkeypatch: pytest.MonkeyPatch):
    from ray._common.utils import get_ray_address_file

    for variables in ({}, {"TMPDIR": "/x"}, {"TMPDIR": "/x", "RAY_TMPDIR": "/y"}):
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert str(discovery.address_file()) == get_ray_address_file(None)


def test_an_index_is_built_inside_a_running_event_loop(world: World):
    world.write(TOWN)

    async def cell() -> bool:
        return build_index(
            str(world.input), str(world.root), settings=world.settings(), on_ray=False
        ).committed

    assert asyncio.run(cell())


def test_ray_and_in_process_exclude_each_other(run: Command, world: World):
    world.write(TOWN)
    result = run(*index_command(world, "--address", "127.0.0.1:1", "--in-process"))
    assert result.exit_code == 2 and "--in-process" in result.stderr and "--address" in result.stderr


def test_a_failed_start_of_ray_is_explained_and_small_runs_need_none(
    run: Command, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world.write(TOWN)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "not" / "there"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    line = [sys.executable, "-m", "graphrag_ray", *map(str, index_command(world, "--ray"))]
    refused = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)
    assert refused.returncode == 1 and world.snapshots() == []
    assert "Ray did not start on this machine (" in refused.stderr and "--in-process" in refused.stderr
    assert "unexpected error" not in refused.stderr and "Traceback" not in refused.stderr
    assert run(*index_command(world)).exit_code == 0 and world.snapshots() == [1]


def test_long_computations_run_in_other_processes_with_the_same_result(tmp_path: Path):
    (tmp_path / "input").mkdir()
    for name, text in (TOWN | chain(12)).items():
        (tmp_path / "input" / name).write_text(text)
    settings, pool = parse_settings({}), ProcessPool(2)
    pool.wait()

    def built(where: str, **given: ProcessPool) -> dict[str, list[dict[str, Any]]]:
        executor = LocalExecutor(Store(str(tmp_path / where)), Models.from_settings(settings), **given)
        index(str(tmp_path / "input"), executor, settings, Silent(), now=lambda: 1_700_000_000.0)
        return everything(open_index(str(tmp_path / where)))

    assert built("pooled", pool=pool) == built("here")
    pool.close()
