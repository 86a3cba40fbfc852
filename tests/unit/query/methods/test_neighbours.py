"""Neighbours of retrieved chunks."""

from __future__ import annotations

from typing import Any

import pytest
from driving import Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.ids import entity_id
from graphrag_ray.query.methods import hybrid_search, local_search, vector_search
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Question, Rows

WAYS = [vector_search, hybrid_search, local_search]


def corpus(n: int = 6, documents: int = 1, words: int = 8) -> dict[str, list[dict[str, Any]]]:
    """Create chunks that overlap by one sentence."""
    chunks, of_document = [], {}
    for d in range(documents):
        ids = [f"d{d}t{i}" for i in range(n)]
        told = [f"ALICE went to place {d}.{i}. " + f"Part {d}.{i} went on. " * words for i in range(n + 1)]
        shared = [f"Of {d}.{i} more later. " for i in range(n + 1)]
        at = 0
        for i, id_ in enumerate(ids):
            text = shared[i] + told[i] + shared[i + 1]
            own = {"id": id_, "human_readable_id": 10 * d + i, "text": text, "document_id": f"d{d}"}
            chunks.append({**own, "n_tokens": 9, "start": at, "end": at + len(text), "position": i})
            at += len(shared[i] + told[i])
        of_document[f"d{d}"] = ids
    alice = {"id": entity_id("ALICE"), "title": "ALICE", "description": "A"}
    return {
        "text_units": chunks,
        "documents": [
            {"id": id_, "path": f"{id_}.txt", "title": f"{id_}.txt", "row": "", "text_unit_ids": ids}
            for id_, ids in of_document.items()
        ],
        "entities": [{**alice, "text_unit_ids": [f"d0t{min(2, n - 1)}"]}],
        "relationships": [],
        "covariates": [],
        "communities": [],
        "community_reports": [],
    }


def ask(way: Any, tables: dict[str, Any], *found: str, **query: Any) -> tuple[Answer, Snapshot, list[str]]:
    """Return the answer, its requests, and the texts of sources in the prompt."""
    contexts: list[str] = []

    def answer(request: Any) -> Any:
        contexts.append(request.variables["context"])
        return Snapshot({}).answer(request)

    snap = Snapshot(tables, lambda search: found if search.kind == "text_unit" else [], answer)
    result = snap.run(way.search(Question("What did ALICE do?"), snap.given(**query)))
    return result, snap, [row["text"] for row in parse_sections(contexts[0])["Sources"]]


@pytest.mark.parametrize("way", WAYS)
def test_neighbours_are_added_in_reading_order(way: Any):
    answer, _, texts = ask(way, corpus(), "d0t2")
    records = [r.id for r in answer.contexts[0].records if r.section == "Sources"]
    assert records == ["d0t1", "d0t2", "d0t3"]
    assert texts[0].startswith("Of 0.1 more later. ALICE went to place 0.1.")
    assert texts[2].startswith("ALICE went to place 0.3.")


def test_overlap_of_neighbours_is_removed():
    _, _, texts = ask(vector_search, corpus(), "d0t2")
    whole = " ".join(texts)
    assert [whole.count(f"Of 0.{i} more later.") for i in range(1, 5)] == [1, 1, 1, 1]


def test_neighbours_can_be_cited():
    answer, _, _ = ask(vector_search, corpus(), "d0t2")
    assert {r.id for r in answer.references} == {"d0t1", "d0t2", "d0t3"}


@pytest.mark.parametrize("way", WAYS)
def test_number_of_chunks_with_neighbours_is_limited(way: Any):
    none, _, _ = ask(way, corpus(), "d0t2", adjacent_chunks=0)
    assert [r.id for r in none.contexts[0].records if r.section == "Sources"] == ["d0t2"]
    tables = corpus(documents=4)
    first, snap, _ = ask(vector_search, tables, *[f"d{d}t2" for d in range(4)], adjacent_chunks=2)
    assert {r.id for r in first.contexts[0].records} == {
        *("d0t1", "d0t2", "d0t3"), *("d1t1", "d1t2", "d1t3"), "d2t2", "d3t2"
    }  # fmt: skip
    assert all(len(n.ids or ()) <= 4 for n in snap.needs if isinstance(n, Rows)), "no more is read"


def test_neighbours_are_not_repeated():
    answer, _, _ = ask(vector_search, corpus(), "d0t3", "d0t2")
    assert [r.id for r in answer.contexts[0].records] == ["d0t3", "d0t4", "d0t1", "d0t2"]


def test_following_chunk_is_truncated_to_fit():
    tables = corpus(words=80)
    answer, _, texts = ask(vector_search, tables, "d0t2", context_tokens=1000)
    assert [r.id for r in answer.contexts[0].records] == ["d0t2", "d0t3"] and texts[1].endswith("…")
    assert answer.contexts[0].cut == 0 and not answer.notes, "that is no record that was found"


@pytest.mark.parametrize("way", WAYS)
def test_single_chunk_has_no_neighbours(way: Any):
    found = [f"d{d}t0" for d in range(4)]
    with_them, without = (ask(way, corpus(1, 4), *found, adjacent_chunks=n)[2] for n in (3, 0))
    assert with_them == without


@given(st.integers(300, 3000), st.permutations([f"d{d}t{i}" for d in range(3) for i in range(4)]))
def test_neighbours_displace_nothing_and_stay_within_budget(budget: int, order: list[str]):
    tables = corpus(4, 3, words=30)
    found = order[:5]
    with_them, without = (
        ask(vector_search, tables, *found, adjacent_chunks=n, context_tokens=budget)[0].contexts[0]
        for n in (3, 0)
    )
    assert with_them.n_tokens <= budget and set(without.records) <= set(with_them.records)
    kept = [r for r in with_them.records if r in without.records]
    assert kept == list(without.records)
