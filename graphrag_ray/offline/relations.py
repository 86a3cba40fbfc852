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
from dataclasses import dataclass, field
from itertools import pairwise

from graphrag_ray.offline.mentions import Reading, Thing
from graphrag_ray.offline.quotes import MAX_QUOTE_CHARS, balanced, quote
from graphrag_ray.offline.sentences import fold
from graphrag_ray.offline.types import CONCEPT, PERSON

MAX_STRENGTH = 10
MAX_DISTANCE = 4
"""In a list of names, each is paired with the next four only."""

CONVERSE = "They speak with each other in this text."
"""Our own words, where no sentence holds the names of two who speak in turn."""

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


class _Found(dict[tuple[str, str], Relation]):
    def between(self, one: Thing, other: Thing) -> Relation:
        key = (one.key, other.key) if one.key <= other.key else (other.key, one.key)
        if key not in self:
            self[key] = Relation(one, other)
        return self[key]


def relations(reading: Reading) -> list[Relation]:
    """The relations of a chunk in order of their first evidence."""
    found = _Found()
    for index in range(len(reading.script.sentences)):
        things = reading.in_sentence.get(index, [])
        for i, one in enumerate(things):
            for other in things[i + 1 : i + 1 + MAX_DISTANCE]:
                if not _overlap(reading, index, one, other):
                    found.between(one, other).sentences.append(index)
        if things:
            _from_speaker(reading, index, things, found)
    _carry_subjects(reading, found)
    by_key = {t.key: t for t in reading.things}
    for (first, second), count in _exchanges(reading).items():
        found.between(by_key[first], by_key[second]).turns += count
    return [r for r in found.values() if r.strength]


def relation_quote(reading: Reading, relation: Relation) -> str:
    """The sentence that describes a relation, of those that hold both the one of the best length; for a
    pronoun together with the sentence before it."""
    one, other = relation.source, relation.target
    if relation.sentences:
        return _best(reading, relation.sentences, one, other)
    if relation.carried:
        return _stretch(reading, *min(relation.carried, key=lambda c: (c[1] - c[0], c)))
    if relation.turns and (exchange := _exchange_quote(reading, one, other)):
        return exchange
    if relation.spoken:
        mentioned = other if reading.speaks[relation.spoken[0]] is one else one
        return _best(reading, relation.spoken, mentioned)
    return CONVERSE


def _carry_subjects(reading: Reading, found: _Found) -> None:
    """Relate what a sentence names to the person whom its he or she means: the one named first in the
    last sentence that names any."""
    subject, since = None, 0
    for index, sentence in enumerate(reading.script.sentences):
        if index and reading.sentence(index - 1).turn != sentence.turn:
            subject = None
        things = reading.in_sentence.get(index, [])
        people = [t for t in things if t.kind == PERSON]
        pronoun = _THIRD_PERSON.search(reading.text, sentence.start, sentence.end)
        named_at = min(
            (start for t in people for s, start, _ in t.places if s == index), default=sentence.end
        )
        if subject is not None and pronoun is not None and pronoun.start() < named_at:
            for other in things:
                if other is not subject and other.kind != CONCEPT:
                    found.between(subject, other).carried.append((since, index))
        elif people:
            subject, since = people[0], index


def _from_speaker(reading: Reading, index: int, things: list[Thing], found: _Found) -> None:
    speaker = reading.speaks[index]
    if speaker is not None and speaker not in things:
        for other in things:
            found.between(speaker, other).spoken.append(index)


def _overlap(reading: Reading, index: int, one: Thing, other: Thing) -> bool:
    """Whether two terms share words at the same place (machine learning, learning system)."""
    if one.kind != CONCEPT or other.kind != CONCEPT:
        return False
    spans = [p for p in other.places if p[0] == index]
    return any(a < d and c < b for s, a, b in one.places if s == index for _, c, d in spans)


def _exchanges(reading: Reading) -> Counter[tuple[str, str]]:
    """How often one speaker's turn follows another's."""
    order = [t for t in (reading.speaks[i] for i in reading.turn_starts) if t is not None]
    pairs: Counter[tuple[str, str]] = Counter()
    for one, other in pairwise(order):
        if one is not other:
            pairs[(min(one.key, other.key), max(one.key, other.key))] += 1
    return pairs


def _best(reading: Reading, sentences: list[int], *things: Thing) -> str:
    def worth(index: int) -> tuple[bool, float, int]:
        sentence = reading.sentence(index)
        return (sentence.whole, -abs(sentence.end - sentence.start - 150), -index)

    best = max(sentences, key=worth)
    spans = [[(a, b) for s, a, b in t.places if s == best] for t in things]
    if len(spans) == 2:
        _, one, other = min((abs(a[0] - b[0]), a, b) for a in spans[0] for b in spans[1])
        return quote(reading, best, [one, other])
    return quote(reading, best, spans[0][:1])


def _stretch(reading: Reading, first: int, last: int) -> str:
    """The sentences from `first` to `last`, or the last alone where that is too long."""
    start, end = reading.sentence(first).start, reading.sentence(last).end
    if end - start > MAX_QUOTE_CHARS:
        return quote(reading, last, [])
    return balanced(fold(reading.text[start:end]))


def _exchange_quote(reading: Reading, one: Thing, other: Thing) -> str:
    """A turn of one and the beginning of the other's reply, labels and all, where that is short."""
    for at, following in pairwise(reading.turn_starts):
        if {id(reading.speaks[at]), id(reading.speaks[following])} != {id(one), id(other)}:
            continue
        start = reading.sentence(at).label_start
        end = reading.sentence(following).end
        if end - start <= MAX_QUOTE_CHARS and end - reading.sentence(following).start > 30:
            return balanced(fold(reading.text[start:end]))
    return ""
