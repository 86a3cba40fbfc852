import logging

import pytest

from graphrag_ray.base.errors import FatalCallError, NoEndpoint
from graphrag_ray.llm.model_client import LONGEST_REST_S, REST_AFTER_FAILURES, EndpointPool


def pool(n=2, limits=None):
    return EndpointPool([f"http://host{i}" for i in range(n)], limits or [None] * n)


def fail(endpoints, endpoint, now, times=REST_AFTER_FAILURES):
    for _ in range(times):
        endpoints.failed(endpoint, now)


def test_an_endpoint_that_keeps_failing_is_left_alone_for_a_while_and_tried_again():
    endpoints = pool()
    fail(endpoints, 0, 10.0)
    assert endpoints.usable(10.0, 1) == [1]
    assert endpoints.usable(10.0 + LONGEST_REST_S, 1) == [0, 1]


def test_a_few_failures_among_successes_do_no_harm():
    endpoints = pool()
    for now in range(20):
        endpoints.failed(0, now)
        endpoints.failed(0, now)
        endpoints.worked(0)
    assert endpoints.usable(20.0, 1) == [0, 1]


def test_rests_grow_longer_until_a_call_works():
    endpoints = pool()
    rests, now = [], 0.0
    for _ in range(4):
        fail(endpoints, 0, now)
        start = now
        while endpoints.usable(now, 1) == [1]:
            now += 0.25
        rests.append(now - start)
    assert rests == sorted(rests)
    assert rests[-1] >= 4 * rests[0]
    endpoints.worked(0)
    fail(endpoints, 0, now)
    assert endpoints.usable(now + rests[0], 1) == [0, 1]


def test_the_only_endpoint_is_used_even_while_it_rests():
    endpoints = pool(1)
    fail(endpoints, 0, 0.0)
    assert endpoints.usable(0.0, 1) == [0]


def test_a_resting_endpoint_is_used_for_what_no_other_takes():
    endpoints = pool(2, [None, 1000])
    fail(endpoints, 0, 0.0)
    assert endpoints.usable(0.0, 900) == [1]
    assert endpoints.usable(0.0, 5000) == [0, 1]


def test_the_endpoint_where_a_call_failed_is_used_only_where_no_other_takes_it():
    endpoints = pool(2, [None, 1000])
    assert endpoints.usable(0.0, 900, other_than=0) == [1]
    assert endpoints.usable(0.0, 5000, other_than=0) == [0, 1]
    assert pool(1).usable(0.0, 1, other_than=0) == [0]


def test_an_endpoint_that_refuses_us_is_dropped_with_one_warning_as_long_as_another_remains(caplog):
    endpoints = pool()
    with caplog.at_level(logging.WARNING):
        endpoints.drop(0, FatalCallError("wrong key", status=401))
        endpoints.drop(0, FatalCallError("wrong key", status=401))
    assert endpoints.usable(0.0, 1) == [1]
    assert len(caplog.records) == 1
    assert "http://host0" in caplog.text
    assert "answered 401" in caplog.text
    assert "wrong key" not in caplog.text, "it may quote what was asked"


def test_when_the_last_one_is_dropped_the_run_ends_with_its_reason():
    endpoints = pool()
    endpoints.drop(0, FatalCallError("wrong key", status=401))
    endpoints.drop(1, FatalCallError("no quota", status=429))
    with pytest.raises(FatalCallError, match="no quota") as caught:
        endpoints.usable(0.0, 1)
    assert caught.value.status == 429


def test_that_there_was_no_way_at_all_is_told_from_a_refusal():
    endpoints = pool()
    endpoints.drop(0, NoEndpoint("no key"))
    endpoints.drop(1, NoEndpoint("no key either"))
    with pytest.raises(NoEndpoint, match="no key either"):
        endpoints.usable(0.0, 1)


def test_whoever_lives_longer_than_a_refusal_tries_again():
    endpoints = EndpointPool(["http://host0"], [None], dropped_for_s=30.0)
    endpoints.drop(0, FatalCallError("no quota", status=429), 10.0)
    with pytest.raises(FatalCallError, match="no quota"):
        endpoints.usable(39.9, 1)
    assert endpoints.usable(40.0, 1) == [0]
    assert endpoints.largest(40.0) is None


def test_what_there_is_no_way_to_stays_dropped():
    endpoints = EndpointPool(["http://host0"], [None], dropped_for_s=30.0)
    endpoints.drop(0, FatalCallError("no key"))
    with pytest.raises(FatalCallError, match="no key"):
        endpoints.usable(1e9, 1)
