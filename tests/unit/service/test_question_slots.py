"""Limits on running and waiting questions."""

from __future__ import annotations

import asyncio

import pytest

from graphrag_ray.service.answering import QuestionSlots
from graphrag_ray.service.faults import QuestionRejected


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_questions_are_refused_when_too_many_are_waiting():
    async def scene() -> None:
        slots, over, run = QuestionSlots(2, 1), asyncio.Event(), []

        async def question(name: str) -> None:
            async with slots.acquire():
                run.append(name)
                await over.wait()

        asked = [asyncio.ensure_future(question(name)) for name in "abc"]
        await settle()
        assert run == ["a", "b"] and (slots.running, slots.waiting) == (2, 1)
        with pytest.raises(QuestionRejected) as caught:
            await question("d")
        assert caught.value.fault.status == 429 and 1 <= (caught.value.fault.retry_after_s or 0) <= 60
        over.set()
        await asyncio.gather(*asked)
        assert run == ["a", "b", "c"] and (slots.running, slots.waiting) == (0, 0)

    asyncio.run(scene())


def test_a_cancelled_question_stops_waiting():
    async def scene() -> None:
        slots = QuestionSlots(1, 5)
        over = asyncio.Event()

        async def question() -> None:
            async with slots.acquire():
                await over.wait()

        first, second = asyncio.ensure_future(question()), asyncio.ensure_future(question())
        await settle()
        second.cancel()
        await settle()
        assert (slots.running, slots.waiting) == (1, 0)
        first.cancel()
        await settle()
        over.set()
        await asyncio.wait_for(question(), 1)

    asyncio.run(scene())
