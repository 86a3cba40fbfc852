"""The limiter that replicas of a service share: on a real Ray cluster, without the service."""

from __future__ import annotations

import asyncio
import io
import logging
import time
import uuid
from collections.abc import Iterator

import pytest
import ray
from ray import serve

from graphrag_ray.distributed import limits, serving
from graphrag_ray.distributed.limits import SharedLimiter, start_limiters
from graphrag_ray.engine.gateways import Models
from graphrag_ray.errors import UsageError
from graphrag_ray.settings_file import parse_settings

NAMESPACE = "graphrag-ray-tests"
MODEL = "default"


@pytest.fixture
def models(on_ray: None) -> Models:
    """One model that bears one call at once."""
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "max_in_flight": 1}
    model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}
    return Models.of(parse_settings({"models": {MODEL: model}}))


@pytest.fixture
def prefix() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    if is_there(name):
        ray.kill(ray.get_actor(f"{name}-{MODEL}", NAMESPACE))


def is_there(prefix: str) -> bool:
    return {"name": f"{prefix}-{MODEL}", "namespace": NAMESPACE} in ray.util.list_named_actors(True)


def test_a_limiter_that_is_gone_for_good_is_started_again(models: Models, prefix: str):
    async def ask_twice() -> None:
        limiter = SharedLimiter(prefix, "one", models, NAMESPACE)
        assert await limiter.acquire(MODEL, [1], [0]) == (0,)
        ray.kill(ray.get_actor(f"{prefix}-{MODEL}", NAMESPACE))
        assert await limiter.acquire(MODEL, [1], [0]) == (0,)
        limiter.settle(MODEL, 0, 0)
        limiter.close()

    asyncio.run(asyncio.wait_for(ask_twice(), 60))


def test_what_one_had_that_is_closed_is_the_others(models: Models, prefix: str):
    async def hand_over() -> None:
        before = asyncio.all_tasks()
        one, other = (SharedLimiter(prefix, name, models, NAMESPACE) for name in ("one", "other"))
        assert await one.acquire(MODEL, [1], [0]) == (0,)
        one.close()
        assert await other.acquire(MODEL, [1], [0]) == (0,)
        other.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before  # nothing shows itself any more

    asyncio.run(asyncio.wait_for(hand_over(), 60))


def test_a_limiter_that_nobody_uses_ends(models: Models, prefix: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "UNUSED_S", 1.0)
    start_limiters(prefix, models, NAMESPACE)
    assert is_there(prefix)
    while is_there(prefix):  # for as long as a test may take
        time.sleep(0.1)


class Controller:
    """By whose name it is seen that Serve runs."""


def test_without_a_token_a_serve_that_listens_somewhere_is_not_used(on_ray: None):
    actor = ray.remote(num_cpus=0)(Controller)
    controller = actor.options(name="SERVE_CONTROLLER_ACTOR", namespace="serve").remote()
    try:
        app = serve.deployment(Controller).bind()
        start = serving.running(
            app, host="127.0.0.1", port=0, prefix="/", held={}, grace_s=0, private=False, only_here=True
        )
        with pytest.raises(UsageError, match="say --allow-anonymous"), start:
            pass
    finally:
        ray.kill(controller)


def test_what_replicas_log_holds_neither_keys_nor_what_exceptions_quote(on_ray: None):
    name, text = uuid.uuid4().hex, io.StringIO()
    keys = (
        ray.remote(num_cpus=0)(serving.Keys)
        .options(name=f"{name}-keys", namespace=serving.NAMESPACE)
        .remote()
    )
    ray.get(keys.hold.remote("SOME_VARIABLE", "correct-horse"))
    assert serving.Replica(name, "one", several=True).ask_key("SOME_VARIABLE") == "correct-horse"
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
    finally:
        theirs.removeHandler(handler)
        ours.handlers, ours.propagate, ours.level = before
        ray.kill(keys)
    (line,) = text.getvalue().splitlines()
    assert line.startswith("ERROR it failed with *** ") and "ValueError at test_shared_limiter" in line
    assert "document" not in line
