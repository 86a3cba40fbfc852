import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.connection_settings import Endpoint
from graphrag_ray.llm.limit_headers import MAX_WAIT_S, LimitHeaders, RateLimitInfo, parse_duration
from graphrag_ray.llm.limits import CallOutcome, LimiterState

NOW = 1_800_000_000.0


def headers(kind, limit, remaining, reset):
    return {
        f"x-ratelimit-limit-{kind}": str(limit),
        f"x-ratelimit-remaining-{kind}": str(remaining),
        f"x-ratelimit-reset-{kind}": str(reset),
    }


def news_after(*answers, read=None):
    """Return the news after these responses."""
    read = read or LimitHeaders()
    for answer in answers:
        read.note(answer, NOW)
    return read.news(0.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6ms", 0.006),
        ("1.2s", 1.2),
        ("1m3s", 63.0),
        ("1h2m", 3720.0),
        ("17", 17.0),
        ("2027-01-15T08:00:30Z", 30.0),
        ("2027-01-15T08:00:30", 30.0),
        ("soon", None),
        ("-5", None),
        ("nan", None),
        ("1e999", None),
        ("9" * 400 + "s", None),
        ("0001-01-01T00:00:00+23:59", 0.0),
        ("", None),
    ],
)
def test_durations_are_parsed_in_every_format(text, seconds):
    parsed = parse_duration(text, NOW)
    assert parsed == (None if seconds is None else pytest.approx(seconds))


def test_a_steadily_refilling_limit_per_minute_is_recognised_at_the_second_reading():
    first = headers("requests", 10_000, 9_999, "6ms") | headers("tokens", 2_000_000, 1_998_000, "60ms")
    second = headers("requests", 10_000, 9_990, "60ms") | headers("tokens", 2_000_000, 1_900_000, "3s")
    assert news_after(first) is None
    assert news_after(first, second) == RateLimitInfo(10_000, 2_000_000)


@pytest.mark.parametrize(
    ("limit", "readings"),
    [
        (200, [(199, "7m12s"), (198, "14m24s"), (190, "1h12m")]),
        (50, [(49, "20ms"), (40, "200ms"), (25, "500ms")]),
        (1000, [(999, "59s"), (700, "40s"), (990, "20s")]),
    ],
    ids=["a day", "a second", "a fixed window"],
)
def test_limits_for_other_periods_are_ignored(limit, readings):
    assert news_after(*[headers("requests", limit, *r) for r in readings]) is None


def test_news_is_repeated_after_a_while_for_restarted_limiters():
    read = LimitHeaders()
    answers = [headers("tokens", 60_000, 60_000 - n, f"{n}ms") for n in (300, 900, 1500)]
    assert news_after(*answers, read=read) == RateLimitInfo(None, 60_000)
    read.note(headers("tokens", 60_000, 57_000, "3s"), NOW)
    assert read.news(1.0) is None
    assert read.news(100.0) == RateLimitInfo(None, 60_000)


def test_a_raised_limit_is_reported():
    read = LimitHeaders()
    news_after(*[headers("requests", 600, 600 - n, f"{n * 0.1}s") for n in (1, 2)], read=read)
    raised = [headers("requests", 6000, 6000 - n, f"{n * 10}ms") for n in (1, 2)]
    assert news_after(raised[0], read=read) is None
    assert news_after(raised[1], read=read) == RateLimitInfo(6000, None)


def test_an_exhausted_limit_asks_to_wait():
    assert news_after(headers("requests", 50, 0, "12s")) == RateLimitInfo(wait_s=12.0)
    assert news_after(
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "3h"}
    ) == RateLimitInfo(wait_s=MAX_WAIT_S)
    assert news_after(headers("requests", 0, 0, "12s")) is None


def test_a_steadily_refilling_limit_asks_to_wait_only_briefly():
    used = [headers("tokens", 60_000, 60_000 - n, f"{n}ms") for n in (3000, 9000)]
    assert news_after(*used, headers("tokens", 60_000, 0, "60s")).wait_s <= 1.0


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [
                    f"x-ratelimit-{what}-{kind}"
                    for what in ("limit", "remaining", "reset")
                    for kind in ("requests", "tokens")
                ]
            ),
            st.one_of(
                st.sampled_from(["0", "1", "-1", "nan", "inf", "1e308", "60s", "1m", "9" * 60, "٣s", "1_0"]),
                st.integers(0, 10**6).map(str),
                st.text(max_size=12),
            ),
        ),
        max_size=12,
    )
)
def test_arbitrary_headers_are_harmless(answers):
    news = news_after(*answers)
    if news is not None:
        assert 0.0 <= news.wait_s <= MAX_WAIT_S
        for limit in (news.requests_per_minute, news.tokens_per_minute):
            assert limit is None or 1 <= limit <= 1e12


def settle(limits, rate_limits, now=0.0):
    limits.settle(now, "w", 0, 0, CallOutcome(1.0, 10, True, rate_limits))


def granted(limits, now, wants):
    ticket = limits.ask("w", wants, [0])
    got = [len(g.endpoints) for g in limits.grants(now)[0]]
    limits.withdraw(ticket)
    return sum(got)


def test_reported_limits_are_used_if_the_settings_have_none():
    limits = LimiterState([Endpoint()], 4, 0.0)
    settle(limits, RateLimitInfo(6_000, 600_000))
    assert granted(limits, 0.0, [10] * 100) == 0, "a new limit starts empty"
    assert granted(limits, 100.0, [1] * 100) == 10, "a tenth of a second of requests"
    assert granted(limits, 200.0, [500] * 100) == 2, "a tenth of a second of tokens"


def test_a_lower_reported_limit_is_used_with_one_warning(caplog):
    limits = LimiterState([Endpoint(requests_per_minute=60_000)], 4, 0.0)
    with caplog.at_level(logging.WARNING):
        settle(limits, RateLimitInfo(6_000, None))
        settle(limits, RateLimitInfo(6_000, None))
    assert granted(limits, 100.0, [1] * 1000) == 10
    assert len(caplog.records) == 1
    assert "6,000 requests" in caplog.text
    assert "60,000" in caplog.text


def test_a_higher_reported_limit_is_ignored(caplog):
    limits = LimiterState([Endpoint(requests_per_minute=6_000)], 4, 0.0)
    settle(limits, RateLimitInfo(60_000, None))
    assert granted(limits, 100.0, [1] * 1000) == 10
    assert not caplog.records


def test_a_reported_limit_does_not_make_large_requests_fail():
    limits = LimiterState([Endpoint()], 4, 0.0)
    waiting = limits.ask("w", [5_000], [0])
    settle(limits, RateLimitInfo(None, 1_000))
    assert limits.grants(1.0)[0] == []
    assert [g.ticket for g in limits.grants(200.0)[0]] == [waiting]


def test_all_callers_wait_for_an_exhausted_limit():
    limits = LimiterState([Endpoint()], 4, 0.0)
    settle(limits, RateLimitInfo(wait_s=5.0))
    assert granted(limits, 4.9, [1]) == 0
    assert granted(limits, 5.0, [1]) == 1
