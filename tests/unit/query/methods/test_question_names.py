"""Names that a question holds literally."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.ids import entity_id, entity_key
from graphrag_ray.query.methods.question_names import find_mentions, rarest_first


def named(question: str, *names: str) -> list[str]:
    by_id = {entity_id(entity_key(n)): n for n in names}
    return [by_id[id_] for id_ in find_mentions(question).named(by_id)]


def test_names_are_found_in_the_order_of_the_question_and_once():
    assert named("Did Bob pay ALICE, or did Alice pay bob?", "Alice", "Bob", "Carol") == ["Bob", "Alice"]


def test_a_name_inside_a_longer_one_is_not_meant_unless_it_also_stands_alone():
    assert named("What is New York Times to us?", "New York", "New York Times") == ["New York Times"]
    assert named("Is New York the New York Times?", "New York", "New York Times") == [
        "New York",
        "New York Times",
    ]


@pytest.mark.parametrize("question", ["Who may say that it can?", "WHO", "who will", "Can it?"])
def test_short_words_are_no_names_unless_they_are_written_as_such(question: str):
    assert named(question, "Who", "May", "It", "Can", "US") == []


def test_short_names_count_where_they_are_written_as_names():
    assert named("What do the WHO and the US say of May and the B2?", "who", "us", "may", "b2") == [
        "who",
        "us",
        "may",
        "b2",
    ]


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("Why is C++ hard?", "C++"),
        ("Who uses .NET here?", ".NET"),
        ("What of O'Brien's boat?", "O'Brien"),
        ("“AT&T” – why?", "AT&T"),
        ("wer war strauß?", "Strauss"),
        ("张伟和李娜有什么关系？", "李娜"),
        ("김철수가 누구입니까", "김철수"),
        ("Что сделал пётр?", "Пётр"),
        ("Who is  Mara\nVenn?", "Mara Venn"),
    ],
)
def test_names_of_any_shape_and_script_are_found(question: str, name: str):
    assert named(question, name) == [name]


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("What did Kevin Scott say about data and the church?", ["Kevin Scott"]),
        ("what did kevin scott say about data and the church?", ["Kevin Scott"]),
        ("Data and the Church of 3M: what is it?", ["Church", "3M"]),
        ("李娜做了什么？", ["李娜"]),
        ("Kevin said what?", []),
    ],
)
def test_a_word_in_small_letters_may_be_a_name_by_chance(question: str, names: list[str]):
    by_id = {entity_id(entity_key(n)): n for n in ["Kevin Scott", "Kevin", "Data", "Church", "3M", "李娜"]}
    assert [by_id[id_] for id_ in find_mentions(question).as_names(by_id)] == names


def test_rarer_names_come_first_and_words_that_may_be_none_last():
    frequency = {"Kevin Scott": 900, "Mara Venn": 3, "Sorley": 3, "Data": 1, "Church": 2, "Unasked": 1}
    by_id = {entity_id(entity_key(n)): n for n in frequency}
    asked = find_mentions("Did Kevin Scott, Mara Venn or Sorley give the church their data?")
    order = rarest_first(asked, {id_: frequency[n] for id_, n in by_id.items()})
    assert [by_id[id_] for id_ in order] == ["Mara Venn", "Sorley", "Kevin Scott", "Data", "Church"]


def test_a_question_of_a_hundred_thousand_characters_is_read_as_far_as_its_bound():
    assert named("Alice " + "blah " * 20_000 + "Robert", "Alice", "Robert") == ["Alice"]


@given(st.text(max_size=200))
def test_every_stretch_lies_in_the_question_and_is_the_name_it_stands_for(question: str):
    found = find_mentions(question)
    for id_, spans in found.spans.items():
        assert all(
            entity_id(entity_key(question[a:b])) == id_ and 0 <= a < b <= len(question) for a, b in spans
        )
    named = found.named(found.spans)
    assert set(named) <= found.spans.keys() and set(found.as_names(found.spans)) <= set(named)
    assert sorted(rarest_first(found, dict.fromkeys(found.spans, 1))) == sorted(named)


@pytest.mark.parametrize(
    "question", ["Who made C++?", "Is it C++, or what?", "Is “C++” old?", "(C++) is old."]
)
def test_marks_of_a_name_are_told_from_those_behind_it(question: str):
    could_be = find_mentions(question)
    plain, marked = (entity_id(entity_key(name)) for name in ("C", "C++"))
    assert could_be.named([plain, marked]) == [marked]
