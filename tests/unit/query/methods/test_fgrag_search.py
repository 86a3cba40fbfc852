"""FG-RAG: subjects of a question, their contexts and summaries, and the answer."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import toy_model
from driving import Snapshot

from graphrag_ray.base.errors import BudgetSpent, UsageError
from graphrag_ray.base.ids import entity_id
from graphrag_ray.base.messages import ChatReply, ChatRequest, Reply, Request
from graphrag_ray.query.methods.answer import UNREADABLE, Answer
from graphrag_ray.query.methods.fgrag_search import MAX_LINKS, MAX_TOTAL, MAX_WEAK, NEAREST, search
from graphrag_ray.query.methods.method import Dialogues, Question, Rows, Search

PEOPLE = ("ALICE", "BOB", "CAROL", "DAVE", "ERIN", "FRANK")
QUESTION = "What do ALICE and ERIN share ?"


def entity(name: str, number: int = 1) -> dict[str, Any]:
    row = {"id": entity_id(name), "human_readable_id": number, "title": name, "frequency": 1}
    return row | {"description": f"{name} sings."}


def link(a: str, b: str, number: int = 1) -> dict[str, Any]:
    ends = {"source": a, "target": b, "source_id": entity_id(a), "target_id": entity_id(b)}
    row = {"id": f"{a}-{b}", "human_readable_id": number, "combined_degree": number, "weight": 1.0}
    return row | ends | {"description": f"{a} knows {b}."}


def tables(names: tuple[str, ...] = PEOPLE) -> dict[str, list[dict[str, Any]]]:
    """Create people in a chain."""
    pairs = enumerate(itertools.pairwise(names), 1)
    return {
        "entities": [entity(name, n) for n, name in enumerate(names, 1)],
        "relationships": [link(a, b, n) for n, (a, b) in pairs],
    }


def near(search: Search) -> list[str]:
    """Find the first of the entities that the text names."""
    return [entity_id(name) for name in PEOPLE if name in search.text][:1]


def snapshot(tables_: Any = None, answer: Any = toy_model.answer, find: Any = near) -> Snapshot:
    return Snapshot(tables() if tables_ is None else tables_, find, answer)


def ask(snap: Snapshot, question: str = QUESTION, **query: Any) -> Answer:
    return snap.run(search(Question(question), snap.given(**query)))


def dialogues(snap: Snapshot) -> list[tuple[str, int, bool]]:
    found = [need for need in snap.needs if isinstance(need, Dialogues)]
    return [(need.phase, len(need.factories), need.is_answer) for need in found]


def replying(**replies: Any) -> Any:
    """Create a toy model that replies to some prompts with these texts."""

    def answer(request: Request) -> Reply:
        reply = replies.get(request.prompt)
        told = reply(request) if callable(reply) else reply
        return toy_model.answer(request) if told is None else ChatReply(told)

    return answer


def summaries(snap: Snapshot, question: str = QUESTION, **query: Any) -> list[dict[str, str]]:
    """Collect the variables of the summary prompts."""
    asked: list[ChatRequest] = []
    first = snap.answer

    def answer(request: Request) -> Reply:
        if isinstance(request, ChatRequest):
            asked.append(request)
        return first(request)

    snap.answer = answer
    ask(snap, question, **query)
    return [dict(request.variables) for request in asked if request.prompt == "entity_summary"]


def test_calls_of_each_step_are_concurrent():
    snap = snapshot()
    answer = ask(snap)
    assert dialogues(snap) == [
        ("fgrag", 1, False),
        ("fgrag", 2, False),
        ("fgrag", 2, False),
        ("reduce", 1, True),
    ]
    assert answer.found and answer.method == "fgrag" and "Looked up: ALICE; ERIN." in answer.notes


def test_each_subject_has_its_own_context():
    answer = ask(snapshot())
    first, second, last = answer.contexts
    assert first.records[0].id == entity_id("ALICE") and second.records[0].id == entity_id("ERIN")
    assert "ALICE-BOB" in {r.id for r in first.records} and "ERIN-FRANK" in {r.id for r in second.records}
    assert {r.section for r in first.records} == {"Entities", "Relationships"}
    assert (first.phase, last.phase) == ("fgrag", "reduce")


def test_summaries_follow_order_of_subjects():
    def summary(request: ChatRequest) -> str:
        return f"{request.variables['entity']} sings [Data: Entities (1); Relationships (1)]."

    answer = ask(snapshot(answer=replying(entity_summary=summary)), "What do ERIN and ALICE share ?")
    assert answer.text.index("**ERIN**") < answer.text.index("**ALICE**")
    assert {r.section for r in answer.references} == {"Entities", "Relationships"}
    assert "[Data: Entities (1" in answer.text and not answer.dropped_references


def test_summary_prompt_contains_questions():
    shown = summaries(snapshot())
    assert [s["entity"] for s in shown] == ["ALICE", "ERIN"]
    assert shown[0]["questions"] == "What about ALICE ?\nWho knows ALICE ?"


def test_original_question_replaces_missing_questions():
    def questions(request: ChatRequest) -> str:
        return "" if request.variables["entity"] == "ALICE" else "Who?"

    shown = summaries(snapshot(answer=replying(entity_questions=questions)))
    assert [s["questions"] for s in shown] == [QUESTION, "Who?"]


def test_question_without_entities_is_used_as_a_whole():
    snap = snapshot(answer=replying(correct="Nothing."), find=lambda search: [entity_id("DAVE")])
    (shown,) = summaries(snap, "who is it then?")
    assert shown["entity"] == shown["questions"] == "who is it then?"
    assert dialogues(snap) == [("fgrag", 1, False), ("fgrag", 1, False), ("reduce", 1, True)]
    notes = ask(snap, "who is it then?").notes
    assert "Looked up: the question as a whole, because no subject was named." in notes


def test_number_of_subjects_is_limited():
    listed = "\n".join(f"ALICE {n}" for n in range(100))
    snap = snapshot(answer=replying(query_entities=listed))
    assert len(summaries(snap)) == 8
    assert len(summaries(snapshot(answer=replying(query_entities=listed)), fgrag_entities=3)) == 3
    assert max(n for _, n, _ in dialogues(snap)) == 8


def test_literally_named_entity_takes_precedence():
    answer = ask(snapshot(find=lambda search: [entity_id("FRANK")]), "What about BOB ?")
    assert answer.contexts[0].records[0].id == entity_id("BOB")


def test_strong_context_is_near_weak_context():
    snap = snapshot(find=lambda search: [entity_id(n) for n in ("ALICE", "BOB")])
    ask(snap, "What about ALICE ?")
    searches = [(need.text, need.k) for need in snap.needs if isinstance(need, Search)]
    assert searches == [("ALICE", NEAREST), ("ALICE, BOB", NEAREST)]


def test_strong_context_reaches_the_model_within_any_budget():
    weak, strong = ([f"{kind} {n:03}" for n in range(120)] for kind in ("WEAK", "STRONG"))
    rows = {"entities": [entity(name, n) for n, name in enumerate([*weak, *strong], 1)]}
    hub = [link(weak[0], name, n) for n, name in enumerate(weak[1:], 1)]
    rows["relationships"] = hub + [link(strong[0], name, n) for n, name in enumerate(strong[1:], 200)]
    for row in rows["entities"]:
        row["description"] = " ".join([f"{row['title']} sings."] * 20)

    def find(search: Search) -> list[str]:
        return [entity_id((strong if "WEAK" in search.text else weak)[0])]

    question = "What about singing ?"

    def read(**query: Any) -> tuple[Counter[str], Answer]:
        snap = snapshot(rows, answer=replying(query_entities="singing"), find=find)
        answer = ask(snap, question, **query)
        names = {entity_id(name): name.split()[0] for name in (*weak, *strong)}
        return Counter(names.get(r.id, r.id.split()[0]) for r in answer.contexts[0].records), answer

    whole, answer = read(fgrag_context_tokens=100_000)
    assert whole.total() == MAX_TOTAL and whole["STRONG"] == MAX_TOTAL - MAX_WEAK
    assert not any("did not fit" in note for note in answer.notes)
    part, answer = read(fgrag_context_tokens=2_000)
    assert 0 < part["STRONG"] <= part["WEAK"] + 2 and part.total() < MAX_TOTAL
    left_out = MAX_TOTAL - part.total()
    assert f"{left_out} of 150 records that were reached did not fit into the contexts." in answer.notes


def test_without_expansion_only_the_nearest_entities_are_read():
    snap = snapshot()
    answer = ask(snap, fgrag_expansion=False)
    assert [[r.id for r in used.records] for used in answer.contexts[:2]] == [
        [entity_id("ALICE")],
        [entity_id("ERIN")],
    ]
    assert answer.found and len([need for need in snap.needs if isinstance(need, Search)]) == 2


def test_without_summaries_one_call_answers_from_the_records_of_all_subjects():
    snap = snapshot()
    answer = ask(snap, fgrag_summaries=False)
    assert dialogues(snap) == [("fgrag", 1, False), ("answer", 1, True)]
    (context,) = answer.contexts
    assert len(set(context.records)) == len(context.records) == len(PEOPLE) * 2 - 1
    assert answer.found and answer.method == "fgrag" and "Looked up: ALICE; ERIN." in answer.notes
    for row in (rows := tables())["entities"]:
        row["description"] = " ".join([row["title"], "sings"] * 60)
    answer = ask(snapshot(rows), fgrag_summaries=False, fgrag_context_tokens=300)
    assert {entity_id("ALICE"), entity_id("ERIN")} <= {r.id for r in answer.contexts[0].records}
    assert any("did not fit into the contexts." in note for note in answer.notes)


def test_relationships_of_hub_are_limited():
    spokes = [f"SPOKE {n:04}" for n in range(600)]
    rows = {
        "entities": [entity("ALICE"), *(entity(s, n) for n, s in enumerate(spokes, 2))],
        "relationships": [link("ALICE", s, n) for n, s in enumerate(spokes, 1)],
    }
    snap = snapshot(rows)
    answer = ask(snap, "What about ALICE ?", fgrag_context_tokens=100_000)
    asked = [n for n in snap.needs if isinstance(n, Rows) and n.table == "relationships" and n.by != "id"]
    assert asked and all(n.limit_per_id == MAX_LINKS and n.ids is not None for n in asked)
    assert all("description" not in n.columns for n in asked)
    assert len(answer.contexts[0].records) <= MAX_TOTAL


def test_expansions_share_reads():
    snap = snapshot()
    needs: list[Any] = []
    method = search(Question(QUESTION), snap.given())
    sent: Any = None
    try:
        while True:
            needs.append(need := method.send(sent))
            sent = [snap._met(n) for n in need] if isinstance(need, tuple) else snap._met(need)
    except StopIteration:
        pass
    steps = [n for n in needs if isinstance(n, tuple) and n and isinstance(n[0], Rows)]
    assert [len(n) for n in steps if n[0].limit_per_id][:1] == [2]


def test_failed_summary_is_reported():
    def fails(request: ChatRequest) -> str | None:
        return "" if "ALICE" in request.variables["entity"] else None

    answer = ask(snapshot(answer=replying(entity_summary=fails, correct="")))
    assert answer.found and answer.failed_parts == 1 and "**ERIN**" in answer.text
    assert any("1 of 2 parts of the records got no usable reply" in note for note in answer.notes)


def test_failure_of_all_summaries_is_reported():
    answer = ask(snapshot(answer=replying(entity_summary="", correct="")))
    assert answer.text.startswith(UNREADABLE) and not answer.found


def test_irrelevant_summaries_are_dropped():
    answer = ask(snapshot(answer=replying(entity_summary="NONE")))
    assert not answer.found and answer.text == "Nothing in the index answers this question."
    assert [used.score for used in answer.contexts] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("reply", "found"), [("Insufficient", False), ("**Insufficient.**", False), ("BOB", True)]
)
def test_insufficient_answer_counts_as_not_found(reply: str, found: bool):
    answer = ask(snapshot(answer=replying(fgrag_answer=reply)), response_type="a word or name")
    assert (answer.text, answer.found) == (reply, found)


def test_no_near_entities_make_no_summaries():
    snap = snapshot({"entities": [entity("ZOE")]}, find=lambda search: [])
    assert not ask(snap).found
    assert dialogues(snap)[2] == ("fgrag", 0, False)


def test_budget_is_checked_before_any_call():
    snap = snapshot()
    with pytest.raises(BudgetSpent, match=r"in 18 calls.*lower query\.fgrag_entities"):
        ask(snap, budget_tokens=1_000)
    assert not dialogues(snap)
    with pytest.raises(BudgetSpent, match="in 4 calls"):
        ask(snap, budget_tokens=1_000, fgrag_entities=1)


def test_index_without_graph_or_embeddings_is_rejected():
    snap = snapshot()
    given = snap.given()
    without = replace(given, n_rows={**given.n_rows, "embeddings_entity": 0})
    with pytest.raises(UsageError, match="fgrag search needs embeddings of entities"):
        snap.run(search(Question(QUESTION), without))
