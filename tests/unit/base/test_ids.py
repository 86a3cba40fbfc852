"""Ids are hashes of natural keys: equal keys have equal ids, and different keys have different ids."""

import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base import ids

TEXT = st.text(st.characters(), max_size=30)
NAME = st.text(st.characters(exclude_characters="&"), max_size=30)
ID = st.text("0123456789abcdef", min_size=32, max_size=32)


def test_ids_never_change() -> None:
    # Stored tables contain these ids, so a change would orphan every index.
    assert ids.document_id("a/b.txt") == "b08eff25ac2c6ac2dd2a7e0ac56c7a5e"
    assert ids.entity_id("ULLA") == "619df32f4e7e409a42eeef23dabcfb73"


@given(TEXT, st.lists(TEXT, max_size=3), TEXT, st.lists(TEXT, max_size=3))
def test_ids_differ_by_kind_and_key(kind: str, key: list[str], kind2: str, key2: list[str]) -> None:
    kind, kind2 = kind.encode("utf-8", "replace").decode(), kind2.encode("utf-8", "replace").decode()
    same = (kind, key) == (kind2, key2)
    assert (ids.stable_id(kind, *key) == ids.stable_id(kind2, *key2)) == same
    assert len(ids.stable_id(kind, *key)) == ids.ID_LENGTH
    assert set(ids.stable_id(kind, *key)) <= set("0123456789abcdef")


def test_parts_of_a_key_are_delimited() -> None:
    assert ids.stable_id("k", "a", "bc") != ids.stable_id("k", "ab", "c")
    assert ids.stable_id("k", "a") != ids.stable_id("k", "a", "")
    assert ids.document_id("a", "b") != ids.document_id("ab")
    assert ids.text_unit_id("d", "t", 0) != ids.text_unit_id("d", "t", 1)


@given(TEXT, TEXT)
def test_a_relationship_has_no_direction(a: str, b: str) -> None:
    assert ids.relationship_id(a, b) == ids.relationship_id(b, a)


@given(st.lists(ID, max_size=5))
def test_the_id_of_a_community_does_not_depend_on_the_order_of_its_members(some: list[str]) -> None:
    members = ids.id_prefixes(some)
    found = ids.community_id("leiden", 0, members)
    assert ids.community_id("leiden", 0, members[::-1]) == found
    assert ids.community_id("leiden", 0, np.append(members, np.uint64(1))) != found
    assert ids.community_id("leiden", 1, members) != found
    assert ids.community_id("other", 0, members) != found


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Ulla Garrowby", "ULLA GARROWBY"),
        ("  ulla \n\t garrowby ", "ULLA GARROWBY"),
        ('"Ulla Garrowby"', "ULLA GARROWBY"),
        ("“Ulla” Garrowby", "ULLA” GARROWBY"),
        ("Marks &amp; Spencer", "MARKS & SPENCER"),
        ("AT&T", "AT&T"),
        ("Cafe\u0301", "CAFÉ"),
        ("Ulla\u00a0Garrowby", "ULLA GARROWBY"),
        ("Ul\u00adla\u200b\x07", "ULLA"),
        ("Straße", "STRASSE"),
        ("O'Brien", "O'BRIEN"),
        (f"A&#{'0' * 5_000}66;C&#{'9' * 5_000};D&#{'9' * 20}", "ABC\ufffdD\ufffd"),
        (" \n\"' ", ""),
        ("", ""),
    ],
)
def test_an_entity_key_normalises_insignificant_characters(name: str, key: str) -> None:
    assert ids.entity_key(name) == key


def test_excessive_combining_marks_are_dropped_from_names() -> None:
    assert ids.entity_key("e" + "\u0301" * 40) == ids.entity_key("e" + "\u0301" * ids.MAX_MARKS)
    assert ids.entity_key("x" + "&#817;&#769;" * 5_000) == ids.entity_key("x" + "\u0331\u0301" * 15)
    assert ids.limit_combining_marks("a" + "\u0316\u0301" * 20, "?") == "a" + "\u0316\u0301" * 15 + "?" * 10


@given(NAME)
def test_entity_key_is_idempotent(name: str) -> None:
    key = ids.entity_key(name)
    assert ids.entity_key(key) == key


@given(NAME)
def test_an_entity_key_is_one_line_of_composed_text(name: str) -> None:
    key = ids.entity_key(name)
    assert key == " ".join(key.split())
    assert unicodedata.is_normalized("NFC", key)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in key)


@given(NAME)
def test_case_whitespace_and_composition_do_not_change_an_entity_key(name: str) -> None:
    key = ids.entity_key(name)
    assert ids.entity_key(f"  {name}\n") == key
    assert ids.entity_key(unicodedata.normalize("NFD", name)) == key


@given(st.text("abc XYZéß'-", max_size=20))
def test_upper_and_lower_case_have_the_same_key(name: str) -> None:
    assert ids.entity_key(name.upper()) == ids.entity_key(name) == ids.entity_key(name.title())


@given(st.lists(ID))
def test_id_prefixes_sort_like_ids(some: list[str]) -> None:
    found = ids.id_prefixes(sorted(some))
    assert found.dtype == np.uint64
    assert (found[1:] >= found[:-1]).all()
    assert [f"{int(p):016x}" for p in found] == [i[:16] for i in sorted(some)]


@pytest.mark.parametrize(
    "names",
    [
        ("J. R. R. Tolkien", "j.r.r. tolkien", "J R R  TOLKIEN"),
        ("Abdul-Aziz bin Muhammad", "ABDUL AZIZ BIN MUHAMMAD"),
        ("“Homage”", "Homage"),
        ("東京", "東京。"),
        ("café society", "cafe\u0301 society"),
    ],
)
def test_names_with_the_same_words_share_a_name_id(names: tuple[str, ...]):
    assert len({ids.name_id(name) for name in names}) == 1


@pytest.mark.parametrize(
    "names",
    [
        ("C", "C++", "C#"),
        ("R", "R&D"),
        ("New York", "NewYork"),
        ("東京", "京東"),
        ("+", "-"),
        ("হাসান", "হোসেন"),
        ("राम लाल", "रोम लाल"),
    ],
)
def test_different_words_and_different_punctuation_of_short_names_change_the_name_id(names: tuple[str, ...]):
    assert len({ids.name_id(name) for name in names}) == len(names)


@given(st.text(max_size=60))
def test_a_name_without_significant_characters_has_no_name_id(name: str):
    assert bool(ids.name_id(name)) == bool(ids.entity_key(name))


def test_runs_of_any_combining_mark_are_limited() -> None:
    marks = [c for c in map(chr, range(sys.maxunicode)) if unicodedata.combining(c)]
    assert all(ids.limit_combining_marks(mark * 40) == mark * ids.MAX_MARKS for mark in marks)
