"""Nodes join a cluster or are drained during a run.

As in `test_kills.py`, which kills a node without notice, everything runs as separate processes, and the log
of the simulated endpoint shows what was paid twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import killing
import pytest
from simulated import endpoint
from world import Silent

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.indexing.index import index
from graphrag_ray.store.files import Store

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).parents[2]
IN_FLIGHT = 4
SLOW_S = 2.5
"""A call's latency until the cluster has changed as it shall."""
NOTICE_S = 20
"""Between a node's notice and its end."""
SMALL_CHUNKS = {"size": 75, "overlap": 0, "min_last_chunk_tokens": 10}
"""Some 60 of them, so that asking lasts."""

DRAIN = """
import sys, time
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
address, name, notice_s = sys.argv[1:]
cluster = GcsClient(address=address)
(node,) = [id_.hex() for id_, info in cluster.get_all_node_info().items() if info.node_name == name]
deadline_ms = int((time.time() + float(notice_s)) * 1000)
preempted = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
taken, why = cluster.drain_node(node, preempted, "spot", deadline_ms)
assert taken, why
"""
"""What a cloud's notice to a spot node becomes."""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for document in sorted((REPOSITORY / "demo" / "corpus").iterdir())[:8]:
        (folder / document.name).write_bytes(document.read_bytes())
    return folder


@pytest.fixture
def cluster() -> Iterator[killing.Cluster]:
    """A head without CPUs, as is usual on Kubernetes. The GCS considers a node dead after two seconds."""
    sooner = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}
    with killing.cluster(sooner) as made:
        made.start_node("--num-cpus=0", "--node-name=head")
        yield made


class Journal:
    """Which workers have journalled replies. They are numbered in the order in which they were started."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "work"

    def workers(self) -> set[int]:
        return {int(part.name.split("-")[-4]) for part in self._folder.glob("*/part-*.parquet")}


def undisturbed(corpus: Path, root: Path, url: str) -> dict[str, list[str]]:
    """The parts of each table of a run in one process."""
    at = {"base_url": url, "api_key_env": None, "max_in_flight": IN_FLIGHT}
    model = {"provider": "openai", "model": "simulated", "endpoints": [at]}
    given = {"models": {"default": model}, "chunking": SMALL_CHUNKS, "embeddings": {"enabled": False}}
    settings = parse_settings(given)
    index(str(corpus), LocalExecutor(Store(str(root)), Models.from_settings(settings)), settings, Silent())
    return killing.parts_of(root)


def wait_for(what: Callable[[], object], run: killing.Run, within_s: float = 120.0) -> None:
    until = time.monotonic() + within_s
    while not what():
        assert run.alive and time.monotonic() < until, "\n".join(run.printed)
        time.sleep(0.05)


def set_latency(url: str, seconds: float) -> None:
    data = json.dumps({"latency": seconds}).encode()
    request = urllib.request.Request(url.removesuffix("/v1") + "/settings", data)
    urllib.request.urlopen(request).close()


def roles(session: int) -> set[str]:
    return {process.role for process in killing.processes([session])}


def test_a_new_node_helps_and_a_drained_node_loses_nothing(
    cluster: killing.Cluster, corpus: Path, tmp_path: Path
):
    root, log = tmp_path / "index", tmp_path / "log.jsonl"
    with endpoint("--latency=0", "--embedding-s=0") as url:
        expected = undisturbed(corpus, tmp_path / "undisturbed", url)
    first = cluster.start_node("--node-name=first")
    with endpoint(f"--latency={SLOW_S}", "--embedding-s=0.1", "--log", str(log)) as url:
        more = [
            "--max-in-flight",
            str(IN_FLIGHT),
            "--address",
            cluster.address,
            "--set",
            "run.journal_flush_s=0.5",
        ]
        more += ["--set=embeddings.enabled=false"]
        more += [f"--set=chunking.{name}={value}" for name, value in SMALL_CHUNKS.items()]
        command = killing.index_command(corpus, root, url, *more, small_partitions=False)
        run = killing.Run(command, {**cluster.env, "PYTHONPATH": str(REPOSITORY)})
        journal = Journal(root)
        wait_for(lambda: journal.workers() == {0, 1}, run)
        # A head without CPUs runs only what the driver needs on its node.
        assert "limiter" in roles(cluster.nodes[0].pid)
        assert "worker" not in roles(cluster.nodes[0].pid)

        cluster.start_node("--node-name=second")
        wait_for(lambda: journal.workers() & {2, 3}, run)

        drained_at = time.time()
        drain = [sys.executable, "-c", DRAIN, cluster.address, "first", str(NOTICE_S)]
        subprocess.run(drain, env={**os.environ, **cluster.env}, check=True, capture_output=True)
        wait_for(lambda: "worker" not in roles(first), run)
        assert time.time() < drained_at + NOTICE_S + 10
        cluster.kill_node(first)
        set_latency(url, 0.05)
        assert run.wait() == 0, "\n".join(run.printed)
    assert killing.parts_of(root) == expected
    assert killing.paid_again(log, []).answers == 0, "a node with notice loses nothing"
