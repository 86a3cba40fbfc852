"""DRIFT: primer, rounds of follow-up questions, and synthesis."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import toy_model
from driving import Snapshot, drive
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import BudgetSpent, DialogueFailed, LevelNotFound, UsageError
from graphrag_ray.base.ids import entity_id
from graphrag_ray.base.json_replies import ReplyProblem
from graphrag_ray.base.messages import ChatReply, ChatRequest, Reply, Request
from graphrag_ray.base.prompts import load_prompts, parse_prompt
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.graph.report_context import Context
from graphrag_ray.query.methods.answer import UNREADABLE, Answer
from graphrag_ray.query.methods.drift_search import (
    HYPOTHESIS,
    LISTED_TOKENS,
    LOCAL,
    MAX_FOLLOW_UP_TOKENS,
    PRIMER,
    FollowUp,
    drift_spec,
    is_repeated,
    look_up,
    parse_step,
    primer,
    search,
)
from graphrag_ray.query.methods.method import Dialogues, Question, Rows, Search

NAMES = ["ALICE", "BOB", "CAROL", "DAVE", "ERIN", "FRANK"]
CONTEXT = Context("data\n", {("Reports", 1): "aa", ("Sources", 1): "bb"}, 5)
SETTINGS = parse_settings({})
FIRST, THEN = (drift_spec(name, SETTINGS, load_prompts()) for name in (PRIMER, LOCAL))


def step(answer: str, score: object, *follow_ups: tuple[str, object]) -> str:
    asked = [{"question": q, "score": s} for q, s in follow_ups]
    return json.dumps({"answer": answer, "score": score, "follow_ups": asked})


# the dialogues


def test_step_has_answer_references_and_follow_ups():
    result, requests = drive(
        primer("Why?", CONTEXT, FIRST, 3), step("A [Data: Reports (1, 7)].", 40, ("Who?", 90))
    )
    assert (result.answer.text, result.answer.score) == ("A [Data: Reports (aa)].", 40.0)
    assert result.answer.dropped_references == 1 and result.follow_ups == [
        FollowUp(question="Who?", score=90.0)
    ]
    assert requests[0].response == "json" and "at most 3" in requests[0].messages[0].content


def test_prompt_contains_follow_up_and_original_question():
    result, (request,) = drive(look_up("Why?", "Who?", CONTEXT, THEN, 2), step("B [Data: Sources (1)].", 9))
    assert [r.id for r in result.answer.references] == ["bb"]
    text = request.messages[-1].content
    assert "Why?" in text and "Who?" in text


def test_prompt_lists_earlier_questions():
    _, (request,) = drive(
        look_up("Why?", "Who?", CONTEXT, THEN, 2, ["When?", "Who?"]), step("B [Data: Sources (1)].", 9)
    )
    assert "\nWhen?\nWho?\n" in request.messages[-1].content


def test_custom_prompt_may_omit_earlier_questions():
    own = parse_prompt(LOCAL, THEN.prompt.source.replace("{asked}", ""))
    result, _ = drive(
        look_up("Why?", "Who?", CONTEXT, replace(THEN, prompt=own), 2, ["When?"]), step("B.", 9)
    )
    assert result.answer.text == "B."


def test_unusable_reply_is_corrected_once_then_fails():
    result, requests = drive(primer("Why?", CONTEXT, FIRST, 3), "Because.", step("A.", 5))
    assert result.answer.text == "A." and "`score`" in requests[1].messages[-1].content
    with pytest.raises(DialogueFailed, match="drift_primer: still not usable"):
        drive(primer("Why?", CONTEXT, FIRST, 3), "Because.", step("", 5))


@pytest.mark.parametrize(
    ("reply", "follow_ups"),
    [
        ('{"answer": "A.", "score": 5}', []),
        ('{"answer": "A.", "score": 5, "follow_ups": "none"}', []),
        (
            '{"answer": "A.", "score": 5, "follow_ups": ["Who?", {"question": "When?"}, 7, ""]}',
            ["Who?", "When?"],
        ),
    ],
)
def test_follow_ups_may_be_missing_or_strings(reply: str, follow_ups: list[str]):
    found = parse_step(reply)
    assert not isinstance(found, ReplyProblem) and [f.question for f in found.follow_ups] == follow_ups


def test_follow_up_is_sanitised():
    found = parse_step(step("A.", 5, ("Who\n-----Reports-----\n[Data: Reports (1)]?", 5)))
    assert not isinstance(found, ReplyProblem)
    assert found.follow_ups[0].question == "Who -----Reports-----?"


# the method


def snapshot(n: int = 6, answer: Any = None, reports: bool = True) -> Snapshot:
    """Create a chain of people, and a report on every two."""
    names = NAMES[:n]
    entities = [
        {
            "id": entity_id(name),
            "human_readable_id": 100 + i,
            "title": name,
            "description": f"{name} knows {names[(i + 1) % n]}." + " It rained." * 30,
            "text_unit_ids": [f"t{i}"],
        }
        for i, name in enumerate(names)
    ]
    of_two = [
        {
            "id": f"r{i}",
            "human_readable_id": 200 + i,
            "title": f"{a} and {b}",
            "full_content": f"# T\n\n{a} met {b}." + " It rained." * 30,
            "community": i,
            "n_tokens": 70,
            "hierarchy": "leiden",
        }
        for i, (a, b) in enumerate(zip(names[::2], names[1::2], strict=False))
    ]
    communities = [
        {"id": f"c{i}", "community": i, "level": 0, "parent": -1, "hierarchy": "leiden", "entity_ids": []}
        for i in range(len(of_two))
    ]
    chunks = [
        {"id": f"t{i}", "human_readable_id": 300 + i, "text": f"{name} was seen.", "n_tokens": 5}
        for i, name in enumerate(names)
    ]
    tables = {
        "entities": entities,
        "community_reports": of_two if reports else [],
        "text_units": chunks,
        "relationships": [],
        "covariates": [],
        "communities": communities,
    }

    def find(need: Search) -> list[str]:
        """Rank records with a capitalised word of the question first."""
        rows = tables["community_reports" if need.kind == "community_report" else "entities"]
        wanted = set(need.text.split())
        return [r["id"] for r in sorted(rows, key=lambda r: not wanted & set(r["title"].split()))][:3]

    return Snapshot(tables, find, answer or toy_model.answer)


def asked(snap: Snapshot, question: str = "What about ALICE ?", level: Any = None, **query: Any) -> Answer:
    return snap.run(search(Question(question, level), snap.given(**query)))


def calls(snap: Snapshot) -> list[tuple[str, int]]:
    return [(n.phase, len(n.factories)) for n in snap.needs if isinstance(n, Dialogues)]


def test_follow_ups_are_looked_up_in_rounds():
    snap = snapshot()
    answer = asked(snap)
    assert calls(snap)[0] == ("drift", 1) and calls(snap)[-1] == ("reduce", 1)
    assert answer.found and (answer.method, answer.level) == ("drift", None)
    assert answer.notes[0].startswith("Looked up: What about BOB ?")
    assert {r.section for r in answer.references} == {"Reports", "Entities"}


def test_references_survive_synthesis():
    snap = snapshot()
    answer = asked(snap)
    numbers = {("Reports", "r0"): 200, ("Entities", entity_id("BOB")): 101}
    cited = {(r.section, r.id) for r in answer.references}
    assert set(numbers) <= cited
    assert "[Data: Reports (200)]" in answer.text and "[Data: Entities (101" in answer.text
    assert answer.dropped_references == 0


@given(st.integers(0, 4), st.integers(1, 4))
def test_depth_and_breadth_limit_number_of_calls(depth: int, breadth: int):
    snap = snapshot()
    asked(snap, drift_depth=depth, drift_breadth=breadth)
    counted = Counter[str]()
    for phase, n in calls(snap):
        assert n <= max(1, breadth)
        counted[phase] += n
    assert counted["drift"] <= 1 + depth * breadth and counted["reduce"] == 1
    assert len([c for c in calls(snap) if c[0] == "drift"]) <= 1 + depth


@given(st.integers(256, 900), st.integers(0, 3))
def test_contexts_stay_within_budget(budget: int, depth: int):
    answer = asked(snapshot(), context_tokens=budget, drift_depth=depth)
    assert answer.contexts and all(c.n_tokens <= budget for c in answer.contexts)


def scripted(*follow_ups: tuple[str, object]) -> Any:
    """Create a model that always asks these follow-up questions."""

    def answer(request: Request) -> Reply:
        assert isinstance(request, ChatRequest)
        if request.prompt.startswith("drift"):
            return ChatReply(step("So.", 30, *follow_ups))
        return ChatReply("All in all.")

    return answer


def test_questions_are_not_repeated():
    snap = snapshot(
        answer=scripted(("What about BOB?", 50), ("what  about bob", 90), ("What about ALICE?!", 99))
    )
    answer = asked(snap, drift_depth=4)
    assert answer.notes[0] == "Looked up: what  about bob"
    assert calls(snap) == [("drift", 1), ("drift", 1), ("reduce", 1)]


def test_most_promising_questions_come_first():
    snap = snapshot(
        answer=scripted(
            ("BOB?", 50), ("FRANK?", 49), ("CAROL?", 80), ("DAVE?", 0), ("ERIN?", 60), ("x " * 400, 100)
        )
    )
    answer = asked(snap, drift_depth=2, drift_breadth=2)
    assert answer.notes[0] == "Looked up: CAROL? ERIN? BOB?"
    assert snap.given().count("x " * 400) > MAX_FOLLOW_UP_TOKENS


def test_depth_zero_uses_only_primer():
    snap = snapshot()
    answer = asked(snap, drift_depth=0)
    assert calls(snap) == [("drift", 1), ("reduce", 1)]
    assert {r.section for r in answer.references} == {"Reports"} and answer.notes == ()


def test_failed_follow_up_is_reported():
    def answer(request: Request) -> Reply:
        assert isinstance(request, ChatRequest)
        lost = request.variables.get("follow_up") == "What about BOB ?"
        return ChatReply("No.") if lost else toy_model.answer(request)

    found = asked(snapshot(answer=answer))
    assert found.found and found.failed_parts == 1
    assert any(n.startswith("1 of ") and "no usable reply" in n for n in found.notes)


def test_failed_primer_is_an_error():
    found = asked(snapshot(answer=lambda request: ChatReply("No.")))
    assert found.text.startswith(UNREADABLE) and found.failed_parts == 1


def test_no_hits_make_no_calls():
    snap = snapshot(reports=False)
    found = asked(snap)
    assert not found.found and calls(snap) == [("reduce", 1)] and found.contexts == ()


def test_budget_is_checked_before_any_call():
    snap = snapshot()
    with pytest.raises(BudgetSpent, match=r"in 6 calls, .*lower query\.drift_depth"):
        asked(snap, budget_tokens=20_000)
    assert not snap.needs


def test_unknown_level_is_rejected_before_any_call():
    snap = snapshot()
    with pytest.raises(LevelNotFound, match="no level 'C99'"):
        asked(snap, level="C99")
    assert all(isinstance(n, Rows) for n in snap.needs)


def test_level_is_resolved_once():
    snap = snapshot()
    answer = asked(snap, level="C0")
    assert answer.notes[0].count("?") > 1
    levels_read = [n for n in snap.needs if isinstance(n, Rows) and n.table == "communities" and not n.ids]
    assert len(levels_read) == 1


def of_two_levels() -> Snapshot:
    """Put the first two reports on level 0, and the last on level 1."""
    snap = snapshot()
    for row, (level, parent) in zip(snap.tables["communities"], [(0, -1), (0, -1), (1, 0)], strict=True):
        row |= {"level": level, "parent": parent}
    return snap


@pytest.mark.parametrize(
    ("level", "read"), [("C0", {"r0", "r1"}), ("C1", {"r1", "r2"}), (None, {"r1", "r2"})]
)
def test_primer_reads_reports_of_requested_level(level: Any, read: set[str]):
    answer = asked(of_two_levels(), level=level, drift_depth=0)
    assert {r.id for r in answer.contexts[0].records} == read


def by_model(snap: Snapshot, **query: Any) -> Answer:
    model = {"provider": "openai", "model": "m"}
    given_ = replace(snap.given(), settings=parse_settings({"models": {"default": model}, "query": query}))
    return snap.run(search(Question("What about ALICE ?"), given_))


def looked_for(snap: Snapshot) -> str:
    return next(n.text for n in snap.needs if isinstance(n, Search))


def test_reports_are_searched_by_question_and_hypothesis():
    snap = snapshot()
    answer = by_model(snap)
    assert calls(snap)[:2] == [("drift", 1), ("drift", 1)] and answer.found
    assert looked_for(snap) == "What about ALICE ?\n\nWhat about ALICE ? They met, and somebody wrote."


@pytest.mark.parametrize("reply", ["", " \n", DialogueFailed("no reply")])
def test_failed_hypothesis_falls_back_to_question(reply: Any):
    def model(request: Request) -> Reply:
        assert isinstance(request, ChatRequest)
        if request.prompt != HYPOTHESIS:
            return toy_model.answer(request)
        if isinstance(reply, Exception):
            raise reply
        return ChatReply(reply)

    snap = snapshot(answer=model)
    assert by_model(snap).found and looked_for(snap) == "What about ALICE ?"


def test_hypothesis_is_skipped_if_disabled_or_offline():
    off, offline = snapshot(), snapshot()
    by_model(off, drift_hypothesis=False, drift_depth=0)
    asked(offline, drift_depth=0)
    for snap in (off, offline):
        assert calls(snap) == [("drift", 1), ("reduce", 1)] and looked_for(snap) == "What about ALICE ?"


def test_newest_earlier_questions_are_listed():
    seen: list[str] = []

    def model(request: Request) -> Reply:
        assert isinstance(request, ChatRequest)
        if request.prompt == LOCAL:
            seen.append(request.variables["asked"])
        following = [(f"What about BOB in year {len(seen)} {'and so on ' * 30}?", 50)]
        return (
            ChatReply(step("So.", 30, *following)) if request.prompt.startswith("drift") else ChatReply("A.")
        )

    snap = snapshot(answer=model)
    asked(snap, drift_depth=9)
    assert [s.count("?") for s in seen[:3]] == [1, 2, 3]
    assert "year 8" in seen[-1] and "year 0" not in seen[-1]
    assert all(snap.given().count(s) <= LISTED_TOKENS for s in seen)


def test_snapshot_without_embeddings_is_rejected():
    snap = snapshot()
    bare = snap.given()
    none = {k: n for k, n in bare.n_rows.items() if not k.startswith("embeddings")}
    with pytest.raises(UsageError, match="drift search needs embeddings of community reports and entities"):
        snap.run(search(Question("Why?"), type(bare)(bare.settings, bare.prompts, bare.count, none)))


def test_question_in_nearly_the_same_words_is_repeated():
    def repeated(a: str, b: str) -> bool:
        return is_repeated(frozenset(a.split()), frozenset(b.split()))

    assert repeated("who bought the old mill", "who bought the mill")
    assert not repeated("what did ann sell", "what did bob sell")
    assert not repeated("what did the mill earn", "what did the mill earn 1901")


def test_fruitless_follow_up_reaches_the_last_call():
    seen: list[str] = []

    def model(request: Request) -> Reply:
        assert isinstance(request, ChatRequest)
        if request.prompt == LOCAL:
            return ChatReply(step("", 0))
        if request.prompt == PRIMER:
            return ChatReply(step("So [Data: Reports (1)].", 30, ("What about BOB ?", 90)))
        seen.append(request.variables["answers"])
        return ChatReply("All in all.")

    asked(snapshot(answer=model))
    assert "nothing was found:** What about BOB ?" in seen[0]
