"""Attempts and retries of the calls of a question, against a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest
from endpoint import Endpoint, Response, Status

from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Message
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.work import Outcome
from graphrag_ray.query.model_calls import FIRST_ATTEMPTS, Asker, Connections

BUSY = Status(503, headers={"Retry-After": "0"})
CALL = CallParameters("default", "m")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrag_ray.llm.model_client.FIRST_BACK_OFF_S", 0.001)


def two_turns(name: str) -> Generator[ChatRequest, ChatReply, str]:
    """Request a reply, and a correction of it."""
    first = yield ChatRequest("map", (Message("user", f"{name} asks"),), CALL)
    second = yield ChatRequest("map", (Message("user", f"{name} corrects {first.text}"),), CALL)
    return second.text


def ask(
    respond: Callable[[str], Response], *names: str, **run: Any
) -> tuple[list[Outcome[str]], list[str], Asker]:
    """Run the dialogues, and return their outcomes and the prompts that the endpoint received."""
    prompts: list[str] = []

    def responds(body: dict[str, Any]) -> Response:
        prompts.append(body["messages"][-1]["content"])
        return respond(prompts[-1])

    with Endpoint(responds) as endpoint:
        described = {"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": 9}
        model = {"provider": "openai", "model": "m", "endpoints": [described]}
        models = Models.from_settings(parse_settings({"models": {"default": model}, "run": run}))

        async def answered() -> tuple[list[Outcome[str]], Asker]:
            async with Asker(Connections(models)) as asker:
                start = [lambda name=name: two_turns(name) for name in names]
                return await asyncio.wait_for(asker.run("map", start), 60), asker

        outcomes, asker = asyncio.run(answered())
    return outcomes, prompts, asker


@pytest.mark.parametrize("most", [2, 6, 8])
def test_call_makes_at_most_the_configured_number_of_attempts(most: int):
    (outcome,), prompts, _ = ask(lambda prompt: BUSY, "A", max_attempts=most)
    assert (len(prompts), outcome.status, outcome.attempts) == (most, "retry", most)
    assert f"attempt {most} of {most}" in outcome.error


def test_answered_turn_is_not_repeated_when_the_next_turn_uses_all_attempts():
    faults = iter([BUSY] * (FIRST_ATTEMPTS + 1))
    (outcome,), prompts, asker = ask(
        lambda prompt: (next(faults, None) if "corrects" in prompt else None) or "Yes.", "A", max_attempts=8
    )
    assert (outcome.status, outcome.result) == ("complete", "Yes.")
    assert [p for p in prompts if "corrects" not in p] == ["A asks"]
    assert len(prompts) == 1 + FIRST_ATTEMPTS + 2
    assert asker.cached == (0, 2), "no reply comes from a cache"


def test_calls_keep_trying_while_another_call_may_still_succeed():
    faults = {"A asks": iter([Status(503)] * FIRST_ATTEMPTS)}
    outcomes, _, _ = ask(lambda prompt: next(faults.get(prompt, iter(())), None) or "Yes.", "A", "B", "C")
    assert [o.status for o in outcomes] == ["complete"] * 3
