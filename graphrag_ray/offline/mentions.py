"""Read a chunk: find its sentences, names and terms, and which sentence mentions which thing.

Terms are recurring noun phrases (neural network, harbour dues), ranked by C-value (Frantzi, Ananiadou and
Mima, "Automatic recognition of multi-word terms", IJDL 2000):

    C-value(a) = log2|a| · (f(a) − 1/P(Ta) · Σ f(b) over the P(Ta) longer candidates b that contain a)

The linguistic filter is (relational adjective | noun)+ noun by the lexicon's parts of speech, without vague
words (thing, year) and without verbs that look like nouns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from math import log2

from graphrag_ray.offline.chunk_names import find_names, speaker_title
from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.name_types import CONCEPT, PERSON, kind_of, place_heads, share_in_lists, votes_for
from graphrag_ray.offline.sentences import Script, Sentence, read_script

Place = tuple[int, int, int]  # (sentence, start, end)

MAX_TERM_WORDS = 3
MAX_TERMS = 12  # Maximum number of terms per chunk, best by C-value.

_STRETCH = re.compile(r"(?<![\w'’@./-])[a-z]{3,}(?:-[a-z]+)*(?: [a-z]{3,}(?:-[a-z]+)*)+(?![\w'’@])")
_RELATIONAL = re.compile(r"(?:al|ic|ar|ary|ory|oid)$|\w-\w")
_WORD = re.compile(r"[a-z-]+")


def c_values(frequency: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], float]:
    """Compute the C-value of every candidate from candidate frequencies."""
    longer: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for words, count in frequency.items():
        for size in range(2, len(words)):
            for i in range(len(words) - size + 1):
                part = words[i : i + size]
                if part in frequency:
                    longer[part].append(count)
    values = {}
    for words, count in frequency.items():
        holders = longer.get(words)
        values[words] = log2(len(words)) * (count - (sum(holders) / len(holders) if holders else 0.0))
    return values


def find_terms(text: str, script: Script) -> list[tuple[str, list[Place]]]:
    """Find the terms of a chunk in the singular, with their positions, best first."""
    cues = LEXICON.cues
    places: dict[tuple[str, ...], list[Place]] = defaultdict(list)
    for index, sentence in enumerate(script.sentences):
        for stretch in _STRETCH.finditer(text, sentence.start, sentence.end):
            matches = list(_WORD.finditer(text, *stretch.span()))
            words = [m.group() for m in matches]
            is_part = [_is_part(word) for word in words]
            for i in range(len(words) - 1):
                can_be_verb = words[i] in LEXICON.verbs and not words[i].endswith("ing")
                if not is_part[i] or (can_be_verb and (i == 0 or words[i - 1] in cues["before_verb"])):
                    continue
                for j in range(i + 1, min(i + MAX_TERM_WORDS, len(words))):
                    if not is_part[j]:
                        break
                    before, last = words[j - 1], singular(words[j])
                    # Nouns for people or institutions head names, not terms.
                    if words[j] in LEXICON.adjectives or last in cues["role"] or last in cues["institution"]:
                        continue
                    if LEXICON.is_ordinary(words[j]) and words[j] not in LEXICON.nouns:
                        continue
                    # It is probably the verb of a plural noun: photons move.
                    plural = before.endswith("s") and not before.endswith(("ss", "ics"))
                    if plural and before in LEXICON.nouns and words[j] in LEXICON.verbs:
                        continue
                    places[(*words[i:j], last)].append((index, matches[i].start(), matches[j].end()))
    values = c_values({words: len(mentions) for words, mentions in places.items()})
    kept = [w for w, value in values.items() if value > 0]
    kept.sort(key=lambda w: (-values[w], places[w][0]))
    return [(" ".join(w), places[w]) for w in kept[:MAX_TERMS]]


def _is_part(word: str) -> bool:
    if word in LEXICON.stop or word in LEXICON.cues["vague"] or word in LEXICON.calendar:
        return False
    return word in LEXICON.nouns or word in LEXICON.cues["relational"] or bool(_RELATIONAL.search(word))


def singular(noun: str) -> str:
    """Remove a regular plural ending from a noun, so that both numbers share a key."""
    if len(noun) < 4 or not noun.endswith("s") or noun.endswith(("ss", "us", "is", "ics", "ews", "ies")):
        return noun[:-3] + "y" if noun.endswith("ies") and len(noun) > 4 and noun != "series" else noun
    if noun.endswith(("ches", "shes", "xes", "sses")):
        return noun[:-2]
    return noun[:-1]


@dataclass(slots=True)
class Thing:
    """A name or term of the chunk.

    Attributes:
        in_sentence: (start, end) of its mentions, by sentence.
    """

    title: str
    kind: int  # One of name_types.PERSON … name_types.CONCEPT.
    places: list[Place]  # Its mentions, in order.
    speaker: bool = False
    short_for: str = ""  # Key of the name that it abbreviates, or "".
    in_sentence: dict[int, list[tuple[int, int]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for sentence, start, end in self.places:
            self.in_sentence.setdefault(sentence, []).append((start, end))

    @property
    def key(self) -> str:
        return self.title.upper()


@dataclass(slots=True)
class Reading:
    """The names, terms and speakers of a chunk.

    Attributes:
        in_sentence: The distinct things of each sentence, in order of mention.
    """

    text: str
    script: Script
    things: list[Thing]  # In order of first mention.
    in_sentence: dict[int, list[Thing]] = field(default_factory=dict)
    speaks: list[Thing | None] = field(default_factory=list)  # Speaker of each sentence, or None.
    turn_starts: list[int] = field(default_factory=list)  # First sentences of turns.
    said_by: dict[str, list[int]] = field(default_factory=dict)  # Sentences by key of their speaker.

    def sentence(self, index: int) -> Sentence:
        return self.script.sentences[index]


def read(text: str, with_terms: bool) -> Reading:
    """Find the names, terms and speakers in a chunk."""
    script = read_script(text)
    things = []
    names = find_names(text, script)
    heads = place_heads(names)
    own_votes = {n.key: votes_for(n, text, script.sentences, heads) for n in names.values()}
    votes = share_in_lists(names.values(), own_votes, text)
    for name in names.values():
        places = sorted({(m.sentence, m.start, m.end) for m in name.mentions if not m.label})
        labels = [(m.sentence, m.start, m.end) for m in name.mentions if m.label]
        kind = kind_of(votes[name.key])
        things.append(Thing(name.title, kind, places or labels[:1], name.speaker, name.short_for))
    keys = {t.key for t in things}
    if with_terms:
        terms = find_terms(text, script)
        things += [Thing(term, CONCEPT, places) for term, places in terms if term.upper() not in keys]
    things.sort(key=lambda t: t.places[0])
    reading = Reading(text, script, things)
    mentions: dict[int, list[tuple[int, Thing]]] = defaultdict(list)
    for thing in things:
        for place, start, _ in thing.places:
            mentions[place].append((start, thing))
    for place, mentioned in mentions.items():
        mentioned.sort(key=lambda mention: mention[0])
        reading.in_sentence[place] = list({id(thing): thing for _, thing in mentioned}.values())
    # A label identifies a speaker by full name, or by a last word that only one speaker has.
    speakers = {t.key: t for t in things if t.speaker and t.kind == PERSON}
    by_word: dict[str, list[Thing]] = defaultdict(list)
    for key, thing in speakers.items():
        words = key.split()
        for word in {words[0], words[-1]}:
            by_word[word].append(thing)
    turn_speakers: list[Thing | None] = []
    for turn in script.turns:
        key = speaker_title(turn.speaker).upper()
        matching = by_word.get(key.split()[-1], [])
        turn_speakers.append(speakers.get(key) or (matching[0] if len(matching) == 1 else None))
    for index, sentence in enumerate(script.sentences):
        speaker = turn_speakers[sentence.turn] if sentence.turn >= 0 else None
        reading.speaks.append(speaker)
        if speaker is not None:
            reading.said_by.setdefault(speaker.key, []).append(index)
        if sentence.label_start < sentence.start and sentence.turn >= 0:
            reading.turn_starts.append(index)
    return reading
