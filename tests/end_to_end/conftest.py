"""Make `world.py` and the shared modules importable, and give each test its own world."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import toy_model
from click.testing import CliRunner, Result
from endpoint import Endpoint
from world import DEEPER, PEOPLE, TOWN, Built, Command, World

from graphrag_ray.cli.command_line import main


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(respond=toy_model.respond) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, endpoint: Endpoint) -> World:
    return World(tmp_path, endpoint)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Indexes that many tests start from. Each is built once, and every test gets a copy."""
    worlds: dict[str, World] = {}

    def build(texts: Mapping[str, str], **changes: Any) -> World:
        key = repr((texts, changes))
        if key not in worlds:
            with Endpoint(respond=toy_model.respond) as endpoint:
                worlds[key] = World(tmp_path_factory.mktemp("built"), endpoint)
                worlds[key].write(texts)
                worlds[key].index(**changes)
        return worlds[key]

    return build


@pytest.fixture
def town(world: World, built: Built) -> World:
    """An index of two towns that do not mention each other."""
    return world.take(built(TOWN, communities={"pack_components_below": 1}))


@pytest.fixture
def deep(world: World, built: Built) -> World:
    """An index with several levels."""
    return world.take(built(PEOPLE, **DEEPER))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line in this process, and check that an error is a message without a traceback.

    `said` is the standard input.
    """
    monkeypatch.setattr("graphrag_ray.engine.ray.discovery._is_connected", lambda: False)

    def invoke(*arguments: object, said: str = "") -> Result:
        result = CliRunner().invoke(main, [str(a) for a in arguments], said)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output
        return result

    return invoke
