"""Judging answers by counting, and corpus questions from templates."""

from __future__ import annotations

import json

import pytest
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.messages import CallParameters, ChatRequest
from graphrag_ray.base.prompts import load_criteria
from graphrag_ray.offline import answer
from graphrag_ray.offline.digests import NOTHING_KNOWN
from graphrag_ray.offline.evaluation_replies import QUESTIONS
from graphrag_ray.offline.question_terms import read_question
from graphrag_ray.offline.quotations import MARK

QUESTION = "Why is the harbour plan of Denholm disputed?"
CRITERIA = load_criteria()
SHORT = "The harbour plan would cost Denholm its marsh."
LONG = (
    "The harbour plan would cost Denholm its marsh, as Mara Venn and Teodor Branik have said. It would fill "
    "the pools with sand, and the eels that fishermen live from would die. "
    "Others want the work that it brings."
)


def ask(prompt: str, **variables: str) -> str:
    return answer(ChatRequest(prompt, (), CallParameters("default", "offline-1"), variables)).text


def judged(criterion: str, first: str, second: str, question: str = QUESTION) -> tuple[int, str]:
    result = CRITERIA.get(criterion, criterion)
    found = json.loads(ask("judge", question=question, criterion=result, answer_1=first, answer_2=second))
    return found["winner"], found["reason"]


def claims(text: str) -> list[str]:
    return [c["claim"] for c in json.loads(ask("answer_claims", question=QUESTION, answer=text))["claims"]]


# the judge


def test_the_more_comprehensive_answer_has_more_distinct_content_words():
    assert judged("comprehensiveness", SHORT, LONG) == (
        2,
        "Distinct content words: 5 in answer 1, 21 in answer 2.",
    )
    assert judged("comprehensiveness", SHORT, SHORT * 9)[0] == 0


def test_the_more_diverse_answer_has_more_distinct_names():
    assert judged("diversity", "Mara Venn met Orla Quist.", "Mara Venn met nobody. Mara Venn left.") == (
        1,
        "Distinct names: 2 in answer 1, 1 in answer 2.",
    )


@pytest.mark.parametrize("support", ["[Data: Reports (1, 2)]", "“It sinks.”", 'He said "no".', "in 2014"])
def test_references_quotations_and_numbers_count_as_empowerment(support: str):
    assert judged("empowerment", SHORT, f"{SHORT} {support}")[0] == 2


def test_shorter_answer_with_terms_of_the_question_is_more_direct():
    assert judged("directness", SHORT, LONG) == (1, "Words: 8 in answer 1, 39 in answer 2.")
    assert judged("directness", "I do not know.", LONG) == (
        2,
        "Terms of the question: 0 in answer 1, 3 in answer 2.",
    )
    assert judged("directness", "", SHORT)[0] == 2
    assert judged("directness", "", SHORT, question="")[0] == 2


@pytest.mark.parametrize("criterion", ["overall", "Wit: which is wittier?", "", ":"])
def test_other_criteria_prefer_the_answer_with_more_terms_of_the_question(criterion: str):
    other = "Mara Venn, Orla Quist and Teodor Branik met in a net loft with many a fisherman and drank tea."
    winner, reason = judged(criterion, other, SHORT)
    assert winner == 2 and reason.startswith("Percent of the question's terms: 0 in answer 1")
    assert judged(criterion, LONG, SHORT)[0] == 1


def test_values_that_differ_by_less_than_a_twentieth_tie():
    words = [f"word{n}" for n in range(100)]
    winner, reason = judged("comprehensiveness", " ".join(words), " ".join(words[4:]))
    assert winner == 0
    assert reason == "Distinct content words: 100 in answer 1, 96 in answer 2. They hardly differ."
    assert judged("comprehensiveness", " ".join(words), " ".join(words[5:]))[0] == 1


@pytest.mark.parametrize("criterion", ["comprehensiveness", "directness", "diversity", "overall"])
def test_references_do_not_count_as_words(criterion: str):
    cited = SHORT.replace(".", " [Data: Reports (1, 2, 3); Entities (4, 5)].")
    assert judged(criterion, SHORT, cited)[0] == 0


@given(st.sampled_from([*CRITERIA, "Wit: which?"]), texts(), texts(), texts())
def test_swapping_the_answers_swaps_the_winner(criterion: str, question: str, first: str, second: str):
    winner = judged(criterion, first, second, question)[0]
    assert judged(criterion, second, first, question)[0] == {0: 0, 1: 2, 2: 1}[winner]


# claims


def test_claims_are_the_sentences_with_a_name_or_number():
    text = (
        "## The harbour of Denholm in 2014\n\n**Overview**\n\n"
        "The plan of *Mara Venn* was shown on Monday [Data: Reports (1)]. What did Teodor Branik say? Nobody "
        "was surprised.\n\n- **Against it**: Teodor Branik asked who would pay; few did.\n"
        "- 40 members voted against it [general knowledge]\n- Denholm (2014)\n"
        "1. **Mara Venn**: These are her reasons:\n"
    )
    assert claims(text) == [
        "The plan of Mara Venn was shown on Monday.",
        "Teodor Branik asked who would pay; few did.",
        "40 members voted against it",
    ]


def test_quotations_in_offline_answers_are_the_claims():
    text = (
        "**Kestrel Marine**: “Kestrel Marine builds turbines on Cordage Street.” [Data: Reports (1)] "
        "“Orla Quist left Denholm in May.” [Data: Reports (2)]\n\n"
        f"Looked for: Denholm, harbour. Not found: May 2014. {MARK}"
    )
    assert claims(text) == [
        "Kestrel Marine builds turbines on Cordage Street.",
        "Orla Quist left Denholm in May.",
    ]


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("“Mara Venn met “the Canon” in May.”", "Mara Venn met “the Canon” in May."),
        ("“Mara Venn called it “a plan.””", "Mara Venn called it “a plan.”"),
        ("“Mara Venn left in May. […]”", "Mara Venn left in May."),
        ("“A plan” is what Mara Venn has.", "“A plan” is what Mara Venn has."),
        ("Mara Venn calls it “a plan”", "Mara Venn calls it “a plan”"),
    ],
)
def test_claim_keeps_its_own_quotation_marks(text: str, claim: str):
    assert claims(text) == [claim]


def test_repeated_claim_is_listed_once_and_empty_answer_has_none():
    assert claims("Mara Venn left in May. Others did. Mara Venn left in May.") == ["Mara Venn left in May."]
    assert claims("") == []


# correct answers


@pytest.mark.parametrize(
    ("gold", "text", "correct"),
    [
        (["Mara Venn"], "It was MARA  VENN, of course.", "Y"),
        (["the mayor", "Mara Venn"], "mara\nvenn", "Y"),
        (["U.S."], "They live in the U.S.", "Y"),
        (["Mara Venn"], "It was Venn.", "N"),
        (["9"], "In 1998.", "N"),
        (["cat"], "A catalogue.", "N"),
        (["北京"], "首都是北京市。", "Y"),
        (["two\nlines"], "There are two lines.", "Y"),
        ([], "Yes.", "N"),
        (["", "…"], "Yes.", "N"),
    ],
)
def test_answer_is_correct_if_it_contains_one_of_the_wordings(gold: list[str], text: str, correct: str):
    told = "\n".join(f"- {wording}" for wording in gold)
    assert ask("correct_answer", question=QUESTION, gold=told, answer=text) == correct


@given(texts(), texts())
def test_wording_is_found_inside_other_text(text: str, around: str):
    alone = ask("correct_answer", question="", gold=f"- {text}", answer=text)
    assert ask("correct_answer", question="", gold=f"- {text}", answer=f"{around} {text} {around}") == alone


# questions on a corpus


def test_corpus_is_described_by_the_titles_of_its_first_reports():
    reports = "- Kestrel Marine, Denholm: A community.\n\n- Hask Marsh: Another: one.\n- : None.\n- Varnmouth"
    result = ask("corpus_description", reports=reports)
    assert result == "Texts that deal with Kestrel Marine, Denholm; Hask Marsh; Varnmouth."
    assert ask("corpus_description", reports=" \n") == NOTHING_KNOWN


def test_personas_tasks_and_questions_use_names_from_the_description():
    description = "Texts that deal with Kestrel Marine, Denholm; Hask Marsh."
    variables = {"description": description, "n": "3", "language": "any"}
    personas = [one["persona"] for one in json.loads(ask("personas", **variables))["personas"]]
    assert "Hask Marsh" in personas[2] and "Kestrel Marine" in personas[0]
    variables["persona"] = personas[2]
    tasks = [one["task"] for one in json.loads(ask("tasks", **variables))["tasks"]]
    assert "Hask Marsh" in tasks[0]
    variables["task"] = tasks[0]
    questions = [one["question"] for one in json.loads(ask("corpus_questions", **variables))["questions"]]
    assert all(q.endswith("?") and "Hask Marsh" in q for q in questions)


def test_every_question_is_about_the_whole_corpus():
    assert all(read_question(q.format(it="the risks around Hask Marsh")).whole for q in QUESTIONS)


@pytest.mark.parametrize(
    ("n", "listed"), [("2", 2), ("50", 50), ("", 5), ("many", 5), ("²", 5), ("9999", 96)]
)
def test_invalid_or_too_large_number_still_yields_a_list(n: str, listed: int):
    assert len(json.loads(ask("personas", description="", n=n, language="any"))["personas"]) == listed
