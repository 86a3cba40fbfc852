"""Connecting to Ray: to an existing cluster, or to a private one on this machine.

An existing cluster may have another version of this package, or none. Its workers therefore get the driver's
copy through Ray's `py_modules`, and import it first (`pin_package`). Dependencies and local files cannot be
sent, so every node is checked for them, and for the driver's source code, before any money is spent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from threading import Event, Lock
from typing import Any

import ray
from ray import cloudpickle
from ray._private import ray_constants
from ray.exceptions import RayError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from graphrag_ray.base import logs
from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.urls import is_url
from graphrag_ray.base.wording import strip_ansi
from graphrag_ray.engine.ray import PINNED
from graphrag_ray.engine.ray.discovery import JOB_CONFIG, address_file, starts_private_ray
from graphrag_ray.store.files import Store
from graphrag_ray.version import __version__

NODE_CHECK_TIMEOUT_S = 120.0
"""Time limit for checking a node. A node that does not answer in time is no error, but stays unchecked."""
_POLL_S = 0.2

REQUIRED = ("graphrag_ray.engine.ray.worker", "graphrag_ray.indexing.run", "graphrag_ray.corpus.parse")
"""Modules that each node must be able to import."""

_PACKAGE = Path(__file__).parents[2]
_PICKLING = Lock()
"""Guards cloudpickle's process-wide registry of modules to pickle by value."""
_JOB_CODE = ("working_dir", "py_modules")
USE_UVLOOP = "RAY_USE_UVLOOP"
CONNECT_TIMEOUT_S = 10.0
MAX_REASON_CHARS = 300
"""Maximum number of characters to quote from an error message of Ray."""

_CLUSTERS = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
_AUTH = "RAY_AUTH_MODE"
_log = logging.getLogger(__name__)


@contextmanager
def connect(address: str | None = None, *, for_serve: bool = False) -> Iterator[None]:
    """Connect to Ray for the duration of the block.

    A private Ray binds to 127.0.0.1. Ray sends no usage statistics unless RAY_USAGE_STATS_ENABLED is set. For
    the environment of an existing cluster's workers, see `runtime_environment`.

    Args:
        address: Address of a cluster. None uses RAY_ADDRESS, a local `ray start`, or a private Ray, in order.
        for_serve: Whether to use Ray Serve.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Report a failed task once, where its result is requested, rather than once per returned object.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    with ExitStack() as stack:
        if not ray.is_initialized():
            if starts_private_ray(address):
                stack.enter_context(_listening_on_loopback())
                _start(for_serve)
            else:
                _connect(address, for_serve)
            stack.callback(ray.shutdown)
        yield


def _quiet() -> dict[str, Any]:
    return {"log_to_driver": not logs.as_json(), "logging_level": logging.ERROR}


def _start(serving: bool) -> None:
    """Start a private Ray.

    It always requires a token, even if RAY_AUTH_MODE disables tokens for other clusters: replicas of Ray
    Serve listen on all interfaces and would run any code sent to them.
    """
    env = {ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR: PINNED} | ({} if serving else event_loop())
    # Workers run in the driver's Python, so they find this package if it is installed.
    if _PACKAGE.parent.name not in ("site-packages", "dist-packages"):
        paths = (str(_PACKAGE.parent), os.environ.get("PYTHONPATH"))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    auth = os.environ.pop(_AUTH, None)  # when unset, Ray requires a token and creates it
    try:
        with _environment(env):
            ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, **_quiet())
    except Exception as e:
        text = strip_ansi(str(e))
        why = "in time: it may be too busy" if "timed out during startup" in text else f"({text})"
        raise GraphRagError(
            f"Ray did not start on this machine {' '.join(why.split())[:MAX_REASON_CHARS]}. Try again, look "
            f"at {address_file().parent}/session_latest/logs, or run `graphrag-ray index --in-process`."
        ) from e
    finally:
        if auth is not None:
            os.environ.setdefault(_AUTH, auth)


def _connect(address: str | None, serving: bool) -> None:
    if address is None and "RAY_ADDRESS" not in os.environ:
        address = "auto"
    target = address or os.environ.get("RAY_ADDRESS")
    try:
        # If nothing listens at host:port, Ray would print twenty warnings. Fail early instead.
        host, _, port = (target or "").rpartition(":")
        if host and port.isdigit() and "/" not in host:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
        ray.init(address=address, runtime_env=runtime_environment(serving), **_quiet())
        if serving and os.environ.get(_AUTH, "token").lower() != "token":
            _log.warning(
                "The Ray cluster requires no token: anyone who can connect to its nodes can run code there, "
                "even in replicas of this service. Start it with RAY_AUTH_MODE=token, or restrict its network"
            )
    except RuntimeError as e:
        if "ersion mismatch" not in str(e):
            raise
        why = " ".join(strip_ansi(str(e)).split())
        raise GraphRagError(
            f"The Ray cluster at {target!r} runs different versions than this program: {why}"
        ) from e
    except (OSError, ValueError) as e:
        if "AuthToken" in str(e.__cause__):
            raise GraphRagError(
                f"The Ray cluster at {target!r} requires a token. Set RAY_AUTH_MODE=token, and set "
                "RAY_AUTH_TOKEN to its token unless it is in ~/.ray/auth_token."
            ) from e
        raise GraphRagError(
            f"No Ray cluster answers at {target!r} ({e}). Start one with `ray start --head`, or omit "
            "--address to run on this machine."
        ) from e


@contextmanager
def _listening_on_loopback() -> Iterator[None]:
    """Make a Ray that is started in the block, and its workers, listen on 127.0.0.1 only.

    Even when asked for 127.0.0.1, Ray listens on all interfaces unless clusters are disabled, which is the
    default on Windows and macOS. The setting is restored because this process may later connect to a real
    cluster.
    """
    enabled = ray_constants.ENABLE_RAY_CLUSTER
    with _environment({_CLUSTERS: "0"}):
        ray_constants.ENABLE_RAY_CLUSTER = False
        try:
            yield
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = enabled


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process, and of processes started in the block."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def runtime_environment(serving: bool = False) -> dict[str, Any]:
    """Create the runtime environment for an existing cluster's workers.

    It contains this package, unless the driver is a submitted job with its own code. It also selects the
    event loop, unless Serve is used, because its proxies are faster with uvloop.
    """
    job_env = json.loads(os.environ.get(JOB_CONFIG, "{}")).get("runtime_env") or {}
    env: dict[str, Any] = {}
    if not any(job_env.get(name) for name in _JOB_CODE):
        env |= {"py_modules": [str(_PACKAGE)], "excludes": ["**/__pycache__/"]}
        if "worker_process_setup_hook" not in job_env:
            env["worker_process_setup_hook"] = PINNED
    if not serving and USE_UVLOOP not in (job_env.get("env_vars") or {}):
        env["env_vars"] = event_loop()
    return env


def event_loop() -> dict[str, str]:
    """Environment variables that make Ray's processes use asyncio's event loop, unless the user set another.

    Ray uses uvloop if it is installed. With it, aiohttp connections sometimes fail with unrelated errors or
    abort the process (https://github.com/aio-libs/aiohttp/issues/12336,
    https://github.com/libuv/libuv/pull/5129). Without it, a call takes 4% more CPU time.
    """
    return {USE_UVLOOP: os.environ.get(USE_UVLOOP, "0")}


_PROBLEMS = {
    "": "",
    "source": "Node {node} would use {detail} instead of this program's graphrag_ray ({ours}). Install the "
    "same version there, or start this program in another folder.",
    "packages": "Node {node} cannot run this program: {detail}. Install the dependencies of graphrag-ray in "
    "the Python environment of Ray on that node, or use `ray job submit --runtime-env-json "
    '\'{{"pip": ["graphrag-ray"]}}\'`.',
    "file": "The folder {folder} is not the same on node {node}. A cluster of several nodes needs an object "
    "store (s3://…, gs://…) or a file system that all nodes share.",
}
"""Error messages by the problem that `_inspect_node` found."""


def check_nodes(root: Store, inputs: Sequence[str]) -> set[str]:
    """Check that every node of the connected cluster can run this package and read these files.

    Returns the ids of the nodes that passed. Nodes that did not answer in time are not included.

    Raises:
        UsageError: A node lacks packages, would run other code, or has another folder at a local path.
    """
    answers = inspect_nodes(root, inputs)
    for why in filter(None, answers.values()):
        raise UsageError(why)
    return set(answers)


def inspect_nodes(
    root: Store, inputs: Sequence[str], ids: Collection[str] | None = None, cancelled: Event | None = None
) -> dict[str, str]:
    """Check all nodes, or only those with the given ids. Returns an error message or "" by node id.

    Stops as soon as `cancelled` is set: Ray may then be shut down, and calling it would start another.
    """
    cancelled = cancelled or Event()
    nodes = [n for n in ray.nodes() if n["Alive"] and (ids is None or n["NodeID"] in ids)]
    own_node = ray.get_runtime_context().get_node_id()
    with _marker_file(root) as marker:
        sizes = {path: os.path.getsize(path) for path in filter(None, (marker, *inputs))}
        source = _hash_source(_PACKAGE)
        if cancelled.is_set():
            return {}
        probes = {
            _probe(node["NodeID"]).remote(
                _requirements(), REQUIRED, {} if node["NodeID"] == own_node else sizes, source
            ): node
            for node in nodes
        }
        waiting, deadline = list(probes), time.monotonic() + NODE_CHECK_TIMEOUT_S
        while waiting and time.monotonic() < deadline and not cancelled.is_set():
            waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)[1]
        for ref in waiting:
            ray.cancel(ref)
        answers = {}
        for ref, node in probes.items():
            try:
                problem, detail = ray.get(ref, timeout=0)
            except RuntimeEnvSetupError as e:
                why = strip_ansi(str(e)).splitlines()[0]
                problem, detail = "packages", f"its runtime environment cannot be set up ({why})"
            except RayError:  # no answer in time, or the node is gone
                continue
            is_index = detail == marker
            answers[node["NodeID"]] = _PROBLEMS[problem].format(
                node=f"{node['NodeName']} ({node['NodeManagerHostname']})",
                detail=detail,
                ours=f"{_PACKAGE}, version {__version__}",
                folder=f"{root.url} (index)" if is_index else f"{os.path.dirname(detail)} (INPUT)",
            )
    return answers


@contextmanager
def _marker_file(root: Store) -> Iterator[str | None]:
    """Create a file in a local root, under a name that listings skip. Yields None for a remote root."""
    if is_url(root.url):
        yield None
        return
    name = f".tmp-node-check-{secrets.token_hex(8)}"
    root.write(name, name.encode())
    try:
        yield root.url_of(name)
    finally:
        root.delete(name)


def _probe(node: str) -> Any:
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    # The node may not have this module, so send the function by value.
    module = sys.modules[__name__]
    with _PICKLING:
        cloudpickle.register_pickle_by_value(module)
        try:
            function = cloudpickle.loads(cloudpickle.dumps(_inspect_node))
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(function)


def _requirements() -> list[str]:
    """Names of the required dependencies. Empty if this package is not installed but run from a folder."""
    try:
        lines = metadata.requires("graphrag-ray") or []
    except metadata.PackageNotFoundError:
        return []
    return [name[0] for line in lines if "extra ==" not in line and (name := re.match(r"[\w.-]+", line))]


def _inspect_node(
    distributions: Sequence[str], modules: Sequence[str], sizes: dict[str, int], source: str
) -> tuple[str, str]:
    """Check the node on which this runs. Returns the first problem, a key of _PROBLEMS, with a detail."""
    import importlib.util
    import os
    from importlib import metadata
    from pathlib import Path

    spec = importlib.util.find_spec("graphrag_ray")
    if spec and spec.origin and _hash_source(Path(spec.origin).parent) != source:
        package = Path(spec.origin).parent
        file = package / "version.py"
        version = re.search('__version__ = "(.+)"', file.read_text("utf-8") if file.is_file() else "")
        return "source", f"{package}, version {version[1] if version else 'unknown'}"
    missing = []
    for name in distributions:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return "packages", f"{', '.join(missing)} not installed"
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as e:  # noqa: BLE001 - any error here would crash a worker
            return "packages", f"{type(e).__name__}: {e}"
    for path, size in sizes.items():
        if not os.path.isfile(path) or os.path.getsize(path) != size:
            return "file", path
    return "", ""


def _hash_source(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
