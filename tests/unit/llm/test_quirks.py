import re

import pytest

from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.reasoning import find_model_family
from graphrag_ray.llm.call_failures import HttpRefusal
from graphrag_ray.llm.quirks import NO, YES, YES_NO_TOKENS, EndpointQuirks, describe_quirks, yes_no_bias

CALL = CallParameters("default", "m", temperature=0.0)
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def request(response="text", **more):
    messages = (Message("system", "Be brief."), Message("user", "Hello {there}"))
    return ChatRequest("map", messages, CALL, response=response, **more)


def refuse(quirks, body, message, param="", code="", status=400):
    return quirks.learn(body, HttpRefusal(status, message, code, param))


def body_of(quirks, what, bias=None):
    return quirks.chat_body(what, "m", 700, bias)


def test_the_body_of_a_plain_request():
    assert body_of(EndpointQuirks(), request()) == {
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
def test_a_refused_parameter_is_dropped_and_described(parameter, message, param):
    quirks = EndpointQuirks()
    body = body_of(quirks, request("yes_no"), {"1": 100})
    assert parameter in body
    for _ in range(3):  # as many refusals as requests were in flight
        assert refuse(quirks, body, message, param)
    assert parameter not in body_of(quirks, request("yes_no"), {"1": 100})
    assert quirks.learned == {parameter}
    assert (
        describe_quirks("http://host/v1", [parameter])
        == f"http://host/v1: does not accept {parameter}, so it is left out"
    )


def test_a_model_that_wants_max_completion_tokens_gets_them():
    quirks = EndpointQuirks()
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead."
    )
    assert refuse(quirks, body_of(quirks, request()), message, "max_tokens", "unsupported_parameter")
    body = body_of(quirks, request())
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
def test_unrelated_refusals_are_ignored(message):
    quirks = EndpointQuirks()
    body = body_of(quirks, request())
    assert not refuse(quirks, body, message)
    assert body_of(quirks, request()) == body


def test_only_client_errors_reveal_quirks():
    quirks = EndpointQuirks()
    assert not refuse(quirks, body_of(quirks, request()), "temperature is not supported", status=500)


def test_the_response_format_is_weakened_step_by_step():
    quirks = EndpointQuirks()
    seen = []
    for _ in range(3):
        body = body_of(quirks, request("json", schema=SCHEMA))
        seen.append(body.get("response_format", {}).get("type"))
        refuse(quirks, body, "Invalid parameter: 'response_format' of this type is not supported")
    assert seen == ["json_schema", "json_object", None]


def test_json_without_a_schema_requests_an_object():
    body = body_of(EndpointQuirks(), request("json"))
    assert body["response_format"] == {"type": "json_object"}


def test_a_forced_answer_is_one_token_of_yes_or_no():
    body = body_of(EndpointQuirks(), request("yes_no"), {"13022": 100})
    assert body["logit_bias"] == {"13022": 100}
    assert body["max_tokens"] == 1


def test_an_unforced_yes_no_answer_has_a_low_limit():
    body = body_of(EndpointQuirks(), request("yes_no"))
    assert "logit_bias" not in body
    assert body["max_tokens"] == YES_NO_TOKENS


def test_a_reasoning_model_gets_extra_tokens_even_for_one_word():
    quirks = EndpointQuirks()
    refuse(quirks, body_of(quirks, request()), "max_tokens is not supported", "max_tokens")
    body = quirks.chat_body(request("yes_no"), "m", 700, None, room=2000)
    assert body["max_completion_tokens"] == 2000 + YES_NO_TOKENS
    assert quirks.reasons, "endpoints that require max_completion_tokens count hidden reasoning"


def test_parameters_that_a_known_family_refuses_are_omitted():
    quirks = EndpointQuirks(find_model_family("openai/gpt-5-mini"))
    body = quirks.chat_body(request("yes_no"), "gpt-5-mini", 700, {"1": 100}, room=2000)
    assert set(body) == {"model", "messages", "max_completion_tokens"}
    assert body["max_completion_tokens"] == 2000 + YES_NO_TOKENS and not quirks.learned
    assert "temperature" in EndpointQuirks(find_model_family("gpt-5-chat-latest")).chat_body(
        request(), "m", 9, None
    )


def test_quirks_can_be_shared():
    quirks, other = EndpointQuirks(), EndpointQuirks()
    refuse(quirks, body_of(quirks, request()), "temperature is not supported")
    refuse(quirks, body_of(quirks, request()), "System role not supported")
    assert other.add([*quirks.learned, "nonsense"]) and not other.add(quirks.learned)
    assert body_of(other, request()) == body_of(quirks, request())


def test_reasoning_effort_is_sent_if_set():
    call = CallParameters("default", "m", reasoning_effort="low")
    what = ChatRequest("map", (Message("user", "Hello"),), call)
    assert body_of(EndpointQuirks(), what)["reasoning_effort"] == "low"
    assert "reasoning_effort" not in body_of(EndpointQuirks(), request())


def test_a_model_without_a_system_role_gets_one_user_message():
    quirks = EndpointQuirks()
    body = body_of(quirks, request())
    assert refuse(quirks, body, "System role not supported")
    assert body_of(quirks, request())["messages"] == [
        {"role": "user", "content": "Be brief.\n\nHello {there}"}
    ]


def test_no_temperature_sends_none():
    call = CallParameters("default", "m", temperature=None)
    what = ChatRequest("map", (Message("user", "Hello"),), call)
    assert "temperature" not in body_of(EndpointQuirks(), what)


@pytest.mark.parametrize("vocabulary", ["cl100k_base", "o200k_base"])
def test_the_bias_contains_the_single_tokens_of_the_answers(vocabulary):
    import quicktok

    bias = yes_no_bias(vocabulary)
    decode = quicktok.get_encoding(vocabulary).decode
    words = {decode([int(token)]) for token in bias}
    assert {"Y", "N", " Y", " N"} <= words
    assert {w.strip().upper() for w in words} == {YES, NO}
    assert set(bias.values()) == {100}


def test_forced_answers_match_the_gleaning_prompt():
    question = load_prompts()["glean_check"].user.splitlines()[-1]
    assert f"{YES} if any are missing, {NO} if none are" in question
    assert not re.search(r"\b(yes|no)\b", question, re.IGNORECASE)
