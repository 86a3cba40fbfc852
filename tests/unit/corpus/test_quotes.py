"""Choosing the sentence to quote for a citation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.corpus.quotes import MAX_QUOTE_CHARACTERS, best_sentence, quotation_parts

TEXT = "It rained. Mara Venn met Gideon Rasmoor at the lock.\n\nMara Venn left! Nobody saw it."


def test_sentence_with_most_names_is_quoted():
    start, end = best_sentence(TEXT, ["MARA VENN", "GIDEON RASMOOR"])
    assert TEXT[start:end] == "Mara Venn met Gideon Rasmoor at the lock."


def test_first_of_equally_good_sentences_is_quoted():
    start, end = best_sentence(TEXT, ["MARA VENN"])
    assert TEXT[start:end].startswith("Mara Venn met")


def test_without_a_name_the_first_sentence_is_quoted():
    assert TEXT[slice(*best_sentence(TEXT, []))] == "It rained."


def test_name_can_span_a_line_break():
    text = "Nothing. Mara\nVenn sang."
    assert text[slice(*best_sentence(text, ["MARA VENN"]))] == "Mara\nVenn sang."


@pytest.mark.parametrize(
    ("chunk", "quote"),
    [
        ("9 and $10.1 billion. Azure grew by 31%.", "Azure grew by 31%."),
        ("000 customers came. “We did,” he said.", "“We did,” he said."),
        ("eration with Hale ended.", "with Hale ended."),
        ("Azure grew. It did.", "Azure grew."),
        ("天气很好。我们走吧。", "天气很好。"),
    ],
)
def test_quote_begins_with_a_whole_sentence_or_word(chunk, quote):
    assert chunk[slice(*best_sentence(chunk, [], is_start=False))] == quote


def test_fragment_with_the_names_is_quoted():
    text = "ooned since Mara Venn left. It rained."
    assert text[slice(*best_sentence(text, ["MARA VENN"], is_start=False))] == "since Mara Venn left."


def test_a_long_sentence_is_cut_after_a_word():
    text = "Azure earned $30,000,000 " * 40
    start, end = best_sentence(text, [])
    assert MAX_QUOTE_CHARACTERS - 20 < end - start <= MAX_QUOTE_CHARACTERS
    assert text[end] == " "


@pytest.mark.parametrize("mark", ["[…]", "[...]", "…", "..."])
def test_quotation_is_split_at_ellipses(mark):
    assert quotation_parts(f"He left. {mark} “So be it” {mark}") == ["He left.", "“So be it”"]


def test_adjacent_quotes_are_one():
    assert quotation_parts("He left. She stayed [then].") == ["He left. She stayed [then]."]
    assert quotation_parts("") == []


@given(st.text(alphabet="ab .!\n", max_size=900), st.lists(st.text(alphabet="ab", max_size=3), max_size=3))
def test_quote_is_a_slice_of_limited_length(text, names):
    start, end = best_sentence(text, names)
    assert 0 <= start <= end <= len(text) and end - start <= MAX_QUOTE_CHARACTERS
    assert bool(text.strip()) == bool(text[start:end].strip())
