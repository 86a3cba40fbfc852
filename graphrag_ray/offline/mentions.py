"""A chunk read: its sentences, the names and terms in it, and which sentence holds which.

Terms: recurring noun phrases that are things without being names (neural network, harbour dues).

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

from graphrag_ray.offline.chunk_names import find_names, speaker_title
from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentences import Script, Sentence, read_script
from graphrag_ray.offline.types import CONCEPT, PERSON, kind_of, place_heads, share_in_lists, votes_for

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
        word = words[i][0]
        can_be_verb = word in lexicon.verbs and not word.endswith("ing")
        if not good[i] or (can_be_verb and (i == 0 or words[i - 1][0] in lexicon.cues["before_verb"])):
            continue
        for j in range(i + 2, min(i + MAX_TERM_WORDS, len(words)) + 1):
            last = words[j - 1][0]
            if not good[j - 1]:
                break
            if not _is_head(last, lexicon) or _has_subject(words[j - 2][0], last, lexicon):
                continue
            phrase = (*(w for w, _, _ in words[i : j - 1]), singular(last))
            places[phrase].append((sentence, words[i][1], words[j - 1][2]))


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

    def sentence(self, index: int) -> Sentence:
        return self.script.sentences[index]


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
