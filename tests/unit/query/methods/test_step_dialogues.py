"""Parsing of next questions and selected facts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, Usage
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.ppr_search import (
    FACTS,
    MAX_CHARACTERS,
    MAX_FACTS,
    NEXT,
    NextStep,
    next_questions,
    parse_facts,
    parse_next,
    pick_facts,
    step_spec,
)

CONTEXT = Context("Sources\nid,text\n1,x\n", {("Sources", 1): "0" * 32}, 8)
QUESTION = "Where did her husband die?"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**6) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["facts", "next", "known"]), inner)
    ),
    max_leaves=12,
)


def questions_of(reply: str, *asked: str) -> tuple[str, ...]:
    found = parse_next(reply, [QUESTION, *asked], 2)
    assert isinstance(found, NextStep)
    return found.questions


def test_next_step_is_parsed() -> None:
    reply = '{"known": ["Ada was married to Ivar."], "next": ["Where did Ivar die?"]}'
    assert parse_next(reply, [QUESTION], 2) == NextStep(
        ("Ada was married to Ivar.",), ("Where did Ivar die?",)
    )


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"known": [], "next": ["Where did Ivar die?"]}\n```',
        'Here it is: {"next": "Where did Ivar die?"}',
        '{"Known": [], "Next": ["Where did Ivar die?", "where did IVAR die"]}',
    ],
)
def test_next_questions_are_parsed_from_many_formats(reply: str) -> None:
    assert questions_of(reply) == ("Where did Ivar die?",)


def test_repeated_questions_are_dropped() -> None:
    assert questions_of(json.dumps({"known": [], "next": [QUESTION, "where did her husband die"]})) == ()
    assert questions_of('{"known": [], "next": ["Who was Ivar?"]}', "Who was Ivar?") == ()


def test_next_questions_are_limited() -> None:
    asked = questions_of(json.dumps({"next": [f"{n} {'x' * 9_999}" for n in range(9)]}))
    assert len(asked) == 2
    assert all(len(question) <= MAX_CHARACTERS for question in asked)


@pytest.mark.parametrize("reply", ["", "none", "[]", '{"other": 1}', '{"known": 3, "next": null}'])
def test_reply_without_lists_is_a_problem(reply: str) -> None:
    assert isinstance(parse_next(reply, [], 2), ReplyProblem)


@pytest.mark.parametrize(
    ("reply", "facts"),
    [
        ('{"facts": [3, 1, 3]}', (3, 1)),
        ('{"facts": ["2", " 1 "]}', (2, 1)),
        ('{"facts": []}', ()),
        ('{"facts": [0, 9, -1, true, null, 1.5, "x", 4]}', (4,)),
        ('The facts: {"Facts": [1]}.', (1,)),
    ],
)
def test_fact_numbers_are_parsed(reply: str, facts: tuple[int, ...]) -> None:
    assert parse_facts(reply, 5) == facts


def test_number_of_facts_is_limited() -> None:
    assert parse_facts(json.dumps({"facts": list(range(1, 50))}), 99) == tuple(range(1, MAX_FACTS + 1))


@pytest.mark.parametrize("reply", ["", "1, 2", '{"facts": 3}', "[1]"])
def test_reply_without_facts_list_is_a_problem(reply: str) -> None:
    assert isinstance(parse_facts(reply, 5), ReplyProblem)


@given(JSON)
def test_any_json_is_parsed_or_rejected(value: Any) -> None:
    reply = json.dumps(value, ensure_ascii=False)
    assert isinstance(parse_next(reply, ["x"], 2), NextStep | ReplyProblem)
    assert isinstance(parse_facts(reply, 3), tuple | ReplyProblem)


@pytest.mark.parametrize(("replies", "found"), [(["?", '{"facts": [1]}'], (1,)), (["?", "?"], None)])
def test_unusable_reply_is_corrected_once(replies: list[str], found: tuple[int, ...] | None) -> None:
    left = iter(replies)
    spec = step_spec(FACTS, parse_settings({}), load_prompts())
    dialogue = pick_facts(QUESTION, "Relationships\n", 3, spec)
    assert (
        run_dialogue(dialogue, lambda request: ChatReply(next(left), "stop", Usage(reported=False))) == found
    )
    assert next(left, None) is None


def test_prompt_lists_questions_already_asked() -> None:
    shown = []

    def answer(request: Any) -> ChatReply:
        shown.append(request.messages[-1].content)
        return ChatReply('{"known": [], "next": []}', "stop", Usage(reported=False))

    spec = step_spec(NEXT, parse_settings({}), load_prompts())
    assert (
        run_dialogue(next_questions(QUESTION, [QUESTION, "Who was Ivar?"], CONTEXT, spec, 2), answer)
        == NextStep()
    )
    assert f"- {QUESTION}\n- Who was Ivar?" in shown[0]
    assert CONTEXT.text in shown[0]
