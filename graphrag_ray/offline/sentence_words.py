"""The words of a sentence, and what the casing of each is worth as evidence of a name.

English marks names by capitals; only at the start of a sentence, of a quotation or of a heading does a
capital mean nothing (Lita et al. 2003, "tRuEcasIng"; Mikheev 2002, "Periods, capitalized words, etc.",
whose document-centred rule names.py follows).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentences import Sentence

_TOKEN = re.compile(r"[^\W_]+(?:[.'’&+-][^\W_]+){0,15}(?:[+#]{1,2}(?![^\W_]))?|&")
_GLUED = re.compile(r"[^\W\d_]{3,}\.(?=[A-Z][a-z])")
_DOMAIN = re.compile(r"\.(?:com|org|net|edu|gov)$", re.IGNORECASE)
_INITIALISM = re.compile(r"(?:[A-Z]\.)+[A-Z]$")
_PLURAL_ACRONYM = re.compile(r"[A-Z]{2,}s$")
_HYPHEN_LOWER = re.compile(r"-[a-z]")
_CLITIC = re.compile(r"(?<=.)(?:['’](?:s|S|ve|re|ll|d|m)|n['’]t)$")
_INNER_CAPITAL = re.compile(r"[a-z]{1,2}['’]?[A-Z]\w+$")
_DIGIT_CAPITAL = re.compile(r"\d{1,3}[A-Z][A-Za-z]*$")
_NUMBERED = re.compile(r"(?:ep|episode|part|item|fig|figure|no|vol|ch|chapter|section|page|pp?)[-.]?\d+$")
_OPENS = frozenset(':“"([‘«\n')
_APOSTROPHES = ("' ", "’ ")


@dataclass(frozen=True, slots=True)
class Word:
    """One word: text[start:end] without a clitic.

    initial      its capital is no evidence, for it opens a sentence or a quotation
    possessive   something was cut off its end (Moore's, Fishermen', Intel-based)
    levelled     an ordinary word in a heading among names: its capital is none at all
    """

    text: str
    lower: str
    start: int
    end: int
    initial: bool
    possessive: bool
    levelled: bool = False

    @property
    def capital(self) -> bool:
        """Whether it is written as names are: Mara, iPhone, 5G; but not I."""
        text = self.text
        if self.levelled or text.islower():
            return False
        if text[0].isupper():
            return not (text == "I" or text.startswith(("I'", "I’")))
        return bool(_INNER_CAPITAL.match(text) or _DIGIT_CAPITAL.match(text))


def words_of(text: str, sentence: Sentence, lexicon: Lexicon) -> list[Word]:
    """The words of a sentence, in order."""
    words: list[Word] = []
    at = sentence.start
    fresh = True
    while match := _TOKEN.search(text, at, sentence.end):
        raw, start = match.group(), match.start()
        plain = raw.isalpha()  # of most words nothing has to be cut off
        glued = None if plain else _GLUED.match(raw)
        if glued:
            raw = raw[: glued.end() - 1]
        gap = text[at:start]
        at = start + len(raw)
        if (not plain or len(raw) < 3) and _is_clitic(raw, gap):
            if words and raw in ("s", "S"):
                words[-1] = replace(words[-1], possessive=True)
            continue
        clitic = None if plain else _CLITIC.search(raw)
        base = raw[: clitic.start()] if clitic else raw
        if not plain or not base.islower():
            base = _base(text, base, start, lexicon)
        owned = raw[-1] in "sS" and text[at : at + 2] in _APOSTROPHES and raw.lower() in lexicon.nouns
        cut = owned or len(base) < len(raw)
        initial = fresh or bool(_OPENS.intersection(gap))
        fresh = bool(glued)
        words.append(Word(base, base.lower(), start, start + len(base), initial, cut))
    return _level_heading(text, sentence, words, lexicon)


def _is_clitic(word: str, gap: str) -> bool:
    """Whether a token is no word but the end of the one before it, as tokenised text writes it
    (did n't, Mara 's)."""
    if word in ("n't", "n’t", "N'T", "N’T"):
        return True
    return gap in (" '", " ’", "'", "’") and word.lower() in ("s", "ve", "re", "ll", "d", "m")


def is_empty(lower: str, lexicon: Lexicon) -> bool:
    """A word that makes no name by itself, nor together with its like."""
    cues = lexicon.cues
    return (
        lower in cues["not_name"]
        or lower.replace(".", "") in cues["not_name"]
        or lower in cues["role"]
        or lower in cues["honorific"]
        or lower in cues["nationality"]
        or lower in lexicon.calendar
        or lower in lexicon.function
        or lower.isdigit()
        or len(lower) < 2
        or _NUMBERED.match(lower) is not None
    )


def _base(text: str, word: str, start: int, lexicon: Lexicon) -> str:
    """The part of a written word that can belong to a name: Intel of Intel-based, GPU of GPUs."""
    if word[0].islower():
        return word
    if "." in word:
        if text[start + len(word) : start + len(word) + 1] == "." and _INITIALISM.match(word):
            return word + "."
        domain = _DOMAIN.search(word)
        return word[: domain.start()] if domain else word
    if "-" in word and (hyphen := _HYPHEN_LOWER.search(word)) and word.lower() not in lexicon.ordinary:
        following = word[hyphen.start() + 1 :].lower()
        return word[: hyphen.start()] if lexicon.is_ordinary(following) else word  # Kim Ki-duk
    return word[:-1] if _PLURAL_ACRONYM.match(word) else word


def _level_heading(text: str, sentence: Sentence, words: list[Word], lexicon: Lexicon) -> list[Word]:
    """In a heading every word is capitalised, so no capital of an ordinary word is evidence."""
    small = lexicon.cues["small"]
    content = [w for w in words if w.lower not in small and w.text[0].isalpha()]
    if len(content) < 4:
        return words
    upper = sum(w.text[0].isupper() for w in content)
    capitals = sum(w.text.isupper() and len(w.text) > 1 for w in content)
    ordinary = sum(lexicon.is_ordinary(w.lower) for w in content)
    in_title_case = upper >= 0.8 * len(content) and ordinary >= 0.5 * len(content)
    ends = text[sentence.end - 1] in ".!?…"
    if (in_title_case and not ends) or capitals >= 0.7 * len(content):
        return [replace(w, levelled=lexicon.is_ordinary(w.lower)) for w in words]
    return words
