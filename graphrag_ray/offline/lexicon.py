"""The static lexicon: ordinary English words, and cues for the types of names.

Two text files list base forms in `[sections]`; this module derives inflected forms. All words come from
general knowledge of English. lexicon.txt contains the complete closed word classes and common words of the
open ones. cues.txt lists words by class (titles, kinship, legal forms, countries, verbs by object, …). We
tuned the classes, and the weights in name_types.py, on the demo and podcast corpora and 30 Wikipedia
passages, and evaluated them on 60 other passages (benchmarks/offline_quality.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from importlib.resources import files

_VOWELS = frozenset("aeiou")
_COMPOUND_HEADS = range(3, 8)  # Lengths of the second part of a compound.
_PREFIX = re.compile(
    r"(?:re|un|co|non|over|under|mis|pre|dis|multi|inter|super|sub|anti|out|self)-?(?=\w{4})"
)
# Excludes endings of surnames such as Parker, Johnston and Collins.
_DERIVED = re.compile(
    r"(?<=\w{4})(?:i?fication|iz?ations?|is?ations?|ations?|itions?|ions?|abilit(?:y|ies)|it(?:y|ies)|i?ments?|i?ness(?:es)?|i?ful(?:ly)?"
    r"|less(?:ly|ness)?|ably?|ables?|ibly?|ibles?|ively?|ively|i[sz](?:e|es|ed|ing)|ically?|isms?|ously?|ous|ances?|ences?|ings?|ed(?:ly)?)$"
)


class Lexicon:
    """Sets of lower-case words, loaded lazily."""

    @cached_property
    def _words(self) -> dict[str, list[str]]:
        return _read("lexicon.txt")

    @cached_property
    def function(self) -> frozenset[str]:
        """Pronouns, determiners, prepositions, conjunctions, auxiliaries, interjections."""
        return frozenset(self._words["function"])

    @cached_property
    def stop(self) -> frozenset[str]:
        """Words without content: function words and adverbs."""
        return self.function.union(self._words["adverb"])

    @cached_property
    def nouns(self) -> frozenset[str]:
        return _inflected(self._words["noun"], _noun_forms)

    @cached_property
    def verbs(self) -> frozenset[str]:
        return _inflected(self._words["verb"], _verb_forms)

    @cached_property
    def adjectives(self) -> frozenset[str]:
        return _inflected(self._words["adjective"], _adjective_forms)

    @cached_property
    def calendar(self) -> frozenset[str]:
        words = self._words["calendar"]
        return frozenset([*words, *(w + "s" for w in words if len(w) > 3)])

    @cached_property
    def ordinary(self) -> frozenset[str]:
        """All forms of all words. At the start of a sentence, none of them is a name by itself."""
        return self.stop | self.calendar | self.verbs | self.nouns | self.adjectives

    @cached_property
    def leading(self) -> frozenset[str]:
        """Words to cut off the front of a capitalised run at the start of a sentence."""
        return (self.stop | self.verbs) - self.nouns.difference(self._words["verb"]) | self.function

    @cached_property
    def empty(self) -> frozenset[str]:
        """Words that name nothing by themselves: roles, nationalities, days and the like."""
        sections = ("not_name", "role", "honorific", "nationality")
        return self.calendar | self.function.union(*(self.cues[name] for name in sections))

    @cached_property
    def roles(self) -> frozenset[str]:
        return self.cues["role"] - self.cues["loose_role"]

    @cached_property
    def stems(self) -> frozenset[str]:
        """Ordinary words without a final e or y, for derived words."""
        return frozenset(w[:-1] if w[-1] in "ey" else w for w in self.ordinary if len(w) > 3)

    @cached_property
    def question_words(self) -> dict[str, list[str]]:
        """The sections of question_words.txt."""
        return _read("question_words.txt")

    @cached_property
    def cues(self) -> dict[str, frozenset[str]]:
        """The sections of cues.txt. Sections x_noun and x_verb are inflected; x is their union."""
        sections = _read("cues.txt")
        cues = {name: frozenset(values) for name, values in sections.items()}
        for name, values in sections.items():
            kind, _, part = name.rpartition("_")
            if part == "noun":
                cues[name] = _inflected(values, _noun_forms)
            elif part == "verb" and kind != "before":
                cues[name] = _inflected(values, _verb_forms)
            if cues[name] != frozenset(values):
                cues[kind] = cues.get(kind, frozenset()) | cues[name]
        return cues

    def is_ordinary(self, word: str) -> bool:
        """Whether a lower-case word is ordinary.

        Accepts prefixed and derived words, compounds of ordinary words (ropewalk), and hyphenated ordinary
        words.
        """
        if word in self.ordinary:
            return True
        if "-" in word:
            return all(self.is_ordinary(part) or part.isdigit() for part in word.split("-") if part)
        prefix, suffix = _PREFIX.match(word), _DERIVED.search(word)
        if prefix is not None and word[prefix.end() :] in self.ordinary:
            return True
        if suffix is not None and word[: suffix.start()] in self.stems:
            return True
        if word in self.cues["place"] or word in self.cues["first_name"]:
            return False
        heads = self.cues["compound_head"]
        return any(
            len(word) > size + 2
            and (word[-size:] in heads or word[-size:].removesuffix("s") in heads)
            and word[:-size] in self.ordinary
            for size in _COMPOUND_HEADS
        )

    def is_leading(self, word: str) -> bool:
        prefix = _PREFIX.match(word)
        return word in self.leading or (prefix is not None and word[prefix.end() :] in self.leading)


LEXICON = Lexicon()


def _read(name: str) -> dict[str, list[str]]:
    """Read the sections of a lexicon file. Entries are separated by whitespace, phrases by `|`."""
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


def _inflected(words: Iterable[str], forms: Callable[[str], list[str]]) -> frozenset[str]:
    return frozenset(form for word in words for form in (word, *(forms(word) if len(word) > 1 else ())))


def _noun_forms(word: str) -> list[str]:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return [word + "es"]
    if word.endswith("y") and word[-2] not in _VOWELS:
        return [word[:-1] + "ies"]
    return [word + "s"]


def _doubles(word: str) -> bool:
    """Whether the last consonant is doubled before -ed and -ing (plan, planned)."""
    return len(word) >= 3 and re.search(r"[^aeiou][aeiou][^aeiouwxy]$", word) is not None


def _verb_forms(word: str) -> list[str]:
    stem = word[:-1] if word.endswith("e") and not word.endswith("ee") else word
    past = word[:-1] + "ied" if word.endswith("y") and word[-2] not in _VOWELS else stem + "ed"
    forms = [*_noun_forms(word), past, stem + "ing", "re" + word, "un" + past]
    if word.endswith("ie"):
        forms.append(word[:-2] + "ying")
    if _doubles(word):
        forms += [word + word[-1] + "ed", word + word[-1] + "ing"]
    return forms


def _adjective_forms(word: str) -> list[str]:
    if word.endswith("ly"):
        return []
    if word.endswith(("le", "y")):
        adverb = word[:-1] + ("ily" if word.endswith("y") else "y")
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
