"""The report dialogue with scripted replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import Reference, parse_references
from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import CallParameters, ChatReply, ChatRequest, Dialogue
from graphrag_ray.base.prompts import PLACEHOLDERS, load_prompts, parse_prompt
from graphrag_ray.graph.report_context import Context, report_record
from graphrag_ray.graph.report_dialogue import (
    Report,
    ReportDraft,
    ReportSpec,
    full_content,
    parse_report,
    report,
    report_spec,
)

CONTEXT = Context(
    "-----Entities-----\nid,entity,description\n1,MARA,Mayor\n2,MILL,A mill\n",
    {("Entities", 1): "aa", ("Entities", 2): "bb"},
    30,
)
SPEC = ReportSpec(
    prompt=parse_prompt(
        "report", "{role} {rating_criterion} {language} {max_tokens}\n=== user ===\n{context}"
    ),
    correct=parse_prompt("correct", "Wrong: {problem}."),
    call=CallParameters("default", "m"),
    role="a clerk",
    rating_criterion="weight",
    language="English",
    max_tokens=900,
)
GOOD: dict[str, Any] = {
    "title": "The mill and its mayor",
    "summary": "Mara owns the mill [Data: Entities (1, 2)].",
    "rating": 6.5,
    "rating_explanation": "It feeds the town [Data: Entities (2)].",
    "findings": [
        {"summary": f"Finding {i}", "explanation": f"Because {i} [Data: Entities (1)]."} for i in range(6)
    ],
}


def good(**changes: Any) -> str:
    return json.dumps({k: v for k, v in {**GOOD, **changes}.items() if v is not ...})


def drive(dialogue: Dialogue[Report], *replies: ChatReply | str) -> tuple[Report, list[ChatRequest]]:
    requests = [next(dialogue)]
    for reply in replies:
        try:
            requests.append(dialogue.send(ChatReply(reply) if isinstance(reply, str) else reply))
        except StopIteration as stop:
            return stop.value, requests
    raise AssertionError("the dialogue asks for more")


def test_a_good_reply_is_a_report_in_one_turn() -> None:
    found, requests = drive(report(CONTEXT, SPEC), good())
    assert len(requests) == 1
    assert (found.title, found.rating, len(found.findings)) == ("The mill and its mayor", 6.5, 6)
    assert found.summary == "Mara owns the mill [Data: Entities (aa, bb)]."
    assert found.references == (Reference("Entities", "aa"), Reference("Entities", "bb"))
    assert found.dropped_references == 0


def test_the_request_carries_the_context_the_variables_and_the_schema() -> None:
    request = next(report(CONTEXT, SPEC))
    assert request.prompt == "report"
    assert request.response == "json"
    assert request.messages[0].content == "a clerk weight English 900"
    assert request.messages[1].content == CONTEXT.text
    assert set(request.variables) == PLACEHOLDERS["report"]
    assert set(request.schema["required"]) == set(GOOD)


def test_references_outside_the_context_are_removed_and_counted() -> None:
    found, _ = drive(
        report(CONTEXT, SPEC), good(summary="A [Data: Entities (9)]. B [Data: Claims (1); Entities (2, 7)].")
    )
    assert found.summary == "A. B [Data: Entities (bb)]."
    assert found.dropped_references == 3


def test_an_unusable_reply_gets_one_correction_turn_that_names_the_problem() -> None:
    found, requests = drive(report(CONTEXT, SPEC), good(summary=...), good())
    assert found.title == GOOD["title"]
    assert requests[1].prompt == "correct"
    assert "`summary`" in requests[1].messages[-1].content
    assert [m.role for m in requests[1].messages] == ["system", "user", "assistant", "user"]
    assert requests[1].variables["context"] == CONTEXT.text


def test_two_unusable_replies_are_a_failure_that_says_why() -> None:
    dialogue = report(CONTEXT, SPEC)
    next(dialogue)
    dialogue.send(ChatReply("I cannot."))
    with pytest.raises(DialogueFailed, match="no JSON object"):
        dialogue.send(ChatReply("Still not."))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_few_findings_are_accepted(n: int) -> None:
    found, requests = drive(report(CONTEXT, SPEC), good(findings=GOOD["findings"][:n]))
    assert (len(found.findings), len(requests)) == (n, 1)


def test_only_the_first_ten_findings_are_retained() -> None:
    many = [{"summary": f"S{i}", "explanation": "E"} for i in range(14)]
    found, _ = drive(report(CONTEXT, SPEC), good(findings=many))
    assert [s for s, _ in found.findings] == [f"S{i}" for i in range(10)]


@pytest.mark.parametrize(
    "key", ["rating_explanation", "rating_explaination", "ratingExplanation", "explanation"]
)
def test_the_known_spellings_of_the_ratings_explanation_are_read(key: str) -> None:
    draft = parse_report(good(**{"rating_explanation": ..., key: "Why."}))
    assert isinstance(draft, ReportDraft)
    assert draft.rating_explanation == "Why."


@pytest.mark.parametrize(
    ("written", "rating"),
    [(7, 7), ("7.5", 7.5), ("8/10", 8), ("6 out of 10", 6), ("4,5", 4.5), (42, 10), (-3, 0), ("10.0", 10)],
)
def test_ratings_can_be_numbers_or_text_and_are_limited(written: Any, rating: float) -> None:
    draft = parse_report(good(rating=written))
    assert isinstance(draft, ReportDraft)
    assert draft.rating == rating


@pytest.mark.parametrize("written", [None, "high", True, [7], float("nan"), 10**309, "1" + "0" * 309])
def test_rating_that_is_not_a_number_is_a_problem(written: Any) -> None:
    problem = parse_report(good(rating=written))
    assert isinstance(problem, ReplyProblem)
    assert "`rating`" in problem.text


@pytest.mark.parametrize(
    "reply",
    [
        "```json\n" + good() + "\n```",
        "Here is the report:\n" + good() + "\nI hope it {helps}.",
        good()[:-1] + ",}",
        json.dumps({"report": GOOD}),
        json.dumps([GOOD]),
        good().replace("Finding 1", "Line\nbreak"),
    ],
    ids=["fence", "chatter", "trailing comma", "wrapped", "in a list", "raw line break"],
)
def test_a_whole_report_in_a_sloppy_form_is_read(reply: str) -> None:
    draft = parse_report(reply)
    assert isinstance(draft, ReportDraft)
    assert len(draft.findings) == 6


def test_a_truncated_reply_keeps_its_complete_findings_only() -> None:
    text = good()
    draft = parse_report(text[: text.index("Because 3") + 5], "length")
    assert isinstance(draft, ReportDraft)
    assert [one.summary for one in draft.findings] == ["Finding 0", "Finding 1", "Finding 2"]


def test_a_reply_truncated_between_findings_keeps_them_all() -> None:
    text = good()
    draft = parse_report(text[: text.index('{"summary": "Finding 3"')], "length")
    assert isinstance(draft, ReportDraft)
    assert len(draft.findings) == 3


@pytest.mark.parametrize(
    "start", [good()[: good().index(e) + 6] for e in ("Because 0", "It feeds")] + ['{"report": {']
)
def test_a_reply_truncated_before_it_is_a_report_is_asked_for_again(start: str) -> None:
    cut = ChatReply(start, finish_reason="length")
    found, requests = drive(report(CONTEXT, SPEC), cut, good())
    assert "cut off" in requests[1].messages[-1].content
    assert len(found.findings) == 6


@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.floats() | st.text(max_size=8),
        lambda c: st.lists(c, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "x"]), c, max_size=5),
        max_leaves=12,
    ).map(json.dumps),
    st.sampled_from(["stop", "length"]),
)
def test_any_reply_is_a_draft_or_a_problem(text: str, finish_reason: str) -> None:
    draft = parse_report(text, finish_reason)
    assert isinstance(draft, ReportDraft | ReplyProblem)
    if isinstance(draft, ReportDraft):
        assert draft.title
        assert 0 <= draft.rating <= 10
        assert 1 <= len(draft.findings) <= 10


@pytest.mark.parametrize("number", ["1" + "0" * 309, "1" + "0" * 5_000, "1e999", "NaN", "-Infinity"])
def test_number_out_of_range_is_requested_again(number: str) -> None:
    found, requests = drive(
        report(CONTEXT, SPEC), good().replace('"rating": 6.5', f'"rating": {number}'), good()
    )
    assert "`rating` must be a number" in requests[1].messages[-1].content
    assert len(found.findings) == 6


def test_deeply_nested_reply_is_a_problem() -> None:
    assert isinstance(parse_report('{"a":' * 20_000), ReplyProblem)


REPLIES = st.tuples(
    st.sampled_from([good(), good(rating="x"), "no", good()[:300]]), st.sampled_from(["stop", "length"])
)


@given(st.lists(REPLIES, min_size=2, max_size=2))
def test_replaying_the_replies_gives_the_same_requests_and_the_same_result(replies) -> None:
    def run() -> tuple[list[str], Report | str]:
        dialogue, hashes = report(CONTEXT, SPEC), []
        turn = next(dialogue)
        for text, finish in replies:
            hashes.append(turn.hash)
            try:
                turn = dialogue.send(ChatReply(text, finish))
            except StopIteration as stop:
                return hashes, stop.value
            except DialogueFailed as failure:
                return hashes, str(failure)
        raise AssertionError("a third turn")

    assert run() == run()


def test_full_content_is_markdown_and_contexts_show_it_without_its_title() -> None:
    found, _ = drive(
        report(CONTEXT, SPEC),
        good(title="The [Data: Entities (1)] mill\nand more", findings=GOOD["findings"][:1]),
    )
    assert full_content(found) == (
        "# The mill and more\n\nMara owns the mill [Data: Entities (aa, bb)].\n\n"
        "## Finding 0\n\nBecause 0 [Data: Entities (aa)].\n"
    )
    assert set(parse_references(full_content(found))) <= set(found.references)
    assert report_record("x", found.title, full_content(found)).fields[0] == "The mill and more"


def test_the_spec_comes_from_settings_and_bundled_prompts() -> None:
    spec = report_spec(Settings(), load_prompts())
    request = next(report(CONTEXT, spec))
    assert spec.role in request.messages[0].content
    assert CONTEXT.text in "".join(m.content for m in request.messages)
    assert spec.call.max_output_tokens == Settings().reports.max_output_tokens


def test_lone_surrogate_in_a_reply_is_replaced() -> None:
    """JSON escapes can contain lone surrogates, which tables cannot store."""
    fields = {
        "title": "T \\ud83d",
        "summary": "S \\ud83d\\ude00",
        "rating": 5,
        "rating_explanation": "so",
        "findings": [{"summary": "f", "explanation": "e \\udc00"}],
    }
    draft = parse_report(json.dumps(fields).replace("\\\\", "\\"))
    assert isinstance(draft, ReportDraft)
    assert (draft.title, draft.summary) == ("T \ufffd", "S \U0001f600")
    assert "\ufffd" in str(draft.findings)
