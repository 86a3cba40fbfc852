"""Titles: what stands in quotation marks, and headings that the text below them begins with.

Both are names whatever the casing of their words (Where the River Bends, One Sunday Afternoon).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from graphrag_ray.offline.capital_runs import CapitalRun
from graphrag_ray.offline.lexicon import Lexicon
from graphrag_ray.offline.sentence_words import Word, words_of
from graphrag_ray.offline.sentences import Sentence

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
