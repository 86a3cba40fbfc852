"""Extraction with a schema: violations are corrected once, and a closed schema stays closed."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.messages import ChatReply
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.dialogue_runner import run_dialogue
from graphrag_ray.graph.delimited_records import COMPLETION, FIELD, RECORD, parse_records
from graphrag_ray.graph.extraction_dialogue import ChunkText, extract, extract_spec
from graphrag_ray.graph.merge import (
    ExtractionSource,
    entity_instance_rows,
    merge_entities,
    merge_relationships,
    relationship_instance_rows,
)
from graphrag_ray.offline import answer

PROMPTS = load_prompts()
SCHEMA = """
entities: {DRUG: {description: a substance, attributes: [dose]}, DISEASE: an illness}
relations: {TREATS: {from: DRUG, to: DISEASE}, INTERACTS: {from: DRUG, to: DRUG}}
"""
CHUNK = ChunkText("A text.")


def spec(schema=SCHEMA, provider="openai", **extraction):
    model = {"provider": provider} | ({"model": "m"} if provider != "offline" else {})
    extraction = {"schema": schema, "max_gleanings": 0, **extraction}
    return extract_spec(PROMPTS, parse_settings({"models": {"default": model}, "extraction": extraction}))


def entity(name, type_, *rest):
    return f'("entity"{FIELD}{FIELD.join([name, type_, f"{name}.", *rest])})'


def relationship(source, target, *fields):
    return f'("relationship"{FIELD}{FIELD.join([source, target, *fields])})'


def reply(*records):
    return f"\n{RECORD}\n".join([*records, COMPLETION])


DRUG, DISEASE = entity("METFORMIN", "Drug", "dose: 5 mg"), entity("DIABETES", "disease", "")
TREATS = relationship("METFORMIN", "DIABETES", "treats", "It helps.", "8")


def run(replies, schema=SCHEMA, **options):
    """Returns the result, its entities and relationships in short, and the requests."""
    remaining, requests = list(replies), []

    def answer(request):
        requests.append(request)
        return ChatReply(remaining.pop(0))

    result = run_dialogue(extract(CHUNK, spec(schema, **options)), answer)
    entities = [(e.title, e.type) for e in result.entities]
    return result, entities, [(r.source, r.relation, r.target) for r in result.relationships], requests


def test_without_a_schema_nothing_about_one_is_sent():
    plain = extract_spec(PROMPTS, parse_settings({}))
    assert plain.schema is None and plain.correct_schema is None
    assert plain.extract is PROMPTS["extract"] and plain.glean_missing is PROMPTS["glean_missing"]


def test_conforming_records_need_no_correction():
    result, entities, relations, requests = run([reply(DRUG, DISEASE, TREATS)])
    assert entities == [("METFORMIN", "DRUG"), ("DIABETES", "DISEASE")]
    assert relations == [("METFORMIN", "TREATS", "DIABETES")]
    assert result.entities[0].description == "METFORMIN. (dose: 5 mg)"
    assert result.schema_counts == {
        **dict.fromkeys(("schema_violations", "schema_corrected", "schema_untyped", "schema_dropped"), 0),
        **{"schema_records": 3, "relations_reversed": 0},
    }
    (request,) = requests
    system = request.messages[0].content
    assert "- DRUG: a substance. Attributes: dose." in system and "- TREATS (DRUG → DISEASE)" in system


def test_a_relation_whose_ends_fit_when_exchanged_is_turned_around():
    backwards = relationship("DIABETES", "METFORMIN", "TREATS", "It helps.", "8")
    result, _, relations, _ = run([reply(DRUG, DISEASE, backwards)])
    assert relations == [("METFORMIN", "TREATS", "DIABETES")]
    assert result.schema_counts["relations_reversed"] == 1 and not result.schema_counts["schema_violations"]


def test_all_violations_are_corrected_in_one_turn():
    ward = relationship("METFORMIN", "WARD 3", "GIVEN_IN", "There.", "2")
    first = reply(DRUG, DISEASE, entity("ASPIRIN", "PILL"), entity("WARD 3", "PLACE"), ward,
                  relationship("ASPIRIN", "METFORMIN", "FIGHTS", "They interact.", "3"),
                  relationship("METFORMIN", "SUGAR", "TREATS", "Helps.", "3"),
                  relationship("DIABETES", "DIABETES", "TREATS", "Odd.", "3"))  # fmt: skip
    correction = reply(entity("ASPIRIN", "DRUG"),
                       relationship("ASPIRIN", "METFORMIN", "INTERACTS", "They interact.", "3"))  # fmt: skip
    result, entities, relations, requests = run([first, correction])
    assert [r.prompt for r in requests] == ["extract", "correct_schema"]
    listed = requests[1].messages[-1].content
    assert "- entity ASPIRIN: PILL is no entity type of the schema\n" in listed
    no_record = "there is no entity record with a type of the schema for"
    assert f"- relationship ASPIRIN → METFORMIN: {no_record} ASPIRIN; FIGHTS is no relation" in listed
    assert f"- relationship METFORMIN → SUGAR: {no_record} SUGAR\n" in listed
    assert "TREATS connects DRUG → DISEASE, not DISEASE → DISEASE\n" in listed
    assert entities == [("METFORMIN", "DRUG"), ("DIABETES", "DISEASE"), ("ASPIRIN", "DRUG")]
    assert relations == [("ASPIRIN", "INTERACTS", "METFORMIN")]
    counts = result.schema_counts
    assert (counts["schema_records"], counts["schema_violations"]) == (8, 6)
    assert (counts["schema_corrected"], counts["schema_dropped"]) == (2, 4)


def test_a_relationship_is_kept_once_the_correction_adds_its_end():
    result, _, relations, _ = run([reply(DRUG, TREATS), reply(DISEASE)])
    assert relations == [("METFORMIN", "TREATS", "DIABETES")]
    assert result.schema_counts["schema_corrected"] == 1


def test_a_correction_that_repeats_the_whole_reply_adds_nothing_twice():
    first = [DRUG, DISEASE, TREATS, entity("FLU", "ILLNESS")]
    _, entities, relations, _ = run([reply(*first), reply(*first[:3], entity("FLU", "DISEASE"))])
    assert entities == [("METFORMIN", "DRUG"), ("DIABETES", "DISEASE"), ("FLU", "DISEASE")]
    assert relations == [("METFORMIN", "TREATS", "DIABETES")]


def test_a_dropped_relation_of_a_pair_with_another_relation_is_not_corrected():
    fights = relationship("METFORMIN", "DIABETES", "FIGHTS", "It helps.", "8")
    result, _, relations, _ = run([reply(DRUG, DISEASE, TREATS, fights), COMPLETION])
    assert relations == [("METFORMIN", "TREATS", "DIABETES")]
    assert (result.schema_counts["schema_corrected"], result.schema_counts["schema_dropped"]) == (0, 1)


def test_records_of_gleanings_are_corrected_as_well():
    three = [reply(DRUG), reply(entity("FLU", "ILLNESS")), reply(entity("FLU", "DISEASE"))]
    _, entities, _, requests = run(three, max_gleanings=1)
    assert [r.prompt for r in requests] == ["extract", "glean_missing", "correct_schema"]
    assert requests[1].messages[-1].content.startswith("Read the passage again")
    assert entities == [("METFORMIN", "DRUG"), ("FLU", "DISEASE")]


@pytest.mark.parametrize("useless", ["", "I cannot.", COMPLETION, reply(entity("FLU", "ILLNESS"))])
def test_what_is_still_wrong_is_dropped_without_another_turn(useless):
    result, entities, _, requests = run([reply(DRUG, entity("FLU", "ILLNESS")), useless])
    assert len(requests) == 2 and entities == [("METFORMIN", "DRUG")]
    assert result.schema_counts["schema_dropped"] == 1


def test_an_open_schema_keeps_other_types():
    first = reply(DRUG, DISEASE, entity("ANN", "person"),
                  relationship("ANN", "METFORMIN", "is given", "She takes it.", "4"),
                  relationship("DIABETES", "DIABETES", "TREATS", "Odd.", "3"),
                  relationship("DIABETES", "ANN", "TREATS", "Odd.", "3"))  # fmt: skip
    _, entities, relations, requests = run([first], SCHEMA + "open: true")
    assert ("ANN", "PERSON") in entities and len(requests) == 1
    assert ("ANN", "IS_GIVEN", "METFORMIN") in relations


def test_a_relation_between_wrong_types_loses_its_type_if_other_relations_are_allowed():
    schema = SCHEMA + "additional_relationship_types: true"
    odd = relationship("DIABETES", "FLU", "TREATS", "Odd.", "3")
    first = reply(DISEASE, entity("FLU", "DISEASE"), odd)
    result, _, relations, _ = run([first, COMPLETION], schema)
    assert relations == [("DIABETES", "", "FLU")]
    assert (result.schema_counts["schema_untyped"], result.schema_counts["schema_dropped"]) == (1, 0)


def test_a_schema_without_relations_leaves_relationships_without_types():
    first = reply(DRUG, DISEASE, relationship("METFORMIN", "DIABETES", "", "Helps.", "4"),
                  relationship("DIABETES", "METFORMIN", "Helps.", "4"))  # fmt: skip
    _, _, relations, requests = run([first], "entities: [drug, disease]")
    assert relations == [("METFORMIN", "", "DIABETES"), ("DIABETES", "", "METFORMIN")]
    assert "leave the field RELATION empty" in requests[0].messages[0].content


@pytest.mark.parametrize(
    ("fields", "relation", "description", "strength"),
    [
        (["TREATS", "It helps.", "8"], "TREATS", "It helps.", 8.0),
        (["It helps.", "treats", "8"], "treats", "It helps.", 8.0),
        (["It helps.", "8", "TREATS"], "TREATS", "It helps.", 8.0),
        (["FIGHTS", "It helps.", "8"], "FIGHTS", "It helps.", 8.0),
        (["TREATS", "8"], "TREATS", "", 8.0),
        (["It helps.", "8"], "", "It helps.", 8.0),
        (
            ["It helps " + "very much " * 20, "indeed.", "8"],
            "",
            "It helps " + "very much " * 20 + "indeed.",
            8.0,
        ),
    ],
)
def test_the_relation_is_read_wherever_it_stands(fields, relation, description, strength):
    known = {"TREATS"}
    records = parse_records(relationship("A", "B", *fields), is_relation=lambda text: text.upper() in known)
    (found,) = records.relationships
    assert (found.relation, found.description, found.strength) == (relation, description, strength)


def test_the_offline_engine_gives_entities_the_types_that_it_knows():
    schema = "entities: [Person, DRUG]\nrelations: {KNOWS: {from: person, to: person}}"
    chunk = ChunkText("Mara Venn met Ole Brandt in Oslo. Mara Venn wrote to Ole Brandt.")
    result = run_dialogue(extract(chunk, spec(schema, "offline")), answer)
    assert {e.type for e in result.entities} == {"PERSON"}
    assert [(r.source, r.relation, r.target) for r in result.relationships] == [
        ("MARA VENN", "", "OLE BRANDT")
    ]
    assert not result.schema_counts["schema_violations"]


NAMES = ["A", "B", "C", "&amp;", ""]
TYPES = ["DRUG", "disease", "Drugs", "PERSON", "", "adverse event", "ＤＲＵＧ"]
RELATIONS = ["TREATS", "interacts", "KNOWS", "", "treats it"]
record = st.one_of(
    st.builds(entity, st.sampled_from(NAMES), st.sampled_from(TYPES)),
    st.builds(
        relationship, *[st.sampled_from(NAMES)] * 2, st.sampled_from(RELATIONS), st.just("x"), st.just("5")
    ),
    st.text(max_size=20),
)
replies = st.lists(record, max_size=8).map(lambda records: reply(*records))


@given(st.lists(replies, min_size=3, max_size=3))
def test_a_closed_schema_never_leaks_another_type(three):
    result, _, _, requests = run([reply(DRUG), *three], max_gleanings=2)
    assert len(requests) <= 4
    found = [(ExtractionSource("u", "d", 0), result)]
    instances, links = entity_instance_rows(found), relationship_instance_rows(found)
    types = {row["title"]: row["type"] for row in merge_entities(instances).to_pylist()}
    assert set(types.values()) <= {"DRUG", "DISEASE"}
    allowed = {"TREATS": ("DRUG", "DISEASE"), "INTERACTS": ("DRUG", "DRUG")}
    stated: dict[str, set[str]] = {}
    for e in result.entities:
        stated.setdefault(e.title, set()).add(e.type)
    for r in result.relationships:
        pairs = set(product(stated[r.source], stated[r.target]))
        assert allowed[r.relation] in pairs
    assert set(merge_relationships(links)["relation"].to_pylist()) <= allowed.keys()
    counts = result.schema_counts
    assert counts["schema_violations"] == counts["schema_corrected"] + counts["schema_dropped"]
    assert (
        len(result.entities) + len(result.relationships)
        >= counts["schema_records"] - counts["schema_violations"]
    )
