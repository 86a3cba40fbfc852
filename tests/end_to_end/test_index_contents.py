"""An end-to-end index contains exactly what its documents and the rules of the toy model imply."""

from __future__ import annotations

import io
import json
import re

import pyarrow as pa
import pyarrow.parquet
import pytest
import toy_model
from world import DEEP, TOWN, Built, World, chain, everything, expected_entities, expected_relationships

from graphrag_ray.base.errors import LevelNotFound
from graphrag_ray.base.schema import INTERMEDIATE_TABLES, TABLES
from graphrag_ray.store.parts import list_parts, read_part

TABLE_OF = {
    "Entities": "entities",
    "Relationships": "relationships",
    "Claims": "covariates",
    "Reports": "community_reports",
    "Sources": "text_units",
}
ALL_HIERARCHIES = {
    "hierarchies": ("leiden", "attributed", "tree"),
    "tree": {"dimensionality_reduction": "pca"},
}


def test_entities_and_relationships_are_those_of_the_texts(world: World, built: Built):
    world.take(built(TOWN))
    entities = world.table("entities")
    assert {e["title"]: e["frequency"] for e in entities} == expected_entities(TOWN.values())
    assert {len(e["text_unit_ids"]) == e["frequency"] for e in entities} == {True}
    assert {e["type"] for e in entities} == {"PERSON"}
    edges = world.table("relationships")
    weights = {(r["source"], r["target"]): r["weight"] for r in edges}
    assert weights == expected_relationships(TOWN.values())


def test_degrees_are_those_of_the_whole_graph(world: World, built: Built):
    world.take(built(TOWN))
    degree = {e["title"]: e["degree"] for e in world.table("entities")}
    ends = [name for pair in expected_relationships(TOWN.values()) for name in pair]
    assert degree == {name: ends.count(name) for name in degree}
    for r in world.table("relationships"):
        assert r["combined_degree"] == degree[r["source"]] + degree[r["target"]]


def test_several_descriptions_are_summarised_and_a_single_one_is_kept(world: World, built: Built):
    world.take(built(TOWN, descriptions={"concatenate_up_to_tokens": 0}))
    description = {e["title"]: e["description"] for e in world.table("entities")}
    assert description["JUDY"] == "GRACE bought flour from JUDY."
    assert description["ALICE"].startswith("ALICE: ")
    for sentence in ("ALICE met BOB at the council.", "CAROL thanked ALICE.", "ALICE met BOB again."):
        assert sentence in description["ALICE"]


def test_every_table_has_its_schema(world: World, built: Built):
    names = {"aliases": "HEIDI: [{name: IVAN, document: brewery.txt}]"}
    world.take(built(TOWN, claims={"enabled": True}, names=names, **ALL_HIERARCHIES))
    opened = world.open()
    for name, schema in TABLES.items():
        table = opened.table(name)
        assert table.schema.equals(schema), name
        assert (table.num_rows == 0) == (name == "failures"), name


def test_only_finished_tables_are_in_their_folder_and_others_are_documented(world: World, built: Built):
    world.take(built(TOWN, claims={"enabled": True}, **ALL_HIERARCHIES))
    intermediate = set()
    for info in list_parts(world.store):
        folder, *table, _ = info.path.split("/")
        if folder == "tables" and not table[0].startswith("embeddings_"):
            assert read_part(world.store, info.path).schema.equals(TABLES[table[0]]), info.path
        elif folder == "intermediate":
            intermediate.add("/".join(table))
    assert intermediate - INTERMEDIATE_TABLES.keys() == set()


def test_offsets_locate_every_chunk_in_its_document(world: World):
    world.write({"umlauts.txt": "ÄRGER über ALICE. 🌊 " * 200, **TOWN})
    world.index(chunking={"size": 60, "overlap": 10, "min_last_chunk_tokens": 5})
    documents = {d["id"]: d for d in world.table("documents")}
    units = world.table("text_units")
    assert len(units) > 40
    for u in units:
        text = documents[u["document_id"]]["text"]
        assert u["text"] == text[u["start"] : u["end"]]
    for d in documents.values():
        in_document = [u for u in units if u["document_id"] == d["id"]]
        assert d["text_unit_ids"] == [u["id"] for u in sorted(in_document, key=lambda u: u["position"])]


def test_chunks_list_their_records(world: World, built: Built):
    world.take(built(TOWN, claims={"enabled": True}))
    names = {e["id"]: e["title"] for e in world.table("entities")}
    pairs = {r["id"]: (r["source"], r["target"]) for r in world.table("relationships")}
    claims = {c["id"]: c for c in world.table("covariates")}
    for u in world.table("text_units"):
        assert {names[i] for i in u["entity_ids"]} == set(expected_entities([u["text"]]))
        assert {pairs[i] for i in u["relationship_ids"]} == set(expected_relationships([u["text"]]))
        assert all(u["id"] in claims[i]["text_unit_ids"] for i in u["covariate_ids"])
        assert bool(u["covariate_ids"]) == bool(u["entity_ids"])


def test_instances_name_their_chunks(world: World, built: Built):
    world.take(built(TOWN))
    texts = {u["id"]: " ".join(u["text"].split()) for u in world.table("text_units")}
    instances = world.table("entity_instances") + world.table("relationship_instances")
    assert all(i["description"] in texts[i["text_unit_id"]] for i in instances)
    assert {i["title"] for i in world.table("entity_instances")} == set(expected_entities(TOWN.values()))


def test_a_document_as_one_chunk(world: World):
    world.write({"long.txt": "ALICE met BOB. " * 1000, "short.txt": "BOB left."})
    world.index(chunking={"size": "document"})
    assert sorted(len(u["text"]) for u in world.table("text_units")) == [9, 15000]
    assert world.prompts()["extract"] == 2


def test_every_level_contains_every_entity_once(world: World):
    world.write(chain(40))
    done = world.index(**DEEP)
    everyone = {e["id"] for e in world.table("entities")}
    communities = world.table("communities")
    parents = {c["parent"] for c in communities}
    n_levels = max(c["level"] for c in communities) + 1
    assert n_levels > 2
    assert list(done.manifest.counts["levels"]) == [f"C{k}" for k in range(n_levels)]
    for k in range(n_levels):
        at_level = [
            c for c in communities if c["level"] == k or (c["level"] < k and c["community"] not in parents)
        ]
        members = [e for c in at_level for e in c["entity_ids"]]
        assert len(members) == len(everyone) and set(members) == everyone
        assert done.manifest.counts["levels"][f"C{k}"] == len(at_level)


def test_communities_have_parents_children_and_inner_relationships(world: World):
    world.write(chain(40))
    world.index(**DEEP)
    communities = {c["community"]: c for c in world.table("communities")}
    ends = {r["id"]: {r["source_id"], r["target_id"]} for r in world.table("relationships")}
    for c in communities.values():
        children = [communities[k] for k in c["children"]]
        assert all(k["parent"] == c["community"] and k["level"] == c["level"] + 1 for k in children)
        if children:
            assert sorted(e for k in children for e in k["entity_ids"]) == sorted(c["entity_ids"])
        inside = {r for r, both in ends.items() if both <= set(c["entity_ids"])}
        assert set(c["relationship_ids"]) == inside
        assert c["size"] == len(c["entity_ids"])
        assert c["size"] <= 3 or children or c["packed"]


def test_every_community_has_a_report_and_every_reference_resolves(world: World):
    world.write(chain(40))
    world.index(claims={"enabled": True}, **DEEP)
    reports = world.table("community_reports")
    assert [r["community"] for r in reports] == [c["community"] for c in world.table("communities")]
    rows = {section: world.table(table) for section, table in TABLE_OF.items()}
    ids = {section: {row["id"] for row in table} for section, table in rows.items()}
    numbers = {
        section: {row["human_readable_id"]: row["id"] for row in table} for section, table in rows.items()
    }
    for r in reports:
        assert r["references"], "the toy model cites in every report"
        assert all(c["id"] in ids[c["section"]] for c in r["references"])
        shown = toy_references(r["full_content"])
        assert {(s, numbers[s][n]) for s, n in shown} == {(c["section"], c["id"]) for c in r["references"]}
        assert json.loads(r["full_content_json"])["title"] == r["title"]


def toy_references(text: str) -> set[tuple[str, int]]:
    found = re.findall(r"\[Data: (\w+) \(([\d, ]+)\)\]", text)
    return {(section, int(n)) for section, listed in found for n in listed.split(",")}


def test_report_contexts_stay_within_their_budget(world: World):
    world.write(chain(40))
    world.index(reports={"context_tokens": 600}, **DEEP)
    reports = world.table("community_reports")
    assert max(r["context_tokens"] for r in reports) <= 600
    asked = [
        toy_model.recognise(b["messages"][-1]["content"])
        for b in world.endpoint.bodies()
        if b["messages"][-1]["content"].startswith("Write the report")
    ]
    assert any("-----Reports-----" in variables["context"] for _, variables in asked), (
        "some community is too large to be written from its elements"
    )


def test_table_columns_become_metadata_of_cited_documents(world: World):
    world.write(
        {
            "letters.csv": "text,title,date,author,page\n"
            '"ALICE met BOB, on the pier.",A letter,1903-05-01,Ann,12\n'
            "CAROL left.,Another,1904,Ben,13\n",
            "notes.jsonl": '{"text": "BOB met CAROL.", "title": "Note", "tags": ["x", "y"]}\n',
            "plain.txt": "ALICE slept.",
        }
    )
    world.index()
    documents = {(d["path"], d["row"]): d for d in world.table("documents")}
    assert set(documents) == {
        ("letters.csv", "1"),
        ("letters.csv", "2"),
        ("notes.jsonl", "1"),
        ("plain.txt", ""),
    }
    assert json.loads(documents["letters.csv", "1"]["raw_data"]) == {"author": "Ann", "page": "12"}
    assert documents["plain.txt", ""]["raw_data"] is None
    opened = world.open()
    (source,) = opened.sources(opened.ask("What are the THEMES?").references)
    chunks = {(c["document"], c["row"]): c for c in source.chunks}
    letter = chunks["letters.csv", "1"]
    assert json.loads(letter["metadata"])["author"] == "Ann"
    assert (letter["title"], letter["date"]) == ("A letter", "1903-05-01")
    assert letter["text"] == "ALICE met BOB, on the pier."
    assert json.loads(chunks["notes.jsonl", "1"]["metadata"]) == {"tags": ["x", "y"]}


def test_table_columns_can_be_configured(world: World):
    world.write({"a.jsonl": '{"body": "ALICE met BOB.", "ref": "R7", "head": "T", "when": "2001"}\n'})
    world.index(
        input={"text_column": "body", "id_column": "ref", "title_column": "head", "date_column": "when"}
    )
    (d,) = world.table("documents")
    assert (d["row"], d["title"], d["creation_date"], d["raw_data"]) == ("R7", "T", "2001", None)


def test_every_file_format_is_read(world: World):
    out = io.BytesIO()
    pa.parquet.write_table(pa.table({"text": ["FAYE met GUS."], "title": ["p"]}), out)
    world.write(
        {
            "a.txt": "ANNA met BERT.",
            "b.md": "# A heading\n\nBERT met CORA.",
            "c.html": "<html><head><title>T</title></head><body><p>CORA met DORA.</p></body></html>",
            "d.jsonl": '{"text": "DORA met EDNA."}\n',
            "e.csv": "text,title\nEDNA met FAYE.,x\n",
            "f.parquet": out.getvalue(),
            "sub/folder/g.txt": "GUS met HANS.",
            "ignored.bin": b"\x00\x01",
            ".hidden.txt": "NOBODY",
        }
    )
    world.index()
    names = {"ANNA", "BERT", "CORA", "DORA", "EDNA", "FAYE", "GUS", "HANS"}
    assert {e["title"] for e in world.table("entities")} == names
    assert "sub/folder/g.txt" in {d["path"] for d in world.table("documents")}


def test_claims_have_their_subject_and_chunks(world: World):
    world.write(TOWN)
    done = world.index(claims={"enabled": True})
    claims = world.table("covariates")
    stated = {c["subject_id"]: len(c["text_unit_ids"]) for c in claims}
    assert stated == {"ALICE": 2, "CAROL": 1, "DAVE": 1, "GRACE": 1}, "two documents make the same claim"
    assert done.manifest.counts["claims"] == 4
    entities = {e["id"]: e["title"] for e in world.table("entities")}
    texts = {u["id"]: u["text"] for u in world.table("text_units")}
    for c in claims:
        assert entities[c["subject_entity_id"]] == c["subject_id"]
        assert (c["covariate_type"], c["status"], c["start_date"]) == ("claim", "TRUE", "2020-01-01")
        assert c["object_id"] == "NONE" and c["source_text"] in texts[c["text_unit_id"]]
    assert world.prompts()["claims"] == 5


def test_claims_are_disabled_by_default(world: World, built: Built):
    world.take(built(TOWN))
    assert world.prompts()["claims"] == 0 and world.table("covariates") == []


def test_everything_is_embedded_once(world: World, built: Built):
    world.take(built(TOWN))
    tables = everything(world.open())
    for kind, table in (
        ("entity", "entities"),
        ("relationship", "relationships"),
        ("text_unit", "text_units"),
        ("community_report", "community_reports"),
    ):
        embedded = tables[f"embeddings_{kind}"]
        assert sorted(e["id"] for e in embedded) == sorted(r["id"] for r in tables[table])
        assert {len(e["vector"]) for e in embedded} == {256}


def test_embeddings_come_from_a_configured_model(world: World):
    world.write(TOWN)
    world.index(**world.embedding)
    sent = [t for b in world.endpoint.bodies("/embeddings") for t in b["input"]]
    tables = everything(world.open())
    assert len(sent) == len(set(sent)) == sum(len(tables[t]) for t in tables if t.startswith("embeddings_"))
    assert {len(e["vector"]) for e in tables["embeddings_entity"]} == {12}


def test_embeddings_can_be_disabled(world: World, built: Built):
    world.take(built(TOWN, embeddings={"enabled": False}))
    tables = everything(world.open())
    assert [t for t in tables if t.startswith("embeddings_") and tables[t]] == []
    assert world.open().ask("What are the THEMES?").found


def test_leidenalg_supports_other_quality_functions(world: World):
    world.write(chain(40))
    world.index(communities={"library": "leidenalg", "quality": "surprise", "pack_components_below": 1})
    communities = world.table("communities")
    top = [e for c in communities if c["level"] == 0 for e in c["entity_ids"]]
    assert sorted(top) == sorted(e["id"] for e in world.table("entities")) and len(communities) > 1


def test_aliases_are_merged_and_blocked_names_removed(world: World, tmp_path):
    (tmp_path / "aliases.yaml").write_text("ALICE: [CAROL]\n")
    (tmp_path / "block.txt").write_text("dave\n")
    world.write(TOWN)
    names = {"aliases_file": str(tmp_path / "aliases.yaml"), "blocklist_file": str(tmp_path / "block.txt")}
    done = world.index(names=names)
    titles = {e["title"] for e in world.table("entities")}
    assert titles == set(expected_entities(TOWN.values())) - {"CAROL", "DAVE"}
    assert not any("DAVE" in (r["source"], r["target"]) for r in world.table("relationships"))
    assert done.manifest.steps["extract"]["counts"]["blocked_names"] > 0


@pytest.mark.parametrize(("gleaning", "turn"), [("direct", "glean_missing"), ("check", "glean")])
def test_a_gleaned_record_is_kept(world: World, gleaning: str, turn: str):
    def forgetful(body: dict) -> str:
        name, _ = toy_model.recognise(body["messages"][-1]["content"])
        if name == "glean_check":
            return "Yes, some are missing."
        if name == turn:
            return '("entity"<|>ZELDA<|>PERSON<|>Forgotten at first.)\n##\n<|COMPLETE|>'
        return toy_model.respond(body)

    world.endpoint.respond = forgetful
    world.write({"a.txt": "ALICE met BOB."})
    world.index(extraction={"gleaning": gleaning})
    assert {e["title"] for e in world.table("entities")} == {"ALICE", "BOB", "ZELDA"}
    assert {i["turn"] for i in world.table("entity_instances") if i["title"] == "ZELDA"} == {1}


def test_an_offline_index_says_that_no_model_wrote_it(world: World):
    world.write({"a.txt": "Mara Venn is the mayor of Tolsey. Mayor Mara Venn met Ines Calloway in Tolsey."})
    done = world.index(models={"default": {"provider": "offline"}})
    assert "offline engine" in done.manifest.notes["offline"]
    assert "offline engine" in " ".join(world.open().ask("What are the main themes?").notes)
    assert world.asked() == 0


def test_an_unknown_level_lists_the_known_ones(world: World):
    world.write(chain(40))
    world.index(**DEEP)
    n_levels = max(c["level"] for c in world.table("communities")) + 1
    with pytest.raises(LevelNotFound, match=", ".join(f"C{k}" for k in range(n_levels))):
        world.open().ask("What are the THEMES?", level="C9")
