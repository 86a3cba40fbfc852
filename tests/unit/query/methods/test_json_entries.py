"""Lists of small records in a model's JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.graph.report_reply import ReplyProblem
from graphrag_ray.query.methods.json_entries import entries, field, number, words

ONE = [{"description": "A.", "score": 5}]


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
        "See [1] first. {'points': [{'description': 'A.', 'score': 5}]}",
    ],
)
def test_a_list_is_found_however_it_is_wrapped(reply: str):
    assert entries(reply, "points") == ONE


@pytest.mark.parametrize("reply", ['{"points": []}', "[]", '{"points": []} as nothing fits'])
def test_an_empty_list_says_that_there_are_none(reply: str):
    assert entries(reply, "points") == []


@pytest.mark.parametrize(
    "reply",
    ["", "No.", "I see [Data: Reports (1)].", '{"answer": 5, "x": 6}', "{", "[1, 2]", '{"points": "none"}'],
)
def test_what_holds_no_list_is_a_problem_that_names_the_list(reply: str):
    found = entries(reply, "points")
    assert isinstance(found, ReplyProblem) and "`points`" in found.text


def test_of_a_reply_that_was_cut_off_what_is_complete_counts():
    reply = '{"points": [{"description": "A.", "score": 5}, {"description": "B is', "length"
    assert entries(*reply[:1], "points", reply[1]) == ONE
    whole = '{"points": [{"description": "A.", "score": 5}, '
    assert entries(whole, "points", "length") == ONE
    found = entries('{"points": [{"description": "B is', "points", "length")
    assert isinstance(found, ReplyProblem) and "not closed" in found.text


@given(st.text() | st.text(alphabet='{}[]":,1a \n').map(lambda t: '{"points": [' + t))
def test_no_reply_breaks_the_reading(reply: str):
    for finish in ("stop", "length"):
        found = entries(reply, "points", finish)
        assert isinstance(found, ReplyProblem) or all(isinstance(e, dict) for e in found)
    field(reply, "answer")


@pytest.mark.parametrize(
    ("written", "read"),
    [(5, 5.0), ("5", 5.0), ("5/100", 5.0), ("7,5 %", 7.5), (140, 100.0), (-3, 0.0), ("4 out of 5", 4.0)],
)
def test_numbers_are_read_and_kept_in_their_range(written: object, read: float):
    assert number(written, 100.0) == read


@pytest.mark.parametrize("written", [None, True, "high", "", [], float("nan"), float("inf"), 10**400])
def test_what_is_no_number_is_none(written: object):
    assert number(written, 100.0) is None


def test_the_first_of_the_fields_that_holds_a_text_counts():
    assert words({"point": " ", "text": " B. "}, "description", "point", "text") == "B."
    assert words({"description": 7}, "description") == ""


def test_a_field_of_the_first_object_is_found_under_any_spelling():
    assert field('Yes: {"Follow_Ups": ["a"]}', "followups") == ["a"]
    assert field(json.dumps({"x": 1}), "followups") is None
    assert field("none", "x") is None
