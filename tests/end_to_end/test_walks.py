"""Walk indexes, indexes built with `--build names`, and multi-hop answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from served import Served
from test_cleaning_up import traces
from world import PEOPLE, TOWN, Built, Command, World

from graphrag_ray import build_index, open_index
from graphrag_ray.base import schema
from graphrag_ray.base.errors import ReportsMissing
from graphrag_ray.base.ids import name_id
from graphrag_ray.indexing.purge import clean_up
from graphrag_ray.store import index_files
from graphrag_ray.store.gc import GcOptions
from graphrag_ray.store.search import name_links
from graphrag_ray.store.search.name_links import NameLinks
from graphrag_ray.store.search.pagerank import count_holders
from graphrag_ray.store.search.title_matcher import TitleMatcher

DEMO = Path(__file__).parents[2] / "demo" / "corpus"
HOPS = {
    "teutberga.txt": "TEUTBERGA was the wife of LOTHAR.",
    "lothar.txt": "LOTHAR died at PIACENZA of a fever.",
    "mill.txt": "JUDY grinds corn, and IVAN bakes.",
}


def shards(world: World) -> list[NameLinks]:
    store, parts = world.store, world.open().manifest.parts(schema.NAME_LINKS_TABLE)
    return [name_links.read(index_files.open_part(store, part)) for part in parts]


def holders(world: World, *names: str) -> dict[str, int]:
    found = count_holders(shards(world), [name_id(name) for name in names])
    return {name: found.get(name_id(name), 0) for name in names}


# The walk index


def test_a_chunk_is_linked_to_its_entities_and_the_name_of_its_document(world: World):
    world.write(HOPS)
    world.index()
    assert holders(world, "Teutberga", "LOTHAR", "mill", "Nobody") == {
        "Teutberga": 1,
        "LOTHAR": 2,
        "mill": 1,
        "Nobody": 0,
    }


def test_ray_builds_the_same_walk_index(world: World, on_ray: None):
    world.write(PEOPLE)
    paths = []
    for ray in (False, True):
        world.forget()
        build_index(str(world.input), str(world.root), settings=world.settings(), on_ray=ray)
        paths.append([part.path for part in world.open().manifest.parts(schema.NAME_LINKS_TABLE)])
    assert paths[0] == paths[1] != []


def test_only_shards_of_changed_documents_are_rebuilt(world: World, monkeypatch: pytest.MonkeyPatch):
    from graphrag_ray.indexing.stages import walk_stage

    monkeypatch.setattr("graphrag_ray.indexing.stages.document_parts.split_bytes", lambda total: 64)
    monkeypatch.setattr(walk_stage, "SHARD_BYTES", 1 << 14)
    world.write({f"{folder}/{name}": text for folder in "abc" for name, text in TOWN.items()})
    world.index()
    before = {part.path for part in world.open().manifest.parts(schema.NAME_LINKS_TABLE)}
    world.write({"c/new.txt": "KIM called LEE."})
    world.index()
    after = {part.path for part in world.open().manifest.parts(schema.NAME_LINKS_TABLE)}
    assert holders(world, "KIM") == {"KIM": 1}
    assert len(before) > 1 and before & after and after - before
    fresh = world.root.with_name("fresh")
    build_index(str(world.input), str(fresh), settings=world.settings())
    known = {part.path for part in open_index(str(fresh)).manifest.parts(schema.NAME_LINKS_TABLE)}
    assert {Path(p).name for p in known} == {Path(p).name for p in after}


@pytest.mark.parametrize("with_keyword_index", [True, False])
def test_an_update_links_changed_titles_like_a_new_index(
    world: World, monkeypatch: pytest.MonkeyPatch, with_keyword_index: bool
):
    from graphrag_ray.indexing.stages import titles_stage

    searched: list[str] = []
    find = TitleMatcher.find

    def recorded(matcher: TitleMatcher, texts: Sequence[str]) -> Any:
        searched.extend(texts)
        return find(matcher, texts)

    monkeypatch.setattr(TitleMatcher, "find", recorded)
    monkeypatch.setattr(titles_stage, "_MIN_CHUNKS_PER_TITLE", 0 if with_keyword_index else 1_000)
    monkeypatch.setattr("graphrag_ray.indexing.stages.document_parts.split_bytes", lambda total: 64)
    world.write({f"{n}/{name}": text for n in range(2) for name, text in TOWN.items()})
    world.index()
    assert holders(world, "bridge", "flour") == {"bridge": 2, "flour": 0}
    searched.clear()
    world.write({"1/flour.txt": "GRACE baked.", "1/the boat.txt": "It leaked."})
    for number in range(2):
        (world.input / f"{number}/bridge.txt").unlink()
    world.index(allow_deletes=True)
    assert holders(world, "bridge", "flour", "the boat") == {"bridge": 0, "flour": 3, "the boat": 3}
    if with_keyword_index:
        found_by_words = [TOWN[name] for name in ("mill.txt", "harbour.txt") for _ in range(2)]
        assert sorted(searched) == sorted(["GRACE baked.", "It leaked.", *found_by_words])
    after = {Path(part.path).name for part in world.open().manifest.parts(schema.NAME_LINKS_TABLE)}
    fresh = world.root.with_name("fresh")
    build_index(str(world.input), str(fresh), settings=world.settings())
    parts = open_index(str(fresh)).manifest.parts(schema.NAME_LINKS_TABLE)
    assert {Path(part.path).name for part in parts} == after


def test_a_text_whose_titles_cannot_be_found_is_one_failure(world: World, monkeypatch: pytest.MonkeyPatch):
    find = TitleMatcher.find

    def broken(matcher: TitleMatcher, texts: Sequence[str]) -> Any:
        if any("PIACENZA" in text for text in texts):
            raise IndexError("string index out of range")
        return find(matcher, texts)

    world.write(HOPS | {"fever.txt": "A fever is a symptom.", "corn.txt": "It grows."})
    with monkeypatch.context() as patch:
        patch.setattr(TitleMatcher, "find", broken)
        assert world.index().failed == 1
    (failure,) = world.table("failures")
    assert failure["stage"] == "titles" and "IndexError" in failure["error"]
    assert holders(world, "fever", "corn") == {"fever": 1, "corn": 2}
    assert world.index().failed == 0
    assert holders(world, "fever")["fever"] == 2


def test_an_unreadable_name_is_one_failure_and_is_read_by_the_next_run(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    from graphrag_ray.indexing.stages import walk_stage

    def broken(name: str) -> str:
        if name.upper() == "LOTHAR":
            raise IndexError("string index out of range")
        return name_id(name)

    world.write(HOPS)
    with monkeypatch.context() as patch:
        patch.setattr(walk_stage, "name_id", broken)
        assert world.index().failed > 0
    failures = world.table("failures")
    assert {row["stage"] for row in failures} == {"walk"}
    assert all("LOTHAR" in row["item"].upper() and "IndexError" in row["error"] for row in failures)
    assert holders(world, "LOTHAR", "TEUTBERGA") == {"LOTHAR": 0, "TEUTBERGA": 1}
    assert world.index().failed == 0
    assert holders(world, "LOTHAR")["LOTHAR"] == 2


# Questions


def test_the_answer_shows_the_chain_and_how_passages_were_found(run: Command, tmp_path: Path):
    """With the offline engine."""
    root = tmp_path / "index"
    assert run("index", DEMO, "--root", root, "--build", "names").exit_code == 0
    asked = ("query", "Who owns the Thackwell Brewery?", "--root", root, "--method", "ppr")
    shown = run(*asked, "--sources").output
    assert "Steps:" in shown and "ppr search" in shown
    assert re.search(r"via .*THACKWELL BREWERY", shown, re.IGNORECASE)
    told = json.loads(run(*asked, "--json").output)
    assert told["chain"] and told["chain"][0]["stands"] and told["paths"]


def test_missing_facts_are_looked_up_in_the_configured_number_of_steps(world: World, run: Command):
    world.write(HOPS)
    world.index()
    before = world.asked()
    answer = world.open().ask("what is it that nobody of TEUTBERGA ever saw ?", method="ppr")
    assert world.prompts(before) == {"walk_answer": 1}
    assert answer.chain and answer.found
    before = world.asked()
    world.open().ask("what is it that OSCAR ever saw in the fever ?", method="ppr", where=["path~m*"])
    assert world.prompts(before)["next_questions"] <= 1
    refused = run("query", "Who?", "--root", world.root, "--method", "hybrid", "--steps", "2")
    assert refused.exit_code == 2 and "steps is an option of ppr search" in refused.output


def test_a_passage_without_a_word_of_the_question_is_found(world: World, built: Built):
    world.write(HOPS)
    world.index()
    index = world.open()
    answer = index.ask("Where did the man of TEUTBERGA end ?", method="ppr")
    (context, *_) = answer.contexts
    rows = {row["id"]: row["text"] for row in world.table("text_units")}
    texts = [rows[reference.id] for reference in context.records]
    assert texts[:2] == [HOPS["teutberga.txt"], HOPS["lothar.txt"]]


def test_conditions_apply_to_everything_that_is_read(world: World):
    world.write(HOPS)
    world.index()
    answer = world.open().ask("What of LOTHAR ?", method="ppr", where=["path~lothar*"])
    rows = {row["id"]: row["text"] for row in world.table("text_units")}
    assert {rows[r.id] for c in answer.contexts for r in c.records} == {HOPS["lothar.txt"]}


@pytest.mark.parametrize(
    "texts",
    [
        {"a.txt": "It rained, and nobody was seen."},
        {"a.txt": "ALICE."},
        {f"{n}.txt": "ALICE met nobody." for n in range(30)},
        {"the.txt": "It is.", "It rained all day, and then it did not.txt": "ALICE met BOB."},
    ],
    ids=["no name", "one node", "one name everywhere", "titles that are words and sentences"],
)
def test_walks_work_on_unusual_graphs(world: World, texts: dict[str, str]):
    world.write(texts)
    world.index()
    for question in ("Who is ALICE ?", "what ?", " ".join(f"NAME{n}" for n in range(60)), "the"):
        assert world.open().ask(question, method="ppr").text


# Indexes of names


def test_building_names_costs_nothing_and_writes_no_reports(world: World):
    world.write(TOWN)
    done = world.index(build="names")
    manifest = world.open().manifest
    assert world.asked() == 0
    assert manifest.hierarchies == []
    assert not manifest.parts("community_reports")
    assert done.manifest.counts["entities"] > 5 and done.manifest.counts["communities"] > 0
    assert all(row["entity_ids"] for row in world.table("communities"))


def test_a_model_answers_from_an_index_of_names(world: World):
    world.write(TOWN)
    world.index(build="names")
    for method in ("ppr", "hybrid", "trex", "fgrag", "lazy"):
        before = world.asked()
        answer = world.open().ask("What about ALICE and BOB ?", method=method)
        assert answer.contexts, method
        assert world.asked() > before, method


def test_methods_that_read_reports_say_what_is_missing(world: World, run: Command):
    world.write(TOWN)
    world.index(build="names")
    for method in ("global", "local", "drift", "archrag", "raptor"):
        with pytest.raises(ReportsMissing, match="made with --build names") as raised:
            world.open().ask("What about ALICE ?", method=method)
        assert "`graphrag-ray estimate` predicts the cost" in str(raised.value)
        assert "methods work without reports: text, vector, hybrid, fgrag, ppr, trex" in str(raised.value)
    for command in (("levels",), ("export", "--format", "graphrag", "--out", world.root.with_name("out"))):
        told = run(*command, "--root", world.root)
        assert told.exit_code == 2 and "--build names" in told.output


def test_an_index_of_names_supports_inspect_export_serve_and_batch(
    world: World, run: Command, tmp_path: Path
):
    world.write(TOWN)
    world.index(build="names")
    root = ("--root", world.root)
    for command in (
        ("status",),
        ("inspect",),
        ("inspect", "entity", "ALICE"),
        ("inspect", "search", "ALICE"),
    ):
        done = run(*command, *root)
        assert done.exit_code == 0 and not done.exception, done.output
    for form in ("csv", "graphml"):
        assert run("export", "--format", form, "--out", tmp_path / form, *root).exit_code == 0
    served = Served(None, root=str(world.root), method="ppr")
    try:
        answer = served.ask("What about ALICE ?", steps=0)
        assert answer.status_code == 200 and answer.json()["chain"]
    finally:
        served.close()
    (tmp_path / "q.csv").write_text("question\nWhat about ALICE ?\n")
    out = tmp_path / "answers.parquet"
    done = run("query", "--batch", tmp_path / "q.csv", "--method", "ppr", "--out", out, *root)
    assert done.exit_code == 0, done.output


def test_a_document_is_purged_from_an_index_of_names(world: World):
    world.write(TOWN | {"secret.txt": "ZEBEDEE met ALICE in secret."})
    world.index(build="names")
    (world.input / "secret.txt").unlink()
    world.index(build="names", allow_deletes=True)
    assert traces(world, "ZEBEDEE")
    clean_up(world.store, GcOptions(), purge=["secret.txt"], delete=True)
    assert traces(world, "ZEBEDEE") == []
    assert world.open().ask("What about ALICE ?", method="ppr").found


def test_the_rest_can_be_built_later_and_nothing_is_paid_twice(world: World):
    world.write(TOWN)
    world.index(build="names", **world.embedding)
    chunks = world.table("text_units")
    asked = world.asked()
    world.index(**world.embedding)
    assert world.open().manifest.hierarchies == ["leiden"]
    assert world.open().ask("What about ALICE ?", method="local").found
    assert [c["id"] for c in world.table("text_units")] == [c["id"] for c in chunks]
    again = [t for b in world.endpoint.bodies()[asked:] for t in b.get("input", ())]
    assert not {t for t in TOWN.values() if any(t in one for one in again)}, "chunks are embedded once"


def test_building_names_after_a_full_index_keeps_all_replies(world: World):
    world.write(TOWN)
    world.index()
    reports = world.table("community_reports")
    assert reports
    world.index(build="names")
    assert world.open().manifest.hierarchies == []
    asked = world.asked()
    world.index()
    assert world.asked() == asked
    assert [r["id"] for r in world.table("community_reports")] == [r["id"] for r in reports]


def test_the_estimate_for_names_is_free(world: World, run: Command, tmp_path: Path):
    world.write(TOWN)
    url = world.endpoint.base_url
    options = ("--model", "m", "--base-url", url, "--api-key-env", "null", "--json")
    told = json.loads(run("estimate", world.input, "--build", "names", *options).output)
    assert {stage["stage"] for stage in told["stages"]} == {"extract", "describe", "embed"}
    assert all(stage["model_id"].startswith("offline") for stage in told["stages"])
