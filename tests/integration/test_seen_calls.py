"""Actor calls are executed once even if their responses are lost."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.ray.limiter_actors import ModelLimiter, RayLimiter, SeenCalls
from graphrag_ray.llm.limits import CallOutcome, FreedPermit


def test_repeated_call_is_executed_once_even_while_it_runs() -> None:
    async def scenario() -> list[int]:
        once, carried_out = SeenCalls(), list[int]()

        async def answer() -> int:
            await asyncio.sleep(0)
            carried_out.append(1)
            return len(carried_out)

        both = await asyncio.gather(*(once.answer("w-1", answer) for _ in range(2)))
        return [*both, *[await once.answer(call, answer) for call in ("v-1", "w-1", "w-2", "w-1")]]

    assert asyncio.run(scenario()) == [1, 1, 2, 1, 3, 1]


def test_oldest_calls_are_forgotten() -> None:
    async def scenario() -> list[int]:
        once, carried_out = SeenCalls(remembered=2), list[int]()

        async def answer() -> int:
            carried_out.append(1)
            return len(carried_out)

        return [await once.answer(call, answer) for call in ("a", "b", "c", "b", "a")]

    assert asyncio.run(scenario()) == [1, 2, 3, 2, 4]


def test_slot_with_a_lost_response_is_granted_and_freed_once():
    async def scenario() -> None:
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

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_unanswered_calls_are_not_forgotten() -> None:
    async def scenario() -> list[int]:
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

    assert asyncio.run(scenario()) == [0, 0]


def test_granted_slots_are_remembered_despite_many_other_calls() -> None:
    """A slot that is granted twice would never become free."""

    async def scenario() -> None:
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

    asyncio.run(asyncio.wait_for(scenario(), 20))


@pytest.mark.parametrize(("holders", "linger_s"), [(1, 0.05), (32, 0.05), (48, 0.075), (64, 0.1), (500, 0.1)])
def test_batches_grow_with_the_number_of_workers(holders: int, linger_s: float) -> None:
    """Each batch takes the limiter almost a millisecond."""

    async def scenario() -> float:
        limiter = RayLimiter("prefix", "w", ())
        limiter._unsent["m"], limiter.holders = {}, holders
        limiter.settle("m", 0, 0, CallOutcome(4.0, 100))
        due = limiter._timers["m"].when() - asyncio.get_running_loop().time()
        limiter._take("m")
        return due

    assert asyncio.run(scenario()) == pytest.approx(linger_s, abs=0.02)
