"""Relationships in a chunk: things named in one sentence, and people who talk with one another.

Co-occurrence within a sentence is the classical evidence of a relation (Church and Hanks 1990, "Word
association norms, mutual information, and lexicography"); which pairs are more than chance is decided at
the merge by log-likelihood (Dunning 1993; graph/prune.py). In a transcript what people say in the first
person is about themselves: the speaker counts as named in such a sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from graphrag_ray.offline.mentions import Reading, Thing
from graphrag_ray.offline.quotes import MAX_QUOTE_CHARS, balanced, quote
from graphrag_ray.offline.sentences import fold
from graphrag_ray.offline.types import CONCEPT

MAX_STRENGTH = 10
MAX_DISTANCE = 4
"""In a list of names, each is paired with the next four only."""

CONVERSE = "They speak with each other in this text."
"""Our own words, where no sentence holds the names of two who speak in turn."""

_FIRST_PERSON = re.compile(r"\b(?:I|me|my|mine|myself|we|us|our)\b")


@dataclass(slots=True)
class Relation:
    """An unordered pair of things with the sentences that hold both, and `turns`, how often one spoke
    after the other."""

    source: Thing
    target: Thing
    sentences: list[int] = field(default_factory=list)
    spoken: list[int] = field(default_factory=list)
    turns: int = 0

    @property
    def strength(self) -> int:
        return min(MAX_STRENGTH, len(self.sentences) + len(self.spoken) + (self.turns + 1) // 2)


def relations(reading: Reading) -> list[Relation]:
    """The relations of a chunk in order of their first evidence."""
    found: dict[tuple[str, str], Relation] = {}
    for index in range(len(reading.script.sentences)):
        things = reading.in_sentence.get(index, [])
        for i, one in enumerate(things):
            for other in things[i + 1 : i + 1 + MAX_DISTANCE]:
                if not (
                    one.kind == CONCEPT and other.kind == CONCEPT and _overlap(reading, index, one, other)
                ):
                    _between(found, one, other).sentences.append(index)
        speaker = reading.speaks[index]
        if speaker is not None and things and _says_of_self(reading, index):
            for other in things:
                if other is not speaker and speaker not in things and other.kind != CONCEPT:
                    _between(found, speaker, other).spoken.append(index)
    for (one, other), count in _exchanges(reading).items():
        things_by_key = {t.key: t for t in reading.things}
        _between(found, things_by_key[one], things_by_key[other]).turns += count
    for thing in reading.things:
        long = (
            next((t for t in reading.things if t.key == thing.short_for), None) if thing.short_for else None
        )
        if long is not None:
            _between(found, long, thing)
    return [r for r in found.values() if r.strength]


def relation_quote(reading: Reading, relation: Relation) -> str:
    """The sentence that describes a relation: the shortest that is long enough to say something."""
    one, other = relation.source, relation.target
    if relation.sentences:
        return _best(reading, relation.sentences, one, other)
    if relation.turns and (exchange := _exchange_quote(reading, one, other)):
        return exchange
    if relation.spoken:
        mentioned = other if reading.speaks[relation.spoken[0]] is one else one
        return _best(reading, relation.spoken, mentioned)
    return CONVERSE


def _between(found: dict[tuple[str, str], Relation], one: Thing, other: Thing) -> Relation:
    key = (one.key, other.key) if one.key <= other.key else (other.key, one.key)
    if key not in found:
        found[key] = Relation(one, other)
    return found[key]


def _overlap(reading: Reading, index: int, one: Thing, other: Thing) -> bool:
    """Whether two terms share words at the same place (machine learning, learning system)."""
    spans = [p for p in other.places if p[0] == index]
    return any(a < d and c < b for s, a, b in one.places if s == index for _, c, d in spans)


def _says_of_self(reading: Reading, index: int) -> bool:
    sentence = reading.sentence(index)
    return _FIRST_PERSON.search(reading.text, sentence.start, sentence.end) is not None


def _exchanges(reading: Reading) -> Counter[tuple[str, str]]:
    """How often one speaker's turn follows another's."""
    order = [t for t in (reading.speaks[i] for i in _first_sentences(reading)) if t is not None]
    pairs: Counter[tuple[str, str]] = Counter()
    for one, other in zip(order, order[1:], strict=False):
        if one is not other:
            pairs[(min(one.key, other.key), max(one.key, other.key))] += 1
    return pairs


def _first_sentences(reading: Reading) -> list[int]:
    seen: set[int] = set()
    firsts = []
    for index, sentence in enumerate(reading.script.sentences):
        if sentence.turn >= 0 and sentence.turn not in seen:
            seen.add(sentence.turn)
            firsts.append(index)
    return firsts


def _best(reading: Reading, sentences: list[int], *things: Thing) -> str:
    def worth(index: int) -> tuple[bool, float, int]:
        sentence = reading.sentence(index)
        return (sentence.whole, -abs(sentence.end - sentence.start - 150), -index)

    best = max(sentences, key=worth)
    spans = [(a, b) for t in things for s, a, b in t.places if s == best]
    return quote(reading, best, _closest(spans, len(things), reading, best, things))


def _closest(
    spans: list[tuple[int, int]], n: int, reading: Reading, index: int, things: tuple[Thing, ...]
) -> list[tuple[int, int]]:
    """One span per thing, as near to one another as they come."""
    if n < 2:
        return spans[:1]
    first = [(a, b) for s, a, b in things[0].places if s == index]
    second = [(a, b) for s, a, b in things[1].places if s == index]
    pairs = [(abs(a[0] - b[0]), a, b) for a in first for b in second]
    _, one, other = min(pairs)
    return [one, other]


def _exchange_quote(reading: Reading, one: Thing, other: Thing) -> str:
    """A turn of one and the beginning of the other's reply, labels and all, where that is short."""
    firsts = _first_sentences(reading)
    for at, following in zip(firsts, firsts[1:], strict=False):
        if {id(reading.speaks[at]), id(reading.speaks[following])} != {id(one), id(other)}:
            continue
        start = reading.sentence(at).label_start
        end = reading.sentence(following).end
        if end - start <= MAX_QUOTE_CHARS and end - reading.sentence(following).start > 30:
            return balanced(fold(reading.text[start:end]))
    return ""
