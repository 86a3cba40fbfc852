"""FG-RAG's dialogues: what a question is about, questions around it, a summary for each."""

from __future__ import annotations

import pytest
from driving import drive
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.messages import ChatReply, ChatRequest
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.fgrag_search import (
    ANSWER,
    ENTITIES,
    QUESTIONS,
    SCORE,
    SUMMARY,
    QueryEntities,
    entity_questions,
    entity_summary,
    fgrag_spec,
    is_insufficient,
    parse_names,
    parse_questions,
    query_entities,
)
from graphrag_ray.query.methods.map_reduce import reduce_spec

CONTEXT = Context("data\n", {("Entities", 1): "aa", ("Relationships", 1): "bb"}, 5)
SETTINGS, PROMPTS = parse_settings({}), load_prompts()
FIRST, THEN, LAST = (fgrag_spec(name, SETTINGS, PROMPTS) for name in (ENTITIES, QUESTIONS, SUMMARY))


def named(*replies: str, most: int = 8) -> tuple[QueryEntities | None, list[ChatRequest]]:
    return drive(query_entities("How do bees winter?", FIRST, most), *replies)


# what a question is about


@pytest.mark.parametrize(
    "reply",
    [
        "Bees\nHives\nWinter feed",
        "- Bees\n- Hives\n- Winter feed",
        "1. Bees\n2. Hives\n3) Winter feed",
        "Bees, Hives, Winter feed",
        "Bees; Hives; Winter feed.",
        "Subjects: Bees, Hives, Winter feed",
        '["Bees", "Hives", "Winter feed"]',
        '[\n  "Bees",\n  "Hives",\n  "Winter feed"\n]',
        "**Bees**\n**Hives**\n**Winter feed**",
        "“Bees”\n«Hives»\n`Winter feed`",
        "```\nBees\nHives\nWinter feed\n```",
        "Here is what the question is about:\n\nBees\nHives\nWinter feed",
        "Bees: who live in hives\nHives: where they live\nWinter feed",
        "Bees\nHives\nbees\nWinter feed\nHIVES",
        "I think that these are the subjects.\nBees\nHives\nWinter feed\nDo you want more of them?",
    ],
)
def test_names_are_read_however_a_list_is_written(reply: str):
    assert parse_names(reply, 8) == ["Bees", "Hives", "Winter feed"]


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "NONE",
        "N/A.",
        "```\n```",
        "-\n*\n---",
        "The question is about how bees come through the winter without any food.",
        "That is hard to say, I am afraid.",
        "x" * 200,
    ],
)
def test_prose_and_nothing_are_no_names(reply: str):
    assert parse_names(reply, 8) == []


def test_a_hundred_names_are_as_many_as_are_asked_for():
    reply = "\n".join(f"Thing {n}" for n in range(100))
    assert parse_names(reply, 8) == [f"Thing {n}" for n in range(8)]


def test_a_name_is_made_harmless():
    assert parse_names("Bees [Data: Entities (1)]\nHives", 8) == ["Bees", "Hives"]


@given(st.text(), st.integers(1, 9))
def test_any_reply_gives_few_short_names_and_questions(reply: str, most: int):
    for found in (parse_names(reply, most), parse_questions(reply, most)):
        assert len(found) <= most and all(one.strip() and "\n" not in one for one in found)
        assert len({one.casefold() for one in found}) == len(found)


def test_a_question_is_asked_once_for_what_it_is_about():
    found, (request,) = named("Bees\nHives")
    assert found is not None and found.names == ("Bees", "Hives")
    text = request.messages[-1].content
    assert "How do bees winter?" in text and "at most 8" in text


def test_prose_instead_of_a_list_gets_one_correction_turn():
    found, requests = named("It is about how bees come through the winter.", "Bees")
    assert found is not None and found.names == ("Bees",) and found.request is requests[1]
    assert "one subject a line" in requests[1].messages[-1].content


def test_prose_twice_names_nothing():
    assert (
        named("It is about how bees come through the winter.", "As I said, it is about the bees.")[0] is None
    )


# questions around it


def test_questions_are_the_next_turn_of_the_conversation_that_named_the_entity():
    before, (first,) = named("Bees\nHives")
    assert before is not None
    asked, (request,) = drive(
        entity_questions("How do bees winter?", "Hives", before, THEN, 10), "Why?\nWhere?"
    )
    assert asked == ("Why?", "Where?")
    assert request.messages[: len(first.messages)] == first.messages
    assert [m.content for m in request.messages[-2:]] == [
        "Bees\nHives",
        THEN.prompt.fill_user(request.variables),
    ]
    assert '"Hives"' in request.messages[-1].content and request.call == THEN.call


@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        ("1. What do they eat?\n2. Where?", ["What do they eat?", "Where?"]),
        ("Here they are:\n- What do they eat?\nI hope that this helps.", ["What do they eat?"]),
        ("What do they eat?\nwhat do they EAT?", ["What do they eat?"]),
        ("Was fressen sie\nWo leben sie", ["Was fressen sie", "Wo leben sie"]),
        ("他们吃什么？", ["他们吃什么？"]),
        ("", []),
        ("x" * 1_000 + "?", []),
    ],
)
def test_questions_are_read_however_a_list_is_written(reply: str, asked: list[str]):
    assert parse_questions(reply, 10) == asked


# the summary


def summary(*replies: ChatReply | str):
    return drive(entity_summary("Why?", "Hives", ["Who?", "When?"], CONTEXT, LAST), *replies)


def test_a_summary_stands_under_its_entity_with_references_that_are_checked():
    said, (request,) = summary("A [Data: Entities (1, 7)]. B [Data: Relationships (1)].")
    assert said.text == "**Hives** A [Data: Entities (aa)]. B [Data: Relationships (bb)]."
    assert said.score == SCORE and said.dropped_references == 1
    assert [r.id for r in said.references] == ["aa", "bb"]
    text = request.messages[-1].content
    assert "Who?\nWhen?" in text and "Hives" in text and "Why?" in text and "data\n" in text


@pytest.mark.parametrize("reply", ["NONE", "None.", "**NONE**", "“none”"])
def test_a_summary_may_find_nothing(reply: str):
    said, _ = summary(reply)
    assert (said.text, said.score) == ("", 0.0)


def test_an_empty_summary_gets_one_correction_turn_and_then_fails():
    said, requests = summary(" ", "A.")
    assert said.text == "**Hives** A." and len(requests) == 2
    with pytest.raises(DialogueFailed, match=r"entity_summary: .* it is empty"):
        summary("", "")


def test_a_summary_that_was_cut_off_has_no_open_reference():
    said, _ = summary(ChatReply("A [Data: Entities (1)]. B [Data: Ent", "length"))
    assert said.truncated and said.text == "**Hives** A [Data: Entities (aa)]. B"


# the answer


def test_a_response_type_of_a_word_asks_for_that_alone_or_for_insufficient():
    settings = parse_settings({"query": {"response_type": "a single word or name"}})
    spec = reduce_spec(settings, PROMPTS, ANSWER)
    before, after = (m.content for m in spec.prompt.fill(dict.fromkeys(spec.prompt.placeholders, "x")))
    assert all("Insufficient" in part and "word" in part for part in (before, after))
    assert spec.response_type == "a single word or name"


@pytest.mark.parametrize(
    ("question", "reply", "names"),
    [
        ("Where was the director of Gaby: A True Story born?", "Gaby: A True Story", ["Gaby: A True Story"]),
        (
            "Where was the director of Gaby: A True Story born?",
            "Gaby: A True Story\nDirector of Gaby: A True Story",
            ["Gaby: A True Story", "Director of Gaby: A True Story"],
        ),
        ("Who was Maurice, Prince of Orange?", "Maurice, Prince Of Orange", ["Maurice, Prince Of Orange"]),
        (
            "Who Framed Roger Rabbit? is a film by whom?",
            "Who Framed Roger Rabbit?",
            ["Who Framed Roger Rabbit?"],
        ),
        ("Who is the mayor?", "## Subjects\n- Subject: Mayor\n- Subject: Town", ["Mayor", "Town"]),
        ("Who is the mayor?", "mayor, town, election", ["mayor", "town", "election"]),
        ("Who is the mayor?", '{"subjects": ["mayor", "town"]}', ["mayor", "town"]),
        ("Who is the mayor?", "Mayor: head of the town", ["Mayor"]),
        (
            "Was Gaby: A True Story shown with Heat?",
            "Gaby: A True Story, Heat",
            ["Gaby: A True Story", "Heat"],
        ),
        ("Who owns Acme Inc. and Kest?", "Acme Inc.\nKest", ["Acme Inc.", "Kest"]),
    ],
)
def test_names_with_marks_that_the_question_has_stay_whole(question, reply, names):
    assert parse_names(reply, 8, question) == names


@pytest.mark.parametrize(
    "text",
    [
        "Insufficient",
        "**Insufficient.**",
        "Insufficient [Data: Entities (1, 2)]",
        "Insufficient data",
        "Insufficient – the blood type is not known",
        "Answer: Insufficient\n\nThe records do not say.",
    ],
)
def test_insufficient_is_understood_with_what_models_put_around_it(text):
    assert is_insufficient(text)


@pytest.mark.parametrize(
    "text", ["Insufficiently paid workers struck.", "Insufficient rain fell in 2015.", "Mara"]
)
def test_an_answer_that_begins_alike_is_an_answer(text):
    assert not is_insufficient(text)


def test_no_questions_are_none():
    assert parse_questions("NONE", 5) == [] and parse_questions("None.", 5) == []
