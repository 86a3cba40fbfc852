import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import PermanentCallError, RequestTooLarge
from graphrag_ray.llm.token_bucket import Bucket, check_within_limit


def reserve(bucket, now, wants):
    """Return how many waiters may go now, in order and without overtaking."""
    bucket.wait_for(now, wants[0])
    granted = 0
    if bucket.opens_in(now, wants[0], len(wants), sum(wants)) <= 0:
        while granted < len(wants) and bucket.fits(wants[granted]):
            bucket.take(now, wants[granted])
            granted += 1
    bucket.wait_for(now, wants[granted] if granted < len(wants) else 0)
    return granted


def run(bucket, wants, start=0.0, late=0.02, until=1e9):
    """Serve all wants as fast as the bucket allows, but always `late` seconds late. Returns
    [(time, tokens)]."""
    now, served, left = start, [], list(wants)
    while left and now < until:
        n = reserve(bucket, now, left)
        served += [(now, tokens) for tokens in left[:n]]
        left = left[n:]
        now += late + (bucket.opens_in(now, left[0], len(left), sum(left)) if left else 0.0)
    return served


def busiest_window(served, amount, window_s=60.0):
    """Return the maximum of all half-open windows of 60 s."""
    times = [t for t, _ in served]
    best, low, total = 0.0, 0, 0.0
    for high, at in enumerate(times):
        total += amount(served[high])
        while times[low] <= at - window_s + 1e-6:
            total -= amount(served[low])
            low += 1
        best = max(best, total)
    return best


def test_a_bucket_starts_empty():
    bucket = Bucket(6000, 600_000, now=100.0)
    assert reserve(bucket, 100.0, [10]) == 0


def test_an_idle_bucket_contains_at_most_a_tenth_of_a_second():
    bucket = Bucket(None, 600_000, now=0.0)
    reserve(bucket, 1000.0, [1])
    granted = reserve(bucket, 1000.0, [10] * 1000)
    assert 90 <= granted <= 100


def test_requests_are_limited_in_addition_to_tokens():
    bucket = Bucket(600, 10_000_000, now=0.0)
    served = run(bucket, [1] * 2000, until=60.0)
    assert 570 <= len(served) <= 600


@pytest.mark.parametrize("tpm", [100_000, 2_000_000])
def test_nearly_all_of_the_limit_is_used(tpm):
    bucket = Bucket(None, tpm, now=0.0)
    wants = [500 + 37 * i % 900 for i in range(20_000)]
    served = run(bucket, wants, until=180.0)
    used = sum(tokens for at, tokens in served)
    assert used >= 0.97 * tpm * 3


@given(
    st.lists(st.integers(1, 9_000), min_size=30, max_size=120),
    st.sampled_from([20_000, 60_000, 300_000]),
    st.floats(0.0, 0.3),
)
def test_no_window_of_a_minute_exceeds_the_token_limit(wants, tpm, late):
    bucket = Bucket(None, tpm, now=0.0)
    served = run(bucket, wants * 3, late=late)
    assert len(served) == len(wants) * 3
    assert busiest_window(served, lambda s: s[1]) <= tpm * 1.001


@given(st.integers(1, 400), st.integers(10, 200))
def test_no_window_of_a_minute_exceeds_the_request_limit(rpm, n):
    served = run(Bucket(rpm, None, now=0.0), [1] * n, late=0.0)
    assert len(served) == n
    assert busiest_window(served, lambda s: 1) <= rpm


def test_waiters_are_served_in_order_and_a_small_one_does_not_overtake():
    bucket = Bucket(None, 60_000, now=0.0)
    served = run(bucket, [5000, 1, 1, 8000, 1])
    assert [tokens for _, tokens in served] == [5000, 1, 1, 8000, 1]
    assert served[0][0] == pytest.approx(5.0, abs=1.0)


def test_a_call_that_exceeds_its_reservation_delays_the_next():
    bucket = Bucket(None, 60_000, now=0.0)
    reserve(bucket, 0.0, [10])
    assert reserve(bucket, 1.0, [10]) == 1
    bucket.settle(1.0, 5000)
    assert reserve(bucket, 5.0, [10]) == 0
    assert reserve(bucket, 6.5, [10]) == 1


def test_a_refund_above_the_burst_is_kept():
    bucket = Bucket(None, 60_000, now=0.0)
    bucket.settle(0.0, -7000)
    assert reserve(bucket, 500.0, [1000] * 10) == 7


def test_waiters_are_answered_in_groups():
    bucket = Bucket(None, 6_000_000, now=0.0)
    assert reserve(bucket, 0.0, [100] * 1000) == 0
    assert reserve(bucket, 0.02, [100] * 1000) == 0, "less than half a burst has accumulated"
    assert reserve(bucket, 0.06, [100] * 1000) >= 50
    assert reserve(bucket, 0.06, [200]) == 0
    assert reserve(bucket, 0.07, [200]) == 1, "all waiters fit, so there is no reason to wait"


def test_opens_in_is_exact():
    bucket = Bucket(1000, 100_000, now=0.0)
    assert reserve(bucket, 0.0, [3000]) == 0
    wait = bucket.opens_in(0.0, 3000, 1, 3000)
    assert reserve(bucket, wait - 0.01, [3000]) == 0
    assert reserve(bucket, wait + 1e-9, [3000]) == 1


def test_no_request_goes_during_a_pause_and_no_burst_follows():
    bucket = Bucket(60_000, 6_000_000, now=0.0)
    bucket.settle(0.0, -5000)
    bucket.pause_until(1.0, 31.0)
    assert bucket.opens_in(1.0, 10, 1, 10) >= 30.0
    assert reserve(bucket, 30.9, [10]) == 0
    assert reserve(bucket, 31.0, [10]) == 0
    assert reserve(bucket, 31.1, [10] * 500) > 0


def test_pauses_work_without_a_known_limit():
    bucket = Bucket(None, None, now=0.0)
    assert reserve(bucket, 0.0, [10] * 5) == 5
    bucket.pause_until(0.0, 4.0)
    assert reserve(bucket, 3.9, [10]) == 0
    assert reserve(bucket, 4.0, [10]) == 1


def test_a_request_above_the_limit_per_minute_is_an_error():
    with pytest.raises(RequestTooLarge, match=r"12345 tokens.*10000 tokens per minute") as caught:
        check_within_limit(12_345, 10_000)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), PermanentCallError)


def test_a_request_of_exactly_the_limit_per_minute_is_sent():
    served = run(Bucket(None, 10_000, now=0.0), [10_000])
    assert served


@pytest.mark.parametrize("jump", [-5000.0, 5000.0])
def test_a_clock_that_jumps_neither_stalls_nor_bursts(jump):
    bucket = Bucket(600, None, now=10_000.0)
    run(bucket, [1] * 50, start=10_000.0)
    after = run(bucket, [1] * 50, start=10_010.0 + jump)
    assert len(after) == 50
    assert 4.5 <= after[-1][0] - after[0][0] <= 6.0
