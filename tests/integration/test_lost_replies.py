"""Broken connections between living processes, so that replies to all kinds of calls are lost.

This uses a separate Ray cluster with a driver in another process, so that the driver is affected, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from endpoint import Answer, Endpoint, Response, Status

pytestmark = pytest.mark.cluster

ITEMS = 60
LOST = {
    "CoreWorkerService.grpc_client.PushTask": {
        "num_failures": 4,
        "req_failure_prob": 5,
        "resp_failure_prob": 20,
        "in_flight_failure_prob": 5,
    }
}
"""In each process: Ray's own fault injection."""


def test_lost_replies_between_processes_cost_neither_the_run_nor_a_call(tmp_path: Path):
    answered: Counter[str] = Counter()

    def respond(body: dict[str, Any]) -> Response:
        answered[body["messages"][-1]["content"]] += 1
        return Answer("an answer", delay_s=0.1)

    def fails(body: dict[str, Any]) -> Response:
        """Fail every other call: a retry asks the limiter while others wait, so two requests are open."""
        return Status(500, "overloaded") if next(number) % 2 else respond(body)

    number = count()
    with Endpoint(respond) as endpoint, Endpoint(fails) as failing:
        ran = subprocess.run(
            [sys.executable, __file__, endpoint.base_url, failing.base_url, str(tmp_path / "index")],
            env=os.environ | {"RAY_testing_rpc_failure": json.dumps(LOST)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-2:] == [f"finished={ITEMS}", "failed=0"]
    log = ran.stdout + ran.stderr
    assert "worker joined" in log
    assert not [end for end in ("coordinator lost", "worker lost", "worker cut off") if end in log]
    assert len(answered) == ITEMS and set(answered.values()) == {1}
    assert len(failing.bodies()) > 10


def main(*given: str) -> None:
    *base_urls, root = given

    from echo import WORK
    from listed import Listed

    from graphrag_ray.base import logs
    from graphrag_ray.base.settings_file import parse_settings
    from graphrag_ray.engine.model_access import Models
    from graphrag_ray.engine.ray.cluster import connect
    from graphrag_ray.engine.ray.ray_executor import RayExecutor
    from graphrag_ray.store.files import Store
    from graphrag_ray.store.journal import JournalIndex

    logs.configure(level="info")
    endpoints = [{"base_url": url, "api_key_env": None, "max_in_flight": 2} for url in base_urls]
    model = {"provider": "openai", "model": "m", "endpoints": endpoints}
    store, models = Store(root), Models.from_settings(parse_settings({"models": {"default": model}}))
    source = Listed([f"item {i}" for i in range(ITEMS)])
    with connect("local"):
        executor = RayExecutor(store, models, journal_flush_s=0.2, workers_per_node=2)
        executor.sweep(WORK, source, JournalIndex.load(store, WORK.name))
        executor.close()
    outcomes = source.outcomes.values()
    print(f"finished={len(outcomes)}", f"failed={sum(o.status != 'complete' for o in outcomes)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
