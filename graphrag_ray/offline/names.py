"""Names in a chunk: which capitalised runs are names, and which of them name the same thing.

Document-centred casing (Mikheev, "Periods, capitalized words, etc.", Computational Linguistics 2002):
a capital in mid-sentence is evidence, a capital at the start of a sentence needs evidence elsewhere in
the chunk or a word that is not an ordinary one. Nested candidates are weighed as in C-value (terms.py).
Short names are resolved to the one full name of the chunk that ends, or begins, with them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from graphrag_ray.offline.abbreviations import definitions
from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.runs import Run, Word, is_empty, quoted_titles, runs_of, trim, words_of
from graphrag_ray.offline.sentences import Script, Sentence, fold

_LOWER = re.compile(r"(?<![^\W_])[a-zß-ÿ]+(?![^\W_])")
_BEFORE_NAMES = frozenset("at on in with from using called named joined via by aboard into via like".split())
_FIELD = re.compile(r"(?:ing|ics|ions?|ology|ment|ence|ance|ists?|ism|ity|ry|ies|hip|hood|s)$")
MAX_WORDS = 9
"""A longer capitalised run is a heading or a list without commas."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A name at text[start:end] of sentence number `sentence`; `label`: as the label of a turn."""

    sentence: int
    start: int
    end: int
    run: Run | None = None
    label: bool = False


@dataclass(slots=True)
class Name:
    """A name of the chunk. `person`: an honorific, a role or a speaker's label says so."""

    title: str
    words: tuple[str, ...]
    mentions: list[Mention] = field(default_factory=list)
    person: bool = False
    speaker: bool = False
    quoted: bool = False
    short_for: str = ""

    @property
    def key(self) -> str:
        return self.title.upper()


@dataclass(slots=True)
class _Candidate:
    key: str
    runs: list[Run]
    mid: int = 0
    initial: int = 0


def find_names(text: str, script: Script, lexicon: Lexicon) -> dict[str, Name]:
    """The names of a chunk by upper-case title, in order of first mention."""
    runs = _all_runs(text, script.sentences, lexicon)
    lower_words = frozenset(_LOWER.findall(text))
    candidates = _candidates(text, runs)
    names: dict[str, Name] = {}
    for turn in script.turns:
        _add_speaker(names, turn.speaker, lexicon)
    for candidate in candidates.values():
        if _accepted(candidate, candidates, text, lower_words, lexicon):
            _add(names, text, candidate)
    _define_abbreviations(names, text, script.sentences)
    _add_labels(names, script, lexicon)
    return _resolve(names, lexicon)


def _all_runs(text: str, sentences: list[Sentence], lexicon: Lexicon) -> list[Run]:
    found: list[Run] = []
    for index, sentence in enumerate(sentences):
        quoted = quoted_titles(text, sentence, index, lexicon)
        spans = [(q.start, q.end) for q in quoted]
        words = words_of(text, sentence, lexicon)
        for run in runs_of(text, sentence, index, words, lexicon):
            if not any(a < run.end and run.start < b for a, b in spans):
                found.extend(trim(run, lexicon))
        found.extend(quoted)
    return [r for r in found if len(r.words) <= MAX_WORDS]


def _title(text: str, words: Iterable[Word]) -> str:
    listed = list(words)
    return fold(text[listed[0].start : listed[-1].end]).replace("’", "'")


def _candidates(text: str, runs: list[Run]) -> dict[str, _Candidate]:
    out: dict[str, _Candidate] = {}
    for run in runs:
        key = _title(text, run.words).upper()
        candidate = out.setdefault(key, _Candidate(key, []))
        candidate.runs.append(run)
        if run.words[0].initial and not run.person:
            candidate.initial += 1
        else:
            candidate.mid += 1
    # An opener glued to a name (Building Microsoft) is seen once; the name alone is seen elsewhere.
    for key, candidate in list(out.items()):
        first = candidate.runs[0].words[0]
        if len(candidate.runs) == 1 and _cut_off(text, candidate.runs[0]):
            del out[key]
            continue
        if candidate.mid or len(candidate.runs[0].words) < 2 or len(candidate.runs) > 1:
            continue
        rest = _title(text, candidate.runs[0].words[1:]).upper()
        if rest in out and first.initial and out[rest].mid:
            run = candidate.runs[0]
            run.words = run.words[1:]
            out[rest].runs.append(run)
            out[rest].mid += 1
            del out[key]
    return out


def _cut_off(text: str, run: Run) -> bool:
    """Whether the edge of the chunk may have cut this run: KEVIN SC at its end, OTT at its start."""
    return run.end == len(text) or (run.start == 0 and run.words[0].text.isupper())


def _accepted(
    candidate: _Candidate,
    candidates: dict[str, _Candidate],
    text: str,
    lower_words: frozenset[str],
    lexicon: Lexicon,
) -> bool:
    run = candidate.runs[0]
    words = run.words
    if any(r.quoted for r in candidate.runs):
        return True
    ordinary = [lexicon.is_ordinary(w.lower) for w in words]
    if len(words) == 1:
        return _single_accepted(candidate, words[0], ordinary[0], lower_words, lexicon)
    if not candidate.mid and all(ordinary) and lexicon.is_leading(words[0].lower):
        return False
    phrase = " ".join(w.lower for w in words)
    if all(ordinary) and text.count(phrase) > candidate.mid:
        return False
    if all(w.initial for w in words):  # a heading
        return not all(ordinary)
    return True


def _single_accepted(
    candidate: _Candidate, word: Word, ordinary: bool, lower_words: frozenset[str], lexicon: Lexicon
) -> bool:
    cues, run = lexicon.cues, candidate.runs[0]
    if is_empty(word.lower, lexicon):
        return False
    if word.text.isupper():
        return not ordinary and word.lower not in lower_words
    if word.lower in lower_words and not any(r.person for r in candidate.runs):
        return False
    if lower_adjective(word.lower) and lexicon.is_ordinary(candidate.runs[0].after):
        return word.lower in cues["first_name"]
    if not ordinary:
        return bool(candidate.mid) or len(candidate.runs) > 1 or _acts(candidate, lexicon)
    if any(r.person for r in candidate.runs):
        return True
    if word.lower in cues["first_name"] and candidate.mid:
        return True
    return candidate.mid >= 2 or (run.before in _BEFORE_NAMES and not _FIELD.search(word.lower))


def lower_adjective(lower: str) -> bool:
    return lower.endswith(("ian", "ean", "esque", "ese", "ist"))


def _acts(candidate: _Candidate, lexicon: Lexicon) -> bool:
    """Whether a word seen at the start of one sentence only is used there as a name: known as one, owning
    something, or the subject of a verb that names take."""
    run = candidate.runs[0]
    known = lexicon.cues["first_name"] | lexicon.cues["place"]
    return (
        run.words[0].lower in known
        or run.words[0].possessive
        or run.after in lexicon.cues["say"]
        or run.after in ("is", "was", "has", "had", "will", "did", "does", "would", "could", "can", "and")
    )


def _add(names: dict[str, Name], text: str, candidate: _Candidate) -> None:
    first = candidate.runs[0]
    name = names.get(candidate.key)
    if name is None:
        name = Name(_title(text, first.words), tuple(w.lower for w in first.words))
        names[candidate.key] = name
    name.person = name.person or any(r.person for r in candidate.runs)
    name.quoted = name.quoted or any(r.quoted for r in candidate.runs)
    name.mentions.extend(Mention(r.sentence, r.start, r.end, r) for r in candidate.runs)


def _speaker_title(speaker: str, lexicon: Lexicon) -> str:
    words = speaker.split()
    while len(words) > 1 and words[0].lower().strip(".") in lexicon.cues["honorific"]:
        words.pop(0)
    return " ".join(words).replace("’", "'")


def _add_speaker(names: dict[str, Name], speaker: str, lexicon: Lexicon) -> None:
    title = _speaker_title(speaker, lexicon)
    name = names.setdefault(title.upper(), Name(title, tuple(title.lower().split())))
    name.person = name.speaker = True


def _add_labels(names: dict[str, Name], script: Script, lexicon: Lexicon) -> None:
    """A label mentions its speaker, in the first sentence of the turn."""
    first: dict[int, int] = {}
    for index, sentence in enumerate(script.sentences):
        if sentence.turn >= 0:
            first.setdefault(sentence.turn, index)
    for number, turn in enumerate(script.turns):
        if number in first:
            name = names[_speaker_title(turn.speaker, lexicon).upper()]
            name.mentions.append(Mention(first[number], turn.start, turn.end, None, True))


def _define_abbreviations(names: dict[str, Name], text: str, sentences: list[Sentence]) -> None:
    """`Friends of Hask Marsh (FHM)`: the long form is a name as a whole, and FHM is short for it."""
    for index, sentence in enumerate(sentences):
        for found in definitions(text, sentence.start, sentence.end):
            title = fold(text[found.start : found.end]).replace("’", "'")
            if title.startswith("The "):
                title = title[4:]
            short = names.get(found.short.upper())
            if short is None or title.upper() == short.key:
                continue
            long = names.setdefault(title.upper(), Name(title, tuple(title.lower().split())))
            for other in names.values():
                if other is not long:  # parts of the long form, cut at a small word, are no names here
                    other.mentions = [
                        m for m in other.mentions if not (found.start <= m.start and m.end <= found.end)
                    ]
            if not any(m.start == found.start for m in long.mentions):
                long.mentions.append(Mention(index, found.start, found.end))
            short.short_for = long.key


def looks_like_person(words: tuple[str, ...], lexicon: Lexicon) -> bool:
    """By shape: two or three words, a first name or no ordinary word, and no suffix of another type."""
    cues = lexicon.cues
    if not 2 <= len(words) <= 4 or any(c.isdigit() for w in words for c in w):
        return False
    last = words[-1].split("-")[-1]
    suffixed = any(last in cues[s] for s in ("org_suffix", "loc_suffix", "event_suffix", "work_suffix"))
    if " ".join(words) in cues["place"] or " ".join(words) in cues["place_phrase"]:
        return False
    if words[0] in cues["first_name"]:
        placed = words[0] in cues["place"] or words[0] in lexicon.ordinary
        inner = any(w in ("of", "for", "and", "&", "the") for w in words)
        return not inner and not (suffixed and placed)
    if suffixed or any(w in cues["place"] for w in words):
        return False
    return all(not lexicon.is_ordinary(w) or w in ("el", "de", "van", "von", "la") for w in words)


def _resolve(names: dict[str, Name], lexicon: Lexicon) -> dict[str, Name]:
    """Short names join the only full name that begins or ends with them; a first name or surname that fits
    several is left out; abbreviations join their long forms."""
    by_word: dict[str, set[str]] = defaultdict(set)
    for key, name in names.items():
        if len(name.words) > 1 and name.mentions and not name.short_for:
            person = name.person or looks_like_person(name.words, lexicon)
            if person:
                by_word[name.words[0]].add(key)
                by_word[name.words[-1]].add(key)
            else:
                for word in (name.words[0], name.words[-1]):
                    if word in lexicon.ordinary:
                        by_word[word].add(key)
    out: dict[str, Name] = {}
    for key, name in names.items():
        target = name
        if len(name.words) == 1 and not name.quoted and (full := by_word.get(name.words[0])):
            if len(full) > 1:
                target = names[_most_mentioned(full, names)] if name.speaker else None  # type: ignore[assignment]
            else:
                target = names[next(iter(full))]
        elif len(name.words) == 1 and name.words[0] in lexicon.cues["first_name"] and not name.speaker:
            if not name.person and len(name.mentions) < 2:
                target = None  # type: ignore[assignment]
        if target is None:
            continue
        if target is not name:
            target.mentions.extend(name.mentions)
            target.person = target.person or name.person
            target.speaker = target.speaker or name.speaker
        out.setdefault(target.key, target)
    return {k: n for k, n in out.items() if n.mentions}


def _most_mentioned(keys: set[str], names: dict[str, Name]) -> str:
    return max(sorted(keys), key=lambda k: len(names[k].mentions))


def nested(names: dict[str, Name]) -> Counter[str]:
    """How often each name stands inside longer ones: the t(a) of C-value."""
    counts: Counter[str] = Counter()
    for name in names.values():
        n = len(name.words)
        for size in range(1, n):
            for at in range(n - size + 1):
                part = " ".join(name.words[at : at + size]).upper()
                if part in names:
                    counts[part] += len(name.mentions)
    return counts
