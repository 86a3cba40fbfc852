"""The way of answering that a question is given by rules."""

from __future__ import annotations

from typing import Any

import pytest
from driving import Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import entity_id, report_id
from graphrag_ray.query.methods import auto_search, methods
from graphrag_ray.query.methods.auto_search import (
    FEW_CHUNKS,
    RARE_SHARE,
    asks_for_passage,
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
def test_a_passage_a_number_or_a_date_is_asked_for(question: str):
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
def test_what_is_asked_of_the_whole_asks_for_no_passage(question: str):
    assert not asks_for_passage(question)


def test_a_rare_name_goes_before_all_and_one_that_is_everywhere_counts_for_nothing():
    hub, rare = ("HUB", 900), ("RARE", 3)
    chosen = route("How many ships has Rare, and has Hub?", [rare, hub], 1000)
    assert chosen == (
        "local",
        "the question mentions RARE, which occurs in 3 chunks of 1,000",
    )
    assert route("How many ships has Hub?", [hub], 1000)[0] == "hybrid"
    assert route("What of Hub?", [hub], 1000)[0] == "global"


@given(st.integers(1, 2000), st.integers(0, 20_000))
def test_rare_is_what_stands_in_few_chunks_or_in_a_small_share_of_all(chunks: int, n: int):
    rare = chunks <= FEW_CHUNKS or chunks <= RARE_SHARE * n
    assert route("What of it?", [("IT", chunks)], n)[0] == ("local" if rare else "global")


def test_reports_are_not_read_under_conditions():
    assert route("What are the main themes?", [], 9)[0] == "global"
    assert route("What are the main themes?", [], 9, restricted=True)[0] == "hybrid"


def test_no_search_is_chosen_that_the_index_cannot_do():
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
        ("How many crowns does it cost?", (), "hybrid"),
        ("What of the harbour?", (), "global"),
        ("What are the main themes?", (), "global"),
        ("What are the main themes?", ("path=1.txt",), "hybrid"),
    ],
)
def test_the_answer_is_that_of_the_chosen_method_and_says_why(
    question: str, where: tuple[str, ...], chosen: str
):
    held = tables()
    held["documents"].append({"id": "d2", "path": "2.txt", "text_unit_ids": []})
    snap = Snapshot(
        held, lambda s: [row["id"] for row in held.get("text_units", ()) if s.kind == "text_unit"]
    )
    answer = snap.run(auto_search.search(Question(question, where=where), snap.given()))
    alone = snap.run(methods.METHODS[chosen].search(Question(question, where=where), snap.given()))
    assert answer.method == chosen and (answer.text, answer.contexts) == (alone.text, alone.contexts)
    assert answer.notes[0].startswith(f"Answered by {chosen} search: ") and answer.notes[1:] == alone.notes


def test_a_level_is_refused_and_conditions_are_not():
    methods.check_method("auto", None, ["path=a"])
    with pytest.raises(UsageError, match="auto search has no levels"):
        methods.check_method("auto", "C1", ())


def test_every_model_that_a_chosen_method_may_ask_is_known_beforehand():
    for chosen in ("local", "hybrid", "global"):
        assert {*methods.stages(chosen, True)} <= {*methods.stages("auto", True)}
