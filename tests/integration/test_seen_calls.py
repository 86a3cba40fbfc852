"""Calls of actors whose answers are lost on the way are carried out once."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.ray.limiter_actors import ModelLimiter, RayLimiter, SeenCalls
from graphrag_ray.llm.limits import CallOutcome, FreedPermit


def test_a_call_that_comes_again_is_carried_out_once_even_while_it_is() -> None:
    async def play() -> list[int]:
        once, carried_out = SeenCalls(), list[int]()

        async def answer() -> int:
            await asyncio.sleep(0)
            carried_out.append(1)
            return len(carried_out)

        both = await asyncio.gather(*(once.answer("w-1", answer) for _ in range(2)))
        return [*both, *[await once.answer(call, answer) for call in ("v-1", "w-1", "w-2", "w-1")]]

    assert asyncio.run(play()) == [1, 1, 2, 1, 3, 1]


def test_the_oldest_calls_are_forgotten() -> None:
    async def play() -> list[int]:
        once, carried_out = SeenCalls(remembered=2), list[int]()

        async def answer() -> int:
            carried_out.append(1)
            return len(carried_out)

        return [await once.answer(call, answer) for call in ("a", "b", "c", "b", "a")]

    assert asyncio.run(play()) == [1, 2, 3, 2, 4]


def test_a_place_whose_answer_was_lost_is_given_once_and_is_free_once_again():
    async def play() -> None:
        endpoint = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, "max_in_flight": 2}
        model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}
        limiter = ModelLimiter("m", parse_settings({"models": {"default": model}}).models["default"], 1)
        lost, again = [await limiter.acquire("w-1", "m", [1], [0], "w", {}) for _ in range(2)]
        assert again == lost and limiter._limiter.in_flight("m") == (1,)
        await limiter.acquire("w-2", "m", [1], [0], "w", {})
        for _ in range(2):
            await limiter.settle("o-1", "m", {lost.life: [FreedPermit(0, 0, None)]}, "w")
        assert limiter._limiter.in_flight("m") == (1,)
        await limiter.forget("w", "o-2")
        await limiter.acquire("w-3", "m", [1], [0], "w", {})
        await limiter.forget("w", "o-2")
        assert limiter._limiter.in_flight("m") == (1,)

    asyncio.run(asyncio.wait_for(play(), 10))


def test_what_is_not_answered_yet_is_not_forgotten() -> None:
    async def play() -> list[int]:
        once, answers = (
            SeenCalls(remembered=2),
            [asyncio.get_running_loop().create_future() for _ in range(2)],
        )

        async def waits(answer: asyncio.Future[int]) -> int:
            return await answer

        first = asyncio.ensure_future(once.answer("a", partial(waits, answers[0])))
        await asyncio.sleep(0)
        for number in range(9):
            await once.answer(f"b-{number}", partial(asyncio.sleep, 0))
        again = asyncio.ensure_future(once.answer("a", partial(waits, answers[1])))
        await asyncio.sleep(0)
        for number, answer in enumerate(answers):
            answer.set_result(number)
        return [await first, await again]

    assert asyncio.run(play()) == [0, 0]


def test_what_was_given_is_known_however_often_others_call() -> None:
    """A place that was given twice would be taken for ever."""

    async def play() -> None:
        endpoint = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None}
        model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}
        limiter = ModelLimiter("m", parse_settings({"models": {"default": model}}).models["default"], 9)
        await limiter.acquire("w-1", "m", [1], [0], "w", {})
        for number in range(10_001):
            await limiter.settle(f"o-{number}", "m", {}, "other")
        await limiter.acquire("w-1", "m", [1], [0], "w", {})
        assert limiter._limiter.in_flight("m") == (1,)
        await limiter.forget("w")
        await limiter.forget("other")
        assert limiter._limiter.in_flight("m") == (0,) and not limiter._seen_calls

    asyncio.run(asyncio.wait_for(play(), 20))


@pytest.mark.parametrize(("holders", "linger_s"), [(1, 0.05), (32, 0.05), (48, 0.075), (64, 0.1), (500, 0.1)])
def test_the_more_there_are_the_longer_each_gathers_what_it_settles(holders: int, linger_s: float) -> None:
    """Each batch takes the limiter most of a millisecond."""

    async def play() -> float:
        limiter = RayLimiter("prefix", "w", ())
        limiter._unsent["m"], limiter.holders = {}, holders
        limiter.settle("m", 0, 0, CallOutcome(4.0, 100))
        due = limiter._timers["m"].when() - asyncio.get_running_loop().time()
        limiter._take("m")
        return due

    assert asyncio.run(play()) == pytest.approx(linger_s, abs=0.02)
