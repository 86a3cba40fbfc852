"""LightRAG: searches of each mode, their chunks, and token budgets."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import toy_model
from driving import COUNT, Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import BudgetSpent, UsageError
from graphrag_ray.base.messages import ChatReply, Reply, Request
from graphrag_ray.query.methods import lightrag_search
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.lightrag_search import TOP_K
from graphrag_ray.query.methods.local_search import MAX_EDGES, MAX_LISTED_CHUNKS
from graphrag_ray.query.methods.method import Dialogues, Question, Rows, Search

HIGH, LOW = "writing letters, friendship", "ALICE, BOB"
MODES = ("local", "global", "hybrid", "mix")


def person(name: str, *chunks: str, frequency: int | None = None) -> dict[str, Any]:
    own = {"id": name, "title": name, "description": f"{name} is told of.", "text_unit_ids": list(chunks)}
    return own | {"frequency": len(chunks) if frequency is None else frequency}


def edge(a: str, b: str, degree: int, *chunks: str) -> dict[str, Any]:
    ends = {"source": a, "target": b, "source_id": a, "target_id": b}
    own = {"id": f"{a}-{b}", "description": f"{a} knows {b}.", "text_unit_ids": list(chunks)}
    return own | ends | {"combined_degree": degree, "weight": 1.0}


def chunk(n: int, *names: str, edges: Sequence[str] = ()) -> dict[str, Any]:
    held = {"entity_ids": list(names), "relationship_ids": list(edges)}
    return {"id": f"t{n}", "text": f"Text {n} is on {' and '.join(names)}.", "n_tokens": 9, **held}


def tables() -> dict[str, list[dict[str, Any]]]:
    return {
        "entities": [
            person("ALICE", "t1", "t2"),
            person("BOB", "t2", "t3"),
            person("CAROL", "t4"),
            person("DAVE", "t4", "t5"),
        ],
        "relationships": [
            edge("ALICE", "BOB", 4, "t2"),
            edge("BOB", "DAVE", 9, "t3"),
            edge("CAROL", "DAVE", 3, "t4"),
        ],
        "text_units": [
            chunk(1, "ALICE"),
            chunk(2, "ALICE", "BOB", edges=["ALICE-BOB"]),
            chunk(3, "BOB", edges=["BOB-DAVE"]),
            chunk(4, "CAROL", "DAVE", edges=["CAROL-DAVE"]),
            chunk(5, "DAVE"),
            chunk(6, "ERIN"),
        ],
    }


def near(search: Search) -> list[str]:
    """Find ALICE and BOB by low-level keywords, CAROL-DAVE by high-level ones, and the last chunks first."""
    found = {"entity": ["ALICE", "BOB"], "relationship": ["CAROL-DAVE"]}
    return found.get(search.kind) or [f"t{n}" for n in range(6, 0, -1)]


def listing(high: str = HIGH, low: str = LOW, reply: str | None = None) -> Callable[[Request], Reply]:
    lists = {
        name: [k for k in of.split(", ") if k] for name, of in (("high_level", high), ("low_level", low))
    }

    def answer(request: Request) -> Reply:
        if getattr(request, "first_prompt", "") == "keywords" or request.prompt == "keywords":
            return ChatReply(json.dumps(lists) if reply is None else reply)
        return toy_model.answer(request)

    return answer


def ask(
    mode: str = "mix",
    tables_: Any = None,
    answer: Callable[[Request], Reply] | None = None,
    where: tuple[str, ...] = (),
    **query: Any,
) -> tuple[Answer, Snapshot]:
    query = {"lightrag_min_similarity": 0} | query
    snap = Snapshot(tables() if tables_ is None else tables_, near, answer or listing())
    question = Question("What about ALICE ?", where=where)
    return snap.run(lightrag_search.search(question, snap.given(lightrag_mode=mode, **query))), snap


def shown(answer: Answer, section: str) -> list[str]:
    return [r.id for used in answer.contexts for r in used.records if r.section == section]


def searches(snap: Snapshot) -> dict[str, tuple[str, int]]:
    """Return the searches of the mode, without the last one, which only orders chunks."""
    found = [n for n in snap.needs if isinstance(n, Search) and n.k < lightrag_search.MAX_NEAR_CHUNKS]
    return {n.kind: (n.text, n.k) for n in found}


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ("local", {"entity"}),
        ("global", {"relationship"}),
        ("hybrid", {"entity", "relationship"}),
        ("mix", {"entity", "relationship", "text_unit"}),
    ],
)
def test_each_mode_searches_its_kinds(mode: str, kinds: set[str]):
    _, snap = ask(mode)
    by = {"entity": (LOW, TOP_K), "relationship": (HIGH, TOP_K), "text_unit": ("What about ALICE ?", 40)}
    assert searches(snap) == {kind: of for kind, of in by.items() if kind in kinds}


def test_local_mode_adds_relationships_by_importance():
    answer, _ = ask("local")
    assert shown(answer, "Entities") == ["ALICE", "BOB"]
    assert shown(answer, "Relationships") == ["BOB-DAVE", "ALICE-BOB"]


def test_global_mode_adds_ends_of_relationships():
    answer, _ = ask("global")
    assert shown(answer, "Relationships") == ["CAROL-DAVE"]
    assert shown(answer, "Entities") == ["CAROL", "DAVE"]


def test_hybrid_mode_alternates():
    answer, _ = ask("hybrid")
    assert shown(answer, "Entities") == ["ALICE", "CAROL", "BOB", "DAVE"]
    assert shown(answer, "Relationships") == ["BOB-DAVE", "CAROL-DAVE", "ALICE-BOB"]


def test_chunks_are_ranked_by_mentions_then_similarity():
    answer, _ = ask("hybrid")
    # t2: ALICE, BOB and their relationship; t4: the same for CAROL and DAVE, but nearer; t5, t1: one entity.
    assert shown(answer, "Sources") == ["t4", "t2", "t3", "t5", "t1"]


def test_mix_mode_alternates_near_and_mentioning_chunks():
    answer, _ = ask("mix")
    assert shown(answer, "Sources") == ["t6", "t4", "t5", "t2", "t3", "t1"]
    fewer, _ = ask("mix", lightrag_chunks=3)
    assert shown(fewer, "Sources") == ["t6", "t4", "t5"] and fewer.contexts[0].left_out == 2


def test_two_calls_give_a_cited_answer():
    answer, snap = ask()
    asked = [(n.phase, len(n.factories), n.is_answer) for n in snap.needs if isinstance(n, Dialogues)]
    assert asked == [("keywords", 1, False), ("answer", 1, True)]
    assert answer.found and answer.method == "lightrag"
    assert {r.id for r in answer.references} >= {"ALICE", "t1", "t2"}
    assert answer.notes[0] == f"Entities were looked up by: {LOW}."
    assert answer.notes[1] == f"Relationships were looked up by: {HIGH}."


@pytest.mark.parametrize("reply", ["Alice is a person.", '{"high_level": [], "low_level": []}'])
def test_question_replaces_missing_keywords_with_a_note(reply: str):
    answer, snap = ask(answer=listing(reply=reply))
    assert {text for text, _ in searches(snap).values()} == {"What about ALICE ?"}
    assert any("No keywords could be listed" in note for note in answer.notes)


def test_empty_list_falls_back_to_other_level_only_if_needed():
    only_low = listing(high="")
    assert searches(ask("hybrid", answer=only_low)[1]) == {"entity": (LOW, TOP_K)}
    assert searches(ask("global", answer=only_low)[1]) == {"relationship": (LOW, TOP_K)}
    assert searches(ask("local", answer=listing(low=""))[1]) == {"entity": (HIGH, TOP_K)}


def test_chunks_of_frequent_entity_are_not_listed():
    town = tables()
    for row in town["entities"]:
        row["frequency"] = MAX_LISTED_CHUNKS + 1
    answer, snap = ask("hybrid", town)
    lists = [n for n in snap.needs if isinstance(n, Rows) and "text_unit_ids" in n.columns]
    assert lists and not any(n.ids for n in lists)
    edges = [n for n in snap.needs if isinstance(n, Rows) and n.table == "relationships" and n.by != "id"]
    assert [n.limit_per_id for n in edges] == [MAX_EDGES]
    # The chunks near the question that mention them are the same as if all lists were read.
    assert shown(answer, "Sources") == ["t4", "t2", "t3", "t5", "t1"]


def test_conditions_restrict_all_records():
    town = tables()
    town["documents"] = [{"id": f"d{n}", "path": f"{n}.txt", "text_unit_ids": [f"t{n}"]} for n in range(1, 7)]
    town["entity_instances"] = [
        {"entity_id": name, "text_unit_id": row["id"], "title": name, "description": f"As {row['id']} says."}
        for row in town["text_units"]
        for name in row["entity_ids"]
    ]
    town["relationship_instances"] = [
        {
            "relationship_id": name,
            "text_unit_id": row["id"],
            "source": "A",
            "target": "B",
            "description": "So.",
        }
        for row in town["text_units"]
        for name in row["relationship_ids"]
    ]
    answer, _ = ask("mix", town, where=("path=2.txt",))
    assert set(shown(answer, "Entities")) == {"ALICE", "BOB"}
    assert shown(answer, "Relationships") == ["ALICE-BOB"]
    assert shown(answer, "Sources") == ["t2"]


def test_index_without_required_embeddings_is_rejected():
    snap = Snapshot(tables(), near)
    given_ = snap.given()
    without = {name: n for name, n in given_.n_rows.items() if name != "embeddings_relationship"}
    with pytest.raises(UsageError, match="lightrag search needs embeddings of relationships"):
        snap.run(lightrag_search.search(Question("Who?"), replace(given_, n_rows=without)))
    local = snap.given(lightrag_mode="local")
    assert snap.run(lightrag_search.search(Question("Who is ALICE ?"), replace(local, n_rows=without))).found


def test_elements_nearest_to_the_question_come_first():
    answer, _ = ask("hybrid", lightrag_min_similarity=0.01)
    assert shown(answer, "Entities") == ["ALICE", "BOB"], "those that the search does not find are left out"
    assert shown(answer, "Relationships") == ["CAROL-DAVE"]


def test_default_context_is_that_of_other_methods():
    town = tables()
    for row in town["text_units"]:
        row |= {"text": f"{row['text']} {row['id']} went on. " * 400, "n_tokens": 4_000}
    used = ask("mix", town)[0].contexts[0]
    assert 4_000 < used.n_tokens <= 8_000
    published = ask("mix", town, lightrag_context_tokens=30_000)[0].contexts[0]
    assert published.n_tokens > 14_000


def test_budget_is_checked_before_keywords_call():
    with pytest.raises(BudgetSpent, match=r"lower query\.lightrag_context_tokens"):
        ask(budget_tokens=20_000, lightrag_context_tokens=30_000)
    with pytest.raises(BudgetSpent, match=r"lower query\.context_tokens"):
        ask(budget_tokens=8_000)
    with pytest.raises(UsageError, match=r"Set query\.lightrag_context_tokens to"):
        ask(lightrag_context_tokens=127_900)


def test_no_hits_make_no_answer_call():
    snap = Snapshot({}, lambda search: [], listing())
    answer = snap.run(lightrag_search.search(Question("Who?"), snap.given()))
    assert not answer.found
    assert [n.phase for n in snap.needs if isinstance(n, Dialogues)] == ["keywords"]


def crowded(seed: int) -> dict[str, list[dict[str, Any]]]:
    """Create up to forty people and chunks that mention them, with texts of any length."""
    rng = random.Random(seed)
    names = [f"NAME {n}" for n in range(40)]

    def words(most: int) -> str:
        return " ".join(
            rng.choice(["mill", "été", "“so”", "a-b", "1,2", "Ωmega"]) for _ in range(rng.randrange(most))
        )

    chunks = [chunk(n, *rng.sample(names, 3)) | {"text": words(300)} for n in range(60)]
    for row in chunks:
        row["n_tokens"] = COUNT(row["text"])
    held = {name: [row["id"] for row in chunks if name in row["entity_ids"]] for name in names}
    pairs = {tuple(sorted(rng.sample(names, 2))) for _ in range(120)}
    return {
        "entities": [person(name, *held[name]) | {"description": words(80)} for name in names],
        "relationships": [
            edge(a, b, rng.randrange(9), *sorted({*held[a]} & {*held[b]})) | {"description": words(80)}
            for a, b in sorted(pairs)
        ],
        "text_units": chunks,
    }


@given(
    st.integers(0, 1_000),
    st.sampled_from(MODES),
    st.integers(1, 2_000),
    st.integers(1, 2_000),
    st.integers(256, 6_000),
)
def test_budgets_hold_and_records_are_distinct(
    seed: int, mode: str, entity_tokens: int, relationship_tokens: int, tokens: int
):
    town = crowded(seed)
    found = {
        kind: [row["id"] for row in town[table]][::2]
        for kind, table in (
            ("entity", "entities"),
            ("relationship", "relationships"),
            ("text_unit", "text_units"),
        )
    }
    prompts: list[str] = []

    def answer(request: Request) -> Reply:
        prompts.append(request.variables.get("context", "") if hasattr(request, "variables") else "")
        return listing()(request)

    snap = Snapshot(town, lambda search: found[search.kind], answer)
    query = {"lightrag_entity_tokens": entity_tokens, "lightrag_relationship_tokens": relationship_tokens}
    given_ = snap.given(lightrag_mode=mode, lightrag_context_tokens=tokens, **query)
    result = snap.run(lightrag_search.search(Question("Who?"), given_))
    for used in result.contexts:
        assert len(set(used.records)) == len(used.records)
        assert len([r for r in used.records if r.section == "Sources"]) <= 20
        assert used.n_tokens <= tokens
        text = prompts[-1]
        assert COUNT(text) == used.n_tokens
        _, *parts = re.split(r"^-----(\w+)-----\n", text, flags=re.MULTILINE)
        sizes = {
            name: COUNT(f"-----{name}-----\n{body}")
            for name, body in zip(parts[::2], parts[1::2], strict=True)
        }
        assert set(sizes) == {r.section for r in used.records}
        assert sizes.get("Entities", 0) <= entity_tokens
        assert sizes.get("Relationships", 0) <= relationship_tokens
