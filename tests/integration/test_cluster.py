"""The private cluster that a run starts by default, and the code that a run brings to an existing cluster."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray

import graphrag_ray
from graphrag_ray.engine.ray.cluster import runtime_environment

PACKAGE = Path(graphrag_ray.__file__).parent
PRINT_ADDRESS = """
import ray
from graphrag_ray.engine.ray.cluster import connect
with connect():
    print("at", ray.get_runtime_context().gcs_address)
"""


def test_private_clusters_are_separate_and_listen_on_this_machine_only(
    on_ray: None,
):
    environment = {
        k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    }
    done = subprocess.run(
        [sys.executable, "-c", PRINT_ADDRESS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (other,) = [line.removeprefix("at ") for line in done.stdout.splitlines() if line.startswith("at ")]
    assert other != ray.get_runtime_context().gcs_address
    assert other.startswith("127.0.0.1:")


@pytest.mark.cluster
def test_address_without_a_cluster_is_reported_in_one_message():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = f"""
from graphrag_ray.engine.ray.cluster import connect
from graphrag_ray.base.errors import GraphRagError
try:
    with connect({address!r}):
        pass
except GraphRagError as e:
    print(e)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert f"No Ray cluster answers at '{address}'" in done.stdout
    assert done.stderr == ""


def test_workers_get_the_drivers_package_unless_a_job_brings_its_code(
    monkeypatch: pytest.MonkeyPatch,
):
    variable = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it like this for submitted jobs.
    monkeypatch.delenv(variable, raising=False)
    brought = runtime_environment()
    (package,) = brought["py_modules"]
    assert (Path(package) / "base" / "settings.yaml").is_file() and Path(package).name == "graphrag_ray"
    assert "worker_process_setup_hook" in brought, "it is imported before what is in the current folder"
    monkeypatch.setenv(variable, json.dumps({"runtime_env": {"env_vars": {"A": "b"}}, "metadata": {}}))
    assert runtime_environment() == brought
    monkeypatch.setenv(variable, json.dumps({"runtime_env": {"working_dir": "gcs://_ray_pkg.zip"}}))
    assert runtime_environment() == {"env_vars": {"RAY_USE_UVLOOP": "0"}}
    assert runtime_environment(serving=True) == {}


@pytest.mark.cluster
def test_workers_import_the_drivers_package_from_any_current_folder(tmp_path: Path):
    (tmp_path / "graphrag_ray").mkdir()
    (tmp_path / "graphrag_ray" / "__init__.py").write_text("raise SystemExit('another version')")
    script = """
import ray
import graphrag_ray
from graphrag_ray.engine.ray.cluster import connect

def imported():
    import graphrag_ray.engine.ray.worker
    return graphrag_ray.__file__

with connect():
    print(graphrag_ray.__file__, ray.get(ray.remote(max_retries=0)(imported).remote()))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.split() == [str(PACKAGE / "__init__.py")] * 2


def test_event_loop_setting_of_a_job_is_not_overridden(monkeypatch: pytest.MonkeyPatch):
    """Ray rejects a variable that is set twice."""
    chosen = {"working_dir": "gcs://_ray_pkg.zip", "env_vars": {"RAY_USE_UVLOOP": "1"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": chosen}))
    assert runtime_environment() == {}


def test_workers_use_the_asyncio_event_loop(on_ray: None):
    pytest.importorskip("uvloop")

    class Worker:
        async def event_loop(self) -> str:
            return type(asyncio.get_running_loop()).__module__

    worker = ray.remote(num_cpus=0)(Worker).remote()
    assert ray.get(worker.event_loop.remote()).startswith("asyncio.")


@pytest.mark.cluster
def test_private_cluster_requires_a_token_despite_the_environment(tmp_path: Path):
    """Replicas of Ray Serve listen on all interfaces."""
    script = """
import os
import ray
from graphrag_ray.engine.ray.cluster import connect
with connect():
    mode = ray.remote(lambda: os.environ["RAY_AUTH_MODE"]).remote()
    print(os.environ["RAY_AUTH_MODE"], ray.get(mode))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)},
    )
    assert done.stdout.split() == ["token", "token"]
    assert (tmp_path / ".ray" / "auth_token").exists()
