"""Checking an answer against the correct one: the reply is one letter."""

from __future__ import annotations

import pytest
from driving import drive
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.evaluate.judging.judge_dialogue import correct_spec, is_correct
from graphrag_ray.offline import answer as offline_answer

SPEC = correct_spec(parse_settings({}), load_prompts())


def checked(answer: str = "It was she.") -> Dialogue[bool]:
    return is_correct("Who has a plan?", ["Mara Venn", "the mayor"], answer, SPEC)


def test_one_letter_is_requested_with_all_wordings_of_the_correct_answer():
    result, (request,) = drive(checked(), "Y")
    assert result is True
    assert (request.prompt, request.response) == ("correct_answer", "yes_no")
    assert "- Mara Venn\n- the mayor\n" in request.messages[-1].content


@pytest.mark.parametrize(
    ("text", "correct"),
    [("Y", True), ("N", False), (" y.\n", True), ("**No**", False), ("Yes", True), ("NO!", False)],
)
def test_letter_or_word_is_parsed(text: str, correct: bool):
    assert drive(checked(), text)[0] is correct


@pytest.mark.parametrize("text", ["", "Yes and no", "Maybe", "1", "True", "Not correct", "Y or N"])
def test_any_other_reply_fails_and_is_not_a_no(text: str):
    with pytest.raises(DialogueFailed, match="correct_answer: The reply is neither Y nor N"):
        drive(checked(), text)


@given(texts())
def test_any_reply_is_parsed_or_fails(text: str):
    try:
        assert drive(checked(), text)[0] in (True, False)
    except DialogueFailed:
        assert text.strip(".\n ") not in ("Y", "N")


@given(texts(), st.lists(texts(), max_size=3), texts())
def test_offline_engine_replies_yes_or_no(question: str, gold: list[str], answer: str):
    assert run_dialogue(is_correct(question, gold, answer, SPEC), offline_answer) in (True, False)
