"""Indexes with a schema: types of entities and relations, from settings to answers and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import toy_model
from endpoint import TOO_LONG
from world import REJECTED, TOWN, Command, World, everything, index_command, prompt_of

from graphrag_ray.base import schema
from graphrag_ray.base.context_records import parse_sections
from graphrag_ray.base.errors import SettingsError
from graphrag_ray.indexing.stages import finish_stage

SCHEMA = """
entities: {CITIZEN: someone who lives in the town}
relations: {KNOWS: {from: CITIZEN, to: CITIZEN}, PAYS: }
"""


def with_schema(text: str | None = SCHEMA, **extraction: Any) -> dict[str, Any]:
    return {"extraction": {"schema": text, **extraction}}


def violating(body: dict[str, Any]) -> Any:
    """The toy model, for which FRANK is a sailor, GRACE pays, and HEIDI is a citizen on second thoughts."""
    reply = toy_model.respond(body)
    if prompt_of(body) == "extract_schema":
        for name in ("FRANK", "HEIDI"):
            reply = reply.replace(f'("entity"<|>{name}<|>CITIZEN', f'("entity"<|>{name}<|>SAILOR')
        reply = reply.replace("<|>GRACE<|>KNOWS", "<|>GRACE<|>PAYS")
    elif prompt_of(body) == "correct_schema" and "HEIDI" in body["messages"][-1]["content"]:
        reply = '("entity"<|>HEIDI<|>CITIZEN<|>Heidi brews.<|>)\n<|COMPLETE|>'
    return reply


@pytest.fixture
def typed(world: World) -> World:
    world.endpoint.respond = violating
    world.write(TOWN)
    world.index(**with_schema())
    return world


def test_the_graph_has_only_types_of_the_schema_and_the_run_counts_violations(typed: World, run: Command):
    assert {e["type"] for e in typed.table("entities")} == {"CITIZEN"}
    assert {"HEIDI", "GRACE"} < {e["title"] for e in typed.table("entities")}
    assert "FRANK" not in {e["title"] for e in typed.table("entities")}
    relations = {
        (r["source"], r["target"]): (r["relation"], r["relation_reversed"])
        for r in typed.table("relationships")
    }
    assert relations["ALICE", "BOB"] == ("KNOWS", False)
    assert relations["GRACE", "IVAN"] == ("PAYS", True), "IVAN paid GRACE"
    assert {r["relation"] for r in typed.table("relationship_instances")} == {"KNOWS", "PAYS"}
    counts = typed.open().manifest.steps["extract"]["counts"]
    assert (counts["schema_corrected"], counts["schema_dropped"]) == (4, 4)
    assert counts["schema_violations"] == 8
    status = run("status", "--root", str(typed.root), "--json")
    assert '"schema_dropped":4' in status.stdout.replace(" ", "")


@pytest.mark.parametrize("rejection", [REJECTED, TOO_LONG])
def test_a_rejected_correction_costs_only_the_violations(world: World, rejection: Any):
    def respond(body: dict[str, Any]) -> Any:
        return rejection if prompt_of(body) == "correct_schema" else violating(body)

    world.endpoint.respond = respond
    world.write(TOWN)
    world.index(**with_schema())
    assert not world.table("failures")
    titles = {e["title"] for e in world.table("entities")}
    assert "GRACE" in titles and titles.isdisjoint({"FRANK", "HEIDI"})
    counts = world.open().manifest.steps["extract"]["counts"]
    assert counts["schema_dropped"] == counts["schema_violations"] == 8
    before, asked = everything(world.open()), world.asked()
    world.index()
    assert everything(world.open()) == before and world.asked() == asked


def test_an_index_keeps_its_schema_until_it_is_removed(typed: World):
    before, asked = everything(typed.open()), typed.asked()
    assert not typed.index().committed
    assert everything(typed.open()) == before and typed.asked() == asked
    assert any("extraction.schema" in note for note in typed.observer.notes)
    typed.index(**with_schema(None))
    assert {e["type"] for e in typed.table("entities")} == {"PERSON"}
    assert {r["relation"] for r in typed.table("relationships")} == {""}


def test_a_changed_schema_is_used_after_its_cost_was_confirmed(typed: World, run: Command, tmp_path: Path):
    def command(text: str) -> list[Any]:
        path = tmp_path / "schema.yaml"
        path.write_text(text, "utf-8")
        return index_command(typed, "--set", f"extraction.schema_file={path}")

    asked, extractions = typed.asked(), typed.prompts()["extract_schema"]
    assert run(*command(f"# reviewed{SCHEMA}")).exit_code == 0 and typed.asked() == asked
    changed = command(SCHEMA.replace("KNOWS", "MEETS"))
    refused = run(*changed)
    assert refused.exit_code == 2 and typed.asked() == asked
    assert "extraction.schema: changed" in refused.stderr and "extract " in refused.stderr
    assert "--yes" in refused.stderr
    assert run(*changed, "--yes").exit_code == 0
    assert typed.prompts(asked)["extract_schema"] == extractions
    asked = typed.asked()
    assert run(*changed).exit_code == 0 and typed.asked() == asked


def test_a_schema_file_is_stored_by_content(world: World, tmp_path: Path):
    path = tmp_path / "schema.yaml"
    path.write_text(SCHEMA, "utf-8")
    world.write(TOWN)
    world.index(extraction={"schema_file": str(path)})
    stored = world.open().manifest.settings["extraction"]
    assert stored["schema"] == SCHEMA and "schema_file" not in stored
    assert not any("keeps settings" in note for note in world.observer.notes)
    path.unlink()
    assert not world.index().committed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "declares no entity type"),
        ("entities: [A]\nrelations: {R: {to: B}}", "line 2: 'B' is not a declared entity type"),
    ],
)
def test_an_invalid_schema_is_reported_before_anything_is_spent(world: World, text: str, message: str):
    world.write(TOWN)
    with pytest.raises(SettingsError, match=message):
        world.index(**with_schema(text))
    with pytest.raises(SettingsError, match="Cannot read"):
        world.index(extraction={"schema_file": "no-such-file.yaml"})
    assert not world.asked()


def test_relations_are_shown_to_models_and_restrict_questions(typed: World):
    start = typed.asked()
    index = typed.open()
    index.ask("Who knows or pays whom?", method="local")
    index.ask("Who knows or pays GRACE?", method="hybrid", where=["relation=pays"])
    index.ask("Who knows or pays GRACE?", method="local", where=["relation=pays"])
    first, second, third = (
        parse_sections(body["messages"][-1]["content"])
        for body in typed.endpoint.bodies()[start:]
        if prompt_of(body) == "answer"
    )
    rows = {(r["source"], r["target"]): r["description"] for r in first["Relationships"]}
    assert rows["GRACE", "JUDY"].startswith("KNOWS: ") and rows["IVAN", "GRACE"].startswith("PAYS: ")
    assert [s["document"] for s in second["Sources"][:2]] == ["brewery", None], "one passage, then other text"
    assert [(r["source"], r["target"]) for r in third["Relationships"]] == [("IVAN", "GRACE")]
    assert {r["entity"] for r in third["Entities"]} <= {"IVAN", "GRACE"}
    reports = [b for b in typed.endpoint.bodies()[:start] if prompt_of(b) == "report"]
    assert any("PAYS: " in body["messages"][-1]["content"] for body in reports)


def test_another_relation_between_the_same_texts_is_reported_again(typed: World):
    def renamed(body: dict[str, Any]) -> Any:
        return violating(body).replace("<|>KNOWS<|>", "<|>MEETS<|>")

    start = typed.asked()
    typed.endpoint.respond = renamed
    typed.index(**with_schema(SCHEMA.replace("KNOWS", "MEETS")))
    assert {r["relation"] for r in typed.table("relationships")} == {"MEETS", "PAYS"}
    assert not typed.prompts(start)["describe"]
    (report,) = (
        b["messages"][-1]["content"] for b in typed.endpoint.bodies()[start:] if prompt_of(b) == "report"
    )
    assert "MEETS: " in report and "KNOWS: " not in report


def test_relations_are_exported_and_inspected(typed: World, run: Command, tmp_path: Path):
    root = str(typed.root)
    shown = run("inspect", "relationship", "GRACE", "IVAN", "--root", root).stdout
    assert "IVAN —PAYS→ GRACE" in shown
    for kind in ("graphml", "csv", "graphrag"):
        assert run("export", "--root", root, "--format", kind, "--out", tmp_path / kind).exit_code == 0
    graph = next((tmp_path / "graphml").rglob("*.graphml")).read_text("utf-8")
    assert '<data key="relation">PAYS</data>' in graph
    edges = next(p for p in (tmp_path / "csv").rglob("*.csv") if "edge" in p.name).read_text("utf-8-sig")
    assert '"IVAN","GRACE",1,"IVAN paid GRACE.","PAYS"' in edges
    table = pq.read_table(tmp_path / "graphrag" / "output" / "relationships.parquet")
    assert "PAYS" in table["relation"].to_pylist()


def test_a_snapshot_without_the_columns_is_read(world: World, run: Command, monkeypatch: pytest.MonkeyPatch):
    earlier = schema.RELATIONSHIPS
    for name in schema.RELATION_COLUMNS:
        earlier = earlier.remove(earlier.get_field_index(name))
    original, tables = finish_stage.mark_for_row_access, schema.TABLES

    def without_relations(table: Any) -> Any:
        return original(table.select([n for n in table.column_names if n not in schema.RELATION_COLUMNS]))

    world.write(TOWN)
    with monkeypatch.context() as patched:
        patched.setattr(finish_stage, "mark_for_row_access", without_relations)
        patched.setattr(schema, "TABLES", {**tables, "relationships": earlier})
        world.index()
    assert {r["relation"] for r in world.table("relationships")} == {None}
    index = world.open()
    assert index.ask("Who knows ALICE?", method="local").text
    shown = run("inspect", "relationship", "ALICE", "BOB", "--root", str(world.root))
    assert shown.exit_code == 0 and "→" not in shown.stdout
    assert run("export", "--root", world.root, "--format", "csv", "--out", world.input / "csv").exit_code == 0


def test_the_offline_engine_leaves_out_what_the_schema_has_no_type_for(world: World):
    world.write(
        {"a.txt": "Mara Venn met Ole Brandt in Oslo. Mara Venn wrote to Ole Brandt of Kestrel Marine."}
    )
    world.index(
        models={"default": {"provider": "offline"}}, **with_schema("entities: [person, DRUG]\nrelations: [R]")
    )
    assert {e["type"] for e in world.table("entities")} == {"PERSON"}
    assert {r["relation"] for r in world.table("relationships")} == {""}
    world.index(models={"default": {"provider": "offline"}}, **with_schema("entities: [DRUG]"))
    assert any("knows no entity type of the schema (DRUG)" in note for note in world.observer.notes)
