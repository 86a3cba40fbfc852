"""`graphrag-ray serve`: answer questions over HTTP."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import click

from graphrag_ray.base import logs
from graphrag_ray.base.errors import UsageError
from graphrag_ray.cli import options
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.service.service_options import ServiceOptions

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@click.command(cls=Command)
@options.settings
@options.answer
@click.option("--method", default="global", show_default=True, help="Default search method.")
@click.option(
    "--level", metavar="C0..Cn|auto", help="Default community level; applies to the default method."
)
@options.cache
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="Port to listen on; 0 chooses a free port.")
@click.option("--prefix", default="/", show_default=True, help="URL prefix, such as /graphrag.")
@click.option("--replicas", type=int, help="Number of processes. They share the rate limits. Default: 1.")
@click.option("--max-running", type=int, help="Concurrent questions per process. Default: 32.")
@click.option(
    "--max-waiting", type=int, help="Queued questions per process; further ones are rejected. Default: 256."
)
@click.option(
    "--max-seconds", type=float, help="Time limit per question in seconds, including queueing. Default: 300."
)
@click.option("--max-body-bytes", type=int, help="Maximum size of a request. Default: 1 MiB.")
@click.option("--follow-s", type=float, help="Seconds between checks for a newer snapshot. Default: 5.")
@click.option("--grace-s", type=float, help="Seconds to finish running questions at shutdown. Default: 30.")
@click.option(
    "--token-env",
    help="Environment variable with the token that clients must send. Default: GRAPHRAG_RAY_TOKEN.",
)
@click.option("--allow-anonymous", is_flag=True, help="Accept requests from other machines without a token.")
@click.option(
    "--allow-origin",
    "origins",
    metavar="URL",
    multiple=True,
    help="Allow requests from this web origin (CORS), such as https://chat.example.org; repeatable.",
)
@click.option("--open-metrics", is_flag=True, help="Serve /metrics without a token.")
@options.address
def serve(opts: IndexOptions, host: str, port: int, prefix: str, address: str | None, **values: Any) -> None:
    """Answer questions over HTTP: POST /query, and an OpenAI-compatible API under /v1 for chat front ends.

    The service switches to newer snapshots automatically. If the environment variable GRAPHRAG_RAY_TOKEN is
    set, clients must send its value (Authorization: Bearer …); otherwise, only requests from this machine are
    accepted. --budget-tokens and --budget-usd limit the cost of each question. On Ctrl-C or SIGTERM, the
    service finishes the running questions and stops with exit code 0.

    \b
    Examples:
      graphrag-ray serve --root ./my-index
      GRAPHRAG_RAY_TOKEN=… graphrag-ray serve --root s3://bucket/index --host 0.0.0.0 --replicas 4
    """
    if find_spec("fastapi") is None or find_spec("prometheus_client") is None:
        raise UsageError(
            "`serve` needs Ray Serve. Install with: pip install '.[serve]' in the project's folder"
        )
    from pydantic import SecretStr

    from graphrag_ray.engine.model_access import Models, probe_endpoints
    from graphrag_ray.engine.ray.cluster import connect
    from graphrag_ray.engine.ray.discovery import starts_private_ray
    from graphrag_ray.query.methods import methods

    requested, settings = _options(opts, values)
    service = _restrict_access(requested, host)
    methods.check_method(service.method, service.level, ())
    private = starts_private_ray(address)
    if not port:
        # Neither Ray nor the system assigns ports in this range, so the port stays free until Ray Serve
        # listens.
        candidates = random.sample(range(20_000, 32_000), 100)
        port = next((p for p in candidates if not _listen_error(host, p)), 0)
        if not port:
            raise UsageError(f"No free port found on {host}. Choose one with --port.")
    elif private and (why := _listen_error(host, port)):
        raise UsageError(f"Cannot listen on {host}:{port}: {why}. Choose another port with --port.")
    for problem in probe_endpoints(Models.from_settings(settings), settings, ("map", "reduce", "answer")):
        if problem.asked:
            click.echo(f"From this machine: {problem}", err=True)
    with connect(address, for_serve=True):
        from graphrag_ray.engine.ray.cluster import check_nodes
        from graphrag_ray.engine.ray.serving import serve_application
        from graphrag_ray.service.application import build
        from graphrag_ray.store.files import Store

        if not private:
            check_nodes(Store(service.root, settings.storage.fsspec_options(service.root)), [])
        logs_info = logging.getLogger("graphrag_ray").isEnabledFor(logging.INFO)
        # The nodes of a cluster may lack these environment variables.
        names = {service.token_env, *Models.from_settings(settings).key_variables()}
        values = {name: os.environ.get(name, "").strip() for name in sorted(names)}
        secrets = {} if private else {name: SecretStr(value) for name, value in values.items() if value}
        with (
            _until_stopped() as (ready, stopped),
            serve_application(
                build(service),
                host=host,
                port=port,
                prefix=prefix,
                secrets=secrets,
                grace_s=service.grace_s,
                log_level="INFO" if logs_info else "WARNING",
                log_json=logs.as_json(),
                private=private,
                loopback_only=service != requested,
            ) as own_address,
        ):
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}{prefix.rstrip('/')}"
            if not own_address:
                click.echo(
                    "Ray Serve already runs on this cluster and keeps its own address and port instead of:"
                )
            bearer = f' -H "Authorization: Bearer ${service.token_env}"'
            click.echo(
                f"Serving {service.root} at {url}\nTry it:\n"
                f"  curl {url}/query{'' if service.allow_anonymous else bearer} "
                """-H 'Content-Type: application/json' -d '{"question": "What are the main themes?"}'\n"""
                f"For chat front ends, use base URL {url}/v1 and model graphrag-ray. Press Ctrl-C to stop."
            )
            if own_address and (reason := _problem(service, url)):
                click.echo(f"The service cannot answer questions yet: {reason}", err=True)
            ready.set()
            stopped.wait()
            click.echo(f"Stopping. Running questions have {service.grace_s:g} s to finish.", err=True)


def _options(opts: IndexOptions, values: Mapping[str, Any]) -> tuple[ServiceOptions, Settings]:
    """Return the service options, and the settings for the newest snapshot. Raises UsageError."""
    from pydantic import ValidationError

    from graphrag_ray.base.settings_file import read_settings
    from graphrag_ray.base.stored_settings import without_machine_settings
    from graphrag_ray.base.user_settings import KnownModels
    from graphrag_ray.service.service_options import ServiceOptions

    chosen = {name: value for name, value in values.items() if value is not None}
    store, manifest = opts.snapshot()
    base = without_machine_settings(manifest.settings) if opts.config is None else None
    settings = read_settings(opts.config) if opts.config is not None else None
    overrides = tuple(options.overrides_of(opts.config, opts.overrides, opts.short, base))
    opts.settings(manifest.settings, store.url)  # Validate the settings.
    # Replicas may run on other nodes, so send them the endpoints that this machine knows.
    known = KnownModels.read(store.url if opts.config is None else None)
    try:
        service = ServiceOptions(
            root=store.url, settings=settings, overrides=overrides, known=known, **chosen
        )
    except ValidationError as e:
        problems = [(".".join(map(str, p["loc"])), p["msg"]) for p in e.errors(include_url=False)]
        messages = "; ".join(f"--{name.replace('_', '-')}: {message}" for name, message in problems)
        raise UsageError(messages) from None
    return service, service.settings_of(manifest, settings)


def _restrict_access(service: ServiceOptions, host: str) -> ServiceOptions:
    """Restrict a service without a token to this machine. Raises UsageError if others could send requests.

    Host names are restricted too, so that no web page can send requests on behalf of the user who views it.
    """
    from graphrag_ray.service.access import check_token

    token = os.environ.get(service.token_env, "").strip()
    check_token(service.token_env, token)
    if token or service.allow_anonymous:
        return service
    if not is_loopback(host):
        raise UsageError(
            f"--host {host} accepts connections from other machines, but {service.token_env} is not set, so "
            "anybody could ask questions at your cost. Set it, listen on 127.0.0.1, or pass "
            "--allow-anonymous."
        )
    if {"*", "null"} & {*service.origins}:  # Any embedded page can have the origin "null".
        raise UsageError(
            "--allow-origin '*' lets every web page ask questions at your cost. Set "
            f"{service.token_env}, or pass the origin of your page."
        )
    return service.model_copy(update={"allow_anonymous": True, "hosts": (*_LOOPBACK, host)})


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _until_stopped() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Yield two events, `ready` and `stopped`. The caller sets `ready`; Ctrl-C or SIGTERM sets `stopped`.

    A signal before `ready` is set, or a second signal, aborts.
    """
    ready, stopped = threading.Event(), threading.Event()

    def handle(number: int, frame: object) -> None:
        if not ready.is_set() or stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ready, stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _listen_error(host: str, port: int) -> str:
    """Return why no server can listen on this address, or "" if one can."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as e:
        return str(e.strerror)
    return ""


def _problem(service: ServiceOptions, url: str) -> str:
    """Return why the service cannot answer questions, or "" if it can or does not respond."""
    local = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    token = os.environ.get(service.token_env, "").strip()
    try:
        request = Request(f"{local}/index", headers={"Authorization": f"Bearer {token}"})
        with urlopen(request, timeout=10) as response:
            return str(json.loads(response.read()).get("problem", ""))
    except HTTPError as e:
        with e:
            return str(json.loads(e.read()).get("error", {}).get("message", e.reason))
    except (OSError, ValueError):
        return ""
