"""The map protocol `points`: several scored points from one context."""

from __future__ import annotations

import json

import pytest
from driving import drive

from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import CallParameters, ChatReply
from graphrag_ray.base.prompts import parse_prompt
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.map_reduce import (
    POINTS_SCHEMA,
    AnswerSpec,
    MapAnswer,
    Scored,
    map_points,
    parse_points,
    reduce_context,
)

SPEC = AnswerSpec(
    parse_prompt("map_points", "{question}|{context}|{response_type}|{knowledge}|{language}|{max_tokens}"),
    parse_prompt("correct", "Wrong: {problem}."),
    CallParameters("default", "m"),
    "two paragraphs",
    "",
    "English",
    500,
)
CONTEXT = Context("data\n", {("Reports", 1): "aa", ("Reports", 2): "bb"}, 5)


def points(*pairs: tuple[str, object]) -> str:
    return json.dumps({"points": [{"description": text, "score": score} for text, score in pairs]})


def test_each_point_becomes_an_answer():
    answers, requests = drive(
        map_points("Why?", CONTEXT, SPEC),
        points(("A [Data: Reports (1, 9)].", 80), ("B [Data: Reports (2)].", 20)),
    )
    assert answers == (
        MapAnswer("A [Data: Reports (aa)].", 80, (Reference("Reports", "aa"),), dropped_references=1),
        MapAnswer("B [Data: Reports (bb)].", 20, (Reference("Reports", "bb"),)),
    )
    assert (requests[0].response, requests[0].schema) == ("json", POINTS_SCHEMA)


def test_points_are_ranked_individually_and_zeros_dropped():
    answers, _ = drive(map_points("Why?", CONTEXT, SPEC), points(("A.", 80), ("B.", 0), ("C.", 90)))
    assert [a.text for a in reduce_context(answers, 1000, len).answers] == ["C.", "A."]


def test_empty_list_is_valid():
    answers, requests = drive(map_points("Why?", CONTEXT, SPEC), points())
    assert answers == () and len(requests) == 1


def test_reply_without_json_is_corrected_once_then_fails():
    answers, requests = drive(map_points("Why?", CONTEXT, SPEC), "Because.", points(("A.", 5)))
    assert answers == (MapAnswer("A.", 5),)
    assert requests[1].prompt == "correct" and "`points`" in requests[1].messages[-1].content
    with pytest.raises(DialogueFailed, match="no JSON object"):
        drive(map_points("Why?", CONTEXT, SPEC), "Because.", "Because!")


def test_invalid_score_is_a_problem():
    problem = parse_points(points(("A.", "high"), ("B.", 5)))
    assert isinstance(problem, ReplyProblem) and "`score`" in problem.text


def test_at_least_one_point_needs_text():
    assert parse_points(points(("", 5), ("B.", "60/100"))) == (Scored("B.", 60.0),)
    assert isinstance(parse_points(points(("", 5))), ReplyProblem)


def test_complete_points_of_truncated_reply_are_used():
    reply = ChatReply(points(("A.", 5), ("B.", 6))[:-20], "length")
    answers, requests = drive(map_points("Why?", CONTEXT, SPEC), reply)
    assert answers == (MapAnswer("A.", 5, truncated=True),) and len(requests) == 1
