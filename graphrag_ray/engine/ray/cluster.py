"""Connecting to Ray: the cluster that is there, or one of our own on this machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import ray
from ray._private import ray_constants

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.wording import without_colors
from graphrag_ray.engine.ray.discovery import address_file, will_be_private
from graphrag_ray.engine.ray.nodes import event_loop, own_package, runtime_environment

ANSWERS_WITHIN_S = 10.0
WHY_SHOWN = 300
"""Characters of Ray's own words."""

_CLUSTERS = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
_AUTH = "RAY_AUTH_MODE"
_log = logging.getLogger(__name__)


@contextmanager
def connected(address: str | None = None, *, serving: bool = False) -> Iterator[None]:
    """Ray, for as long as the block lasts.

    address: a cluster's address, or None: RAY_ADDRESS, else a cluster started on this machine with
    `ray start`, else a private one. What we start binds to 127.0.0.1 and sends no usage statistics. To the
    workers of a cluster that we did not start comes this very package with the connection (see `nodes.py`).
    serving: for Ray Serve
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A task that failed is told once, where its result is asked for, and not again for each thing it returns.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.callback(_restore_clusters, os.environ.get(_CLUSTERS), ray_constants.ENABLE_RAY_CLUSTER)
            _connect(address, serving)
            stack.callback(ray.shutdown)
        yield


def _connect(address: str | None, serving: bool) -> None:
    quiet = {"log_to_driver": not logs.as_json(), "logging_level": logging.ERROR}
    if will_be_private(address):
        _listen_on_loopback()
        try:
            with _handed_down(own_package() | ({} if serving else event_loop())), _with_a_token():
                ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, **quiet)
        except Exception as e:
            raise GraphRagError(_not_started(e)) from e
        return
    if address is None and "RAY_ADDRESS" not in os.environ:
        address = "auto"
    wanted = address or os.environ.get("RAY_ADDRESS")
    try:
        _look_for(wanted)
        ray.init(address=address, runtime_env=runtime_environment(serving), **quiet)
        if serving and os.environ.get(_AUTH, "token").lower() != "token":
            _log.warning(
                "the Ray cluster takes no token: whoever reaches its nodes can run code there, replicas of "
                "this service included. Start it with RAY_AUTH_MODE=token, or let nobody else reach its nodes"
            )
    except RuntimeError as e:
        if "ersion mismatch" not in str(e):
            raise
        told = " ".join(without_colors(str(e)).split())
        raise GraphRagError(f"the Ray cluster at {wanted!r} is not of this program's versions: {told}") from e
    except (OSError, ValueError) as e:
        if "AuthToken" in str(e.__cause__):
            raise GraphRagError(
                f"the Ray cluster at {wanted!r} wants a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
                "to its token unless that is in ~/.ray/auth_token."
            ) from e
        raise GraphRagError(
            f"no Ray cluster answers at {wanted!r} ({e}). Start one with `ray start --head`, or leave "
            "--address out to run on this machine."
        ) from e


def _not_started(error: Exception) -> str:
    """Why there is no private Ray, and what to do."""
    text = without_colors(str(error))
    why = "in time: it may be too busy" if "timed out during startup" in text else f"({text})"
    return (
        f"Ray did not start on this machine {' '.join(why.split())[:WHY_SHOWN]}. Try again, look into "
        f"{address_file().parent}/session_latest/logs, or do without: `graphrag-ray index --in-process`"
    )


def _look_for(address: str | None) -> None:
    """Raises OSError where nothing listens at host:port: Ray would say so in twenty warnings of its own."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_WITHIN_S).close()


def _listen_on_loopback() -> None:
    """What is started next, and its workers, listen on 127.0.0.1 alone.

    Asked for 127.0.0.1, Ray listens on all interfaces all the same, unless it takes this machine for one
    that cannot join others (as Windows and macOS are by default): so that is what it is told.
    """
    os.environ[_CLUSTERS] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _restore_clusters(variable: str | None, enabled: bool) -> None:
    """Undo `_listen_on_loopback`: the next connection may be to a cluster of many machines."""
    if variable is None:
        os.environ.pop(_CLUSTERS, None)
    else:
        os.environ[_CLUSTERS] = variable
    ray_constants.ENABLE_RAY_CLUSTER = enabled


@contextmanager
def _with_a_token() -> Iterator[None]:
    """A Ray that starts in the block takes a token, whatever the environment says of others: replicas of Ray
    Serve listen to each other on all interfaces, and would run what anybody sends there."""
    before = os.environ.pop(_AUTH, None)  # unset, Ray says "token", and makes one where there is none
    try:
        yield
    finally:
        if before is not None and _AUTH not in os.environ:
            os.environ[_AUTH] = before


@contextmanager
def _handed_down(variables: Mapping[str, str]) -> Iterator[None]:
    """What processes that are started in the block have in their environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
