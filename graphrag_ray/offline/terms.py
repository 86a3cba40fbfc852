"""Terms: recurring noun phrases that are things without being names (neural network, harbour dues).

C-value, Frantzi, Ananiadou and Mima, "Automatic recognition of multi-word terms" (IJDL 2000):

    C-value(a) = log2|a| · (f(a) − 1/P(Ta) · Σ f(b) over the P(Ta) longer candidates b that hold a)

The linguistic filter is (relational adjective | noun)+ noun by the lexicon's parts of speech: neural and
historical relate to a field, massive and cheeky judge. Words that say nothing (good, thing, year) are
out, and so are verbs that look like nouns, as far as their neighbours tell (to design proteins). One
chunk shows most terms once, so C-value mostly settles which of nested candidates count; what a term is
related to by more than chance is decided at the merge, as for names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from math import log2

from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentences import Script

MAX_TERM_WORDS = 3
MAX_TERMS = 12
"""Per chunk, by falling C-value."""

_STRETCH = re.compile(r"(?<![\w'’@./-])[a-z]{3,}(?:-[a-z]+)*(?: [a-z]{3,}(?:-[a-z]+)*)+(?![\w'’@])")
_RELATIONAL = re.compile(r"(?:al|ic|ar|ary|ory|oid)$|\w-\w")
_WORD = re.compile(r"[a-z-]+")


@dataclass(slots=True)
class Term:
    """`phrase` in the singular; `places`: (sentence, start, end) of every occurrence."""

    phrase: str
    places: list[tuple[int, int, int]] = field(default_factory=list)
    c_value: float = 0.0


def c_values(frequency: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], float]:
    """C-value of every candidate from the candidates' frequencies."""
    longer: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for words, count in frequency.items():
        for size in range(2, len(words)):
            for at in range(len(words) - size + 1):
                part = words[at : at + size]
                if part in frequency:
                    longer[part].append(count)
    values = {}
    for words, count in frequency.items():
        holders = longer.get(words)
        values[words] = log2(len(words)) * (count - (sum(holders) / len(holders) if holders else 0.0))
    return values


def find_terms(text: str, script: Script, lexicon: Lexicon, limit: int = MAX_TERMS) -> list[Term]:
    """The terms of a chunk, best first: C-value above zero, at most `limit`."""
    places: dict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    for index, sentence in enumerate(script.sentences):
        for stretch in _STRETCH.finditer(text, sentence.start, sentence.end):
            words = [(m.group(), m.start(), m.end()) for m in _WORD.finditer(text, *stretch.span())]
            _collect(words, index, places, lexicon)
    values = c_values({words: len(found) for words, found in places.items()})
    kept = [w for w, value in values.items() if value > 0]
    kept.sort(key=lambda w: (-values[w], places[w][0]))
    return [Term(" ".join(w), places[w], values[w]) for w in kept[:limit]]


def _collect(
    words: list[tuple[str, int, int]],
    sentence: int,
    places: dict[tuple[str, ...], list[tuple[int, int, int]]],
    lexicon: Lexicon,
) -> None:
    good = [_is_part(w, lexicon) for w, _, _ in words]
    for i in range(len(words) - 1):
        if not good[i] or _is_verb_here(words, i, lexicon):
            continue
        for j in range(i + 2, min(i + MAX_TERM_WORDS, len(words)) + 1):
            last = words[j - 1][0]
            if not good[j - 1]:
                break
            if not _is_head(last, lexicon) or _has_subject(words[j - 2][0], last, lexicon):
                continue
            phrase = (*(w for w, _, _ in words[i : j - 1]), singular(last))
            places[phrase].append((sentence, words[i][1], words[j - 1][2]))


def _is_verb_here(words: list[tuple[str, int, int]], at: int, lexicon: Lexicon) -> bool:
    """A word that can be a verb, first of its stretch or behind a word that verbs follow."""
    word = words[at][0]
    if word not in lexicon.verbs or word.endswith("ing"):
        return False
    return at == 0 or words[at - 1][0] in lexicon.cues["before_verb"]


def _has_subject(before: str, last: str, lexicon: Lexicon) -> bool:
    """Whether the last word is rather the verb of a plural noun (photons move)."""
    plural = before.endswith("s") and not before.endswith(("ss", "ics")) and before in lexicon.nouns
    return plural and last in lexicon.verbs


def _is_head(word: str, lexicon: Lexicon) -> bool:
    """A noun, but not one for people or for a kind of institution: those are named, not termed."""
    if word in lexicon.adjectives or (lexicon.is_ordinary(word) and word not in lexicon.nouns):
        return False
    cues, one = lexicon.cues, singular(word)
    return one not in cues["role"] and one not in cues["institution"]


def _is_part(word: str, lexicon: Lexicon) -> bool:
    if word in lexicon.stop or word in lexicon.cues["vague"] or word in lexicon.calendar:
        return False
    if word in lexicon.nouns:
        return True
    return _RELATIONAL.search(word) is not None or word in lexicon.cues["relational"]


def singular(noun: str) -> str:
    """The noun without a regular plural ending, so that both numbers meet under one key."""
    if len(noun) < 4 or not noun.endswith("s") or noun.endswith(("ss", "us", "is", "ics", "ews", "ies")):
        return noun[:-3] + "y" if noun.endswith("ies") and len(noun) > 4 and noun != "series" else noun
    if noun.endswith(("ches", "shes", "xes", "sses")):
        return noun[:-2]
    return noun[:-1]
