"""Make the helpers next to this file importable (`from endpoint import Endpoint`), and define shared
fixtures."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from s3_server import S3Server

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
# For commands and Ray workers that tests start.
CACHE = tempfile.mkdtemp(prefix="graphrag-ray-tests-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
os.environ["GRAPHRAG_RAY_CACHE"] = CACHE
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))

# The user's settings of whoever runs the tests are not read. Tests that need some use `own_settings`.
os.environ["GRAPHRAG_RAY_SETTINGS"] = str(Path(CACHE) / "settings" / "settings.yaml")

from examples import register  # noqa: E402

register()


LONGEST = ("jobs", "kills", "service_on_a_cluster", "readme", "nodes_that_come_and_go", "service", "signals")
"""The files that take longest begin first: none of them is left for one process at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that need a Ray cluster, or storage other than moto's, into the second tier (`make test-
    cluster`), together with files and tests that are marked."""
    longest = {f"test_{name}.py": n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda item: longest.get(item.path.name, len(longest)))
    real_storage = {"s3"} if "GRAPHRAG_RAY_TEST_S3" in os.environ else set()
    for item in items:
        if {"on_ray", *real_storage} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(autouse=True, scope="session")
def no_fsync() -> Iterator[None]:
    """Tests do not wait for fsync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def reset_logging() -> Iterator[None]:
    """Reset the logging that a command in this process configured."""
    yield
    if logs := sys.modules.get("graphrag_ray.base.logs"):
        logs.reset()
        logging.getLogger("graphrag_ray").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file of this test's user, which does not exist yet."""
    path = tmp_path_factory.mktemp("user") / "settings.yaml"
    monkeypatch.setenv("GRAPHRAG_RAY_SETTINGS", str(path))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return path


@pytest.fixture(autouse=True)
def raise_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise bugs that a command would report in one line."""
    monkeypatch.setattr("graphrag_ray.cli.command_line.is_unexpected", lambda error: False)


@pytest.fixture(scope="session")
def on_ray() -> Iterator[None]:
    """A real local Ray cluster for the whole session."""
    from graphrag_ray.engine.ray.cluster import connect

    with connect():
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server for the whole session."""
    from s3_server import running

    with running(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_owner(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 server with its owner's keys in the environment, and nothing else that S3 clients read."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.owner.environment.items():
        monkeypatch.setenv(name, value)
    return s3
