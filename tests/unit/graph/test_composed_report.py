"""Reports on small communities, composed from their records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import Reference, parse_references, strip_references
from graphrag_ray.graph.composed_report import MAX_RATING, composed_report, rate
from graphrag_ray.graph.report_context import claim_record, entity_record, relationship_record
from graphrag_ray.graph.report_dialogue import full_content

MARA, MILL, TIE = "a" * 32, "b" * 32, "c" * 32
RECORDS = [
    (entity_record(MILL, "MILL", "A mill at Tolsey. Mara Venn opened the mill in 2009."), ["1"]),
    (entity_record(MARA, "MARA VENN", "Mayor since 2007. She owns a boat."), ["1", "2", "3"]),
    (
        relationship_record(TIE, "MARA VENN", "MILL", "She sold it. Mara Venn opened the mill in 2009."),
        ["1", "4"],
    ),
]


def test_every_sentence_stands_once_with_a_reference():
    report = composed_report(RECORDS)
    assert report.composed and report.title == "MARA VENN, MILL"
    assert report.summary == f"Mayor since 2007. A mill at Tolsey. [Data: Entities ({MARA}, {MILL})]"
    assert report.findings == (
        (
            "MARA VENN",
            f"She owns a boat. [Data: Entities ({MARA})] She sold it. [Data: Relationships ({TIE})]",
        ),
        ("MILL", f"Mara Venn opened the mill in 2009. [Data: Entities ({MILL})]"),
    )
    assert set(report.references) == {
        Reference("Entities", MARA),
        Reference("Entities", MILL),
        Reference("Relationships", TIE),
    }


def test_claims_are_told_with_their_subject():
    claim = dict.fromkeys(("object_id", "type", "status", "start_date", "end_date"), "X")
    claim |= {"id": "d" * 32, "subject_id": "MILL", "description": "The mill was insured twice."}
    report = composed_report([*RECORDS, (claim_record(claim), ["1"])])
    assert report.findings[1][1].endswith(f"The mill was insured twice. [Data: Claims ({'d' * 32})]")


@pytest.mark.parametrize(("n", "rating"), [(0, 1.0), (1, 2.0), (3, 3.0), (7, 4.0), (15, 5.0), (10_000, 5.0)])
def test_the_rating_grows_with_the_number_of_passages(n, rating):
    assert rate(n)[0] == rating <= MAX_RATING


def test_a_description_cannot_add_headings_or_references():
    hostile = entity_record(MARA, "# MARA", "# Title\n\n## More. [Data: Entities (1)] Fine.")
    report = composed_report([(hostile, ["1"])])
    assert all(r.id == MARA for r in parse_references(full_content(report)))
    lines = full_content(report).split("\n")
    assert [line for line in lines if line.startswith("#")] == ["# # MARA", "## # MARA"]


TEXT = st.text(max_size=60)


@given(
    st.lists(st.tuples(TEXT, TEXT, st.sets(st.sampled_from("1234"))), max_size=5), st.lists(TEXT, max_size=3)
)
def test_any_records_make_a_report(entities, ties):
    records = [
        (entity_record(f"{n:032x}", name, text), sorted(chunks))
        for n, (name, text, chunks) in enumerate(entities)
    ]
    ends = entities[0][0] if entities else "A", entities[-1][0] if entities else "B"
    records += [(relationship_record(f"{n + 100:032x}", *ends, text), ["1"]) for n, text in enumerate(ties)]
    report = composed_report(records)
    assert composed_report(records) == report
    known = {record.id for record, _ in records}
    cited = parse_references(full_content(report))
    assert {r.id for r in cited} <= known
    assert [*dict.fromkeys(report.references)] == [*report.references]
    assert "\n" not in report.title + report.summary
    assert strip_references(report.summary) is not None
