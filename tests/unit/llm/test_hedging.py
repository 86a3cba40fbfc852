import asyncio
from dataclasses import replace

import pytest
from scripted import HELLO, PRICE, FakeClient, World, chat

from graphrag_ray.base.errors import TransientCallError
from graphrag_ray.base.messages import ChatReply, Usage
from graphrag_ray.llm.hedging import (
    CHECK_INTERVAL_S,
    MAX_HEDGED_SHARE,
    MAX_REQUESTS,
    MIN_SEEN,
    CallDurations,
    race,
)
from graphrag_ray.llm.limiter import Permit

SECOND = ChatReply("Second.", usage=Usage(100, 50))


class SlowOnce(FakeClient):
    """Answers immediately, but from call number `slow_from` on, never."""

    def __init__(self, *script, slow_from=MIN_SEEN, **more):
        super().__init__(*script, **more)
        self.slow_from = slow_from
        self.cancelled = 0

    async def chat(self, request, prompt_tokens=None, listener=None):
        reply = await self._next(request)
        if len(self.seen) > self.slow_from:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return reply


class Hedged(World):
    """Sends a hedge as soon as the usual duration is known, because its sleeps are short."""

    def __init__(self, *clients, hedge=True, **more):
        super().__init__(*clients, hedge=hedge, **more)

    async def _sleep(self, seconds):
        self.slept.append(seconds)
        await asyncio.sleep(0.01)

    def answers(self, last="Last."):
        return self.run_in_turn([*(chat(f"Say hello {i}.") for i in range(MIN_SEEN)), chat(last)])

    def run_in_turn(self, requests):
        async def run_each():
            try:
                return [await asyncio.wait_for(self.gateway.ask(r, "stage"), 10) for r in requests]
            finally:
                await self.gateway.close()

        return asyncio.run(run_each())


def pair(second, **more):
    """Two endpoints. The first gets all calls except hedges, and is slow after the start."""
    first = SlowOnce(HELLO, display_address="http://a/v1")
    world = Hedged(first, second, **more)
    world.gateway._models["default"]._pool.usable = usable_of(world)
    return first, world


def usable_of(world):
    def usable(now, tokens, other_than=None):
        endpoints = [0] if len(world.limiter.asked) <= MIN_SEEN else [0, 1]
        return [i for i in endpoints if i != other_than] or endpoints

    return usable


def test_a_slow_call_is_hedged_elsewhere_and_the_first_answer_counts():
    other = FakeClient(SECOND, display_address="http://b/v1")
    first, world = pair(other)
    assert world.answers()[-1] == SECOND
    assert (len(first.seen), len(other.seen), first.cancelled) == (MIN_SEEN + 1, 1, 1)
    assert world.in_flight() == 0
    record = world.records[-1]
    assert (record.attempts, record.hedged, record.endpoint) == (1, 1, "http://b/v1")
    assert record.status == "ok"


def test_the_cancelled_request_is_assumed_to_cost_as_much():
    _, world = pair(FakeClient(SECOND, price=PRICE))
    world.answers()
    record = world.records[-1]
    assert record.usage == Usage(200, 100, reported=False)
    assert record.cost_usd == pytest.approx(400e-6)
    assert world.limiter.settled[-1] == 0, "its reservation is not refunded"


def test_hedges_are_counted_separately_from_retries():
    from graphrag_ray.llm.accounting import Accounts

    _, world = pair(FakeClient(SECOND))
    world.answers()
    accounts = Accounts()
    for record in world.records:
        accounts.add(record)
    total = Accounts.from_dict(accounts.to_dict()).total
    assert (total.requests, total.retries, total.hedged) == (MIN_SEEN + 2, 0, 1)


def test_hedges_that_fail_change_nothing():
    class Late(SlowOnce):
        async def chat(self, request, prompt_tokens=None, listener=None):
            reply = await self._next(request)
            if len(self.seen) > self.slow_from:
                await asyncio.sleep(0.2)
            return reply

    other = FakeClient(*[TransientCallError("down")] * 2, display_address="http://b/v1")
    first = Late(HELLO, display_address="http://a/v1")
    world = Hedged(first, other)
    world.gateway._models["default"]._pool.usable = usable_of(world)
    assert world.answers()[-1] == HELLO
    assert len(other.seen) == MAX_REQUESTS - 1
    assert world.records[-1].endpoint == "http://a/v1"
    assert world.records[-1].usage == Usage(100, 50)
    assert world.in_flight() == 0


def test_with_one_endpoint_the_hedge_goes_there_too():
    class SlowThenQuick(SlowOnce):
        async def chat(self, request, prompt_tokens=None, listener=None):
            self.slow_from = MIN_SEEN if len(self.seen) == MIN_SEEN else 10**9
            return await super().chat(request, prompt_tokens)

    client = SlowThenQuick(HELLO)
    world = Hedged(client)
    assert world.answers()[-1] == HELLO
    assert len(client.seen) == MIN_SEEN + 2
    assert world.in_flight() == 0


def test_hedging_is_off_by_default():
    async def scenario():
        client = SlowOnce(HELLO)
        world = Hedged(client, hedge=False)
        for i in range(MIN_SEEN):
            await world.gateway.ask(chat(f"Say hello {i}."), "stage")
        slow = asyncio.ensure_future(world.gateway.ask(chat(), "stage"))
        await asyncio.sleep(0.1)
        assert len(client.seen) == MIN_SEEN + 1
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        await world.gateway.close()
        assert world.in_flight() == 0

    asyncio.run(scenario())


def test_cancelling_a_call_cancels_its_hedge():
    async def scenario():
        first = SlowOnce(HELLO)
        other = SlowOnce(HELLO, slow_from=0)
        world = Hedged(first, other)
        world.gateway._models["default"]._pool.usable = usable_of(world)
        for i in range(MIN_SEEN):
            await world.gateway.ask(chat(f"Say hello {i}."), "stage")
        slow = asyncio.ensure_future(world.gateway.ask(chat(), "stage"))
        await asyncio.sleep(0.2)
        assert len(other.seen) == MAX_REQUESTS - 1
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert (first.cancelled, other.cancelled) == (1, MAX_REQUESTS - 1)
        assert world.in_flight() == 0
        await world.gateway.close()

    asyncio.run(scenario())


def test_no_call_is_slow_before_enough_calls_were_seen():
    durations = CallDurations()
    for _ in range(MIN_SEEN - 1):
        durations.note("extract", 1.0)
    assert durations.slow_s("extract") is None
    durations.note("extract", 1.0)
    assert durations.slow_s("extract") == pytest.approx(1.0, rel=0.1)
    assert durations.slow_s("report") is None


def test_one_call_in_a_hundred_is_slow():
    durations = CallDurations()
    for i in range(1000):
        durations.note("extract", 8.0 if i % 200 == 0 else 1.0 + i % 10 / 100)
    assert 1.0 <= durations.slow_s("extract") <= 1.3


def test_one_call_in_four_is_slow_when_nothing_is_left_to_send():
    durations = CallDurations()
    for i in range(1000):
        durations.note("extract", 8.0 if i % 5 == 0 else 1.0)
    assert durations.slow_s("extract") == pytest.approx(8.0, rel=0.1)
    assert durations.slow_s("extract", finishing=True) == pytest.approx(1.0, rel=0.1)


def test_after_many_hedges_one_call_in_a_hundred_is_slow_even_at_the_end():
    durations = CallDurations()
    for i in range(1000):
        durations.note("extract", 8.0 if i % 5 == 0 else 1.0)
    for _ in range(round(1000 * MAX_HEDGED_SHARE)):
        assert durations.slow_s("extract", finishing=True) == pytest.approx(1.0, rel=0.1)
        durations.count_hedge("extract")
    assert durations.slow_s("extract", finishing=True) == pytest.approx(8.0, rel=0.1)


def test_a_running_call_is_hedged_sooner_once_nothing_is_left_to_send():
    """100 calls take 1 s and some 60 s. The sleeps show after which time a call is slow."""
    ended = False

    async def scenario():
        nonlocal ended
        client = SlowOnce(HELLO)
        other = FakeClient(SECOND, display_address="http://b/v1")
        world = Hedged(client, other)
        client = world.gateway._models["default"]
        client._pool.usable = usable_of(world)
        client._runtime = replace(client._runtime, nothing_queued=lambda: ended)
        for i in range(MIN_SEEN):
            await world.gateway.ask(chat(f"Say hello {i}."), "stage")
        for _ in range(5):
            client._durations.note("map", 3600.0)
        slow = asyncio.ensure_future(world.gateway.ask(chat("Last."), "stage"))
        await asyncio.sleep(0.1)
        assert not other.seen, "the pause of an hour is not over"
        ended = True
        assert await asyncio.wait_for(slow, 5) == SECOND
        await world.gateway.close()

    asyncio.run(scenario())


class Requests:
    """The requests of a race, each with its duration (None: forever) and its result."""

    def __init__(self, *requests):
        self.requests, self.permits, self.cancelled, self.back = list(requests), [], [], []

    async def send(self, permit):
        self.permits.append(permit.endpoint)
        seconds, result = self.requests[len(self.permits) - 1]
        try:
            await asyncio.sleep(60 if seconds is None else seconds)
        except asyncio.CancelledError:
            self.cancelled.append(permit.endpoint)
            raise
        return result

    async def another(self):
        return Permit(len(self.permits), 100)

    def race(self, slow_s=lambda: 1.0, slept=None, another=None):
        async def sleep(seconds):
            if slept is not None:
                slept.append(seconds)
            await asyncio.sleep(0.001)

        racing = race(
            Permit(0, 100), slow_s, self.send, another or self.another, self.back.append, bool, sleep
        )
        return asyncio.run(asyncio.wait_for(racing, 10))


def test_a_call_is_hedged_once_enough_other_calls_were_seen():
    known, slept = iter([None, None]), []
    requests = Requests((None, ""), (0, "second"))
    raced = requests.race(lambda: next(known, 3.5), slept)
    assert raced == ("second", 1, (0,))
    assert slept[:4] == [CHECK_INTERVAL_S] * 3 + [0.5]


def test_a_refused_hedge_is_followed_by_a_third_request():
    requests = Requests((None, ""), (0, None), (0, "third"))
    raced = requests.race()
    assert raced == ("third", 2, (0,))


def test_a_slow_hedge_is_followed_by_a_third_request_but_no_fourth():
    requests = Requests((0.5, "first"), (None, ""), (None, ""), (0, "fourth"))
    raced = requests.race()
    assert raced == ("first", 0, (1, 2))
    assert sorted(requests.cancelled) == [1, 2]


def test_a_first_request_that_fails_is_not_hedged():
    requests = Requests((0, None))
    raced = requests.race(lambda: None)
    assert (*raced[:2], requests.permits) == (None, 0, [0])


def test_without_another_permit_the_first_request_is_awaited():
    async def none():
        raise RuntimeError("no endpoint is left")

    raced = Requests((0.2, "first")).race(another=none)
    assert (raced[0], raced[2]) == ("first", ())
