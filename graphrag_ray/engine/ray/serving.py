"""Runs an ASGI application on Ray Serve as one deployment.

- Each replica runs the application. Serve restarts replicas that die.
- With several replicas, one limiter actor per model serves all of them (`limiter_actors.py`).
- API keys from the environment of the process that started the service are available to replicas through an
  actor, which stores them in memory only and ends with that process.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import orjson
import ray
from pydantic import SecretStr
from ray import serve
from ray._private import ray_constants
from ray.exceptions import RayError
from ray.serve.config import ProxyLocation, RequestRouterConfig
from ray.serve.context import _get_global_client
from ray.serve.schema import APIType

from graphrag_ray.base.errors import GraphRagError, UsageError
from graphrag_ray.base.instruments import Instrument
from graphrag_ray.base.logs import PACKAGE_LOGGER, ForwardingHandler, Level, LogConfig, redact_values
from graphrag_ray.base.wording import strip_ansi
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray import PINNED
from graphrag_ray.engine.ray.cluster import event_loop
from graphrag_ray.engine.ray.limiter_actors import SharedLimiter, on_driver_node
from graphrag_ray.engine.ray.metrics import RayRecorder
from graphrag_ray.engine.ray.routing import LoadOnlyRouter

APPLICATION = "graphrag"
NAMESPACE = "graphrag-ray-service"
POLL_S = 0.5
END_TIMEOUT_S = 10.0
"""How long an application may take to shut down after its last question."""
_SERVE_LOG = "ray.serve"
_log = logging.getLogger(__name__)


class Keys:
    """Actor with environment variables for replicas on nodes that lack them.

    It ends with the process that started the service, so its existence shows that the process is alive.
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    async def put(self, variable: str, value: str) -> None:
        self._values[variable] = value

    async def get(self, variable: str) -> str | None:
        return self._values.get(variable)


@dataclass(frozen=True)
class Replica:
    """A replica of an application. `has_peers`: whether there are others."""

    application: str
    name: str
    has_peers: bool
    _fetched: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def current(cls, has_peers: bool) -> Replica:
        """Return the replica that runs in this process."""
        context = serve.get_replica_context()
        return cls(context.app_name, str(context.replica_id.unique_id), has_peers)

    def fetch_key(self, variable: str) -> str | None:
        """Get an environment variable from the process that started the service, and remember it. Blocks."""
        if variable in self._fetched:
            return self._fetched[variable]
        try:
            keys = ray.get_actor(f"{self.application}-keys", NAMESPACE)
            value: str | None = ray.get(keys.get.remote(variable))
        except (ValueError, RayError):  # no such actor
            return None
        if value:
            redact_values([value])
            self._fetched[variable] = value
        return value

    def metrics(self, own: Iterable[Instrument], as_a_run: Iterable[Instrument]) -> RayRecorder:
        """Create a recorder for the node's Ray agent. A scrape through Serve would reach any replica.

        The instruments `as_a_run` get a run's label, with the application as its value.
        """
        labels = {"application": self.application, "replica": self.name}
        return RayRecorder((own, labels), (as_a_run, {"run": self.application}))

    def limiter(self, models: Models) -> SharedLimiter:
        """Create the limiter that all replicas share for these models. Changed limits create a new one.

        Call it in an event loop, and after `log_with_serve`, because Serve uses another log level while the
        application starts.
        """
        limits = {name: model.model_dump(mode="json") for name, model in models.online.items()}
        data = orjson.dumps([limits, models.initial_in_flight], option=orjson.OPT_SORT_KEYS)
        prefix = f"{self.application}-limiter-{hashlib.sha256(data).hexdigest()[:12]}"
        level = logging.getLevelName(logging.getLogger(PACKAGE_LOGGER).level).lower()
        valid = cast(Level, level) if level in get_args(Level) else "warning"
        as_json = any(map(_writes_json, logging.getLogger(_SERVE_LOG).handlers))
        log = LogConfig(valid, "json" if as_json else "text", self.application)
        return SharedLimiter(prefix, self.name, models, NAMESPACE, self.application, log)


def build_application(
    build: Callable[[], Any], *, replicas: int, max_requests: int, grace_s: float, num_cpus: float
) -> serve.Application:
    """Create a Serve application whose replicas run the ASGI application that `build` returns.

    Args:
        build: Sent to the replicas and called there.
        max_requests: Maximum number of concurrent requests that Serve sends to a replica. Pass more than it
            accepts, so that the replica itself refuses the excess.
        grace_s: How long a replica that shuts down may take to finish running requests.
    """
    env: dict[str, Any] = {"env_vars": event_loop()}
    # Serve does not pass the driver's code (`cluster.runtime_environment`) to replicas by itself.
    if ray.is_initialized() and (modules := ray.get_runtime_context().runtime_env.get("py_modules")):
        env["py_modules"] = list(modules)
        env["env_vars"][ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR] = PINNED
    deployment = serve.deployment(
        serve.ingress(build)(),
        name="Questions",
        num_replicas=replicas,
        max_ongoing_requests=max_requests,
        graceful_shutdown_timeout_s=grace_s,
        graceful_shutdown_wait_loop_s=POLL_S,
        ray_actor_options={"num_cpus": num_cpus, "runtime_env": env},
        request_router_config=RequestRouterConfig(request_router_class=LoadOnlyRouter),
    )
    return deployment.bind()


def log_with_serve() -> None:
    """Send this package's log to Serve's handlers, with secrets removed. Call it in a replica."""
    package_log, serve_log = logging.getLogger(PACKAGE_LOGGER), logging.getLogger(_SERVE_LOG)
    package_log.handlers, package_log.propagate = [ForwardingHandler(serve_log, _writes_json)], False
    package_log.setLevel(serve_log.level)


def _writes_json(handler: logging.Handler) -> bool:
    """Whether a handler of Serve, or the handler behind its buffer, writes JSON.

    The import path of Ray's formatter classes is not stable, so compare their names.
    """
    target: logging.Handler = getattr(handler, "target", None) or handler
    return "JSON" in type(target.formatter).__name__


@contextmanager
def serve_application(
    app: serve.Application,
    *,
    host: str,
    port: int,
    prefix: str,
    secrets: Mapping[str, SecretStr],
    grace_s: float,
    log_level: str = "WARNING",
    log_json: bool = False,
    private: bool,
    loopback_only: bool = False,
) -> Iterator[bool]:
    """Serve the application on the connected Ray until the block ends. Then let running questions finish.

    Args:
        secrets: Environment variables that replicas can fetch.
        grace_s: How long questions that are running at the end of the block may take.
        private: Whether this Ray ends with this process. If so, its replicas have the same environment.
        loopback_only: Whether to accept requests from this machine only, because they need no token.

    Yields:
        Whether it listens on `host` and `port`. A Serve instance that already runs keeps its own address.

    Raises:
        GraphRagError: The application did not start.
        UsageError: The prefix or the port is in use, or Serve already runs although `loopback_only` is set.
    """
    logging.getLogger(_SERVE_LOG).setLevel(logging.ERROR)
    name = "-".join([APPLICATION, *filter(None, prefix.split("/"))])
    try:
        starts_serve = ray.get_actor("SERVE_CONTROLLER_ACTOR", "serve") is None
    except ValueError:
        starts_serve = True
    if not starts_serve and loopback_only:
        raise UsageError(
            "Ray Serve already runs on this cluster and may accept outside connections, so anyone could ask "
            "questions at your cost. Set a token, or pass --allow-anonymous."
        )
    if not starts_serve and name in serve.status().applications:
        if not _orphaned(name):
            raise UsageError(f"This cluster already serves {name!r}. Choose a --prefix other than {prefix}.")
        _log.warning("The process that served %r is gone; replacing its application", name)
    keys = None
    if not private:
        actor = ray.remote(num_cpus=0, max_concurrency=100, max_task_retries=-1)(Keys)
        keys = actor.options(
            name=f"{name}-keys", namespace=NAMESPACE, scheduling_strategy=on_driver_node()
        ).remote()
        ray.get([keys.put.remote(variable, value.get_secret_value()) for variable, value in secrets.items()])
    logs = {"log_level": log_level, "enable_access_log": log_level != "WARNING"}
    logs |= {"encoding": "JSON"} if log_json else {}  # otherwise RAY_SERVE_LOG_ENCODING decides
    try:
        if starts_serve:
            http = {"host": host, "port": port}
            try:
                serve.start(proxy_location=ProxyLocation.HeadOnly, http_options=http, logging_config=logs)
            except RuntimeError as e:
                if "Failed to bind" not in str(e):
                    raise
                raise UsageError(
                    f"Cannot listen on {host}:{port} on the head node. Choose another --port."
                ) from e
        try:
            serve.run(app, name=name, route_prefix=prefix, logging_config=logs)
        except RuntimeError as e:
            raise GraphRagError(f"The service did not start: {_start_error(name, e)}") from e
        yield starts_serve
    finally:
        with suppress(RayError, RuntimeError):
            _end(name, grace_s)
            if starts_serve and not private and not serve.status().applications:
                serve.shutdown()
        if keys is not None:
            ray.kill(keys)


def _orphaned(name: str) -> bool:
    """Whether the application was started by an earlier `serve` process that was killed, with its keys actor.

    An application from a Serve config has no such actor either, but must not be replaced.
    """
    try:
        ray.get_actor(f"{name}-keys", NAMESPACE)
        return False
    except ValueError:
        details = _get_global_client().get_serve_details()["applications"].get(name, {})
        return bool(details.get("source") == APIType.IMPERATIVE)


def _end(name: str, grace_s: float) -> None:
    serve.delete(name, _blocking=False)  # a blocking call ignores the grace period and waits for a minute
    deadline = time.monotonic() + grace_s + END_TIMEOUT_S
    while name in serve.status().applications and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(f"{name}-limiter"):
            with suppress(ValueError, RayError):
                ray.kill(ray.get_actor(actor["name"], NAMESPACE))


def _start_error(name: str, error: RuntimeError) -> str:
    """Return the last line of the error that prevented a replica from starting."""
    messages = [str(error)]
    with suppress(RayError, KeyError):
        status = serve.status().applications[name]
        messages += [status.message, *(deployment.message for deployment in status.deployments.values())]
    lines = [line.strip() for text in messages for line in strip_ansi(text).splitlines() if line.strip()]
    errors = [line.partition("Error: ")[2] for line in lines if re.match(r"[\w.]+Error: ", line)]
    return (errors or lines)[-1]
