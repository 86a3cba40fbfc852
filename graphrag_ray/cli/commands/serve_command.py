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
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import Given, asking_options, cache_option, forms_of, settings_options

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.service.service_options import ServiceOptions

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@click.command(cls=Command)
@root_option
@settings_options
@asking_options
@click.option("--method", default="global", show_default=True, help="Of questions that name none.")
@click.option("--level", metavar="C0..Cn|auto", help="Of questions that name neither method nor level.")
@cache_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8000, show_default=True, help="0: any that is free.")
@click.option("--prefix", default="/", show_default=True, help="Where the service begins: /graphrag.")
@click.option("--replicas", type=int, help="Processes that answer; they share their limits. Default: 1.")
@click.option("--max-running", type=int, help="Questions that each answers at once. Default: 32.")
@click.option("--max-waiting", type=int, help="Questions that wait there; more are refused. Default: 256.")
@click.option("--max-seconds", type=float, help="Of a question, waiting included. Default: 300.")
@click.option("--max-body-bytes", type=int, help="Of a request. Default: 1 MiB.")
@click.option("--follow-s", type=float, help="Seconds between looks for a newer snapshot. Default: 5.")
@click.option("--grace-s", type=float, help="For questions that run when the service ends. Default: 30.")
@click.option("--token-env", help="The variable with the token of clients. Default: GRAPHRAG_RAY_TOKEN.")
@click.option("--allow-anonymous", is_flag=True, help="Listen beyond this machine without a token.")
@click.option(
    "--allow-origin",
    "origins",
    metavar="URL",
    multiple=True,
    help="Let scripts of this page ask (CORS): https://chat.example.org. Repeatable.",
)
@click.option("--open-metrics", is_flag=True, help="Let /metrics be read without the token.")
@click.option("--address", metavar="ADDRESS", help="A Ray cluster; without it, the one of this machine.")
def serve(given: Given, host: str, port: int, prefix: str, address: str | None, **values: Any) -> None:
    """Answer questions over HTTP: POST /query, and OpenAI's protocol below /v1, for chat front ends.

    Newer snapshots are asked as soon as they are there. Clients send the token that stands in the environment
    variable GRAPHRAG_RAY_TOKEN (Authorization: Bearer …); without one, only this machine is listened to.
    --budget-tokens and --budget-usd are what a question may cost. Ctrl-C or SIGTERM ends the service when the
    questions that run are answered, with exit code 0.

    \b
    Examples:
      graphrag-ray serve --root ./my-index
      GRAPHRAG_RAY_TOKEN=… graphrag-ray serve --root s3://bucket/index --host 0.0.0.0 --replicas 4
    """
    if find_spec("fastapi") is None or find_spec("prometheus_client") is None:
        raise UsageError("`serve` needs Ray Serve: pip install '.[serve]' in the project's folder")
    from pydantic import SecretStr

    from graphrag_ray.engine.gateways import Models, probe
    from graphrag_ray.engine.ray.cluster import connected
    from graphrag_ray.engine.ray.discovery import will_be_private
    from graphrag_ray.query.methods import methods

    options, settings = _options(given, values)
    guarded = _guarded(options, host)
    only_here, options = guarded != options, guarded
    methods.check(options.method, options.level, ())
    private = will_be_private(address)
    if not port:
        # One that stays free until Ray Serve listens: of those that neither Ray nor the system gives away.
        tried = random.sample(range(20_000, 32_000), 100)
        port = next((one for one in tried if not _why_taken(host, one)), 0)
        if not port:
            raise UsageError(f"no free port was found at {host}. Name one by --port")
    elif private and (why := _why_taken(host, port)):
        raise UsageError(f"cannot listen at {host}:{port}: {why}. Name another --port")
    for silent in probe(Models.of(settings), settings, ("map", "reduce", "answer")):
        if silent.asked:
            click.echo(f"Seen from here, {silent}", err=True)
    with connected(address, serving=True):
        from graphrag_ray.engine.ray.cluster import check_nodes
        from graphrag_ray.engine.ray.serving import running
        from graphrag_ray.service.application import build
        from graphrag_ray.store.files import Store

        if not private:
            check_nodes(Store(options.root, settings.storage.of(options.root)), [])
        informs = logging.getLogger("graphrag_ray").isEnabledFor(logging.INFO)
        # Values that this process has, and nodes of a cluster may not have.
        names = {options.token_env, *Models.of(settings).key_variables()}
        values = {name: os.environ.get(name, "").strip() for name in sorted(names)}
        held = {} if private else {name: SecretStr(value) for name, value in values.items() if value}
        with (
            _until_told() as (ready, told),
            running(
                build(options),
                host=host,
                port=port,
                prefix=prefix,
                held=held,
                grace_s=options.grace_s,
                log_level="INFO" if informs else "WARNING",
                log_json=logs.as_json(),
                private=private,
                only_here=only_here,
            ) as own_address,
        ):
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}{prefix.rstrip('/')}"
            if not own_address:
                click.echo(
                    "Ray Serve runs on this cluster already: its own address and port are listened to, not:"
                )
            bearer = f' -H "Authorization: Bearer ${options.token_env}"'
            click.echo(
                f"Serving {options.root} at {url}\nAsk it:\n"
                f"  curl {url}/query{'' if options.allow_anonymous else bearer} "
                """-H 'Content-Type: application/json' -d '{"question": "What are the main themes?"}'\n"""
                f"Chat front ends: base URL {url}/v1, model graphrag-ray. Ctrl-C ends it."
            )
            if own_address and (problem := _problem(options, url)):
                click.echo(f"No question can be answered yet: {problem}", err=True)
            ready.set()
            told.wait()
            click.echo(f"Ending; questions that run have {options.grace_s:g} s.", err=True)


def _options(given: Given, values: Mapping[str, Any]) -> tuple[ServiceOptions, Settings]:
    """And how the newest snapshot is asked. Raises UsageError, SettingsError; IndexNotFound where there is
    nothing to ask."""
    from pydantic import ValidationError

    from graphrag_ray.base.index_settings import of_index
    from graphrag_ray.base.settings_file import read_settings
    from graphrag_ray.base.user_settings import Known
    from graphrag_ray.service.service_options import ServiceOptions

    own = {name: value for name, value in values.items() if value is not None}
    store, manifest = given.snapshot()
    base = of_index(manifest.settings) if given.config is None else None
    settings = read_settings(given.config) if given.config is not None else None
    forms = tuple(forms_of(given.config, given.overrides, given.short, base))
    given.settings(manifest.settings, store.url)  # raises where it must
    # The nodes that serve may be others: they are told what this machine knows.
    known = Known.read(store.url if given.config is None else None)
    try:
        options = ServiceOptions(root=store.url, settings=settings, overrides=forms, known=known, **own)
    except ValidationError as e:
        problems = [(".".join(map(str, p["loc"])), p["msg"]) for p in e.errors(include_url=False)]
        told = "; ".join(f"--{name.replace('_', '-')}: {message}" for name, message in problems)
        raise UsageError(told) from None
    return options, options.settings_of(manifest, settings)


def _guarded(options: ServiceOptions, host: str) -> ServiceOptions:
    """Without a token: on this machine, and by its own name, so that no page of a browser asks in the name of
    who reads it. Raises UsageError for a service that the world could ask, and for a token that nobody can
    send."""
    from graphrag_ray.service.access import check_token

    token = os.environ.get(options.token_env, "").strip()
    check_token(options.token_env, token)
    if token or options.allow_anonymous:
        return options
    if not is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached from other machines, and {options.token_env} is not set, so that "
            "anybody could ask at your cost. Set it, listen at 127.0.0.1, or say --allow-anonymous"
        )
    if {"*", "null"} & {*options.origins}:  # "null" says any page that is shown within another
        raise UsageError(
            "--allow-origin '*' lets every page that a browser shows ask at your cost: set "
            f"{options.token_env}, or name the pages' origin"
        )
    return options.model_copy(update={"allow_anonymous": True, "hosts": (*LOOPBACK, host)})


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _until_told() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Two events: the first is set by who runs the service once it runs, the second by Ctrl-C or SIGTERM.
    Before the first, and at a second signal, all is just broken off."""
    ready, told = threading.Event(), threading.Event()

    def hear(number: int, frame: object) -> None:
        if not ready.is_set() or told.is_set():
            raise KeyboardInterrupt
        told.set()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ready, told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _why_taken(host: str, port: int) -> str:
    """Why nothing can listen there; "" where it can."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as e:
        return str(e.strerror)
    return ""


def _problem(options: ServiceOptions, url: str) -> str:
    """Why the service answers no question; "" where it does, or cannot be asked from here."""
    here = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    token = os.environ.get(options.token_env, "").strip()
    try:
        request = Request(f"{here}/index", headers={"Authorization": f"Bearer {token}"})
        with urlopen(request, timeout=10) as answered:
            return str(json.loads(answered.read()).get("problem", ""))
    except HTTPError as e:
        with e:
            return str(json.loads(e.read()).get("error", {}).get("message", e.reason))
    except (OSError, ValueError):
        return ""
