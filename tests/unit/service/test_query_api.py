"""POST /query: parsing of requests, and responses."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import Query
from graphrag_ray.query.answer_streams import StartsAgain
from graphrag_ray.query.methods.answer import Answer, ContextUsed
from graphrag_ray.service.answering import AnsweringPhase, ServedAnswer
from graphrag_ray.service.faults import QuestionRejected
from graphrag_ray.service.query_api import QueryBody, answer_json, query_settings, question_of, stream_events
from graphrag_ray.service.service_options import ServiceOptions

OPTIONS = ServiceOptions(root="./index", level="C1", max_seconds=60)
GONE = Reference("Reports", "zz")
REPLIED = ServedAnswer(
    "ab",
    Answer("What?", "This.", "global", (GONE,), contexts=(ContextUsed("map", (GONE,), 7),)),
    2,
    {},
    [],
    None,
)


def body(**given: Any) -> QueryBody:
    return QueryBody.model_validate({"question": "What?", **given})


def test_the_options_of_the_service_are_the_defaults():
    asked = question_of(body(), OPTIONS)
    assert (asked.method, asked.level, asked.where, asked.history) == ("global", "C1", (), ())


def test_the_default_level_only_applies_to_the_default_method():
    assert question_of(body(method="local"), OPTIONS).level is None
    assert question_of(body(level=0), OPTIONS).level == 0


def test_a_request_may_lower_the_limits_of_the_service():
    query = Query(budget_tokens=1_000, response_type="a list")
    wanted = query_settings(
        body(budget_tokens=900, budget_usd=0.5, response_type="a word", dynamic=True), query
    )
    assert (wanted.budget_tokens, wanted.budget_usd) == (900, 0.5)
    assert wanted.response_type == "a word" and wanted.dynamic
    assert query_settings(body(), query) == query


def test_a_mode_needs_a_method_with_modes():
    asked = body(method="lightrag", mode="local")
    assert question_of(asked, OPTIONS).method == "lightrag"
    assert query_settings(asked, Query()).lightrag_mode == "local"
    with pytest.raises(UsageError, match="mode is an option of lightrag search \\(local, global"):
        question_of(body(mode="local"), OPTIONS)


def test_a_request_must_not_exceed_the_limits_of_the_service():
    with pytest.raises(QuestionRejected, match="budget_tokens can be at most 1,000"):
        query_settings(body(budget_tokens=1_001), Query(budget_tokens=1_000))
    with pytest.raises(QuestionRejected, match="max_seconds can be at most 60"):
        question_of(body(max_seconds=61), OPTIONS)


@pytest.mark.parametrize(
    "given", [{"budget_tokens": 0}, {"models": {}}, {"history": [["a", "b"]]}, {"where": "x"}]
)
def test_an_invalid_request_is_refused(given: dict[str, Any]):
    with pytest.raises(ValidationError):
        body(**given)


def test_contexts_are_only_included_on_request():
    assert "contexts" not in answer_json(REPLIED, contexts=False)
    assert answer_json(REPLIED, contexts=True)["contexts"][0]["n_tokens"] == 7


def test_a_record_that_is_not_in_the_snapshot_has_no_number():
    (reference,) = answer_json(REPLIED, contexts=False)["references"]
    assert reference == {"section": "Reports", "id": "zz", "number": None, "name": None}


def test_every_event_has_a_name():
    result = [AnsweringPhase("map", 3, ended=False), "Th", StartsAgain("\n\n[again]\n\n"), "This.", REPLIED]
    lines = [
        line
        for one in result
        for piece in stream_events(False, one)
        for line in piece.decode().splitlines()
        if line
    ]
    names, data = lines[::2], [orjson.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert names == [f"event: {n}" for n in ("phase", "text", "restart", "text", "answer")]
    assert data[0] == {"phase": "map", "dialogues": 3, "ended": False}
    assert data[2] == {"reason": "[again]"} and data[4]["text"] == "This." and data[4]["snapshot"] == 2


def test_a_line_break_in_the_text_does_not_end_an_event():
    (piece,) = stream_events(False, "a\n\nevent: answer\ndata: {}")
    assert piece.count(b"\n") == 3
