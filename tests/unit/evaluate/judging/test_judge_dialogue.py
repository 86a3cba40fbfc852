"""The judge's requests, and parsing of verdicts."""

from __future__ import annotations

import json

import pytest
from driving import drive
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import anonymize_references
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, Dialogue
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.evaluate.judging.judge_dialogue import (
    STATEMENTS_PER_CALL,
    VERDICT_SCHEMA,
    VERDICTS_SCHEMA,
    Verdict,
    check_statements,
    judge,
    judge_joint,
    judge_spec,
    parse_statements,
    parse_verdict,
    parse_verdicts,
    statements_spec,
)
from graphrag_ray.offline import answer as offline_answer

SPEC = judge_spec(parse_settings({}), load_prompts())
ANSWERS = ("Mara Venn has a plan.", "There is a plan, which Teodor Branik opposes.")


def judged(sample: int = 0, answers: tuple[str, str] = ANSWERS) -> Dialogue[Verdict]:
    return judge("Who has a plan?", "Wit: which is wittier?", answers, SPEC, sample)


def verdict(winner: object, reason: object = "So.") -> str:
    return json.dumps({"reason": reason, "winner": winner})


def test_judge_receives_question_criterion_and_answers_in_order():
    result, requests = drive(judged(), verdict(2))
    assert result == Verdict(2, "So.")
    (request,) = requests
    text = request.messages[-1].content
    assert (request.prompt, request.response, request.schema) == ("judge", "json", VERDICT_SCHEMA)
    assert text.count("Wit: which is wittier?") == 2
    assert text.index("Who has a plan?") < text.index(ANSWERS[0]) < text.index(ANSWERS[1])


@pytest.mark.parametrize(
    ("text", "winner"),
    [
        (verdict(1), 1),
        (f"```json\n{verdict(2)}\n```", 2),
        (f"I have read both.\n\n{verdict(1)}\n\nThat is my verdict.", 1),
        ("{'reason': 'It is \"fuller\".', 'winner': 2}", 2),
        ("{“reason”: “Fuller.”, “winner”: 1}", 1),
        ('{"reason": "So.", "winner": 2,}', 2),
        ('{"Winner": 2, "Reason": "So."}', 2),
        (verdict(1.0), 1),
        (verdict("2"), 2),
        (verdict(" answer 1 "), 1),
        (verdict("Answer 2"), 2),
        (verdict("answer_1"), 1),
        (verdict("Answer #2"), 2),
        (verdict(0), 0),
        (verdict("tie"), 0),
        (verdict("A tie"), 0),
        (verdict("Neither"), 0),
    ],
)
def test_verdict_is_parsed_in_all_forms_that_models_write(text: str, winner: int):
    result, requests = drive(judged(), text)
    assert (result.winner, len(requests)) == (winner, 1)


@pytest.mark.parametrize(
    "winner", [True, False, 3, -1, 12, 1.5, None, "", "3", "both answers lose", "Answer", [1], {"answer": 1}]
)
def test_reply_that_names_no_answer_is_not_a_verdict(winner: object):
    found = parse_verdict(ChatReply(verdict(winner)))
    assert isinstance(found, ReplyProblem)
    assert "winner" in found.text


def test_reply_without_a_verdict_is_requested_once_more():
    result, requests = drive(judged(), "The first is better.", verdict(1))
    assert result.winner == 1
    assert requests[1].prompt == "correct"
    assert '"winner": 1, 2 or 0' in requests[1].messages[-1].content


@pytest.mark.parametrize("second", ["Hm.", "", "{}", verdict(3), verdict(True), '{"reason": "A tie."}'])
def test_two_replies_without_a_verdict_fail_and_are_not_a_tie(second: str):
    with pytest.raises(DialogueFailed, match=r"judge: still not usable after a correction: .*winner"):
        drive(judged(), "It depends.", second)


def test_reply_truncated_before_its_verdict_is_requested_again_with_the_reason():
    cut = ChatReply('{"reason": "Answer 1 has more details, of which 2 are', "length")
    result, requests = drive(judged(), cut, verdict(0))
    assert result.winner == 0
    assert "it was cut off before its end" in requests[1].messages[-1].content
    with pytest.raises(DialogueFailed, match="judge"):
        drive(judged(), cut, cut)


def test_reply_truncated_after_its_verdict_counts():
    result, _ = drive(judged(), ChatReply('{"winner": 2, "reason": "It has more', "length"))
    assert result.winner == 2


@pytest.mark.parametrize("reason", [None, 5, [1], ""])
def test_verdict_needs_no_reason(reason: object):
    assert drive(judged(), verdict(1, reason))[0] == Verdict(1, "")


def test_each_replicate_and_its_correction_are_distinct_requests():
    asked = [drive(judged(sample), "Hm.", verdict(1))[1] for sample in range(5)]
    for turn in (0, 1):
        assert len({requests[turn].hash for requests in asked}) == 5
        assert len({requests[turn].messages for requests in asked}) == 1
    assert asked[3][0].hash == drive(judged(3), verdict(1))[1][0].hash


def test_swapped_answers_are_a_different_request():
    one, other = (drive(judged(answers=a), verdict(1))[1][0] for a in (ANSWERS, ANSWERS[::-1]))
    assert one.hash != other.hash


@given(texts() | texts().map(verdict) | st.integers().map(verdict), st.sampled_from(["stop", "length"]))
def test_any_reply_yields_one_of_three_verdicts_or_fails(text: str, ended: str):
    found = parse_verdict(ChatReply(text, ended))
    if isinstance(found, Verdict):
        assert found.winner in (0, 1, 2)
        found.reason.encode()


@given(texts(), texts(), texts(), texts())
def test_offline_engine_gives_a_verdict_at_the_first_turn(
    question: str, criterion: str, first: str, second: str
):
    asked = []
    result = run_dialogue(
        judge(question, criterion, (first, second), SPEC, 0),
        lambda request: asked.append(request) or offline_answer(request),
    )
    assert result.winner in (0, 1, 2) and len(asked) == 1


def test_references_do_not_reveal_the_search_method():
    text = "It rose [Data: Reports (3, 7); Sources (2)]. It fell [Data: Reports (7, +more)] (see [1])."
    assert anonymize_references(text) == "It rose [1, 2, 3]. It fell [2] (see [1])."


# Several criteria in one call

NAMES = ("diversity", "overall")
CRITERIA = {"diversity": "Diversity: which shows more sides?", "overall": "Overall: which is better?"}
JOINT = judge_spec(parse_settings({}), load_prompts(), len(CRITERIA))


def verdicts(*winners: object) -> str:
    rows = [{"criterion": n, "reason": "So.", "winner": w} for n, w in zip(NAMES, winners, strict=False)]
    return json.dumps({"verdicts": rows})


def test_joint_judge_receives_all_criteria_and_returns_a_verdict_for_each():
    dialogue = judge_joint("Who has a plan?", CRITERIA, ANSWERS, JOINT, 3)
    result, (request,) = drive(dialogue, verdicts(2, 0))
    assert result == {"diversity": Verdict(2, "So."), "overall": Verdict(0, "So.")}
    text = request.messages[-1].content
    assert "- diversity: Diversity: which shows more sides?\n- overall: Overall" in text
    assert (request.prompt, request.sample, request.schema) == ("judge_joint", 3, VERDICTS_SCHEMA)
    assert JOINT.max_tokens == 2 * SPEC.max_tokens


@pytest.mark.parametrize(
    "text",
    [
        verdicts(1, 2),
        f"```json\n{verdicts(1, 2)}\n```",
        '{"Diversity": {"Winner": "Answer 1", "Explanation": "a"}, "Overall Winner": {"Winner": "Answer 2"}}',
        '{"verdicts": {"diversity": {"winner": 1}, "overall": {"winner": "2"}}}',
        '[{"criterion": "**Diversity**", "winner": 1}, {"criterion": "OVERALL", "winner": 2}]',
        '{"verdicts": [{"criterion": "diversity", "winner": 1}, {"criterion": "diversity", "winner": 2},'
        '{"criterion": "length", "winner": 1}, {"criterion": "overall", "winner": 2}]}',
    ],
)
def test_joint_verdicts_are_parsed_in_all_forms_that_models_write(text: str):
    found = parse_verdicts(ChatReply(text), NAMES)
    assert isinstance(found, dict)
    assert {name: verdict.winner for name, verdict in found.items()} == {"diversity": 1, "overall": 2}


@pytest.mark.parametrize(
    "text", ["", "Answer 1", verdicts(1), verdicts(1, 3), '{"overall": 2, "diversity": 1}']
)
def test_joint_reply_without_a_verdict_on_each_criterion_is_corrected_once(text: str):
    result, requests = drive(judge_joint("Who?", CRITERIA, ANSWERS, JOINT, 0), text, verdicts(1, 1))
    assert set(result) == {*NAMES} and len(requests) == 2
    with pytest.raises(DialogueFailed, match="still not usable"):
        drive(judge_joint("Who?", CRITERIA, ANSWERS, JOINT, 0), text, text)


def test_offline_engine_judges_jointly_as_it_judges_separately():
    answers = ("A plan.", "Mara Venn and Orla Quist have a plan.")
    joint = run_dialogue(judge_joint("Who has a plan?", CRITERIA, answers, JOINT, 0), offline_answer)
    for name, text in CRITERIA.items():
        assert joint[name] == run_dialogue(judge("Who has a plan?", text, answers, SPEC, 0), offline_answer)


# Statements

STATEMENTS = statements_spec(parse_settings({}), load_prompts())


def holding(*verdicts: object) -> str:
    return json.dumps({"statements": [{"number": n, "holds": v} for n, v in enumerate(verdicts, 1)]})


def test_statements_are_checked_in_batches():
    statements = [f"Statement\n{n}." for n in range(STATEMENTS_PER_CALL + 1)]
    replies = holding(*(n % 2 for n in range(STATEMENTS_PER_CALL))), holding("Yes")
    result, requests = drive(check_statements("Who?", statements, "A text.", STATEMENTS), *replies)
    assert result == [n % 2 == 1 for n in range(STATEMENTS_PER_CALL)] + [True]
    assert "1. Statement 0.\n2. Statement 1.\n" in requests[0].messages[-1].content
    assert requests[0].call.temperature == 0.0


@pytest.mark.parametrize(
    "text",
    [
        holding("yes", "no"),
        holding("Yes.", False),
        '[{"statement": "2", "verdict": "N"}, {"statement": "1", "verdict": "Y"}]',
        '{"statements": [{"holds": true}, {"holds": "false"}]}',
        '{"statements": [{"number": "No. 1", "holds": 1}, {"number": 2, "holds": 0}, {"number": 1}]}',
    ],
)
def test_checked_statements_are_parsed_in_all_forms_that_models_write(text: str):
    assert parse_statements(ChatReply(text), 2) == [True, False]


@pytest.mark.parametrize("text", ["", "yes, no", holding("yes"), holding("yes", "maybe")])
def test_missing_statements_are_asked_for_once_more_and_never_guessed(text: str):
    problem = parse_statements(ChatReply(text), 2)
    assert isinstance(problem, ReplyProblem)
    with pytest.raises(DialogueFailed, match="still not usable"):
        drive(check_statements("Who?", ["A.", "B."], "A text.", STATEMENTS), text, text)


@given(texts(), st.integers(1, 5))
def test_any_reply_gives_all_verdicts_or_a_problem(text: str, n: int):
    found = parse_statements(ChatReply(text), n)
    assert isinstance(found, ReplyProblem) or len(found) == n
    joint = parse_verdicts(ChatReply(text), NAMES)
    assert isinstance(joint, ReplyProblem) or list(joint) == [*NAMES]


def test_offline_engine_checks_statements_by_their_words():
    text, statements = (
        "Mara Venn founded the trust in 1998 [Data: Reports (1)].",
        ["Venn founded the trust.", "It burned."],
    )
    found = run_dialogue(check_statements("Who?", statements, text, STATEMENTS), offline_answer)
    assert found == [True, False]
