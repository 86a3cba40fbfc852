import logging

import pytest

from graphrag_ray.llm.failures import Refusal
from graphrag_ray.llm.peculiarities import YES_NO_TOKENS, Peculiarities, yes_no_bias
from graphrag_ray.messages import CallParameters, ChatRequest, Message

CALL = CallParameters("default", "m", temperature=0.0)
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def request(response="text", **more):
    messages = (Message("system", "Be brief."), Message("user", "Hello {there}"))
    return ChatRequest("map", messages, CALL, response=response, **more)


def refuse(peculiarities, body, message, param="", code="", status=400):
    return peculiarities.learn(body, Refusal(status, message, code, param))


def body_of(peculiarities, what, bias=None):
    return peculiarities.chat_body(what, "m", 700, bias)


def test_a_plain_request_says_what_it_says():
    assert body_of(Peculiarities("host"), request()) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello {there}"},
        ],
        "temperature": 0.0,
        "max_tokens": 700,
    }


@pytest.mark.parametrize(
    ("parameter", "message", "param"),
    [
        (
            "temperature",
            "Unsupported value: 'temperature' does not support 0.0 with this model.",
            "temperature",
        ),
        ("logit_bias", "Unrecognized request argument supplied: logit_bias", ""),
        ("temperature", "extra fields not permitted: temperature", ""),
    ],
)
def test_a_refused_parameter_is_dropped_after_one_warning_that_names_it(parameter, message, param, caplog):
    peculiarities = Peculiarities("http://host/v1")
    body = body_of(peculiarities, request("yes_no"), {"1": 100})
    assert parameter in body
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # as many as were under way
            assert refuse(peculiarities, body, message, param)
    assert parameter not in body_of(peculiarities, request("yes_no"), {"1": 100})
    assert len(caplog.records) == 1
    assert parameter in caplog.text
    assert "http://host/v1" in caplog.text


def test_a_model_that_wants_max_completion_tokens_gets_them():
    peculiarities = Peculiarities("host")
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead."
    )
    assert refuse(
        peculiarities, body_of(peculiarities, request()), message, "max_tokens", "unsupported_parameter"
    )
    body = body_of(peculiarities, request())
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 700


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 10000. This model supports at most 4096 completion tokens",
        "'max_tokens' is too large: 4096. This model's maximum context length is 4096 tokens",
        "Invalid schema: something about nothing that was sent",
        "no reason",
    ],
)
def test_a_refusal_about_something_else_teaches_nothing(message):
    peculiarities = Peculiarities("host")
    body = body_of(peculiarities, request())
    assert not refuse(peculiarities, body, message)
    assert body_of(peculiarities, request()) == body


def test_only_client_errors_about_the_request_teach():
    peculiarities = Peculiarities("host")
    assert not refuse(
        peculiarities, body_of(peculiarities, request()), "temperature is not supported", status=500
    )


def test_the_response_format_is_weakened_step_by_step():
    peculiarities = Peculiarities("host")
    seen = []
    for _ in range(3):
        body = body_of(peculiarities, request("json", schema=SCHEMA))
        seen.append(body.get("response_format", {}).get("type"))
        refuse(peculiarities, body, "Invalid parameter: 'response_format' of this type is not supported")
    assert seen == ["json_schema", "json_object", None]


def test_json_without_a_schema_asks_for_an_object():
    body = body_of(Peculiarities("host"), request("json"))
    assert body["response_format"] == {"type": "json_object"}


def test_a_forced_answer_is_one_token_of_yes_or_no():
    body = body_of(Peculiarities("host"), request("yes_no"), {"13022": 100})
    assert body["logit_bias"] == {"13022": 100}
    assert body["max_tokens"] == 1


def test_an_answer_that_is_not_forced_is_short():
    body = body_of(Peculiarities("host"), request("yes_no"))
    assert "logit_bias" not in body
    assert body["max_tokens"] == YES_NO_TOKENS


def test_a_model_that_thinks_gets_room_for_it_even_for_one_word():
    peculiarities = Peculiarities("host")
    refuse(peculiarities, body_of(peculiarities, request()), "max_tokens is not supported", "max_tokens")
    assert body_of(peculiarities, request("yes_no"), {"1": 100})["max_completion_tokens"] == 700


def test_a_model_without_a_system_role_gets_one_user_message():
    peculiarities = Peculiarities("host")
    body = body_of(peculiarities, request())
    assert refuse(peculiarities, body, "System role not supported")
    assert body_of(peculiarities, request())["messages"] == [
        {"role": "user", "content": "Be brief.\n\nHello {there}"}
    ]


def test_no_temperature_sends_none():
    call = CallParameters("default", "m", temperature=None)
    what = ChatRequest("map", (Message("user", "Hello"),), call)
    assert "temperature" not in body_of(Peculiarities("host"), what)


@pytest.mark.parametrize("vocabulary", ["cl100k_base", "o200k_base"])
def test_the_bias_is_on_single_tokens_that_say_yes_or_no(vocabulary):
    import quicktok

    bias = yes_no_bias(vocabulary)
    decode = quicktok.get_encoding(vocabulary).decode
    words = {decode([int(token)]) for token in bias}
    assert {"Yes", "No", " yes", " no"} <= words
    assert {w.strip().lower() for w in words} == {"yes", "no"}
    assert set(bias.values()) == {100}
