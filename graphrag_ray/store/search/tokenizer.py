"""Split texts in any script into words for keyword search, and detect their language.

Words are case-folded, normalized to NFKC, and stemmed by Snowball (Porter 1980, "An algorithm for suffix
stripping"; snowballstem.org) in the language of the corpus. If the language is unknown, words of at least six
letters are also indexed by their first six letters. This is the simplest stemmer, and works for most
languages (McNamee and Mayfield 2004, "Character n-gram tokenization for European language text retrieval").
Scripts without spaces between words (Chinese, Japanese, Thai, Khmer, …), and Korean, whose particles are
attached to words, are split into characters and bigrams, as in Lucene's CJK analysis.

Languages are detected by function words (Ingle 1976, "A Language Identification Table"; Grefenstette 1995,
"Comparing Two Language Identification Schemes"). A word on two lists counts for both languages.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

PREFIX_LENGTH = 6
MAX_WORD = 64  # Longer words are split, so that every text takes linear time.

_PREFIX_MARK = "*"
# Thai and Lao, Myanmar, Korean letters, Khmer, then Han, kana, bopomofo, Hangul and the supplementary planes.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U00020000-\U0003ffff"
)
_ASCII_WORD = re.compile(f"[A-Za-z0-9]{{1,{MAX_WORD}}}")
_PUNCTUATION = "“”‘’–—…"  # The only non-ASCII characters of many texts.
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")

# About twenty of the most frequent words of each language, keyed by Snowball's name for it.
FUNCTION_WORDS = {
    "arabic": "في من على إلى أن هذا التي الذي كان مع هذه قد لم ما بعد عن كل بين وقد ذلك",
    "danish": "og i at det er en til på som med af for den ikke der var et har de fra kan også blev være",
    "dutch": "de het een en van in is dat op te zijn met voor niet aan er ook als bij maar om door deze werd",
    "english": "the of and to in is that for it was as with be by on not he his but at are this have from or",
    "finnish": "ja on ei että se oli mutta myös hän kun ovat joka tai kuin sen niin mukaan ole sekä olla",
    "french": "le la les de des et en un une du que est dans pour qui par sur pas au plus ce il se avec sont",
    "german": "der die und das den von zu mit ist des nicht ein eine im dem auf für sich als auch es an",
    "greek": "και το της του η ο να την τον στην με για από που είναι τα οι των στο θα δεν ως μια",
    "hindi": "के में है की और से का को पर ने यह भी एक हैं कि था इस लिए नहीं किया",
    "hungarian": "a az és hogy nem is egy ez volt meg de csak mint már vagy ki azt lehet minden amely",
    "italian": "il di che la e in un per una è del non con i da si le dei gli al come alla sono della più",
    "norwegian": "og i det er på en som til av for at med den ikke var et har de fra om han kan ble også",
    "indonesian": "yang dan di dari dalam untuk dengan pada ini adalah itu tidak oleh sebagai juga akan ke",
    "polish": "w i na z się nie do że jest to o jak po ale od za co są dla przez był jego przy oraz tym",
    "portuguese": "de a o que e do da em um para com não uma os no se na por mais as dos foi ao ele das à",
    "romanian": "și de în la a cu pe o care din nu că este un mai pentru fost au ce lui sau după prin sunt",
    "russian": "и в не на что с он как по это но из у к за от его для был о было она так же все",
    "spanish": "de la que el en y a los del se las por un para con no una su al es lo como más pero fue",
    "swedish": "och i att det som en på är av för med den till inte har de om ett han var jag från eller",
    "turkish": "ve bir bu da de için ile olarak daha çok gibi olan en ama kadar sonra ne var olduğu değil",
}

MIN_SHARE = 0.6  # Minimum share of the common language among texts with a known language.
_MIN_MATCHES = 3
_MAX_CHARS = 4_000  # Only this many characters of a text are examined.

_LETTERS = re.compile(r"[^\W\d_]++(?:[\u0300-\u036f\u0900-\u0963]++[^\W\d_]*+)*+")
_LANGUAGES: dict[str, list[str]] = {}
for _language, _frequent in FUNCTION_WORDS.items():
    for _word in _frequent.split():
        _LANGUAGES.setdefault(_word, []).append(_language)


def tokenize(text: str, language: str = "") -> list[str]:
    """Return the index terms of all words in order, with repetitions.

    `language` is a key of `FUNCTION_WORDS`, or "" if unknown.
    """
    return [word for token in _tokens(text) for word in _stems(token, language)]


def split_words(text: str) -> list[str]:
    """Return the words in order, in their case. Characters of scripts without spaces are separate words."""
    words = _tokens(text, fold=False)
    if text.isascii():
        return words
    return [part for word in words for part in (word if _UNSPACED_CHARACTER.match(word) else (word,))]


@lru_cache(maxsize=1 << 16)
def _stems(token: str, language: str) -> tuple[str, ...]:
    if is_unspaced(token):
        return (*token, *map("".join, pairwise(token)))
    if language:
        return (stem_word(token, language),)
    return (token, token[:PREFIX_LENGTH] + _PREFIX_MARK) if len(token) >= PREFIX_LENGTH else (token,)


def is_unspaced(token: str) -> bool:
    """Whether a token is a run of a script without spaces between words."""
    return token > "\u0e00" and _UNSPACED_CHARACTER.match(token) is not None


def stem_word(word: str, language: str) -> str:
    stemmed: str = _stemmer(language).stemWord(word)
    return stemmed


@cache
def _stemmer(language: str) -> Any:
    import Stemmer

    return Stemmer.Stemmer(language, 0)  # Without a cache, because `_stems` has one.


def _tokens(text: str, fold: bool = True) -> list[str]:
    if not text.isascii():
        for mark in _PUNCTUATION:
            text = text.replace(mark, " ")
    if text.isascii():
        return _ASCII_WORD.findall(text.lower() if fold else text)  # Several times faster.
    # Normalize words separately, because thousands of combining marks in a row would take quadratic time.
    pattern = word_pattern()
    text = unicodedata.normalize("NFKC", "\n".join(pattern.findall(text)))
    return pattern.findall(text.casefold() if fold else text)


@cache  # Compiled on demand, because this is slow and most texts are ASCII.
def word_pattern(joiners: str = "") -> re.Pattern[str]:
    """Return the pattern of words in any script. `joiners` may stand between the letters of a word."""
    # Python's \w excludes combining marks, which are vowels and accents in many scripts.
    marks = "".join(c for c in map(chr, range(0x300, 0x1E00)) if unicodedata.category(c) in ("Mn", "Mc"))
    letters = f"(?:[^\\W_{_UNSPACED}]|[{marks}])"
    joined = f"(?:[{joiners}]{letters}++)*+" if joiners else ""
    return re.compile(f"[{_UNSPACED}]{{1,{MAX_WORD}}}|{letters}{{1,{MAX_WORD}}}{joined}")


def detect_language(text: str) -> str:
    """Detect the language of a text. Returns "" if it is unclear."""
    counts: Counter[str] = Counter()
    for word in _LETTERS.findall(text[:_MAX_CHARS].casefold()):
        counts.update(_LANGUAGES.get(word, ()))
    first, second = [*counts.most_common(2), ("", 0), ("", 0)][:2]
    return first[0] if first[1] >= _MIN_MATCHES and first[1] > second[1] else ""


def detect_common_language(texts: Iterable[str]) -> str:
    """Detect the language of most texts. Returns "" if there are several or it is unclear."""
    counts = Counter(filter(None, map(detect_language, texts)))
    language, n = max(counts.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return language if n and n >= MIN_SHARE * counts.total() else ""
