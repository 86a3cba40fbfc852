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
