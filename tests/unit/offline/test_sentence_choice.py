"""Which sentences answer a question, and which only may help, in all scripts."""

from __future__ import annotations

import pytest
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.offline.question_terms import read_question
from graphrag_ray.offline.sentence_choice import Group, rank_sentences


def answers(question: str, *sentences: str, title: str = "") -> list[str]:
    """The sentences of one text that may answer, best first."""
    ranking = rank_sentences(read_question(question), [Group(title, sentences, True)])
    order = sorted(range(len(sentences)), key=lambda i: -ranking.relevance[i])
    return [sentences[i] for i in order if ranking.answers[i]]


@pytest.mark.parametrize(
    ("question", "fact", "other"),
    [
        (
            "Who repaired the old mill?",
            "Ada Brigg repaired the old mill.",
            "The old mill stands by the river.",
        ),
        ("Wer hat die Mühle repariert?", "Die Mühle hat Ada Brigg repariert.", "Am Fluss liegt ein Boot."),
        ("Кто починил мельницу?", "Мельницу починила Анна Брик.", "У реки лежит лодка."),
        ("谁修理了水车？", "安娜修理了水车。", "船停在河边。"),
        ("水車を修理したのは誰ですか？", "安娜が水車を修理しました。", "船は川辺にあります。"),
        ("पुरानी चक्की किसने सुधारी?", "पुरानी चक्की मीरा ने सुधारी।", "नाव नदी के किनारे है।"),
        ("Ποιος επισκεύασε τον μύλο;", "Η Άννα επισκεύασε τον μύλο.", "Η βάρκα είναι στο ποτάμι."),
        ("من أصلح الطاحونة؟", "سامي أصلح الطاحونة القديمة.", "القارب على ضفة النهر."),
        ("누가 물레방아를 고쳤습니까?", "안나가 물레방아를 고쳤습니다.", "배는 강가에 있습니다."),
    ],
)
def test_sentence_with_the_terms_answers_in_any_script(question: str, fact: str, other: str):
    assert answers(question, other, fact) == [fact]


def test_sentence_without_the_rarest_term_is_no_answer():
    known = ("The harbour was busy.", "The harbour is deep.", "Bea opposed the toll.")
    assert answers("Who opposed the harbour?", *known) == []
    assert answers("Who opposed the harbour?", *known, "Ada Brigg opposed the harbour.") == [
        "Ada Brigg opposed the harbour."
    ]


def test_relation_between_the_terms_is_needed():
    assert answers("Whose daughter is Ada Brigg?", "Ada Brigg closed the mill.") == []


def test_neighbour_or_title_may_name_the_subject():
    assert answers("When did the mill burn?", "The mill was old.", "It burned in May.") == [
        "It burned in May."
    ]
    assert answers("When did the mill burn?", "Fire broke out.", "It burned in May.", title="The mill")[
        0
    ] == ("It burned in May.")


def test_sentence_with_a_subject_of_its_own_does_not_continue_the_one_before():
    asked = "What did the mayor promise?"
    assert answers(asked, "The mayor was there.", "Thaddeus promised eight bridges.") == []


@pytest.mark.parametrize(
    ("question", "fact", "other"),
    [
        (
            "How much money had the Brigg Fund collected by spring?",
            "The Brigg Fund stands at 61 crowns.",
            "The Brigg Fund is old.",
        ),
        (
            "Which baker sold rye bread at Denholm Mill?",
            "Sold at Denholm Mill, the rye bread was good.",
            "The rye was wet.",
        ),
    ],
)
def test_paraphrased_word_may_be_missing(question: str, fact: str, other: str):
    assert answers(question, "The sea was calm.", other, fact, "It rained.", "Nobody came.") == [fact]


@pytest.mark.parametrize(
    ("question", "with_it", "without"),
    [
        ("How many ships did the yard build?", "The yard built nine ships.", "The yard built ships."),
        (
            "When did the yard build the ship?",
            "The yard built the ship in March.",
            "The yard built the ship.",
        ),
        ("By what vote was the plan refused?", "The plan was refused by 9 to 6.", "The plan was refused."),
    ],
)
def test_number_or_date_that_is_asked_for_is_needed(question: str, with_it: str, without: str):
    assert answers(question, without, with_it) == [with_it]


def test_sentence_with_another_name_is_preferred_for_who():
    assert answers("Who repaired the mill?", "They repaired the mill.", "In May, Ada repaired the mill.")[
        0
    ] == ("In May, Ada repaired the mill.")


def test_coordinated_parts_are_answered_separately():
    found = answers(
        "What happened to the harbour plan and to Hask Marsh?",
        *("The harbour plan was refused.", "Mud was dumped on Hask Marsh.", "The brewery closed."),
    )
    assert set(found) == {"The harbour plan was refused.", "Mud was dumped on Hask Marsh."}


@pytest.mark.parametrize(
    ("question", "terms"),
    [
        ("橋の補修工事は誰が担当しますか？", {"補修工事", "担当", "橋"} - {"橋"}),
        ("青龙水库的闸门是什么时候更换的？", {"青龙水库", "闸门", "更换"}),
        ("दीवार में दरार किसने पाई?", {"दीवार", "दरार", "पाई"}),
    ],
)
def test_terms_are_whole_words_without_question_words(question: str, terms: set[str]):
    assert set(read_question(question).words) == terms


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Who is it?", "person"),
        ("Wann kam sie?", "date"),
        ("In which year did it burn?", "date"),
        ("How many came?", "number"),
        ("Сколько стоит мост?", "number"),
        ("为什么关闭？", "reason"),
        ("What is it?", ""),
    ],
)
def test_what_a_question_asks_for(question: str, kind: str):
    assert read_question(question).asks_for == kind


@given(texts(), st.lists(st.lists(texts(), max_size=4), max_size=3), st.booleans())
def test_any_text_is_ranked(question: str, groups: list[list[str]], adjacent: bool):
    ranking = rank_sentences(read_question(question), [Group(question, g, adjacent) for g in groups])
    n = sum(map(len, groups))
    assert len(ranking.relevance) == len(ranking.answers) == len(ranking.terms) == n
    assert all(0 <= v <= 1.000001 for v in ranking.relevance)
    assert all(found for found, answer in zip(ranking.terms, ranking.answers, strict=True) if answer)
