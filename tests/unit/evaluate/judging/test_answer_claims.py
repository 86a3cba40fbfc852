"""Parsing lists of factual claims."""

from __future__ import annotations

import json

import pytest
from driving import drive
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.evaluate.judging.judge_dialogue import (
    answer_claims,
    answer_claims_spec,
    list_schema,
    parse_texts,
)
from graphrag_ray.offline import answer as offline_answer

SPEC = answer_claims_spec(parse_settings({}), load_prompts())
ONE, OTHER = "Mara Venn founded the trust in 1998.", "The trust has 40 members."


def claimed() -> Dialogue[list[str]]:
    return answer_claims("What is the trust?", "It is old.", SPEC)


def claims(*told: object) -> str:
    return json.dumps({"claims": [{"claim": text} for text in told]})


def test_claims_are_listed_in_the_order_of_the_answer():
    result, requests = drive(claimed(), claims(ONE, OTHER))
    assert result == [ONE, OTHER]
    (request,) = requests
    assert (request.prompt, request.response) == ("answer_claims", "json")
    assert request.schema == list_schema("claims", "claim")
    assert "What is the trust?" in request.messages[-1].content
    assert "It is old." in request.messages[-1].content


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{claims(ONE, OTHER)}\n```",
        f"These are they:\n{claims(ONE, OTHER)}",
        json.dumps([{"claim": ONE}, {"claim": OTHER}]),
        json.dumps({"claims": {"1": {"claim": ONE}, "2": {"claim": OTHER}}}),
        json.dumps({"claims": [{"text": ONE}, {"Claim": f" {OTHER}\n"}]}),
        json.dumps({"claims": [ONE, OTHER]}),
        json.dumps({"Claims": [ONE, "", 5, OTHER, None]}),
    ],
)
def test_lists_are_parsed_in_all_forms_that_models_write(text: str):
    result, requests = drive(claimed(), text)
    assert (result, len(requests)) == ([ONE, OTHER], 1)


def test_repeated_claim_counts_once():
    assert drive(claimed(), claims(ONE, OTHER, ONE))[0] == [ONE, OTHER]
    assert drive(claimed(), json.dumps({"claims": [ONE, OTHER, ONE]}))[0] == [ONE, OTHER]


def test_answer_may_have_no_claims():
    result, requests = drive(claimed(), claims())
    assert result == [] and len(requests) == 1


def test_entries_without_text_are_ignored_unless_all_are():
    assert drive(claimed(), claims("", 5, ONE))[0] == [ONE]
    found = parse_texts(ChatReply(claims("", 5)), "claims", "claim")
    assert isinstance(found, ReplyProblem) and "no entry of `claims` has a text `claim`" in found.text


@pytest.mark.parametrize("text", ["There are none.", "", "{}", '{"claims": "none"}', "See [Reports (1)]."])
def test_two_replies_without_a_list_fail(text: str):
    with pytest.raises(DialogueFailed, match="answer_claims: still not usable after a correction"):
        drive(claimed(), text, text)
    result, requests = drive(claimed(), text, claims(ONE))
    assert result == [ONE] and requests[1].prompt == "correct"


@pytest.mark.parametrize("text", [claims(ONE, OTHER), json.dumps({"claims": [ONE, OTHER]})])
def test_complete_claims_of_a_truncated_list_count(text: str):
    assert drive(claimed(), ChatReply(text[:-12], "length"))[0] == [ONE]
    assert drive(claimed(), ChatReply(text, "length"))[0] == [ONE, OTHER]


@given(texts() | st.lists(texts()).map(lambda told: claims(*told)), st.sampled_from(["stop", "length"]))
def test_any_reply_yields_distinct_storable_claims_or_fails(text: str, ended: str):
    found = parse_texts(ChatReply(text, ended), "claims", "claim")
    if not isinstance(found, ReplyProblem):
        assert len(set(found)) == len(found)
        for claim in found:
            assert claim.encode() and claim == claim.strip()


@given(texts(), texts())
def test_offline_engine_lists_claims_at_the_first_turn(question: str, answer: str):
    asked = []
    result = run_dialogue(
        answer_claims(question, answer, SPEC),
        lambda request: asked.append(request) or offline_answer(request),
    )
    assert len(set(result)) == len(result) and len(asked) == 1
