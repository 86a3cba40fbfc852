from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.ids import entity_id, relationship_id
from graphrag_ray.base.schema import ENTITY_INSTANCES, RELATIONSHIP_INSTANCES
from graphrag_ray.graph.delimited_records import EntityRecord, RelationshipRecord
from graphrag_ray.graph.extraction_dialogue import ExtractedRecords
from graphrag_ray.graph.merge import (
    ExtractionSource,
    descriptions_by_key,
    entity_instance_rows,
    merge_entities,
    merge_relationships,
    relationship_instance_rows,
    sort_instances,
    type_conflicts,
)

NAMES = ["ADA", "BOB", "CY", "DEE"]


def extraction(entities=(), relationships=()):
    return ExtractedRecords(
        entities=tuple(EntityRecord(*e) for e in entities),
        relationships=tuple(RelationshipRecord(*r) for r in relationships),
        unusable=0,
        unexpected_glean_replies=0,
    )


entity = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(["PERSON", "PLACE", "WORK", ""]),
    st.sampled_from(["", "one", "two", "three"]),
    st.integers(0, 1),
)
relationship = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.sampled_from(["", "knows", "sues"]),
    st.floats(0, 10),
    st.integers(0, 1),
    st.sampled_from(["", "KNOWS", "SUES"]),
)
corpora = st.lists(
    st.tuples(st.integers(0, 3), st.lists(entity, max_size=4), st.lists(relationship, max_size=4)), max_size=8
)


def extractions(corpus):
    """Chunks of documents d0…d3 with their positions in the document."""
    seen = Counter()
    out = []
    for d, entities, relationships in corpus:
        unit = ExtractionSource(f"u{d}-{seen[d]}", f"d{d}", seen[d])
        seen[d] += 1
        out.append((unit, extraction(entities, relationships)))
    return out


def shuffled(table, seed):
    return table.take(pa.array(np.random.default_rng(seed).permutation(len(table))))


def in_order(rows):
    return sorted(rows, key=lambda r: (r["document_id"], r["position"], r["turn"], r["ordinal"]))


def by_key(table):
    """Rows of each key in canonical order, grouped by a simple loop."""
    groups = {}
    for row in in_order(table.to_pylist()):
        groups.setdefault(row[table.column_names[0]], []).append(row)
    return dict(sorted(groups.items()))


def test_name_seen_only_in_a_relationship_is_retained_with_its_provenance():
    unit = ExtractionSource("u", "d", 3)
    found = extraction([("ADA", "PERSON", "an engineer", 0)], [("ADA", "CY", "met", 2.0, 1)])
    table = entity_instance_rows([(unit, found)])
    assert table.schema == ENTITY_INSTANCES
    ada, cy = table.to_pylist()
    assert ada["entity_id"] == entity_id("ADA")
    assert cy == {
        "entity_id": entity_id("CY"),
        "title": "CY",
        "type": None,
        "description": None,
        "text_unit_id": "u",
        "document_id": "d",
        "position": 3,
        "date": None,
        "turn": 1,
        "ordinal": 1,
        "name": None,
    }


def test_self_relationships_are_left_out():
    found = extraction(relationships=[("ADA", "ADA", "herself", 1.0, 0), ("BOB", "ADA", "met", 1.0, 0)])
    table = relationship_instance_rows([(ExtractionSource("u", "d", 0), found)])
    assert table["ordinal"].to_pylist() == [1]
    assert table["relationship_id"].to_pylist() == [relationship_id("ADA", "BOB")]
    assert entity_instance_rows([(ExtractionSource("u", "d", 0), found)])["title"].to_pylist() == [
        "ADA",
        "BOB",
    ]


def test_a_corpus_without_records_gives_empty_tables():
    nothing = [(ExtractionSource("u", "d", 0), extraction())]
    entities, relationships = entity_instance_rows(nothing), relationship_instance_rows(nothing)
    assert (entities.schema, relationships.schema) == (ENTITY_INSTANCES, RELATIONSHIP_INSTANCES)
    assert len(merge_entities(entities)) == len(merge_relationships(relationships)) == 0
    assert len(merge_relationships(relationships, "strength")) == len(sort_instances(entities)) == 0
    assert list(descriptions_by_key(entities)) == []


@given(corpora, st.integers(0, 9))
def test_entities_match_a_reference_merge_in_any_row_order(corpus, seed):
    table = entity_instance_rows(extractions(corpus))
    expected = []
    for id_, rows in by_key(table).items():
        types = Counter(r["type"] for r in rows if r["type"])
        units = list(dict.fromkeys(r["text_unit_id"] for r in rows))
        expected.append(
            {
                "id": id_,
                "title": rows[0]["title"],
                "type": min(types, key=lambda t: (-types[t], t)) if types else "",
                "text_unit_ids": units,
                "frequency": len(units),
                "n_instances": len(rows),
            }
        )
    assert merge_entities(shuffled(table, seed)).to_pylist() == expected


@given(corpora, st.integers(0, 9), st.sampled_from(["count", "strength"]))
def test_relationships_match_a_reference_merge_in_any_row_order(corpus, seed, weight):
    table = relationship_instance_rows(extractions(corpus))
    expected = []
    for id_, rows in by_key(table).items():
        units = list(dict.fromkeys(r["text_unit_id"] for r in rows))
        stated = Counter(r["relation"] for r in rows if r["relation"])
        relation = min(stated, key=lambda name: (-stated[name], name), default="")
        of_relation = Counter(r["source"] > r["target"] for r in rows if r["relation"] == relation)
        low, high = sorted((rows[0]["source"], rows[0]["target"]))
        micro = sum(round(r["strength"] * 1e6) for r in rows)
        expected.append(
            {
                "id": id_,
                "source": low,
                "target": high,
                "source_id": entity_id(low),
                "target_id": entity_id(high),
                "weight": float(len(units)) if weight == "count" else micro / 1e6,
                "text_unit_ids": units,
                "n_instances": len(rows),
                "relation": relation,
                "relation_reversed": of_relation[True] > of_relation[False],
            }
        )
    assert merge_relationships(shuffled(table, seed), weight).to_pylist() == expected


def test_pair_counts_once_per_chunk_in_either_direction():
    pair = [("ADA", "BOB", "met", 3.0, 0), ("BOB", "ADA", "met again", 4.0, 1)]
    rows = relationship_instance_rows([(ExtractionSource("u", "d", 0), extraction(relationships=pair))])
    assert merge_relationships(rows, "count")["weight"].to_pylist() == [1.0]
    assert merge_relationships(rows, "strength")["weight"].to_pylist() == [7.0]


def test_summed_strength_does_not_depend_on_the_order():
    strengths = [1 / 3, 2 / 7, 1e5, 0.1] * 20
    pairs = [("ADA", "BOB", "met", s, 0) for s in strengths]
    table = relationship_instance_rows([(ExtractionSource("u", "d", 0), extraction(relationships=pairs))])
    sums = {merge_relationships(shuffled(table, seed), "strength")["weight"][0].as_py() for seed in range(20)}
    assert sums == {2_000_014.38094}


@pytest.mark.parametrize(
    ("strength", "weight"), [(float("nan"), 1.0), (float("inf"), 1.0), (-3.0, 0.0), (1e9, 1e5)]
)
def test_extreme_strengths_are_limited(strength, weight):
    pair = [("ADA", "BOB", "met", strength, 0)]
    table = relationship_instance_rows([(ExtractionSource("u", "d", 0), extraction(relationships=pair))])
    assert merge_relationships(table, "strength")["weight"].to_pylist() == [weight]


@given(corpora, st.integers(0, 9), st.integers(1, 5))
def test_descriptions_are_distinct_and_ordered_in_any_batching(corpus, seed, max_rows):
    rows = extractions(corpus)
    for table in (entity_instance_rows(rows), relationship_instance_rows(rows)):
        ordered = sort_instances(shuffled(table, seed))
        assert ordered.schema == table.schema
        assert ordered.to_pylist() == [r for group in by_key(table).values() for r in group]
        found = [b for batch in descriptions_by_key(ordered, max_rows) for b in batch.to_pylist()]
        assert found == [
            {
                "id": id_,
                "descriptions": list(dict.fromkeys(r["description"] for r in group if r["description"])),
            }
            for id_, group in by_key(table).items()
        ]


def test_unsorted_instances_are_rejected():
    rows = extractions([(0, [(n, "PERSON", "x", 0) for n in NAMES], [])])
    table = sort_instances(entity_instance_rows(rows))
    with pytest.raises(ValueError, match="sorted"):
        list(descriptions_by_key(pa.concat_tables([table.slice(1), table.slice(0, 1)])))


def test_descriptions_of_a_hub_are_gathered_in_pieces(monkeypatch):
    monkeypatch.setattr("graphrag_ray.graph.merge._CHUNK_BYTES", 64)
    hub = [("ADA", "PERSON", f"{i:010d}", 0) for i in range(40)]
    table = sort_instances(entity_instance_rows([(ExtractionSource("u", "d", 0), extraction(hub))]))
    assert table["description"].num_chunks > 5
    (batch,) = descriptions_by_key(table, max_batch_rows=10)
    assert batch.column("descriptions").to_pylist() == [[f"{i:010d}" for i in range(40)]]


def test_stated_type_is_used():
    rows = entity_instance_rows(extractions([(0, [("ADA", "", "", 0), ("ADA", "PERSON", "x", 0)], [])]))
    (entity,) = merge_entities(rows).to_pylist()
    assert (entity["title"], entity["type"], entity["n_instances"]) == ("ADA", "PERSON", 2)


@given(corpora)
def test_majority_decides_the_type_and_conflicts_are_listed(corpus):
    instances = entity_instance_rows(extractions(corpus))
    votes: dict[str, Counter[str]] = {}
    for row in instances.to_pylist():
        if row["type"]:
            votes.setdefault(row["title"], Counter())[row["type"]] += 1
    ranked = {
        title: sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])) for title, counts in votes.items()
    }
    merged = {row["title"]: row["type"] for row in merge_entities(instances).to_pylist()}
    assert merged == {title: ranked[title][0][0] if title in ranked else "" for title in merged}
    listed = type_conflicts(instances).to_pylist()
    assert [row["id"] for row in listed] == sorted(row["id"] for row in listed)
    assert {row["title"]: list(zip(row["types"], row["counts"], strict=True)) for row in listed} == {
        title: types for title, types in ranked.items() if len(types) > 1
    }
