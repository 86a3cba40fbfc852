"""Connecting to Ray: the cluster that is there, or one of our own on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.data import DataContext

from graphrag_ray.errors import GraphRagError


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Ray, for as long as the block lasts.

    address: a cluster's address, or None: RAY_ADDRESS, else a cluster started on this machine with
    `ray start`, else a private one. What we start binds to 127.0.0.1 and sends no usage statistics.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers print our own warnings through the driver; Ray's progress bars would fight ours.
    if not ray.is_initialized():
        _connect(address)
        ours = True
    else:
        ours = False
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


def _connect(address: str | None) -> None:
    quiet = {"log_to_driver": True, "logging_level": logging.ERROR}
    if address is None and "RAY_ADDRESS" not in os.environ:
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            ray.init(_node_ip_address="127.0.0.1", include_dashboard=False, **quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError) as e:
        wanted = address or os.environ.get("RAY_ADDRESS")
        raise GraphRagError(
            f"no Ray cluster answers at {wanted!r} ({e}). Start one with `ray start --head`, or leave "
            "--address out to run on this machine."
        ) from e
