"""Names that a question mentions literally."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.ids import entity_id, entity_key
from graphrag_ray.query.methods.question_names import find_mentions, rarest_first


def named(question: str, *names: str) -> list[str]:
    by_id = {entity_id(entity_key(n)): n for n in names}
    return [by_id[id_] for id_ in find_mentions(question).named(by_id)]


def test_names_are_distinct_and_in_order():
    assert named("Did Bob pay ALICE, or did Alice pay bob?", "Alice", "Bob", "Carol") == ["Bob", "Alice"]


def test_name_within_longer_name_is_ignored():
    assert named("What is New York Times to us?", "New York", "New York Times") == ["New York Times"]
    assert named("Is New York the New York Times?", "New York", "New York Times") == [
        "New York",
        "New York Times",
    ]


@pytest.mark.parametrize("question", ["Who may say that it can?", "WHO", "who will", "Can it?"])
def test_short_words_need_capitals(question: str):
    assert named(question, "Who", "May", "It", "Can", "US") == []


def test_short_capitalised_names_are_found():
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
def test_names_of_all_scripts_are_found(question: str, name: str):
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
def test_lower_case_word_is_an_uncertain_name(question: str, names: list[str]):
    by_id = {entity_id(entity_key(n)): n for n in ["Kevin Scott", "Kevin", "Data", "Church", "3M", "李娜"]}
    assert [by_id[id_] for id_ in find_mentions(question).as_names(by_id)] == names


def test_rare_names_come_first_and_uncertain_ones_last():
    frequency = {"Kevin Scott": 900, "Mara Venn": 3, "Sorley": 3, "Data": 1, "Church": 2, "Unasked": 1}
    by_id = {entity_id(entity_key(n)): n for n in frequency}
    asked = find_mentions("Did Kevin Scott, Mara Venn or Sorley give the church their data?")
    order = rarest_first(asked, {id_: frequency[n] for id_, n in by_id.items()})
    assert [by_id[id_] for id_ in order] == ["Mara Venn", "Sorley", "Kevin Scott", "Data", "Church"]


def test_long_question_is_searched_up_to_limit():
    assert named("Alice " + "blah " * 20_000 + "Robert", "Alice", "Robert") == ["Alice"]


@given(st.text(max_size=200))
def test_spans_spell_their_names(question: str):
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
def test_punctuation_of_names_is_distinguished(question: str):
    could_be = find_mentions(question)
    plain, marked = (entity_id(entity_key(name)) for name in ("C", "C++"))
    assert could_be.named([plain, marked]) == [marked]
