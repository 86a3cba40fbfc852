"""Tracing cited records to chunks and documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from graphrag_ray.base.context_records import Reference
from graphrag_ray.query import sources
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.sources import Source, cited_records, rank_by_answer, sources_of

TEXTS = {
    "t1": "The eels died. Nobody knew why. ALICE asked BOB about the eels.",
    "t2": "BOB paid CAROL for a boat. CAROL sold it again.",
    "t3": "It rained. ALICE went home.",
}


def row(id_: str, number: int, **columns: Any) -> dict[str, Any]:
    return {"id": id_, "human_readable_id": number, **columns}


def relationship(id_: str, number: int, a: str, b: str, *chunks: str) -> dict[str, Any]:
    ends = {"source": a, "target": b, "source_id": f"e{a}", "target_id": f"e{b}"}
    return row(id_, number, **ends, description=f"{a} knows {b}", text_unit_ids=list(chunks))


def claim(id_: str, number: int, subject: str, entity: str | None, chunk: str) -> dict[str, Any]:
    told = {"subject_id": subject, "object_id": "NONE", "description": f"{subject} asked"}
    return row(id_, number, **told, subject_entity_id=entity, text_unit_ids=[chunk])


def report(id_: str, number: int, title: str, *cited: tuple[str, str]) -> dict[str, Any]:
    references = [{"section": section, "id": id_} for section, id_ in cited]
    return row(id_, number, title=title, rank=7.0, references=references or None)


def document(id_: str, path: str, number: str = "", date: str | None = None) -> dict[str, Any]:
    about = {"title": id_, "creation_date": date, "raw_data": '{"x": 1}' if number else None}
    return {"id": id_, "path": path, "row": number, **about}


TABLES: dict[str, list[dict[str, Any]]] = {
    "community_reports": [
        report("r1", 1, "On the town", ("Reports", "r2"), ("Entities", "eBOB")),
        report("r2", 2, "On eels", ("Relationships", "ab"), ("Claims", "c1")),
        report("r3", 3, "On nothing"),
    ],
    "entities": [
        row("eALICE", 11, title="ALICE", type="PERSON", text_unit_ids=["t1", "t3"]),
        row("eBOB", 12, title="BOB", type="PERSON", text_unit_ids=["t1", "t2"]),
        row("eCAROL", 13, title="CAROL", type="", text_unit_ids=["t2"]),
    ],
    "relationships": [
        relationship("ab", 21, "ALICE", "BOB", "t1"),
        relationship("bc", 22, "BOB", "CAROL", "t2"),
    ],
    "covariates": [
        claim("c1", 31, "ALICE", "eALICE", "t1"),
        claim("c2", 32, "ZOE", None, "t3"),
    ],
    "text_units": [
        row(id_, n, document_id=f"d{n}", start=10 * n, end=10 * n + len(text), text=text)
        for n, (id_, text) in enumerate(TEXTS.items(), 1)
    ],
    "documents": [document("d1", "a.txt"), document("d2", "b.csv", "4", "2020"), document("d3", "c.txt")],
}


def read(table: str, ids: Iterable[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    wanted = set(ids)
    return {r["id"]: {c: r[c] for c in columns} for r in TABLES[table] if r["id"] in wanted}


def found(section: str, id_: str, **options: Any) -> Source:
    (source,) = sources_of([Reference(section, id_)], read, **options)
    return source


def names(source: Source) -> tuple[list[str], list[str], list[str], list[int]]:
    return (
        [e["title"] for e in source.entities],
        [f"{r['source']}-{r['target']}" for r in source.relationships],
        [c["description"] for c in source.claims],
        [c["human_readable_id"] for c in source.chunks],
    )


@pytest.mark.parametrize(
    ("section", "id_", "rests_on"),
    [
        ("Reports", "r1", (["BOB"], ["ALICE-BOB"], ["ALICE asked"], [1, 2])),
        ("Reports", "r3", ([], [], [], [])),
        ("Entities", "eALICE", (["ALICE"], [], [], [1, 3])),
        ("Relationships", "bc", (["BOB", "CAROL"], ["BOB-CAROL"], [], [2])),
        ("Claims", "c1", (["ALICE"], [], ["ALICE asked"], [1])),
        ("Claims", "c2", ([], [], ["ZOE asked"], [3])),
        ("Sources", "t2", ([], [], [], [2])),
    ],
)
def test_records_of_all_sections_are_traced_to_their_evidence(section: str, id_: str, rests_on: Any):
    assert names(found(section, id_)) == rests_on


def test_chunks_have_positions_in_their_documents():
    (chunk,) = found("Relationships", "bc").chunks
    assert (chunk["document"], chunk["row"], chunk["place"]) == ("b.csv", "4", "b.csv, row 4")
    assert (chunk["start"], chunk["end"], chunk["text"]) == (20, 20 + len(TEXTS["t2"]), TEXTS["t2"])
    assert chunk["quote"] == "BOB paid CAROL for a boat." and chunk["quote_start"] == 20
    assert (chunk["date"], chunk["metadata"]) == ("2020", '{"x": 1}')


@pytest.mark.parametrize(
    ("section", "id_", "name"),
    [
        ("Reports", "r2", "On eels"),
        ("Entities", "eBOB", "BOB"),
        ("Relationships", "ab", "ALICE – BOB"),
        ("Claims", "c1", "ALICE asked"),
        ("Sources", "t2", f"d2 (2020): b.csv, row 4, characters 20–{20 + len(TEXTS['t2'])}"),
    ],
)
def test_records_have_readable_names(section: str, id_: str, name: str):
    (cited,) = cited_records([Reference(section, id_)], read)
    source = found(section, id_)
    assert (cited.section, cited.name) == (section, name) == (source.record["section"], source.record["name"])
    assert cited.number == source.record["human_readable_id"]


def test_chunk_without_title_is_named_after_its_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TABLES, "documents", [document("d1", "minutes/d1.txt")])
    (cited,) = cited_records([Reference("Sources", "t1")], read)
    assert cited.name == f"minutes/d1.txt, characters 10–{10 + len(TEXTS['t1'])}"


def test_cited_chunk_has_title_and_date():
    record = found("Sources", "t2").record
    assert (record["title"], record["date"]) == ("d2", "2020") and "title" not in found("Claims", "c1").record


def test_cited_records_are_grouped_by_section_and_skip_missing_ones():
    cited = [
        ("Sources", "t3"),
        ("Entities", "eBOB"),
        ("Entities", "gone"),
        ("Reports", "r3"),
        ("Entities", "eALICE"),
    ]
    wanted = [Reference(*c) for c in cited]
    assert [c.number for c in cited_records(wanted, read)] == [3, 12, 11, 3]
    assert [s.record["human_readable_id"] for s in sources_of(wanted, read)] == [3, 12, 3, 11]
    assert sources_of([], read) == cited_records([], read) == []


def test_chunks_in_context_and_with_most_evidence_are_read_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "MAX_SOURCE_CHUNKS", 1)
    source = found("Reports", "r1")  # t1 contains three of the cited records, t2 one
    assert [c["human_readable_id"] for c in source.chunks] == [1] and source.chunks_left_out == 1
    source = found("Entities", "eALICE", used={"t3"})
    assert [c["human_readable_id"] for c in source.chunks] == [3] and source.chunks_left_out == 1


def test_answer_leads_to_supporting_sentences():
    text = (
        "The eels died [Data: Sources (1)]. ALICE went to her home [Data: Entities (11)]. “BOB paid CAROL” "
        "for it [Data: Relationships (22); Claims (32)]."
    )
    cited = [("Sources", "t1"), ("Entities", "eALICE"), ("Relationships", "bc"), ("Claims", "c2")]
    wanted = tuple(Reference(*c) for c in cited)
    answer = Answer("?", text, "local", wanted)
    source, entity, edge, stated = rank_by_answer(sources_of(wanted, read), answer)
    assert source.evidence[0]["quote"] == "The eels died."
    assert entity.evidence[0]["quote"] == "ALICE went home." and entity.chunks[0]["human_readable_id"] == 3
    assert edge.evidence[0]["verbatim"] and edge.evidence[0]["quote"] == "BOB paid CAROL"
    assert (edge.evidence[0]["place"], edge.evidence[0]["start"]) == ("b.csv, row 4", 20)
    assert stated.evidence == [] and stated.chunks, "nothing of the claim's own chunk says so"
