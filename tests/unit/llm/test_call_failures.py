import pickle
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from graphrag_ray.base.errors import FatalCallError, PermanentCallError, TransientCallError
from graphrag_ray.base.messages import Usage
from graphrag_ray.llm.call_failures import HttpRefusal, PromptTruncated, RetriesExhausted, error_for_refusal
from graphrag_ray.llm.limit_headers import retry_after_s

NOW = 1_800_000_000.0


def kind(status, message="no", code=None):
    body = {"error": {"message": message, "code": code}}
    return type(error_for_refusal(HttpRefusal.read(status, body), "http://host"))


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (401, "Incorrect API key provided", "invalid_api_key"),
        (402, "Insufficient balance", None),
        (403, "Country not supported", None),
        (404, "The model `m` does not exist", "model_not_found"),
        (404, "Not Found", None),
        (429, "You exceeded your current quota", "insufficient_quota"),
        (429, "You exceeded your current quota, please check your plan", None),
        (400, "API key not valid. Please pass a valid API key.", None),
        (400, "invalid model", "model_not_found"),
    ],
)
def test_failures_of_all_requests_are_fatal(status, message, code):
    assert kind(status, message, code) is FatalCallError


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (400, "This model's maximum context length is 8192 tokens", "context_length_exceeded"),
        (400, "The response was filtered", "content_filter"),
        (403, "Your input was flagged by moderation", None),
        (413, "Payload too large", None),
        (422, "Unprocessable", None),
        (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000", None),
    ],
)
def test_failures_of_this_request_only_are_permanent(status, message, code):
    assert kind(status, message, code) is PermanentCallError


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_failures_that_may_pass_are_transient(status):
    assert kind(status) is TransientCallError


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "the reason"}},
        {"message": "the reason", "code": 7},
        {"detail": "the reason"},
        {"error": "the reason"},
        "the reason",
        {"detail": [{"msg": "the reason"}]},
    ],
)
def test_the_reason_is_found_in_every_body_format(body):
    error = error_for_refusal(HttpRefusal.read(400, body), "http://host/v1")
    assert "http://host/v1 answered 400" in str(error)
    assert "the reason" in str(error)


@pytest.mark.parametrize("body", [None, "", [], {}, {"error": None}, {"error": {}}])
def test_an_empty_body_still_gives_a_message(body):
    assert "503" in str(error_for_refusal(HttpRefusal.read(503, body), "http://host"))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": format_datetime(datetime.fromtimestamp(NOW + 90, UTC), usegmt=True)}, 90.0),
        ({"retry-after": format_datetime(datetime.fromtimestamp(NOW - 90, UTC), usegmt=True)}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, 360.0),
        ({"x-ratelimit-reset-requests": "20ms"}, 0.02),
        ({"x-ratelimit-reset-requests": "1h2m3.5s"}, 600.0),
        ({"retry-after": "86400"}, 86400.0),
        ({"x-ratelimit-reset-requests": str(int(NOW + 30))}, 30.0),
        ({"x-ratelimit-reset-requests": str(int((NOW + 30) * 1000))}, 30.0),
        (
            {
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-requests": "99",
                "x-ratelimit-reset-tokens": "40s",
                "x-ratelimit-remaining-tokens": "0",
            },
            40.0,
        ),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"x-ratelimit-reset-tokens": ""}, None),
        ({}, None),
    ],
)
def test_the_waiting_time_is_read_from_every_header(headers, seconds):
    waiting_s = retry_after_s(headers, NOW)
    assert waiting_s == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("status", [408, 429, 503])
def test_an_endpoint_that_asks_for_a_long_wait_is_unavailable(status):
    error = error_for_refusal(HttpRefusal.read(status, "maintenance"), "http://host/v1", 86400.0)
    assert isinstance(error, FatalCallError) and "asks to wait 24 h" in str(error)
    assert error_for_refusal(HttpRefusal.read(status, "busy"), "http://host/v1", 590.0).retry_after_s == 590.0


def test_redirects_are_not_followed():
    assert isinstance(
        error_for_refusal(HttpRefusal(307, "http://other/v1"), "http://host/v1"), FatalCallError
    )


def test_errors_keep_their_attributes_when_pickled():
    gave_up = pickle.loads(pickle.dumps(RetriesExhausted("again", status=503, attempts=8)))
    assert (str(gave_up), gave_up.status, gave_up.attempts) == ("again", 503, 8)
    truncated = pickle.loads(pickle.dumps(PromptTruncated("cut", usage=Usage(5))))
    assert (str(truncated), truncated.usage) == ("cut", Usage(5))
