"""Calls of actors whose answers are lost on the way are carried out once."""

from __future__ import annotations

import asyncio

import pytest

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.ray.limiter_actors import Answers, Call, LimiterShell
from graphrag_ray.llm.limits import Settled


def test_a_call_that_comes_again_is_carried_out_once_even_while_it_is():
    async def play() -> list[int]:
        answers, carried_out = Answers(), list[int]()

        async def answer() -> int:
            await asyncio.sleep(0)
            carried_out.append(1)
            return len(carried_out)

        both = await asyncio.gather(*(answers.once(Call("w", 1), answer) for _ in range(2)))
        others = await answers.once(Call("v", 1), answer)
        return [
            *both,
            await answers.once(Call("w", 1), answer),
            others,
            await answers.once(Call("w", 2), answer),
        ]

    assert asyncio.run(play()) == [1, 1, 1, 2, 3]


def test_a_call_that_comes_after_a_later_one_is_not_carried_out():
    async def play() -> None:
        answers = Answers()

        async def answer() -> None: ...

        await answers.once(Call("w", 2), answer)
        with pytest.raises(ValueError, match="came late"):
            await answers.once(Call("w", 1), answer)

    asyncio.run(play())


def test_a_place_whose_answer_was_lost_is_given_once_and_is_free_once_again():
    async def play() -> None:
        endpoint = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "max_in_flight": 2}
        model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}
        limiter = LimiterShell("m", parse_settings({"models": {"default": model}}).models["default"], 1)
        lost, again = [await limiter.acquire(Call("w", 1), "m", [1], [0], "w", {}) for _ in range(2)]
        assert again == lost and limiter._limiter.in_flight("m") == (1,)
        await limiter.acquire(Call("w", 2), "m", [1], [0], "w", {})
        for _ in range(2):
            await limiter.settle(Call("w's others", 1), "m", {lost.life: [Settled(0, 0, None)]}, "w")
        assert limiter._limiter.in_flight("m") == (1,)
        await limiter.forget("w", Call("w's others", 2))
        await limiter.acquire(Call("w", 3), "m", [1], [0], "w", {})
        await limiter.forget("w", Call("w's others", 2))
        assert limiter._limiter.in_flight("m") == (1,)

    asyncio.run(asyncio.wait_for(play(), 10))
