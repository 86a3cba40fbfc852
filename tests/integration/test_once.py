"""Calls of actors whose answers are lost on the way are carried out once."""

from __future__ import annotations

import asyncio

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.ray.limiter_actors import LimiterShell, Once
from graphrag_ray.llm.limits import Settled


def test_a_call_that_comes_again_is_carried_out_once_even_while_it_is() -> None:
    async def play() -> list[int]:
        once, carried_out = Once(), list[int]()

        async def answer() -> int:
            await asyncio.sleep(0)
            carried_out.append(1)
            return len(carried_out)

        both = await asyncio.gather(*(once.answer("w-1", answer) for _ in range(2)))
        return [*both, *[await once.answer(call, answer) for call in ("v-1", "w-1", "w-2", "w-1")]]

    assert asyncio.run(play()) == [1, 1, 2, 1, 3, 1]


def test_the_oldest_calls_are_forgotten() -> None:
    async def play() -> list[int]:
        once, carried_out = Once(remembered=2), list[int]()

        async def answer() -> int:
            carried_out.append(1)
            return len(carried_out)

        return [await once.answer(call, answer) for call in ("a", "b", "c", "b", "a")]

    assert asyncio.run(play()) == [1, 2, 3, 2, 4]


def test_a_place_whose_answer_was_lost_is_given_once_and_is_free_once_again():
    async def play() -> None:
        endpoint = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "max_in_flight": 2}
        model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}
        limiter = LimiterShell("m", parse_settings({"models": {"default": model}}).models["default"], 1)
        lost, again = [await limiter.acquire("w-1", "m", [1], [0], "w", {}) for _ in range(2)]
        assert again == lost and limiter._limiter.in_flight("m") == (1,)
        await limiter.acquire("w-2", "m", [1], [0], "w", {})
        for _ in range(2):
            await limiter.settle("o-1", "m", {lost.life: [Settled(0, 0, None)]}, "w")
        assert limiter._limiter.in_flight("m") == (1,)
        await limiter.forget("w", "o-2")
        await limiter.acquire("w-3", "m", [1], [0], "w", {})
        await limiter.forget("w", "o-2")
        assert limiter._limiter.in_flight("m") == (1,)

    asyncio.run(asyncio.wait_for(play(), 10))
