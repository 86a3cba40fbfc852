from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.schema_from_models import schema_from_models
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.graph.extraction_schema import MAX_TYPES, parse_schema, type_key

CLINIC = """
entities:
  drug:
    description: a substance
    attributes: {dose: as written, route: }
    examples: [aspirin, NO]
  Adverse event: an unwanted effect
  DISEASE:
relations:
  treats: {description: is given against, from: drug, to: [DISEASE, adverse-event]}
  causes:
patterns:
  - [DRUG, CAUSES, adverse_event]
  - [Disease, Causes, DISEASE]
"""


def test_a_schema_is_listed_as_requests_show_it():
    schema = parse_schema(CLINIC)
    assert [t.line for t in (*schema.entities, *schema.relations)] == [
        "- DRUG: a substance. Attributes: dose (as written), route. Examples: aspirin; NO.",
        "- ADVERSE EVENT: an unwanted effect.",
        "- DISEASE",
        "- TREATS (DRUG → DISEASE or ADVERSE EVENT): is given against.",
        "- CAUSES (DRUG → ADVERSE EVENT; DISEASE → DISEASE)",
    ]
    assert not (schema.open_entities or schema.open_relations or schema.open_patterns)


@pytest.mark.parametrize(
    "name", ["adverse event", "ADVERSE_EVENT", "Adverse-Event", "ＡＤＶＥＲＳＥ event", "Adverse event."]
)
def test_types_are_found_in_any_case_width_and_spelling(name):
    assert parse_schema(CLINIC).entity_type(name).name == "ADVERSE EVENT"


def test_a_list_of_names_is_a_schema():
    schema = parse_schema("entities: [Person, 1984, NO]\nopen: true")
    assert [t.name for t in schema.entities] == ["PERSON", "1984", "NO"]
    assert schema.open_entities and schema.open_relations and schema.open_patterns


def test_a_schema_of_neo4j_graphrag_is_read():
    schema = parse_schema(
        json.dumps(
            {
                "node_types": [
                    {"label": "Person", "properties": [{"name": "age", "type": "INTEGER"}]},
                    {"label": "House", "description": "a building", "additional_properties": True},
                    "Planet",
                ],
                "relationship_types": ["OWNS", {"label": "LIVES_ON", "description": "has a home there"}],
                "patterns": [
                    ["Person", "OWNS", "House"],
                    {"source": "Person", "relationship": "LIVES_ON", "target": "Planet"},
                ],
                "additional_node_types": False,
                "additional_relationship_types": True,
                "constraints": [{"type": "UNIQUENESS"}],
            }
        )
    )
    assert [t.line for t in schema.entities] == [
        "- PERSON: Attributes: age.",
        "- HOUSE: a building.",
        "- PLANET",
    ]
    assert [r.ends for r in schema.relations] == ["PERSON → HOUSE", "PERSON → PLANET"]
    assert (schema.open_entities, schema.open_relations, schema.open_patterns) == (False, True, False)


def test_a_relation_without_ends_connects_all_types():
    schema = parse_schema("entities: [A, B]\nrelations: {R: {from: A}, S: }")
    first, second = schema.relations
    assert first.fits({"A"}, {"B"}) and not first.fits({"B"}, {"A"}) and first.fits(set(), {"A"})
    assert second.fits({"B"}, {"A"})


NAMES = ", ".join(f"T{n}" for n in range(10_000))
BOMB = "a: &a [x, x]\n" + "".join(
    f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}]\n"
    for p, c in zip("abcdefghij", "bcdefghijk", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "declares no entity type. Declare at least one under `entities:`"),
        ("# nothing", "declares no entity type"),
        ("{}", "declares no entity type"),
        ("entities:", "declares no entity type"),
        ("entities: []", "declares no entity type"),
        ("relations: [R]", "declares no entity type"),
        ("- A", "line 1: expected a mapping"),
        ("entities:\n  A: x\n  a: y", "line 3: 'A' is already declared in line 2"),
        ("entities: [A, Ａ]", "line 1: 'Ａ' is already declared"),
        ("entities: [a b, A_B]", "line 1: 'A_B' is already declared"),
        ("entities: [A]\nentities: [B]", "line 2: entities is given twice"),
        ("entities: [A]\nnode_types: [B]", "line 2: node_types is given twice"),
        (
            "entities: [A]\nrelations: {R: {from: B}}",
            "line 2: 'B' is not a declared entity type.*choose from: A",
        ),
        ("entities: [A]\npatterns: [[A, R, A]]", "line 2: 'R' is not a declared relation.*no relation is"),
        ("nodes: [A]", "line 1: unknown key 'nodes'. Choose from: entities"),
        ("entities: [A]\nrelations: {R: {source: A}}", "line 2: unknown key 'source'. Choose from: descr"),
        (
            "entities: [A]\nrelations: [R]\npatterns:\n- [A, R, Q]",
            "line 4: 'Q' is not a declared entity type",
        ),
        ("entities: [A]\nrelations: [R]\npatterns: [[A, R]]", "line 3: expected a pattern"),
        ("entities: [A]\nrelations: [R, r]", "line 2: 'R' is already declared"),
        (f"entities: [{NAMES}]", f"10,000 types in entities, but at most {MAX_TYPES} are allowed"),
        ("entities: {" + NAMES.replace(",", ": ,") + ": }", "10,000 types in entities"),
        ("x" * 300_000, "has 300,000 characters"),
        ("entities: &a {A: *a}", "line 1: unknown key 'A'"),
        ("entities: &a [*a]", "line 1: expected the name of a type"),
        (BOMB + "entities: *k", "line 1: unknown key 'a'"),
        ("entities: {A: {attributes: &x {y: *x}}}", "unknown key 'y'"),
        (
            "entities: {A: {colour: red}}",
            "line 1: unknown key 'colour'. Choose from: description, attributes",
        ),
        ("entities: {A: {description: red, or blue}}", "unknown key 'or blue'. Quote a text with commas"),
        ("entities: {A: {attributes: [x, x]}}", "attribute 'x' of A is empty or given twice"),
        ("entities: [[A]]", "expected the name of a type"),
        ("entities: ['']", "expected the name of a type"),
        ("entities: ['_']", "expected the name of a type"),
        ("entities: ['A, B']", "remove ',' from the name"),
        (f"entities: [{'A' * 100}]", "longer than 80 characters"),
        ("entities: {A: 'x <|> y'}", "remove <|"),
        (f"entities: {{A: {'x' * 2_000}}}", "shorten it to 1,000"),
        ("entities: [A]\nopen: perhaps", "line 2: open must be true or false"),
        ("entities: [A", "not valid YAML"),
        ("[" * 100_000, "nested too deeply"),
        (
            "entities: {" + ", ".join(f"T{n}: {'x' * 900}" for n in range(90)) + "}",
            "characters in every request",
        ),
    ],
)
def test_an_invalid_schema_is_reported(text, message):
    with pytest.raises(SettingsError, match=message):
        parse_schema(text)


def test_a_bomb_inside_a_schema_is_not_expanded():
    with pytest.raises(SettingsError, match="expected a text"):
        parse_schema("entities: {A: {examples: &a [[x, x]]}, B: {examples: [*a, *a]}}")


@given(st.text(max_size=60))
def test_keys_of_types_are_stable(name):
    assert type_key(type_key(name)) == type_key(name)


class Disease(BaseModel):
    """An illness
    of people."""

    name: str
    follows: Disease | None = None


class AdverseEvent(BaseModel):
    severity: str | None = Field(None, description="mild to severe")


class Drug(BaseModel):
    """A substance."""

    dose: str | None = None
    treats: list[Disease] = []
    mayCause: list[AdverseEvent | Disease] = Field([], description="as an unwanted effect")


def test_pydantic_models_are_a_schema():
    settings = parse_settings({"extraction": {"schema": [Drug]}})
    schema = parse_schema(settings.extraction.schema)
    assert [t.line for t in (*schema.entities, *schema.relations)] == [
        "- DRUG: A substance. Attributes: dose.",
        "- DISEASE: An illness of people.",
        "- ADVERSE_EVENT: Attributes: severity (mild to severe).",
        "- TREATS (DRUG → DISEASE)",
        "- MAY_CAUSE (DRUG → ADVERSE_EVENT; DRUG → DISEASE): as an unwanted effect.",
        "- FOLLOWS (DISEASE → DISEASE)",
    ]
    assert not schema.open_entities and parse_schema(schema_from_models([Drug], open=True)).open_entities
    assert parse_settings({"extraction": {"schema": Drug}}).extraction.schema == settings.extraction.schema


def test_a_mapping_in_a_settings_file_is_a_schema():
    settings = parse_settings({"extraction": {"schema": {"entities": {"A": "first"}, "open": True}}})
    assert parse_schema(settings.extraction.schema).entities[0].line == "- A: first."


def test_models_with_equal_names_are_rejected():
    other = type("Drug", (BaseModel,), {})
    with pytest.raises(ValueError, match="two models have the name DRUG"):
        schema_from_models([Drug, other])
