"""Escaping of text for XML and spreadsheets."""

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
def test_formulas_get_a_leading_quote(text: str):
    assert of(escape_spreadsheet, text) == ["'" + cleaned(text)]


def cleaned(text: str) -> str:
    return of(clean_text, text)[0] or ""


def test_formulas_after_control_characters_get_a_leading_quote():
    assert of(escape_spreadsheet, "\x00=1+1", "\x1b\x7f@x") == ["'=1+1", "'@x"]


def test_other_cells_are_unchanged():
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
def test_formulas_after_a_semicolon_or_tab_get_a_quote(text: str, guarded: str):
    assert of(escape_spreadsheet, text) == [guarded]


@given(st.lists(st.sampled_from([*";\t\n \"'=+-@a＝"])).map("".join))
def test_no_text_after_a_semicolon_or_tab_begins_like_a_formula(text: str):
    for cell in re.split("[;\t]", of(escape_spreadsheet, text)[0] or "")[1:]:
        assert not re.match("\\s*[\"']?[=+\\-@＝]", cell) or re.match("\\s*'[=+\\-@＝]", cell)


@given(st.text())
def test_no_cell_begins_like_a_formula(text: str):
    assert not (of(escape_spreadsheet, text)[0] or "").startswith(tuple("=+-@\t\r\n＝＋－＠"))


@given(st.text())
def test_text_survives_xml_except_for_invalid_characters(text: str):
    escaped = of(escape_xml, text)[0]
    held = ElementTree.fromstring(f'<a b="x">{escaped}</a>').text or ""
    assert held == cleaned(text)
    assert all(c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") for c in held)


def test_an_attribute_survives_xml():
    escaped = of(escape_xml, "\"<&>'")[0]
    assert ElementTree.fromstring(f'<a b="{escaped}"/>').get("b") == "\"<&>'"


def test_line_ends_become_line_feeds_and_nothing_else_changes():
    assert of(clean_text, "a\r\nb\rc\td\x00e\ufffef", None) == ["a\nb\nc\tdef", None]
