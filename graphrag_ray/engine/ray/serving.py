"""An ASGI application on Ray Serve: one deployment, and what its replicas share with each other.

replicas    each runs the application; Serve starts them again where they die
limiters    one actor per model for all replicas, where there are several (`limiter_actors.py`)
keys        those that maybe only the process that started the service has, in the memory of one actor that
            ends with it
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
from graphrag_ray.base.logs import OURS, HandedOn, Level, Logging, hide
from graphrag_ray.base.wording import without_colors
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.ray import PINNED
from graphrag_ray.engine.ray.cluster import event_loop
from graphrag_ray.engine.ray.limiter_actors import SharedLimiter, beside_driver
from graphrag_ray.engine.ray.metrics import RayRecorder
from graphrag_ray.engine.ray.routing import ByLoadAlone

APPLICATION = "graphrag"
NAMESPACE = "graphrag-ray-service"
LOOK_S = 0.5
ENDS_WITHIN_S = 10.0
"""An application, after its questions."""
_SERVE_LOG = "ray.serve"
_log = logging.getLogger(__name__)


class Keys:
    """Values of environment variables, for replicas on nodes that do not have them. It ends with the process
    that started the service, whose sign of life it is."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    async def hold(self, variable: str, value: str) -> None:
        self._held[variable] = value

    async def get(self, variable: str) -> str | None:
        return self._held.get(variable)


@dataclass(frozen=True)
class Replica:
    """What a replica knows of itself and of the others.

    name      among the replicas of its application
    several   whether there are others
    """

    application: str
    name: str
    several: bool
    _known: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def here(cls, several: bool) -> Replica:
        """To be called in a replica."""
        context = serve.get_replica_context()
        return cls(context.app_name, str(context.replica_id.unique_id), several)

    def ask_key(self, variable: str) -> str | None:
        """The value that the process which started the service holds, or held when it was asked. Waits."""
        if variable in self._known:
            return self._known[variable]
        try:
            holder = ray.get_actor(f"{self.application}-keys", NAMESPACE)
            found: str | None = ray.get(holder.get.remote(variable))
        except (ValueError, RayError):  # nobody holds any
            return None
        if found:
            hide([found])
            self._known[variable] = found
        return found

    def metrics(self, own: Iterable[Instrument], as_a_run: Iterable[Instrument]) -> RayRecorder:
        """Recorded with the agent of this node, whichever replica Prometheus would get an answer from.
        own: of each replica; as_a_run: as runs have them, of the application."""
        here = {"application": self.application, "replica": self.name}
        return RayRecorder((own, here), (as_a_run, {"run": self.application}))

    def limiter(self, models: Models) -> SharedLimiter:
        """Of these models, for all replicas: limits that change are another limiter's. To be called in an
        event loop, after `log_with_serve`: Serve's own level is another one while the application starts."""
        limits = {name: model.model_dump(mode="json") for name, model in models.online.items()}
        told = orjson.dumps([limits, models.default_in_flight], option=orjson.OPT_SORT_KEYS)
        prefix = f"{self.application}-limiter-{hashlib.sha256(told).hexdigest()[:12]}"
        level = logging.getLevelName(logging.getLogger(OURS).level).lower()
        known = cast(Level, level) if level in get_args(Level) else "warning"
        as_json = any(map(_writes_json, logging.getLogger(_SERVE_LOG).handlers))
        log = Logging(known, "json" if as_json else "text", self.application)
        return SharedLimiter(prefix, self.name, models, NAMESPACE, self.application, log)


def application(
    build: Callable[[], Any],
    *,
    replicas: int,
    most_requests: int,
    grace_s: float,
    num_cpus: float,
) -> serve.Application:
    """A Serve application whose replicas run the ASGI application that `build` makes there.

    build           a function without arguments; travels to the replicas
    most_requests   that a replica is given at once: more than it takes, so that itself refuses them
    grace_s         for requests that run when a replica ends
    """
    options: dict[str, Any] = {"num_cpus": num_cpus, "runtime_env": _environment()}
    deployment = serve.deployment(
        serve.ingress(build)(),
        name="Questions",
        num_replicas=replicas,
        max_ongoing_requests=most_requests,
        graceful_shutdown_timeout_s=grace_s,
        graceful_shutdown_wait_loop_s=LOOK_S,
        ray_actor_options=options,
        request_router_config=RequestRouterConfig(request_router_class=ByLoadAlone),
    )
    return deployment.bind()


def log_with_serve() -> None:
    """Let this package's log go where Serve's does, without what no line of it holds. To be called in a
    replica."""
    ours, serves = logging.getLogger(OURS), logging.getLogger(_SERVE_LOG)
    ours.handlers, ours.propagate = [HandedOn(serves, _writes_json)], False
    ours.setLevel(serves.level)


def _writes_json(handler: logging.Handler) -> bool:
    """A handler of Serve's, which may be a buffer before another one. The class of its formatter is none that
    Ray promises to keep where it is."""
    writing: logging.Handler = getattr(handler, "target", None) or handler
    return "JSON" in type(writing.formatter).__name__


@contextmanager
def running(
    app: serve.Application,
    *,
    host: str,
    port: int,
    prefix: str,
    held: Mapping[str, SecretStr],
    grace_s: float,
    log_level: str = "WARNING",
    log_json: bool = False,
    private: bool,
    only_here: bool = False,
) -> Iterator[bool]:
    """The application, served by the connected Ray as long as the block lasts; questions that run at its end
    finish first. Whether it listens at `host` and `port`: a Serve that runs there already keeps its own.

    held     values of environment variables that replicas may ask for
    grace_s  for questions that run at its end
    private  this Ray ends with us: what is held, its replicas have
    only_here  nobody said that others than this machine may ask, without a token

    Raises GraphRagError where it does not start, UsageError where another one has its prefix, and for
    `only_here` where a Serve runs already.
    """
    logging.getLogger(_SERVE_LOG).setLevel(logging.ERROR)
    name = "-".join([APPLICATION, *filter(None, prefix.split("/"))])
    try:
        ours = ray.get_actor("SERVE_CONTROLLER_ACTOR", "serve") is None
    except ValueError:
        ours = True
    if not ours and only_here:
        raise UsageError(
            "Ray Serve runs on this cluster already and listens where it was told to, maybe to other "
            "machines, so that anybody could ask at your cost. Set a token, or say --allow-anonymous"
        )
    if not ours and name in serve.status().applications:
        if not _orphaned(name):
            raise UsageError(f"this cluster serves {name!r} already: name another --prefix than {prefix}")
        _log.warning("the command that served %r is gone: its application is taken over", name)
    keys = None
    if not private:
        actor = ray.remote(num_cpus=0, max_concurrency=100, max_task_retries=-1)(Keys)
        keys = actor.options(
            name=f"{name}-keys", namespace=NAMESPACE, scheduling_strategy=beside_driver()
        ).remote()
        ray.get([keys.hold.remote(variable, value.get_secret_value()) for variable, value in held.items()])
    logs = {"log_level": log_level, "enable_access_log": log_level != "WARNING"}
    logs |= {"encoding": "JSON"} if log_json else {}  # else as RAY_SERVE_LOG_ENCODING says
    try:
        if ours:
            where = {"host": host, "port": port}
            try:
                serve.start(proxy_location=ProxyLocation.HeadOnly, http_options=where, logging_config=logs)
            except RuntimeError as e:
                if "Failed to bind" not in str(e):
                    raise
                raise UsageError(
                    f"cannot listen at {host}:{port} on the head node. Name another --port"
                ) from e
        try:
            serve.run(app, name=name, route_prefix=prefix, logging_config=logs)
        except RuntimeError as e:
            raise GraphRagError(f"the service did not start: {_why(name, e)}") from e
        yield ours
    finally:
        with suppress(RayError, RuntimeError):
            _end(name, grace_s)
            if ours and not private and not serve.status().applications:
                serve.shutdown()
        if keys is not None:
            ray.kill(keys)


def _orphaned(name: str) -> bool:
    """Whether an application was started by a command like ours that was killed: its actor ended with it. One
    of a Serve config never had such an actor, and is not ours to replace."""
    try:
        ray.get_actor(f"{name}-keys", NAMESPACE)
        return False
    except ValueError:
        found = _get_global_client().get_serve_details()["applications"].get(name, {})
        return bool(found.get("source") == APIType.IMPERATIVE)


def _end(name: str, grace_s: float) -> None:
    serve.delete(name, _blocking=False)  # else it waits for a minute, whatever the grace
    until = time.monotonic() + grace_s + ENDS_WITHIN_S
    while name in serve.status().applications and time.monotonic() < until:
        time.sleep(LOOK_S)
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(f"{name}-limiter"):
            with suppress(ValueError, RayError):
                ray.kill(ray.get_actor(actor["name"], NAMESPACE))


def _why(name: str, error: RuntimeError) -> str:
    """What a replica said when it did not start: the last line of its error."""
    told = [str(error)]
    with suppress(RayError, KeyError):
        found = serve.status().applications[name]
        told += [found.message, *(deployment.message for deployment in found.deployments.values())]
    lines = [line.strip() for text in told for line in without_colors(text).splitlines() if line.strip()]
    errors = [line.partition("Error: ")[2] for line in lines if re.match(r"[\w.]+Error: ", line)]
    return (errors or lines)[-1]


def _environment() -> dict[str, Any]:
    """The code that the driver brought along (`cluster.runtime_environment`), which Serve hands to its
    replicas only where it is told to, and the event loop."""
    given = ray.get_runtime_context().runtime_env.get("py_modules") if ray.is_initialized() else None
    if not given:
        return {"env_vars": event_loop()}
    return {
        "py_modules": list(given),
        "env_vars": {**event_loop(), ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR: PINNED},
    }
