"""Text for XML and for spreadsheets."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.export.graph_tables import clean_text, escape_spreadsheet, escape_xml

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\nx", "\rx", "＝1", "＋1", "－1", "＠x"]


def of(function, *texts: str | None) -> list[str | None]:
    return function(pa.chunked_array([pa.array(texts, pa.string())])).to_pylist()


@pytest.mark.parametrize("text", FORMULAS)
def test_what_a_spreadsheet_would_calculate_begins_with_a_quote(text: str):
    assert of(escape_spreadsheet, text) == ["'" + plain_of(text)]


def plain_of(text: str) -> str:
    return of(clean_text, text)[0] or ""


def test_a_formula_behind_control_characters_is_one_too():
    assert of(escape_spreadsheet, "\x00=1+1", "\x1b\x7f@x") == ["'=1+1", "'@x"]


def test_other_cells_stay_as_they_are():
    texts = ["1-1", "a=b", "", "'=1", "ÅSA", None]
    assert of(escape_spreadsheet, *texts) == texts


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        ("a;=1+1", "a;'=1+1"),
        ("a; \t@x;b", "a; \t'@x;b"),
        ('a\t"=1+1"', 'a\t"\'=1+1"'),
        ("a;-1;+2", "a;'-1;'+2"),
    ],
)
def test_a_formula_behind_a_separator_of_other_spreadsheets_is_guarded_too(text: str, guarded: str):
    assert of(escape_spreadsheet, text) == [guarded]


@given(st.lists(st.sampled_from([*";\t\n \"'=+-@a＝"])).map("".join))
def test_no_cell_begins_like_a_formula_at_semicolons_and_tabs_either(text: str):
    for cell in re.split("[;\t]", of(escape_spreadsheet, text)[0] or "")[1:]:
        assert not re.match("\\s*[\"']?[=+\\-@＝]", cell) or re.match("\\s*'[=+\\-@＝]", cell)


@given(st.text())
def test_no_cell_begins_like_a_formula(text: str):
    assert not (of(escape_spreadsheet, text)[0] or "").startswith(tuple("=+-@\t\r\n＝＋－＠"))


@given(st.text())
def test_any_text_survives_xml_without_what_xml_has_not(text: str):
    escaped = of(escape_xml, text)[0]
    held = ElementTree.fromstring(f'<a b="x">{escaped}</a>').text or ""
    assert held == plain_of(text)
    assert all(c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") for c in held)


def test_an_attribute_survives_too():
    escaped = of(escape_xml, "\"<&>'")[0]
    assert ElementTree.fromstring(f'<a b="{escaped}"/>').get("b") == "\"<&>'"


def test_line_ends_become_line_feeds_and_nothing_else_of_the_text_changes():
    assert of(clean_text, "a\r\nb\rc\td\x00e\ufffef", None) == ["a\nb\nc\tdef", None]
