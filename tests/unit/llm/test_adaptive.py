import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_server import MIXTURE_MEAN, Server, World, batching, fixed, sharing

from graphrag_ray.base.connection_settings import Endpoint
from graphrag_ray.engine.ray.limiter_actors import MAX_LINGER_S
from graphrag_ray.llm.adaptive import MAX_BOUND, AdaptiveBound
from graphrag_ray.llm.limits import CallOutcome, LimiterState

SERVERS = {
    "16 slots": fixed(16),
    "64 slots": fixed(64),
    "200 slots": fixed(200),
    "500 slots": fixed(500),
    "32 shares": sharing(32 * 60),
    "200 shares": sharing(200 * 60),
    "batches of 256": batching(256),
    "batches of 256, slower when full": batching(256, 0.010, 0.00012),
}


def short(rng):
    return rng.randint(20, 150)


SHORT_MEAN = 85.0


def measure(world, mean_tokens, start, end):
    """Return the share of the best throughput, and calls in flight relative to those needed for 90% of it."""
    best = world.server.best(mean_tokens) * (1.0 - world.lost_share) / (1.0 + 7.0 * world.slow_share)
    return (
        world.throughput(start, end) / best,
        world.mean_in_flight(start, end) / world.server.needed(),
    )


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_best_throughput_is_found_within_a_minute_and_without_a_queue(name, seed):
    world = World(SERVERS[name], short, seed=seed).run(120.0)
    share, in_flight = measure(world, SHORT_MEAN, 60.0, 120.0)
    assert share >= 0.9
    assert in_flight <= 2.0


@pytest.mark.parametrize("name", ["16 slots", "200 slots", "200 shares", "batches of 256"])
def test_calls_that_are_reported_in_batches_do_not_mislead(name):
    world = World(SERVERS[name], short, lag_s=MAX_LINGER_S).run(120.0)
    share, in_flight = measure(world, SHORT_MEAN, 60.0, 120.0)
    assert share >= 0.88
    assert in_flight <= 2.0


def test_the_bound_follows_the_server_if_calls_are_reported_in_batches():
    world = World(fixed(40), short, seed=2, lag_s=MAX_LINGER_S).run(90.0)
    world.server = fixed(80)
    world.run(210.0)
    share, in_flight = measure(world, SHORT_MEAN, 150.0, 210.0)
    assert share >= 0.88
    assert in_flight <= 2.0


@pytest.mark.parametrize("name", SERVERS)
def test_short_replies_among_long_ones_do_not_mislead(name):
    world = World(SERVERS[name], seed=3).run(150.0)
    share, in_flight = measure(world, MIXTURE_MEAN, 75.0, 150.0)
    assert share >= 0.88
    assert in_flight <= 2.0


def of_ten_seconds(rng):
    return rng.randint(340, 800)


TEN_SECONDS_MEAN = 570.0


@pytest.mark.parametrize("slots", [64, 256])
def test_ten_second_calls_have_the_best_throughput_in_the_second_minute(slots):
    world = World(fixed(slots), of_ten_seconds).run(120.0)
    first, _ = measure(world, TEN_SECONDS_MEAN, 0.0, 60.0)
    second, in_flight = measure(world, TEN_SECONDS_MEAN, 60.0, 120.0)
    assert first >= 0.5
    assert second >= 0.85
    assert in_flight <= 2.0


@pytest.mark.parametrize("slots", [4, 16])
def test_a_start_that_is_far_too_high_is_detected_from_the_first_calls(slots):
    world = World(fixed(slots), of_ten_seconds).run(300.0)
    assert max(n for _, n, _ in world.samples) <= 64
    assert measure(world, TEN_SECONDS_MEAN, 60.0, 300.0)[0] >= 0.85
    assert world.samples[-1][1] <= 32


def test_a_few_slow_and_lost_calls_do_not_mislead():
    world = World(fixed(100), short, slow_share=0.01, lost_share=0.03).run(150.0)
    share, in_flight = measure(world, SHORT_MEAN, 60.0, 150.0)
    assert share >= 0.88
    assert in_flight <= 2.0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (fixed(40), fixed(80)),
        (fixed(80), fixed(40)),
        (sharing(6_000), sharing(12_000)),
        (sharing(12_000), sharing(6_000)),
        (batching(128), batching(256)),
        (batching(256), batching(128)),
    ],
    ids=["slots x2", "slots /2", "shares x2", "shares /2", "batches x2", "batches /2"],
)
def test_the_bound_follows_the_server_within_a_minute(before, after):
    world = World(before, short, seed=2).run(90.0)
    world.server = after
    world.run(210.0)
    share, in_flight = measure(world, SHORT_MEAN, 150.0, 210.0)
    assert share >= 0.9
    assert in_flight <= 2.0


def test_the_bound_stays_just_below_the_load_at_which_calls_are_refused():
    server = Server(50, lambda n: 60.0, max_in_flight=60)
    world = World(server, short).run(150.0)
    share, in_flight = measure(world, SHORT_MEAN, 60.0, 150.0)
    assert share >= 0.85
    assert in_flight <= 60 / server.needed()


def bound_after(limits, now, n=400):
    """Return the bound after these events."""
    ticket = limits.ask("w", [1] * n, [0])
    got = 0
    while granted := limits.grants(now)[0]:
        got += sum(len(g.endpoints) for g in granted)
        ticket = limits.ask("w", [1] * n, [0])
    limits.withdraw(ticket)
    return got


def test_a_429_lowers_the_bound_once_for_all_calls_in_flight():
    limits = LimiterState([Endpoint()], 50, 0.0)
    assert bound_after(limits, 0.0) == 50
    for _ in range(20):
        limits.penalise(1.0, 0, 0.1)
        limits.settle(1.0, "w", 0, 0, CallOutcome(1.0, 0, False))
    assert bound_after(limits, 2.0) == 40 - 30


def test_without_demand_the_bound_does_not_grow():
    world = World(fixed(500), short, demand=20).run(120.0)
    assert world.limits.in_flight[0] <= 20
    world.demand = float("inf")
    world.run(world.now + 0.5)
    assert world.in_flight <= 64


def test_a_few_failures_do_not_lower_an_unused_bound():
    bound = AdaptiveBound(64, 0.0)
    for i in range(5_000):
        bound.ended(i * 0.1, 10, 1.0, 100, i % 30 != 0)
    assert bound.bound == 64


def test_many_failures_lower_the_bound():
    bound = AdaptiveBound(64, 0.0)
    for i in range(40):
        bound.ended(10.0 + i * 0.1, 64, 1.0, 100, i % 2 == 0)
    assert bound.bound == round(64 * 0.8)


def test_a_configured_bound_does_not_change():
    limits = LimiterState([Endpoint(max_in_flight=8)], 64, 0.0)
    for i in range(400):
        bound_after(limits, i * 0.01)
        limits.settle(i * 0.01, "w", 0, 0, CallOutcome(1.0, 100))
    assert bound_after(limits, 5.0) + sum(limits.in_flight) - 8 <= 8
    assert limits.in_flight == (8,)


def test_two_endpoints_without_limits_each_find_their_own_bound():
    limits = LimiterState([Endpoint(), Endpoint()], 8, 0.0)
    slots, running, queued, now, done = (6, 60), ([], []), ([], []), 0.0, [0, 0]
    for _ in range(12_000):
        ticket = limits.ask("w", [1] * 100, [0, 1])
        for grant in limits.grants(now)[0]:
            for endpoint in grant.endpoints:
                queued[endpoint].append(now)
        limits.withdraw(ticket)
        for i in (0, 1):
            while queued[i] and len(running[i]) < slots[i]:
                running[i].append((now + 0.5, queued[i].pop(0)))
            while running[i] and running[i][0][0] <= now:
                _, sent_at = running[i].pop(0)
                done[i] += now > 60.0
                limits.settle(now, "w", i, 0, CallOutcome(now - sent_at, 50))
        now += 0.01
    assert done[0] / 60.0 >= 0.85 * slots[0] / 0.5
    assert done[1] / 60.0 >= 0.85 * slots[1] / 0.5
    assert limits.in_flight[0] <= 4 * slots[0]


@given(
    st.lists(
        st.tuples(
            st.floats(-50.0, 50.0),
            st.floats(0.0, 1e6),
            st.integers(0, 100_000),
            st.sampled_from([True, True, True, False]),
        ),
        max_size=300,
    ),
    st.integers(1, 100),
)
def test_the_bound_is_always_at_least_one(calls, start):
    bound = AdaptiveBound(start, 0.0)
    now = 0.0
    for jump, latency_s, tokens, ok in calls:
        now += jump
        bound.ended(now, bound.bound, latency_s, tokens, ok)
        if not ok and tokens % 3 == 0:
            bound.refused(now, bound.bound)
        assert 1 <= bound.bound <= MAX_BOUND
