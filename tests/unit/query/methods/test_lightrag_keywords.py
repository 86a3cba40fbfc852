"""Keywords of two levels: parsing and correction."""

from __future__ import annotations

import json

import pytest
from driving import drive
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.query.methods.lightrag_search import (
    MAX_CHARACTERS,
    MAX_KEYWORDS,
    DualKeywords,
    keywords_spec,
    list_keywords,
    parse_keywords,
)

SPEC = keywords_spec(parse_settings({}), load_prompts())
REPLY = '{"high_level": ["sale of land"], "low_level": ["the mill", "Edda Brandt"]}'
FOUND = DualKeywords(("sale of land",), ("the mill", "Edda Brandt"))


@pytest.mark.parametrize(
    "reply",
    [
        REPLY,
        f"Here they are:\n```json\n{REPLY}\n```",
        '{"High-Level": ["sale of land", "sale of land", " "], "Low-Level": ["the mill", "Edda Brandt"]}',
        '{"high_level_keywords": ["sale of land"], "low_level_keywords": ["the mill", "Edda Brandt"]}',
        '{"high_level": "sale of land", "low_level": "the mill, Edda Brandt"}',
        '{"high_level": [{"keyword": "sale of land"}], "low_level": [{"name": "the mill"}, "Edda Brandt"]}',
        '{"high_level": ["sale of land"], "low_level": ["the mill", "Edda Brandt"',
    ],
)
def test_keywords_are_parsed_from_many_formats(reply: str):
    assert parse_keywords(reply) == FOUND


def test_list_may_be_missing_and_year_is_keyword():
    assert parse_keywords('{"low_level": [1984]}') == DualKeywords((), ("1984",))


@pytest.mark.parametrize("reply", ["", "The mill was sold.", "[]", '{"high_level": [], "low_level": []}'])
def test_missing_keywords_are_corrected_once(reply: str):
    found, requests = drive(list_keywords("Who sold the mill?", SPEC), reply, REPLY)
    assert found == FOUND
    assert [r.prompt for r in requests] == ["keywords", "correct"]
    assert "`high_level` and `low_level`" in requests[1].messages[-1].content
    assert drive(list_keywords("Who sold the mill?", SPEC), reply, reply)[0] is None


def test_keywords_take_one_json_call():
    found, (request,) = drive(list_keywords("Who sold the mill?", SPEC), REPLY)
    assert found == FOUND and request.response == "json"
    assert "Who sold the mill?" in request.messages[-1].content


@given(st.lists(st.text(max_size=300), max_size=40), st.text(max_size=80))
def test_keywords_of_any_reply_are_limited_and_distinct(result: list[str], other: str):
    for reply in (json.dumps({"high_level": result, "low_level": [other]}), other):
        found = parse_keywords(reply)
        for listed in () if isinstance(found, ReplyProblem) else (found.high, found.low):
            assert len(listed) == len(set(listed)) <= MAX_KEYWORDS
            assert all(k.strip() == k and 0 < len(k) <= MAX_CHARACTERS for k in listed)
