import logging

import pytest

from graphrag_ray.base.errors import FatalCallError, NoEndpoint
from graphrag_ray.llm.model_client import MAX_REST_S, REST_AFTER_FAILURES, EndpointPool


def pool(n=2, limits=None):
    return EndpointPool([f"http://host{i}" for i in range(n)], limits or [None] * n)


def fail(endpoints, endpoint, now, times=REST_AFTER_FAILURES):
    for _ in range(times):
        endpoints.record_failure(endpoint, now)


def test_an_endpoint_that_keeps_failing_rests_and_is_tried_again():
    endpoints = pool()
    fail(endpoints, 0, 10.0)
    assert endpoints.usable(10.0, 1) == [1]
    assert endpoints.usable(10.0 + MAX_REST_S, 1) == [0, 1]


def test_a_few_failures_among_successes_are_ignored():
    endpoints = pool()
    for now in range(20):
        endpoints.record_failure(0, now)
        endpoints.record_failure(0, now)
        endpoints.record_success(0)
    assert endpoints.usable(20.0, 1) == [0, 1]


def test_rests_grow_until_a_call_succeeds():
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
    endpoints.record_success(0)
    fail(endpoints, 0, now)
    assert endpoints.usable(now + rests[0], 1) == [0, 1]


def test_the_only_endpoint_is_used_even_while_it_rests():
    endpoints = pool(1)
    fail(endpoints, 0, 0.0)
    assert endpoints.usable(0.0, 1) == [0]


def test_a_resting_endpoint_is_used_for_requests_that_no_other_accepts():
    endpoints = pool(2, [None, 1000])
    fail(endpoints, 0, 0.0)
    assert endpoints.usable(0.0, 900) == [1]
    assert endpoints.usable(0.0, 5000) == [0, 1]


def test_another_endpoint_than_that_of_the_failed_call_is_preferred():
    endpoints = pool(2, [None, 1000])
    assert endpoints.usable(0.0, 900, other_than=0) == [1]
    assert endpoints.usable(0.0, 5000, other_than=0) == [0, 1]
    assert pool(1).usable(0.0, 1, other_than=0) == [0]


def test_an_endpoint_that_refuses_requests_is_dropped_with_one_warning(caplog):
    endpoints = pool()
    with caplog.at_level(logging.WARNING):
        endpoints.drop(0, FatalCallError("wrong key", status=401))
        endpoints.drop(0, FatalCallError("wrong key", status=401))
    assert endpoints.usable(0.0, 1) == [1]
    assert len(caplog.records) == 1
    assert "http://host0" in caplog.text
    assert "answered 401" in caplog.text
    assert "wrong key" not in caplog.text, "the message may quote the request"


def test_dropping_the_last_endpoint_ends_the_run_with_its_reason():
    endpoints = pool()
    endpoints.drop(0, FatalCallError("wrong key", status=401))
    endpoints.drop(1, FatalCallError("no quota", status=429))
    with pytest.raises(FatalCallError, match="no quota") as caught:
        endpoints.usable(0.0, 1)
    assert caught.value.status == 429


def test_a_missing_endpoint_is_distinguished_from_a_refusal():
    endpoints = pool()
    endpoints.drop(0, NoEndpoint("no key"))
    endpoints.drop(1, NoEndpoint("no key either"))
    with pytest.raises(NoEndpoint, match="no key either"):
        endpoints.usable(0.0, 1)


def test_a_dropped_endpoint_is_tried_again_after_a_while():
    endpoints = EndpointPool(["http://host0"], [None], dropped_for_s=30.0)
    endpoints.drop(0, FatalCallError("no quota", status=429), 10.0)
    with pytest.raises(FatalCallError, match="no quota"):
        endpoints.usable(39.9, 1)
    assert endpoints.usable(40.0, 1) == [0]
    assert endpoints.max_tokens(40.0) is None


def test_an_unusable_endpoint_stays_dropped():
    endpoints = EndpointPool(["http://host0"], [None], dropped_for_s=30.0)
    endpoints.drop(0, FatalCallError("no key"))
    with pytest.raises(FatalCallError, match="no key"):
        endpoints.usable(1e9, 1)
