"""Which capitalised runs of a chunk are names.

Document-centred casing (Mikheev, "Periods, capitalized words, etc.", Computational Linguistics 2002):
a capital in mid-sentence is evidence, a capital at the start of a sentence needs evidence elsewhere in
the chunk or a word that is not an ordinary one. Runs that hold two names are divided where both are seen
alone elsewhere, the reasoning behind the nested term of C-value (mentions.py).

Titles: what stands in quotation marks, and headings that the text below them begins with.

Both are names whatever the casing of their words (Where the River Bends, One Sunday Afternoon).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from graphrag_ray.offline.capital_runs import CapitalRun, Word, is_empty, runs_of, trim, words_of
from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentences import Sentence, fold

MAX_TITLE_WORDS = 9
MAX_TITLE_CHARS = 90

_CURLY = re.compile(r"“([^“”\n]{1,90})”")
_STRAIGHT = re.compile(r"\"")
_YEAR = re.compile(r"[,;]?[\"”]?\s?\((?:1[5-9]|20)\d\d")
_LAST_WORDS = re.compile(r"([^\W\d_]+)\W{0,2}(?:\s([^\W\d_]+)\W{0,2})?$")
_NEXT_WORDS = re.compile(r"\W{0,3}([^\W\d_]+)(?:\s([^\W\d_]+))?(?:\s([^\W\d_]+))?")
_BRACKET = re.compile(r"(?:(?<!\s)\s++)?\([^()]*\)$")
_GOES_ON = re.compile(r"[\"”]?\s?(?:\(|,|(?:is|was|are|were|or|may|refers|has)\b)")


def quoted_titles(text: str, sentence: Sentence, index: int, lexicon: Lexicon) -> list[CapitalRun]:
    """Titles in quotation marks: several words, the content words capitalised; any words, and one alone,
    behind a noun for works (the song “Avant de dire adieu”); one before a year or beside other titles."""
    runs: list[CapitalRun] = []
    alone: list[CapitalRun] = []
    for start, end in _quotations(text, sentence):
        inner = text[start:end].rstrip(" ,.;")
        words = words_of(text, Sentence(start, start + len(inner)), lexicon)
        if not words or len(words) > MAX_TITLE_WORDS or not (inner[0].isupper() or inner[0].isdigit()):
            continue
        if any(c in inner[:-1] for c in "!?") or ". " in inner or text[end + 1 : end + 2] in ("", "\n"):
            continue
        run = _whole(text, words, index)
        if run is None:
            continue
        content = [w for w in words if w.lower not in lexicon.cues["small"]]
        capital = all(w.text[0].isupper() or w.text.isdigit() for w in content)
        if _is_called(text, start, lexicon):
            runs.append(run)
        elif _is_spoken(text, start, end, inner, lexicon) or not capital:
            continue
        elif len(content) > 1 or _YEAR.match(text, end):
            runs.append(run)
        elif content:
            alone.append(run)
    return sorted(runs + alone, key=lambda r: r.start) if runs else []


def heading_runs(text: str, sentences: list[Sentence], lexicon: Lexicon) -> list[CapitalRun]:
    """The subject of a text, where its first line is a heading that the sentence below begins with
    (a page titled In the Room begins: In the Room may refer to …). It is looked for in both, without
    what stands in brackets or behind a comma of the heading."""
    if len(sentences) < 2 or "\n" not in text[sentences[0].end : sentences[1].start]:
        return []
    first, second = sentences[0], sentences[1]
    heading = _BRACKET.sub("", text[first.start : first.end])
    if len(heading) > MAX_TITLE_CHARS or not (heading[:1].isupper() or heading[:1].isdigit()):
        return []
    below = text[second.start : second.end].lstrip('"“ ')
    at = second.end - len(below)
    for subject in dict.fromkeys((heading, heading.partition(",")[0])):
        found = _begins_with(below, subject)
        if found is None:
            continue
        spans = [(first.start, first.start + len(subject), 0), (at + found[0], at + found[1], 1)]
        runs = [_whole(text, words_of(text, Sentence(a, b), lexicon), index) for a, b, index in spans]
        return [replace(run, defined=True) for run in runs if run and len(run.words) <= MAX_TITLE_WORDS]
    return []


def _begins_with(text: str, subject: str) -> tuple[int, int] | None:
    """Where the subject stands at the beginning of a sentence that says something of it. A white space that
    the heading lacks may stand behind its hyphens."""
    for start in (4, 0) if text.startswith("The ") else (0,):
        ends = [start]
        for number, part in enumerate(subject.split("-")):
            if number:
                ends = [e + 1 for e in ends if text.startswith("-", e)]
                ends = [e + space for e in ends for space in ((1, 0) if text[e : e + 1].isspace() else (0,))]
            ends = [e + len(part) for e in dict.fromkeys(ends) if text.startswith(part, e)]
        for end in ends:
            if _GOES_ON.match(text, end):
                return start, end
    return None


def _quotations(text: str, sentence: Sentence) -> Iterator[tuple[int, int]]:
    """(start, end) of what stands in marks; straight ones are taken in pairs."""
    for match in _CURLY.finditer(text, sentence.start, sentence.end):
        yield _stripped(text, match.start(1), match.end(1))
    marks = [m.start() for m in _STRAIGHT.finditer(text, sentence.start, sentence.end)]
    for opening, closing in zip(marks[::2], marks[1::2], strict=False):
        if 1 < closing - opening <= MAX_TITLE_CHARS and "\n" not in text[opening:closing]:
            yield _stripped(text, opening + 1, closing)


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end - 1 and text[start].isspace():
        start += 1
    return start, end


def _is_called(text: str, start: int, lexicon: Lexicon) -> bool:
    """Whether a noun for works or a verb of naming stands before the opening mark."""
    before = _LAST_WORDS.search(text, max(0, start - 40), start)
    if before is None or "," in text[before.end(2 if before[2] else 1) : start]:
        return False
    word = (before[2] or before[1]).lower()
    return word in lexicon.cues["before_work"] or word in lexicon.cues["work_noun"]


def _is_spoken(text: str, start: int, end: int, inner: str, lexicon: Lexicon) -> bool:
    """Whether somebody says it: a comma at a mark, and a verb of saying beside it."""
    opened = text[max(0, start - 4) : start].rstrip(' "“').endswith((",", ":"))
    if not opened and not text[start:end].rstrip().endswith(","):
        return False
    before = _LAST_WORDS.search(text, max(0, start - 40), start)
    after = _NEXT_WORDS.match(text, end)
    words = [w.lower() for m in (before, after) if m for w in m.groups() if w]
    return any(w in lexicon.cues["say"] for w in words)


def _whole(text: str, words: list[Word], index: int) -> CapitalRun | None:
    """All words as one run that is not trimmed; None where it opens a bracket that it does not close."""
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


MAX_WORDS = 9
"""A longer capitalised run is a heading or a list without commas."""

_ADDRESS = re.compile(
    r"\b(?:https?://|www\.)\S+|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+|(?<!\w)[@#]\w+"
)
_SPACED_HYPHEN = re.compile(r"(?<=\w)- (?=\w)")
_LOWER = re.compile(r"(?<![^\W_])[a-zß-ÿ]+(?![^\W_])")
_LOWER_STRETCH = re.compile(r"(?<![a-zß-ÿ'’&-])[a-zß-ÿ'’&-]+(?: [a-zß-ÿ'’&-]+)+")
_FIELD = re.compile(r"(?:ing|ics|ions?|ology|ment|ence|ance|ists?|ism|ity|ry|ies|hip|hood|s)$")
_ADJECTIVE = re.compile(r"(?:ian|ean|esque|ese|ist)$")
_SUBJECT_OF = frozenset(
    ["is", "was", "has", "had", "will", "did", "does", "would", "could", "can", "and", "or"]
)


@dataclass(slots=True)
class Candidate:
    """Runs with one title. `mid`: those whose casing is evidence by itself."""

    title: str
    runs: list[CapitalRun]
    mid: int = 0

    @property
    def words(self) -> list[Word]:
        return self.runs[0].words

    @property
    def person(self) -> bool:
        return any(r.person for r in self.runs)


def find_candidates(text: str, sentences: list[Sentence], lexicon: Lexicon) -> list[Candidate]:
    """The accepted candidates of a chunk, in order of first mention."""
    found = _gathered(text, _all_runs(text, sentences, lexicon), lexicon)
    _divide(text, found, lexicon)
    _unglue(text, found, lexicon)
    in_lower = _LowerCase(text)
    return [c for c in found.values() if _accepted(c, in_lower, lexicon)]


class _LowerCase:
    """How often a text writes words and phrases in lower case."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.words = frozenset(_LOWER.findall(text))
        self._phrases: dict[int, Counter[str]] = {}

    def count(self, words: list[Word]) -> int:
        size = len(words)
        if size not in self._phrases:
            stretches = (s.split(" ") for s in _LOWER_STRETCH.findall(self._text))
            self._phrases[size] = Counter(
                " ".join(s[i : i + size]) for s in stretches for i in range(len(s) - size + 1)
            )
        return self._phrases[size][" ".join(w.lower for w in words)]


def title_of(text: str, words: Iterable[Word]) -> str:
    """A run as written, white space folded, also behind a hyphen, and apostrophes straight."""
    listed = list(words)
    written = fold(text[listed[0].start : listed[-1].end]).replace("’", "'")
    return _SPACED_HYPHEN.sub("-", written)


def _all_runs(text: str, sentences: list[Sentence], lexicon: Lexicon) -> list[CapitalRun]:
    found: list[CapitalRun] = []
    text = _ADDRESS.sub(lambda m: "|" * len(m.group()), text)
    with_quotes = "“" in text or '"' in text
    headings = heading_runs(text, sentences, lexicon)
    for index, sentence in enumerate(sentences):
        quoted = quoted_titles(text, sentence, index, lexicon) if with_quotes else []
        if index < 2 and headings:
            own = [h for h in headings if h.sentence == index]
            quoted = own + [q for q in quoted if not any(h.start <= q.start < h.end for h in own)]
            quoted.sort(key=lambda r: r.start)
        starts, ends = [q.start for q in quoted], [q.end for q in quoted]
        words = words_of(text, sentence, lexicon)
        for run in runs_of(text, index, words, lexicon):
            before = bisect_right(starts, run.end - 1)  # titles begin before the run ends
            if not before or ends[before - 1] <= run.start:
                found.extend(trim(run, lexicon))
        found.extend(quoted)
    return [r for r in found if len(r.words) <= MAX_WORDS]


def _gathered(text: str, runs: Iterable[CapitalRun], lexicon: Lexicon) -> dict[str, Candidate]:
    """Runs by upper-case title. One that an edge of the chunk may have cut (MARA VE at the end, OTT at
    the start) counts only where the same is seen elsewhere."""
    found: dict[str, Candidate] = {}
    for run in runs:
        title = title_of(text, run.words)
        candidate = found.setdefault(title.upper(), Candidate(title, []))
        candidate.runs.append(run)
        candidate.mid += run.person or (not run.words[0].initial and not _is_kind(run, lexicon))
    for key, candidate in list(found.items()):
        run = candidate.runs[0]
        if len(candidate.runs) == 1 and (
            run.end == len(text) or (run.start == 0 and run.words[0].text.isupper())
        ):
            del found[key]
    return found


def _is_kind(run: CapitalRun, lexicon: Lexicon) -> bool:
    """One word behind an indefinite article, and no noun behind it: a kind of thing (a Vlogger, but not
    a Google engineer)."""
    indefinite = run.before in ("a", "an", "every", "each", "another")
    plain = len(run.words) == 1 and run.words[0].text[1:].islower() and run.words[0].text[0].isupper()
    return indefinite and plain and run.after not in lexicon.nouns


def _divide(text: str, found: dict[str, Candidate], lexicon: Lexicon) -> None:
    """Take apart a run that holds two names side by side (In Tolverton Mara Venn said …)."""
    for key, candidate in list(found.items()):
        run = candidate.runs[0]
        if len(candidate.runs) > 1 or len(run.words) < 3 or run.quoted:
            continue
        for at in range(1, len(run.words)):
            head, tail = run.words[:at], run.words[at:]
            if _person_behind(run.words, at, lexicon) or (
                _stands_alone(text, head, tail[0], run.opened, found, lexicon)
                and _is_full_name(text, tail, found, lexicon)
            ):
                del found[key]
                _put(text, found, replace(run, words=head, after=tail[0].lower))
                _put(text, found, replace(run, words=tail, before=head[-1].lower, before2=""))
                break


def _person_behind(words: list[Word], at: int, lexicon: Lexicon) -> bool:
    """Whether a body ends at word `at` and a person begins (Ostrey Publishing | Peter Quist)."""
    first_names = lexicon.cues["first_name"]
    return (
        len(words) - at >= 2
        and words[at - 1].lower in lexicon.cues["org_suffix"]
        and words[at].lower in first_names
        and words[0].lower not in first_names
        and not lexicon.is_ordinary(words[at + 1].lower)
    )


def _stands_alone(
    text: str, head: list[Word], following: Word, opened: bool, found: dict[str, Candidate], lexicon: Lexicon
) -> bool:
    if title_of(text, head).upper() in found:
        first_names = lexicon.cues["first_name"]
        return not (head[-1].lower in first_names and following.lower in first_names)
    return len(head) == 1 and (opened or head[0].lower in lexicon.cues["place"])


def _is_full_name(text: str, tail: list[Word], found: dict[str, Candidate], lexicon: Lexicon) -> bool:
    if len(tail) < 2 or not tail[0].capital:
        return False
    return title_of(text, tail).upper() in found or (
        tail[0].lower in lexicon.cues["first_name"] and not lexicon.is_ordinary(tail[1].lower)
    )


def _unglue(text: str, found: dict[str, Candidate], lexicon: Lexicon) -> None:
    """An opener glued to a name (Building Microsoft) is seen once; the name alone is seen elsewhere."""
    for key, candidate in list(found.items()):
        run = candidate.runs[0]
        if candidate.mid or len(run.words) < 2 or len(candidate.runs) > 1:
            continue
        if not run.words[1].capital or not lexicon.is_ordinary(run.words[0].lower):
            continue
        rest = found.get(title_of(text, run.words[1:]).upper())
        if rest is not None and rest.mid:
            del found[key]
            _put(text, found, replace(run, words=run.words[1:]))


def _put(text: str, found: dict[str, Candidate], run: CapitalRun) -> None:
    title = title_of(text, run.words)
    candidate = found.setdefault(title.upper(), Candidate(title, []))
    candidate.runs.append(run)
    candidate.mid += 1


def _accepted(candidate: Candidate, in_lower: _LowerCase, lexicon: Lexicon) -> bool:
    words = candidate.words
    if any(r.quoted for r in candidate.runs):
        return True
    if len(words) == 1:
        return _single_accepted(candidate, words[0], in_lower.words, lexicon)
    if not all(lexicon.is_ordinary(w.lower) for w in words):
        return True
    if not candidate.mid and lexicon.is_leading(words[0].lower):
        return False
    return in_lower.count(words) <= candidate.mid


def _single_accepted(candidate: Candidate, word: Word, lower_words: frozenset[str], lexicon: Lexicon) -> bool:
    run, lower = candidate.runs[0], word.lower
    if word.text.isupper() and lower in lexicon.cues["place"]:
        return True  # US
    if is_empty(lower, lexicon):
        return False
    ordinary = lexicon.is_ordinary(lower)
    if word.text.isupper():
        return not ordinary and lower not in lower_words
    if candidate.person:
        return True
    if lower in lower_words:
        return False
    if _ADJECTIVE.search(lower) and lexicon.is_ordinary(run.after):
        return lower in lexicon.cues["first_name"]
    if not ordinary:
        return bool(candidate.mid) or _acts(candidate, lexicon)
    if lower in lexicon.cues["first_name"] and candidate.mid:
        return True
    if candidate.mid >= 2:
        return True
    return bool(candidate.mid) and run.before in lexicon.cues["before_name"] and not _FIELD.search(lower)


def _acts(candidate: Candidate, lexicon: Lexicon) -> bool:
    """Whether a word seen at the start of sentences only is used there as a name: twice, known as one,
    owning something, or the subject of a verb that names take."""
    run = candidate.runs[0]
    lower = run.words[0].lower
    if not run.words[0].initial:
        return False
    return len(candidate.runs) > 1 or (
        lower in lexicon.cues["first_name"]
        or lower in lexicon.cues["place"]
        or run.words[0].possessive
        or run.after in lexicon.cues["say"]
        or run.after in _SUBJECT_OF
    )
