"""TREX and RAPTOR: nodes read, their order and budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from driving import Snapshot

from graphrag_ray.base.errors import BudgetSpent, UsageError
from graphrag_ray.base.ids import report_id
from graphrag_ray.query.methods import raptor_search, trex_search
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.method import Question, Search, SearchEnv

TREE = {"top": ("left", "right"), "left": ("c1", "c2"), "right": ("c3", "c4")}
NUMBER = {"top": 1, "left": 2, "right": 3}


def tables(without: tuple[str, ...] = ()) -> dict[str, list[dict[str, Any]]]:
    """Two summaries of two chunks each, and one above both.

    `without` has summaries without a row, because they failed.
    """
    leaves = {"top": ["c1", "c2", "c3", "c4"], "left": ["c1", "c2"], "right": ["c3", "c4"]}
    return {
        "text_units": [
            {"id": f"c{n}", "human_readable_id": n, "text": f"ALICE is in chunk {n}.", "n_tokens": 6}
            for n in range(1, 5)
        ],
        "tree_clusters": [
            {"id": name, "human_readable_id": NUMBER[name], "level": 0 if name == "top" else 1}
            | {"children": [NUMBER[c] for c in below if c in NUMBER], "text_unit_ids": leaves[name]}
            for name, below in TREE.items()
        ],
        "tree_summaries": [
            {"id": report_id(name), "human_readable_id": NUMBER[name], "title": name, "full_content": name}
            for name in TREE
            if name not in without
        ],
    }


def given_of(snap: Snapshot, hierarchies: tuple[str, ...] = ("tree",), **query: Any) -> SearchEnv:
    found = snap.given(**query)
    return replace(found, settings=found.settings.model_copy(update={"hierarchies": hierarchies}))


def names_of(answer: Answer) -> list[str]:
    summaries = {report_id(name): name for name in TREE}
    return [summaries.get(record.id, record.id) for context in answer.contexts for record in context.records]


def near(*names: str) -> Any:
    """Create a search that finds these ids of the requested kind, in this order."""

    def find(search: Search) -> list[str]:
        of_kind = [n for n in names if (n in TREE) == (search.kind == "tree_summary")]
        return [report_id(n) if n in TREE else n for n in of_kind]

    return find


def ask(way: Any, find: Any, without: tuple[str, ...] = (), **query: Any) -> Answer:
    snap = Snapshot(tables(without), find)
    return snap.run(way.search(Question("What about ALICE ?"), given_of(snap, **query)))


def descend(*names: str, without: tuple[str, ...] = (), k: int = 1) -> list[str]:
    return names_of(ask(raptor_search, near(*names), without, raptor_traversal="tree", raptor_k=k))


def test_traversal_reads_nearest_children_of_each_level():
    every = ("top", "right", "left", "c1", "c4", "c3", "c2")
    assert sorted(descend(*every)) == ["c4", "right", "top"]
    assert sorted(descend(*every, k=2)) == ["c1", "c4", "left", "right", "top"]


@pytest.mark.parametrize("without", [(), ("top",)], ids=["not embedded", "failed"])
def test_traversal_follows_summaries_without_embedding(without: tuple[str, ...]):
    assert sorted(descend("right", "left", "c1", "c4", "c3", "c2", without=without)) == ["c4", "right"]


def test_chunks_below_missing_summaries_are_found():
    assert descend("c2", "c3") == ["c2"]


def test_tree_without_summaries_reads_chunks():
    snap = Snapshot({**tables(), "tree_clusters": [], "tree_summaries": []}, near("c3", "c1"))
    given = given_of(snap, raptor_traversal="tree", raptor_k=1)
    assert names_of(snap.run(raptor_search.search(Question("What about ALICE ?"), given))) == ["c3"]


def test_collapsed_tree_has_its_own_budget():
    every = near("right", "top", "c4", "c1")
    assert set(names_of(ask(raptor_search, every, raptor_k=3))) <= {"right", "c4", "top", "c1"}
    assert len(names_of(ask(raptor_search, every, raptor_k=3))) == 3
    with pytest.raises(BudgetSpent, match=r"lower query\.raptor_context_tokens"):
        ask(raptor_search, every, budget_tokens=10)
    with pytest.raises(BudgetSpent, match=r"lower query\.context_tokens"):
        ask(raptor_search, every, budget_tokens=10, raptor_traversal="tree")


def test_trex_fuses_both_lists():
    def find(search: Search) -> list[str]:
        if search.kind == "tree_summary":
            return [report_id("top")] if search.by == "vector" else []
        return ["c1", "c2", "c3"] if search.by == "vector" else ["c2", "c4"]

    assert names_of(ask(trex_search, find, trex_k=1)) in (["c1"], ["c2"], ["top"])
    both = names_of(ask(trex_search, find, trex_k=3))
    assert "c2" in both and "c4" not in both
    words = names_of(ask(trex_search, find, trex_k=1, hybrid_vector_weight=0.0))
    assert words == ["c2"]


@pytest.mark.parametrize("way", [trex_search, raptor_search])
def test_other_hierarchy_is_rejected(way: Any):
    snap = Snapshot(tables(), near("c1"))
    given = given_of(snap, ("leiden", "tree"), hierarchy="leiden")
    with pytest.raises(UsageError, match="search reads only the hierarchy 'tree', not 'leiden'"):
        snap.run(way.search(Question("What about ALICE ?"), given))
