"""Find the names in a chunk, and merge the ones that name the same thing.

Document-centred casing (Mikheev 2002, "Periods, capitalized words, etc."): a capital in mid-sentence is
evidence; one at the start of a sentence needs evidence elsewhere in the chunk, or a word that is not
ordinary. Titles in quotation marks or headings are always names. Short names resolve to the only full name
that begins or ends with them. Abbreviations are resolved like in Schwartz and Hearst (PSB 2003), but only in
the form `long form (SHORT)` with a capitalised long form.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

from graphrag_ray.offline.capital_runs import CapitalRun, Word, is_empty, runs_of, trim, words_of
from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.sentences import Script, Sentence, fold

MAX_LONG_CHARS = 200

_SHORT = re.compile(r"\(\s*[“\"]?([^\W\d_][\w.&/-]{1,9})[”\"]?\s*[),;]")

_PLAIN = re.compile(r"[\w\s&'’./-]+")


def definitions(text: str, start: int, end: int) -> list[tuple[str, int, int]]:
    """Find abbreviations defined in text[start:end]: (short form, start and end of the long form)."""
    defined = []
    for match in _SHORT.finditer(text, start, end) if "(" in text else ():
        short = match.group(1)
        if sum(c.isupper() for c in short) < 2:
            continue
        before_end = start + len(text[start : match.start()].rstrip(" "))
        # The long form is within min(|A| + 5, |A| * 2) words before the parenthesis (section 3.1).
        letters = sum(c.isalnum() for c in short)
        nearest = max(start, before_end - MAX_LONG_CHARS)
        words = [m.start() for m in re.finditer(r"\S+", text[nearest:before_end])]
        limit = min(letters + 5, letters * 2)
        window = nearest + words[-limit] if len(words) > limit else nearest
        begin = _best_long_form(short, text[window:before_end])
        if begin is not None and text[window + begin].isupper():
            defined.append((short, window + begin, before_end))
    return defined


def _best_long_form(short: str, long_text: str) -> int | None:
    """Return where the long form begins (figure 1 of the paper).

    Every character of the short form is matched from the right. The first one must be at the start of a word.
    """
    s, i = len(short) - 1, len(long_text) - 1
    while s >= 0:
        wanted = short[s].lower()
        if not wanted.isalnum():
            s -= 1
            continue
        while i >= 0 and (
            long_text[i].lower() != wanted or (s == 0 and i > 0 and long_text[i - 1].isalnum())
        ):
            i -= 1
        if i < 0:
            return None
        i -= 1
        s -= 1
    begin = i + 1
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
    """A name at text[start:end] of a sentence. label: whether it is the label of a speaker turn."""

    sentence: int
    start: int
    end: int
    run: CapitalRun | None = None
    label: bool = False


@dataclass(slots=True)
class Name:
    """A name in the chunk."""

    title: str
    words: tuple[str, ...]  # Words of its title in lower case.
    mentions: list[Mention] = field(default_factory=list)
    person: bool = False  # It is marked by an honorific, a role or a speaker label.
    speaker: bool = False
    quoted: bool = False
    short_for: str = ""  # Key of the name that it abbreviates, or "".

    @property
    def key(self) -> str:
        return self.title.upper()


def find_names(text: str, script: Script) -> dict[str, Name]:
    """Find the names of a chunk by upper-case title: speakers first, then in order of first mention."""
    names: dict[str, Name] = {}

    def add(title: str) -> Name:
        if title.upper() not in names:
            words = (w.strip(',;:!?()“”"') or w for w in title.lower().split())
            names[title.upper()] = Name(title, tuple(words))
        return names[title.upper()]

    for turn in script.turns:
        name = add(speaker_title(turn.speaker))
        name.person = name.speaker = True
    for candidate in find_candidates(text, script.sentences):
        name = add(candidate.title)
        name.person = name.person or candidate.person
        name.quoted = name.quoted or any(r.quoted and not r.defined for r in candidate.runs)
        name.mentions.extend(Mention(r.sentence, r.start, r.end, r) for r in candidate.runs)
    # `Friends of Hask Marsh (FHM)`: the whole long form is a name, abbreviated FHM.
    spans: list[tuple[int, int]] = []
    long_forms: set[tuple[str, int]] = set()
    for index, sentence in enumerate(script.sentences):
        for abbreviation, start, end in definitions(text, sentence.start, sentence.end):
            title = fold(text[start:end]).replace("’", "'").removeprefix("The ")
            short = names.get(abbreviation.upper())
            if short is None or title.upper() == short.key:
                continue
            long = add(title)
            long.mentions.append(Mention(index, start, end))
            short.short_for = long.key
            spans.append((end, start))
            long_forms.add((long.key, end))
    if spans:
        _drop_parts(names.values(), spans, long_forms)
    # A label mentions its speaker in the first sentence of the turn.
    first_sentence: dict[int, int] = {}
    for index, sentence in enumerate(script.sentences):
        first_sentence.setdefault(sentence.turn, index)
    for number, turn in enumerate(script.turns):
        if number in first_sentence:
            mention = Mention(first_sentence[number], turn.start, turn.end, None, True)
            add(speaker_title(turn.speaker)).mentions.append(mention)
    return _resolve(names)


def speaker_title(label: str) -> str:
    """Return the name in a label, without honorifics."""
    words = label.split()
    while len(words) > 1 and words[0].lower().strip(".") in LEXICON.cues["honorific"]:
        words.pop(0)
    return fold(" ".join(words)).replace("’", "'")


def looks_like_person(title: str) -> bool:
    """Whether a title has the shape of a person's name.

    Two to four words, with a first name or without ordinary words, and without a suffix of another type.
    Words in capitals or with an inner capital rule it out (Azure AI, GitHub Copilot), except as in McKay or
    O'Hara.
    """
    cues, words = LEXICON.cues, tuple(title.lower().split())
    if not title.isupper() and _UNLIKE_PERSON.search(title):
        return False
    if not 2 <= len(words) <= 4 or any(c.isdigit() for w in words for c in w):
        return False
    phrase, last = " ".join(words), words[-1].split("-")[-1]
    if phrase in cues["place"] or phrase in cues["place_phrase"]:
        return False
    suffixed = any(last in cues[s] for s in ("org_suffix", "loc_suffix", "event_suffix", "work_suffix"))
    if words[0] in cues["first_name"]:
        doubtful = words[0] in cues["place"] or words[0] in LEXICON.ordinary
        inner = any(w in ("of", "for", "and", "&", "the") for w in words)
        return not inner and not (suffixed and doubtful)
    if suffixed or any(w in cues["place"] for w in words):
        return False
    return all(not LEXICON.is_ordinary(w) or w in cues["particle"] for w in words)


def _drop_parts(names: Iterable[Name], spans: list[tuple[int, int]], longs: set[tuple[str, int]]) -> None:
    """Drop mentions that are parts of a long form.

    spans: (end, start) of long forms, sorted; longs: (key, end) of their names.
    """
    min_starts = list(accumulate((start for _, start in reversed(spans)), min))[::-1]
    for name in names:
        kept: dict[tuple[int, int], Mention] = {}
        for m in name.mentions:
            if (name.key, m.end) in longs:
                kept.setdefault((-1, m.end), m)  # The run and the definition are one mention.
                continue
            i = bisect_left(spans, (m.end, -1))
            if i == len(spans) or min_starts[i] > m.start:
                kept[m.start, m.end] = m
        name.mentions = list(kept.values())


def _resolve(names: dict[str, Name]) -> dict[str, Name]:
    """Merge short names into the only full name that begins or ends with them.

    Ambiguous short names are dropped, and so are first names that are mentioned once and match no full name.
    """
    cues = LEXICON.cues
    # Full names by first and last word. For names other than persons, only ordinary words (Institute, not
    # Stanford).
    full_names: dict[str, list[Name]] = defaultdict(list)
    for name in names.values():
        if len(name.words) < 2 or not name.mentions or name.short_for or _without_middle(name, names):
            continue
        person = name.person or looks_like_person(name.title)
        for word in dict.fromkeys((name.words[0], name.words[-1])):
            if person or word in LEXICON.ordinary:
                full_names[word].append(name)
    out: dict[str, Name] = {}
    for name in names.values():
        target: Name | None = _without_middle(name, names) or name
        if target is name and len(name.words) == 1 and not name.quoted:
            word = name.words[0]
            fitting = full_names.get(word, [])
            if all(m.run is not None and m.run.before in _LOCATIVE for m in name.mentions):
                fitting = []  # It is a place, not a person.
            if len(fitting) == 1 or (fitting and name.speaker):
                target = max(fitting, key=lambda n: len(n.mentions))
            elif fitting:
                target = None
            elif len(name.mentions) < 2 and word in cues["first_name"] and word not in cues["place"]:
                known = name.speaker or name.person
                known = known or any(m.run and m.run.after in cues["honorific"] for m in name.mentions)
                target = name if known else None
        if target is None:
            continue
        if target is not name:
            target.mentions.extend(name.mentions)
            target.person = target.person or name.person
            target.speaker = target.speaker or name.speaker
        out.setdefault(target.key, target)
    return {key: name for key, name in out.items() if name.mentions}


def _without_middle(name: Name, names: dict[str, Name]) -> Name | None:
    """Return the person in the chunk with the same first and last name (Orla Quist for Orla Maria Quist)."""
    if len(name.words) < 3 or name.quoted:
        return None
    plain = names.get(f"{name.words[0]} {name.words[-1]}".upper())
    return plain if plain and plain.mentions and looks_like_person(plain.title) else None


MAX_TITLE_WORDS = 9
MAX_TITLE_CHARS = 90

_CURLY = re.compile(r"“([^“”\n]{1,90})”")
_STRAIGHT = re.compile(r"\"")
_YEAR = re.compile(r"[,;]?[\"”]?\s?\((?:1[5-9]|20)\d\d")
_LAST_WORDS = re.compile(r"([^\W\d_]+)\W{0,2}(?:\s([^\W\d_]+)\W{0,2})?$")
_NEXT_WORDS = re.compile(r"\W{0,3}([^\W\d_]+)(?:\s([^\W\d_]+))?(?:\s([^\W\d_]+))?")
_BRACKET = re.compile(r"(?:(?<!\s)\s++)?\([^()]*\)$")
_GOES_ON = r"[\"”]?\s?(?:\(|,|(?:is|was|are|were|or|may|refers|has)\b)"
MAX_WORDS = 9  # Longer runs are headings or lists without commas.

_ADDRESS = re.compile(
    r"\b(?:https?://|www\.)\S+|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+|(?<!\w)[@#]\w+"
)
_SPACED_HYPHEN = re.compile(r"(?<=\w)- (?=\w)")
_LOWER = re.compile(r"(?<![^\W_])[a-zß-ÿ]+(?![^\W_])")
_LOWER_STRETCH = re.compile(r"(?<![a-zß-ÿ'’&-])[a-zß-ÿ'’&-]+(?: [a-zß-ÿ'’&-]+)+")
_FIELD = re.compile(r"(?:ing|ics|ions?|ology|ment|ence|ance|ists?|ism|ity|ry|ies|hip|hood|s)$")
_ADJECTIVE = re.compile(r"(?:ian|ean|esque|ese|ist)$")
_SUBJECT_OF = frozenset("is was has had will did does would could can and or".split())  # noqa: SIM905
_INDEFINITE = ("a", "an", "every", "each", "another")


@dataclass(slots=True)
class Candidate:
    """Runs with the same title. mid: number of runs with a capital that is evidence by itself."""

    title: str
    runs: list[CapitalRun]
    mid: int = 0

    @property
    def words(self) -> list[Word]:
        return self.runs[0].words

    @property
    def person(self) -> bool:
        return any(r.person for r in self.runs)


def find_candidates(text: str, sentences: list[Sentence]) -> list[Candidate]:
    """Return the accepted candidates of a chunk, in order of first mention."""
    runs: list[CapitalRun] = []
    visible = _ADDRESS.sub(lambda m: "|" * len(m.group()), text)
    headings = heading_runs(visible, sentences)
    for index, sentence in enumerate(sentences):
        quoted = quoted_titles(visible, sentence, index) if "“" in visible or '"' in visible else []
        if index < 2 and headings:
            headed = [h for h in headings if h.sentence == index]
            quoted = headed + [q for q in quoted if not any(h.start <= q.start < h.end for h in headed)]
            quoted.sort(key=lambda r: r.start)
        starts, ends = [q.start for q in quoted], [q.end for q in quoted]
        for run in runs_of(visible, index, words_of(visible, sentence)):
            before = bisect_right(starts, run.end - 1)  # Titles begin before the run ends.
            if not before or ends[before - 1] <= run.start:
                runs.extend(trim(run))
        runs.extend(quoted)
    candidates: dict[str, Candidate] = {}
    for run in (r for r in runs if len(r.words) <= MAX_WORDS):
        first = run.words[0]
        # A single word after an indefinite article and not before a noun is a kind of thing: a Vlogger.
        is_kind = run.before in _INDEFINITE and len(run.words) == 1 and run.after not in LEXICON.nouns
        is_kind = is_kind and first.text[0].isupper() and first.text[1:].islower()
        _put(text, candidates, run, run.person or not (first.initial or is_kind))
    # A run that the edge of the chunk may have cut counts only if it occurs elsewhere.
    for key, candidate in list(candidates.items()):
        run = candidate.runs[0]
        cut = run.end == len(text) or (run.start == 0 and run.words[0].text.isupper())
        if len(candidate.runs) == 1 and cut:
            del candidates[key]
    _divide(text, candidates)

    lower_words = frozenset(_LOWER.findall(text))

    @cache
    def lower_phrases(size: int) -> Counter[str]:
        stretches = (s.split(" ") for s in _LOWER_STRETCH.findall(text))
        return Counter(" ".join(s[i : i + size]) for s in stretches for i in range(len(s) - size + 1))

    return [c for c in candidates.values() if _accepted(c, lower_words, lower_phrases)]


def title_of(text: str, words: Iterable[Word]) -> str:
    """Return the title of a run, with whitespace folded (also after hyphens) and straight apostrophes."""
    listed = list(words)
    written = fold(text[listed[0].start : listed[-1].end]).replace("’", "'")
    return _SPACED_HYPHEN.sub("-", written)


def _put(text: str, candidates: dict[str, Candidate], run: CapitalRun, mid: bool = True) -> None:
    title = title_of(text, run.words)
    candidate = candidates.setdefault(title.upper(), Candidate(title, []))
    candidate.runs.append(run)
    candidate.mid += mid


def quoted_titles(text: str, sentence: Sentence, index: int) -> list[CapitalRun]:
    """Find titles in quotation marks.

    A title has several words with capitalised content words, follows a noun for works (the song “Avant de
    dire adieu”), or is a single word before a year or next to other titles.
    """
    cues = LEXICON.cues
    runs: list[CapitalRun] = []
    alone: list[CapitalRun] = []
    spans = [m.span(1) for m in _CURLY.finditer(text, sentence.start, sentence.end)]
    marks = [m.start() for m in _STRAIGHT.finditer(text, sentence.start, sentence.end)]
    for opening, closing in zip(marks[::2], marks[1::2], strict=False):
        if 1 < closing - opening <= MAX_TITLE_CHARS and "\n" not in text[opening:closing]:
            spans.append((opening + 1, closing))
    for opened, end in spans:
        start = min(end - len(text[opened:end].lstrip()), end - 1)
        inner = text[start:end].rstrip(" ,.;")
        words = words_of(text, Sentence(start, start + len(inner)))
        if not words or len(words) > MAX_TITLE_WORDS or not (inner[0].isupper() or inner[0].isdigit()):
            continue
        if any(c in inner[:-1] for c in "!?") or ". " in inner or text[end + 1 : end + 2] in ("", "\n"):
            continue
        run = _whole(text, words, index)
        if run is None:
            continue
        content = [w for w in words if w.lower not in cues["small"]]
        capital = all(w.text[0].isupper() or w.text.isdigit() for w in content)
        before = _LAST_WORDS.search(text, max(0, start - 40), start)
        # called: a noun for works or a verb of naming precedes the opening mark.
        called = before is not None and "," not in text[before.end(2 if before[2] else 1) : start]
        word = (before[2] or before[1]).lower() if before else ""
        # Direct speech has a comma at a mark and a verb of saying next to it.
        beside = [w.lower() for m in (before, _NEXT_WORDS.match(text, end)) if m for w in m.groups() if w]
        comma = text[max(0, start - 4) : start].rstrip(' "“').endswith((",", ":"))
        comma = comma or text[start:end].rstrip().endswith(",")
        if called and (word in cues["before_work"] or word in cues["work_noun"]):
            runs.append(run)
        elif not capital or (comma and any(w in cues["say"] for w in beside)):
            continue
        elif len(content) > 1 or _YEAR.match(text, end):
            runs.append(run)
        elif content:
            alone.append(run)
    return sorted(runs + alone, key=lambda r: r.start) if runs else []


def heading_runs(text: str, sentences: list[Sentence]) -> list[CapitalRun]:
    """Find the subject of a text that repeats its heading at the start of the first sentence.

    A page titled In the Room begins: In the Room may refer to … Brackets, and everything after a comma in
    the heading, are ignored.
    """
    if len(sentences) < 2 or "\n" not in text[sentences[0].end : sentences[1].start]:
        return []
    first, second = sentences[0], sentences[1]
    heading = _BRACKET.sub("", text[first.start : first.end])
    if len(heading) > MAX_TITLE_CHARS or not (heading[:1].isupper() or heading[:1].isdigit()):
        return []
    below = text[second.start : second.end].lstrip('"“ ')
    body = second.end - len(below)
    for subject in dict.fromkeys((heading, heading.partition(",")[0])):
        parts = subject.split("-")
        if not below.startswith((parts[0], f"The {parts[0]}")):
            continue
        # The sentence may have whitespace after hyphens where the heading has none.
        written = r"-\s?".join(map(re.escape, parts))
        match = re.match(rf"(?:The )?({written}){_GOES_ON}", below)
        if match is None:
            continue
        spans = [
            (first.start, first.start + len(subject), 0),
            (body + match.start(1), body + match.end(1), 1),
        ]
        runs = [_whole(text, words_of(text, Sentence(a, b)), index) for a, b, index in spans]
        return [replace(run, defined=True) for run in runs if run and len(run.words) <= MAX_TITLE_WORDS]
    return []


def _whole(text: str, words: list[Word], index: int) -> CapitalRun | None:
    """Return all words as one untrimmed run, or None if it contains an unclosed bracket."""
    if not words:
        return None
    start, end = words[0].start, words[-1].end
    if text.count("(", start, end) > text.count(")", start, end):
        if text[end : end + 1] != ")":
            return None
        end += 1  # Song (You Lied)
    kept = [Word(w.text, w.lower, w.start, w.end, False, False) for w in words]
    kept[-1] = replace(kept[-1], end=end)
    return CapitalRun(kept, index, quoted=True)


def _divide(text: str, candidates: dict[str, Candidate]) -> None:
    """Split runs that consist of two adjacent names (In Tolverton Mara Venn said …).

    Then split a sentence opener (Building Microsoft) off a name that also occurs alone.
    """
    first_names = LEXICON.cues["first_name"]
    for key, candidate in list(candidates.items()):
        run = candidate.runs[0]
        if len(candidate.runs) > 1 or len(run.words) < 3 or run.quoted:
            continue
        for i in range(1, len(run.words)):
            head, tail = run.words[:i], run.words[i:]
            person = len(tail) > 1 and tail[0].lower in first_names and not LEXICON.is_ordinary(tail[1].lower)
            # An organisation followed by a person: Ostrey Publishing | Peter Quist.
            parted = person and head[-1].lower in LEXICON.cues["org_suffix"]
            parted = parted and head[0].lower not in first_names
            if title_of(text, head).upper() in candidates:
                alone = head[-1].lower not in first_names or tail[0].lower not in first_names
            else:
                alone = i == 1 and (run.opened or head[0].lower in LEXICON.cues["place"])
            if alone and len(tail) > 1 and tail[0].capital:
                parted = parted or person or title_of(text, tail).upper() in candidates
            if parted:
                del candidates[key]
                _put(text, candidates, replace(run, words=head, after=tail[0].lower))
                _put(text, candidates, replace(run, words=tail, before=head[-1].lower, before2=""))
                break
    for key, candidate in list(candidates.items()):
        run = candidate.runs[0]
        if candidate.mid or len(run.words) < 2 or len(candidate.runs) > 1:
            continue
        if run.words[1].capital and LEXICON.is_ordinary(run.words[0].lower):
            rest = candidates.get(title_of(text, run.words[1:]).upper())
            if rest is not None and rest.mid:
                del candidates[key]
                _put(text, candidates, replace(run, words=run.words[1:]))


def _accepted(
    candidate: Candidate, lower_words: frozenset[str], lower_phrases: Callable[[int], Counter[str]]
) -> bool:
    """Whether a candidate is a name. lower_words, lower_phrases: lower-case text of the chunk."""
    words, run, cues = candidate.words, candidate.runs[0], LEXICON.cues
    word, lower = words[0], words[0].lower
    ordinary = all(LEXICON.is_ordinary(w.lower) for w in words)
    if any(r.quoted for r in candidate.runs):
        return True
    if len(words) > 1:
        if not ordinary:
            return True
        if not candidate.mid and LEXICON.is_leading(lower):
            return False
        return lower_phrases(len(words))[" ".join(w.lower for w in words)] <= candidate.mid
    if word.text.isupper() and lower in cues["place"]:
        return True  # US
    if is_empty(lower):
        return False
    if word.text.isupper():
        return not ordinary and lower not in lower_words
    if candidate.person:
        return True
    if lower in lower_words:
        return False
    if _ADJECTIVE.search(lower) and LEXICON.is_ordinary(run.after):
        return lower in cues["first_name"]
    if ordinary:
        if candidate.mid >= 2 or (candidate.mid and lower in cues["first_name"]):
            return True
        return bool(candidate.mid) and run.before in cues["before_name"] and not _FIELD.search(lower)
    # A word that only starts sentences is a name if it recurs, is known as one, is possessive, or is the
    # subject of a verb that names take.
    return bool(candidate.mid) or (
        word.initial
        and (
            len(candidate.runs) > 1
            or lower in cues["first_name"]
            or lower in cues["place"]
            or word.possessive
            or run.after in cues["say"]
            or run.after in _SUBJECT_OF
        )
    )
