"""Lets these tests import `world.py`, which stands beside this file, and what benchmarks share; gives each
test a world of its own."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import toy_model
from click.testing import CliRunner, Result
from endpoint import Endpoint
from world import DEEPER, PEOPLE, TOWN, Command, World

from graphrag_ray.cli.command_line import main
from graphrag_ray.engine.in_process import LocalExecutor


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(respond=toy_model.respond) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, endpoint: Endpoint) -> World:
    return World(tmp_path, endpoint)


@pytest.fixture
def town(world: World) -> World:
    """An index of the town, whose two parts know nothing of one another."""
    world.write(TOWN)
    world.index(communities={"small_component": 1})
    return world


@pytest.fixture
def deep(world: World) -> World:
    """An index of several levels."""
    world.write(PEOPLE)
    world.index(**DEEPER)
    return world


class InProcess(LocalExecutor):
    """The in-process executor with the constructor and the life of the Ray executor."""

    def __init__(self, store, models, limit, flush_s, workers, on_progress, spending, fit) -> None:
        self.fit = fit
        super().__init__(store, models, limit, flush_s, on_progress=on_progress, spending=spending)

    def start(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line, in this process; checks that an error is a message and no trace."""
    from graphrag_ray.engine.ray import cluster, ray_executor

    monkeypatch.setattr(cluster, "connected", lambda address=None: contextlib.nullcontext())
    monkeypatch.setattr(ray_executor, "RayExecutor", InProcess)

    def invoke(*arguments: object) -> Result:
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output
        return result

    return invoke
