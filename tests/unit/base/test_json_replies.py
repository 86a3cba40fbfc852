"""Parsing of JSON replies into pydantic models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from graphrag_ray.base.json_replies import JsonReply, ReplyProblem, number, parse_reply, schema_of


class Point(JsonReply):
    description: str = ""
    score: float | None = Field(default=None, le=100)

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"description": ("point", "text")}


class Points(JsonReply):
    points: list[Point]


class Step(JsonReply):
    answer: str
    score: float = Field(le=10)
    follow_ups: list[str] = Field(default=[])


ONE = Points(points=[Point(description="A.", score=5)])


@pytest.mark.parametrize(
    "reply",
    [
        '{"points": [{"description": "A.", "score": 5}]}',
        'Sure!\n```json\n{"points": [{"description": "A.", "score": 5}]}\n```\nAnything else?',
        '[{"description": "A.", "score": 5}]',
        '{"Points": [{"Description": "A.", "SCORE": 5,}],}',
        '{"result": {"points": [{"description": "A.", "score": 5}]}}',
        '{"findings": [{"description": "A.", "score": 5}]}',
        '{"points": {"1": {"description": "A.", "score": 5}}}',
        '{"points": [{"description": " ", "text": " A. ", "score": "5/100"}, 7]}',
        "See [1] first. {'points': [{'description': 'A.', 'score': 5}]}",
    ],
)
def test_a_list_is_found_in_any_wrapping(reply: str):
    assert parse_reply(reply, Points) == ONE


@pytest.mark.parametrize("reply", ['{"points": []}', "[]", '{"points": []} as nothing fits'])
def test_an_empty_list_is_a_valid_reply(reply: str):
    assert parse_reply(reply, Points) == Points(points=[])


@pytest.mark.parametrize(
    "reply",
    ["", "No.", "I see [Data: Reports (1)].", '{"answer": 5, "x": 6}', "{", "[1, 2]", '{"points": "none"}'],
)
def test_a_missing_list_is_named_in_the_problem(reply: str):
    found = parse_reply(reply, Points)
    assert isinstance(found, ReplyProblem) and "`points`" in found.text


def test_complete_parts_of_a_truncated_reply_are_used():
    assert (
        parse_reply('{"points": [{"description": "A.", "score": 5}, {"description": "B is', Points, "length")
        == ONE
    )
    assert parse_reply('{"points": [{"description": "A.", "score": 5}, ', Points, "length") == ONE
    found = parse_reply('{"points": [{"description": "B is', Points, "length")
    assert isinstance(found, ReplyProblem) and "not closed" in found.text


FORM = '{"answer": "...", "score": 0}'
FINAL = '{"answer": "Yes {1}.", "score": 7}'


@pytest.mark.parametrize(
    "before",
    [
        f"The form is {FORM}. ",
        "I fill {answer} and {score}: ",
        '{"answer": ..., "score": ...} is the form. ',
        'I need {"answer": first. ',
        '{"thought": "I begin with {"} ',
        "{" * 900,
    ],
)
@pytest.mark.parametrize("after", ["", " That is all. {}", " [1] {x} [Data: Reports (3)]"])
def test_a_model_that_thinks_aloud_is_understood(before: str, after: str):
    assert parse_reply(before + FINAL + after, Step) == Step(answer="Yes {1}.", score=7)


def test_a_quoted_form_does_not_replace_a_truncated_answer():
    quoted = '{"points": [{"description": "...", "score": 0}]}'
    cut = ' {"points": [{"description": "A.", "score": 5}, {"description": "B'
    assert parse_reply(quoted + cut, Points, "length") == ONE


def test_parts_of_a_broken_reply_are_not_taken_for_the_reply():
    broken = '{"points": [{"description": "A." "score": 5}, {"description": "B.", "score": 6}]}'
    assert [p.description for p in parse_reply(broken, Points).points] == ["A.", "B."]


@given(
    st.lists(st.text(alphabet='{}[]":,1a ', max_size=12), max_size=4).map(" ".join),
    st.text(max_size=9).filter(str.strip),
)
def test_the_last_complete_object_is_read_after_any_text(before: str, answer: str):
    # A letter ends whatever value the text before leaves open, except for a text in quotation marks.
    reply = before.replace('"', "") + " so " + Step(answer=answer, score=3).model_dump_json()
    assert parse_reply(reply, Step) == Step(answer=answer.strip(), score=3)


@given(st.text() | st.text(alphabet='{}[]":,1a \n').map(lambda t: '{"points": [' + t))
def test_no_reply_raises_an_error(reply: str):
    for finish in ("stop", "length"):
        for model in (Points, Step):
            assert isinstance(parse_reply(reply, model, finish), ReplyProblem | model)


@pytest.mark.parametrize(
    ("written", "read"),
    [(5, 5.0), ("5", 5.0), ("5/100", 5.0), ("7,5 %", 7.5), (140, 100.0), (-3, 0.0), ("4 out of 5", 4.0)],
)
def test_numbers_are_parsed_and_clipped(written: object, read: float):
    assert number(written, 100.0) == read


@pytest.mark.parametrize("written", [None, True, "high", "", [], float("nan"), float("inf"), 10**400])
def test_other_values_are_not_numbers(written: object):
    assert number(written, 100.0) is None


def test_each_missing_field_is_named_with_its_required_type():
    found = parse_reply('{"answer": 7, "Follow-Ups": ["Who?", 3]}', Step)
    assert found == ReplyProblem(
        "`answer` must be a text that is not empty; `score` must be a number from 0 to 10"
    )
    assert parse_reply("none", Step) == ReplyProblem("it holds no JSON object")


def test_the_schema_for_endpoints_is_strict():
    point = {"description": {"type": "string"}, "score": {"type": "number"}}
    assert schema_of(Points) == {
        "type": "object",
        "properties": {
            "points": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": point,
                    "required": ["description", "score"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["points"],
        "additionalProperties": False,
    }
