"""Connecting to Ray: the cluster that is there, or one of our own on this machine.

A cluster that others started may have another version of this package, or none. So its workers get the
driver's own, as Ray's `py_modules`, and import it before anything else (`pin_package`). What they need
besides, Python packages and files at local paths, cannot be brought: every node is asked for it before
anything is spent, and whether it imports the driver's source.
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
from graphrag_ray.base.wording import without_colors
from graphrag_ray.engine.ray import PINNED
from graphrag_ray.engine.ray.discovery import JOB_CONFIG, address_file, will_be_private
from graphrag_ray.store.files import Store
from graphrag_ray.version import __version__

LOOKED_AT_WITHIN_S = 120.0
"""A node that has not answered by then may be busy, or dead: it ends nothing, and is not known to be fit."""
_LOOK_S = 0.2

IMPORTED = ("graphrag_ray.engine.ray.worker", "graphrag_ray.indexing.run", "graphrag_ray.corpus.parse")
"""What is imported on each node, for a look whether it can be."""

_PACKAGE = Path(__file__).parents[2]
_PICKLING = Lock()
"""What cloudpickle takes by value is one setting of the process, and several threads may ask."""
_OF_A_JOB = ("working_dir", "py_modules")
USE_UVLOOP = "RAY_USE_UVLOOP"
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
    `ray start`, else a private one. What we start binds to 127.0.0.1 and sends no usage statistics. The
    workers of a cluster that we did not start get this very package (see `runtime_environment`).
    serving: for Ray Serve
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A task that failed is told once, where its result is asked for, and not again for each thing it returns.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    with ExitStack() as stack:
        if not ray.is_initialized():
            if will_be_private(address):
                stack.enter_context(_listening_on_loopback())
                _start(serving)
            else:
                _connect(address, serving)
            stack.callback(ray.shutdown)
        yield


def _quiet() -> dict[str, Any]:
    return {"log_to_driver": not logs.as_json(), "logging_level": logging.ERROR}


def _start(serving: bool) -> None:
    """A Ray of our own. It takes a token, whatever the environment says of others: replicas of Ray Serve
    listen to each other on all interfaces, and would run what anybody sends there."""
    auth = os.environ.pop(_AUTH, None)  # unset, Ray says "token", and makes one where there is none
    try:
        with _environment(own_package() | ({} if serving else event_loop())):
            ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, **_quiet())
    except Exception as e:
        text = without_colors(str(e))
        why = "in time: it may be too busy" if "timed out during startup" in text else f"({text})"
        raise GraphRagError(
            f"Ray did not start on this machine {' '.join(why.split())[:WHY_SHOWN]}. Try again, look into "
            f"{address_file().parent}/session_latest/logs, or do without: `graphrag-ray index --in-process`"
        ) from e
    finally:
        if auth is not None:
            os.environ.setdefault(_AUTH, auth)


def _connect(address: str | None, serving: bool) -> None:
    if address is None and "RAY_ADDRESS" not in os.environ:
        address = "auto"
    wanted = address or os.environ.get("RAY_ADDRESS")
    try:
        # Where nothing listens at host:port, Ray would say so in twenty warnings of its own.
        host, _, port = (wanted or "").rpartition(":")
        if host and port.isdigit() and "/" not in host:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_WITHIN_S).close()
        ray.init(address=address, runtime_env=runtime_environment(serving), **_quiet())
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


@contextmanager
def _listening_on_loopback() -> Iterator[None]:
    """What is started in the block, and its workers, listen on 127.0.0.1 alone.

    Asked for 127.0.0.1, Ray listens on all interfaces all the same, unless it takes this machine for one
    that cannot join others (as Windows and macOS are by default): so that is what it is told. The next
    connection may be to a cluster of many machines.
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
    """What this process, and those that are started in the block, have in their environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def runtime_environment(serving: bool = False) -> dict[str, Any]:
    """That of a cluster's workers: this very package, unless the driver is a submitted job that brings code
    of its own; and the event loop, unless we connect for Serve, whose proxies are quicker with uvloop."""
    given = json.loads(os.environ.get(JOB_CONFIG, "{}")).get("runtime_env") or {}
    made: dict[str, Any] = {}
    if not any(given.get(name) for name in _OF_A_JOB):
        made |= {"py_modules": [str(_PACKAGE)], "excludes": ["**/__pycache__/"]}
        if "worker_process_setup_hook" not in given:
            made["worker_process_setup_hook"] = PINNED
    if not serving and USE_UVLOOP not in (given.get("env_vars") or {}):
        made["env_vars"] = event_loop()
    return made


def own_package() -> dict[str, str]:
    """Environment variables by which all workers of a Ray that we start import this very package."""
    made = {ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR: PINNED}
    # Workers run in the driver's Python, so they find what is installed there by themselves.
    if _PACKAGE.parent.name not in ("site-packages", "dist-packages"):
        given = os.environ.get("PYTHONPATH")
        made["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PACKAGE.parent), given)))
    return made


def event_loop() -> dict[str, str]:
    """The environment variable by which processes of Ray have asyncio's own event loop, if nobody chose
    another. With uvloop, which Ray takes where it is installed, aiohttp's connections end now and then in
    errors that are no connection's, and in aborted processes (https://github.com/aio-libs/aiohttp/issues/12336,
    https://github.com/libuv/libuv/pull/5129). A call takes 4% more CPU."""
    return {USE_UVLOOP: os.environ.get(USE_UVLOOP, "0")}


def check_nodes(root: Store, inputs: Sequence[str]) -> set[str]:
    """Look on every node of the connected cluster whether it can do its part. Returns those that said so.

    inputs: absolute paths of local files that every node must be able to read.

    Raises UsageError, naming the node, where packages are missing or a local path is another folder there.
    """
    answers = ask_nodes(root, inputs)
    for why in filter(None, answers.values()):
        raise UsageError(why)
    return set(answers)


def ask_nodes(
    root: Store, inputs: Sequence[str], among: Collection[str] | None = None, ended: Event | None = None
) -> dict[str, str]:
    """Why nodes, by id, cannot do their part; "" where they can. Those that do not answer are left out.

    among: these are asked; None: all. ended: once it is set nobody is asked or waited for: Ray may be gone,
    and calling it would start another.
    """
    ended = ended or Event()
    nodes = [n for n in ray.nodes() if n["Alive"] and (among is None or n["NodeID"] in among)]
    here = ray.get_runtime_context().get_node_id()
    with _marked(root) as marker:
        others = [marker, *inputs] if marker else list(inputs)
        sizes = {path: os.path.getsize(path) for path in others}
        here_is = _source_of(_PACKAGE)
        if ended.is_set():
            return {}
        asked = {
            _probe(node["NodeID"]).remote(
                requirements(), IMPORTED, {} if node["NodeID"] == here else sizes, here_is
            ): node
            for node in nodes
        }
        waiting, until = list(asked), time.monotonic() + LOOKED_AT_WITHIN_S
        while waiting and time.monotonic() < until and not ended.is_set():
            waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_S)[1]
        for ref in waiting:
            ray.cancel(ref)
        found = {node["NodeID"]: (node, _node_answer(ref)) for ref, node in asked.items()}
    answers = {}
    for id_, (node, answer) in found.items():
        if answer is None:
            continue
        name = f"{node['NodeName']} ({node['NodeManagerHostname']})"
        missing, absent, other = answer
        answers[id_] = ""
        if other:
            answers[id_] = (
                f"node {name} would run another graphrag_ray ({other}) than this program ({_PACKAGE}, "
                f"version {__version__}). Install the same there, or start this program in another folder."
            )
        elif missing:
            answers[id_] = (
                f"node {name} cannot run this: {missing}. Install there what graphrag-ray depends on (in the "
                "Python that the node's Ray runs in), or submit it with `ray job submit --runtime-env-json "
                '\'{"pip": ["graphrag-ray"]}\'`.'
            )
        elif absent:
            path = absent[0]
            what, folder = ("index", root.url) if path == marker else ("INPUT", os.path.dirname(path))
            answers[id_] = (
                f"the folder {folder} ({what}) is not the same on node {name}: a cluster of many nodes needs "
                "an object store (s3://…, gs://…) or a file system that all nodes share."
            )
    return answers


@contextmanager
def _marked(root: Store) -> Iterator[str | None]:
    """A file in a root at a local path, under a name that no listing shows; None for other roots."""
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
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    # The node may lack this very module: the function travels as it is.
    module = sys.modules[__name__]
    with _PICKLING:
        cloudpickle.register_pickle_by_value(module)
        try:
            function = cloudpickle.loads(cloudpickle.dumps(_look_at_node))
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(function)


def requirements() -> list[str]:
    """The distributions that this one depends on; [] where it is not installed, but a folder of its own."""
    try:
        given = metadata.requires("graphrag-ray") or []
    except metadata.PackageNotFoundError:
        return []
    names = (re.match(r"[\w.-]+", line) for line in given if "extra ==" not in line)
    return [name.group() for name in names if name]


def _look_at_node(
    distributions: Sequence[str], modules: Sequence[str], sizes: dict[str, int], source: str
) -> tuple[str, list[str], str]:
    """Runs on a node: what is not installed or cannot be imported there, which files are not there, and what
    the package there is unless it has the driver's source."""
    import importlib.util
    import os
    from importlib import metadata
    from pathlib import Path

    spec = importlib.util.find_spec("graphrag_ray")
    if spec and spec.origin and _source_of(Path(spec.origin).parent) != source:
        package = Path(spec.origin).parent
        written = package / "version.py"
        version = re.search('__version__ = "(.+)"', written.read_text("utf-8") if written.is_file() else "")
        return "", [], f"{package}, version {version[1] if version else 'unknown'}"
    lacking = []
    for name in distributions:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            lacking.append(name)
    if lacking:
        return f"it lacks {', '.join(lacking)}", [], ""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as e:  # noqa: BLE001 - whatever it is, a worker would end by it
            return f"{type(e).__name__}: {e}", [], ""
    absent = [
        path for path, size in sizes.items() if not os.path.isfile(path) or os.path.getsize(path) != size
    ]
    return "", absent, ""


def _source_of(package: Path) -> str:
    """A hash of all modules of a package."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _node_answer(ref: Any) -> tuple[str, list[str], str] | None:
    """What `_look_at_node` found; None where that is not known."""
    try:
        found: tuple[str, list[str], str] = ray.get(ref, timeout=0)
    except RuntimeEnvSetupError as e:
        why = without_colors(str(e)).splitlines()[0]
        return f"its runtime environment cannot be set up ({why})", [], ""
    except RayError:  # too late, or the node is gone
        return None
    return found
