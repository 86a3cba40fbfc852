"""What `index`, `status` and `inspect` say about a graph."""

from __future__ import annotations

from graphrag_ray.cli.console import graph_notes

COUNTS = {
    "entities": 1_500,
    "relationships": 2_000,
    "merged_names": 1_200,
    "split_names": 1,
    "refused_merges": 2,
    "dropped_relationships": 3,
    "type_conflicts": 1,
    "type_conflict_examples": {"BAY (LOCATION 2, EVENT 1)": 1},
    "orphans": 57,
    "hubs": {"A\nB": 300, "C": 5},
    "left_out_characters": 12_000,
    "shortened_chunks": 40,
    "left_out_chunks": 3,
}


def test_notes_name_what_to_check():
    assert graph_notes(COUNTS) == {
        "names": "1,200 merged; 1 split off; 2 merges refused; "
        "3 mentions of relationships within one entity dropped",
        "entity types": "mentions of 1 entity disagree; the majority decides: BAY (LOCATION 2, EVENT 1)",
        "connections": "57 entities have none; most: A B 300 (15%), C 5 (0%)",
        "boilerplate": "12,000 characters left out of 43 chunks",
    }


def test_zeros_and_missing_counts_have_no_notes():
    assert graph_notes({"entities": 3, "orphans": 0, "hubs": {}, "merged_names": 0, "split_names": 0}) == {}
    assert graph_notes({}) == {}


def test_graph_without_relationships_has_only_orphans():
    counts = {"entities": 1, "relationships": 0, "orphans": 1, "hubs": {}}
    assert graph_notes(counts) == {"connections": "1 entity has none"}
