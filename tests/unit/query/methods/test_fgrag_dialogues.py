"""FG-RAG dialogues: subjects of a question, questions about them, and summaries."""

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
    ask_entity_questions,
    fgrag_spec,
    list_query_entities,
    parse_names,
    parse_questions,
    summarise_entity,
)
from graphrag_ray.query.methods.map_reduce import reduce_spec
from graphrag_ray.query.methods.single_context import is_insufficient

CONTEXT = Context("data\n", {("Entities", 1): "aa", ("Relationships", 1): "bb"}, 5)
SETTINGS, PROMPTS = parse_settings({}), load_prompts()
FIRST, THEN, LAST = (fgrag_spec(name, SETTINGS, PROMPTS) for name in (ENTITIES, QUESTIONS, SUMMARY))


def named(*replies: str, most: int = 8) -> tuple[QueryEntities | None, list[ChatRequest]]:
    return drive(list_query_entities("How do bees winter?", FIRST, most), *replies)


# subjects of a question


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
def test_names_are_parsed_from_many_list_formats(reply: str):
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
def test_prose_and_none_are_not_names(reply: str):
    assert parse_names(reply, 8) == []


def test_number_of_names_is_limited():
    reply = "\n".join(f"Thing {n}" for n in range(100))
    assert parse_names(reply, 8) == [f"Thing {n}" for n in range(8)]


def test_names_are_sanitised():
    assert parse_names("Bees [Data: Entities (1)]\nHives", 8) == ["Bees", "Hives"]


@given(st.text(), st.integers(1, 9))
def test_names_and_questions_of_any_reply_are_limited(reply: str, most: int):
    for found in (parse_names(reply, most), parse_questions(reply, most)):
        assert len(found) <= most and all(one.strip() and "\n" not in one for one in found)
        assert len({one.casefold() for one in found}) == len(found)


def test_entities_are_listed_in_one_call():
    found, (request,) = named("Bees\nHives")
    assert found is not None and found.names == ("Bees", "Hives")
    text = request.messages[-1].content
    assert "How do bees winter?" in text and "at most 8" in text


def test_prose_is_corrected_once():
    found, requests = named("It is about how bees come through the winter.", "Bees")
    assert found is not None and found.names == ("Bees",) and found.request is requests[1]
    assert "one subject a line" in requests[1].messages[-1].content


def test_uncorrected_prose_names_nothing():
    assert (
        named("It is about how bees come through the winter.", "As I said, it is about the bees.")[0] is None
    )


# questions about a subject


def test_questions_continue_the_entity_conversation():
    before, (first,) = named("Bees\nHives")
    assert before is not None
    asked, (request,) = drive(
        ask_entity_questions("How do bees winter?", "Hives", before, THEN, 10), "Why?\nWhere?"
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
def test_questions_are_parsed_from_many_list_formats(reply: str, asked: list[str]):
    assert parse_questions(reply, 10) == asked


# the summary


def summary(*replies: ChatReply | str):
    return drive(summarise_entity("Why?", "Hives", ["Who?", "When?"], CONTEXT, LAST), *replies)


def test_summary_has_entity_heading_and_checked_references():
    result, (request,) = summary("A [Data: Entities (1, 7)]. B [Data: Relationships (1)].")
    assert result.text == "**Hives** A [Data: Entities (aa)]. B [Data: Relationships (bb)]."
    assert result.score == SCORE and result.dropped_references == 1
    assert [r.id for r in result.references] == ["aa", "bb"]
    text = request.messages[-1].content
    assert "Who?\nWhen?" in text and "Hives" in text and "Why?" in text and "data\n" in text


@pytest.mark.parametrize("reply", ["NONE", "None.", "**NONE**", "“none”"])
def test_irrelevant_summary_scores_zero(reply: str):
    result, _ = summary(reply)
    assert (result.text, result.score) == ("", 0.0)


def test_empty_summary_is_corrected_once_then_fails():
    result, requests = summary(" ", "A.")
    assert result.text == "**Hives** A." and len(requests) == 2
    with pytest.raises(DialogueFailed, match=r"entity_summary: .* it is empty"):
        summary("", "")


def test_truncated_summary_has_no_unclosed_reference():
    result, _ = summary(ChatReply("A [Data: Entities (1)]. B [Data: Ent", "length"))
    assert result.truncated and result.text == "**Hives** A [Data: Entities (aa)]. B"


# the answer


def test_one_word_response_type_allows_insufficient():
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
def test_punctuation_of_names_in_the_question_is_preserved(question, reply, names):
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
def test_insufficient_is_recognised_in_many_forms(text):
    assert is_insufficient(text)


@pytest.mark.parametrize(
    "text", ["Insufficiently paid workers struck.", "Insufficient rain fell in 2015.", "Mara"]
)
def test_answer_starting_with_similar_word_is_an_answer(text):
    assert not is_insufficient(text)


def test_reply_without_questions_has_none():
    assert parse_questions("NONE", 5) == [] and parse_questions("None.", 5) == []
