"""Summary trees over chunks, with and without a graph, and questions that read them."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import igraph
import pytest
import toy_model
from world import REJECTED, Command, World, chain, everything, model_options, prompt_of, rows_of

from graphrag_ray import build_index, open_index
from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.errors import SettingsError, UsageError
from graphrag_ray.engine.ray import table_tasks
from graphrag_ray.graph import soft_clusters
from graphrag_ray.indexing.replay import keys_needed
from graphrag_ray.indexing.stages import tree_stage
from graphrag_ray.store.parts import read_part
from graphrag_ray.store.snapshots import load

SHORT = {"chunking": {"size": 40, "overlap": 0}}
"""So that a summary is written from few of them."""


def settings(*others: str, **more: Any) -> dict[str, Any]:
    return {"hierarchies": (*others, "tree"), "tree": {"dimensionality_reduction": "pca"} | more}


@pytest.fixture
def known(world: World) -> World:
    """An index of short documents with only a tree."""
    world.write(chain(150))
    world.changes = settings() | SHORT
    world.index()
    return world


def clusters(world: World) -> dict[int, dict[str, Any]]:
    return {row["community"]: row for row in world.table("tree_clusters")}


def chunks(world: World) -> set[str]:
    return {row["id"] for row in world.table("text_units")}


def test_an_index_with_only_a_tree_needs_no_extraction(known: World):
    assert set(known.prompts()) == {"summary"}
    manifest = known.open().manifest
    assert manifest.hierarchies == ["tree"] and "entities" not in manifest.tables
    assert manifest.counts["summaries"] == len(known.table("tree_summaries")) > 4
    assert not known.table("failures")


@pytest.mark.parametrize(("rules", "labelled"), [(1, False), (2, True)])
def test_summaries_show_which_document_a_passage_is_from(world: World, rules: int, labelled: bool):
    world.write(chain(20))
    world.index(**settings(), **SHORT, request_rules=rules)
    texts = [body["messages"][-1]["content"] for body in world.endpoint.bodies()]
    sources = [text for text in texts if "-----Sources-----" in text]
    rows = [row for text in sources for row in parse_sections(text)["Sources"] if row["id"].isdecimal()]
    assert rows and {bool(row["document"]) for row in rows} == {labelled}
    assert not labelled or {row["document"] for row in rows} >= {"00", "03"}


def test_every_chunk_is_a_leaf_and_every_summary_leads_to_its_leaves(known: World):
    rows, finest = clusters(known), max(row["level"] for row in known.table("tree_clusters"))
    assert finest >= 1
    for level in range(finest + 1):
        held = {id_ for row in rows.values() if row["level"] == level for id_ in row["text_unit_ids"]}
        assert held == chunks(known)
    for row in rows.values():
        below = [id_ for child in row["children"] for id_ in rows[child]["text_unit_ids"]]
        assert not row["children"] or set(below) == set(row["text_unit_ids"])
        assert bool(row["children"]) == (row["level"] < finest)
        assert row["size"] == len(row["text_unit_ids"]) > 0
        assert (row["parent"] == -1) == (row["level"] == 0)
    for row in known.table("tree_summaries"):
        own = rows[row["community"]]
        sections = Counter(reference["section"] for reference in row["references"])
        expected = {"Summaries": len(own["children"])} if own["children"] else {"Sources": own["size"]}
        assert sections == expected and row["rank"] is None and row["full_content"].startswith("# ")


def test_the_tree_does_not_depend_on_the_order_of_replies(world: World):
    world.write(chain(30))
    world.index(**settings())
    first = everything(world.open())
    world.forget()
    world.index(**settings())
    assert everything(world.open()) == first


def test_ray_builds_the_same_tree(world: World, on_ray: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_tasks, "STREAMED_ROWS", 3)  # Tables have several parts.
    world.write(chain(60))
    tables = []
    for ray in (False, True):
        world.forget()
        build_index(
            str(world.input), str(world.root), settings=world.settings(**settings() | SHORT), on_ray=ray
        )
        tables.append(everything(world.open()))
    assert tables[0] == tables[1] and tables[0]["tree_summaries"]


@pytest.fixture
def umap_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_stage, "MIN_UMAP_CHUNKS", 0)


def test_a_small_tree_does_not_compile_umap(world: World, monkeypatch: pytest.MonkeyPatch):
    def unwanted(**_: Any) -> None:
        raise AssertionError("UMAP is used")

    unused = SimpleNamespace(UMAP=unwanted, __spec__=ModuleSpec("umap", None))
    monkeypatch.setitem(sys.modules, "umap", unused)
    world.write(chain(24))
    world.index(**settings(dimensionality_reduction="umap"))
    assert len(world.table("tree_clusters")) > 1
    monkeypatch.setattr(tree_stage, "MIN_UMAP_CHUNKS", 24)
    world.forget()
    with pytest.raises(AssertionError, match="UMAP is used"):
        world.index(**settings(dimensionality_reduction="umap"))


def test_umap_is_deterministic(world: World, umap_for_few: None):
    world.write(chain(24))
    world.index(**settings(dimensionality_reduction="umap"))
    first = world.table("tree_clusters")
    world.forget()
    world.index(**settings(dimensionality_reduction="umap"))
    assert world.table("tree_clusters") == first and max(row["level"] for row in first) == 0


def test_a_tree_and_communities_share_chunks_and_embeddings(world: World):
    world.write(chain(30))
    world.index(**world.embedding)
    before, asked = everything(world.open()), world.asked()
    number = embedded(world)
    world.index(**world.embedding | settings("leiden"))
    after = everything(world.open())
    assert all(after[name] == rows for name, rows in before.items())
    assert set(world.prompts(asked)) == {"summary"}
    held = {row["id"] for row in rows_of(world.open(), "embeddings_tree_summary")}
    assert held == {row["id"] for row in world.table("tree_summaries")}
    assert len(embedded(world)) - len(number) == len(held)
    number_of = world.asked()
    assert not world.index(**world.embedding | settings("leiden")).committed and world.asked() == number_of


def embedded(world: World) -> list[str]:
    asked = [r.body for r in world.endpoint.requests if r.path.endswith("/embeddings")]
    bodies = [json.loads(body) if isinstance(body, bytes | str) else body for body in asked]
    return [text for body in bodies for text in body["input"]]


def test_an_update_rewrites_few_summaries(world: World):
    world.write(chain(200))
    world.index(**settings())
    before, asked = {row["id"] for row in world.table("tree_clusters")}, world.asked()
    world.write({"new.txt": "ZZX knows AAX. ZZX wrote to ABX."})
    world.index(**settings())
    rows = world.table("tree_clusters")
    new = [row for row in rows if row["id"] not in before]
    levels = 1 + max(row["level"] for row in rows)
    assert 0 < len(new) <= levels + 2 < len(rows) / 4
    assert world.prompts(asked)["summary"] <= len(new)
    assert {id_ for row in rows for id_ in row["text_unit_ids"]} == {
        r["id"] for r in world.table("text_units")
    }


@pytest.mark.parametrize("n", [1, 2, 3, 11])
def test_few_chunks_need_one_level_at_most(world: World, n: int, umap_for_few: None):
    world.write(chain(n))
    world.index(**settings(dimensionality_reduction="umap"))
    rows = world.table("tree_clusters")
    assert len(rows) == (n > 1) and not world.table("failures")
    assert world.open().ask("What about AAX ?", method="trex").found
    assert world.open().ask("What about AAX ?", method="raptor").found


def test_documents_longer_than_a_context_are_truncated(world: World):
    world.write({f"{n}.txt": f"ALICE knows BOB. Page {n}. " + "MALLORY came again. " * 900 for n in range(6)})
    world.index(**settings() | {"chunking": {"size": "document"}})
    rows = world.table("tree_clusters")
    assert rows and all(row["size"] > 1 for row in rows) and not world.table("failures")
    assert {id_ for row in rows for id_ in row["text_unit_ids"]} == chunks(world)
    assert {row["context_left_out"] for row in world.table("tree_summaries")} == {0}


def test_deletions_leave_a_valid_tree(world: World):
    texts = chain(120)
    world.write(texts)
    world.index(**settings() | SHORT)
    for name in list(texts)[20:]:
        (world.input / name).unlink()
    world.index(**settings() | SHORT, allow_deletes=True)
    rows = world.table("tree_clusters")
    assert 0 < len(rows) <= 10 and {id_ for row in rows for id_ in row["text_unit_ids"]} == chunks(world)


def test_equal_chunks_give_a_finite_tree(world: World):
    world.write({f"{n}.txt": "ALICE knows BOB." for n in range(60)})
    world.index(**settings(context_tokens=256))
    rows = world.table("tree_clusters")
    assert rows and max(row["level"] for row in rows) < 5
    assert not world.table("failures")


def test_many_chunks_are_clustered_in_groups(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("graphrag_ray.graph.summary_tree.MAX_NODES", 20)
    monkeypatch.setattr("graphrag_ray.graph.summary_tree._PER_GROUP", 10)
    world.write(chain(60))
    world.index(**settings())
    finest = max(row["level"] for row in world.table("tree_clusters"))
    leaves = [row for row in world.table("tree_clusters") if row["level"] == finest]
    assert {id_ for row in leaves for id_ in row["text_unit_ids"]} == {
        r["id"] for r in world.table("text_units")
    }


def test_a_failed_summary_is_one_failure_and_is_left_out_above(world: World):
    def respond(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        refused = prompt_of(body) == "summary" and "AAX" in text and "Summaries" not in text
        return REJECTED if refused else toy_model.respond(body)

    world.write(chain(40))
    world.endpoint.respond = respond
    world.index(**settings())
    failed = [row for row in world.table("failures") if row["stage"] == "summary"]
    rows = clusters(world)
    missing = rows.keys() - {row["community"] for row in world.table("tree_summaries")}
    assert len(failed) == len(missing) > 0
    assert all(row["item"].startswith("summary ") for row in failed)
    assert world.open(query={"raptor_traversal": "tree"}).ask("What about AAX ?", method="raptor").found


def test_lost_tables_are_rebuilt_and_lost_replies_requested_again(known: World):
    tables, asked = everything(known.open()), known.asked()
    for folder in ("tables", "snapshots"):
        shutil.rmtree(known.root / folder)
    known.index()
    assert everything(known.open()) == tables and known.asked() == asked
    parts = {info.path: info.bytes for info in known.store.list("work/summary")}
    lost = max(parts, key=lambda path: parts[path])
    held = read_part(known.store, lost, ["kind"])["kind"].to_pylist().count("turn")
    (known.root / lost).write_bytes(b"")
    for folder in ("tables", "snapshots"):
        shutil.rmtree(known.root / folder)
    known.index()
    assert everything(known.open()) == tables and known.asked() == asked + held


def test_a_reply_without_a_title_is_a_summary(world: World):
    def respond(body: dict[str, Any]) -> Any:
        return "It is all about letters." if prompt_of(body) == "summary" else toy_model.respond(body)

    world.write(chain(12))
    world.endpoint.respond = respond
    world.index(**settings())
    assert {row["summary"] for row in world.table("tree_summaries")} == {"It is all about letters."}
    assert not world.table("failures")


def test_the_replies_a_snapshot_needs_are_found_in_the_journal(known: World):
    keys = keys_needed(known.store, load(known.store, 1))
    assert len(keys["summary"]) == len(known.table("tree_summaries"))


def test_a_tree_needs_embeddings_and_its_libraries(world: World, monkeypatch: pytest.MonkeyPatch):
    world.write(chain(5))
    with pytest.raises(SettingsError, match="hierarchies: tree needs embeddings"):
        world.index(**settings() | {"embeddings": {"enabled": False}})
    monkeypatch.setattr(soft_clusters, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install '\.\[tree\]'"):
        world.index(**settings())


# Questions


@pytest.mark.parametrize(
    ("method", "query"), [("trex", {}), ("raptor", {}), ("raptor", {"raptor_traversal": "tree"})]
)
def test_chunks_and_summaries_are_read_in_one_call(known: World, method: str, query: dict[str, Any]):
    asked = known.asked()
    answer = known.open(query=query).ask("What about AAX ?", method=method)
    assert answer.found and known.prompts(asked) == {"answer": 1}
    assert {r.section for context in answer.contexts for r in context.records} <= {"Sources", "Summaries"}
    assert {r.section for r in answer.references} <= {"Sources", "Summaries"}


@pytest.mark.parametrize("method", ["trex", "raptor"])
def test_repeated_and_batched_questions_give_the_same_answer(known: World, method: str, tmp_path: Path):
    opened = open_index(str(known.root), settings=known.settings(), cache=str(tmp_path / "cache"))
    first, asked = opened.ask("What about AAX ?", method=method), known.asked()
    again = opened.ask("What about AAX ?", method=method)
    (row,) = opened.ask_all(["What about AAX ?"], method=method)
    assert again.text == first.text == row["text"] and known.asked() == asked


def test_trex_reads_the_configured_number_of_records(known: World):
    (context,) = known.open(query={"trex_k": 3}).ask("What about AAX ?", method="trex").contexts
    assert len(context.records) == 3


def test_cited_summaries_lead_to_sentences_of_their_documents(known: World):
    opened = known.open()
    answer = opened.ask("What about AAX ?", method="trex")
    summaries = [r for r in answer.references if r.section == "Summaries"]
    assert summaries
    sources = {s.record["id"]: s for s in opened.sources(answer.references, answer)}
    of = {row["id"]: row for row in known.table("tree_summaries")}
    for reference in summaries:
        leaves = clusters(known)[of[reference.id]["community"]]["text_unit_ids"]
        numbers = {r["human_readable_id"] for r in known.table("text_units") if r["id"] in leaves}
        assert {c["human_readable_id"] for c in sources[reference.id].chunks} == numbers
    assert any("AAX" in e["quote"] for s in sources.values() for e in s.evidence)


def test_global_search_reads_levels_of_the_tree(known: World):
    asked = known.asked()
    answer = known.open().ask("What about AAX ?", "C0")
    assert answer.found and {r.section for r in answer.references} == {"Summaries"}
    assert known.prompts(asked)["map"] == 1


def test_an_index_without_a_tree_says_how_to_add_it(world: World):
    world.write(chain(10))
    world.index()
    for method in ("trex", "raptor"):
        with pytest.raises(UsageError, match="--set hierarchies=leiden,tree"):
            world.open().ask("What about AAX ?", method=method)
        with pytest.raises(UsageError, match=f"{method} search does not support conditions on documents"):
            world.open().ask("What about AAX ?", method=method, where=["path=01.txt"])


def test_archrag_does_not_read_a_tree(world: World):
    world.write(chain(20))
    world.index(**settings("leiden"))
    answer = world.open().ask("What about AAX ?", method="archrag")
    assert answer.found and "--set hierarchies=leiden,tree,attributed" in " ".join(answer.notes)


def test_commands_support_it(known: World, run: Command, tmp_path: Path):
    question = ["query", "What about AAX ?", "--root", known.root, *model_options(known)]
    assert "raptor search" in run(*question, "--method", "raptor", "--traversal", "tree").output
    refused = run(*question, "--method", "trex", "--traversal", "tree")
    assert (
        refused.exit_code == 2
        and "traversal is an option of raptor search (collapsed, tree)" in refused.stderr
    )
    n = len(known.table("tree_summaries"))
    assert f"{n} of {n} summaries" in run("status", "--root", known.root).output
    assert "C0" in run("levels", "--root", known.root).output
    told = run("inspect", "summary", "1", "--root", known.root).output
    assert "Community 1 (C0)" in told and "rated" not in told and "Chunks" in told
    estimate = run("estimate", str(known.input), "--config", str(config(known, tmp_path)))
    assert "summary" in estimate.output and "extract" not in estimate.output.split("Assumptions")[0]


def config(world: World, folder: Path) -> Path:
    path = folder / "settings.yaml"
    path.write_text(json.dumps(settings()))
    return path


def test_graphml_has_the_tree_as_a_graph(known: World, run: Command, tmp_path: Path):
    export = ["export", "--root", known.root, "--format"]
    assert run(*export, "graphml", "--out", str(tmp_path / "g")).exit_code == 0
    graph = igraph.Graph.Read_GraphML(str(tmp_path / "g" / "graph.graphml"))
    units = known.table("text_units")
    assert graph.is_dag() and graph.vcount() == len(known.table("tree_summaries")) + len(units)
    leaves = {v["id"] for v in graph.vs if not graph.outdegree(v)}
    assert leaves == {f"c{row['human_readable_id']}" for row in units}
    assert run(*export, "csv", "--out", str(tmp_path / "c")).exit_code == 0
    with open(tmp_path / "c" / "edges.csv", encoding="utf-8-sig") as file:
        assert len(list(csv.DictReader(file))) == graph.ecount()
    refused = run(*export, "graphrag", "--out", str(tmp_path / "m"))
    assert refused.exit_code == 2 and "hierarchy tree is over chunks" in refused.stderr
