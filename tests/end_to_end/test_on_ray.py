"""Complete runs on a real Ray: the command in its own process, killed workers, killed drivers, keys."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_model
from click.testing import CliRunner, Result
from endpoint import Answer
from world import TOWN, World, everything

from graphrag_ray.base.errors import ModelUnavailable
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.cli.command_line import main
from graphrag_ray.engine.model_access import Models
from graphrag_ray.indexing.index import IndexResult, index
from graphrag_ray.indexing.status import index_status

pytestmark = pytest.mark.cluster

DEMO = Path(__file__).parents[2] / "demo" / "corpus"
DEEP = {
    "communities": {"max_size": 3, "pack_components_below": 1},
    "reports": {"context_tokens": 600},
    "claims": {"enabled": True},
}
NO_EMBEDDINGS = {"embeddings": {"enabled": False}}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "graphrag_ray", *(str(a) for a in arguments)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def people(n: int) -> dict[str, str]:
    name = [f"{chr(65 + i // 26)}{chr(65 + i % 26)}X" for i in range(n + 3)]
    return {
        f"{i:02}.txt": f"{name[i]} knows {name[i + 1]}. {name[i]} wrote to {name[i + 1 + i % 3]}."
        for i in range(n)
    }


def asked_twice(world: World) -> list[float]:
    """When requests that were sent twice came first, in time.monotonic(), a little late under load."""
    first: dict[str, float] = {}
    again = []
    for r in world.endpoint.requests:
        body = json.dumps(r.body, sort_keys=True)
        if body in first:
            again.append(first[body])
        first.setdefault(body, r.at)
    return again


def tables_in_process(world: World, **changes: Any) -> dict[str, Any]:
    """The tables of the in-process executor for the documents of the world. Empties the world afterwards."""
    world.index(**changes)
    tables = everything(world.open())
    world.forget()
    world.endpoint.requests.clear()
    return tables


@pytest.fixture
def on_cluster(on_ray: None, world: World) -> Iterator[Callable[..., IndexResult]]:
    """Index the world on the session's cluster. `watching(executor)` is called before."""
    from graphrag_ray.engine.ray.ray_executor import RayExecutor

    made: list[Any] = []

    def build(watching: Callable[[Any], None] = lambda executor: None, **changes: Any) -> IndexResult:
        settings: Settings = world.settings(**changes)
        limit, journal_flush_s = settings.run.max_failed_fraction, settings.run.journal_flush_s
        executor = RayExecutor(world.store, Models.from_settings(settings), limit, journal_flush_s)
        made.append(executor)
        executor.start()
        watching(executor)
        return index(str(world.input), executor, settings, world.observer, now=lambda: 1_700_000_000.0)

    yield build
    for executor in made:
        executor.close()


def test_the_demo_corpus_through_the_command_line_with_the_offline_engine(on_ray: None, tmp_path: Path):
    documents = sorted(DEMO.iterdir())[:10]
    corpus, root = tmp_path / "corpus", tmp_path / "index"
    corpus.mkdir()
    for d in documents:
        shutil.copy(d, corpus)
    done = run("index", corpus, "--root", root, "--ray", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["committed"] and told["counts"]["documents"] == 10 and told["counts"]["failures"] == 0
    assert told["counts"]["entities"] > 30 and told["counts"]["reports"] > 1
    assert "offline" in told["notes"]

    asked = run("query", "What are the main themes?", "--root", root, "--json")
    assert asked.exit_code == 0, asked.stderr
    answer = json.loads(asked.stdout)
    assert answer["found"] and len(answer["references"]) > 1
    names = {d.name for d in documents}
    for source in answer["sources"]:
        assert source["chunks"] and {c["document"] for c in source["chunks"]} <= names


def test_both_executors_give_the_same_tables(world: World, on_cluster: Callable[..., IndexResult]):
    names = "PROFESSOR BERTA VISCONTI met ALICE. BERTA VISCONTI met MARIO VISCONTI."
    full = "MARIO ENZO VISCONTI met ALICE."
    world.write(TOWN | people(20) | {"names.txt": names, "full.txt": full})
    changes = DEEP | {
        "resolution": {"mode": "model"},
        "chunking": {"size": 12, "overlap": 4, "min_last_chunk_tokens": 2},
    }
    expected = tables_in_process(world, **changes)
    done = on_cluster(**changes)
    assert done.failed == 0
    assert everything(world.open()) == expected
    assert {"title", "model"} <= {row["rule"] for row in expected["resolutions"]}
    asked = len(world.endpoint.requests)
    assert not on_cluster(**changes).committed and len(world.endpoint.requests) == asked


def test_a_killed_worker_is_replaced_and_nothing_is_missing(
    world: World, on_cluster: Callable[..., IndexResult]
):
    import ray

    world.write(people(40))
    changes = DEEP | NO_EMBEDDINGS
    expected = tables_in_process(world, **changes)
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.05)
    killed: list[float] = []

    def kill_one(executor: Any) -> None:
        worker = next(iter(executor._pool.members.values())).actor
        pid = ray.get(worker.__ray_call__.remote(lambda actor: os.getpid()))

        def when_it_works() -> None:
            while len(world.endpoint.requests) < 30:
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            killed.append(time.monotonic())

        threading.Thread(target=when_it_works, daemon=True).start()

    done = on_cluster(kill_one, **changes)
    assert killed and done.failed == 0
    assert everything(world.open()) == expected
    early = [at - killed[0] for at in asked_twice(world)]
    assert all(-5 < at < 1 for at in early), ("in flight, or not yet journalled", early)


def test_a_killed_run_resumes(world: World, on_cluster: Callable[..., IndexResult]):
    world.write(people(60))
    expected = tables_in_process(world, **NO_EMBEDDINGS)
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.2)
    options = ["--model", "m", "--base-url", world.endpoint.base_url, "--max-in-flight", 3]
    options += ["--set", "models.default.endpoints.0.api_key_env=null"]
    driver = subprocess.Popen(
        command("index", world.input, "--root", world.root, "--ray", *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while len(world.endpoint.requests) < 50 and time.monotonic() < until:
        time.sleep(0.02)
    killed = time.monotonic()
    driver.kill()
    driver.wait()
    assert world.snapshots() == []
    time.sleep(1.0)  # Its workers die with it.
    found = index_status(world.store)
    assert found["writer"] is None and [j["stage"] for j in found["journal"]] == ["extract"]
    paid = world.asked()
    assert 50 <= paid < 120
    world.endpoint.respond = toy_model.respond
    assert on_cluster(**NO_EMBEDDINGS).failed == 0
    assert everything(world.open()) == expected
    assert all(at > killed - 5 for at in asked_twice(world)), "in flight, or not yet journalled"
    assert len(asked_twice(world)) < paid


def test_a_key_of_the_driver_reaches_the_workers_and_is_written_nowhere(
    world: World, on_cluster: Callable[..., IndexResult], monkeypatch: pytest.MonkeyPatch
):
    key = "sk-only-the-driver-knows-this"
    monkeypatch.setenv("GRAPHRAG_TEST_ONLY_HERE", key)
    world.endpoint.key = key
    world.write(TOWN)
    given = {"base_url": world.endpoint.base_url, "api_key_env": "GRAPHRAG_TEST_ONLY_HERE"}
    model = {"provider": "openai", "model": "m", "endpoints": [given]}
    assert on_cluster(models={"default": model}, **NO_EMBEDDINGS).failed == 0
    for info in world.store.list():
        assert key.encode() not in world.store.read(info.path), info.path


def test_a_missing_key_is_reported_with_variable_and_node(
    world: World, on_cluster: Callable[..., IndexResult], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GRAPHRAG_TEST_NOWHERE", raising=False)
    world.write(TOWN)
    given = {"base_url": world.endpoint.base_url, "api_key_env": "GRAPHRAG_TEST_NOWHERE"}
    model = {"provider": "openai", "model": "m", "endpoints": [given]}
    with pytest.raises(ModelUnavailable, match="GRAPHRAG_TEST_NOWHERE is not set") as refused:
        on_cluster(models={"default": model})
    assert socket.gethostname() in str(refused.value) and world.asked() == 0


def test_a_budget_stops_a_run_on_ray_with_exit_code_4(world: World, on_ray: None):
    world.write(people(60))
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.05)
    options = ["--model", "m", "--base-url", world.endpoint.base_url, "--max-in-flight", "4"]
    options += ["--set", "models.default.endpoints.0.api_key_env=null", "--set", "run.journal_flush_s=0.2"]
    command = ["index", str(world.input), "--root", str(world.root), "--ray", *options]
    result = CliRunner().invoke(main, [*command, "--set", "budget.max_total_tokens=30000"])
    assert result.exit_code == 4 and "budget.max_total_tokens" in result.stderr
    assert world.asked() < 100 and world.snapshots() == []
