import re

import pytest

from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.thoughts import family_of
from graphrag_ray.llm.call_failures import HttpRefusal
from graphrag_ray.llm.quirks import NO, YES, YES_NO_TOKENS, Peculiarities, told, yes_no_bias

CALL = CallParameters("default", "m", temperature=0.0)
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def request(response="text", **more):
    messages = (Message("system", "Be brief."), Message("user", "Hello {there}"))
    return ChatRequest("map", messages, CALL, response=response, **more)


def refuse(peculiarities, body, message, param="", code="", status=400):
    return peculiarities.learn(body, HttpRefusal(status, message, code, param))


def body_of(peculiarities, what, bias=None):
    return peculiarities.chat_body(what, "m", 700, bias)


def test_a_plain_request_says_what_it_says():
    assert body_of(Peculiarities(), request()) == {
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
def test_a_refused_parameter_is_dropped_and_told_in_a_sentence_that_names_it(parameter, message, param):
    peculiarities = Peculiarities()
    body = body_of(peculiarities, request("yes_no"), {"1": 100})
    assert parameter in body
    for _ in range(3):  # as many as were under way
        assert refuse(peculiarities, body, message, param)
    assert parameter not in body_of(peculiarities, request("yes_no"), {"1": 100})
    assert peculiarities.learned == {parameter}
    assert told("http://host/v1", [parameter]) == f"http://host/v1: takes no {parameter}: it is left out"


def test_a_model_that_wants_max_completion_tokens_gets_them():
    peculiarities = Peculiarities()
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
    peculiarities = Peculiarities()
    body = body_of(peculiarities, request())
    assert not refuse(peculiarities, body, message)
    assert body_of(peculiarities, request()) == body


def test_only_client_errors_about_the_request_teach():
    peculiarities = Peculiarities()
    assert not refuse(
        peculiarities, body_of(peculiarities, request()), "temperature is not supported", status=500
    )


def test_the_response_format_is_weakened_step_by_step():
    peculiarities = Peculiarities()
    seen = []
    for _ in range(3):
        body = body_of(peculiarities, request("json", schema=SCHEMA))
        seen.append(body.get("response_format", {}).get("type"))
        refuse(peculiarities, body, "Invalid parameter: 'response_format' of this type is not supported")
    assert seen == ["json_schema", "json_object", None]


def test_json_without_a_schema_asks_for_an_object():
    body = body_of(Peculiarities(), request("json"))
    assert body["response_format"] == {"type": "json_object"}


def test_a_forced_answer_is_one_token_of_yes_or_no():
    body = body_of(Peculiarities(), request("yes_no"), {"13022": 100})
    assert body["logit_bias"] == {"13022": 100}
    assert body["max_tokens"] == 1


def test_an_answer_that_is_not_forced_is_short():
    body = body_of(Peculiarities(), request("yes_no"))
    assert "logit_bias" not in body
    assert body["max_tokens"] == YES_NO_TOKENS


def test_a_model_that_thinks_gets_room_for_it_even_for_one_word():
    peculiarities = Peculiarities()
    refuse(peculiarities, body_of(peculiarities, request()), "max_tokens is not supported", "max_tokens")
    body = peculiarities.chat_body(request("yes_no"), "m", 700, None, room=2000)
    assert body["max_completion_tokens"] == 2000 + YES_NO_TOKENS
    assert peculiarities.thinks, "whoever counts unseen thoughts wants the other name"


def test_a_known_family_is_not_asked_for_what_it_refuses():
    peculiarities = Peculiarities(family_of("openai/gpt-5-mini"))
    body = peculiarities.chat_body(request("yes_no"), "gpt-5-mini", 700, {"1": 100}, room=2000)
    assert set(body) == {"model", "messages", "max_completion_tokens"}
    assert body["max_completion_tokens"] == 2000 + YES_NO_TOKENS and not peculiarities.learned
    assert "temperature" in Peculiarities(family_of("gpt-5-chat-latest")).chat_body(request(), "m", 9, None)


def test_what_somebody_learned_need_not_be_learned_again():
    peculiarities, other = Peculiarities(), Peculiarities()
    refuse(peculiarities, body_of(peculiarities, request()), "temperature is not supported")
    refuse(peculiarities, body_of(peculiarities, request()), "System role not supported")
    assert other.add([*peculiarities.learned, "nonsense"]) and not other.add(peculiarities.learned)
    assert body_of(other, request()) == body_of(peculiarities, request())


def test_how_much_a_model_shall_think_is_said_where_it_is_set():
    call = CallParameters("default", "m", reasoning_effort="low")
    what = ChatRequest("map", (Message("user", "Hello"),), call)
    assert body_of(Peculiarities(), what)["reasoning_effort"] == "low"
    assert "reasoning_effort" not in body_of(Peculiarities(), request())


def test_a_model_without_a_system_role_gets_one_user_message():
    peculiarities = Peculiarities()
    body = body_of(peculiarities, request())
    assert refuse(peculiarities, body, "System role not supported")
    assert body_of(peculiarities, request())["messages"] == [
        {"role": "user", "content": "Be brief.\n\nHello {there}"}
    ]


def test_no_temperature_sends_none():
    call = CallParameters("default", "m", temperature=None)
    what = ChatRequest("map", (Message("user", "Hello"),), call)
    assert "temperature" not in body_of(Peculiarities(), what)


@pytest.mark.parametrize("vocabulary", ["cl100k_base", "o200k_base"])
def test_the_bias_is_on_single_tokens_that_the_prompt_asks_for(vocabulary):
    import quicktok

    bias = yes_no_bias(vocabulary)
    decode = quicktok.get_encoding(vocabulary).decode
    words = {decode([int(token)]) for token in bias}
    assert {"Y", "N", " Y", " N"} <= words
    assert {w.strip().upper() for w in words} == {YES, NO}
    assert set(bias.values()) == {100}


def test_what_is_forced_is_what_the_gleaning_question_asks_for():
    question = load_prompts()["glean_check"].user.splitlines()[-1]
    assert f"{YES} if any are missing, {NO} if none are" in question
    assert not re.search(r"\b(yes|no)\b", question, re.IGNORECASE)
