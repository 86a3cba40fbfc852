"""The limiter that replicas of a service share, on a real Ray cluster but without the service."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import serve
from ray._common.formatters import JSONFormatter

from graphrag_ray.base import logs
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray import limiter_actors, serving
from graphrag_ray.engine.ray.limiter_actors import (
    LINGER_S,
    RayLimiter,
    SharedLimiter,
    start_limiters,
)
from graphrag_ray.llm.limit_headers import RateLimitInfo
from graphrag_ray.llm.limits import CallOutcome

NAMESPACE = "graphrag-ray-tests"
MODEL = "default"


@pytest.fixture
def models(on_ray: None) -> Models:
    """One model that allows one call at a time."""
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "max_in_flight": 1}
    model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}
    return Models.from_settings(parse_settings({"models": {MODEL: model}}))


@pytest.fixture
def prefix() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    if is_there(name):
        ray.kill(ray.get_actor(f"{name}-{MODEL}", NAMESPACE))


def is_there(prefix: str) -> bool:
    return {"name": f"{prefix}-{MODEL}", "namespace": NAMESPACE} in ray.util.list_named_actors(True)


def test_lost_limiter_is_started_again(models: Models, prefix: str):
    async def ask_twice() -> None:
        limiter = SharedLimiter(prefix, "one", models, NAMESPACE)
        assert await limiter.acquire(MODEL, [1], [0]) == (0,)
        ray.kill(ray.get_actor(f"{prefix}-{MODEL}", NAMESPACE))
        assert await limiter.acquire(MODEL, [1], [0]) == (0,)
        limiter.settle(MODEL, 0, 0)
        limiter.close()

    asyncio.run(asyncio.wait_for(ask_twice(), 60))


def test_slots_of_a_closed_replica_become_free(models: Models, prefix: str):
    async def hand_over() -> None:
        before = asyncio.all_tasks()
        one, other = (SharedLimiter(prefix, name, models, NAMESPACE) for name in ("one", "other"))
        assert await one.acquire(MODEL, [1], [0]) == (0,)
        one.close()
        assert await other.acquire(MODEL, [1], [0]) == (0,)
        other.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before  # No replica sends signs of life any more.

    asyncio.run(asyncio.wait_for(hand_over(), 60))


async def waiting_at(actor: Any) -> set[str]:
    found: set[str] = await actor.__ray_call__.remote(
        lambda shell: {waiter[0] for waiter in shell._limiter._lines[MODEL]._waiting.values()}
    )
    return found


def test_request_dropped_by_the_limiter_is_repeated(models: Models, prefix: str):
    """The replica was paused or disconnected for long."""

    async def wait_and_be_forgotten() -> None:
        one, other = (SharedLimiter(prefix, name, models, NAMESPACE) for name in ("one", "other"))
        assert await other.acquire(MODEL, [1], [0]) == (0,)
        waiting = asyncio.ensure_future(one.acquire(MODEL, [1], [0]))
        actor = ray.get_actor(f"{prefix}-{MODEL}", NAMESPACE)
        while one._holder not in await waiting_at(actor):
            await asyncio.sleep(0.05)
        await actor.forget.remote(one._holder)
        await asyncio.sleep(0.5)
        other.settle(MODEL, 0, 0)
        assert await waiting == (0,)
        one.close()
        other.close()

    asyncio.run(asyncio.wait_for(wait_and_be_forgotten(), 60))


@pytest.fixture
def many() -> Models:
    """One model that allows a hundred calls at a time."""
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "max_in_flight": 100}
    model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}
    return Models.from_settings(parse_settings({"models": {MODEL: model}}))


def test_successor_of_a_replica_keeps_its_slots(many: Models, prefix: str, on_ray: None):
    async def replace() -> None:
        old, new = (SharedLimiter(prefix, "one", many, NAMESPACE) for _ in range(2))
        for limiter in (old, new):
            assert await limiter.acquire(MODEL, [1], [0]) == (0,)
        old.close()
        actor = ray.get_actor(f"{prefix}-{MODEL}", NAMESPACE)
        while (in_flight := (await actor.endpoint_states.remote()).endpoints[0].in_flight) == 2:
            await asyncio.sleep(0.05)
        assert in_flight == 1
        new.close()

    asyncio.run(asyncio.wait_for(replace(), 60))


def test_settlements_are_batched_but_endpoint_limits_sent_immediately(
    many: Models, prefix: str, on_ray: None, monkeypatch: pytest.MonkeyPatch
):
    (actor,) = start_limiters(prefix, many, NAMESPACE)

    def seen() -> tuple[int, int]:
        """Return calls in flight and answered, from the actor itself, while our event loop is blocked."""
        (endpoint,) = ray.get(actor.endpoint_states.remote(), timeout=30).endpoints
        return endpoint.in_flight, endpoint.tally.answered

    async def ask_and_settle() -> None:
        limiter = RayLimiter(prefix, "one", [MODEL], NAMESPACE)
        assert len(await limiter.acquire(MODEL, [1] * 100, [0])) == 100
        for _ in range(50):
            limiter.settle(MODEL, 0, 0, CallOutcome(4.0, 100))
        assert seen() == (100, 0), "nothing is sent as yet"
        assert len(await limiter.acquire(MODEL, [1], [0])) == 1, "the question takes them along"
        assert seen() == (51, 50)
        await asyncio.sleep(2 * LINGER_S)
        assert seen() == (51, 50), "and nothing is told twice"
        limiter.settle(MODEL, 0, 0, CallOutcome(4.0, 100))
        while seen() != (50, 51):  # Without a request, it is sent on its own.
            await asyncio.sleep(0.01)
        limiter.settle(MODEL, 0, 0, CallOutcome(4.0, 100))
        limiter.settle(MODEL, 0, 0, CallOutcome(4.0, 100, rate_limits=RateLimitInfo(wait_s=0.1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not limiter._take(MODEL), "what an endpoint told is told at once, and all with it"
        while seen() != (48, 53):  # Ray does not preserve the order of an actor's calls.
            await asyncio.sleep(0.01)
        monkeypatch.setattr(limiter_actors, "LINGER_S", 10.0)
        limiter.settle(MODEL, 0, 0, CallOutcome(400.0, 100))
        await asyncio.sleep(0.02)
        (batch,) = limiter._take(MODEL).values()
        assert batch[0].ended is not None and batch[0].ended.ago_s >= 0.02, "it says how late it is"
        limiter.settle(MODEL, 0, 0, CallOutcome(4.0, 100))
        limiter.send()
        assert not limiter._take(MODEL), "the end of a sweep loses nothing"
        while seen() != (47, 54):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask_and_settle(), 60))


def test_permits_from_before_a_restart_free_no_slots(models: Models, prefix: str):
    (actor,) = start_limiters(prefix, models, NAMESPACE)

    async def ask_twice() -> None:
        limiter = RayLimiter(prefix, "one", [MODEL], NAMESPACE)
        assert await limiter.acquire(MODEL, [1], [0]) == (0,)
        life = ray.get(actor.endpoint_states.remote()).life
        ray.kill(actor, no_restart=False)
        while ray.get(actor.endpoint_states.remote()).life == life:
            time.sleep(0.05)
        assert await limiter.acquire(MODEL, [1], [0]) == (0,)
        limiter.settle(MODEL, 0, 0, CallOutcome(4.0, 100))  # from before the restart
        while not (endpoint := (await actor.endpoint_states.remote()).endpoints[0]).tally.answered:
            await asyncio.sleep(0.01)
        assert endpoint.in_flight == 1

    asyncio.run(asyncio.wait_for(ask_twice(), 60))


def test_unused_limiter_ends(models: Models, prefix: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limiter_actors, "UNUSED_S", 1.0)
    start_limiters(prefix, models, NAMESPACE)
    assert is_there(prefix)
    while is_there(prefix):  # for as long as a test may take
        time.sleep(0.1)


class Controller:
    """An actor with the name of Serve's controller, which shows that Serve runs."""


def test_serve_without_a_token_is_not_used(on_ray: None):
    actor = ray.remote(num_cpus=0)(Controller)
    controller = actor.options(name="SERVE_CONTROLLER_ACTOR", namespace="serve").remote()
    try:
        app = serve.deployment(Controller).bind()
        start = serving.serve_application(
            app,
            host="127.0.0.1",
            port=0,
            prefix="/",
            secrets={},
            grace_s=0,
            private=False,
            loopback_only=True,
        )
        with pytest.raises(UsageError, match="pass --allow-anonymous"), start:
            pass
    finally:
        ray.kill(controller)


def test_replica_logs_contain_neither_keys_nor_exception_messages(on_ray: None):
    name, text = uuid.uuid4().hex, io.StringIO()
    keys = (
        ray.remote(num_cpus=0)(serving.Keys)
        .options(name=f"{name}-keys", namespace=serving.NAMESPACE)
        .remote()
    )
    ray.get(keys.put.remote("SOME_VARIABLE", "correct-horse"))
    assert serving.Replica(name, "one", has_peers=True).fetch_key("SOME_VARIABLE") == "correct-horse"
    ours, theirs = logging.getLogger("graphrag_ray"), logging.getLogger("ray.serve")
    before = ours.handlers, ours.propagate, ours.level
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    theirs.addHandler(handler)
    try:
        serving.log_with_serve()
        try:
            raise ValueError("quoting the document")
        except ValueError:
            logging.getLogger("graphrag_ray.test").exception("it failed with %s", "correct-horse")
            handler.setFormatter(JSONFormatter())
            logging.getLogger("graphrag_ray.test").exception("it failed with %s", "correct-horse")
        logs.log_event(logging.getLogger("graphrag_ray.test"), "it ended", logging.ERROR, seconds=1.5)
    finally:
        theirs.removeHandler(handler)
        ours.handlers, ours.propagate, ours.level = before
        ray.kill(keys)
    line, *as_json = text.getvalue().splitlines()
    assert line.startswith("ERROR it failed with *** ") and "ValueError at test_shared_limiter" in line
    failed, ended = map(json.loads, as_json)
    assert failed["message"] == "it failed with ***" and "ValueError at test_shared" in failed["exception"]
    assert (ended["message"], ended["seconds"], ended["logger"]) == ("it ended", 1.5, "graphrag_ray.test")
    assert "document" not in text.getvalue()
