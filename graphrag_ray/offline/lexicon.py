"""The static lexicon: ordinary English words, and the cues that tell a name's type.

Both are plain text files beside this module, in `[sections]`. Inflected forms are derived here, so the
files hold base forms. A name is found by its casing; the lexicon only says where casing is no evidence.

Where the words come from: they were written down from knowledge of English, none was copied. lexicon.txt has
the closed classes (pronouns, determiners, prepositions, conjunctions, auxiliaries) in full and common words
of the open ones. cues.txt has lists by class: titles, kinship, trades and offices; legal forms of firms,
branches, kinds of bodies; land forms, waters, settlements, buildings; countries, peoples, large cities;
common first names; what wars, feasts, laws and works of art are called; verbs by what they take. A word
stands there because its class does. The classes were chosen, and the weights of types.py set, with the
demo corpus, the podcast corpus and 30 passages of Wikipedia in view; ordinary words that these showed to
be missing were added to lexicon.txt. How well that carries over to other text is measured on 60 other
passages (benchmarks/offline_quality.py, RESULTS.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files

_VOWELS = frozenset("aeiou")
_COMPOUND_HEADS = range(3, 8)
"""Lengths of the second part of a compound."""
_PREFIX = re.compile(
    r"(?:re|un|co|non|over|under|mis|pre|dis|multi|inter|super|sub|anti|out|self)-?(?=\w{4})"
)
# Only endings that surnames do not have: Parker, Johnston and Collins are no derived words.
_DERIVED = re.compile(
    r"(?<=\w{4})(?:i?fication|iz?ations?|is?ations?|ations?|itions?|ions?|abilit(?:y|ies)|it(?:y|ies)|i?ments?|i?ness(?:es)?|i?ful(?:ly)?"
    r"|less(?:ly|ness)?|ably?|ables?|ibly?|ibles?|ively?|ively|i[sz](?:e|es|ed|ing)|ically?|isms?|ously?|ous|ances?|ences?|ings?|ed(?:ly)?)$"
)
_PARTS_OF_SPEECH = ("function", "adverb", "verb", "adjective", "noun", "calendar")


@dataclass(frozen=True)
class Lexicon:
    """Sets of lower-case words.

    ordinary    every form of every word: alone at the start of a sentence none of them is a name
    leading     forms that are cut off the front of a capitalised run at the start of a sentence
                (function words, adverbs, verbs)
    function    pronouns, determiners, prepositions, conjunctions, auxiliaries, interjections
    stop        function words and adverbs: no content
    calendar    days, months, seasons
    cues        the sections of cues.txt by name
    """

    ordinary: frozenset[str]
    leading: frozenset[str]
    function: frozenset[str]
    stop: frozenset[str]
    nouns: frozenset[str]
    verbs: frozenset[str]
    adjectives: frozenset[str]
    calendar: frozenset[str]
    cues: dict[str, frozenset[str]]

    @cached_property
    def stems(self) -> frozenset[str]:
        """Ordinary words without a final e or y, from which others are derived."""
        return frozenset(w[:-1] if w[-1] in "ey" else w for w in self.ordinary if len(w) > 3)

    def is_ordinary(self, word: str) -> bool:
        """Whether a word, in lower case, is an ordinary one: itself, without a prefix, or, where it is
        hyphenated, in all its parts."""
        if word in self.ordinary:
            return True
        if "-" in word:
            return all(self.is_ordinary(part) or part.isdigit() for part in word.split("-") if part)
        prefix = _PREFIX.match(word)
        if prefix is not None and word[prefix.end() :] in self.ordinary:
            return True
        suffix = _DERIVED.search(word)
        if suffix is not None and word[: suffix.start()] in self.stems:
            return True
        return self._is_compound(word)

    def _is_compound(self, word: str) -> bool:
        """Two ordinary words written as one, by the second (ropewalk, sailmakers)."""
        heads = self.cues["compound_head"]
        if word in self.cues["place"] or word in self.cues["first_name"]:
            return False
        return any(
            len(word) > size + 2
            and (word[-size:] in heads or word[-size:].removesuffix("s") in heads)
            and word[:-size] in self.ordinary
            for size in _COMPOUND_HEADS
        )

    def is_leading(self, word: str) -> bool:
        if word in self.leading:
            return True
        prefix = _PREFIX.match(word)
        return prefix is not None and word[prefix.end() :] in self.leading


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """The lexicon, read once per process."""
    words = _read("lexicon.txt")
    cues = _read("cues.txt")
    verbs = _inflected(words["verb"], _verb_forms)
    nouns = _inflected(words["noun"], lambda w: [_plural(w)])
    adjectives = _inflected(words["adjective"], _adjective_forms)
    closed = {p: frozenset(words[p]) for p in _PARTS_OF_SPEECH}
    function = closed["function"]
    calendar = closed["calendar"] | {w + "s" for w in closed["calendar"] if len(w) > 3}
    ordinary = function | closed["adverb"] | calendar | verbs | nouns | adjectives
    return Lexicon(
        ordinary=ordinary,
        leading=(function | closed["adverb"] | verbs) - nouns.difference(words["verb"]) | function,
        function=function,
        stop=function | closed["adverb"],
        nouns=nouns,
        verbs=verbs,
        adjectives=adjectives,
        calendar=calendar,
        cues=_inflected_cues(cues),
    )


def _inflected_cues(sections: dict[str, list[str]]) -> dict[str, frozenset[str]]:
    """The sections by name; `x_noun` and `x_verb` with their inflected forms, `x` holding both as well."""
    cues = {name: frozenset(values) for name, values in sections.items()}
    for name, values in sections.items():
        kind, _, part = name.rpartition("_")
        if part == "noun":
            cues[name] = _inflected(values, lambda w: [_plural(w)])
        elif part == "verb" and kind != "before":
            cues[name] = _inflected(values, _verb_forms)
        if cues[name] != frozenset(values):
            cues[kind] = cues.get(kind, frozenset()) | cues[name]
    return cues


def _read(name: str) -> dict[str, list[str]]:
    """Sections of a lexicon file; a section with `|` in it holds phrases divided by bars."""
    text = (files("graphrag_ray.offline") / name).read_text("utf-8")
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for raw in text.split("\n"):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            current = sections.setdefault(line[1:-1], [])
        elif "|" in line:
            current.extend(w.strip() for w in line.split("|") if w.strip())
        else:
            current.extend(line.split())
    return sections


def _inflected(words: Iterable[str], forms: object) -> frozenset[str]:
    out: set[str] = set()
    for word in words:
        out.add(word)
        if len(word) > 1:
            out.update(forms(word))  # type: ignore[operator]
    return frozenset(out)


def _plural(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def _doubles(word: str) -> bool:
    """Whether the last consonant is doubled before -ed and -ing (plan, planned)."""
    return (
        len(word) >= 3
        and word[-1] not in _VOWELS
        and word[-1] not in "wxy"
        and word[-2] in _VOWELS
        and word[-3] not in _VOWELS
    )


def _verb_forms(word: str) -> list[str]:
    stem = word[:-1] if word.endswith("e") and not word.endswith("ee") else word
    past = word[:-1] + "ied" if word.endswith("y") and word[-2] not in _VOWELS else stem + "ed"
    forms = [_plural(word), past, stem + "ing", "re" + word, "un" + past]
    if word.endswith("ie"):
        forms.append(word[:-2] + "ying")
    if _doubles(word):
        forms += [word + word[-1] + "ed", word + word[-1] + "ing"]
    return forms


def _adjective_forms(word: str) -> list[str]:
    if word.endswith("ly"):
        return []
    if word.endswith("le"):
        adverb = word[:-1] + "y"
    elif word.endswith("y"):
        adverb = word[:-1] + "ily"
    elif word.endswith("ic"):
        adverb = word + "ally"
    else:
        adverb = word + "ly"
    forms = [adverb, "un" + word, "non" + word]
    if len(word) <= 7:
        stem = word[:-1] if word.endswith(("e", "y")) else word
        middle = "i" if word.endswith("y") else ""
        forms += [stem + middle + "er", stem + middle + "est"]
        if _doubles(word):
            forms += [word + word[-1] + "er", word + word[-1] + "est"]
    return forms
