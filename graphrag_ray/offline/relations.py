"""Relationships in a chunk: things named in one sentence, and people who talk with one another.

Co-occurrence within a sentence is the classical evidence of a relation (Church and Hanks 1990, "Word
association norms, mutual information, and lexicography"); which pairs are more than chance is decided at
the merge by log-likelihood (Dunning 1993; graph/prune.py). He or she is the person named first in the
last sentence that names one (recency and subject preference, Lappin and Leass 1994, without their other
factors). In a transcript speakers are related to what they name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from graphrag_ray.offline.key_sentences import MAX_QUOTE_CHARS, balanced, quote
from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.mentions import Reading, Thing
from graphrag_ray.offline.sentences import fold
from graphrag_ray.offline.type_cues import CONCEPT, LOCATION, PERSON, listed_kind
from graphrag_ray.offline.types import in_one_list

MAX_STRENGTH = 10
MAX_DISTANCE = 4
"""In a list of names, each is paired with the next four only."""

CONVERSE = "They speak with each other in this text."
"""Our own words, where two only speak in turn: a quotation of that would quote their labels."""

Span = tuple[int, int]

NEAR = 2
"""The same in a sentence with a subject, to which they are related anyhow."""

OPENING = 80
"""So many characters of a sentence may refer back by a noun."""

_THING = -1
_IT = re.compile(r"(?:It|Its|They|Their)\b")
_THE = re.compile(r"\b(?:[Tt]he|[Tt]his|[Tt]hat)(?: [a-z]+)?? ([a-z]+)\b(?! of\b)")
_THIRD_PERSON = re.compile(r"\b(?:[Hh]e|[Ss]he|[Hh]is|[Hh]er|him)\b")


@dataclass(slots=True)
class Relation:
    """An unordered pair of things and its evidence.

    sentences  sentences that hold both
    carried    (sentence that names one, later sentence with a pronoun for it and the other's name)
    spoken     sentences in which one, speaking, mentions the other
    turns      how often one spoke after the other
    """

    source: Thing
    target: Thing
    sentences: list[int] = field(default_factory=list)
    carried: list[tuple[int, int]] = field(default_factory=list)
    spoken: list[int] = field(default_factory=list)
    turns: int = 0

    @property
    def strength(self) -> int:
        said = len(self.sentences) + len(self.carried) + len(self.spoken)
        return min(MAX_STRENGTH, said + (self.turns + 1) // 2)


class _FoundRelations(dict[tuple[str, str], Relation]):
    def between(self, one: Thing, other: Thing) -> Relation:
        key = (one.key, other.key) if one.key <= other.key else (other.key, one.key)
        if key not in self:
            self[key] = Relation(one, other)
        return self[key]


def relations(reading: Reading) -> list[Relation]:
    """The relations of a chunk in order of their first evidence."""
    found = _FoundRelations()
    subjects = _carry_subjects(reading, found)
    for index in range(len(reading.script.sentences)):
        things = reading.in_sentence.get(index, [])
        if things:
            _co_occurring(reading, index, things, index in subjects, found)
            _from_speaker(reading, index, things, found)
    by_key = {t.key: t for t in reading.things}
    for (first, second), turns in _exchanges(reading).items():
        found.between(by_key[first], by_key[second]).turns += turns
    return [r for r in found.values() if r.strength]


def _co_occurring(
    reading: Reading, index: int, things: list[Thing], carried: bool, found: _FoundRelations
) -> None:
    """Relate what one sentence names: its subject with everything, the others with those that stand near.
    Members of one list (A, B and C), but for places, are related to its subject and not to one another.

    carried: the sentence's subject is a pronoun.
    """
    lists = _lists(reading, index, things)
    named = not carried and (len(things) == 1 or lists[0] != lists[1])
    for i, one in enumerate(things):
        near = (
            things[1:]
            if named and not i
            else things[i + 1 : i + 1 + (NEAR if named or carried else MAX_DISTANCE)]
        )
        for j, other in enumerate(near, i + 1):
            siblings = (named or carried) and lists[i] == lists[j] and one.kind != LOCATION
            if not siblings and not _overlap(reading, index, one, other):
                found.between(one, other).sentences.append(index)


def relation_quote(reading: Reading, relation: Relation) -> str:
    """The sentence that describes a relation, of those that hold both the one of the best length; for a
    pronoun together with the sentence before it."""
    one, other = relation.source, relation.target
    if relation.sentences:
        return _best(reading, relation.sentences, one, other)
    if relation.carried:
        return _stretch(reading, *min(relation.carried, key=lambda c: (c[1] - c[0], c)))
    if relation.spoken:
        mentioned = other if reading.speaks[relation.spoken[0]] is one else one
        said = [i for i in relation.spoken if i in mentioned.in_sentence]  # each may name the other
        return _best(reading, said, mentioned)
    return CONVERSE


def _carry_subjects(reading: Reading, found: _FoundRelations) -> set[int]:
    """Relate what a sentence names to what its he, it or `the film` means: the last thing of that kind
    that a sentence named first. Returns the sentences of which the subject is one of these."""
    carried = set()
    subjects: dict[int, tuple[Thing, int]] = {}
    for index, sentence in enumerate(reading.script.sentences):
        if index and reading.sentence(index - 1).turn != sentence.turn:
            subjects.clear()
        things = reading.in_sentence.get(index, [])
        for kind in _meant(reading, index, things):
            if kind in subjects:
                subject, since = subjects[kind]
                carried.add(index)
                for other in things:
                    if other is not subject and other.kind != CONCEPT:
                        found.between(subject, other).carried.append((since, index))
                break
        else:
            for thing in reversed(things):
                if thing is things[0] or thing.kind == PERSON:
                    subjects[thing.kind] = (thing, index)
            if things and things[0].kind != PERSON:
                subjects[_THING] = (things[0], index)
    return carried


def _meant(reading: Reading, index: int, things: list[Thing]) -> Iterator[int]:
    """The kinds of what a sentence refers to without a name, before it names one of that kind."""
    sentence, text = reading.sentence(index), reading.text
    named: dict[int, int] = {}
    for thing in reversed(things):
        named[thing.kind] = thing.in_sentence[index][0][0]
    pronoun = _THIRD_PERSON.search(text, sentence.start, sentence.end)
    if pronoun is not None and pronoun.start() < named.get(PERSON, sentence.end):
        yield PERSON
    if _IT.match(text, sentence.start, sentence.end):
        yield _THING
    for noun in _THE.finditer(text, sentence.start, min(sentence.end, sentence.start + OPENING)):
        kind = listed_kind(noun.group(1), lexicon())
        if kind is not None and noun.start() < named.get(kind, sentence.end):
            yield kind


def _from_speaker(reading: Reading, index: int, things: list[Thing], found: _FoundRelations) -> None:
    speaker = reading.speaks[index]
    if speaker is not None and index not in speaker.in_sentence:
        for other in things:
            found.between(speaker, other).spoken.append(index)


def _lists(reading: Reading, index: int, things: list[Thing]) -> list[int]:
    """The number of the list (A, B and C) in which each thing of a sentence stands."""
    numbers = []
    last, number = -1, 0
    for thing in things:
        start, end = thing.in_sentence[index][0]
        number += not (0 <= last <= start and in_one_list(reading.text, last, start))
        numbers.append(number)
        last = end
    return numbers


def _overlap(reading: Reading, index: int, one: Thing, other: Thing) -> bool:
    """Whether two terms share words at the same place (machine learning, learning system)."""
    if one.kind != CONCEPT or other.kind != CONCEPT:
        return False
    near = _nearest(one.in_sentence[index], other.in_sentence[index])
    return near[0][0] < near[1][1] and near[1][0] < near[0][1]


def _nearest(ones: list[Span], others: list[Span]) -> tuple[Span, Span]:
    """The two mentions, both lists in order, whose beginnings are nearest to each other."""
    best, at = (ones[0], others[0]), 0
    for one in ones:
        while at + 1 < len(others) and others[at + 1][0] <= one[0]:
            at += 1
        for other in others[at : at + 2]:
            if abs(one[0] - other[0]) < abs(best[0][0] - best[1][0]):
                best = (one, other)
    return best


def _exchanges(reading: Reading) -> Counter[tuple[str, str]]:
    """How often one speaker's turn follows another's, by the two."""
    found: Counter[tuple[str, str]] = Counter()
    known = [t for t in (reading.speaks[i] for i in reading.turn_starts) if t is not None]
    for one, other in pairwise(known):
        if one is not other:
            found[min(one.key, other.key), max(one.key, other.key)] += 1
    return found


def _best(reading: Reading, sentences: list[int], *things: Thing) -> str:
    def worth(index: int) -> tuple[bool, float, int]:
        sentence = reading.sentence(index)
        return (sentence.whole, -abs(sentence.end - sentence.start - 150), -index)

    best = max(sentences, key=worth)
    spans = [t.in_sentence[best] for t in things]
    if len(spans) == 2:
        return quote(reading, best, list(_nearest(*spans)))
    return quote(reading, best, spans[0][:1])


def _stretch(reading: Reading, first: int, last: int) -> str:
    """The sentences from `first` to `last`, or the last alone where that is too long."""
    start, end = reading.sentence(first).start, reading.sentence(last).end
    if end - start > MAX_QUOTE_CHARS:
        return quote(reading, last, [])
    return balanced(fold(reading.text[start:end]))
