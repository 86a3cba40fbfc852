"""Questions about a whole corpus: personas, tasks and questions."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from driving import Snapshot, drive
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import DialogueFailed
from graphrag_ray.base.messages import ChatReply, ChatRequest
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.evaluate.judging.corpus_questions import (
    CorpusQuestion,
    corpus_description,
    corpus_questions,
    description_spec,
    question_specs,
)
from graphrag_ray.offline import answer as offline_answer

SETTINGS = parse_settings({"output_language": "Welsh"})
SPECS = question_specs(SETTINGS, load_prompts())
ENTRIES = {"personas": "persona", "tasks": "task", "corpus_questions": "question"}
DESCRIPTION = "Letters on the harbour of Varnmouth."

Answer = Callable[[ChatRequest], ChatReply]


def listed(prompt: str, *told: object) -> ChatReply:
    key = "questions" if prompt == "corpus_questions" else prompt
    return ChatReply(json.dumps({key: [{ENTRIES[prompt]: text} for text in told]}))


def told_apart(request: ChatRequest) -> ChatReply:
    """Return the requested number of entries, each marked with its request."""
    asked = request.variables.get("task") or request.variables.get("persona") or ""
    told = [f"{asked}{request.prompt[0].upper()}{n}" for n in range(1, int(request.variables["n"]) + 1)]
    return listed(request.prompt, *told)


class Written:
    """The result of replies. changed: replies to the requests of one prompt, in order."""

    def __init__(self, counts: tuple[int, int, int], **changed: list[ChatReply | str]) -> None:
        self.asked: list[ChatRequest] = []
        self._left = {name: list(replies) for name, replies in changed.items()}
        snapshot = Snapshot({}, answer=self._answer)
        self.questions, self.failures = snapshot.run(corpus_questions(DESCRIPTION, counts, SPECS))

    def _answer(self, request: ChatRequest) -> ChatReply:
        self.asked.append(request)
        if left := self._left.get(request.first_prompt or request.prompt):
            reply = left.pop(0)
            return ChatReply(reply) if isinstance(reply, str) else reply
        return told_apart(request)

    @property
    def prompts(self) -> list[str]:
        return [request.prompt for request in self.asked]


def test_each_persona_has_tasks_and_each_task_has_questions():
    written = Written((2, 2, 3))
    assert written.failures == []
    assert [q.question_id for q in written.questions] == [
        f"{p}.{t}.{n}" for p in (1, 2) for t in (1, 2) for n in (1, 2, 3)
    ]
    assert written.questions[-1] == CorpusQuestion("2.2.3", "P2T2C3", "P2", "P2T2")
    assert written.prompts == ["personas"] + ["tasks"] * 2 + ["corpus_questions"] * 4
    assert len({request.hash for request in written.asked}) == 7


def test_every_request_contains_description_number_and_language():
    for request in Written((2, 3, 4)).asked:
        text = request.messages[-1].content
        number = {"personas": "2 different users", "tasks": "3 different tasks"}.get(
            request.prompt, "4 questions"
        )
        assert request.response == "json"
        assert DESCRIPTION in text and number in text and "in Welsh" in text


def test_surplus_entries_are_dropped():
    written = Written((1, 1, 2), corpus_questions=[listed("corpus_questions", "A?", "B?", "C?")])
    assert [q.question for q in written.questions] == ["A?", "B?"]


def test_short_list_is_requested_once_more():
    written = Written((2, 1, 1), personas=[listed("personas", "Ann"), listed("personas", "Ann", "Bo")])
    assert written.prompts[:2] == ["personas", "correct"]
    assert "it lists 1, and not 2" in written.asked[1].messages[-1].content
    assert [q.persona for q in written.questions] == ["Ann", "Bo"]


@pytest.mark.parametrize(
    "replies",
    [
        [listed("personas", "Ann", "Bo"), listed("personas", "Cy")],
        [listed("personas", "Ann"), listed("personas", "Ann", "Bo")],
        [listed("personas", "Ann", "Bo"), "I cannot think of others."],
        ["Here they are.", listed("personas", "Ann", "Bo")],
        [listed("personas"), listed("personas", "Ann", "Bo")],
        [listed("personas", "Ann", "Ann", "Bo"), listed("personas", "Ann")],
    ],
)
def test_longer_of_two_short_lists_counts(replies: list[ChatReply | str]):
    written = Written((3, 1, 1), personas=replies)
    assert [q.persona for q in written.questions] == ["Ann", "Bo"]
    assert written.prompts.count("correct") == 1
    assert written.failures == []


def test_truncated_list_is_requested_once_more_then_its_complete_entries_count():
    cut = ChatReply(listed("personas", "Ann", "Bo", "Cyril").text[:-7], "length")
    written = Written((3, 1, 1), personas=[cut, cut])
    assert [q.persona for q in written.questions] == ["Ann", "Bo"]
    assert "it was cut off before its end" in written.asked[1].messages[-1].content


@pytest.mark.parametrize("reply", ["None.", "", listed("personas"), listed("personas", "", 5)])
def test_no_persona_means_no_questions(reply: ChatReply | str):
    with pytest.raises(DialogueFailed, match="personas: still not usable after a correction"):
        Written((2, 1, 1), personas=[reply, reply])


def test_failed_tasks_are_reported_and_the_others_continue():
    written = Written((2, 2, 1), tasks=["None.", "None."])
    assert len(written.failures) == 1
    assert written.failures[0].startswith("tasks: still not usable after a correction: it holds no JSON")
    assert {q.persona for q in written.questions} == {"P2"}
    assert [q.question_id for q in written.questions] == ["2.1.1", "2.2.1"]


def test_failed_questions_are_reported_in_addition_to_failed_tasks():
    written = Written((2, 2, 1), tasks=["?", "?"], corpus_questions=["?", "?"])
    assert [failure.partition(":")[0] for failure in written.failures] == ["tasks", "corpus_questions"]
    assert [q.question_id for q in written.questions] == ["2.2.1"]


def test_no_questions_are_requested_if_all_tasks_fail():
    written = Written((2, 2, 1), tasks=["?"] * 4)
    assert written.questions == [] and len(written.failures) == 2
    assert "corpus_questions" not in written.prompts


def test_repeated_question_is_kept_at_its_first_occurrence():
    same = [
        listed("corpus_questions", *told) for told in (("Why?", "Who?"), ("WHY?", "How?"), ("How?", "Ho?"))
    ]
    written = Written((1, 3, 2), corpus_questions=same)
    assert [(q.question_id, q.question) for q in written.questions] == [
        ("1.1.1", "Why?"),
        ("1.1.2", "Who?"),
        ("1.2.2", "How?"),
        ("1.3.2", "Ho?"),
    ]


@given(
    st.lists(texts() | texts().map(lambda t: listed("personas", t, t, "Ann").text), min_size=2, max_size=2)
)
def test_any_reply_yields_at_most_n_distinct_personas_or_fails(replies: list[str]):
    try:
        written = Written((2, 1, 1), personas=[*replies])
    except DialogueFailed:
        return
    users = {q.persona for q in written.questions}
    assert 1 <= len(users) <= 2
    assert all(user.strip() and user.encode() for user in users)


@pytest.mark.parametrize("counts", [(5, 5, 5), (1, 1, 50), (1, 50, 1), (50, 1, 1)])
@pytest.mark.parametrize(
    "description",
    [
        "",
        DESCRIPTION,
        "Texts that deal with Kestrel Marine, Denholm, Orla Quist; Hask Marsh, Mara Venn.",
        "the main events and neural networks",
    ],
)
def test_offline_engine_writes_the_requested_number_of_questions_at_the_first_turn(
    counts: tuple[int, int, int], description: str
):
    asked: list[ChatRequest] = []
    snapshot = Snapshot({}, answer=lambda request: asked.append(request) or offline_answer(request))
    questions, failures = snapshot.run(corpus_questions(description, counts, SPECS))
    n_personas, n_tasks, n_questions = counts
    assert len(questions) == n_personas * n_tasks * n_questions
    assert failures == [] and "correct" not in {request.prompt for request in asked}


@given(texts(), texts(), texts(), st.integers(1, 50))
def test_offline_engine_lists_exactly_the_requested_number(description: str, persona: str, task: str, n: int):
    variables = {"description": description, "persona": persona, "task": task, "n": str(n), "language": "any"}
    for prompt, entry in ENTRIES.items():
        request = ChatRequest(prompt, (), SPECS["personas"].call, variables)
        found = json.loads(offline_answer(request).text)
        (told,) = found.values()
        assert len({one[entry].strip() for one in told}) == len(told) == n


SPEC = description_spec(SETTINGS, load_prompts())
REPORTS = "- Kestrel Marine, Denholm: A community.\n- Hask Marsh: Another one.\n"


def test_description_is_a_paragraph():
    result, (request,) = drive(corpus_description(REPORTS, SPEC), " Letters.\n\nOn the harbour. ")
    assert result == "Letters. On the harbour."
    assert (request.prompt, request.response) == ("corpus_description", "text")
    assert REPORTS in request.messages[-1].content
    assert "in Welsh" in request.messages[0].content


def test_empty_description_fails():
    with pytest.raises(DialogueFailed, match="corpus_description: The reply is empty"):
        drive(corpus_description(REPORTS, SPEC), " \n")


@given(texts())
def test_offline_engine_describes_any_corpus(reports: str):
    dialogue = corpus_description(reports, SPEC)
    assert drive(dialogue, offline_answer(next(corpus_description(reports, SPEC))))[0]
