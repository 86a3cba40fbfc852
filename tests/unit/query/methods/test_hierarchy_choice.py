"""The choice of a hierarchy, and errors if the index lacks it."""

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


def test_first_hierarchy_is_default(given: SearchEnv):
    both = replace(
        given, settings=given.settings.with_hierarchies_of(["tree", "leiden", "of a newer version"])
    )
    assert resolve_hierarchy(both) is TREE
    assert resolve_hierarchy(both, "leiden").name == "leiden"
    query = both.settings.query.model_copy(update={"hierarchy": "leiden"})
    named = replace(both, settings=both.settings.model_copy(update={"query": query}))
    assert resolve_hierarchy(named).name == "leiden"


def test_missing_hierarchy_is_reported_with_advice(given: SearchEnv):
    with pytest.raises(UsageError, match=r"no hierarchy 'tree'; it has leiden.*hierarchies=leiden,tree"):
        resolve_hierarchy(given, "tree")
    with pytest.raises(UsageError, match=r"Unknown hierarchy 'wood'\. Choose from: leiden, attributed, tree"):
        resolve_hierarchy(given, "wood")


def test_unsuitable_hierarchy_lists_suitable_ones(given: SearchEnv):
    both = replace(given, settings=given.settings.with_hierarchies_of(["tree", "leiden"]))
    with pytest.raises(UsageError, match="'tree' is not built over entity records; it has leiden"):
        resolve_hierarchy(both, "tree", over="entity")
    assert resolve_hierarchy(both, over="entity").name == "leiden"
