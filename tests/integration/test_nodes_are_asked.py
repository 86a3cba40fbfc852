"""Nodes are checked before they get workers, on a real Ray cluster."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
import ray

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray import cluster, worker_pool
from graphrag_ray.engine.ray.cluster import check_nodes
from graphrag_ray.engine.ray.worker_pool import WorkerPool
from graphrag_ray.store.files import Store
from graphrag_ray.version import __version__


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "index"))


@pytest.fixture
def make(on_ray: None, store: Store) -> Iterator[Callable[[Collection[str]], WorkerPool]]:
    """Return a function that creates pools for the offline engine. `fit` are nodes that passed the check."""
    made: list[WorkerPool] = []

    def build(fit: Collection[str]) -> WorkerPool:
        made.append(WorkerPool(store, Models.from_settings(parse_settings({})), 0.2, 1, fit))
        return made[-1]

    yield build
    for one in made:
        one.close()


def this_node() -> str:
    here: str = ray.get_runtime_context().get_node_id()
    return here


def answered(asked: WorkerPool) -> None:
    for _, answer in asked._checks:
        answer.exception(60)


def asking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("nodes")]


def test_checked_nodes_get_workers_immediately(make: Callable[[Collection[str]], WorkerPool], store: Store):
    fit = check_nodes(store, [])
    assert fit == {this_node()}
    assert [member.node for member in make(fit).working] == [this_node()]


def test_new_node_gets_workers_only_after_its_check(
    make: Callable[[Collection[str]], WorkerPool],
):
    made = make(set())
    assert made.working == []
    answered(made)
    assert [member.node for member in made.poll_now()[0]] == [this_node()]


def test_failed_check_is_repeated_and_nodes_get_no_workers(
    make: Callable[[Collection[str]], WorkerPool], store: Store, monkeypatch: pytest.MonkeyPatch
):
    def away(path: str, data: bytes) -> None:
        raise OSError("the storage is away")

    with monkeypatch.context() as outage:
        outage.setattr(store, "write", away)
        made = make(set())
        answered(made)
        assert made.poll_now()[0] == []
        answered(made)
    assert made.poll_now()[0] == []
    answered(made)
    assert [member.node for member in made.poll_now()[0]] == [this_node()]


def test_check_of_an_unresponsive_node_is_repeated(
    make: Callable[[Collection[str]], WorkerPool], store: Store, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as busy:
        busy.setattr(cluster, "NODE_CHECK_TIMEOUT_S", 0.0)
        assert check_nodes(store, []) == set()
        made = make(set())
        answered(made)
    assert made.poll_now()[0] == []
    answered(made)
    assert [member.node for member in made.poll_now()[0]] == [this_node()]


def test_unfit_node_gets_no_workers_and_no_second_check(
    make: Callable[[Collection[str]], WorkerPool], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster, "REQUIRED", ("no_such_module",))
    made = make(set())
    answered(made)
    assert made.poll_now()[0] == [] and made._checks == []


def test_node_with_another_version_is_reported_with_both_versions(
    on_ray: None, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    there = cluster._PACKAGE
    ours = Path(shutil.copytree(there, tmp_path / "graphrag_ray", ignore=shutil.ignore_patterns("*.pyc")))
    monkeypatch.setattr(cluster, "_PACKAGE", ours)
    assert check_nodes(store, []) == {this_node()}
    (ours / "version.py").write_text('__version__ = "9.9"')
    monkeypatch.setattr(cluster, "__version__", "9.9")
    with pytest.raises(UsageError) as told:
        check_nodes(store, [])
    assert f"would use {there}, version {__version__} instead of" in str(told.value)
    assert f"({ours}, version 9.9)" in str(told.value)


def test_checks_end_with_the_workers(
    make: Callable[[Collection[str]], WorkerPool],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    running = tmp_path / "running"

    def busy(*_: object) -> None:
        running.touch()
        time.sleep(600)

    monkeypatch.setattr(cluster, "_inspect_node", busy)
    made = make(set())
    until = time.monotonic() + 60
    while not running.exists() and time.monotonic() < until:
        time.sleep(0.01)
    made.close()
    assert asking() == []
    assert running.exists() and os.listdir(store.url) == []


def test_hanging_storage_does_not_keep_commands_from_ending(
    make: Callable[[Collection[str]], WorkerPool], store: Store, monkeypatch: pytest.MonkeyPatch
):
    back, probed, write = threading.Event(), list[str](), store.write

    def hang(path: str, data: bytes) -> None:
        back.wait(60)
        write(path, data)

    monkeypatch.setattr(worker_pool, "CLOSE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(store, "write", hang)
    monkeypatch.setattr(cluster, "_probe", probed.append)
    made = make(set())
    made.close()
    assert [thread.daemon for thread in asking()] == [True]
    back.set()
    answered(made)
    assert probed == []
