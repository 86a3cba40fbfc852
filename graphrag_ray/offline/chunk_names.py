"""Names in a chunk, and which of them name the same thing.

Short names are resolved to the one full name of the chunk that ends, or begins, with them; speakers'
labels and the long forms of abbreviations are names as well.

Abbreviations and their long forms.

Schwartz and Hearst, "A simple algorithm for identifying abbreviation definitions in biomedical text"
(PSB 2003). We differ in two points: only `long form (SHORT)` is read, since `SHORT (long form)` is rare
outside of abstracts, and the long form has to start with a capital, since names are wanted.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from graphrag_ray.offline.candidates import Candidate, find_candidates
from graphrag_ray.offline.capital_runs import CapitalRun
from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentences import Script, Sentence, fold

MAX_LONG_CHARS = 200

_SHORT = re.compile(r"\(\s*[“\"]?([^\W\d_][\w.&/-]{1,9})[”\"]?\s*[),;]")

_PLAIN = re.compile(r"[\w\s&'’./-]+")


@dataclass(frozen=True, slots=True)
class Definition:
    """`short` stands for the text[start:end] before it."""

    short: str
    start: int
    end: int


def definitions(text: str, start: int, end: int) -> list[Definition]:
    """The abbreviations defined in text[start:end]."""
    if "(" not in text:
        return []
    found = []
    for match in _SHORT.finditer(text, start, end):
        short = match.group(1)
        if sum(c.isupper() for c in short) < 2:
            continue
        before_end = match.start()
        while before_end > start and text[before_end - 1] == " ":
            before_end -= 1
        # At most min(|A| + 5, |A| * 2) words before the parenthesis hold the long form (section 3.1).
        letters = sum(c.isalnum() for c in short)
        nearest = max(start, before_end - MAX_LONG_CHARS)
        words = [m.start() for m in re.finditer(r"\S+", text[nearest:before_end])]
        limit = min(letters + 5, letters * 2)
        window = nearest + words[-limit] if len(words) > limit else nearest
        begin = _best_long_form(short, text[window:before_end])
        if begin is not None and text[window + begin].isupper():
            found.append(Definition(short, window + begin, before_end))
    return found


def _best_long_form(short: str, long_text: str) -> int | None:
    """Where the long form begins: every character of the short form is found from the right, its first
    at the start of a word (figure 1 of the paper)."""
    s, at = len(short) - 1, len(long_text) - 1
    while s >= 0:
        wanted = short[s].lower()
        if not wanted.isalnum():
            s -= 1
            continue
        while at >= 0 and (
            long_text[at].lower() != wanted or (s == 0 and at > 0 and long_text[at - 1].isalnum())
        ):
            at -= 1
        if at < 0:
            return None
        at -= 1
        s -= 1
    begin = at + 1
    long_form = long_text[begin:]
    if len(long_form) < len(short) or not _PLAIN.fullmatch(long_form) or len(long_form.split()) < 2:
        return None
    return begin


_LOCATIVE = frozenset(["in", "near", "across", "throughout", "outside"])
_UNLIKE_PERSON = re.compile(
    r"(?<![\w.])(?!I+\b|IV\b|VI*\b|I?X\b)[A-Z]{2,}\b|(?!Mc|Mac|De|Di|Du|La|Le|Van|Fitz)\b[A-Z][a-z]+[A-Z]"
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A name at text[start:end] of sentence number `sentence`; `label`: as the label of a turn."""

    sentence: int
    start: int
    end: int
    run: CapitalRun | None = None
    label: bool = False


@dataclass(slots=True)
class Name:
    """A name of the chunk.

    words      of its title, lower case
    person     an honorific, a role or a speaker's label says so
    short_for  key of the name that it abbreviates, else ""
    """

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


def find_names(text: str, script: Script, lexicon: Lexicon) -> dict[str, Name]:
    """The names of a chunk by upper-case title, speakers first, then in order of first mention."""
    names: dict[str, Name] = {}
    for turn in script.turns:
        title = speaker_title(turn.speaker, lexicon)
        name = names.setdefault(title.upper(), _named(title))
        name.person = name.speaker = True
    for candidate in find_candidates(text, script.sentences, lexicon):
        _add(names, candidate)
    _define_abbreviations(names, text, script.sentences)
    _add_labels(names, script, lexicon)
    return _resolve(names, lexicon)


def speaker_title(label: str, lexicon: Lexicon) -> str:
    """The name in a label, without its honorifics."""
    words = label.split()
    while len(words) > 1 and words[0].lower().strip(".") in lexicon.cues["honorific"]:
        words.pop(0)
    return fold(" ".join(words)).replace("’", "'")


def looks_like_person(title: str, lexicon: Lexicon) -> bool:
    """By shape: two to four words, a first name or no ordinary word, and no suffix of another type. Where
    the others are not, no word is in capitals or has one inside, but as McKay or O'Hara has it (Azure AI
    and GitHub Copilot are products)."""
    cues, words = lexicon.cues, tuple(title.lower().split())
    if not title.isupper() and _UNLIKE_PERSON.search(title):
        return False
    if not 2 <= len(words) <= 4 or any(c.isdigit() for w in words for c in w):
        return False
    phrase, last = " ".join(words), words[-1].split("-")[-1]
    if phrase in cues["place"] or phrase in cues["place_phrase"]:
        return False
    suffixed = any(last in cues[s] for s in ("org_suffix", "loc_suffix", "event_suffix", "work_suffix"))
    if words[0] in cues["first_name"]:
        doubtful = words[0] in cues["place"] or words[0] in lexicon.ordinary
        inner = any(w in ("of", "for", "and", "&", "the") for w in words)
        return not inner and not (suffixed and doubtful)
    if suffixed or any(w in cues["place"] for w in words):
        return False
    return all(not lexicon.is_ordinary(w) or w in cues["particle"] for w in words)


def _named(title: str) -> Name:
    return Name(title, tuple(w.strip(',;:!?()“”"') or w for w in title.lower().split()))


def _add(names: dict[str, Name], candidate: Candidate) -> None:
    key = candidate.title.upper()
    name = names.setdefault(key, _named(candidate.title))
    name.person = name.person or candidate.person
    name.quoted = name.quoted or any(r.quoted and not r.defined for r in candidate.runs)
    name.mentions.extend(Mention(r.sentence, r.start, r.end, r) for r in candidate.runs)


def _add_labels(names: dict[str, Name], script: Script, lexicon: Lexicon) -> None:
    """A label mentions its speaker, in the first sentence of the turn."""
    first: dict[int, int] = {}
    for index, sentence in enumerate(script.sentences):
        if sentence.turn >= 0:
            first.setdefault(sentence.turn, index)
    for number, turn in enumerate(script.turns):
        if number in first:
            name = names[speaker_title(turn.speaker, lexicon).upper()]
            name.mentions.append(Mention(first[number], turn.start, turn.end, None, True))


def _define_abbreviations(names: dict[str, Name], text: str, sentences: list[Sentence]) -> None:
    """`Friends of Hask Marsh (FHM)`: the long form is a name as a whole, and FHM is short for it."""
    spans: list[tuple[int, int]] = []
    own: set[tuple[str, int]] = set()
    for index, sentence in enumerate(sentences):
        for found in definitions(text, sentence.start, sentence.end):
            title = fold(text[found.start : found.end]).replace("’", "'").removeprefix("The ")
            short = names.get(found.short.upper())
            if short is None or title.upper() == short.key:
                continue
            long = names.setdefault(title.upper(), _named(title))
            long.mentions.append(Mention(index, found.start, found.end))
            short.short_for = long.key
            spans.append((found.end, found.start))
            own.add((long.key, found.end))
    if spans:
        _drop_parts(names.values(), spans, own)


def _drop_parts(names: Iterable[Name], spans: list[tuple[int, int]], own: set[tuple[str, int]]) -> None:
    """Parts of a long form, cut at a small word, are no names there.

    spans: (end, start) of long forms by end; own: (key, end) of the names that they are.
    """
    least = list(accumulate((start for _, start in reversed(spans)), min))[::-1]
    for name in names:
        kept: dict[tuple[int, int], Mention] = {}
        for m in name.mentions:
            if (name.key, m.end) in own:
                kept.setdefault((-1, m.end), m)  # the run that was found and the definition are one mention
                continue
            at = bisect_left(spans, (m.end, -1))
            if at == len(spans) or least[at] > m.start:
                kept[m.start, m.end] = m
        name.mentions = list(kept.values())


def _resolve(names: dict[str, Name], lexicon: Lexicon) -> dict[str, Name]:
    """Short names join the only full name that begins or ends with them. One that fits several is left
    out, as is a first name without any that is mentioned once: whom they mean is not known."""
    full_names = _full_names(names, lexicon)
    out: dict[str, Name] = {}
    for name in names.values():
        target = _target(name, names, full_names, lexicon)
        if target is None:
            continue
        if target is not name:
            target.mentions.extend(name.mentions)
            target.person = target.person or name.person
            target.speaker = target.speaker or name.speaker
        out.setdefault(target.key, target)
    return {key: name for key, name in out.items() if name.mentions}


def _full_names(names: dict[str, Name], lexicon: Lexicon) -> dict[str, list[Name]]:
    """Names of several words by their first and last words: of persons all, of others ordinary words
    only (the Institute, but not Stanford)."""
    found: dict[str, list[Name]] = defaultdict(list)
    for name in names.values():
        if len(name.words) < 2 or not name.mentions or name.short_for:
            continue
        if _without_middle(name, names, lexicon) is not None:
            continue
        person = name.person or looks_like_person(name.title, lexicon)
        for word in dict.fromkeys((name.words[0], name.words[-1])):
            if person or word in lexicon.ordinary:
                found[word].append(name)
    return found


def _without_middle(name: Name, names: dict[str, Name], lexicon: Lexicon) -> Name | None:
    """The person of the chunk who is written with the first and the last of these words (Orla Quist for
    Orla Maria Quist)."""
    if len(name.words) < 3 or name.quoted:
        return None
    plain = names.get(f"{name.words[0]} {name.words[-1]}".upper())
    if plain is None or not plain.mentions or not looks_like_person(plain.title, lexicon):
        return None
    return plain


def _target(
    name: Name, names: dict[str, Name], full_names: dict[str, list[Name]], lexicon: Lexicon
) -> Name | None:
    """The name under which the mentions of `name` count; None: nobody knows."""
    if (plain := _without_middle(name, names, lexicon)) is not None:
        return plain
    if len(name.words) > 1 or name.quoted:
        return name
    fitting = full_names.get(name.words[0], [])
    if all(m.run is not None and m.run.before in _LOCATIVE for m in name.mentions):
        fitting = []  # in Marrakesh there is no Mr Marrakesh
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        return max(fitting, key=lambda n: len(n.mentions)) if name.speaker else None
    cues, word = lexicon.cues, name.words[0]
    bare = word in cues["first_name"] and word not in cues["place"] and not name.speaker and not name.person
    bare = bare and not any(m.run and m.run.after in cues["honorific"] for m in name.mentions)
    return None if bare and len(name.mentions) < 2 else name
