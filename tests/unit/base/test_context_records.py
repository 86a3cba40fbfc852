import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.context_records import (
    MAX_REFERENCE_IDS,
    SECTIONS,
    Reference,
    csv_line,
    defuse_references,
    drop_unclosed_reference,
    find_references,
    parse_references,
    parse_sections,
    render_references,
    resolve_references,
    section_heading,
    strip_references,
    write_reference,
)

NUMBERING = {(s, n): f"{s[0].lower()}{n}" for s in SECTIONS for n in range(1, 10)}
PLAIN = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"])).map(str.strip)


@given(st.lists(st.tuples(PLAIN, PLAIN), max_size=6))
def test_a_context_survives_a_round_trip(rows):
    context = section_heading("Entities", ["id", "entity", "description"])
    context += "".join(csv_line([i, *fields]) for i, fields in enumerate(rows, 1))
    context += "\n" + section_heading("Claims", ["id", "text"]) + csv_line([1, "last"])
    sections = parse_sections(context)
    assert [(r["entity"], r["description"]) for r in sections["Entities"]] == rows
    assert [r["id"] for r in sections["Entities"]] == [str(i) for i in range(1, len(rows) + 1)]
    assert sections["Claims"] == [{"id": "1", "text": "last"}]


@given(st.text())
def test_a_record_is_one_line(text):
    assert csv_line([1, text]).count("\n") == 1
    assert len(csv_line([1, text]).splitlines()) == 1


def test_text_that_looks_like_a_heading_stays_in_its_record():
    context = section_heading("Entities", ["id", "description"]) + csv_line(
        [1, "\n-----Reports-----\nid,x\n7,y"]
    )
    assert list(parse_sections(context)) == ["Entities"]
    assert len(parse_sections(context)["Entities"]) == 1


def test_a_field_of_any_length_is_read_back():
    text = "word, " * 40_000
    (row,) = parse_sections(section_heading("Sources", ["id", "text"]) + csv_line([1, text]))["Sources"]
    assert row["text"] == text.strip()


def test_text_outside_sections_is_ignored():
    assert parse_sections("a preamble\n") == {}
    assert parse_sections("a,b\n" + section_heading("Claims", ["id"]) + csv_line([1]))["Claims"] == [
        {"id": "1"}
    ]


def test_references_are_resolved_to_ids_in_order():
    text, cited, dropped = resolve_references("Mills [Data: Entities (2, 1); Reports (3)].", NUMBERING)
    assert text == "Mills [Data: Entities (e2, e1); Reports (r3)]."
    assert cited == [Reference("Entities", "e2"), Reference("Entities", "e1"), Reference("Reports", "r3")]
    assert dropped == 0


@pytest.mark.parametrize(
    ("written", "section"),
    [
        ("[Data: Entity (1)]", "Entities"),
        ("[data: entities (1)]", "Entities"),
        ("[ Data:Relationship(1) ]", "Relationships"),
        ("[Data: Report (1)]", "Reports"),
        ("[DATA: SOURCES (1)]", "Sources"),
        ("[Data: Claim (1)]", "Claims"),
    ],
)
def test_section_names_may_be_singular_or_plural_in_any_case(written, section):
    assert resolve_references(written, NUMBERING)[1] == [Reference(section, section[0].lower() + "1")]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[Data: Reports 1, 2]", "[Data: Reports (r1, r2)]"),
        ("[Data: Reports: 1, 2]", "[Data: Reports (r1, r2)]"),
        ("[Data: Reports (1); 2]", "[Data: Reports (r1, r2)]"),
        ("[Data: Reports (1), (2)]", "[Data: Reports (r1, r2)]"),
        ("[Data: Reports (1 2)]", "[Data: Reports (r1, r2)]"),
        ("[Data: Reports 1 and 2, +more]", "[Data: Reports (r1, r2)]"),
        ("[Data: Reports 1, Entities 3]", "[Data: Reports (r1); Entities (e3)]"),
        ("[Data: Reports #1, #2]", "[Data: Reports (r1, r2)]"),
        ("[Data: Reports ids 1, 2.]", "[Data: Reports (r1, r2)]"),
        ("[Data : Report 1]", "[Data: Reports (r1)]"),
        ("[Data: (Reports 1; Claim 2)]", "[Data: Reports (r1); Claims (c2)]"),
        ("[Reports: 1]", "[Data: Reports (r1)]"),
        ("[Reports (1, 2, +more); Source 3]", "[Data: Reports (r1, r2); Sources (s3)]"),
        ("[Report 1]", "[Data: Reports (r1)]"),
        ("[Data Reports (1)]", "[Data: Reports (r1)]"),
        ("(Data: Reports (1))", "[Data: Reports (r1)]"),
        ("(Data: Reports 1, 2; Entity (3))", "[Data: Reports (r1, r2); Entities (e3)]"),
        ("［Data：Reports（1，2）］", "[Data: Reports (r1, r2)]"),
        ("【Data: Reports (1、2)】", "[Data: Reports (r1, r2)]"),
        ("（Data：Reports 1）", "[Data: Reports (r1)]"),
        ("【Reports：1】", "[Data: Reports (r1)]"),
    ],
)
def test_references_by_small_models_are_recognised(written, read):
    assert resolve_references(f"Sold {written}.", NUMBERING)[::2] == (f"Sold {read}.", 0)


@pytest.mark.parametrize(
    ("written", "text", "dropped"),
    [
        ("[Data: Reports 77, 1]", " [Data: Reports (r1)]", 1),
        ("[Reports: 77]", "", 1),
        ("(Data: Reports (77, 78))", "", 2),
        ("[Data: Reports (1); Entities]", " [Data: Reports (r1)]", 1),
        ("[Data: 1, 2]", "", 2),
        ("[Data: Birds 1; Reports 2]", " [Data: Reports (r2)]", 1),
        ("[Data: see the appendix]", "", 1),
        ("[Data: Reports (+more)]", "", 1),
        ("[Data:]", "", 1),
    ],
)
def test_every_deleted_part_of_a_reference_is_counted(written, text, dropped):
    assert resolve_references(f"Sold {written}.", NUMBERING)[::2] == (f"Sold{text}.", dropped)


@pytest.mark.parametrize(
    "text",
    [
        "(see Reports 1)",
        "(Reports 1, 2)",
        "[Reports: quarterly]",
        "[Reports]",
        "[Reports: 3 of 4 were lost]",
        "(Data: IMF 2019)",
        "(Data: Reports of 2019)",
        "[Database 1]",
        "[Reporters: 2]",
        "[1, 2]",
    ],
)
def test_ordinary_text_in_brackets_is_not_a_reference(text):
    assert resolve_references(f"So {text}.", NUMBERING) == (f"So {text}.", [], 0)


@pytest.mark.parametrize(
    "half",
    [
        "[Data: Rep",
        "[Reports: 1",
        "[Reports: 1; Ent",
        "(Data: Reports (1",
        "(Data: Reports (1), 2",
        "【Data：",
    ],
)
def test_an_unclosed_reference_is_removed_from_a_truncated_reply(half):
    assert drop_unclosed_reference(f"Sold {half}") == "Sold"


def test_citations_of_unknown_records_are_dropped_and_counted():
    text, cited, dropped = resolve_references(
        "A [Data: Entities (1, 77); Claims (99)] b [Data: Birds (1)].", NUMBERING
    )
    assert text == "A [Data: Entities (e1)] b."
    assert cited == [Reference("Entities", "e1")]
    assert dropped == 3


@pytest.mark.parametrize("item", ["²", "①", "0x1", "1.0", "-1", "1-3", "9" * 5000, "e1", "٩" * 20])
def test_an_unknown_number_is_dropped(item):
    text, cited, dropped = resolve_references(f"A [Data: Entities ({item}, 2)]", NUMBERING)
    assert (text, cited, dropped) == ("A [Data: Entities (e2)]", [Reference("Entities", "e2")], 1)


def test_more_is_not_an_id():
    assert resolve_references("[Data: Claims (1, 2, +more)]", NUMBERING)[2] == 0


def test_all_ids_are_cited_but_only_five_are_rendered():
    text, cited, _ = resolve_references("[Data: Claims (1, 2, 3, 4, 5, 6, 7)]", NUMBERING)
    assert text == "[Data: Claims (c1, c2, c3, c4, c5, +more)]"
    assert len(cited) == 7
    assert len(parse_references(text)) == MAX_REFERENCE_IDS


def test_a_repeated_id_is_cited_once():
    text, cited, _ = resolve_references("[Data: Claims (1, 1); Claims (1)] [Data: Claims (1)]", NUMBERING)
    assert text == "[Data: Claims (c1)] [Data: Claims (c1)]"
    assert cited == [Reference("Claims", "c1")]


def test_text_without_references_is_unchanged():
    text = "A list [1, 2] , and « une question ? » {Data: Entities (1)}"
    assert resolve_references(text, NUMBERING) == (text, [], 0)


def test_ids_are_rendered_as_numbers_and_unknown_ids_dropped():
    numbers = {Reference("Entities", "e1"): 41}
    assert (
        render_references("A [Data: Entities (e1, e2); Claims (c1)].", numbers.get)
        == "A [Data: Entities (41)]."
    )
    assert render_references("A [Data: Claims (c1)].", numbers.get) == "A."


def test_references_can_be_stripped():
    assert strip_references("A [Data: Entities (1)]. B [data: Reports (2, +more)] c [1].") == "A. B c [1]."


def test_a_written_reference_lists_at_most_five_ids():
    assert write_reference({"Entities": [5, 7], "Claims": []}) == "[Data: Entities (5, 7)]"
    assert write_reference({"Reports": range(9)}) == "[Data: Reports (0, 1, 2, 3, 4, +more)]"
    assert write_reference({}) == ""


PIECES = st.lists(
    st.sampled_from(
        [
            "[Data: ",
            "Entities (",
            "1",
            "77",
            "²",
            ", ",
            ")",
            "; ",
            "Reports (2)",
            "]",
            " a.",
            "+more",
            "[",
            "(Data: ",
            "Data",
            "【",
            "】",
            "Reports ",
            "Source: 3",
            "（",
            "：",
            "[Report 4]",
            "rts",
            "[Repo",
        ]
    )
).map("".join)


@given(PIECES)
def test_every_resolved_reference_points_to_a_record_in_the_context(text):
    resolved, cited, _ = resolve_references(text, NUMBERING)
    assert {(r.section, r.id) for r in parse_references(resolved)} <= {(r.section, r.id) for r in cited}
    assert {(r.section, r.id) for r in cited} <= {(section, id_) for (section, _), id_ in NUMBERING.items()}


@given(PIECES)
def test_defused_text_contains_no_references(text):
    assert not list(find_references(defuse_references(text)))


@given(st.lists(st.lists(st.tuples(st.sampled_from([*SECTIONS, "Birds"]), st.integers(0, 12)), min_size=1)))
def test_every_item_is_cited_or_counted_as_dropped(references: list[list[tuple[str, int]]]):
    written = (f"[Data: {'; '.join(f'{section} ({n})' for section, n in one)}]" for one in references)
    _, cited, dropped = resolve_references(" and ".join(written), NUMBERING)
    named = [item for one in references for item in one]
    assert cited == list(
        dict.fromkeys(Reference(s, NUMBERING[s, n]) for s, n in named if (s, n) in NUMBERING)
    )
    assert dropped == sum(item not in NUMBERING for item in named)
