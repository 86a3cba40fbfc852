"""Conditions on documents."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from driving import Snapshot
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import schema
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods.document_filters import (
    MAX_CHARACTERS,
    MAX_CONDITIONS,
    columns,
    evaluate,
    matching_chunks,
    matching_ids,
    parse,
    reports_in_period,
)
from graphrag_ray.query.methods.method import Notice


def document(path: str, title: str = "", date: str | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "path": path,
        "title": title,
        "creation_date": date,
        "raw_data": json.dumps(metadata) if metadata else None,
        "text_unit_ids": [f"{path}-1", f"{path}-2"],
    }


LIBRARY = [
    document("a/x.txt", "Minutes", "2023-05-17", author="Mara Venn", year=2019, tags=["harbour", "loan"]),
    document("a/y.csv", "Letter", "2023-06-01T10:00:00Z", author="Ole", year="2021", about={"place": "mill"}),
    document("b/z.txt", "minutes", None, year=2020.0, done=True),
    document("b/w.txt", "Speech", "3 March 2021"),
]


def chosen(*conditions: str, library: list[dict[str, Any]] = LIBRARY) -> list[str]:
    parsed = [parse(c) for c in conditions]
    fields = pa.schema([schema.DOCUMENTS.field(c) for c in columns(parsed)])
    table = pa.Table.from_pylist([{c: d[c] for c in columns(parsed)} for d in library], fields)
    return [d["path"][2] for d, yes in zip(library, evaluate(parsed, table), strict=True) if yes]


@pytest.mark.parametrize(
    ("condition", "paths"),
    [
        ("title=Minutes", "x"),
        ("title = Minutes ", "x"),
        ("title!=Minutes", "yzw"),
        ("path~*.txt", "xzw"),
        ("path!~*.txt", "y"),
        ("path~a/?.*", "xy"),
        ("author=Mara Venn", "x"),
        ("metadata.author=Ole", "y"),
        ("author!=Ole", "xzw"),
        ("tags=loan", "x"),
        ("tags!=loan", "yzw"),
        ("tags~harb*", "x"),
        ("about.place=mill", "y"),
        ("done=true", "z"),
        ("year=2019", "x"),
        ("year>=2020", "yz"),
        ("year>2020", "y"),
        ("year<2020.5", "xz"),
        ("year=2020", "z"),
        ("date>=2023-01-01", "xy"),
        ("date>=2023-06", "y"),
        ("date>2023-05", "y"),
        ("date<=2023-05", "xw"),
        ("date<2023-05-17", "w"),
        ("date=2023-05-17", "x"),
        ("date>=2021-03-03", "xyw"),
        ("date<2023", "w"),
    ],
)
def test_condition_selects_matching_documents(condition: str, paths: str):
    assert "".join(chosen(condition)) == paths


def test_all_conditions_must_be_satisfied():
    assert chosen("path~*.txt", "year>=2020") == ["z"]
    with pytest.raises(UsageError, match=r"none satisfies all of them: path~a/\*, done=true"):
        chosen("path~a/*", "done=true")


@pytest.mark.parametrize("text", ["", "title", "=x", "title:x", "~x"])
def test_invalid_condition_is_reported_with_syntax(text: str):
    with pytest.raises(UsageError, match=r"Condition .*NAME=VALUE"):
        parse(text)


@pytest.mark.parametrize("text", ["title=" + "x" * MAX_CHARACTERS, " " * 1_000_000 + "title=x"])
def test_long_condition_is_rejected_without_repeating_it(text: str):
    with pytest.raises(UsageError, match=r"characters\. At most 4,000") as refused:
        parse(text)
    assert len(str(refused.value)) < 200


def test_number_of_conditions_is_limited():
    snap = Snapshot({"documents": LIBRARY})
    assert snap.run(matching_chunks(["title=Minutes"] * MAX_CONDITIONS)) == {"a/x.txt-1", "a/x.txt-2"}
    with pytest.raises(UsageError, match="At most 100 conditions can be combined, got 101"):
        snap.run(matching_chunks(["title=Minutes"] * (MAX_CONDITIONS + 1)))


def test_comparison_requires_number_or_date():
    with pytest.raises(
        UsageError, match="'title>=M' is not valid: 'M' is neither a number nor a date such as 2023"
    ):
        parse("title>=M")


def test_unknown_name_lists_existing_names():
    with pytest.raises(
        UsageError, match=r"no document has 'autor'.* path, title, date, .* author, done, tags, year"
    ):
        chosen("autor=Ole")
    with pytest.raises(UsageError, match="they have no metadata"):
        chosen("author!=Ole", library=[document("a/x.txt")])


def test_unknown_value_lists_existing_values():
    with pytest.raises(
        UsageError, match=r"No document satisfies 'author=Ola': author is Mara Venn \(1\), Ole \(1\)"
    ):
        chosen("author=Ola")
    with pytest.raises(UsageError, match=r"none has a date. Set input\.date_column"):
        chosen("date>=2020", library=[document("a/x.txt")])


def test_ambiguous_numeric_date_is_not_parsed():
    with pytest.raises(UsageError, match=r"date is 03/04/2023 \(1\)"):
        chosen("date>=2023", library=[document("a/x.txt", date="03/04/2023")])
    assert chosen("date>=2023-04-01", library=[document("a/x.txt", date="20230403")]) == ["x"]
    assert chosen(
        "date>=2023-04-01", library=[document("a/x.txt", date="Mon, 03 Apr 2023 10:00:00 GMT")]
    ) == ["x"]


@pytest.mark.parametrize(
    ("condition", "titles"), [("title~[12]*", "["), ("title!~[12]*", "1"), ("title~*]?", "[")]
)
def test_bracket_in_pattern_is_literal(condition: str, titles: str):
    library = [document("-/[", "[12]x"), document("-/1", "1x")]
    assert "".join(chosen(condition, library=library)) == titles


@pytest.mark.parametrize(("sign", "paths"), [("<", "b"), ("<=", "ab"), (">=", "ac"), (">", "c")])
def test_dates_are_compared_to_common_precision(sign: str, paths: str):
    library = [document("-/a", date="2023"), document("-/b", date="2022"), document("-/c", date="2024-01")]
    assert "".join(chosen(f"date{sign}2023-05", library=library)) == paths


@pytest.mark.parametrize("metadata", ["[1, 2]", "{", '{"year": ' + '{"a":' * 900 + "1" + "}" * 901])
def test_non_object_metadata_counts_as_missing(metadata: str):
    odd = {**document("a/y.txt"), "raw_data": metadata}
    assert chosen("year=2019", library=[odd, LIBRARY[0]]) == ["x"]


def test_values_in_nested_lists_are_found():
    odd = {**document("a/y.txt"), "raw_data": '{"year": ' + "[" * 900 + "2019" + "]" * 900 + "}"}
    assert chosen("year=2019", library=[odd, LIBRARY[0]]) == ["y", "x"]
    with pytest.raises(UsageError, match="no document has"):
        chosen("year" + ".a" * 1_000 + "=1")


@pytest.mark.parametrize("written", ["Feb 1e1000 99999999999999", "9" * 5_000, "March " * 50])
def test_date_like_text_is_not_a_date(written: str):
    assert chosen("date>=2000", library=[document("a/y.txt", date=written), LIBRARY[0]]) == ["x"]


def test_conditions_select_chunks_of_documents():
    snap = Snapshot({"documents": LIBRARY})
    assert snap.run(matching_chunks(["title=Minutes"])) == {"a/x.txt-1", "a/x.txt-2"}
    assert snap.run(matching_chunks([])) is None and snap.run(matching_chunks(["path~*"])) is None
    assert Snapshot({}).run(matching_chunks(["title=Minutes"])) is None


RELATED = [
    {"id": "r1", "source_id": "e1", "target_id": "e2", "relation": "TREATS", "text_unit_ids": ["t1", "t2"]},
    {"id": "r2", "source_id": "e2", "target_id": "e3", "relation": "CAUSES", "text_unit_ids": ["t2"]},
    {"id": "r3", "source_id": "e3", "target_id": "e4", "relation": None, "text_unit_ids": ["t3"]},
]
UNITS = [
    {"id": "t1", "entity_ids": ["e1", "e2", "e9"], "relationship_ids": ["r1"]},
    {"id": "t2", "entity_ids": ["e1", "e2", "e3"], "relationship_ids": ["r1", "r2"]},
    {"id": "t3", "entity_ids": ["e3", "e4"], "relationship_ids": ["r3"]},
]


@pytest.mark.parametrize(
    ("conditions", "chunks", "relationships", "entities"),
    [
        (["relation=TREATS"], {"t1", "t2"}, ["r1"], ["e1", "e2"]),
        (["relation=treats"], {"t1", "t2"}, ["r1"], ["e1", "e2"]),
        (["relation~*s"], {"t1", "t2"}, ["r1", "r2"], ["e1", "e2", "e3"]),
        (["relation!=TREATS"], {"t2", "t3"}, ["r2", "r3"], ["e2", "e3", "e4"]),
        (["relation~*", "relation!=CAUSES", "path=b"], {"t2"}, ["r1"], ["e1", "e2"]),
        (["relation=CAUSES", "path~*"], {"t2"}, ["r2"], ["e2", "e3"]),
    ],
)
def test_a_condition_on_relations_selects_relationships_their_ends_and_chunks(
    conditions: list[str], chunks: set[str], relationships: list[str], entities: list[str]
):
    documents = [
        {**document("a"), "text_unit_ids": ["t1", "t3"]},
        {**document("b"), "text_unit_ids": ["t2"]},
    ]
    snap = Snapshot({"documents": documents, "relationships": RELATED, "text_units": UNITS})
    found = snap.run(matching_chunks(conditions))
    assert found == chunks
    assert sorted(snap.run(matching_ids("relationship", found))) == relationships
    assert sorted(snap.run(matching_ids("entity", found))) == entities


@pytest.mark.parametrize("name", ["WORKS FOR", "WORKS_FOR", "WORKS-FOR"])
@pytest.mark.parametrize("condition", ["=works for", "=Works-For", "=works_for", "~works_*", "~*-f?r"])
def test_relations_are_compared_without_regard_to_case_and_separators(name: str, condition: str):
    rows = [*RELATED, {**RELATED[2], "id": "r4", "relation": name, "text_unit_ids": ["t4"]}]
    snap = Snapshot({"documents": [document("a")], "relationships": rows})
    assert snap.run(matching_chunks([f"relation{condition}"])) == {"t4"}


def test_a_relation_that_no_relationship_has_is_reported():
    documents = [{**document("a"), "text_unit_ids": ["t1"]}, {**document("b"), "text_unit_ids": ["t2"]}]
    snap = Snapshot({"documents": documents, "relationships": RELATED})
    with pytest.raises(UsageError, match=r"'relation=KNOWS': relation is CAUSES \(1\), TREATS \(1\)"):
        snap.run(matching_chunks(["relation=KNOWS"]))
    with pytest.raises(UsageError, match="states such a relationship"):
        snap.run(matching_chunks(["relation=CAUSES", "path=a"]))


def test_without_relation_types_a_relation_is_a_column_of_metadata():
    documents = [document("a", relation="friend"), document("b", relation="foe")]
    untyped = [{**row, "relation": relation} for row, relation in zip(RELATED, ("", None, ""), strict=True)]
    for relationships in (untyped, []):
        snap = Snapshot({"documents": documents, "relationships": relationships})
        assert snap.run(matching_chunks(["relation=foe"])) == {"b-1", "b-2"}
    snap = Snapshot({"documents": documents, "relationships": RELATED})
    assert snap.run(matching_chunks(["metadata.relation=foe"])) == {"b-1", "b-2"}


def test_ids_are_restricted_to_chunks():
    units = [
        {"id": "t1", "entity_ids": ["e1", "e2"], "relationship_ids": ["r1"]},
        {"id": "t2", "entity_ids": ["e2", "e3"]},
    ]
    snap = Snapshot({"text_units": units})
    assert snap.run(matching_ids("entity", None)) is None
    assert snap.run(matching_ids("text_unit", {"t2", "t1"})) == ["t1", "t2"]
    assert snap.run(matching_ids("entity", {"t1"})) == ["e1", "e2"]
    assert snap.run(matching_ids("relationship", {"t1", "t2"})) == ["r1"]
    with pytest.raises(UsageError, match="reports, which are written from many documents"):
        snap.run(matching_ids("community_report", {"t1"}))


@given(st.text(max_size=40), st.text(max_size=20))
def test_any_text_is_parsed_or_rejected(text: str, value: str):
    with contextlib.suppress(UsageError):
        chosen(text, library=[document("a/x.txt", value, value, author=value)])


@given(st.text(min_size=1).filter(lambda v: v == v.strip()))
def test_value_equals_itself(value: str):
    assert chosen(f"author={value}", library=[document("a/x.txt", author=value)]) == ["x"]


# Periods of reports

PERIODS = [("2019", "2020-05"), ("2021-02-03", "2021-12"), (None, None), ("2021", "2023-01-31")]


def in_period(*conditions: str, periods: Any = PERIODS) -> list[bool]:
    table = pa.table(
        [pa.array(column, pa.string()) for column in zip(*periods, strict=True)], schema.PERIOD_COLUMNS
    )
    return reports_in_period(conditions, table).mask


@pytest.mark.parametrize(
    ("conditions", "chosen"),
    [
        (["date>=2021"], [False, True, False, True]),
        (["date<=2021"], [True, True, False, False]),
        (["date=2021"], [False, True, False, False]),
        (["date>=2021", "date<2022"], [False, True, False, False]),
        (["date<2020-06"], [True, False, False, False]),
    ],
)
def test_whole_period_of_a_report_must_satisfy_the_condition(conditions: list[str], chosen: list[bool]):
    assert in_period(*conditions) == chosen


def test_reports_left_out_are_counted():
    table = pa.table([pa.array(c, pa.string()) for c in zip(*PERIODS, strict=True)], schema.PERIOD_COLUMNS)
    assert reports_in_period(["date<=2020"], table).note() == (
        "The whole period of 1 report satisfies the conditions. Left out: 2 that also or only cover other "
        "dates, 1 without a period."
    )


def test_unsuitable_conditions_on_reports_are_explained():
    with pytest.raises(UsageError, match=r"'date>=2030': 3 reports with a period cover 2019 to 2023-01-31"):
        in_period("date>=2030")
    with pytest.raises(UsageError, match="no report has a period, because no document"):
        in_period("date>=2030", periods=[(None, None)])
    for condition in ("title=x", "date!=2020", "date~20*", "metadata.date>2020"):
        with pytest.raises(UsageError, match="does not apply to reports"):
            in_period(condition)


@given(st.lists(st.tuples(*[st.sampled_from(["2019", "2020-02", "2020-02-29", None])] * 2), min_size=1))
def test_every_report_is_read_or_counted(periods: list[tuple[str | None, str | None]]):
    table = pa.table([pa.array(c, pa.string()) for c in zip(*periods, strict=True)], schema.PERIOD_COLUMNS)
    with contextlib.suppress(UsageError):
        inside = reports_in_period(["date>=2020"], table)
        assert sum(inside.mask) + inside.outside + inside.undated == len(periods)


def test_documents_without_a_readable_date_are_counted():
    snap = Snapshot({"documents": LIBRARY})
    snap.run(matching_chunks(["date>=2023"]))
    notices = [need.text for need in snap.needs if isinstance(need, Notice)]
    assert notices == ["1 of 4 documents have no readable date and satisfy no condition on dates."]
