"""Updates change communities and reports as little as possible."""

from __future__ import annotations

import pytest
from comparing import by_id
from test_index_contents import chain
from world import Built, World, everything, index_command

DEEP = {"communities": {"max_size": 3, "pack_components_below": 3}}
PEOPLE = 60


@pytest.fixture
def grown(world: World, built: Built) -> World:
    """An index of a long chain of people, and one more document about one of them."""
    world.take(built(chain(PEOPLE), **DEEP))
    world.changes |= DEEP
    world.write({"new.txt": "ABX met ZORA. ZORA sang."})
    return world


def test_only_reports_with_changed_contexts_are_rewritten(grown: World):
    before = everything(grown.open())
    asked = grown.asked()
    grown.index()
    after = everything(grown.open())
    named = {e["id"] for e in after["entities"] if e["title"] in ("ABX", "ZORA")}
    known = {c["id"]: c["human_readable_id"] for c in before["communities"]}
    of = {c["community"]: c for c in after["communities"]}
    kept = [c for c in of.values() if c["id"] in known]
    assert len(of) / 2 < len(kept) < len(of)
    assert all(known[c["id"]] == c["human_readable_id"] for c in kept)
    untouched = {c["community"] for c in kept if not named & set(c["entity_ids"])}
    written = {r["id"]: r["full_content"] for r in before["community_reports"]}
    for report in after["community_reports"]:
        if report["community"] in untouched:
            assert written[report["id"]] == report["full_content"]
    assert 0 < grown.prompts(asked)["report"] <= len(of) - len(untouched)


def test_reset_communities_equal_those_of_a_build_from_scratch(grown: World):
    grown.index()
    grown.index(reset_communities=True)
    reset = everything(grown.open())
    grown.forget()
    grown.index()
    assert by_id(reset) == by_id(everything(grown.open()))


def test_resetting_communities_of_a_new_index_changes_nothing(world: World):
    world.changes |= DEEP
    world.write(chain(20))
    world.index()
    asked = world.asked()
    assert not world.index(reset_communities=True).committed
    assert not world.observer.reused["communities"] and world.asked() == asked
    world.index()
    assert world.observer.reused["communities"]


def test_communities_with_other_settings_are_not_a_starting_point(grown: World):
    other = {"communities": DEEP["communities"] | {"seed": 7, "max_size": 4}}
    grown.index(**other)
    updated = everything(grown.open())
    grown.forget()
    grown.index(**other)
    assert by_id(updated) == by_id(everything(grown.open()))


def test_a_changed_description_keeps_all_communities(grown: World):
    """The graph is the same: another sentence about a known person."""
    (grown.input / "new.txt").unlink()
    before = {c["id"] for c in grown.table("communities")}
    grown.write({"more.txt": "ABX is old."})
    assert grown.index().committed
    assert {c["id"] for c in grown.table("communities")} == before


def test_communities_are_reset_on_the_command_line(grown: World, run):
    few = ["--set", "communities.max_size=3", "--set", "communities.pack_components_below=3"]
    few += ["--set", "reports.model_from=0"]
    assert run(*index_command(grown, *few, "--reset-communities", "--quiet")).exit_code == 0
    reset = everything(grown.open())
    grown.forget()
    assert run(*index_command(grown, *few, "--quiet")).exit_code == 0
    assert by_id(reset) == by_id(everything(grown.open()))
