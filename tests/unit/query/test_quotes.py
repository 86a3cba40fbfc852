"""Quotes: the sentence under a citation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.query.quotes import MAX_QUOTE_CHARACTERS, best_sentence

TEXT = "It rained. Mara Venn met Gideon Rasmoor at the lock.\n\nMara Venn left! Nobody saw it."


def test_the_sentence_that_holds_most_names_is_quoted():
    start, end = best_sentence(TEXT, ["MARA VENN", "GIDEON RASMOOR"])
    assert TEXT[start:end] == "Mara Venn met Gideon Rasmoor at the lock."


def test_of_equal_sentences_the_first_is_quoted():
    start, end = best_sentence(TEXT, ["MARA VENN"])
    assert TEXT[start:end].startswith("Mara Venn met")


def test_without_a_name_the_first_sentence_is_quoted():
    assert TEXT[slice(*best_sentence(TEXT, []))] == "It rained."


def test_a_name_over_a_line_break_counts():
    text = "Nothing. Mara\nVenn sang."
    assert text[slice(*best_sentence(text, ["MARA VENN"]))] == "Mara\nVenn sang."


@given(st.text(alphabet="ab .!\n", max_size=900), st.lists(st.text(alphabet="ab", max_size=3), max_size=3))
def test_a_quote_is_a_piece_of_the_text_of_bounded_length(text, names):
    start, end = best_sentence(text, names)
    assert 0 <= start <= end <= len(text) and end - start <= MAX_QUOTE_CHARACTERS
    assert bool(text.strip()) == bool(text[start:end].strip())
