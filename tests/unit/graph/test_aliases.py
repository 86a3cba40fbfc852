from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.ids import entity_key
from graphrag_ray.graph.aliases import EntityNames, parse_names


def test_alias_has_the_key_of_its_canonical_name():
    names = parse_names("Mara Venn:\n  - Mayor Venn\n  - m. venn\n", None)
    assert names.key(" mayor   Venn ") == "MARA VENN"
    assert names.key("M. Venn") == names.key("Mara Venn") == "MARA VENN"
    assert names.key("Someone Else") == "SOMEONE ELSE"


def test_an_alias_of_an_alias_resolves_to_the_end_of_the_chain():
    names = parse_names("A: [B]\nB: [C]\n", None)
    assert names.key("c") == "A"


def test_single_alias_needs_no_brackets_and_canonical_names_can_repeat():
    names = parse_names("A: B\nC: [D]\nA: [E]\n", None)
    assert [names.key(n) for n in "BDE"] == ["A", "C", "A"]


def test_names_that_look_like_other_yaml_types_remain_text():
    names = parse_names("NO: [yes, 1984, null]\n", None)
    assert [names.key(n) for n in ("Yes", "1984", "Null")] == ["NO", "NO", "NO"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("A: [X]\nB: [x]\n", "'X' is an alias of both 'A' and 'B'"),
        ("A: [B]\nB: [A]\n", "'B' -> 'A' -> 'B'"),
        ("A: [B]\nB: [C]\nC: [A]\n", "aliases form a cycle"),
        ("A: {B: C}\n", "line 1"),
        ("- A\n", "not a mapping"),
        ("A: [B\n", "not valid YAML"),
        ("A: ['']\n", "line 1: empty name"),
    ],
)
def test_invalid_aliases_are_reported(text, named):
    with pytest.raises(SettingsError, match=named.replace("(", r"\(")):
        parse_names(text, None)


def test_name_can_be_its_own_alias():
    assert parse_names("Acme: [ACME, acme]\n", None).key("acme") == "ACME"


def test_blocked_names_have_no_key_under_any_alias():
    names = parse_names("Noise: [static]\n", "# not names\nnoise\n\n  applause  \nC#\n")
    assert names.key("Applause") is None
    assert names.key("Static") is None
    assert names.key("c#") is None
    assert names.key("# not names") == "# NOT NAMES"


def test_a_blocked_alias_does_not_block_its_canonical_name():
    names = parse_names("Kevin Scott: [Scott]\n", "scott")
    assert names.key("Scott") is None
    assert names.key("Kevin Scott") == "KEVIN SCOTT"


def test_an_empty_name_has_no_key():
    assert EntityNames().key(' "" ') is None


@given(st.text(max_size=20))
def test_without_files_the_key_is_the_entity_key(name):
    assert parse_names(None, None).key(name) == (entity_key(name) or None)


def test_names_are_picklable_and_have_canonical_json():
    names = parse_names("A: [B, C]\n", "D\nE")
    assert pickle.loads(pickle.dumps(names)).key("b") == "A"
    assert names.to_json() == parse_names("A: [C, B]\n", "E\nD").to_json() != EntityNames().to_json()
