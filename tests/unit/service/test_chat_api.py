"""OpenAI's protocol: parsing of requests, and responses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from markdown_it import MarkdownIt

from graphrag_ray.base.context_records import Reference
from graphrag_ray.query.answer_streams import StartsAgain
from graphrag_ray.query.methods.answer import Answer, Phase
from graphrag_ray.query.sources import Cited
from graphrag_ray.service.answering import AnsweringPhase as PhaseEvent
from graphrag_ray.service.answering import ServedAnswer
from graphrag_ray.service.chat_api import (
    ChatBody,
    appendix,
    completion,
    failure_events,
    models_json,
    question_of,
    stream_chunks,
)
from graphrag_ray.service.faults import Fault, QuestionRejected
from graphrag_ray.service.service_options import ServiceOptions

OPTIONS = ServiceOptions(root="./index", method="local", level="C1")
REFERENCE = Reference("Reports", "aa")
ANSWER = Answer(
    "The harbour. [Data: Reports (8)]",
    "It silted up. [Data: Reports (8)]",
    "global",
    (REFERENCE,),
    0,
    phases={"map": Phase(2, 0, 100, 10, 5, 0.5), "reduce": Phase(1, 0, 20, 7, 0, 0.25)},
)
REPLIED = ServedAnswer("ab12", ANSWER, 3, {REFERENCE: 8}, [Cited("Reports", 8, "The  harbour")], None)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def body(*messages: dict[str, Any], model: str = "graphrag-ray", **more: Any) -> ChatBody:
    return ChatBody.model_validate({"model": model, "messages": list(messages), **more})


def fault(*messages: dict[str, Any], **more: Any) -> Fault:
    with pytest.raises(QuestionRejected) as caught:
        question_of(body(*messages, **more), OPTIONS)
    return caught.value.fault


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("graphrag-ray", ("local", "C1")),
        ("graphrag-ray/global", ("global", None)),
        ("graphrag-ray/global/C2", ("global", "C2")),
        ("graphrag-ray/vector", ("vector", None)),
    ],
)
def test_the_model_name_selects_method_and_level(model: str, way: tuple[str, str | None]):
    asked = question_of(body(user("What?"), model=model), OPTIONS)
    assert (asked.method, asked.level) == way and asked.text == "What?"


@pytest.mark.parametrize(
    "model", ["gpt-5", "graphrag-ray/none", "graphrag-ray/global/C1/x", "", "graphrag-ray/"]
)
def test_an_unknown_model_is_reported(model: str):
    told = fault(user("What?"), model=model)
    assert (told.status, told.code, told.param) == (404, "model_not_found", "model")
    assert "graphrag-ray/METHOD" in told.message and "global" in told.message
    with pytest.raises(QuestionRejected):
        models_json(SimpleNamespace(levels=()), model)  # type: ignore[arg-type]


def test_earlier_messages_are_the_conversation():
    told = body(
        {"role": "system", "content": "You are a pirate."},
        user("Who?"),
        assistant("DAVE."),
        user("Well"),
        user("where?"),
        assistant("Here."),
        user([{"type": "text", "text": "And"}, {"type": "text", "text": "when?"}]),
    )
    asked = question_of(told, OPTIONS)
    assert asked.text == "And\nwhen?"
    assert asked.history == (("Who?", "DAVE."), ("Well\nwhere?", "Here."))


def test_every_turn_of_a_conversation_is_included():
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    told = body(
        assistant("How can I help?"),
        user("Who?"),
        called,
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        assistant("DAVE."),
        assistant("And ANN."),
        user("Where?"),
        user("Where?"),
        user("In town?"),
    )
    asked = question_of(told, OPTIONS)
    assert asked.text == "Where?\nIn town?", "what was not answered, as after an error, is still asked; once"
    assert asked.history == (("Who?", "DAVE.\nAnd ANN."),)


def test_the_list_of_cited_records_is_removed_from_earlier_answers():
    text = ANSWER.text + appendix(REPLIED)
    asked = question_of(body(user("Who?"), assistant(text), user("And?")), OPTIONS)
    assert asked.history == (("Who?", ANSWER.text),)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_parameters_that_change_the_form_of_the_reply_are_refused(more: dict[str, Any], param: str):
    told = fault(user("What?"), **more)
    assert (told.status, told.kind, told.param) == (400, "invalid_request_error", param)


def test_meaningless_parameters_are_ignored():
    told = body(
        user("What?"),
        temperature=0.2,
        max_tokens=5,
        n=1,
        tools=[{"type": "function"}],
        tool_choice="none",
        user="x",
        response_format={"type": "text"},
    )
    assert question_of(told, OPTIONS).text == "What?"


def test_the_last_message_must_be_a_question():
    assert "last message" in fault(user("Who?"), assistant("DAVE.")).message
    assert "last message" in fault({"role": "system", "content": "Be brief."}).message
    image = {"type": "image_url", "image_url": {"url": "data:…"}}
    assert "'image_url'" in fault(user([image])).message
    assert "'critic'" in fault(user("Who?"), {"role": "critic", "content": "x"}, user("And?")).message


def test_a_completion_has_text_names_usage_and_references():
    told = completion(body(user("What?"), model="graphrag-ray/global"), REPLIED)
    (choice,) = told["choices"]
    assert told["id"] == "chatcmpl-ab12" and told["object"] == "chat.completion"
    assert told["model"] == "graphrag-ray/global" and choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == (
        "It silted up. [Data: Reports (8)]\n\n---\n**Reports cited:** 8 The harbour"
    )
    assert told["usage"] == {
        "prompt_tokens": 120,
        "completion_tokens": 17,
        "total_tokens": 137,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    named = {"section": "Reports", "id": "aa", "number": 8, "name": "The  harbour"}
    assert told["graphrag"]["references"] == [named] and told["graphrag"]["snapshot"] == 3


def chunks_of(pieces: list[bytes]) -> list[Any]:
    lines = b"".join(pieces).decode().split("\n\n")
    assert lines.pop() == "" and lines.pop() == "data: [DONE]"
    return [orjson.loads(line.removeprefix("data: ")) for line in lines]


def test_a_stream_has_chunks_with_one_id_and_ends_with_the_usage():
    told = stream_chunks(body(user("What?"), stream=True, stream_options={"include_usage": True}), "cd")
    result = [PhaseEvent("map", 2, False), "It silted ", StartsAgain("[again]"), "up.", REPLIED]
    found = chunks_of([piece for one in result for piece in told(one)])
    assert {c["id"] for c in found} == {"chatcmpl-cd"} and {c["object"] for c in found} == {
        "chat.completion.chunk"
    }
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in found if c["choices"])
    assert text == "It silted [again]up." + appendix(REPLIED)
    assert found[-2]["choices"][0]["finish_reason"] == "stop" and found[-2]["graphrag"]["level"] == 0
    assert found[-1]["choices"] == [] and found[-1]["usage"]["total_tokens"] == 137
    assert all(c["usage"] is None for c in found[:-1])


def test_usage_is_only_streamed_on_request():
    told = stream_chunks(body(user("What?"), stream=True), "cd")
    assert not any("usage" in c for c in chunks_of([piece for one in ("a", REPLIED) for piece in told(one)]))


def test_an_error_in_the_middle_of_a_stream_is_reported_in_the_stream():
    (found,) = chunks_of(list(failure_events(Fault(504, "server_error", "timeout", "too long"))))
    assert found == {
        "error": {"message": "too long", "type": "server_error", "param": None, "code": "timeout"}
    }


def test_markdown_in_names_from_the_corpus_is_escaped():
    name = "5 ![X](https://evil.example/p.png?q=1) <img src=//evil.example> `A` SNAKE_CASE"
    listed = appendix(replace(REPLIED, cited=[Cited("Entities", 5, name)]))
    rendered = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(listed)
    assert "<img" not in rendered and "<a" not in rendered and "<code" not in rendered
    assert "![X](https://evil.example" in rendered and "SNAKE_CASE" in rendered
    # In the next request, the list is recognised and removed.
    history = assistant(f"It silted up.{listed}")
    asked = question_of(body(user("And then?"), history, user("Why?")), OPTIONS)
    assert asked.history == (("And then?", "It silted up."),)
