"""Lets tests import the helpers that stand beside this file (`from endpoint import Endpoint`)."""

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
# For commands and the workers of a Ray cluster that a test starts.
CACHE = tempfile.mkdtemp(prefix="graphrag-ray-tests-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
os.environ["GRAPHRAG_RAY_CACHE"] = CACHE
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))

# Those of whoever runs the tests are not read; a test that writes some has its own (`own_settings`).
os.environ["GRAPHRAG_RAY_SETTINGS"] = str(Path(CACHE) / "settings" / "settings.yaml")

from examples import register  # noqa: E402

register()


LONGEST = ("jobs", "kills", "service_on_a_cluster", "readme", "nodes_that_come_and_go", "service", "signals")
"""The files that take longest begin first: none of them is left for one process at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the second tier (`make test-cluster`) is what needs a Ray cluster, or storage on another server than
    moto's; besides, files and tests that say so themselves."""
    longest = {f"test_{name}.py": n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda item: longest.get(item.path.name, len(longest)))
    real_storage = {"s3"} if "GRAPHRAG_RAY_TEST_S3" in os.environ else set()
    for item in items:
        if {"on_ray", *real_storage} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(autouse=True, scope="session")
def nobody_pulls_the_plug() -> Iterator[None]:
    """No test waits until the disk has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def logs_of_its_own() -> Iterator[None]:
    """A command that ran in this process said how it logs; the next test is not to log so."""
    yield
    if logs := sys.modules.get("graphrag_ray.base.logs"):
        logs.forget()
        logging.getLogger("graphrag_ray").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings of this test's user are; there are none yet."""
    path = tmp_path_factory.mktemp("user") / "settings.yaml"
    monkeypatch.setenv("GRAPHRAG_RAY_SETTINGS", str(path))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return path


@pytest.fixture(autouse=True)
def bugs_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What people are told in a line when it ends their command is an error of the test here."""
    monkeypatch.setattr("graphrag_ray.cli.command_line.is_unexpected", lambda error: False)


@pytest.fixture(scope="session")
def on_ray() -> Iterator[None]:
    """A real Ray cluster of this machine, for the whole session."""
    from graphrag_ray.engine.ray.cluster import connect

    with connect():
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server, for the whole session."""
    from s3_server import running

    with running(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_owner(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The same, its owner's keys in the environment and nothing else that an S3 client goes by."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.owner.environment.items():
        monkeypatch.setenv(name, value)
    return s3
