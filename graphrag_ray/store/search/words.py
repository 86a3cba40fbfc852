"""The words of a text, in any script, as keyword search counts them: the same for records and questions.

Words are case-folded, brought into Unicode NFKC, and stemmed by Snowball (Porter 1980, "An algorithm for
suffix stripping"; snowballstem.org) in the language of the corpus. Where that is not known, a word of six
letters or more counts as itself and by its first six: the plainest of all stemmers and the only one that fits
most languages (McNamee and Mayfield 2004, "Character n-gram tokenization for European language text
retrieval"). Scripts that put no spaces between words (Chinese, Japanese, Thai, Khmer, …), and Korean, whose
particles cling to words, are read as their characters and pairs of neighbours, as Lucene's CJK analysis does.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

STEM = 6
MAX_WORD = 64
"""A longer run of letters is cut into words: so no text takes more than linear time, whatever it holds."""

_PREFIX_MARK = "*"
# Thai and Lao, Myanmar, Korean letters, Khmer, then Han, kana, bopomofo, Hangul and the supplementary planes.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U00020000-\U0003ffff"
)
_ASCII_WORD = re.compile(f"[a-z0-9]{{1,{MAX_WORD}}}")
_PUNCTUATION = "“”‘’–—…"
"""What most texts have that are ASCII otherwise."""
_RUN = re.compile(f"[{_UNSPACED}]")


def words(text: str, language: str = "") -> list[str]:
    """All words in order, each as often as it occurs. language: of `languages.WORDS`; "": not known."""
    return [word for written in _written(text) for word in _read(written, language)]


@lru_cache(maxsize=1 << 16)
def _read(written: str, language: str) -> tuple[str, ...]:
    if written > "\u0e00" and _RUN.match(written):
        return (*written, *map("".join, pairwise(written)))
    if language:
        return (_stemmer(language).stemWord(written),)
    return (written, written[:STEM] + _PREFIX_MARK) if len(written) >= STEM else (written,)


@cache
def _stemmer(language: str) -> Any:
    import Stemmer

    return Stemmer.Stemmer(language, 0)  # `_read` remembers already


def _written(text: str) -> list[str]:
    if not text.isascii():
        for mark in _PUNCTUATION:
            text = text.replace(mark, " ")
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())  # several times as fast
    # Word by word: a run of thousands of combining marks would take quadratic time.
    word = _word()
    return word.findall(unicodedata.normalize("NFKC", "\n".join(word.findall(text))).casefold())


@cache
def _word() -> re.Pattern[str]:
    """A word of any script. Most texts are ASCII, and to compile it takes a while."""
    # Python's \w leaves out the marks that vowels and accents are in many scripts.
    marks = "".join(c for c in map(chr, range(0x300, 0x1E00)) if unicodedata.category(c) in ("Mn", "Mc"))
    return re.compile(f"[{_UNSPACED}]{{1,{MAX_WORD}}}|(?:[^\\W_{_UNSPACED}]|[{marks}]){{1,{MAX_WORD}}}")
