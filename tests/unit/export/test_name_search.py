"""Names are found as people write them."""

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
def test_case_accents_compatibility_forms_and_white_space_do_not_matter(written: str, name: str):
    assert fold(written) == fold(name)


@given(st.text())
def test_folding_what_is_folded_changes_nothing(text: str):
    assert fold(fold(text)) == fold(text)


def test_names_that_are_the_text_come_first_then_those_that_begin_with_it():
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
def test_a_misspelt_name_or_a_part_of_one_leads_to_what_was_meant(written: str, meant: str):
    assert found(find_similar(written, NAMES))[0] == meant


def test_what_is_like_nothing_leads_nowhere():
    assert (
        find_similar("quixotic zebra", NAMES) == []
        and find_similar("", NAMES) == []
        and find_similar("x", []) == []
    )


@given(st.lists(st.text(max_size=12), max_size=20), st.text(max_size=12), st.integers(1, 5))
def test_at_most_so_many_are_named_and_none_twice(names: list[str], text: str, n: int):
    places = find_similar(text, names, n)
    assert len(places) <= n and len(set(places)) == len(places)
    assert all(0 <= at < len(names) for at in places)


def test_a_name_of_any_length_is_compared_in_little_time():
    assert find_similar("A" * 100_000, ["A" * 90_000, "B" * 90_000]) == [0]
