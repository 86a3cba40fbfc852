"""Local search: entities, their neighbourhood, order and shares."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from driving import COUNT, Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.errors import LevelNotFound, UsageError
from graphrag_ray.base.ids import entity_id, report_id
from graphrag_ray.query.methods import nearest
from graphrag_ray.query.methods.local_search import (
    MAX_EDGES,
    MAX_LISTED_CHUNKS,
    Membership,
    by_turns,
    chunks_in_order,
    claims_in_order,
    communities_in_order,
    context_for,
    finest_level,
    relationships_in_order,
    search,
)
from graphrag_ray.query.methods.method import Question, Rows, Search

NAMES = ["ALICE", "BOB", "CAROL", "DAVE", "ERIN"]


def edge(
    a: str, b: str, degree: int = 1, weight: float = 1.0, chunks: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        "id": f"{a}-{b}",
        "source": a,
        "target": b,
        "source_id": entity_id(a),
        "target_id": entity_id(b),
        "combined_degree": degree,
        "weight": weight,
        "text_unit_ids": list(chunks),
        "description": f"{a} knows {b}",
    }


def person(name: str, *chunks: str) -> dict[str, Any]:
    return {
        "id": entity_id(name),
        "title": name,
        "description": f"{name} is told of",
        "text_unit_ids": list(chunks),
        "frequency": len(chunks),
    }


def claim(name: str, id_: str, *chunks: str) -> dict[str, Any]:
    return {
        "id": id_,
        "subject_id": name,
        "object_id": "NONE",
        "type": "FACT",
        "status": "TRUE",
        "description": f"{name} said so {id_}",
        "subject_entity_id": entity_id(name),
        "text_unit_ids": list(chunks),
    }


def community(id_: str, level: int, *names: str, children: tuple[int, ...] = ()) -> dict[str, Any]:
    members = [entity_id(n) for n in names]
    return {
        "id": id_,
        "community": int(id_[1:]),
        "level": level,
        "parent": -1,
        "hierarchy": "leiden",
        "entity_ids": members,
    }


def report(community_id: str, rank: float) -> dict[str, Any]:
    return {
        "id": report_id(community_id),
        "title": f"On {community_id}",
        "full_content": f"# T\n\nOf {community_id}.",
        "rank": rank,
        "hierarchy": "leiden",
        "community": int(community_id[1:]),
        "n_tokens": 9,
    }


def town() -> dict[str, list[dict[str, Any]]]:
    return {
        "entities": [
            person("ALICE", "t1", "t2", "t3"),
            person("BOB", "t2"),
            person("CAROL", "t3"),
            person("DAVE", "t4"),
            person("ERIN", "t5"),
        ],
        "relationships": [
            edge("ALICE", "BOB", 5, chunks=("t2",)),
            edge("ALICE", "CAROL", 4, chunks=("t3",)),
            edge("BOB", "DAVE", 9, chunks=("t2",)),
            edge("DAVE", "ERIN", 9),
        ],
        "covariates": [claim("ALICE", "c1", "t1"), claim("ERIN", "c2", "t5")],
        "communities": [
            community("k0", 0, "ALICE", "BOB", "CAROL", "DAVE", "ERIN"),
            community("k1", 1, "ALICE", "BOB"),
            community("k2", 1, "CAROL", "DAVE", "ERIN"),
            community("k3", 2, "ALICE"),
            community("k4", 3, "ERIN"),
        ],
        "community_reports": [report("k0", 9), report("k1", 3), report("k2", 8), report("k4", 1)],
        "text_units": [
            {"id": f"t{n}", "text": f"Text {n} of the town.", "n_tokens": 7, "entity_ids": []}
            for n in range(1, 6)
        ],
        "documents": [{"id": f"d{n}", "path": f"{n}.txt", "text_unit_ids": [f"t{n}"]} for n in range(1, 6)],
    }


def snapshot(tables: dict[str, list[dict[str, Any]]] | None = None, near: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot(town() if tables is None else tables, lambda search: [entity_id(n) for n in near])


def shown(
    snap: Snapshot, question: str, chunks: frozenset[str] | None = None, level: Any = None, **query: Any
) -> dict[str, list[dict[str, str]]]:
    query = {"local_min_similarity": 0} | query
    finest = snap.run(finest_level(level, snap.given()))
    context = snap.run(context_for(question, snap.given(**query), chunks=chunks, finest=finest))
    return parse_sections(context.text)


def test_mentioned_entities_come_before_nearest():
    sections = shown(snapshot(near=("DAVE", "ALICE")), "What did Erin write to BOB?")
    assert [r["entity"] for r in sections["Entities"]] == ["ERIN", "BOB", "DAVE", "ALICE"]


def test_number_of_entities_is_limited():
    snap = snapshot(near=("ALICE", "BOB", "CAROL"))
    sections = shown(snap, "Who is who?", local_entities=2)
    assert [r["entity"] for r in sections["Entities"]] == ["ALICE", "BOB"]
    (asked,) = [n for n in snap.needs if isinstance(n, Search) and n.kind == "entity"]
    assert (asked.kind, asked.by, asked.text, asked.k) == ("entity", "vector", "Who is who?", 2)


def test_context_includes_neighbourhood_of_entities():
    sections = shown(snapshot(near=("ALICE",)), "Who is she?")
    assert [(r["source"], r["target"]) for r in sections["Relationships"]] == [
        ("ALICE", "BOB"),
        ("ALICE", "CAROL"),
    ]
    assert [r["description"] for r in sections["Claims"]] == ["ALICE said so c1"]
    assert [r["text"] for r in sections["Sources"]] == [
        "Text 2 of the town.",
        "Text 3 of the town.",
        "Text 1 of the town.",
    ]
    assert [r["title"] for r in sections["Reports"]] == ["On k1"]


def test_report_of_finest_community_is_used():
    assert [r["title"] for r in shown(snapshot(near=("ERIN",)), "?", level="C3")["Reports"]] == ["On k4"]
    assert [r["title"] for r in shown(snapshot(near=("ERIN",)), "?")["Reports"]] == ["On k2"]
    assert [r["title"] for r in shown(snapshot(near=("ERIN",)), "?", level=0)["Reports"]] == ["On k0"]


def test_unknown_level_lists_existing_levels():
    with pytest.raises(LevelNotFound, match=r"no level 'C7': this hierarchy has C0, C1, C2, C3"):
        shown(snapshot(), "?", level="C7")


def test_zero_share_leaves_out_its_records():
    sections = shown(snapshot(near=("ALICE",)), "?", local_report_share=0, local_text_share=0)
    assert sections.keys() == {"Entities", "Relationships", "Claims"}


def test_inner_relationships_come_before_outer_ones():
    place = {entity_id("ALICE"): 0, entity_id("BOB"): 1}
    rows = [
        edge("ALICE", "ERIN", 99),
        edge("ALICE", "CAROL", 2),
        edge("BOB", "CAROL", 3),
        edge("ALICE", "BOB", 1),
        edge("BOB", "DAVE", 50, 7),
        edge("ALICE", "DAVIS", 50, 8),
        edge("DAVE", "ERIN", 100),
    ]
    order = [r["id"] for r in relationships_in_order(rows, place, 10)]
    assert order == ["ALICE-BOB", "BOB-CAROL", "ALICE-CAROL", "ALICE-ERIN", "ALICE-DAVIS", "BOB-DAVE"]
    assert [r["id"] for r in relationships_in_order(rows, place, 1)] == order[:3]
    assert [r["id"] for r in relationships_in_order(rows, place, 0)] == order[:1]


def test_relationships_of_a_hub_are_ranked_by_similarity():
    place = {entity_id("ALICE"): 0, entity_id("BOB"): 1}
    rows = [edge("ALICE", f"P{n}", 100 - n) for n in range(50)] + [edge("ALICE", "BOB", 1)]
    similar = {"ALICE-P40": 0.9, "ALICE-P7": 0.5, "ALICE-BOB": 0.1}
    order = [r["id"] for r in relationships_in_order(rows, place, 3, similar)]
    assert order == ["ALICE-P40", "ALICE-P7", "ALICE-BOB"]


@given(
    st.lists(st.tuples(st.sampled_from("ABCDE"), st.sampled_from("ABCDE"), st.integers(0, 9)), max_size=40),
    st.lists(st.floats(-1, 1), min_size=40, max_size=40),
    st.integers(0, 5),
)
def test_no_entity_has_more_relationships_than_allowed(
    pairs: list[tuple[str, str, int]], scores: list[float], per_entity: int
):
    place = {entity_id("A"): 0, entity_id("B"): 1}
    rows = list({f"{a}-{b}": edge(a, b, n) for a, b, n in pairs}.values())
    similar = {row["id"]: score for row, score in zip(rows, scores, strict=False)}
    chosen = relationships_in_order(rows, place, per_entity, similar)
    for end in place if similar else ():
        assert sum(end in (row["source_id"], row["target_id"]) for row in chosen) <= per_entity
    ids = [row["id"] for row in chosen]
    fewer = [row["id"] for row in relationships_in_order(rows, place, max(0, per_entity - 1), similar)]
    assert len(set(ids)) == len(ids) and (not similar or len(fewer) <= len(ids))


def test_elements_far_from_the_question_are_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nearest, "FEWEST", 1)  # the town is small
    tables = town()
    near = {
        "entity": [entity_id("ALICE"), entity_id("DAVE")],
        "relationship": ["ALICE-CAROL", "ALICE-BOB", "BOB-DAVE"],
        "community_report": [report_id("k1"), report_id("k2")],
    }
    tables["covariates"] = [
        {**claim("ALICE", "c1", "t1"), "description": "ALICE sold the mill"},
        {**claim("ALICE", "c2", "t1"), "description": "Weather in autumn"},
    ]
    snap = Snapshot(tables, lambda search: near.get(search.kind, []))
    question = "What did Bob say of the mill?"
    sections = shown(snap, question, local_min_similarity=0.6)
    assert [r["entity"] for r in sections["Entities"]] == ["BOB", "ALICE"], "named ones stay"
    assert [r["target"] for r in sections["Relationships"]] == ["CAROL"]
    assert [r["description"] for r in sections["Claims"]] == ["ALICE sold the mill"]
    assert [r["title"] for r in sections["Reports"]] == ["On k1"]
    everything = shown(snap, question)
    assert all(len(everything[name]) > len(rows) for name, rows in sections.items() if name != "Sources")


def test_claims_follow_entities_and_are_limited():
    place = {entity_id("BOB"): 0, entity_id("ALICE"): 1}
    rows = [
        claim("ALICE", "a1"),
        claim("BOB", "b1", "t1"),
        claim("BOB", "b2", "t1", "t2"),
        claim("BOB", "b3"),
    ]
    assert [c["id"] for c in claims_in_order(rows, place, 2)] == ["b2", "b1", "a1"]


def test_distant_chunks_are_ranked_by_relationships():
    near = [person("ALICE", "t1", "t2", "t3"), person("BOB", "t9", "t2", "t1")]
    rows = [edge("ALICE", "BOB", chunks=("t3", "t2")), edge("ALICE", "CAROL", chunks=("t3",))]
    assert chunks_in_order(near[:1], rows, (), {}, None, 9) == ["t3", "t2", "t1"]
    assert chunks_in_order(near, rows, (), {}, None, 9) == ["t3", "t2", "t1", "t9"]
    assert chunks_in_order(near, rows, (), {}, {"t1", "t9"}, 9) == ["t1", "t9"]
    assert chunks_in_order(near[:1], rows, (), {"t1": 0}, None, 9) == ["t1", "t3", "t2"]


def test_chunks_with_several_mentions_come_first():
    rare, hub, other = person("RARE", "r1", "r2"), person("HUB", "h1", "h2", "h3", "r2"), person("P", "p1")
    named = [rare["id"], hub["id"]]
    order = chunks_in_order([rare, hub, other], [], named, {"h2": 0, "p1": 1}, None, 9)
    assert order == ["r2", "r1", "h2", "h1", "h3", "p1"]
    assert chunks_in_order([rare, hub, other], [], (), {"h2": 0, "p1": 1}, None, 4) == [
        "r1",
        "h2",
        "p1",
        "r2",
    ]


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[str], dict[str, int]]:
    """Create entities in a corpus of twelve chunks, ids of some entities, and positions of some chunks."""
    chunks = [f"t{i}" for i in range(12)]
    lists = draw(st.lists(st.lists(st.sampled_from(chunks), unique=True), min_size=1, max_size=5))
    entities = [person(f"P{i}", *own) for i, own in enumerate(lists)]
    named = draw(st.lists(st.sampled_from([e["id"] for e in entities]), unique=True))
    near = draw(st.lists(st.sampled_from(chunks), unique=True))
    return entities, named, {c: n for n, c in enumerate(near)}


@given(corpora(), st.integers(1, 15))
def test_limited_chunks_are_a_prefix_without_duplicates(corpus, most: int):
    entities, named, near = corpus
    all_ = chunks_in_order(entities, [], named, near, None, 99)
    assert sorted(all_) == sorted({c for e in entities for c in e["text_unit_ids"]})
    assert chunks_in_order(entities, [], named, near, None, most) == all_[:most]


@given(corpora())
def test_chunk_order_respects_mentions_and_similarity(corpus):
    entities, named, near = corpus
    order = chunks_in_order(entities, [], named, near, None, 99)
    of = {c: {e["id"] for e in entities if c in e["text_unit_ids"]} for c in order}
    held = [len(of[c] & set(named)) for c in order]
    assert held == sorted(held, reverse=True)
    for before, after in combinations(order, 2):
        if of[before] == of[after]:
            assert near.get(before, 99) <= near.get(after, 99)


@given(st.lists(st.lists(st.integers(0, 30).map(str), unique=True), max_size=6))
def test_round_robin_is_fair(lists: list[list[str]]):
    order = list(by_turns(lists))
    assert sorted(order) == sorted({id_ for one in lists for id_ in one})
    for n in range(max(map(len, lists), default=0)):
        soon = set(order[: len(lists) * (n + 1)])
        assert all(one[n] in soon for one in lists if n < len(one))


def test_communities_are_ordered_by_overlap_then_rank():
    def of(id_: str, level: int, *members: str) -> Membership:
        return Membership(id_, level, frozenset(members))

    found = [of("root", 0, "a", "b", "c", "d"), of("x", 1, "a", "b"), of("y", 1, "c"), of("z", 1, "d")]
    assert communities_in_order(found, {"root": 9, "x": 1, "y": 2, "z": 5}) == ["x", "z", "y"]
    assert communities_in_order(found, {"root": 9, "y": 2, "z": 5}) == ["root", "z", "y"]
    assert communities_in_order(found, {}) == []


def test_conditions_restrict_context_to_chunks():
    tables = town()
    for unit in tables["text_units"]:
        unit["entity_ids"] = [e["id"] for e in tables["entities"] if unit["id"] in e["text_unit_ids"]]
    tables["entity_instances"] = [
        {"entity_id": entity_id("ALICE"), "title": "ALICE", "description": f"ALICE in {t}", "text_unit_id": t}
        for t in ("t1", "t2", "t2", "t3")
    ]
    tables["relationship_instances"] = [
        {
            "relationship_id": "ALICE-BOB",
            "source": "BOB",
            "target": "ALICE",
            "description": "they met",
            "text_unit_id": "t2",
        }
    ]
    snap = snapshot(tables, near=("ERIN", "ALICE"))
    sections = shown(snap, "What did ERIN do?", chunks=frozenset({"t2", "t1"}))
    assert [(r["entity"], r["description"]) for r in sections["Entities"]] == [
        ("ALICE", "ALICE in t1 ALICE in t2")
    ]
    assert [r["description"] for r in sections["Relationships"]] == ["they met"]
    assert [r["text"] for r in sections["Sources"]] == ["Text 2 of the town.", "Text 1 of the town."]
    assert [r["description"] for r in sections["Claims"]] == ["ALICE said so c1"]
    assert "Reports" not in sections


def test_answer_cites_records_by_short_number():
    snap = snapshot(near=("ALICE",))
    for name, rows in snap.tables.items():
        for number, row in enumerate(rows):
            row["human_readable_id"] = 100 + number if name == "entities" else number
    answer = snap.run(search(Question("What did ALICE do?", where=("path!=5.txt",)), snap.given()))
    assert not answer.found  # no chunk of this town is linked to names
    assert any("Community reports were left out" in note for note in answer.notes)
    answer = snap.run(search(Question("What did ALICE do?"), snap.given()))
    assert Counter(r.section for r in answer.references) == {"Entities": 1, "Relationships": 2, "Claims": 1}
    assert "[Data: Entities (100)]" in answer.text and answer.notes == ()
    (used,) = answer.contexts
    assert used.phase == "answer" and used.n_tokens > 0 and answer.references[0] in used.records


def test_reads_are_limited_to_one_context():
    tables = town()
    many = [f"x{i}" for i in range(500)]
    tables["entities"] = [person("ALICE", *many)]
    tables["text_units"] = [{"id": i, "text": f"word {i} " * 25, "n_tokens": 100} for i in many]
    snap = snapshot(tables, near=("ALICE",))
    context = snap.run(context_for("?", snap.given(context_tokens=1000, local_chunks=50)))
    read = [n.ids for n in snap.needs if isinstance(n, Rows) and "text" in n.columns]
    assert [len(ids) for ids in read] == [16] and context.left_out >= 489
    assert context.n_tokens > 900, "what the others leave is for chunks"


def hub(n: int) -> Snapshot:
    """Put ALICE into n chunks and QUANTUM COMPUTING into some of the last, which searches find."""
    ids, topic = [f"x{i}" for i in range(n)], [f"x{n - 1}", f"x{n - 3}"]
    tables = town() | {
        "entities": [person("ALICE", *ids), person("QUANTUM COMPUTING", *topic)],
        "text_units": [{"id": i, "text": f"Text {i}. " * 20, "n_tokens": 100} for i in ids],
    }
    return Snapshot(tables, lambda search: topic[::-1] if search.kind == "text_unit" else [])


def test_rare_name_and_its_chunks_come_first():
    sections = shown(hub(300), "What did Alice say about quantum computing?", context_tokens=2000)
    assert [r["entity"] for r in sections["Entities"]] == ["QUANTUM COMPUTING", "ALICE"]
    assert [r["text"][:9] for r in sections["Sources"]][:3] == ["Text x297", "Text x299", "Text x0. "]


def test_search_is_restricted_to_chunks_of_entities():
    snap = hub(300)
    sections = shown(snap, "What did Alice say about quantum computing?", context_tokens=320)
    assert sections["Sources"][0]["text"].startswith("Text x")
    searches = [n for n in snap.needs if isinstance(n, Search) and n.kind == "text_unit"]
    assert {n.by for n in searches} == {"vector", "keyword"}
    assert {(len(n.only_ids or ()), n.k) for n in searches} == {(300, 10)}


def test_chunks_of_frequent_entity_are_not_listed():
    snap = hub(MAX_LISTED_CHUNKS + 1)
    for unit in snap.tables["text_units"]:
        unit["entity_ids"] = [e["id"] for e in snap.tables["entities"] if unit["id"] in e["text_unit_ids"]]
    sections = shown(snap, "What did Alice say about quantum computing?", context_tokens=2000)
    assert [r["text"][:11] for r in sections["Sources"]] == [
        f"Text x{MAX_LISTED_CHUNKS - 2}.",
        f"Text x{MAX_LISTED_CHUNKS}.",
    ]
    searches = [n for n in snap.needs if isinstance(n, Search) and n.kind == "text_unit"]
    assert {n.only_ids for n in searches} == {None}
    listed = [
        n.ids
        for n in snap.needs
        if isinstance(n, Rows) and n.table == "entities" and "text_unit_ids" in n.columns
    ]
    assert listed == [[entity_id("QUANTUM COMPUTING")]]


def test_reads_of_relationships_and_claims_are_limited():
    tables = town()
    tables["relationships"] = [edge("ALICE", f"P{n}", n) for n in range(MAX_EDGES + 50)]
    tables["covariates"] = [claim("ALICE", f"c{n}", *["t1"] * n) for n in range(50)]
    snap = snapshot(tables, near=("ALICE",))
    sections = shown(snap, "?", local_relationships=3, local_claims=2)
    assert [r["target"] for r in sections["Relationships"]] == [f"P{MAX_EDGES + n}" for n in (49, 48, 47)]
    assert [r["description"] for r in sections["Claims"]] == ["ALICE said so c49", "ALICE said so c48"]
    asked = {n.table: n.limit_per_id for n in snap.needs if isinstance(n, Rows) and n.by != "id"}
    assert asked == {"relationships": MAX_EDGES, "covariates": 2, "communities": None}


def test_missing_search_index_falls_back_to_other():
    for lacks, left in (("search_text_unit_keyword", {"vector"}), ("embeddings_text_unit", {"keyword"})):
        snap = hub(20)
        asked = snap.given()
        object.__setattr__(asked, "n_rows", {k: v for k, v in asked.n_rows.items() if k != lacks})
        snap.run(context_for("What did Alice say about quantum computing?", asked))
        searches = [n for n in snap.needs if isinstance(n, Search) and n.kind == "text_unit"]
        assert {n.by for n in searches} == left


def test_index_without_entities_makes_no_call():
    snap = snapshot({})
    answer = snap.run(search(Question("What?"), snap.given()))
    assert not answer.found and answer.contexts == () and answer.references == ()


def test_missing_embeddings_are_reported_with_advice():
    snap = snapshot()
    given_ = snap.given()
    without = {k: v for k, v in given_.n_rows.items() if k != "embeddings_entity"}
    object.__setattr__(given_, "n_rows", without)
    with pytest.raises(UsageError, match=r"needs embeddings of entities.*embeddings\.enabled: true"):
        snap.run(search(Question("What?"), given_))


def test_tables_are_never_read_completely():
    snap = snapshot(near=("ALICE", "DAVE"))
    shown(snap, "Who is BOB?")
    assert all(need.ids is not None for need in snap.needs if isinstance(need, Rows))


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Create random graphs of up to 30 people with texts of very different lengths."""
    seed = draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    n = rng.randint(1, 30)
    names = [f"P{i}" for i in range(n)]
    word = rng.choice(["word ", "für ", "数据", '", ', "🙂", "A-1 "])
    text = lambda most: word * int(most ** rng.random())  # noqa: E731
    units = [
        {"id": f"t{i}", "text": text(3000), "n_tokens": rng.randint(1, 3000)}
        for i in range(rng.randint(0, 20))
    ]
    entities = [
        {**person(name, *(u["id"] for u in units if rng.random() < 0.3)), "description": text(2000)}
        for name in names
    ]
    edges = [
        {
            **edge(a, b, rng.randint(1, 9), chunks=tuple(u["id"] for u in units if rng.random() < 0.1)),
            "description": text(900),
        }
        for a in names
        for b in names
        if a < b and rng.random() < 0.3
    ]
    claims = [{**claim(name, f"c{name}"), "description": text(400)} for name in names if rng.random() < 0.5]
    groups = [[n for n in names if rng.random() < 0.4] for _ in range(5)]
    communities = [community(f"k{i}", rng.randint(0, 3), *g) for i, g in enumerate(groups)]
    reports = [{**report(f"k{i}", rng.random()), "full_content": text(4000)} for i in range(4)]
    tables = {
        "entities": entities,
        "relationships": edges,
        "covariates": claims,
        "communities": communities,
        "community_reports": reports,
        "text_units": units,
    }
    return Snapshot(tables, lambda search: [entity_id(n) for n in names])


@given(worlds(), st.integers(256, 6000), st.floats(0, 1), st.floats(0, 1), st.integers(1, 20))
def test_local_contexts_stay_within_budget(snap, budget, text_share, rest, entities):
    asked = snap.given(
        context_tokens=budget,
        local_text_share=text_share,
        local_report_share=rest * (1 - text_share),
        local_entities=entities,
    )
    context = snap.run(context_for("Who are P1 and P2?", asked))
    assert context.n_tokens == COUNT(context.text) <= budget
    assert context.text or not context.numbering
