"""Exports have the content of the snapshot in formats of other programs, and no cell is dangerous."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import hostile
import igraph
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toy_model
from s3_server import BUCKET, S3Server
from world import DEEP, REJECTED, TOWN, Built, Command, Silent, World, chain

from graphrag_ray import open_index
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models
from graphrag_ray.export.graph_tables import clean_text
from graphrag_ray.export.microsoft import VECTOR_TABLES
from graphrag_ray.indexing.index import index
from graphrag_ray.query.ask import Index
from graphrag_ray.query.methods.levels import build_levels
from graphrag_ray.store.files import Store

TOP = Path(__file__).parents[2]

_ids = pa.list_(pa.string())
_community = {
    "community": pa.int64(),
    "level": pa.int64(),
    "parent": pa.int64(),
    "children": pa.list_(pa.int64()),
}
_head = {"id": pa.string(), "human_readable_id": pa.int64()}
_period = {"period_start": pa.string(), "period_end": pa.string()}
_findings = pa.list_(pa.struct([("summary", pa.string()), ("explanation", pa.string())]))
MICROSOFTS = {
    "documents": {
        **_head, "title": pa.string(), "text": pa.large_string(), "text_unit_ids": _ids,
        "creation_date": pa.string(), "raw_data": pa.string(),
    },
    "text_units": {
        **_head, "text": pa.large_string(), "n_tokens": pa.int64(), "document_id": pa.string(),
        "entity_ids": _ids, "relationship_ids": _ids, "covariate_ids": _ids,
    },
    "entities": {
        **_head, "title": pa.string(), "type": pa.string(), "description": pa.string(),
        "text_unit_ids": _ids, "frequency": pa.int64(), "degree": pa.int64(),
    },
    "relationships": {
        **_head, "source": pa.string(), "target": pa.string(), "description": pa.string(),
        "weight": pa.float64(), "combined_degree": pa.int64(), "text_unit_ids": _ids,
        "relation": pa.string(), "relation_reversed": pa.bool_(),
    },
    "communities": {
        **_head, **_community, "title": pa.string(), "entity_ids": _ids, "relationship_ids": _ids,
        "text_unit_ids": _ids, "period": pa.string(), "size": pa.int64(), **_period,
    },
    "community_reports": {
        **_head, **_community, "title": pa.string(), "summary": pa.string(), "full_content": pa.string(),
        "rank": pa.float64(), "rating_explanation": pa.string(), "findings": _findings,
        "full_content_json": pa.string(), "period": pa.string(), "size": pa.int64(), **_period,
    },
    "covariates": {
        **_head, "covariate_type": pa.string(), "type": pa.string(), "description": pa.string(),
        "subject_id": pa.string(), "object_id": pa.string(), "status": pa.string(),
        "start_date": pa.string(), "end_date": pa.string(), "source_text": pa.string(),
        "text_unit_id": pa.string(),
    },
}  # fmt: skip
"""The columns that graphrag 3.x writes, in its order, followed by periods and relations."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Index:
    root = str(tmp_path_factory.mktemp("demo"))
    settings = Settings()
    index(
        str(TOP / "demo" / "corpus"),
        LocalExecutor(Store(root), Models.from_settings(settings)),
        settings,
        Silent(),
    )
    return open_index(root)


@pytest.fixture
def town(world: World, built: Built) -> World:
    return world.take(built(TOWN, claims={"enabled": True}, **DEEP))


@pytest.fixture
def harmful(world: World) -> World:
    world.endpoint.respond = hostile.respond
    world.write({"=evil().txt": "They met."})
    world.index()
    return world


def export(run: Command, root: object, format_: str, out: object, *more: object) -> str:
    result = run("export", "--root", root, "--format", format_, "--out", out, *more)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def refused(run: Command, root: object, format_: str, out: object, *more: object) -> str:
    result = run("export", "--root", root, "--format", format_, "--out", out, *more)
    assert result.exit_code == 2 and not result.stdout
    return " ".join(result.stderr.split())


def cells(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"))))


def communities_by_level(opened: Index) -> list[dict[int, int]]:
    """For each level, the community of each entity by short id."""
    communities, numbers = opened.table("communities"), {}
    for row in opened.table("entities", ["id", "human_readable_id"]).to_pylist():
        numbers[row["id"]] = row["human_readable_id"]
    reports = opened.table("community_reports", ["community", "n_tokens", "hierarchy"])
    held = build_levels(communities, reports, "leiden")
    chosen = [
        reports["community"].take(held.reports_of_level(k).rows).to_pylist() for k in range(held.n_levels)
    ]
    members = {c["community"]: c["entity_ids"] for c in communities.to_pylist()}
    return [{numbers[id_]: c for c in of_level for id_ in members[c]} for of_level in chosen]


# microsoft/graphrag


def test_graphrag_tables_have_its_columns_and_the_rows_of_the_snapshot(
    town: World, run: Command, tmp_path: Path
):
    told = export(run, town.root, "graphrag", tmp_path / "out")
    assert "output/entities.parquet 10 rows" in told and "graphrag query" in told
    for name, columns in MICROSOFTS.items():
        table = pq.read_table(tmp_path / "out" / "output" / f"{name}.parquet")
        assert {f.name: f.type for f in table.schema} == columns
        assert table.schema.names == list(columns)
        assert table.to_pylist() == town.open().table(name, list(columns)).to_pylist()
        assert table.num_rows


def test_vectors_are_stored_under_record_ids(town: World, run: Command, tmp_path: Path):
    lancedb = pytest.importorskip("lancedb")
    export(run, town.root, "graphrag", tmp_path / "out")
    database: Any = lancedb.connect(str(tmp_path / "out" / "output" / "lancedb"))
    opened = town.open()
    for name, kind in VECTOR_TABLES.items():
        (part,) = opened.manifest.parts(f"embeddings_{kind}")
        ours = pq.read_table(town.root / part.path)
        theirs = database.open_table(name).to_arrow()
        assert theirs.schema.field("id").type == pa.string()
        assert theirs.schema.field("vector").type == ours.schema.field("vector").type
        assert theirs.select(["id", "vector"]).to_pylist() == ours.to_pylist()
        wanted = ours.to_pylist()[0]
        assert database.open_table(name).search(wanted["vector"]).limit(1).to_list()[0]["id"] == wanted["id"]


def test_without_lancedb_tables_are_exported_and_missing_vectors_are_reported(
    town: World, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    told = export(run, town.root, "graphrag", tmp_path / "out")
    assert "pip install '.[lancedb]'" in told and "but not its global search" in told
    out = tmp_path / "out"
    assert (out / "output" / "entities.parquet").exists() and not (out / "output" / "lancedb").exists()
    assert "vector_size" not in (out / "settings.yaml").read_text()


def test_missing_embeddings_are_reported(
    world: World,
    run: Command,
    tmp_path: Path,
    built: Built,
):
    world.take(built(TOWN, embeddings={"enabled": False}))
    told = export(run, world.root, "graphrag", tmp_path / "out")
    assert "The index has no embeddings" in told and "embeddings.enabled" in told


def test_the_project_names_the_given_models_or_those_of_the_index(town: World, run: Command, tmp_path: Path):
    told = export(run, town.root, "graphrag", tmp_path / "one")
    assert "offline embedding" in told and "local, drift and basic" in told
    text = (tmp_path / "one" / "settings.yaml").read_text()
    assert '"m"' in text and town.endpoint.base_url in text and 'api_key: "none"' in text
    export(run, town.root, "graphrag", tmp_path / "two", "--model", "other", "--api-key-env", "MY_KEY")
    text = (tmp_path / "two" / "settings.yaml").read_text()
    assert 'model: "other"' in text and 'api_key: "${MY_KEY}"' in text


# GraphML


def test_graphml_has_names_weights_and_communities(world: World, run: Command, tmp_path: Path):
    world.write(chain(24))
    world.index(**DEEP)
    _compare_with_graphml(world.open(), run, tmp_path)


def test_graphml_of_the_demo_can_be_read(demo: Index, run: Command, tmp_path: Path):
    _compare_with_graphml(demo, run, tmp_path)


def _compare_with_graphml(opened: Index, run: Command, tmp_path: Path) -> None:
    export(run, opened.store.url, "graphml", tmp_path / "out")
    graph = igraph.Graph.Read_GraphML(str(tmp_path / "out" / "graph.graphml"))
    entities = {e["human_readable_id"]: e for e in opened.table("entities").to_pylist()}
    by_level = communities_by_level(opened)
    assert len(by_level) > 1 and graph.vcount() == len(entities)
    for node in graph.vs:
        number = int(node["id"].removeprefix("n"))
        row = entities[number]
        assert (node["title"], node["label"], node["type"]) == (row["title"], row["title"], row["type"])
        assert (node["degree"], node["frequency"]) == (row["degree"], row["frequency"])
        assert node["description"] == cleaned(row["description"])
        assert [node[f"C{k}"] for k in range(len(by_level))] == [held[number] for held in by_level]
    assert graph.degree() == graph.vs["degree"]
    rows = opened.table("relationships").to_pylist()
    edges = {frozenset((row["source"], row["target"])): row for row in rows}
    assert graph.ecount() == len(edges)
    for edge in graph.es:
        row = edges.pop(frozenset(graph.vs[i]["title"] for i in edge.tuple))
        assert edge["weight"] == row["weight"] and edge["description"] == cleaned(row["description"])


def cleaned(text: str) -> str:
    return str(clean_text(pa.chunked_array([pa.array([text])]))[0])


def test_malicious_names_are_escaped_in_graphml(harmful: World, run: Command, tmp_path: Path):
    export(run, harmful.root, "graphml", tmp_path / "out")
    text = (tmp_path / "out" / "graph.graphml").read_bytes()
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", text)
    graph = igraph.Graph.Read_GraphML(str(tmp_path / "out" / "graph.graphml"))
    assert set(graph.vs["title"]) == {cleaned(name) for name in hostile.NAMES}
    assert graph.ecount() == len(hostile.NAMES)


# CSV


def test_csv_files_contain_the_graph_and_its_communities(world: World, run: Command, tmp_path: Path):
    world.write(chain(24))
    world.index(**DEEP)
    export(run, world.root, "csv", tmp_path / "out")
    nodes, edges, communities, memberships = (
        cells(tmp_path / "out" / f"{name}.csv") for name in ("nodes", "edges", "communities", "memberships")
    )
    by_level = communities_by_level(world.open())
    labels = {n["id"]: n["label"] for n in nodes}
    assert set(labels.values()) == {e["title"] for e in world.table("entities")}
    for n in nodes:
        assert [n[f"C{k}"] for k in range(len(by_level))] == [str(held[int(n["id"])]) for held in by_level]
    for e in edges:
        assert (labels[e["source"]], labels[e["target"]]) == (e["source_label"], e["target_label"])
    rows = {str(c["community"]): c for c in world.table("communities")}
    assert len(communities) == len(rows) and len(memberships) == sum(c["size"] for c in rows.values())
    for c in communities:
        parent = rows[c["id"]]["parent"]
        assert c["parent"] == ("" if parent < 0 else str(parent)) and c["title"] and c["rank"] == "5"
    numbers = {e["id"]: str(e["human_readable_id"]) for e in world.table("entities")}
    assert {(m["community"], m["entity"]) for m in memberships} == {
        (number, numbers[id_]) for number, c in rows.items() for id_ in c["entity_ids"]
    }


def test_formulas_are_escaped_and_other_cells_are_unchanged(harmful: World, run: Command, tmp_path: Path):
    export(run, harmful.root, "csv", tmp_path / "out")
    found: set[str] = set()
    for path in (tmp_path / "out").glob("*.csv"):
        assert path.read_bytes().startswith(b"\xef\xbb\xbf")
        for row in cells(path):
            assert not any(re.match(r"[=+@\t\r\n]|-(?!\d+$)", cell) for cell in row.values())
            found |= {row["label"]} if "label" in row else set()
    guarded = {f"'{n}" if n[0] in "=+-@" else n for n in map(cleaned, hostile.NAMES)}
    assert found == guarded


def test_a_community_without_a_report_is_listed_without_a_title(world: World, run: Command, tmp_path: Path):
    def respond(body: dict[str, Any]) -> Any:
        kind = toy_model.recognise(body["messages"][-1]["content"])[0]
        return REJECTED if kind == "report" else toy_model.respond(body)

    world.endpoint.respond = respond
    world.write(TOWN)
    world.index()
    export(run, world.root, "csv", tmp_path / "out")
    (row,) = cells(tmp_path / "out" / "communities.csv")
    assert (row["id"], row["size"], row["title"], row["rank"]) == ("1", "10", "", "")


# All formats


@pytest.mark.parametrize("format_", ["graphrag", "graphml", "csv"])
def test_an_index_without_entities_is_exported_as_empty_files(
    world: World, run: Command, tmp_path: Path, format_: str
):
    world.write({"weather.txt": TOWN["weather.txt"]})
    world.index()
    export(run, world.root, format_, tmp_path / "out")
    note = orjson.loads((tmp_path / "out" / "export.json").read_bytes())
    assert note["complete"] is True and note["snapshot"] == 1


@pytest.mark.parametrize("format_", ["graphrag", "graphml", "csv"])
def test_a_folder_with_files_needs_overwrite(town: World, run: Command, tmp_path: Path, format_: str):
    out = tmp_path / "out"
    export(run, town.root, format_, out)
    before = {p for p in out.rglob("*") if p.is_file() and "lancedb" not in p.parts}
    assert "it contains an export of snapshot 1" in refused(run, town.root, format_, out)
    (out / "mine.txt").write_text("mine")
    export(run, town.root, format_, out, "--overwrite")
    after = {p for p in out.rglob("*") if p.is_file() and "lancedb" not in p.parts}
    assert after == before | {out / "mine.txt"}
    export(run, town.root, "csv", out, "--overwrite")
    names = {p.name for p in out.rglob("*") if p.is_file()}
    assert names == {
        "mine.txt", "export.json", "nodes.csv", "edges.csv", "communities.csv", "memberships.csv",
    }  # fmt: skip


def test_overwriting_removes_the_vectors_of_an_earlier_export(town: World, run: Command, tmp_path: Path):
    lancedb = pytest.importorskip("lancedb")
    export(run, town.root, "graphrag", tmp_path / "out")
    town.write({"new.txt": "ZELDA met YVES."})
    town.index(**DEEP)
    export(run, town.root, "graphrag", tmp_path / "out", "--overwrite")
    table = lancedb.connect(str(tmp_path / "out" / "output" / "lancedb")).open_table("entity_description")
    assert table.count_rows() == 12


def test_the_index_itself_and_files_are_rejected_as_targets(town: World, run: Command, tmp_path: Path):
    for place in (town.root, town.root / "below", town.root.parent):
        assert "Choose another folder" in refused(run, town.root, "csv", place, "--overwrite")
    (tmp_path / "file").write_text("x")
    assert "--out" in refused(run, town.root, "csv", tmp_path / "file")
    assert "Invalid value for '--format'" in refused(run, town.root, "xlsx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_that_fails_at_a_damaged_part_leaves_no_complete_export(
    town: World, run: Command, tmp_path: Path
):
    (part,) = town.open().manifest.parts("community_reports")
    (town.root / part.path).write_bytes(b"gone")
    out = tmp_path / "out"
    result = run("export", "--root", town.root, "--format", "graphrag", "--out", out)
    assert result.exit_code == 1 and "is damaged" in result.stderr
    assert orjson.loads((out / "export.json").read_bytes())["complete"] is False
    assert not (out / "settings.yaml").exists()
    assert not [p for p in out.rglob("*") if p.name.startswith(".tmp")]


def test_an_older_snapshot_is_exported_by_its_number(town: World, run: Command, tmp_path: Path):
    town.write({"new.txt": "ZELDA met YVES."})
    town.index(**DEEP)
    found = json.loads(run("export", "--root", town.root, "--format", "csv", "--out", tmp_path / "a",
                           "--snapshot", 1, "--json").stdout)  # fmt: skip
    assert found["snapshot"] == 1 and found["rows"]["nodes.csv"] == 10
    export(run, town.root, "csv", tmp_path / "b")
    assert "ZELDA" in {n["label"] for n in cells(tmp_path / "b" / "nodes.csv")}


@pytest.mark.parametrize("format_", ["graphrag", "graphml", "csv"])
def test_an_export_is_written_to_object_storage(
    s3_owner: S3Server, town: World, run: Command, tmp_path: Path, format_: str
):
    at = f"{BUCKET}/{tmp_path.name}"
    reached = ("--set", f"storage.endpoint_url={s3_owner.address}")
    export(run, town.root, format_, tmp_path / "here")
    export(run, town.root, format_, f"s3://{at}", *reached)
    there = s3_owner.files().find(at)
    here = {
        p.relative_to(tmp_path / "here").as_posix(): p for p in (tmp_path / "here").rglob("*") if p.is_file()
    }
    names = {str(path).removeprefix(f"{at}/") for path in there}
    assert {n for n in names if "lancedb" not in n} == {n for n in here if "lancedb" not in n}
    for name in names & set(here):
        if name.endswith((".parquet", ".csv", ".graphml")):
            assert s3_owner.files().cat_file(f"{at}/{name}") == here[name].read_bytes()
    assert "it contains an export" in refused(run, town.root, format_, f"s3://{at}", *reached)
