"""Entity resolution from documents to tables, with a model behind HTTP."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_model
from click.testing import CliRunner
from endpoint import Endpoint, Status
from world import World, everything

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.cli.command_line import main
from graphrag_ray.engine.observer import Observer
from graphrag_ray.export import record_lookup
from graphrag_ray.indexing.replay import failed_item_turns, keys_needed
from graphrag_ray.indexing.resolution_preview import (
    Preview,
    as_aliases,
    as_csv,
    as_json,
    preview_resolution,
)
from graphrag_ray.query.methods.question_names import find_entities
from graphrag_ray.store import locks, snapshots

TEXTS = {
    "a.txt": "JOHN ORME met ADA QUIST at the harbour. JOHN ORME paid BO DAHL.",
    "b.txt": "JOHN ORME wrote to ADA QUIST about the bridge. ADA QUIST thanked CY LEE.",
    "c.txt": "ADA QUIST saw PROFESSOR JOHN ORME at the mill. CY LEE sued BO DAHL.",
}
RULES: dict[str, Any] = {"resolution": {"mode": "rules"}}
MODEL: dict[str, Any] = {"resolution": {"mode": "model"}}
OFF: dict[str, Any] = {"resolution": {"mode": "off"}}


class Model:
    """A toy model that says which names are the same, and which documents of a name belong together."""

    def __init__(self) -> None:
        self.same: set[frozenset[str]] = set()
        self.groups: dict[str, str] = {}
        self.broken = False
        self.types: dict[str, str] = {}

    def __call__(self, body: dict[str, Any]) -> Any:
        name, variables = toy_model.recognise(body["messages"][-1]["content"])
        if name == "resolve" and self.broken:
            return Status(400, "Invalid prompt: your request was rejected", "invalid_prompt")
        if name == "resolve":
            return self._verdicts(variables)
        if name == "extract_schema":
            reply = toy_model.answer_extract(variables)
            for title, type_ in self.types.items():
                reply = reply.replace(f"{title}{toy_model.FIELD}PERSON", f"{title}{toy_model.FIELD}{type_}")
            return reply
        if name == "resolve_split":
            return self.groups.get(variables["name"], '{"groups": [{"documents": [1]}]}')
        return toy_model.respond(body)

    def _verdicts(self, variables: dict[str, str]) -> str:
        name = variables["name"].split("\n")[0].removesuffix(" (PERSON)")
        lines = [line for line in variables["candidates"].split("\n") if line[:1].isdigit()]
        entries = [line.removesuffix(" (PERSON)").split(". ", 1) for line in lines]
        verdicts = [
            {
                "candidate": int(n),
                "verdict": "same" if frozenset((name, other)) in self.same else "different",
                "reason": "So it is.",
            }
            for n, other in entries
        ]
        return json.dumps({"verdicts": verdicts})


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def world(tmp_path: Path, model: Model) -> Iterator[World]:
    with Endpoint(respond=model) as endpoint:
        yield World(tmp_path, endpoint)


def resolutions(world: World) -> dict[tuple[str, str | None], str]:
    """Titles by replaced name, and document if it is replaced in one document only."""
    paths = {row["id"]: row["path"] for row in world.table("documents")}
    return {(r["name"], paths.get(r["document_id"])): r["title"] for r in world.table("resolutions")}


def titles(world: World) -> set[str]:
    return {row["title"] for row in world.table("entities")}


def preview(world: World, **changes: Any) -> Preview:
    settings: Settings = world.settings(**changes)
    manifest = snapshots.read_latest(world.store)
    assert manifest is not None
    return preview_resolution(world.store, manifest, str(world.root), settings, Observer(), lambda cost: None)


# Rules


def test_rules_merge_names_and_relationships_and_chunks_follow(world: World):
    world.write(TEXTS)
    world.index(**RULES)
    assert {"JOHN ORME", "ADA QUIST", "DAHL", "LEE"} == titles(world)
    assert resolutions(world) == {("PROFESSOR JOHN ORME", None): "JOHN ORME"}
    orme = next(row for row in world.table("entities") if row["title"] == "JOHN ORME")
    assert orme["frequency"] == 3
    ends = {frozenset((r["source"], r["target"])): r for r in world.table("relationships")}
    assert set(ends) >= {frozenset(("JOHN ORME", "ADA QUIST")), frozenset(("JOHN ORME", "DAHL"))}
    assert len(ends[frozenset(("JOHN ORME", "ADA QUIST"))]["text_unit_ids"]) == 3
    assert {row["name"] for row in world.table("entity_instances")} == {"PROFESSOR JOHN ORME", None}


def test_without_resolution_names_stay_apart(world: World):
    world.write(TEXTS)
    world.index(**OFF)
    assert titles(world) >= {"JOHN ORME", "PROFESSOR JOHN ORME"} and world.table("resolutions") == []


def test_a_second_run_computes_nothing(world: World):
    world.write(TEXTS)
    world.index(**MODEL)
    asked, before = world.asked(), everything(world.open())
    world.index(**MODEL)
    assert world.asked() == asked and world.observer.reused["resolve"]
    assert everything(world.open()) == before


def test_an_existing_index_keeps_its_names_until_its_owner_asks(world: World):
    from stored_index import rewrite

    world.write(TEXTS)
    world.index(**OFF)
    rewrite(world.root, lambda settings: settings.pop("resolution", None))
    world.write({"d.txt": "CY LEE met EVA."})
    world.index()
    assert "PROFESSOR JOHN ORME" in titles(world)
    world.index(**RULES)
    assert "PROFESSOR JOHN ORME" not in titles(world)
    world.write({"e.txt": "CY LEE met IVO."})
    world.index()
    assert "PROFESSOR JOHN ORME" not in titles(world), "the index keeps its mode"


SCHEMA = "entities: {PERSON: a human being, BODY: an institution, GROUND: a sports ground}\nopen: "


@pytest.mark.parametrize(("is_open", "merged"), [("true", True), ("false", False)])
def test_a_closed_schema_keeps_names_of_two_types_apart(
    world: World, model: Model, is_open: str, merged: bool
):
    model.types = {"UNIV OSLO": "GROUND", "UNIVERSITY OSLO": "BODY"}
    world.write({"a.txt": "UNIV OSLO met PROFESSOR ADA QUIST.", "b.txt": "ADA QUIST met UNIVERSITY OSLO."})
    world.index(**RULES, extraction={"schema": SCHEMA + is_open})
    assert titles(world) == {"ADA QUIST", "UNIV OSLO"} | (set() if merged else {"UNIVERSITY OSLO"})
    assert not any(p.is_new for p in preview(world, **RULES).proposals), "a preview has the same schema"


# The aliases file


def test_an_aliases_file_undoes_a_merge_without_asking_again(world: World):
    world.write(TEXTS)
    world.index(**RULES)
    start = world.asked()
    names = {"names": {"aliases": "JOHN ORME: [{not: PROFESSOR JOHN ORME}]"}}
    world.index(**RULES, **names)
    assert "PROFESSOR JOHN ORME" in titles(world)
    assert not {"extract", "resolve", "resolve_split"} & set(world.prompts(start))


def test_an_aliases_file_undoes_a_verdict_without_asking_again(world: World, model: Model):
    world.write(TEXTS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    model.same = {frozenset(("JOHN ORME", "JOHAN ORME"))}
    world.index(**MODEL, **{"names": {"aliases": ""}})
    assert "JOHAN ORME" not in titles(world)
    start = world.asked()
    world.index(**MODEL, **{"names": {"aliases": "JOHN ORME: [{not: JOHAN ORME}]"}})
    assert titles(world) >= {"JOHN ORME", "JOHAN ORME"}
    assert not {"extract", "resolve", "resolve_split"} & set(world.prompts(start))


def test_an_alias_in_one_document_works_without_resolution(world: World):
    world.write(TEXTS)
    world.index(
        **OFF,
        **{"names": {"aliases": "ADA QUIST: [{name: CY, document: b.txt}, {name: LEE, document: b.txt}]"}},
    )
    assert resolutions(world) == {("LEE", "b.txt"): "ADA QUIST"} and "LEE" in titles(world)


def test_names_kept_apart_are_not_merged_through_a_third_one_in_a_document(world: World):
    world.write({"a.txt": "JOHN ORME met ADA QUIST. ORME met ADA QUIST. JOHN met ADA QUIST."})
    world.index(**RULES, **{"names": {"aliases": ""}})
    assert titles(world) == {"JOHN ORME", "ADA QUIST"}
    world.index(**RULES, **{"names": {"aliases": "ORME: [{not: JOHN}]"}})
    assert len(titles(world) & {"ORME", "JOHN"}) == 1


def test_names_kept_apart_are_not_merged_where_a_rule_of_a_document_meets_one_of_the_corpus(world: World):
    world.write(
        {"a.txt": "ORME met ADA QUIST. JOHN ORME met ADA QUIST.", "b.txt": "PROFESSOR JOHN ORME met BO DAHL."}
    )
    world.index(**RULES, **{"names": {"aliases": ""}})
    assert {"ORME", "PROFESSOR JOHN ORME"}.isdisjoint(titles(world))
    world.index(**RULES, **{"names": {"aliases": "ORME: [{not: PROFESSOR JOHN ORME}]"}})
    assert resolutions(world) == {("ORME", "a.txt"): "JOHN ORME"}


def test_names_kept_apart_are_not_merged_by_two_documents(world: World):
    world.write(
        {
            "a.txt": "ORME met ADA QUIST. JOHN ORME met ADA QUIST.",
            "b.txt": "JOHN met BO DAHL. JOHN ORME met BO DAHL.",
        }
    )
    world.index(**RULES, **{"names": {"aliases": "ORME: [{not: JOHN}]"}})
    assert len(resolutions(world)) == 1 and len(titles(world) & {"ORME", "JOHN"}) == 1


def test_relationships_within_one_entity_are_counted(world: World):
    world.write({"a.txt": "ORME met JOHN ORME. JOHN ORME met ADA QUIST."})
    world.index(**RULES)
    assert world.open().manifest.counts["dropped_relationships"] == 1


def test_an_index_with_a_removed_rule_can_be_opened_and_updated(world: World):
    from stored_index import rewrite

    world.write(TEXTS)
    world.index(**RULES)
    rewrite(world.root, lambda settings: settings["resolution"]["rules"].insert(0, "initials"))
    assert "initials" not in world.open().settings.resolution.rules
    world.write({"d.txt": "CY LEE met PROFESSOR ADA QUIST."})
    world.index(**RULES)
    assert "PROFESSOR ADA QUIST" not in titles(world)


# A model


def test_names_kept_apart_are_not_asked_about(world: World):
    world.write(TEXTS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    world.index(**MODEL, **{"names": {"aliases": "PROFESSOR JOHN ORME: [{not: JOHAN ORME}]"}})
    assert "resolve" not in world.prompts() and titles(world) >= {"JOHN ORME", "JOHAN ORME"}


def test_a_model_merges_names_that_it_confirms(world: World, model: Model):
    world.write(TEXTS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    model.same = {frozenset(("JOHN ORME", "JOHAN ORME"))}
    world.index(**MODEL)
    assert world.prompts()["resolve"] >= 1
    assert resolutions(world)["JOHAN ORME", None] == "JOHN ORME" and "JOHAN ORME" not in titles(world)
    rows = {row["name"]: row for row in world.table("resolutions")}
    assert rows["JOHAN ORME"]["rule"] == "model" and rows["JOHAN ORME"]["evidence"] == "So it is."


@pytest.mark.parametrize("changes", [{"stages": {"resolve": {"model": "none"}}}, {"build": "names"}])
def test_the_offline_engine_is_not_asked(world: World, changes: dict[str, Any]):
    world.write(TEXTS | HOMONYMS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    changes["models"] = {"none": {"provider": "offline"}}
    world.index(**RULES, **changes)
    expected, start = resolutions(world), world.asked()
    world.index(**MODEL, **changes)
    assert resolutions(world) == expected and not world.prompts(start) and not world.table("failures")


def test_an_update_asks_only_about_new_names(world: World, model: Model):
    world.write(TEXTS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    world.index(**MODEL)
    first, start = world.prompts()["resolve"], world.asked()
    world.write({"e.txt": "MARIO VISCONTI met VIKTOR. VIKTOR met IVANOVNA."})
    world.index(**MODEL)
    assert first >= 1 and world.prompts(start)["resolve"] == 0, "the new names are like no others"
    start = world.asked()
    world.write({"f.txt": "MARIA VISCONTI met IRMA."})
    world.index(**MODEL)
    assert world.prompts(start)["resolve"] == 1


def test_a_failed_verdict_is_a_failure_that_is_retried(world: World, model: Model):
    world.write(TEXTS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    model.same, model.broken = {frozenset(("JOHN ORME", "JOHAN ORME"))}, True
    world.index(**MODEL, run={"journal_flush_s": 0.1, "max_failed_fraction": 1.0})
    failures = [row for row in world.table("failures") if row["stage"] == "resolve"]
    assert failures and "JOHAN ORME" in titles(world)
    turns = failed_item_turns(world.store, "resolve", failures[0]["key"])
    assert turns[0].prompt == "resolve" and "JOHAN ORME" in turns[0].messages[-1][1]
    model.broken = False
    put_back = CliRunner().invoke(main, ["failures", "--root", str(world.root), "--retry"])
    assert put_back.exit_code == 0, put_back.output
    start = world.asked()
    world.index(**MODEL)
    assert world.prompts(start)["resolve"] == len(failures)
    assert "JOHAN ORME" not in titles(world) and not world.table("failures")


def test_a_stopped_run_pays_nothing_twice(world: World, model: Model):
    world.write(TEXTS | {"d.txt": "JOHAN ORME met ADA QUIST.", "e.txt": "ADAH QUIST met CYRA LEEDS."})
    model.same, answer = {frozenset(("JOHN ORME", "JOHAN ORME"))}, model._verdicts
    calls: list[str] = []

    def dies(variables: dict[str, str]) -> Any:
        calls.append(variables["name"])
        return answer(variables) if len(calls) < 2 else Status(401, "Incorrect API key", "invalid_api_key")

    model._verdicts = dies  # type: ignore[method-assign]
    with pytest.raises(GraphRagError):
        world.index(**MODEL)
    assert world.snapshots() == []
    model._verdicts = answer  # type: ignore[method-assign]
    start = world.asked()
    world.index(**MODEL)
    again = world.prompts(start)
    assert again["extract"] == 0 and again["resolve"] >= 1
    world.forget()
    whole = world.asked()
    world.index(**MODEL)
    assert again["resolve"] == world.prompts(whole)["resolve"] - 1, "one verdict was in the journal"


HOMONYMS = {
    "architect.txt": "ORLA VENN drew the opera house and its concrete columns and facade with TOVE LIND.",
    "sailor.txt": "ORLA VENN sailed round the stormy southern cape in a tiny yacht with PER HOLM.",
    "town.txt": "TOVE LIND met PER HOLM in the spring.",
}


def test_a_name_is_split_by_document_and_others_are_untouched(world: World, model: Model):
    world.write(HOMONYMS)
    model.groups["ORLA VENN"] = json.dumps(
        {"groups": [{"label": "one", "documents": [1]}, {"label": "two", "documents": [2]}]}
    )
    world.index(**MODEL)
    assert world.prompts()["resolve_split"] >= 1
    assert titles(world) == {"ORLA VENN", "ORLA VENN (TWO)", "TOVE LIND", "PER HOLM"}
    ((name, document),) = resolutions(world)
    assert name == "ORLA VENN" and document in HOMONYMS
    (edge,) = [r for r in world.table("relationships") if "ORLA VENN (TWO)" in (r["source"], r["target"])]
    other = "PER HOLM" if document == "sailor.txt" else "TOVE LIND"
    assert other in (edge["source"], edge["target"])
    start = world.asked()
    world.index(**MODEL, **{"names": {"aliases": "ORLA VENN: {split: false}"}})
    assert "ORLA VENN (TWO)" not in titles(world) and world.prompts(start)["extract"] == 0


@pytest.mark.parametrize("changes", [RULES, MODEL], ids=["rules", "model"])
def test_a_snapshot_can_be_reproduced_from_its_journal(world: World, model: Model, changes: dict[str, Any]):
    world.write(TEXTS | HOMONYMS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    model.same = {frozenset(("JOHN ORME", "JOHAN ORME"))}
    world.index(**changes)
    manifest = snapshots.read_latest(world.store)
    assert manifest is not None
    needed = keys_needed(world.store, manifest)
    assert len(needed["extract"]) == len(TEXTS) + len(HOMONYMS) + 1
    asked = sum(world.prompts()[name] for name in ("resolve", "resolve_split"))
    assert len(needed.get("resolve", [])) == asked and (asked > 0) == (changes is MODEL)


# Preview


@pytest.mark.parametrize("changes", [RULES, MODEL], ids=["rules", "model"])
def test_a_preview_equals_what_indexing_then_does(world: World, model: Model, changes: dict[str, Any]):
    world.write(TEXTS | HOMONYMS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    model.same = {frozenset(("JOHN ORME", "JOHAN ORME"))}
    world.index(**OFF)
    before, start = everything(world.open()), world.asked()
    shown = preview(world, **changes)
    assert everything(world.open()) == before and world.snapshots() == [1]
    assert all(p.is_new for p in shown.proposals) and not shown.undone
    paid = world.prompts(start)
    assert set(paid) <= {"resolve", "resolve_split"}
    start = world.asked()
    world.index(**changes)
    assert not {"extract", "resolve", "resolve_split"} & set(world.prompts(start)), "paid by the preview"
    expected = {(p.name, p.document or None): p.title for p in shown.proposals}
    assert expected and resolutions(world) == expected
    again = preview(world, **changes)
    assert [p.title for p in again.proposals] == [p.title for p in shown.proposals]
    assert not any(p.is_new for p in again.proposals)


def test_a_previewed_aliases_file_gives_the_same_names_without_resolution(world: World, model: Model):
    world.write(TEXTS | HOMONYMS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    model.same = {frozenset(("JOHN ORME", "JOHAN ORME"))}
    model.groups["ORLA VENN"] = json.dumps(
        {"groups": [{"label": "one", "documents": [1]}, {"label": "two", "documents": [2]}]}
    )
    world.index(**MODEL)
    expected, shown = titles(world), preview(world, **MODEL)
    names = {"names": {"aliases": as_aliases(shown)}}
    world.index(**OFF, **names)
    assert titles(world) == expected
    again = preview(world, **OFF, **names)
    assert [p.rule for p in again.proposals] == ["alias"] and not again.undone


def test_a_preview_is_written_for_spreadsheets_and_programs(world: World):
    world.write({"a.txt": "PROFESSOR JOHN ORME met ADA QUIST.", "b.txt": "JOHN ORME met BERTA LIND."})
    world.index(**OFF)
    shown = preview(world, **RULES)
    (row,) = csv.DictReader(io.StringIO(as_csv(shown)))
    assert (row["title"], row["name"], row["rule"]) == ("JOHN ORME", "PROFESSOR JOHN ORME", "title")
    assert json.loads(as_json(shown))["proposals"][0]["name"] == "PROFESSOR JOHN ORME"
    formula = dataclasses.replace(shown.proposals[0], name="=1+1")
    assert "'=1+1" in as_csv(dataclasses.replace(shown, proposals=[formula]))


def test_the_command_prints_proposals_and_asks_before_it_spends(world: World, tmp_path: Path):
    world.write(TEXTS | {"d.txt": "JOHAN ORME met ADA QUIST."})
    world.index(**OFF)
    start = world.asked()
    command = ["resolve", "--root", str(world.root)]
    shown = CliRunner().invoke(main, [*command, "--output", str(tmp_path / "names.yaml")])
    assert shown.exit_code == 0, shown.output
    assert "PROFESSOR JOHN ORME" in shown.stdout and "--set resolution.mode=rules" in shown.stdout
    assert "JOHN ORME:" in (tmp_path / "names.yaml").read_text("utf-8")
    refused = CliRunner().invoke(main, [*command, "--mode", "model"])
    assert refused.exit_code == 2 and "No model has been called yet" in refused.stderr
    assert world.asked() == start
    paid = CliRunner().invoke(main, [*command, "--mode", "model", "--yes", "--json"])
    assert paid.exit_code == 0, paid.output
    assert json.loads(paid.stdout)["verdicts"]["different"] == world.prompts(start)["resolve"] == 1


def test_a_preview_is_refused_while_another_run_writes_the_index(world: World):
    world.write(TEXTS)
    world.index(**OFF)
    with (
        locks.acquire(world.store, note="index"),
        pytest.raises(GraphRagError, match=r"(?i)lock|running|writ"),
    ):
        preview(world, **RULES)


# Finding replaced names


def test_replaced_names_are_found(world: World):
    world.write(TEXTS)
    world.index(**RULES)
    opened = world.open()
    wanted = next(row["id"] for row in world.table("entities") if row["title"] == "JOHN ORME")
    assert record_lookup.find_entity(opened.reader, "professor john orme") == wanted
    assert record_lookup.find_entity(opened.reader, "John Orme") == wanted
    steps = find_entities("What did PROFESSOR JOHN ORME do?")
    need = next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send(opened.reader.rows(need))
    assert wanted in ended.value.value.spans
    assert "JOHN ORME" in str(opened.ask("Whom did PROFESSOR JOHN ORME meet?", method="local").as_dict())
