import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.connection_settings import Endpoint
from graphrag_ray.base.errors import RequestTooLarge
from graphrag_ray.llm.limits import MAX_GROUP, CallOutcome, LimiterState


def state(*endpoints, initial_in_flight=64, now=0.0):
    return LimiterState(endpoints, initial_in_flight, now)


def ask(limits, wants, now=0.0, holder="w", usable=(0,)):
    """Queue a ticket, and return the endpoints that are granted immediately."""
    ticket = limits.ask(holder, wants, usable)
    granted, _ = limits.grants(now)
    endpoints_of_ticket = [g.endpoints for g in granted if g.ticket == ticket]
    if not endpoints_of_ticket:
        limits.withdraw(ticket)
    return list(endpoints_of_ticket[0]) if endpoints_of_ticket else []


def test_the_default_bounds_calls_in_flight_without_limits():
    limits = state(Endpoint(), initial_in_flight=3)
    assert ask(limits, [10] * 5) == [0, 0, 0]
    assert ask(limits, [10]) == []
    limits.settle(0.0, "w", 0, 0)
    assert ask(limits, [10] * 5) == [0]
    assert limits.in_flight == (3,)


def test_a_restarted_limiter_does_not_allow_a_burst():
    """The grants of the first limiter and of its successor together stay below the rate."""
    limits = state(Endpoint(requests_per_minute=6_000))
    limits.grants(0.0)
    before = len(ask(limits, [1] * 1000, now=10.0))
    again = state(Endpoint(requests_per_minute=6_000), now=10.0)
    assert before > 0
    assert ask(again, [1] * 1000, now=10.0) == []
    assert len(ask(again, [1] * 1000, now=10.05)) <= 5


def test_one_request_goes_immediately_on_credit_and_later_ones_pay_it_back():
    limits = state(Endpoint(tokens_per_minute=60_000))
    limits.lend(0.0, [0])
    assert len(ask(limits, [20_000, 100, 100])) == 1
    assert ask(limits, [100], now=15.0) == []
    gone, now = 20_000, 0.0
    while now < 60.0:
        gone += 1_000 * len(ask(limits, [1_000] * 3, now=now))
        now += 0.5
    assert gone <= 60_000


def test_max_in_flight_bounds_all_holders_together():
    limits = state(Endpoint(max_in_flight=5))
    assert len(ask(limits, [10] * 3, holder="a")) == 3
    assert len(ask(limits, [10] * 3, holder="b")) == 2
    limits.settle(0.0, "a", 0, 0)
    assert len(ask(limits, [10] * 3, holder="b")) == 1


def test_known_rates_alone_bound_calls_in_flight():
    limits = state(Endpoint(requests_per_minute=6_000_000), initial_in_flight=3)
    limits.grants(0.0)
    assert len(ask(limits, [10] * 100, now=1.0)) == 100


def test_one_answer_does_not_grant_all_permits():
    limits = state(Endpoint(max_in_flight=10_000))
    assert len(ask(limits, [1] * 1000)) == MAX_GROUP


def test_holders_take_turns():
    limits = state(Endpoint(max_in_flight=2))
    ask(limits, [1] * 2, holder="a")
    first, second = limits.ask("a", [1] * 50, [0]), limits.ask("b", [1], [0])
    order = []
    for _ in range(2):
        limits.settle(0.0, "a", 0, 0)
        order += [(g.ticket, len(g.endpoints)) for g in limits.grants(0.0)[0]]
    assert order == [(first, 1), (second, 1)]


def test_the_permits_of_a_dead_holder_are_released():
    limits = state(Endpoint(max_in_flight=4))
    ask(limits, [1] * 4, holder="dead")
    waiting = limits.ask("dead", [1], [0])
    limits.forget("dead")
    assert limits.in_flight == (0,)
    assert all(g.ticket != waiting for g in limits.grants(0.0)[0])


def test_permits_that_were_never_granted_are_not_released():
    limits = state(Endpoint(max_in_flight=2))
    for _ in range(5):
        limits.settle(0.0, "w", 0, 0)
    assert len(ask(limits, [1] * 9)) == 2


def test_requests_go_to_endpoints_with_room():
    limits = state(Endpoint(max_in_flight=2), Endpoint(max_in_flight=6))
    endpoints = ask(limits, [1] * 10, usable=[0, 1])
    assert endpoints.count(0) == 2
    assert endpoints.count(1) == 6


def test_the_least_loaded_endpoint_is_chosen():
    limits = state(Endpoint(max_in_flight=10), Endpoint(max_in_flight=10))
    endpoints = ask(limits, [1] * 10, usable=[0, 1])
    assert endpoints.count(0) == endpoints.count(1) == 5


def test_only_usable_endpoints_are_granted():
    limits = state(Endpoint(max_in_flight=2), Endpoint(max_in_flight=2))
    assert ask(limits, [1] * 10, usable=[1]) == [1, 1]


def test_a_request_goes_to_an_endpoint_whose_limit_it_fits():
    limits = state(Endpoint(tokens_per_minute=1000), Endpoint(max_in_flight=4))
    assert ask(limits, [5000], usable=[0, 1]) == [1]


def test_a_request_that_fits_no_limit_is_an_error():
    limits = state(Endpoint(tokens_per_minute=1000), Endpoint(tokens_per_minute=3000))
    with pytest.raises(RequestTooLarge, match=r"5000 tokens.*3000 tokens per minute"):
        limits.ask("w", [10, 5000], [0, 1])


def test_small_requests_behind_a_large_one_do_not_starve_it():
    limits = state(Endpoint(tokens_per_minute=60_000))
    large = limits.ask("a", [20_000], [0])
    now, seen = 0.0, []
    for round_ in range(100):
        limits.ask(f"small{round_}", [50], [0])
        granted, _ = limits.grants(now)
        seen += [g.ticket for g in granted]
        now += 1.0
        if large in seen:
            break
    assert seen[0] == large
    assert now < 60


def test_a_ticket_for_another_endpoint_is_not_delayed():
    limits = state(Endpoint(max_in_flight=1), Endpoint(max_in_flight=1))
    assert ask(limits, [1], holder="a") == [0]
    limits.ask("a", [1], [0])
    assert ask(limits, [1], holder="b", usable=[1]) == [1]


def test_a_429_pauses_all_callers_for_the_requested_time():
    limits = state(Endpoint(max_in_flight=9))
    limits.penalise(0.0, 0, 7.0)
    limits.ask("a", [1], [0])
    limits.ask("b", [1], [0])
    granted, check_again_at = limits.grants(6.9)
    assert granted == []
    assert check_again_at == pytest.approx(7.0)
    assert len(limits.grants(7.0)[0]) == 2


def test_a_429_does_not_affect_other_endpoints():
    limits = state(Endpoint(max_in_flight=9), Endpoint(max_in_flight=9))
    limits.penalise(0.0, 0, 7.0)
    assert ask(limits, [1] * 3, now=1.0, usable=[0, 1]) == [1, 1, 1]


def pause_of(limits, now):
    limits.ask("w", [1], [0])
    _, check_again_at = limits.grants(now)
    limits.forget("w")
    return (check_again_at or now) - now


def pauses_of_429s(limits, gap_s, n):
    """Return the pauses after n 429s without a time, each sent so long after the previous pause."""
    pauses, now = [], 0.0
    for _ in range(n):
        limits.penalise(now, 0, None)
        limits.penalise(now, 0, None)  # part of the same burst, so it does not count
        pauses.append(pause_of(limits, now))
        now += pauses[-1] + gap_s
    return pauses


def test_repeated_429s_without_a_time_cause_longer_pauses():
    pauses = pauses_of_429s(state(Endpoint(max_in_flight=9)), 0.1, 12)
    assert pauses[:4] == pytest.approx([0.5, 1.0, 2.0, 4.0])
    assert pauses[-1] == pytest.approx(60.0)


def test_occasional_429s_do_not_cause_longer_pauses():
    pauses = pauses_of_429s(state(Endpoint(max_in_flight=9)), 5.0, 50)
    assert max(pauses) <= 10.0


def test_very_long_pauses_are_shortened():
    limits = state(Endpoint(max_in_flight=9))
    limits.penalise(0.0, 0, 1e9)
    assert pause_of(limits, 0.0) <= 600.0


STEPS = ["ask", "settle", "penalise", "look", "forget", "withdraw"]


@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 5)),
        max_size=60,
    )
)
def test_the_bound_always_holds_and_every_ticket_is_answered(steps):
    limits = state(Endpoint(max_in_flight=4), Endpoint(tokens_per_minute=60_000, max_in_flight=3))
    now, waiting, running = 0.0, {}, []
    for what, n in steps:
        now += 0.05
        holder = f"h{n % 3}"
        if what == "ask":
            usable = [0, 1] if n < 4 else [n - 4]
            waiting[limits.ask(holder, [100 + n] * (n + 1), usable)] = holder
        elif what == "withdraw" and waiting:
            limits.withdraw(ticket := sorted(waiting)[n % len(waiting)])
            del waiting[ticket]
        elif what == "settle" and running:
            endpoint, owner = running.pop(n % len(running))
            limits.settle(now, owner, endpoint, n - 2)
        elif what == "penalise":
            limits.penalise(now, n % 2, n / 10)
        elif what == "forget":
            limits.forget(holder)
            waiting = {t: h for t, h in waiting.items() if h != holder}
            running = [(e, h) for e, h in running if h != holder]
        for grant in limits.grants(now)[0]:
            owner = waiting.pop(grant.ticket)
            running += [(e, owner) for e in grant.endpoints]
        for endpoint, limits_of_endpoint in enumerate(limits._endpoints):
            wants = [t.wants for t in limits._queue if endpoint in t.usable]
            assert (limits_of_endpoint.waiting, limits_of_endpoint.waiting_tokens) == (
                sum(map(len, wants)),
                sum(map(sum, wants)),
            )
        assert limits.in_flight == (sum(e == 0 for e, _ in running), sum(e == 1 for e, _ in running))
        assert limits.in_flight[0] <= 4
        assert limits.in_flight[1] <= 3
    for endpoint, owner in running:
        limits.settle(now, owner, endpoint, 0)
    for _ in range(200):
        granted, check_again_at = limits.grants(now)
        for grant in granted:
            owner = waiting.pop(grant.ticket)
            for endpoint in grant.endpoints:
                limits.settle(now, owner, endpoint, 0)
        if not waiting:
            break
        now = check_again_at if check_again_at is not None else now
    assert not waiting


def test_endpoint_states_contain_counts_calls_in_flight_and_limits():
    limits = state(Endpoint(tokens_per_minute=6e6), Endpoint(max_in_flight=3), now=0.0)
    assert ask(limits, [100, 100, 100], usable=(1,)) == [1, 1, 1]
    limits.settle(1.0, "w", 1, 20, CallOutcome(1.0, 50))
    limits.penalise(1.0, 1, 7.0)
    limits.settle(1.0, "w", 1, -100, CallOutcome(0.1, 0, ok=False))
    first, second = limits.endpoint_states(2.0)
    assert (first.in_flight, first.tally.answered, first.tokens_per_minute) == (0, 0, 6e6)
    tally = second.tally
    assert (tally.answered, tally.failed, tally.rate_limited, tally.tokens) == (1, 1, 1, 220)
    assert (second.in_flight, second.max_in_flight, second.tokens_per_minute) == (1, 3, None)
    assert second.pause_s == 6.0 and sum(tally.latency.counts.values()) == 1
    limits.settle(3.0, "w", 1, 0, CallOutcome(1.0, 50))
    assert tally.answered == 1, "earlier states do not change"
