import asyncio
import time

import pytest

from graphrag_ray.base.connection_settings import Endpoint, Model
from graphrag_ray.llm.limiter import LocalLimiter


def limiter(**endpoint):
    model = Model(provider="openai", model="m", endpoints=(Endpoint(**endpoint),))
    return LocalLimiter({"m": model, "off": Model()}, initial_in_flight=2)


def test_a_permit_is_granted_when_another_call_ends():
    async def scenario():
        limits = limiter(max_in_flight=1)
        assert list(await limits.acquire("m", [1, 1], [0])) == [0]
        second = asyncio.ensure_future(limits.acquire("m", [1], [0]))
        await asyncio.sleep(0.02)
        assert not second.done()
        limits.settle("m", 0, 0)
        assert list(await second) == [0]

    asyncio.run(scenario())


def test_waiting_times_match_the_rate():
    async def scenario():
        limits = limiter(requests_per_minute=6000)
        started = time.monotonic()
        got = 0
        while got < 30:
            got += len(await limits.acquire("m", [1] * (30 - got), [0]))
        return time.monotonic() - started

    assert 0.28 <= asyncio.run(scenario()) <= 2.0


def test_waiting_does_not_block_the_event_loop():
    async def scenario():
        limits = limiter(requests_per_minute=60)
        waiter = asyncio.ensure_future(limits.acquire("m", [1], [0]))
        gaps, last = [], time.monotonic()
        for _ in range(20):
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
        assert not waiter.done()
        waiter.cancel()
        return max(gaps)

    assert asyncio.run(scenario()) < 0.5


@pytest.mark.parametrize("granted_first", [True, False])
def test_a_cancelled_waiter_releases_its_permit(granted_first):
    async def scenario():
        limits = limiter(max_in_flight=1)
        await limits.acquire("m", [1], [0])
        waiter = asyncio.ensure_future(limits.acquire("m", [1], [0]))
        await asyncio.sleep(0)
        if granted_first:
            limits.settle("m", 0, 0)  # cancelled after its permit was granted, but before it wakes
            waiter.cancel()
        else:
            waiter.cancel()
            limits.settle("m", 0, 0)  # cancelled while it is still in the queue
        await asyncio.gather(waiter, return_exceptions=True)
        assert list(await asyncio.wait_for(limits.acquire("m", [1], [0]), 1)) == [0]
        assert limits.in_flight("m") == (1,)

    asyncio.run(scenario())


def test_a_429_makes_a_waiting_caller_wait():
    async def scenario():
        limits = limiter(max_in_flight=5)
        started = time.monotonic()
        limits.penalise("m", 0, 0.15)
        await limits.acquire("m", [1], [0])
        return time.monotonic() - started

    assert asyncio.run(scenario()) >= 0.14


def test_a_limiter_can_be_used_in_several_event_loops():
    limits = limiter(max_in_flight=1)

    async def leave_a_waiter():
        await limits.acquire("m", [1], [0])
        waiter = asyncio.ensure_future(limits.acquire("m", [1], [0]))
        await asyncio.sleep(0.01)
        assert not waiter.done()

    async def use():
        limits.settle("m", 0, 0)
        return await asyncio.wait_for(limits.acquire("m", [1], [0]), 1)

    asyncio.run(leave_a_waiter())
    assert list(asyncio.run(use())) == [0]


def test_others_get_the_permits_of_a_dead_holder():
    async def scenario():
        limits = limiter(max_in_flight=1)
        await limits.acquire("m", [1], [0], holder="dead")
        waiter = asyncio.ensure_future(limits.acquire("m", [1], [0], holder="alive"))
        await asyncio.sleep(0)
        limits.drop_holder("dead")
        assert list(await asyncio.wait_for(waiter, 1)) == [0]

    asyncio.run(scenario())


def test_only_the_first_request_of_a_process_goes_on_credit():
    async def first_request(lend_first):
        model = Model(
            provider="openai",
            model="m",
            endpoints=(Endpoint(base_url="http://lent/v1", tokens_per_minute=60_000),),
        )
        limits = LocalLimiter({"m": model}, 2, lend_first=lend_first)
        try:
            await asyncio.wait_for(limits.acquire("m", [30_000], [0]), 0.2)
        except TimeoutError:
            return "waits"
        return "goes"

    async def scenario():
        return [await first_request(False), await first_request(True), await first_request(True)]

    assert asyncio.run(scenario()) == ["waits", "goes", "waits"]
