"""Automatic choice of the search method."""

from __future__ import annotations

from typing import Any

import pytest
from driving import Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import entity_id, report_id
from graphrag_ray.base.index_settings import Query
from graphrag_ray.query.methods import auto_search, methods
from graphrag_ray.query.methods.auto_search import (
    FEW_CHUNKS,
    RARE_SHARE,
    asks_for_passage,
    next_best,
    route,
)
from graphrag_ray.query.methods.method import Question


@pytest.mark.parametrize(
    "question",
    [
        "How many ships did they lose?",
        "When did the court order it?",
        "In which year was the mill built?",
        "Quote what the mayor said.",
        "Which passages speak of the marsh?",
        "Where does it say “the whole of the three million crowns”?",
        'Who said "that is not what we were told"?',
        "Azure in TranscriptFY24Q1",
        "How did it change from March to September?",
        "What was decided in May?",
        "What about the dues in Q3?",
    ],
)
def test_wording_asks_for_passage(question: str):
    assert asks_for_passage(question)


@pytest.mark.parametrize(
    "question",
    [
        "What are the main themes?",
        "What are the 5 main themes of the 20th century?",
        "What happens to towns when breweries close?",
        "How do the reports see “growth”?",
        "2023年的主要主题是什么？",
        "报告2023年的主题",
        "Welche Themen gibt es?",
        "What changed in 2023?",
        "May towns march on when breweries close?",
    ],
)
def test_global_question_does_not_ask_for_passage(question: str):
    assert not asks_for_passage(question)


def test_rare_name_takes_precedence_and_frequent_name_is_ignored():
    hub, rare = ("HUB", 900), ("RARE", 3)
    chosen = route("How many ships has Rare, and has Hub?", [rare, hub], 1000)
    assert chosen == (
        "local",
        "the question mentions RARE, which occurs in 3 chunks of 1,000",
    )
    assert route("How many ships has Hub?", [hub], 1000)[0] == "hybrid"
    assert route("What of Hub?", [hub], 1000)[0] == "hybrid"


@given(st.integers(1, 2000), st.integers(0, 20_000))
def test_rarity_depends_on_number_and_share_of_chunks(chunks: int, n: int):
    rare = chunks <= FEW_CHUNKS or chunks <= RARE_SHARE * n
    assert route("What of it?", [("IT", chunks)], n)[0] == ("local" if rare else "hybrid")


@pytest.mark.parametrize(
    "question",
    [
        "What are the main themes?",
        "Welche Themen gibt es?",
        "2023年的主要主题是什么？",
        "Quels sont les thèmes ?",
    ],
)
def test_only_questions_about_the_whole_corpus_go_to_global(question: str):
    assert route(question, [], 100)[0] == "global"
    assert route("Who is head of HR?", [], 100)[0] == "hybrid"
    assert route("What is the biggest risk of the fleet plan?", [], 100)[0] == "hybrid"


def test_method_that_finds_nothing_falls_through_to_the_next_best():
    snap = Snapshot(tables())  # Searches find nothing.
    answer = snap.run(auto_search.search(Question("How many crowns does it cost?"), snap.given()))
    assert not answer.found and answer.method == "local"
    assert answer.notes[0].startswith("hybrid search found nothing, so local search was tried.")
    assert (
        next_best("global", local=True, hybrid=True)
        == next_best("local", local=True, hybrid=True)
        == "hybrid"
    )
    assert next_best("hybrid", local=False, hybrid=True) == next_best("local", local=True, hybrid=False) == ""


def test_conditions_rule_out_reports():
    assert route("What are the main themes?", [], 9)[0] == "global"
    assert route("What are the main themes?", [], 9, restricted=True)[0] == "hybrid"


def test_unsupported_methods_are_not_chosen():
    rare = [("RARE", 1)]
    assert route("How much is it?", rare, 9, local=False)[0] == "hybrid"
    assert route("How much is it?", rare, 9, local=False, hybrid=False)[0] == "global"


def tables() -> dict[str, list[dict[str, Any]]]:
    community = {"id": "k", "community": 0, "level": 0, "parent": -1, "hierarchy": "leiden"}
    own = {
        "community": 0,
        "n_tokens": 9,
        "hierarchy": "leiden",
        "title": "On it",
        "full_content": "# T\n\nOf it.",
    }
    entity = {"id": entity_id("MARA VENN"), "title": "MARA VENN", "description": "a mayor"}
    word = {"id": entity_id("HARBOUR"), "title": "HARBOUR", "description": "a harbour"}
    return {
        "entities": [e | {"text_unit_ids": ["t1"]} for e in (entity, word)],
        "communities": [community | {"entity_ids": [entity["id"]]}],
        "community_reports": [own | {"id": report_id("k"), "rank": 1.0}],
        "text_units": [{"id": "t1", "text": "Of Mara Venn.", "n_tokens": 7}],
        "documents": [{"id": "d1", "path": "1.txt", "text_unit_ids": ["t1"]}],
    }


@pytest.mark.parametrize(
    ("question", "where", "chosen"),
    [
        ("What did Mara Venn promise?", (), "local"),
        ("what did mara venn promise?", (), "local"),
        ("What are the main themes?", (), "global"),
        ("What are the main themes?", ("path=1.txt",), "hybrid"),
    ],
)
def test_answer_names_chosen_method_and_reason(question: str, where: tuple[str, ...], chosen: str):
    held = tables()
    held["documents"].append({"id": "d2", "path": "2.txt", "text_unit_ids": []})
    snap = Snapshot(
        held, lambda s: [row["id"] for row in held.get("text_units", ()) if s.kind == "text_unit"]
    )
    answer = snap.run(auto_search.search(Question(question, where=where), snap.given()))
    alone = snap.run(methods.METHODS[chosen].search(Question(question, where=where), snap.given()))
    assert answer.method == chosen and (answer.text, answer.contexts) == (alone.text, alone.contexts)
    assert answer.notes[0].startswith(f"Answered by {chosen} search: ") and answer.notes[1:] == alone.notes


def test_level_is_rejected_and_conditions_are_accepted():
    methods.check_method("auto", None, ["path=a"])
    with pytest.raises(UsageError, match="auto search has no levels"):
        methods.check_method("auto", "C1", ())


def test_stages_cover_all_methods_that_may_be_chosen():
    query = Query(dynamic=True, rerank_model="reranker")
    for chosen in ("local", "hybrid", "global"):
        assert {*methods.stages(chosen, query)} <= {*methods.stages("auto", query)}
