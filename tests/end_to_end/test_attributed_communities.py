"""Attributed communities together with Leiden's, and questions that read them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest
import toy_model
from world import REJECTED, Command, World, chain, everything, model_options, prompt_of, rows_of

from graphrag_ray.base.errors import LevelNotFound, SettingsError, UsageError
from graphrag_ray.graph import attributed_communities
from graphrag_ray.graph.attributed_communities import ClusteredLevel, LevelNodes
from graphrag_ray.indexing.replay import keys_needed
from graphrag_ray.store.search import chnsw
from graphrag_ray.store.snapshots import load, seal

BOTH = ("leiden", "attributed")
LEVELS = "search_attributed_levels"
SMALL = {"max_size": 4, "min_communities": 2}


def settings(world: World, hierarchies: tuple[str, ...] = BOTH, **more: Any) -> dict[str, Any]:
    return {"hierarchies": hierarchies, "attributed": SMALL | more}


@pytest.fixture
def known(world: World) -> World:
    """An index of a chain of people with both hierarchies and embeddings by a model."""
    world.write(chain(40))
    world.changes = settings(world)
    world.index()
    return world


def members(world: World) -> dict[int, Counter[str]]:
    """How often each level contains each entity."""
    found: dict[int, Counter[str]] = {}
    for row in world.table("attributed_communities"):
        found.setdefault(row["level"], Counter()).update(row["entity_ids"])
    return found


def test_each_level_contains_every_entity_once_and_each_community_has_a_report(known: World):
    entities = Counter(row["id"] for row in known.table("entities"))
    of_level = members(known)
    assert len(of_level) >= 2 and all(held == entities for held in of_level.values())
    communities = {row["community"]: row for row in known.table("attributed_communities")}
    for row in communities.values():
        below = [communities[child]["entity_ids"] for child in row["children"]]
        held = [id_ for ids in below for id_ in ids]
        assert not below or sorted(held) == sorted(row["entity_ids"])
        assert row["hierarchy"] == "attributed" and row["parent"] in {-1, *communities}
    finest = max(of_level)
    assert max(len(r["entity_ids"]) for r in communities.values() if r["level"] == finest) <= 4
    reports = known.table("attributed_reports")
    assert {r["community"] for r in reports} == communities.keys()
    assert not known.table("failures")


def test_reports_above_the_first_level_are_written_from_those_below(known: World):
    sections = {
        (row["level"], reference["section"])
        for row in known.table("attributed_reports")
        for reference in row["references"]
    }
    finest = max(level for level, _ in sections)
    assert {section for level, section in sections if level == finest} <= {"Entities", "Relationships"}
    assert {section for level, section in sections if level < finest} == {"Themes"}


def test_leiden_is_unchanged_and_nothing_is_requested_twice(world: World):
    world.write(chain(30))
    world.index()
    before, asked = everything(world.open()), world.asked()
    world.index(**settings(world))
    after = everything(world.open())
    assert all(after[name] == rows for name, rows in before.items())
    assert set(world.prompts(asked)) == {"report"}
    number = world.asked()
    assert not world.index(**settings(world)).committed and world.asked() == number
    assert not load(world.store, 2).counts["failures"]


def test_level_settings_apply_to_the_next_run(known: World):
    assert len(members(known)) > 1
    known.index(**settings(known, max_levels=1))
    assert len(members(known)) == 1 and max(members(known)[0].values()) == 1


def test_a_report_is_not_requested_if_all_reports_below_failed(world: World):
    def respond(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        return REJECTED if prompt_of(body) == "report" and "Themes" not in text else toy_model.respond(body)

    world.write(chain(40))
    world.endpoint.respond = respond
    world.index(**settings(world, ("attributed",)), run={"max_failed_fraction": 1.0})
    assert not world.table("attributed_reports")
    failed = world.table("failures")
    assert len(failed) == len(world.table("attributed_communities"))
    above = [row for row in failed if "above the lowest" in row["item"]]
    assert above and all("none of the reports" in row["error"] for row in above)


def test_it_can_be_the_only_hierarchy(world: World):
    world.write(chain(20))
    world.index(**settings(world, ("attributed",)))
    assert world.open().manifest.hierarchies == ["attributed"]
    assert "communities" not in world.open().manifest.tables
    assert world.open().ask("What are the THEMES ?").found
    assert world.prompts()["about"] == 1


def test_communities_do_not_depend_on_the_order_of_replies(world: World):
    world.write(chain(30))
    world.index(**settings(world))
    first = world.table("attributed_communities")
    world.forget()
    world.index(**settings(world))
    assert world.table("attributed_communities") == first


def test_an_update_requests_only_reports_of_changed_communities(world: World):
    world.write(chain(200))
    world.index(**settings(world, ("attributed",), max_size=15))
    before, asked = {row["id"] for row in world.table("attributed_communities")}, world.asked()
    world.write({"new.txt": "ZZX knows AAX. ZZX knows ABX."})
    world.index(**settings(world, ("attributed",), max_size=15))
    rows = world.table("attributed_communities")
    new = [row for row in rows if row["id"] not in before]
    assert 0 < len(new) < len(rows) / 3
    # Reports above a rewritten report are rewritten, too.
    assert world.prompts(asked)["report"] <= len(new) + 3


def test_an_index_of_an_earlier_version_keeps_its_communities_until_new_prompts(world: World, run: Command):
    world.write(chain(200))
    world.changes = settings(world, ("attributed",), max_size=15)
    world.index(attributed=world.changes["attributed"] | {"n_neighbours": "level"})
    stored = orjson.loads(world.store.read("snapshots/1.json"))
    stored["settings"]["attributed"]["n_neighbours"] = None  # an earlier version's word for `level`
    del stored["settings"]["attributed"]["min_similarity"], stored["digest"]
    world.store.write("snapshots/1.json", seal(stored))
    before, asked = {row["id"] for row in world.table("attributed_communities")}, world.asked()
    world.write({"new.txt": "ZZX knows AAX. ZZX knows ABX."})
    world.index()
    assert world.open().manifest.settings["attributed"]["n_neighbours"] == "level"
    rows = world.table("attributed_communities")
    assert 0 < len({row["id"] for row in rows} - before) < len(rows) / 3
    assert world.prompts(asked)["report"] < len(rows) / 2
    price = ["--set", "models.default.price={input_usd_per_mtok: 100, output_usd_per_mtok: 200}"]
    new = ["index", world.input, "--root", world.root, *model_options(world), *price, "--new-prompts"]
    refused = run(*new)
    assert (
        refused.exit_code == 2
        and "Settings with new values: attributed.n_neighbours: graph." in refused.stderr
    )
    assert "report" in refused.stderr and "extract" not in refused.stderr
    assert run(*new, "--yes").exit_code == 0
    assert world.open().manifest.settings["attributed"]["n_neighbours"] == "graph"


@pytest.mark.parametrize("neighbours", ["graph", "level"])
def test_links_of_every_level_number_the_mean_degree_of_the_graph(
    world: World, monkeypatch: pytest.MonkeyPatch, neighbours: str
):
    numbers: list[int] = []

    def cluster_level(nodes: LevelNodes, *rest: Any) -> ClusteredLevel:
        found = original(nodes, *rest)
        numbers.append(found.neighbours)
        return found

    original = attributed_communities.cluster_level
    monkeypatch.setattr(attributed_communities, "cluster_level", cluster_level)
    world.write(chain(40))
    world.index(**settings(world, ("attributed",), n_neighbours=neighbours))
    assert len(numbers) > 1 and (len(set(numbers)) == 1) == (neighbours == "graph")


@pytest.mark.parametrize("clustering", ["scan", "spectral"])
@pytest.mark.parametrize("augment", ["none", "codicil"])
def test_every_clustering_and_link_option_partitions_all_entities(
    world: World, clustering: str, augment: str
):
    world.write(chain(25))
    world.index(**settings(world, clustering=clustering, similarity_links=augment))
    entities = Counter(row["id"] for row in world.table("entities"))
    assert all(held == entities for held in members(world).values())
    assert not world.table("failures")


def test_the_model_embeds_each_text_once(world: World):
    world.write(chain(20))
    world.index(**settings(world) | world.embedding)
    texts = [text for body in embedded(world) for text in body["input"]]
    assert len(texts) == len(set(texts))
    held = {row["id"] for row in rows_of(world.open(), "embeddings_attributed_report")}
    assert held == {row["id"] for row in world.table("attributed_reports")}


def test_the_replies_a_snapshot_needs_are_found_in_the_journal(known: World):
    keys = keys_needed(known.store, load(known.store, 1))
    assert len(keys["report"]) == len(known.table("attributed_reports")) + len(
        known.table("community_reports")
    )


def test_a_failed_report_is_one_failure_and_is_left_out_above(world: World):
    refused: list[str] = []

    def respond(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        if prompt_of(body) == "report" and "AAX" in text and "Themes" not in text:
            refused.append(text)
            return REJECTED
        return toy_model.respond(body)

    world.write(chain(40))
    world.endpoint.respond = respond
    world.index(**settings(world, ("attributed",)))
    assert refused
    failed = [row for row in world.table("failures") if row["stage"] == "report"]
    rows = world.table("attributed_communities")
    missing = {r["community"] for r in rows} - {r["community"] for r in world.table("attributed_reports")}
    assert len(failed) == len(missing) > 0
    assert all(held == members(world)[0] for held in members(world).values())


def test_attributed_communities_need_embeddings(world: World):
    world.write(chain(5))
    with pytest.raises(SettingsError, match="hierarchies: attributed needs embeddings"):
        world.index(**settings(world) | {"embeddings": {"enabled": False}})


@pytest.mark.parametrize("text", ["Nobody is here.", "ALICE sleeps.", "ALICE sleeps. BOB eats."])
def test_an_index_without_edges_or_entities_has_valid_communities(world: World, text: str):
    world.write({"a.txt": text})
    world.index(**settings(world))
    n = len(world.table("entities"))
    held = members(world)
    assert sum(held.get(0, Counter()).values()) == n
    if n:
        assert world.open().ask("What about ALICE ?", method="archrag").found


def embedded(world: World) -> list[dict[str, Any]]:
    bodies = [request.body for request in world.endpoint.requests if request.path.endswith("/embeddings")]
    return [orjson.loads(body) if isinstance(body, bytes | str) else body for body in bodies]


# Questions


@pytest.mark.parametrize("method", ["global", "local", "drift", "archrag"])
def test_search_methods_read_it(known: World, method: str):
    answer = known.open(query={"hierarchy": "attributed"}).ask("What are the THEMES ?", method=method)
    sections = {r.section for used in answer.contexts for r in used.records}
    assert answer.found and "Themes" in sections and "Reports" not in sections


def test_dynamic_selection_rates_reports_from_its_top_level(known: World):
    query = {"hierarchy": "attributed", "dynamic": True}
    answer = known.open(query=query).ask("What are the THEMES ?")
    assert answer.found and {used.phase for used in answer.contexts} >= {"rate", "map"}
    assert {r.section for used in answer.contexts for r in used.records} == {"Themes"}


def test_archrag_reads_the_nearest_records_of_every_level_in_one_call_each(known: World):
    asked = known.asked()
    answer = known.open(query={"archrag_k": 3}).ask("What about AAX ?", method="archrag")
    levels = {row["level"] for row in known.table("attributed_communities")}
    read = [used for used in answer.contexts if used.phase == "map"]
    assert len(read) == 1 + len(levels)
    assert known.prompts(asked) == {"map_points": len(read), "reduce": 1}
    kinds = [Counter(r.section for r in used.records) for used in read]
    assert kinds[0]["Entities"] == 3 and all(1 <= kind["Themes"] <= 3 for kind in kinds[1:])


def test_one_index_of_all_levels_finds_the_same_as_one_search_per_level(
    known: World, monkeypatch: pytest.MonkeyPatch
):
    def found() -> list[Any]:
        return [
            [(used.phase, used.records) for used in known.open().ask(text, method="archrag").contexts]
            for text in ("What about AAX ?", "Who wrote to ABX ?", "What are the THEMES ?")
        ]

    assert LEVELS not in known.open().manifest.tables
    known.index(search={"level_index_from": 0})
    assert LEVELS in known.open().manifest.tables
    together = found()
    monkeypatch.setattr(chnsw, "has_loops", lambda: False)
    assert found() == together


def test_without_it_leiden_is_read_and_the_command_to_build_it_is_shown(world: World):
    world.write(chain(20))
    world.index()
    answer = world.open().ask("What about AAX ?", method="archrag")
    assert answer.found and "--set hierarchies=leiden,attributed" in " ".join(answer.notes)
    with pytest.raises(UsageError, match="This index has no hierarchy 'attributed'"):
        world.open(query={"hierarchy": "attributed"}).ask("What about AAX ?", method="archrag")
    with pytest.raises(UsageError, match="archrag search does not support conditions on documents"):
        world.open().ask("What about AAX ?", method="archrag", where=["path=01.txt"])
    world.index(embeddings={"enabled": False})
    with pytest.raises(UsageError, match="archrag search needs embeddings of"):
        world.open().ask("What about AAX ?", method="archrag")
    with pytest.raises(UsageError, match="archrag search has no levels"):
        world.open().ask("What about AAX ?", 0, method="archrag")
    with pytest.raises(LevelNotFound):
        world.open().ask("What about AAX ?", 9)


def test_commands_support_it(known: World, run: Command):
    question = ["query", "What about AAX ?", "--root", known.root, *model_options(known)]
    assert "archrag search, 4 contexts" in run(*question, "--method", "archrag").output
    n = len(known.table("community_reports")) + len(known.table("attributed_reports"))
    told = run("status", "--root", known.root).output
    assert "attributed" in told and f" of {n} reports" in told
    assert "C0" in run("levels", "--root", known.root, "--hierarchy", "attributed").output
    assert "attributed" in run("evaluate", "communities", "--root", known.root).output
