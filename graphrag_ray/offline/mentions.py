"""A chunk read: its sentences, the names and terms in it, and which sentence holds which."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.names import find_names, speaker_title
from graphrag_ray.offline.sentences import Script, Sentence, fold, read_script
from graphrag_ray.offline.terms import find_terms
from graphrag_ray.offline.types import CONCEPT, PERSON, classify, place_heads


@dataclass(slots=True)
class Thing:
    """A name or a term of the chunk. `kind`: one of types.PERSON … types.CONCEPT; `places`: (sentence,
    start, end) of its mentions in order; `short_for`: the key of the name it abbreviates, else ""."""

    title: str
    kind: int
    places: list[tuple[int, int, int]]
    speaker: bool = False
    short_for: str = ""

    @property
    def key(self) -> str:
        return self.title.upper()

    @property
    def sentences(self) -> list[int]:
        return sorted({s for s, _, _ in self.places})


@dataclass(slots=True)
class Reading:
    """`things` in order of first mention; `in_sentence[i]`: the things mentioned in sentence i, in order
    of mention, each once; `speaks[i]`: who says sentence i, or None; `turn_starts`: the sentences with
    which turns begin."""

    text: str
    script: Script
    things: list[Thing]
    in_sentence: dict[int, list[Thing]] = field(default_factory=dict)
    speaks: list[Thing | None] = field(default_factory=list)
    turn_starts: list[int] = field(default_factory=list)

    def quote(self, index: int) -> str:
        """Sentence `index` as it is quoted: white space folded."""
        sentence = self.script.sentences[index]
        return fold(self.text[sentence.start : sentence.end])

    def sentence(self, index: int) -> Sentence:
        return self.script.sentences[index]

    def between(self, index: int, following: int) -> str:
        """The text between two sentences."""
        return self.text[self.sentence(index).end : self.sentence(following).start]


def read(text: str, lexicon: Lexicon, with_terms: bool) -> Reading:
    """Find everything that is named in a chunk."""
    script = read_script(text, lexicon)
    things = []
    names = find_names(text, script, lexicon)
    heads = place_heads(names, lexicon)
    for name in names.values():
        places = sorted({(m.sentence, m.start, m.end) for m in name.mentions if not m.label})
        labels = [(m.sentence, m.start, m.end) for m in name.mentions if m.label]
        kind = classify(name, lexicon, heads)
        things.append(Thing(name.title, kind, places or labels[:1], name.speaker, name.short_for))
    keys = {t.key for t in things}
    if with_terms:
        for term in find_terms(text, script, lexicon):
            if term.phrase.upper() not in keys:
                things.append(Thing(term.phrase, CONCEPT, term.places))
    things.sort(key=lambda t: t.places[0])
    reading = Reading(text, script, things)
    _index(reading, lexicon)
    return reading


def _index(reading: Reading, lexicon: Lexicon) -> None:
    found: dict[int, list[tuple[int, Thing]]] = defaultdict(list)
    speakers = {t.key: t for t in reading.things if t.speaker and t.kind == PERSON}
    for thing in reading.things:
        for sentence, start, _ in thing.places:
            found[sentence].append((start, thing))
    for sentence, listed in found.items():
        listed.sort(key=lambda p: p[0])
        reading.in_sentence[sentence] = list({id(t): t for _, t in listed}.values())
    labels = [_speaker(turn.speaker, speakers, lexicon) for turn in reading.script.turns]
    sentences = reading.script.sentences
    reading.speaks = [labels[s.turn] if s.turn >= 0 else None for s in sentences]
    reading.turn_starts = [i for i, s in enumerate(sentences) if s.label_start < s.start and s.turn >= 0]


def _speaker(label: str, speakers: dict[str, Thing], lexicon: Lexicon) -> Thing | None:
    key = speaker_title(label, lexicon).upper()
    if key in speakers:
        return speakers[key]
    last = key.split()[-1]
    fitting = [t for k, t in speakers.items() if last in (k.split()[-1], k.split()[0])]
    return fitting[0] if len(fitting) == 1 else None
