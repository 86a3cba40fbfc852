"""Search for names as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.export.record_lookup import find_containing, find_similar, fold

NAMES = ["MARA VENN", "TEODOR BRANIK", "ÅSA LÖVGREN", "HASK MARSH", "HASK MARSH INQUIRY", "VENN & SONS"]


def found(places: list[int]) -> list[str]:
    return [NAMES[at] for at in places]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Åsa  Lövgren", "ASA LOVGREN"),
        ("straße", "STRASSE"),
        ("οδος", "ΟΔΌΣ"),
        ("ﬁsh\nand chips", "FISH AND CHIPS"),
        ("e\u0301mile", "Émile"),
        ("東京", "東京"),
    ],
)
def test_case_accents_compatibility_forms_and_whitespace_are_ignored(written: str, name: str):
    assert fold(written) == fold(name)


@given(st.text())
def test_folding_is_idempotent(text: str):
    assert fold(fold(text)) == fold(text)


def test_equal_names_come_first_then_names_that_begin_with_the_text():
    assert found(find_containing("hask marsh", NAMES)) == ["HASK MARSH", "HASK MARSH INQUIRY"]
    assert found(find_containing("venn", NAMES)) == ["VENN & SONS", "MARA VENN"]
    assert found(find_containing("lovg", NAMES)) == ["ÅSA LÖVGREN"]
    assert find_containing("zzz", NAMES) == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("mara ven", "MARA VENN"),
        ("hask mrash", "HASK MARSH"),
        ("lovgren", "ÅSA LÖVGREN"),
        ("INQUIRY", "HASK MARSH INQUIRY"),
    ],
)
def test_a_misspelt_or_partial_name_finds_the_intended_one(written: str, meant: str):
    assert found(find_similar(written, NAMES))[0] == meant


def test_unrelated_text_finds_nothing():
    assert (
        find_similar("quixotic zebra", NAMES) == []
        and find_similar("", NAMES) == []
        and find_similar("x", []) == []
    )


@given(st.lists(st.text(max_size=12), max_size=20), st.text(max_size=12), st.integers(1, 5))
def test_at_most_n_names_are_found_and_none_twice(names: list[str], text: str, n: int):
    places = find_similar(text, names, n)
    assert len(places) <= n and len(set(places)) == len(places)
    assert all(0 <= at < len(names) for at in places)


def test_comparing_a_long_name_is_fast():
    assert find_similar("A" * 100_000, ["A" * 90_000, "B" * 90_000]) == [0]
