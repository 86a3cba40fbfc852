"""Check extracted records against a schema, and settle what one correction could not repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from graphrag_ray.base.wording import shorten
from graphrag_ray.graph.delimited_records import EntityRecord, RelationshipRecord
from graphrag_ray.graph.extraction_schema import (
    MAX_NAME_CHARACTERS,
    ExtractionSchema,
    RelationType,
    type_key,
)

CORRECTION_RATE = 0.3
"""Assumed share of chunks that need a correction, until it is measured."""
MAX_PROBLEMS = 200
"""Maximum number of records that a correction lists."""
_MAX_SHOWN = 100  # characters of a name

GraphRecord = EntityRecord | RelationshipRecord


@dataclass(frozen=True, slots=True)
class Conformance:
    """Records of a chunk by whether they conform to a schema, each in their order.

    Attributes:
        entities: With the types as the schema spells them.
        relationships: With the relations as the schema spells them, turned around where only that fits.
        violations: The other records and what is wrong with each.
        n_reversed: Number of relationships that were turned around.
    """

    entities: tuple[EntityRecord, ...]
    relationships: tuple[RelationshipRecord, ...]
    violations: tuple[tuple[GraphRecord, str], ...]
    n_reversed: int

    @property
    def problems(self) -> str:
        """The violations as a correction lists them: one per line, without repetitions."""
        lines = dict.fromkeys(f"- {_shown(record)}: {problem}" for record, problem in self.violations)
        return "\n".join(islice(lines, MAX_PROBLEMS))


def check(
    entities: Iterable[EntityRecord], relationships: Iterable[RelationshipRecord], schema: ExtractionSchema
) -> Conformance:
    """Check records whose names are entity keys.

    In a closed schema, an end of a relationship needs an entity record of an allowed type.
    """
    conforming: list[EntityRecord] = []
    violations: list[tuple[GraphRecord, str]] = []
    types: dict[str, set[str]] = {}
    for e in entities:
        declared = schema.entity_type(e.type)
        if declared is None and not schema.open_entities:
            shown = shorten(e.type, _MAX_SHOWN) or "nothing"
            violations.append((e, f"{shown} is no entity type of the schema"))
            continue
        conforming.append(replace(e, type=declared.name) if declared else e)
        types.setdefault(e.title, set()).update({conforming[-1].type} - {""})
    fitting: list[RelationshipRecord] = []
    n_reversed = 0
    for r in relationships:
        relation, problems = schema.relation_type(r.relation), list[str]()
        missing = {end: None for end in (r.source, r.target) if end not in types}
        if missing and not schema.open_entities:
            names = " and ".join(shorten(end, _MAX_SHOWN) for end in missing)
            problems.append(f"there is no entity record with a type of the schema for {names}")
        name, is_reversed = relation.name if relation else "", False
        source, target = types.get(r.source, set()), types.get(r.target, set())
        if relation and not relation.fits(source, target):
            is_reversed = relation.fits(target, source)
            if not is_reversed and not schema.open_patterns:
                problems.append(_wrong_ends(relation, source, target))
        elif relation is None and schema.relations and schema.open_relations:
            key = type_key(r.relation)
            name = key if len(key) <= MAX_NAME_CHARACTERS else ""
        elif relation is None and schema.relations:
            shown = shorten(r.relation, _MAX_SHOWN)
            problems.append(f"{shown} is no relation of the schema" if shown else "it has no relation")
        if problems:
            violations.append((r, "; ".join(problems)))
            continue
        ends = (r.target, r.source) if is_reversed else (r.source, r.target)
        fitting.append(replace(r, source=ends[0], target=ends[1], relation=name))
        n_reversed += is_reversed
    return Conformance(tuple(conforming), tuple(fitting), tuple(violations), n_reversed)


def settle(
    first: Conformance,
    entities: Sequence[EntityRecord],
    relationships: Sequence[RelationshipRecord],
    schema: ExtractionSchema,
) -> tuple[Conformance, dict[str, int]]:
    """Combine conforming records with the reply to a correction, and drop what still violates the schema.

    A record of the reply replaces the violations with the same name or pair of names, and is left out if it
    only repeats what conforms. The other violations are checked again, because the reply may contain the
    entities that they lacked. If the schema allows other relations, a relationship between wrong types is
    kept without its relation.

    Returns:
        The conforming records, and the counts of the chunk by name.
    """
    violating = [_identity(record) for record, _ in first.violations]
    repeated = set(_identities(first.entities, first.relationships)) - set(violating)
    entities = [e for e in entities if _identity(e) not in repeated]
    relationships = [r for r in relationships if _identity(r) not in repeated]
    replaced = set(_identities(entities, relationships))
    remaining = [record for record, _ in first.violations if _identity(record) not in replaced]
    final = check(
        [*first.entities, *entities, *(r for r in remaining if isinstance(r, EntityRecord))],
        [*first.relationships, *relationships, *(r for r in remaining if isinstance(r, RelationshipRecord))],
        schema,
    )
    untyped = [
        replace(record, relation="")
        for record, _ in final.violations
        if isinstance(record, RelationshipRecord) and schema.open_relations
    ]
    kept = check(final.entities, untyped, schema).relationships
    before, after = (Counter(_identities(found.entities, found.relationships)) for found in (first, final))
    corrected = set(after - before)
    without_relation = set(map(_identity, kept)) - corrected
    n_corrected, n_untyped = (sum(i in found for i in violating) for found in (corrected, without_relation))
    counts = {
        "schema_records": len(first.entities) + len(first.relationships) + len(violating),
        "schema_violations": len(violating),
        "schema_corrected": n_corrected,
        "schema_untyped": n_untyped,
        "schema_dropped": len(violating) - n_corrected - n_untyped,
        "relations_reversed": first.n_reversed + final.n_reversed,
    }
    return replace(final, relationships=(*final.relationships, *kept), violations=()), counts


def _identity(record: GraphRecord) -> frozenset[str] | str:
    """Return what a corrected record has in common with the wrong one: its name, or the pair of its ends."""
    return record.title if isinstance(record, EntityRecord) else frozenset((record.source, record.target))


def _identities(
    entities: Iterable[EntityRecord], relationships: Iterable[RelationshipRecord]
) -> list[frozenset[str] | str]:
    return [*map(_identity, entities), *map(_identity, relationships)]


def _shown(record: GraphRecord) -> str:
    if isinstance(record, EntityRecord):
        return f"entity {shorten(record.title, _MAX_SHOWN)}"
    ends = f"{shorten(record.source, _MAX_SHOWN)} → {shorten(record.target, _MAX_SHOWN)}"
    return f"relationship {ends}"


def _wrong_ends(relation: RelationType, source: Iterable[str], target: Iterable[str]) -> str:
    found = " → ".join(" or ".join(sorted(types)) or "unknown" for types in (source, target))
    return f"{relation.name} connects {relation.ends}, not {found}"
