"""Finds out which Ray to use, and whether this process is a submitted job.

Does not import Ray, because that takes a second.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

CONNECT_TIMEOUT_S = 3.0
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable that Ray sets for submitted jobs, with their configuration."""


def starts_private_ray(address: str | None = None) -> bool:
    """Whether `cluster.connect` would start a private Ray, whose workers inherit this process's environment.

    It does if no address is given, this process is not connected to Ray, and no Ray was started on this
    machine.
    """
    if address is not None or "RAY_ADDRESS" in os.environ or _is_connected():
        return False
    # Without `ray start`, `address="auto"` would join the private cluster of any other program, such as
    # another index run, and lose it when that program ends. So check the address file here.
    try:
        host, _, port = address_file().read_text("utf-8").strip().rpartition(":")
        # The file remains after a cluster is killed, and Ray would try to connect to it for minutes.
        with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S):
            return False
    except (OSError, ValueError):
        return True


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def address_file() -> Path:
    """The file to which `ray start` writes the cluster's address (Ray's `get_ray_address_file`)."""
    linux, darwin = sys.platform.startswith("linux"), sys.platform.startswith("darwin")
    folder = os.environ.get("RAY_TMPDIR") or (os.environ.get("TMPDIR") if linux else None)
    return Path(
        folder or ("/tmp" if linux or darwin else tempfile.gettempdir()), "ray", "ray_current_cluster"
    )


def is_submitted_job() -> bool:
    """Whether this process is a submitted job, whose output and exit code are less visible."""
    return JOB_CONFIG in os.environ
