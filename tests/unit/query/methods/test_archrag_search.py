"""ArchRAG: nearest records of each level, points with scores, and their combination."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import toy_model
from driving import Snapshot

from graphrag_ray.base.connection_settings import Model
from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import BudgetSpent, UsageError
from graphrag_ray.base.messages import ChatReply, Reply, Request
from graphrag_ray.query.methods import archrag_search
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Dialogues, LevelSearch, Question, Search, SearchEnv

PEOPLE = ("ALICE", "BOB", "CAROL", "DAVE", "ERIN", "FRANK")


def tables() -> dict[str, list[dict[str, Any]]]:
    """Create six people in a chain, two communities above them, and one above these."""
    reports = [("r0", 1, "ALICE, BOB"), ("r1", 1, "DAVE, ERIN"), ("top", 0, "ALICE, ERIN")]
    return {
        "entities": [
            {"id": name, "human_readable_id": n, "title": name, "description": f"{name} sings."}
            for n, name in enumerate(PEOPLE, 1)
        ],
        "relationships": [
            {
                "id": f"{a}-{b}",
                "human_readable_id": n,
                "source": a,
                "target": b,
                "source_id": a,
                "target_id": b,
            }
            | {"description": f"{a} knows {b}.", "combined_degree": n, "weight": 1.0}
            for n, (a, b) in enumerate(itertools.pairwise(PEOPLE), 1)
        ],
        "attributed_reports": [
            {"id": id_, "human_readable_id": n, "level": level, "title": title, "full_content": title}
            for n, (id_, level, title) in enumerate(reports, 1)
        ],
    }


def in_order(search: Search) -> list[str]:
    return list(PEOPLE) if search.kind == "entity" else ["r1", "r0", "top"]


def given_of(
    snap: Snapshot, hierarchies: tuple[str, ...] = ("leiden", "attributed"), **query: Any
) -> SearchEnv:
    found = snap.given(**query)
    return replace(found, settings=found.settings.model_copy(update={"hierarchies": hierarchies}))


def ask(question: str = "What about ALICE ?", tables_: Any = None, **query: Any) -> tuple[Answer, Snapshot]:
    snap = Snapshot(tables() if tables_ is None else tables_, in_order)
    return snap.run(archrag_search.search(Question(question), given_of(snap, **query))), snap


def test_each_level_fills_one_context():
    answer, _ = ask(archrag_k=3)
    entities, finest, top, last = answer.contexts
    names = [Reference("Entities", name) for name in ("ALICE", "BOB", "CAROL")]
    edges = [Reference("Relationships", id_) for id_ in ("BOB-CAROL", "ALICE-BOB")]
    assert list(entities.records) == [*names, *edges]
    assert [r.id for r in finest.records] == ["r1", "r0"] and [r.id for r in top.records] == ["top"]
    assert {r.section for r in (*finest.records, *top.records)} == {"Themes"}
    assert last.phase == "reduce" and answer.found and answer.method == "archrag"


def test_levels_are_queried_concurrently_and_merged_in_one_call():
    _, snap = ask()
    asked = [need for need in snap.needs if isinstance(need, Dialogues)]
    assert [(need.phase, len(need.factories), need.is_answer) for need in asked] == [
        ("map", 3, False),
        ("reduce", 1, True),
    ]


def test_points_are_merged_by_descending_positive_score():
    answer, _ = ask("What about ERIN ?")
    cited = [r.id for r in answer.references]
    assert set(cited) == {"ERIN", "r1", "top"}
    nothing, _ = ask("What about ZOE ?")
    assert not nothing.found


def test_levels_can_be_limited_to_entities_and_the_finest_communities():
    def sections(n: int) -> list[set[str]]:
        return [{r.section for r in used.records} for used in ask(archrag_levels=n)[0].contexts[:-1]]

    assert sections(1) == [{"Entities", "Relationships"}]
    assert sections(2) == [{"Entities", "Relationships"}, {"Themes"}]


def test_without_filtering_one_call_answers_from_the_records_of_all_levels():
    answer, snap = ask(archrag_filtering=False)
    asked = [need for need in snap.needs if isinstance(need, Dialogues)]
    assert [(need.phase, len(need.factories), need.is_answer) for need in asked] == [("answer", 1, True)]
    (context,) = answer.contexts
    assert {r.section for r in context.records} == {"Entities", "Relationships", "Themes"}
    assert answer.found and answer.method == "archrag"
    assert not ask(tables_={}, archrag_filtering=False)[0].found


def test_without_filtering_every_level_keeps_its_share_and_omissions_are_reported():
    rows = tables()
    for row in rows["entities"]:
        row["description"] = " ".join([row["title"], "sings"] * 60)
    answer, _ = ask(tables_=rows, archrag_k=6, archrag_filtering=False, context_tokens=300)
    assert {"Entities", "Themes"} <= {r.section for r in answer.contexts[0].records}
    assert any("did not fit into the context." in note for note in answer.notes)


def test_search_width_is_passed_on():
    _, snap = ask(archrag_ef=100)
    assert [need.ef for need in snap.needs if isinstance(need, LevelSearch)] == [100]


def test_question_without_points_is_answered_without_data_only_if_general_knowledge_is_allowed():
    def calls(snap: Snapshot) -> list[int]:
        return [len(n.factories) for n in snap.needs if isinstance(n, Dialogues)]

    snap = Snapshot(tables(), in_order)
    allowed = given_of(snap, general_knowledge=True)
    models = {"default": Model(provider="openai", model="toy")}
    allowed = replace(allowed, settings=allowed.settings.model_copy(update={"models": models}))
    answer = snap.run(archrag_search.search(Question("What about ZOE ?"), allowed))
    assert answer.found and not answer.references and calls(snap) == [3, 1]
    assert any("No record answers the question" in note for note in answer.notes)
    known = snap.run(archrag_search.search(Question("What about ERIN ?"), allowed))
    assert known.references and not known.notes
    assert not ask("What about ZOE ?")[0].found


@pytest.mark.parametrize(("reply", "found"), [("Insufficient", False), ("ALICE", True)])
def test_insufficient_answer_counts_as_not_found(reply: str, found: bool):
    def answered(request: Request) -> Reply:
        return ChatReply(reply) if request.prompt == "reduce" else toy_model.answer(request)

    snap = Snapshot(tables(), in_order, answered)
    env = given_of(snap, response_type="a word or name")
    answer = snap.run(archrag_search.search(Question("What about ALICE ?"), env))
    assert (answer.text, answer.found) == (reply, found)


def test_small_level_is_read_completely():
    answer, _ = ask(archrag_k=50)
    assert [len(used.records) for used in answer.contexts[:3]] == [6 + 5, 2, 1]


def test_index_without_reports_or_entities_still_answers():
    answer, snap = ask(tables_={**tables(), "attributed_reports": []})
    assert answer.found and len(answer.contexts) == 2
    empty, snap = ask(tables_={})
    assert not empty.found and not any(
        isinstance(n, Dialogues) and n.phase == "map" and n.factories for n in snap.needs
    )


def test_budget_is_checked_before_any_call():
    with pytest.raises(BudgetSpent, match=r"lower query\.archrag_k"):
        ask(budget_tokens=1_000)


def test_hierarchy_by_embedding_is_preferred():
    assert ask()[0].notes == ()
    with pytest.raises(UsageError, match="This index has no hierarchy 'attributed'"):
        ask(hierarchies=("leiden",), hierarchy="attributed")
    told = ask(hierarchies=("leiden",))[0].notes
    assert any("--set hierarchies=leiden,attributed." in note for note in told)
