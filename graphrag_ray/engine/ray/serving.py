"""Runs an ASGI application on Ray Serve as one deployment, and holds what its replicas share.

- Each replica runs the application. Serve restarts replicas that die.
- With several replicas, one limiter actor per model serves all of them (`limiter_actors.py`).
- API keys that only the process that started the service may have are kept in the memory of one actor, which
  ends with that process.
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
from graphrag_ray.base.logs import PACKAGE_LOGGER, ForwardingHandler, Level, LogConfig, hide_values
from graphrag_ray.base.wording import strip_ansi
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray import PINNED
from graphrag_ray.engine.ray.cluster import event_loop
from graphrag_ray.engine.ray.limiter_actors import SharedLimiter, beside_driver
from graphrag_ray.engine.ray.metrics import RayRecorder
from graphrag_ray.engine.ray.routing import ByLoadAlone

APPLICATION = "graphrag"
NAMESPACE = "graphrag-ray-service"
POLL_S = 0.5
END_TIMEOUT_S = 10.0
"""How long an application may take to end after its last question."""
_SERVE_LOG = "ray.serve"
_log = logging.getLogger(__name__)


class Keys:
    """Environment variables for replicas on nodes that lack them.

    The actor ends with the process that started the service, so its existence shows that the process is
    alive.
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    async def hold(self, variable: str, value: str) -> None:
        self._values[variable] = value

    async def get(self, variable: str) -> str | None:
        return self._values.get(variable)


@dataclass(frozen=True)
class Replica:
    """A replica of an application, and whether there are several."""

    application: str
    name: str
    has_peers: bool
    _known: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def here(cls, several: bool) -> Replica:
        """The replica that this process is."""
        context = serve.get_replica_context()
        return cls(context.app_name, str(context.replica_id.unique_id), several)

    def fetch_key(self, variable: str) -> str | None:
        """Get an environment variable from the process that started the service, and remember it. Blocks."""
        if variable in self._known:
            return self._known[variable]
        try:
            keys = ray.get_actor(f"{self.application}-keys", NAMESPACE)
            value: str | None = ray.get(keys.get.remote(variable))
        except (ValueError, RayError):  # nobody holds any
            return None
        if value:
            hide_values([value])
            self._known[variable] = value
        return value

    def metrics(self, own: Iterable[Instrument], as_a_run: Iterable[Instrument]) -> RayRecorder:
        """Record with this node's agent, since a scrape through Serve would reach any replica.

        Instruments `as_a_run` are labelled like those of a run, with the application as the run.
        """
        labels = {"application": self.application, "replica": self.name}
        return RayRecorder((own, labels), (as_a_run, {"run": self.application}))

    def limiter(self, models: Models) -> SharedLimiter:
        """The limiter of these models for all replicas; changed limits get a new one.

        Call it in an event loop and after `log_with_serve`, because Serve's own log level differs while the
        application starts.
        """
        limits = {name: model.model_dump(mode="json") for name, model in models.online.items()}
        data = orjson.dumps([limits, models.initial_in_flight], option=orjson.OPT_SORT_KEYS)
        prefix = f"{self.application}-limiter-{hashlib.sha256(data).hexdigest()[:12]}"
        level = logging.getLevelName(logging.getLogger(PACKAGE_LOGGER).level).lower()
        known = cast(Level, level) if level in get_args(Level) else "warning"
        as_json = any(map(_writes_json, logging.getLogger(_SERVE_LOG).handlers))
        log = LogConfig(known, "json" if as_json else "text", self.application)
        return SharedLimiter(prefix, self.name, models, NAMESPACE, self.application, log)


def build_application(
    build: Callable[[], Any], *, replicas: int, max_requests: int, grace_s: float, num_cpus: float
) -> serve.Application:
    """Create a Serve application whose replicas run the ASGI application that `build` returns.

    Args:
        build: Sent to the replicas and called there.
        max_requests: Requests that a replica is given at once; more than it accepts, so that the replica
            itself refuses the excess.
        grace_s: Time for running requests when a replica ends.
    """
    env: dict[str, Any] = {"env_vars": event_loop()}
    # Serve passes the driver's code (`cluster.runtime_environment`) to replicas only if told to.
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
        request_router_config=RequestRouterConfig(request_router_class=ByLoadAlone),
    )
    return deployment.bind()


def log_with_serve() -> None:
    """Send this package's log to Serve's handlers, with secrets removed. Call it in a replica."""
    ours, serves = logging.getLogger(PACKAGE_LOGGER), logging.getLogger(_SERVE_LOG)
    ours.handlers, ours.propagate = [ForwardingHandler(serves, _writes_json)], False
    ours.setLevel(serves.level)


def _writes_json(handler: logging.Handler) -> bool:
    """Whether a handler of Serve, or the one behind its buffer, writes JSON.

    Ray does not promise where its formatter classes are, so compare their names.
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
    """Serve the application on the connected Ray until the block ends and running questions have finished.

    Args:
        secrets: Environment variables that replicas may ask for.
        grace_s: Time for questions that run at the end of the block.
        private: Whether this Ray ends with us; its replicas then have our environment.
        loopback_only: Whether requests need no token, so that only this machine may be listened to.

    Yields:
        Whether it listens at `host` and `port`; a Serve that runs already keeps its own address.

    Raises:
        GraphRagError: The application did not start.
        UsageError: Another application has the prefix, the port is taken, or `loopback_only` is set and a
        Serve
            runs already.
    """
    logging.getLogger(_SERVE_LOG).setLevel(logging.ERROR)
    name = "-".join([APPLICATION, *filter(None, prefix.split("/"))])
    try:
        ours = ray.get_actor("SERVE_CONTROLLER_ACTOR", "serve") is None
    except ValueError:
        ours = True
    if not ours and loopback_only:
        raise UsageError(
            "Ray Serve already runs on this cluster and may listen to other machines, so anyone could ask "
            "questions at your cost. Set a token, or pass --allow-anonymous."
        )
    if not ours and name in serve.status().applications:
        if not _orphaned(name):
            raise UsageError(f"This cluster already serves {name!r}. Choose another --prefix than {prefix}.")
        _log.warning("The command that served %r is gone; taking over its application", name)
    keys = None
    if not private:
        actor = ray.remote(num_cpus=0, max_concurrency=100, max_task_retries=-1)(Keys)
        keys = actor.options(
            name=f"{name}-keys", namespace=NAMESPACE, scheduling_strategy=beside_driver()
        ).remote()
        ray.get([keys.hold.remote(variable, value.get_secret_value()) for variable, value in secrets.items()])
    logs = {"log_level": log_level, "enable_access_log": log_level != "WARNING"}
    logs |= {"encoding": "JSON"} if log_json else {}  # otherwise RAY_SERVE_LOG_ENCODING decides
    try:
        if ours:
            http = {"host": host, "port": port}
            try:
                serve.start(proxy_location=ProxyLocation.HeadOnly, http_options=http, logging_config=logs)
            except RuntimeError as e:
                if "Failed to bind" not in str(e):
                    raise
                raise UsageError(
                    f"Cannot listen at {host}:{port} on the head node. Choose another --port."
                ) from e
        try:
            serve.run(app, name=name, route_prefix=prefix, logging_config=logs)
        except RuntimeError as e:
            raise GraphRagError(f"The service did not start: {_start_error(name, e)}") from e
        yield ours
    finally:
        with suppress(RayError, RuntimeError):
            _end(name, grace_s)
            if ours and not private and not serve.status().applications:
                serve.shutdown()
        if keys is not None:
            ray.kill(keys)


def _orphaned(name: str) -> bool:
    """Whether a command like ours started the application and was killed, which ended its keys actor.

    An application of a Serve config never had such an actor, and must not be replaced.
    """
    try:
        ray.get_actor(f"{name}-keys", NAMESPACE)
        return False
    except ValueError:
        details = _get_global_client().get_serve_details()["applications"].get(name, {})
        return bool(details.get("source") == APIType.IMPERATIVE)


def _end(name: str, grace_s: float) -> None:
    serve.delete(name, _blocking=False)  # a blocking call waits for a minute, whatever the grace
    until = time.monotonic() + grace_s + END_TIMEOUT_S
    while name in serve.status().applications and time.monotonic() < until:
        time.sleep(POLL_S)
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(f"{name}-limiter"):
            with suppress(ValueError, RayError):
                ray.kill(ray.get_actor(actor["name"], NAMESPACE))


def _start_error(name: str, error: RuntimeError) -> str:
    """The last line of the error with which a replica did not start."""
    messages = [str(error)]
    with suppress(RayError, KeyError):
        status = serve.status().applications[name]
        messages += [status.message, *(deployment.message for deployment in status.deployments.values())]
    lines = [line.strip() for text in messages for line in strip_ansi(text).splitlines() if line.strip()]
    errors = [line.partition("Error: ")[2] for line in lines if re.match(r"[\w.]+Error: ", line)]
    return (errors or lines)[-1]
