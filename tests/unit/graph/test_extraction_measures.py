"""Measures of extractions from held-out chunks."""

from graphrag_ray.graph.delimited_records import EntityRecord, RelationshipRecord
from graphrag_ray.graph.extraction_dialogue import ExtractedRecords
from graphrag_ray.graph.extraction_measures import measure


def extracted(*entities, relations=(), unusable=0):
    return ExtractedRecords(
        tuple(EntityRecord(name, type_, "…") for name, type_ in entities),
        tuple(RelationshipRecord(a, b, "…", 1.0) for a, b in relations),
        unusable,
        0,
    )


def test_entities_types_and_duplicates_are_counted():
    first = extracted(
        ("ANNA LIND", "PERSON"), ("ANNA-LIND", "PERSON"), ("FORM 10Q", "CONCEPT"), ("RAIN", "WEATHER"),
        relations=[("ANNA LIND", "RAIN"), ("RAIN", "ANNA LIND")], unusable=2,
    )  # fmt: skip
    second = extracted(("ANNA LIND", "PERSON"), ("ANNA LIND", "CONCEPT"))
    found = measure([first, second], ["person: a human being", "concept", "event"], 700)
    assert (found.chunks, found.failed_chunks) == (2, 0)
    assert found.entities_per_chunk == 2.5
    assert found.relationships_per_chunk == 0.5
    assert found.types_used == 2
    assert found.catch_all_share == 3 / 6
    assert found.largest_type_share == 3 / 6
    assert (found.conflicting_names, found.duplicate_names, found.dropped_records) == (1, 1, 2)
    assert found.tokens == 700


def test_failed_and_empty_chunks_count_as_chunks():
    found = measure([None, extracted()], ["person"], 0)
    assert (found.chunks, found.failed_chunks, found.entities_per_chunk) == (2, 1, 0)
    assert found.catch_all_share is found.largest_type_share is None


def test_everything_of_one_type_shows():
    found = measure([extracted(("A B", "PERSON"), ("C D", "PERSON"))], ["person", "mill"], 0)
    assert (found.types_used, found.largest_type_share) == (1, 1.0)
