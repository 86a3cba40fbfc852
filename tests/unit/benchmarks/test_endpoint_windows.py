"""The simulated endpoint's limits: exact sliding windows."""

import math
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.endpoint.options import Options
from benchmarks.endpoint.protocol import go_duration, limit_headers
from benchmarks.endpoint.window import Refused, Windows

W = 60.0
calls = st.lists(st.tuples(st.floats(0.0, 15.0), st.integers(1, 60)), min_size=1, max_size=60)


@given(calls, st.integers(1, 8), st.integers(60, 200))
def test_no_window_ever_exceeds_the_limits(arrivals: list[tuple[float, int]], rpm: int, tpm: int) -> None:
    windows, now, admitted = Windows(), 0.0, []
    for gap, n in arrivals:
        now += gap
        if windows.admit(n, now, rpm, tpm, W) is None:
            admitted.append((now, n))
    for end, _ in admitted:
        inside = [n for at, n in admitted if at <= end < at + W]
        assert len(inside) <= rpm
        assert sum(inside) <= tpm


@given(calls, st.integers(1, 8), st.integers(60, 200))
def test_refused_call_is_admitted_exactly_after_its_wait(
    arrivals: list[tuple[float, int]], rpm: int, tpm: int
) -> None:
    windows, now = Windows(), 0.0
    for gap, n in arrivals:
        now += gap
        refused = windows.admit(n, now, rpm, tpm, W)
        if refused is None:
            continue
        assert 0 < refused.wait_s <= W * 1.000001
        assert windows.admit(n, now + refused.wait_s * 0.999, rpm, tpm, W) is not None
        now += refused.wait_s + 1e-6
        assert windows.admit(n, now, rpm, tpm, W) is None


def test_next_window_begins_sixty_seconds_after_the_first_call() -> None:
    windows = Windows()
    assert [windows.admit(1, t, 2, None, W) for t in (0.0, 10.0)] == [None, None]
    assert windows.admit(1, 20.0, 2, None, W) == Refused("requests", 40.0)
    assert windows.admit(1, 60.0, 2, None, W) is None
    assert windows.admit(1, 60.0, 2, None, W) == Refused("requests", 10.0)


def test_call_larger_than_the_limit_never_fits() -> None:
    refused = Windows().admit(101, 0.0, None, 100, W)
    assert refused == Refused("tokens", math.inf)


def test_headers_contain_the_remaining_limits() -> None:
    windows = Windows()
    windows.admit(30, 0.0, 10, 100, W)
    headers = limit_headers(windows, 3.5, Options(rpm=10, tpm=100))
    assert headers["x-ratelimit-remaining-requests"] == "9"
    assert headers["x-ratelimit-remaining-tokens"] == "70"
    assert headers["x-ratelimit-reset-tokens"] == "56.5s"
    assert limit_headers(windows, 3.5, Options(rpm=10, tpm=100, headers=False)) == {}


def test_durations_use_the_openai_format() -> None:
    written = [go_duration(s) for s in (0.006, 1.2, 60.0, 63.0, 3661.5)]
    assert written == ["6ms", "1.2s", "1m0s", "1m3s", "1h1m1.5s"]
