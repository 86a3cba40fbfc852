"""Drivers, actors and whole nodes of a real cluster, whose Python lacks this package, are killed at any
moment. Nodes, the command and the simulated endpoint of the benchmarks, whose log shows what was paid
twice, run as separate processes. They are killed with SIGKILL."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import killing
import pytest
from simulated import endpoint, get
from world import Silent

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.indexing.index import index
from graphrag_ray.indexing.stages import merge_stage
from graphrag_ray.store.files import Store

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted((REPOSITORY / "demo" / "corpus").iterdir())[:14]
IN_FLIGHT = 8
LATENCY_S = 0.4
USUAL_S = dict.fromkeys(("start", *killing.STEPS), 1.0) | {"commit": 0.2}
"""Seconds of a step within which a kill falls. Whether that is early or late makes no difference to what is
asserted; on a slow machine it is early."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for document in DOCUMENTS:
        (folder / document.name).write_bytes(document.read_bytes())
    return folder


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[str]]:
    """The parts of each table of an undisturbed run in one process."""
    root = tmp_path_factory.mktemp("undisturbed")
    with endpoint("--latency=0", "--embedding-s=0") as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_stage, "RANGE_ROWS", dict.fromkeys(merge_stage.RANGE_ROWS, 100))
        given = {"base_url": url, "api_key_env": None, "max_in_flight": IN_FLIGHT}
        model = {"provider": "openai", "model": "simulated", "endpoints": [given]}
        settings = parse_settings({"models": {"default": model}})
        index(
            str(corpus), LocalExecutor(Store(str(root)), Models.from_settings(settings)), settings, Silent()
        )
    return killing.parts_of(root)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with all packages of this one except ours."""
    return python_with(tmp_path_factory.mktemp("python"))


def python_with(folder: Path, *without: str) -> str:
    """A Python with the packages of this one except ours and those whose names begin with `without`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for packages in (Path(p) for p in sys.path if p.endswith("-packages")):
        for package in packages.iterdir():
            # An editable install has only a .pth file.
            if package.suffix != ".pth" and not package.name.startswith(("graphrag_ray", *without)):
                (site / package.name).symlink_to(package)
    return str(folder / "bin" / "python")


def without_us() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def cluster(bare_python: str) -> Iterator[killing.Cluster]:
    """One node whose Python lacks this package."""
    with killing.cluster(without_us()) as made:
        made.start_node(python=bare_python)
        yield made


@pytest.fixture
def more(cluster: killing.Cluster, bare_python: str) -> Iterator[Callable[[str], int]]:
    """Start one more node. Returns its session."""
    sessions: list[int] = []

    def start(name: str) -> int:
        sessions.append(cluster.start_node(f"--node-name={name}", python=bare_python))
        return sessions[-1]

    yield start
    for session in sessions:
        cluster.kill_node(session)


class Fired:
    """An index built on the cluster while processes are killed, and a log of the kills."""

    def __init__(self, cluster: killing.Cluster, corpus: Path, folder: Path) -> None:
        self.cluster, self.closing, self.log = cluster, ExitStack(), folder / "log.jsonl"
        options = [f"--latency={LATENCY_S}", f"--embedding-s={LATENCY_S}", "--log", str(self.log)]
        self.url = self.closing.enter_context(endpoint(*options))
        more = [
            "--max-in-flight",
            str(IN_FLIGHT),
            "--address",
            cluster.address,
            "--set",
            "run.journal_flush_s=0.5",
        ]
        self.command = killing.index_command(corpus, folder / "index", self.url, *more)
        self.kills: list[float] = []

    def start(self) -> killing.Run:
        return killing.Run(self.command, {**self.cluster.env, "PYTHONPATH": str(REPOSITORY)})

    def kill(self, run: killing.Run, step: str, share: float, victims: Callable[[], Any]) -> None:
        assert run.wait_for(step, share, USUAL_S), run.printed
        at = time.time()
        while not killing.kill(victims()):
            assert run.alive, run.printed
            time.sleep(0.01)
            at = time.time()
        self.kills.append(at)

    def paid_late(self) -> list[str]:
        """Calls paid twice although they had been answered more than five seconds before the kill."""
        self.closing.close()  # The log is complete by then.
        return killing.paid_again(self.log, self.kills).late

    def kill_driver(self, run: killing.Run, step: str, share: float) -> None:
        self.kill(run, step, share, lambda: [killing.Process(run.session, "leader")])
        assert run.wait() == -9


@pytest.fixture
def fired(cluster: killing.Cluster, corpus: Path, tmp_path: Path) -> Iterator[Fired]:
    made = Fired(cluster, corpus, tmp_path)
    yield made
    made.closing.close()


def test_kills_in_any_step_do_not_change_the_index(
    fired: Fired,
    cluster: killing.Cluster,
    more: Callable[[str], int],
    undisturbed: Mapping[str, Sequence[str]],
    tmp_path: Path,
):
    """Three runs: the first ends early; the second loses a node and actors and ends at its commit."""
    rng, head, second = Random(20261122), cluster.nodes[0].pid, more("second")
    fired.kill_driver(fired.start(), "extract", rng.random() / 3)
    run = fired.start()
    fired.kill(run, "extract", rng.random() / 3, lambda: killing.processes([second]))
    for step, role in (("describe", "limiter"), ("reports", "worker"), ("embed", "worker")):
        found = lambda role=role: killing.one_of(killing.processes([head]), role, rng)  # noqa: E731
        fired.kill(run, step, rng.random() / 3, found)  # A step may be over within a second.
    fired.kill_driver(run, "commit", rng.random())
    last = fired.start()
    assert last.wait() == 0, last.printed
    assert killing.parts_of(tmp_path / "index") == undisturbed
    assert fired.paid_late() == []


def test_an_unshared_folder_is_reported_before_any_call(
    fired: Fired, cluster: killing.Cluster, bare_python: str, corpus: Path, tmp_path: Path
):
    alone = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {tmp_path} && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    session = cluster.start_node("--node-name=apart", "--num-cpus=0", python=bare_python, within=alone)
    try:
        run = fired.start()
        assert run.wait() == 2
    finally:
        cluster.kill_node(session)
    assert "is not the same on node apart" in run.printed[-1] and str(tmp_path / "index") in run.printed[-1]
    assert get(fired.url)["requests"] == 0
    assert list((tmp_path / "index").iterdir()) == []


def test_a_node_without_a_package_is_named(
    fired: Fired, cluster: killing.Cluster, bare_python: str, tmp_path: Path
):
    python = python_with(tmp_path / "python", "quicktok")
    session = cluster.start_node("--node-name=poor", "--num-cpus=0", python=python)
    try:
        run = fired.start()
        assert run.wait() == 2
    finally:
        cluster.kill_node(session)
    assert "ode poor" in run.printed[-1] and "quicktok-v1 not installed" in run.printed[-1]
