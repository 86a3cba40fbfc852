"""Which Ray there is to use, and whether this process is a job submitted to one. Does not import Ray, which
takes a second: a small run needs none."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

LISTENS_WITHIN_S = 3.0
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray for submitted jobs: what they were submitted with."""


def will_be_private(address: str | None = None) -> bool:
    """Whether `cluster.connected` would start a Ray of its own, whose workers have this process's
    environment: no cluster is named, this process is connected to none, and none was started here."""
    ray = sys.modules.get("ray")
    if address is not None or "RAY_ADDRESS" in os.environ or (ray is not None and ray.is_initialized()):
        return False
    # Where `ray start` made no cluster, `address="auto"` takes the private cluster of any other program that
    # it finds, another index run say, and loses it when that program ends. So we look ourselves.
    try:
        host, _, port = address_file().read_text("utf-8").strip().rpartition(":")
        # The file outlives a cluster that was killed, and Ray would look for that for minutes.
        with socket.create_connection((host, int(port)), timeout=LISTENS_WITHIN_S):
            return False
    except (OSError, ValueError):
        return True


def address_file() -> Path:
    """Where `ray start` writes the address of the cluster: as Ray's own `get_ray_address_file`."""
    linux, darwin = sys.platform.startswith("linux"), sys.platform.startswith("darwin")
    folder = os.environ.get("RAY_TMPDIR") or (os.environ.get("TMPDIR") if linux else None)
    return Path(
        folder or ("/tmp" if linux or darwin else tempfile.gettempdir()), "ray", "ray_current_cluster"
    )


def submitted() -> bool:
    """Whether this process is one: few see what it prints, or its exit code."""
    return JOB_CONFIG in os.environ
