"""The private cluster that a run starts where there is no other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import ray

PRINT_ADDRESS = """
import ray
from graphrag_ray.distributed.cluster import connected
with connected():
    print("at", ray.get_runtime_context().gcs_address)
"""


def test_two_programs_on_one_machine_have_a_private_cluster_each_which_only_this_machine_can_reach(
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


def test_an_address_at_which_nothing_listens_is_told_in_one_message():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = f"""
from graphrag_ray.distributed.cluster import connected
from graphrag_ray.errors import GraphRagError
try:
    with connected({address!r}):
        pass
except GraphRagError as e:
    print(e)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert f"no Ray cluster answers at '{address}'" in done.stdout
    assert done.stderr == ""
