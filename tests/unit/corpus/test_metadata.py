"""Columns of a document's metadata, by name."""

from __future__ import annotations

from graphrag_ray.corpus.document import (
    MAX_METADATA_CHARACTERS,
    column_at_path,
    metadata_lines,
    parse_raw_data,
)


def test_dotted_name_selects_a_nested_value():
    columns = {"author": {"name": "Mara"}, "author.age": 40}
    assert (column_at_path(columns, "author.name"), column_at_path(columns, "author.age")) == ("Mara", 40)
    assert column_at_path(columns, "author.name.first") is column_at_path(columns, "publisher") is None


def test_raw_data_that_is_not_an_object_has_no_columns():
    assert parse_raw_data(None) == parse_raw_data("[1]") == parse_raw_data("{") == {}


def test_each_available_column_is_a_line():
    columns = {"author": ["Mara Venn", "Bo\u2028Lind"], "pages": 12, "note": " ", "end": None}
    lines = metadata_lines(columns, ["pages", "author", "note", "end", "publisher"])
    assert lines == "pages: 12\nauthor: Mara Venn, Bo Lind\n"


def test_very_long_value_is_shortened():
    (line,) = metadata_lines({"abstract": "word " * 1_000}, ["abstract"]).splitlines()
    assert len(line) <= MAX_METADATA_CHARACTERS + len("abstract: ") and line.endswith("…")
