"""Language detection by function words."""

from __future__ import annotations

from typing import get_args

import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.index_settings import Language
from graphrag_ray.store.search.tokenizer import FUNCTION_WORDS, detect_common_language, detect_language

GERMAN = "Die Katze saß auf dem Dach, und das war nicht gut für den Hund."
ENGLISH = "The cat sat on the mat, and it was not good for the dog."


def test_all_languages_in_settings_can_be_detected_and_stemmed():
    assert set(get_args(Language)) == FUNCTION_WORDS.keys() <= set(Stemmer.algorithms())


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (ENGLISH, "english"),
        (GERMAN, "german"),
        ("Le chat est sur le toit et il ne veut pas descendre.", "french"),
        ("El gato se sienta en la casa y no quiere que lo vean.", "spanish"),
        ("Il gatto è sul tetto e non vuole che la gente lo veda.", "italian"),
        ("De kat zat op het dak en dat is niet goed voor een hond.", "dutch"),
        ("Katten satt på taket och det är inte bra för en hund.", "swedish"),
        ("Кот сидел на крыше и не хотел это видеть.", "russian"),
        ("Η γάτα είναι στο σπίτι και το σκυλί δεν θέλει να την δει.", "greek"),
        ("Kot siedział na dachu i nie był tym, co się w domu je.", "polish"),
        ("東京は大きい。", ""),
        ("Mara Venn, Denholm", ""),
        ("", ""),
    ],
)
def test_language_is_detected_by_function_words(text: str, language: str):
    assert detect_language(text) == language


def test_common_language_is_that_of_most_texts():
    assert detect_common_language([ENGLISH] * 7 + [GERMAN] * 3 + ["Mara Venn"] * 90) == "english"
    assert detect_common_language([ENGLISH] * 5 + [GERMAN] * 5) == "", (
        "no stemming for a corpus in two languages"
    )
    assert detect_common_language([]) == ""


@given(st.lists(st.text(max_size=80), max_size=5))
def test_the_order_of_texts_does_not_matter(texts: list[str]):
    assert detect_common_language(texts) == detect_common_language(texts[::-1])
