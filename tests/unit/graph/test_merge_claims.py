from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.ids import entity_id
from graphrag_ray.base.schema import COVARIATES
from graphrag_ray.graph.extraction_dialogue import ClaimRecord, ClaimRecords
from graphrag_ray.graph.merge import ExtractionSource, claim_rows, merge_claims, null_unmatched_subjects

KNOWN = pa.array([entity_id("ADA")])


def claim(subject="ADA", description="Sold the mill.", status="TRUE", start=None, quote="", type_="SALE"):
    return ClaimRecord(subject, "NONE", type_, status, start, None, description, quote)


def rows(*chunks):
    """One chunk of document d per argument, each a list of claims."""
    return claim_rows(
        (ExtractionSource(f"u{i}", "d", i), ClaimRecords(tuple(c), 0)) for i, c in enumerate(chunks)
    )


def test_same_claim_in_two_chunks_is_merged():
    table = merge_claims(
        rows([claim(quote="first")], [claim(description="sold  the MILL", start="2014", quote="second")])
    )
    assert table.schema == COVARIATES
    (row,) = table.to_pylist()
    assert (row["text_unit_id"], row["text_unit_ids"]) == ("u0", ["u0", "u1"])
    assert (row["description"], row["source_text"], row["start_date"]) == ("Sold the mill.", "first", "2014")
    assert (row["subject_entity_id"], row["covariate_type"]) == (entity_id("ADA"), "claim")


def test_claims_with_different_objects_are_distinct():
    table = merge_claims(
        rows([claim(), claim(description="Bought the mill."), claim(type_="GIFT"), claim(subject="BOB")])
    )
    assert len(table) == 4


def test_claim_without_a_matching_entity_is_retained():
    merged = merge_claims(rows([claim(subject="BOB"), claim()]))
    table = null_unmatched_subjects(merged, pc.is_in(merged["subject_entity_id"], value_set=KNOWN).to_numpy())
    assert {r["subject_id"]: r["subject_entity_id"] for r in table.to_pylist()} == {
        "ADA": entity_id("ADA"),
        "BOB": None,
    }


def test_status_is_the_most_frequent_or_suspected_if_tied():
    def status(*stated):
        return merge_claims(rows(*([claim(status=s)] for s in stated)))["status"].to_pylist()

    assert status("TRUE", "FALSE", "TRUE") == ["TRUE"]
    assert status("TRUE", "FALSE") == ["SUSPECTED"]
    assert status("FALSE") == ["FALSE"]


def test_claim_id_does_not_change_when_an_earlier_chunk_states_it():
    late = merge_claims(rows([], [claim()]))
    both = merge_claims(rows([claim()], [claim()]))
    assert late["id"] == both["id"]
    assert late["text_unit_id"] != both["text_unit_id"]


def test_no_claims_give_an_empty_table():
    table = null_unmatched_subjects(merge_claims(rows()), np.zeros(0, np.bool_))
    assert (table.schema, len(table)) == (COVARIATES, 0)


claims = st.builds(
    claim,
    st.sampled_from(["ADA", "BOB"]),
    st.sampled_from(["Sold it.", "sold it", "Left."]),
    st.sampled_from(["TRUE", "FALSE", "SUSPECTED"]),
    st.sampled_from([None, "2014", "2015"]),
    st.sampled_from(["", "a", "b"]),
)


@given(st.lists(st.lists(claims, max_size=3), max_size=5), st.integers(0, 9))
def test_claims_do_not_depend_on_the_order_of_rows(chunks, seed):
    table = rows(*chunks)
    again = table.take(pa.array(np.random.default_rng(seed).permutation(len(table))))
    assert merge_claims(again).equals(merge_claims(table))
