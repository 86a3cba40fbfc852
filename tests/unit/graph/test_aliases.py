from __future__ import annotations

import pickle
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.base.ids import document_id, entity_key
from graphrag_ray.graph.aliases import EntityNames, parse_names


def test_alias_has_the_key_of_its_canonical_name():
    names = parse_names("Mara Venn:\n  - Mayor Venn\n  - m. venn\n", None)
    assert names.key(" mayor   Venn ") == "MARA VENN"
    assert names.key("M. Venn") == names.key("Mara Venn") == "MARA VENN"
    assert names.key("Someone Else") == "SOMEONE ELSE"


def test_an_alias_of_an_alias_resolves_to_the_end_of_the_chain():
    names = parse_names("A: [B]\nB: [C]\n", None)
    assert names.key("c") == "A"


def test_a_long_chain_of_aliases_is_resolved():
    names = parse_names("".join(f"N{n}: [N{n + 1}]\n" for n in range(2_000)), None)
    assert set(names.aliases.values()) == {"N0"} and len(names.aliases) == 2_000


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
        ("A: [B]\nC:\n  - {not: ''}\n", "line 3: empty name"),
        ("'': [B]\n", "line 1: empty name"),
        ("A: [B]\nB:\n  - {not: A}\n", "line 3: 'A' and 'B' are both aliases and different"),
        ("A: [B, {not: C}]\nB: [C]\n", "line 1: 'A' and 'C' are both aliases and different"),
        ("A: [{not: a}]\n", "line 1: 'A' and 'A' are both aliases and different"),
        ("A: [{name: X, document: d}]\nB: [{name: X, document: d}]\n", "line 2: 'X' is an alias of both"),
        ("A: [{name: B, document: d}]\nB: [{name: A, document: d}]\n", "aliases form a cycle"),
        ("A: [{name: X, document: d}]\nB: [X]\n", "'X' is an alias of 'B' in all documents"),
        ("A:\n  - B\n  - {not: [C]}\n", "line 3: write it as"),
        ("A:\n  - [B]\n", "line 2: write it as"),
        ("A:\n  - {split: true}\n", "line 2: write it as"),
        ("A:\n  - {document: d}\n", "line 2: write it as"),
        ("A:\n  - {name: B, row: '1'}\n", "line 2: write it as"),
        ("A:\n  - {name: B, not: C}\n", "line 2: write it as"),
        ("A:\n  - {name: B, colour: red}\n", "line 2: write it as"),
        ("A:\n  - {[x]: y}\n", "line 2: write it as"),
        ("{not: A}: [B]\n", "line 1: write it as"),
    ],
)
def test_invalid_aliases_are_reported(text, named):
    with pytest.raises(SettingsError, match=re.escape(named)):
        parse_names(text, None)


def test_name_can_be_its_own_alias():
    assert parse_names("Acme: [ACME, acme]\n", None).key("acme") == "ACME"


def test_blocked_names_have_no_key_under_any_alias():
    names = parse_names("Noise: [static]\n", "# not names\nnoise\n\n  applause  \nC#\n")
    assert names.key("Applause") is None
    assert names.key("Static") is None
    assert names.key("c#") is None
    assert names.key("# not names") == "# NOT NAMES"


def test_names_are_kept_apart_by_their_canonical_names():
    names = parse_names("Ada: [A.]\nBob:\n  - b.\n  - {not: a.}\n  - {not: Cy}\nAda: {not: bob}\n", None)
    assert names.different == {("ADA", "BOB"), ("BOB", "CY")}
    assert names.aliases == {"A.": "ADA", "B.": "BOB"}


def test_an_alias_in_one_document_leaves_other_documents_alone():
    names = parse_names(
        "John Orme:\n  - {name: Orme, document: a/b.txt}\n  - {name: J. Orme, document: t.csv, row: 7}\n",
        None,
    )
    assert names.by_document == {
        (document_id("a/b.txt"), "ORME"): "JOHN ORME",
        (document_id("t.csv", "7"), "J. ORME"): "JOHN ORME",
    }
    assert names.key("Orme") == "ORME" and names.canonical == {"JOHN ORME"}


def test_aliases_in_one_document_are_resolved_to_the_end_of_the_chain():
    names = parse_names(
        "C: [{name: B, document: d}]\nB: [{name: A, document: d}, {name: A, document: e}]\nX: [C]\n", None
    )
    d, e = document_id("d"), document_id("e")
    assert names.by_document == {(d, "B"): "X", (d, "A"): "X", (e, "A"): "B"}


def test_a_name_may_be_the_same_in_one_document_and_different_in_others():
    names = parse_names("Ada: [{not: Bob}, {name: Bob, document: d}]\n", None)
    assert names.different == {("ADA", "BOB")} and list(names.by_document.values()) == ["ADA"]


def test_an_alias_in_one_document_cannot_be_a_blocked_name():
    with pytest.raises(SettingsError, match="'NOISE', which is blocked"):
        parse_names("Noise: [{name: static, document: d}]\n", "noise")


@pytest.mark.parametrize("text", ["A: {split: false}", "A: [B, {split: False}]"])
def test_a_name_can_be_kept_in_one_piece(text):
    assert parse_names(text, None).unsplit == {"A"}


def test_decisions_about_names_that_do_not_exist_are_harmless():
    names = parse_names(
        "Nobody: [Noone, {not: Nil}, {name: Nix, document: none.txt}, {split: false}]\n", None
    )
    assert names.key("Ada") == "ADA"


def test_decisions_change_the_fingerprint_of_entity_resolution_only():
    plain = parse_names("A: [B]\n", None)
    for entry in ("{not: C}", "{name: C, document: d}", "{split: false}"):
        names = parse_names(f"A: [B, {entry}]\n", None)
        assert names.to_json() == plain.to_json() and names.decisions != plain.decisions


@given(
    st.dictionaries(
        st.sampled_from("ABCD"),
        st.lists(
            st.one_of(
                st.sampled_from("ABCD"),
                st.fixed_dictionaries({"not": st.sampled_from("ABCD")}),
                st.fixed_dictionaries({"name": st.sampled_from("ABCD"), "document": st.sampled_from("de")}),
                st.just({"split": False}),
            ),
            max_size=3,
        ),
    )
)
def test_a_file_is_refused_or_its_decisions_agree(content):
    try:
        names = parse_names(yaml.safe_dump(content), None)
    except SettingsError:
        return
    assert not set(names.aliases) & set(names.aliases.values())
    assert not {target for _, target in names.by_document} & set(names.aliases)
    for (document, _), title in names.by_document.items():
        assert title not in names.aliases and (document, title) not in names.by_document
    for a, b in names.different:
        assert a < b and names.resolve(a) == a and names.resolve(b) == b


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
