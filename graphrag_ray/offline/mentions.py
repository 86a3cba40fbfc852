"""A chunk read: its sentences, the names and terms in it, and which sentence holds which."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from graphrag_ray.offline.chunk_names import find_names, speaker_title
from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentences import Script, Sentence, fold, read_script
from graphrag_ray.offline.terms import find_terms
from graphrag_ray.offline.type_cues import CONCEPT, PERSON
from graphrag_ray.offline.types import kind_of, place_heads, share_in_lists, votes_for


@dataclass(slots=True)
class Thing:
    """A name or a term of the chunk. `kind`: one of types.PERSON … types.CONCEPT; `places`: (sentence,
    start, end) of its mentions in order; `in_sentence`: the same by sentence; `short_for`: the key of the
    name it abbreviates, else ""."""

    title: str
    kind: int
    places: list[tuple[int, int, int]]
    speaker: bool = False
    short_for: str = ""
    in_sentence: dict[int, list[tuple[int, int]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for sentence, start, end in self.places:
            self.in_sentence.setdefault(sentence, []).append((start, end))

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
    which turns begin; `said_by`: the sentences that a speaker says, by the speaker's key."""

    text: str
    script: Script
    things: list[Thing]
    in_sentence: dict[int, list[Thing]] = field(default_factory=dict)
    speaks: list[Thing | None] = field(default_factory=list)
    turn_starts: list[int] = field(default_factory=list)
    said_by: dict[str, list[int]] = field(default_factory=dict)

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
    own = {n.key: votes_for(n, text, script.sentences, lexicon, heads) for n in names.values()}
    votes = share_in_lists(names.values(), own, text)
    for name in names.values():
        places = sorted({(m.sentence, m.start, m.end) for m in name.mentions if not m.label})
        labels = [(m.sentence, m.start, m.end) for m in name.mentions if m.label]
        kind = kind_of(votes[name.key])
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
    by_word: dict[str, list[Thing]] = defaultdict(list)
    for key, thing in speakers.items():
        words = key.split()
        for word in {words[0], words[-1]}:
            by_word[word].append(thing)
    labels = [_speaker(turn.speaker, speakers, by_word, lexicon) for turn in reading.script.turns]
    sentences = reading.script.sentences
    reading.speaks = [labels[s.turn] if s.turn >= 0 else None for s in sentences]
    reading.turn_starts = [i for i, s in enumerate(sentences) if s.label_start < s.start and s.turn >= 0]
    for index, speaker in enumerate(reading.speaks):
        if speaker is not None:
            reading.said_by.setdefault(speaker.key, []).append(index)


def _speaker(
    label: str, speakers: dict[str, Thing], by_word: dict[str, list[Thing]], lexicon: Lexicon
) -> Thing | None:
    key = speaker_title(label, lexicon).upper()
    if key in speakers:
        return speakers[key]
    fitting = by_word.get(key.split()[-1], [])
    return fitting[0] if len(fitting) == 1 else None
