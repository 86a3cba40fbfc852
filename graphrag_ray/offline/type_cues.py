"""What the words around a name say about its type: predicates, appositions, brackets, and verbs that take
things of one kind.

`X is a 1954 film`, `X, a Dutch painter,` and `X (2008 film)` name the class of X by their head noun (Hearst
1992, "Automatic acquisition of hyponyms from large text corpora"); `directed by X`, `born in X` allow one
class only (selectional preferences: Resnik 1993). Windows are bounded, so a mention takes constant time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from graphrag_ray.offline.lexicon import Lexicon

PERSON, ORGANIZATION, LOCATION, EVENT, WORK, CONCEPT = range(6)

AFTER, BEFORE = 200, 60
"""So many characters around a mention are read."""
MAX_PHRASE = 14
"""Words of a noun phrase."""

_BRACKET = re.compile(r"['’\"”]?s?\s?\(\s?([^()]{1,90})\)")
_CALLED = re.compile(
    r",? (?:(?:also|better|formerly|originally|simply|or)\b ?(?:known|called|titled|styled|spelled)?|"
    r"(?:known|born|née|aka|a\.k\.a\.)\b)[^.;]{0,60}?(?=,? (?:is|was|are|were)\b)"
)
_COPULA = re.compile(
    r"['’\"”]?,? (?:is|was|are|were|became|remains) (?:(?:also|still|now|then|the|one|of) )*(?:an? )?"
)
_APPOSITION = re.compile(
    r"['’\"”]?, (?:(?P<article>an?|the|its|his|her|their|our|my|then|now|former|known as) )?"
)
_PHRASE_WORD = re.compile(r"[\s\"“”-]*([^\W_][\w'’&-]*)")
_LIFE = re.compile(
    r"(?:born|b\.|died|d\.|née|c\.)\b|(?>.*?\b(?:January|February|March|April|May|June|July|August|September|October"
    r"|November|December)\b).*\d{3,4}"
)
_YEARS = re.compile(r"(?:c\. ?)?\d{3,4} ?[–-] ?(?:c\. ?)?\d{3,4}$")
_AGENT = re.compile(r"(?:ist|ian|grapher|loger|ologist|eer|keeper|player|maker|man|woman|ess|wright|or|er)$")

_WORD = re.compile(r"[^\W\d_][\w'’-]*|[^\w\s'’-]")
_ARTICLES = frozenset(["the", "a", "an", "its", "his", "her", "their", "our", "my"])


def stated_kinds(
    text: str, start: int, end: int, within: tuple[int, int], lexicon: Lexicon
) -> Iterator[tuple[int, float]]:
    """(kind, weight) of what the sentence text[within] says of its mention at text[start:end]."""
    before = text[max(within[0], start - BEFORE) : start]
    after = text[end : min(within[1], end + AFTER)]
    bracket = _BRACKET.match(after)
    if bracket:
        yield from _in_bracket(bracket.group(1), lexicon)
        after = after[bracket.end() :]
    yield from _selected(before, lexicon)
    called = _CALLED.match(after)
    if called:
        after = after[called.end() :]
    kind: int | None
    copula = _COPULA.match(after)
    if copula:
        kind = noun_kind(after[copula.end() :], lexicon, predicate=True)
        if kind is not None:
            yield kind, 3.5
        return
    apposition = _APPOSITION.match(after)
    if apposition:
        kind = noun_kind(after[apposition.end() :], lexicon, predicate=apposition["article"] is not None)
        if kind is not None:
            yield kind, 2.0 if apposition["article"] else 1.0
        return
    compound = re.match(r" ([a-z][\w-]*(?: [a-z][\w-]*)?)", after)  # the Nokia company, Athletics federation
    if compound:
        words = compound.group(1).split()
        for word in reversed(words):
            kind = listed_kind(word, lexicon)
            if kind is not None and word not in lexicon.verbs:
                yield kind, 0.8
                break


def _selected(before: str, lexicon: Lexicon) -> Iterator[tuple[int, float]]:
    """What the last two words before a mention, its article left out, take."""
    cues, words = lexicon.cues, [w.lower() for w in _WORD.findall(before)[-3:]]
    if words and words[-1] in _ARTICLES:
        words.pop()
    first, last = (words[-2] if len(words) > 1 else ""), (words[-1] if words else "")
    for kind, weight, fits in (
        (PERSON, 2.0, last in cues["takes_person"] or (last in ("of", "to") and first in cues["kin"])),
        (PERSON, 2.5, last == "by" and first in cues["person_by"]),
        (ORGANIZATION, 1.5, last == "by" and first in cues["organization_by"]),
        (ORGANIZATION, 2.5, last in ("for", "at", "with", "to", "of") and first in cues["serves"]),
        (LOCATION, 2.0, last in ("in", "at", "near", "to") and first in cues["stays"]),
        (LOCATION, 2.0, last == "of" and (first in cues["loc_of"] or first in cues["part_of_place"])),
    ):
        if fits:
            yield kind, weight


def noun_kind(text: str, lexicon: Lexicon, *, predicate: bool) -> int | None:
    """The type of what a noun phrase at the start of a text describes, by its last noun that says one.

    predicate: an agent noun that no list has (a conchologist) counts as a person.
    """
    kind, last, at = None, "", 0
    for _ in range(MAX_PHRASE):
        found = _PHRASE_WORD.match(text, at)
        if found is None:
            break
        word = found.group(1).lower()
        if word in lexicon.function or word in lexicon.cues["small"]:
            break
        if word.endswith("ed") and kind is not None and word not in lexicon.nouns:
            break
        at, last = found.end(), word
        listed = listed_kind(word.rsplit("-", 1)[-1], lexicon)
        kind = listed if listed is not None else kind
    if (
        kind is None
        and predicate
        and last
        and _AGENT.search(last)
        and last.rsplit("-", 1)[-1] not in lexicon.cues["concept_noun"]
    ):
        ordinary_thing = (
            last.endswith(("er", "or", "ess", "ian", "man"))
            and last in lexicon.ordinary
            and last not in lexicon.cues["role"]
        )
        return None if ordinary_thing else PERSON
    return kind


def listed_kind(word: str, lexicon: Lexicon) -> int | None:
    """The type of what a common noun, in lower case, is used for; None where no list has it."""
    cues = lexicon.cues
    if word in cues["person_noun"] or (word in cues["role"] and word not in cues["loose_role"]):
        return PERSON
    if word.endswith("s") and word[:-1] in cues["role"] and word[:-1] not in cues["loose_role"]:
        return PERSON
    for kind, section in (
        (WORK, "work_noun"),
        (EVENT, "event_noun"),
        (ORGANIZATION, "organization_noun"),
        (LOCATION, "location_noun"),
        (CONCEPT, "concept_noun"),
    ):
        if word in cues[section]:
            return kind
    return None


def _in_bracket(inside: str, lexicon: Lexicon) -> Iterator[tuple[int, float]]:
    """`(2008 film)`, `(noble)`, `(born 1950)`, `(1819–1886)`."""
    if _LIFE.match(inside):
        yield PERSON, 3.5
    elif _YEARS.match(inside):
        yield PERSON, 1.0
    elif re.fullmatch(r"\d{4}", inside):
        yield WORK, 1.0
    else:
        kind = noun_kind(inside.partition(",")[0], lexicon, predicate=False)
        if kind is not None:
            yield kind, 3.5
