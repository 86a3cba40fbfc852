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
    matching_chunks,
    matching_ids,
    parse,
    satisfied,
)


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
    return [d["path"][2] for d, yes in zip(library, satisfied(parsed, table), strict=True) if yes]


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
def test_a_condition_chooses_the_documents_that_fulfil_it(condition: str, paths: str):
    assert "".join(chosen(condition)) == paths


def test_several_conditions_have_to_hold_together():
    assert chosen("path~*.txt", "year>=2020") == ["z"]
    with pytest.raises(UsageError, match=r"none satisfies all of them: path~a/\*, done=true"):
        chosen("path~a/*", "done=true")


@pytest.mark.parametrize("text", ["", "title", "=x", "title:x", "~x"])
def test_what_is_no_condition_is_named_with_the_shape_it_needs(text: str):
    with pytest.raises(UsageError, match=r"Condition .*NAME=VALUE"):
        parse(text)


@pytest.mark.parametrize("text", ["title=" + "x" * MAX_CHARACTERS, " " * 1_000_000 + "title=x"])
def test_a_condition_that_is_too_long_is_refused_and_not_repeated(text: str):
    with pytest.raises(UsageError, match="characters. At most 4,000") as refused:
        parse(text)
    assert len(str(refused.value)) < 200


def test_so_many_conditions_can_be_met_together_and_no_more():
    snap = Snapshot({"documents": LIBRARY})
    assert snap.run(matching_chunks(["title=Minutes"] * MAX_CONDITIONS)) == {"a/x.txt-1", "a/x.txt-2"}
    with pytest.raises(UsageError, match="At most 100 conditions can be combined, got 101"):
        snap.run(matching_chunks(["title=Minutes"] * (MAX_CONDITIONS + 1)))


def test_an_order_needs_a_number_or_a_date():
    with pytest.raises(
        UsageError, match="'title>=M' is not valid: 'M' is neither a number nor a date such as 2023"
    ):
        parse("title>=M")


def test_a_name_that_no_document_has_is_answered_with_those_that_there_are():
    with pytest.raises(
        UsageError, match=r"no document has 'autor'.* path, title, date, .* author, done, tags, year"
    ):
        chosen("autor=Ole")
    with pytest.raises(UsageError, match="they have no metadata"):
        chosen("author!=Ole", library=[document("a/x.txt")])


def test_a_value_that_no_document_has_is_answered_with_those_that_there_are():
    with pytest.raises(
        UsageError, match=r"No document satisfies 'author=Ola': author is Mara Venn \(1\), Ole \(1\)"
    ):
        chosen("author=Ola")
    with pytest.raises(UsageError, match=r"none has a date. Set input\.date_column"):
        chosen("date>=2020", library=[document("a/x.txt")])


def test_a_date_written_with_numbers_in_no_known_order_is_not_guessed_at():
    with pytest.raises(UsageError, match=r"date is 03/04/2023 \(1\)"):
        chosen("date>=2023", library=[document("a/x.txt", date="03/04/2023")])
    assert chosen("date>=2023-04-01", library=[document("a/x.txt", date="20230403")]) == ["x"]
    assert chosen(
        "date>=2023-04-01", library=[document("a/x.txt", date="Mon, 03 Apr 2023 10:00:00 GMT")]
    ) == ["x"]


@pytest.mark.parametrize(
    ("condition", "titles"), [("title~[12]*", "["), ("title!~[12]*", "1"), ("title~*]?", "[")]
)
def test_a_bracket_in_a_pattern_is_itself(condition: str, titles: str):
    library = [document("-/[", "[12]x"), document("-/1", "1x")]
    assert "".join(chosen(condition, library=library)) == titles


@pytest.mark.parametrize(("sign", "paths"), [("<", "b"), ("<=", "ab"), (">=", "ac"), (">", "c")])
def test_a_date_that_is_coarser_than_the_bound_is_compared_as_far_as_it_goes(sign: str, paths: str):
    library = [document("-/a", date="2023"), document("-/b", date="2022"), document("-/c", date="2024-01")]
    assert "".join(chosen(f"date{sign}2023-05", library=library)) == paths


@pytest.mark.parametrize("metadata", ["[1, 2]", "{", '{"year": ' + '{"a":' * 900 + "1" + "}" * 901])
def test_metadata_that_is_no_object_is_none(metadata: str):
    odd = {**document("a/y.txt"), "raw_data": metadata}
    assert chosen("year=2019", library=[odd, LIBRARY[0]]) == ["x"]


def test_values_in_lists_of_lists_are_found_however_deep():
    odd = {**document("a/y.txt"), "raw_data": '{"year": ' + "[" * 900 + "2019" + "]" * 900 + "}"}
    assert chosen("year=2019", library=[odd, LIBRARY[0]]) == ["y", "x"]
    with pytest.raises(UsageError, match="no document has"):
        chosen("year" + ".a" * 1_000 + "=1")


@pytest.mark.parametrize("written", ["Feb 1e1000 99999999999999", "9" * 5_000, "March " * 50])
def test_what_only_looks_like_a_date_is_none(written: str):
    assert chosen("date>=2000", library=[document("a/y.txt", date=written), LIBRARY[0]]) == ["x"]


def test_chunks_of_the_chosen_documents_are_what_counts():
    snap = Snapshot({"documents": LIBRARY})
    assert snap.run(matching_chunks(["title=Minutes"])) == {"a/x.txt-1", "a/x.txt-2"}
    assert snap.run(matching_chunks([])) is None and snap.run(matching_chunks(["path~*"])) is None
    assert Snapshot({}).run(matching_chunks(["title=Minutes"])) is None


def test_what_can_be_found_is_what_these_chunks_name():
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
def test_any_text_is_a_condition_or_is_refused_as_such(text: str, value: str):
    with contextlib.suppress(UsageError):
        chosen(text, library=[document("a/x.txt", value, value, author=value)])


@given(st.text(min_size=1).filter(lambda v: v == v.strip()))
def test_every_value_equals_itself(value: str):
    assert chosen(f"author={value}", library=[document("a/x.txt", author=value)]) == ["x"]
