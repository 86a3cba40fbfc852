"""Reports on small communities are composed from their records without a model call."""

from __future__ import annotations

import pytest
from world import DEEP, PEOPLE, TOWN, Command, World, index_command

from graphrag_ray.base.context_records import strip_references

PRICE = ["--set", "models.default.price={input_usd_per_mtok: 100, output_usd_per_mtok: 200}"]
SMALL = {**DEEP, "reports": {"model_from": 4}}


@pytest.fixture
def known(world: World) -> World:
    world.write(PEOPLE)
    world.changes = SMALL
    world.index()
    return world


def test_a_model_writes_only_the_reports_on_larger_communities(known: World):
    size = {c["community"]: len(c["entity_ids"]) for c in known.table("communities")}
    reports = known.table("community_reports")
    assert {r["community"] for r in reports} == size.keys()
    composed = {r["community"] for r in reports if r["composed"]}
    assert composed == {c for c, n in size.items() if n < 4} and 0 < len(composed) < len(size)
    assert known.prompts()["report"] == len(size) - len(composed)
    assert known.open().manifest.counts["composed_reports"] == len(composed)
    for report in reports:
        assert report["summary"] and report["references"] and 1 <= report["rank"] <= 10


def test_composed_reports_are_no_expected_work(known: World):
    reports = known.table("community_reports")
    known.write({"new.txt": "AAX knows ZZX."})
    known.index()
    (note,) = [note for note in known.observer.notes if "Expected work" in note]
    assert note.endswith(f" of {sum(not r['composed'] for r in reports)} reports.")


def test_later_runs_count_composed_reports_and_cost_nothing(known: World):
    asked, before = known.asked(), known.open().manifest.counts["composed_reports"]
    assert known.index().manifest.counts["composed_reports"] == before
    known.index(reports={"model_from": 4, "max_claims_per_entity": 3})  # plans every report again
    assert known.asked() == asked and known.open().manifest.counts["composed_reports"] == before


def test_an_update_composes_the_same_reports_as_an_index_from_scratch(known: World):
    def reports() -> dict[str, tuple[object, ...]]:
        rows = known.table("community_reports")
        return {r["id"]: (r["title"], r["composed"], r["rank"], strip_references(r["summary"])) for r in rows}

    known.write({"new.txt": "AAX knows ZZX. ZZX wrote to ABX."})
    known.index(reset_communities=True)
    updated = reports()
    known.forget()
    known.index()
    assert reports() == updated


def test_attributed_communities_have_composed_reports(world: World):
    world.write(PEOPLE)
    world.index(hierarchies=("attributed",), attributed={"max_size": 3, "min_communities": 2}, **SMALL)
    reports = world.table("attributed_reports")
    composed = [r for r in reports if r["composed"]]
    assert composed and max(r["level"] for r in reports) == min(r["level"] for r in composed)
    assert world.open().manifest.counts["composed_reports"] == len(composed)
    assert world.prompts()["report"] == len(reports) - len(composed)


def test_parents_and_dynamic_search_read_composed_reports(run: Command, world: World):
    world.write(PEOPLE)
    world.index(**DEEP, reports={"model_from": 4, "context_tokens": 600})
    bodies = [b["messages"][-1]["content"] for b in world.endpoint.bodies()]
    titles = [r["title"] for r in world.table("community_reports") if r["composed"]]
    assert any(
        f",{t}," in text or f'"{t}"' in text for t in titles for text in bodies if "--Reports--" in text
    )
    asked = run("query", "Who knows whom?", "--root", str(world.root), "--set", "query.dynamic=true")
    assert asked.exit_code == 0 and asked.stdout.strip()


def test_inspect_and_status_say_which_reports_are_composed(run: Command, known: World):
    n = known.open().manifest.counts["composed_reports"]
    assert f"({n} composed without a model call)" in run("status", "--root", str(known.root)).stdout
    number = next(r["community"] for r in known.table("community_reports") if r["composed"])
    shown = run("inspect", "community", str(number), "--root", str(known.root)).stdout
    assert "[composed from its records without a model call]" in shown


def test_an_index_made_by_the_first_rules_pays_for_nothing_again(world: World):
    world.write(TOWN)
    world.index(request_rules=1)
    asked = world.asked()
    world.index()
    assert world.asked() == asked
    assert world.open().manifest.settings["request_rules"] == 1


def test_new_prompts_bring_new_rules_and_show_their_cost(run: Command, world: World):
    world.write(TOWN)
    command = [*index_command(world, *PRICE), "--set", "reports.model_from=0"]
    assert run(*command, "--set", "request_rules=1").exit_code == 0
    asked = world.asked()
    refused = run(*command, "--new-prompts")
    assert refused.exit_code == 2 and world.asked() == asked and "report " in refused.stderr
    assert run(*command, "--new-prompts", "--yes").exit_code == 0
    assert world.open().manifest.settings["request_rules"] == 2
    assert world.prompts(asked)["report"] > 0
