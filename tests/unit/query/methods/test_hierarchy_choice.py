"""Which hierarchy a question reads, and what is said where an index does not have it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import Snapshot

from graphrag_ray.base.declarations import HIERARCHIES
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods.hierarchy_choice import resolve_hierarchy
from graphrag_ray.query.methods.method import SearchEnv

TREE = replace(HIERARCHIES["leiden"], name="tree", member_kind="text_unit")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> SearchEnv:
    monkeypatch.setitem(HIERARCHIES, "tree", TREE)  # type: ignore[attr-defined]
    return Snapshot({}).given()


def test_it_is_the_first_of_the_index_unless_another_is_named(given: SearchEnv):
    both = replace(
        given, settings=given.settings.with_hierarchies_of(["tree", "leiden", "of a newer version"])
    )
    assert resolve_hierarchy(both) is TREE
    assert resolve_hierarchy(both, "leiden").name == "leiden"
    query = both.settings.query.model_copy(update={"hierarchy": "leiden"})
    named = replace(both, settings=both.settings.model_copy(update={"query": query}))
    assert resolve_hierarchy(named).name == "leiden"


def test_one_that_the_index_lacks_is_refused_with_how_to_add_it(given: SearchEnv):
    with pytest.raises(UsageError, match=r"no hierarchy 'tree'; it has leiden.*hierarchies=leiden,tree"):
        resolve_hierarchy(given, "tree")
    with pytest.raises(UsageError, match=r"Unknown hierarchy 'wood'\. Choose from: leiden, attributed, tree"):
        resolve_hierarchy(given, "wood")


def test_one_over_other_records_is_refused_with_those_that_fit(given: SearchEnv):
    both = replace(given, settings=given.settings.with_hierarchies_of(["tree", "leiden"]))
    with pytest.raises(UsageError, match="'tree' is not built over entity records; it has leiden"):
        resolve_hierarchy(both, "tree", over="entity")
    assert resolve_hierarchy(both, over="entity").name == "leiden"
