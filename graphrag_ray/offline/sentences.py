"""Split text into speaker turns and sentences that can be quoted verbatim."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from graphrag_ray.corpus.boundaries import CLOSERS, FULL_WIDTH, STOPS
from graphrag_ray.corpus.document_dates import is_month
from graphrag_ray.offline.lexicon import LEXICON

SHORT_LINE = 45
"""A shorter line before one that begins with a capital is a heading or signature, not wrapped text."""
MAX_HEADING = 90
MAX_ACRONYM = 4
_LINE = re.compile(r"[^\n]+")
_MARKUP = re.compile(
    r"[ \t]*(?:#{1,6}[ \t]+|[-*•>+][ \t]+(?:\[[ xX]\][ \t]+)?|\d{1,3}[.)][ \t]+|\|[ \t]*)?[*_]{0,3}"
)
_LABEL = re.compile(
    r"[ \t]*[*_]{0,2}(?P<name>[^\W\d_][\w.'’&-]*(?:[ \t]+[^\W\d_][\w.'’&-]*){0,4})[*_]{0,2}"
    r"[ \t]*(?:\([^()\n]{1,30}\)[ \t]*)?:[*_]{0,2}(?=[ \t]|$)"
)
_CAPITALS = "A-ZÀ-ÞΆ-ΩЀ-Я\u0531-\u0556" + "".join(c for c in map(chr, range(0x100, 0x250)) if c.isupper())
# These are letters of scripts without capitals.
_NO_CASE = "\u0590-\u109f\u1200-\u137f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_PARENTHESES = re.compile(r"\([^()]*\)")
_CLOSING = re.escape(CLOSERS)
_BOUNDARY = re.compile(
    rf"[{FULL_WIDTH}]{{1,8}}[{_CLOSING}]*\s*"
    rf"|[{STOPS}]{{1,8}}[{_CLOSING}*_]*\s+(?=[\"“‘'«(\[*_–—-]*\s?[{_CAPITALS}0-9{_NO_CASE}])"
)
_WORD_BEFORE = re.compile(r"([^\W_](?:[\w.&'’-]*[^\W_])?)$")
_OUTER = "".join(c for c in map(chr, range(0x3001)) if c.isspace()) + "*_|"
"""White space and Markdown marks around a sentence."""
_FIRST_WORD = re.compile(r"[^\W\d_]{2,}")
_HEADING_WORD = re.compile(r"[^\W\d_][^\W_]{3,}|[A-Z]+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence text[start:end] without its speaker label."""

    start: int
    end: int
    turn: int = -1  # Number of the speaker turn, or -1 if the speaker is unknown.
    label_start: int = -1  # Start of the label for the first sentence of a turn, otherwise `start`.
    whole: bool = True  # False for a fragment at an edge of the chunk.


@dataclass(frozen=True, slots=True)
class SpeakerTurn:
    """A speaker turn. start, end: position of the name in the label."""

    speaker: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Script:
    sentences: list[Sentence]
    turns: list[SpeakerTurn]


def is_opening(character: str) -> bool:
    """Whether a sentence may begin with this letter: a capital, or a letter of a script without capitals."""
    return character.isalpha() and not character.islower()


def fold(text: str) -> str:
    """Collapse whitespace, as in quotations."""
    return " ".join(text.split())


def has_cells(sentence: str) -> bool:
    """Whether text is a Markdown table row or a list of names: it contains a bar outside parentheses."""
    return " | " in sentence and " | " in _PARENTHESES.sub("", sentence)


def split_sentences(text: str) -> list[str]:
    """Split running text without turns into sentences, with whitespace collapsed."""
    return [s for s in (fold(text[a:b]) for a, b in _boundaries(text, 0, len(text))) if s]


def read_script(text: str) -> Script:
    """Split a chunk into sentences and, where lines begin with `NAME:`, into turns.

    A label in capitals always marks a speaker. A label in mixed case does if it recurs or begins with a first
    name or honorific. Blank lines, headings, list items and labels end a sentence. A single line break does
    only after a complete line.
    """
    blocks = _blocks(text)
    labels = [_label(text, a, b) for a, b in blocks]
    following: dict[str, set[str]] = defaultdict(set)
    for name, _, _, speech in filter(None, labels):
        following[name].update(text[speech : speech + 40].split()[:1])
    sentences: list[Sentence] = []
    turns: list[SpeakerTurn] = []
    for (start, end), label in zip(blocks, labels, strict=True):
        body, label_start = start, -1
        if label and (
            # A short word in capitals may be part of a title (CSI: Miami).
            (label[0].isupper() and (len(label[0]) > MAX_ACRONYM or len(following[label[0]]) > 1))
            or len(following[label[0]]) > 1
            or _is_person(label[0])
        ):
            turns.append(SpeakerTurn(label[0], label[1], label[2]))
            body, label_start = label[3], start
        for a, b in _boundaries(text, body, end):
            sentences.append(Sentence(a, b, len(turns) - 1, label_start if label_start >= 0 else a))
            label_start = -1
    # The edges of the chunk may cut the first and last sentence.
    if sentences and not is_opening(text[sentences[0].start]):
        sentences[0] = replace(sentences[0], whole=False)
    if sentences and text[: sentences[-1].end].rstrip(f"{CLOSERS}*_ ")[-1:] not in f"{STOPS}:":
        sentences[-1] = replace(sentences[-1], whole=False)
    return Script(sentences, turns)


def _blocks(text: str) -> list[tuple[int, int]]:
    """Return blocks that no sentence crosses, without leading markup."""
    blocks: list[tuple[int, int]] = []
    open_start, open_end = -1, -1
    last_start, last_line_end = 0, -2
    for match in _LINE.finditer(text):
        line = match.group()
        if not line.strip():
            continue
        markup = _MARKUP.match(line)
        skip = markup.end() if markup else 0
        blank_between = match.start() > last_line_end + 1
        fresh = (
            open_start < 0
            or blank_between
            or skip > len(line) - len(line.lstrip())
            or text[open_end - 1] in '.!?…:”"]|*'
            or (last_line_end - last_start < SHORT_LINE and line.lstrip()[:1].isupper())
            or _is_heading(line)
            or (open_end - open_start < MAX_HEADING and _is_heading(text[open_start:open_end]))
            or _LABEL.match(line) is not None
        )
        if fresh:
            if open_start >= 0:
                blocks.append((open_start, open_end))
            open_start = match.start() + skip
        open_end = match.start() + len(line.rstrip())
        last_start, last_line_end = match.start(), match.end()
    if open_start >= 0:
        blocks.append((open_start, open_end))
    return [(a, b) for a, b in blocks if a < b]


def _is_heading(line: str) -> bool:
    """Whether a line is a running head or page number: a short line in title case, or digits."""
    if len(line) > MAX_HEADING or line.rstrip()[-1:] in ".!?,;":
        return False
    words = _HEADING_WORD.findall(line)
    if not words:
        return len(line) < 8
    return 2 < len(words) < 13 and all(w[0].isupper() for w in words)


def _label(text: str, start: int, end: int) -> tuple[str, int, int, int] | None:
    """Return (name, its start, its end, start of the speech) if a block starts with a speaker label."""
    match = _LABEL.match(text, start, end)
    if not match:
        return None
    name = match.group("name")
    words = name.split()
    capital = all(w[0].isupper() or (i and len(w) <= 3) for i, w in enumerate(words))
    if not capital or any(c.isdigit() for c in name):
        return None
    lower = [w.lower().strip(".") for w in words]
    cues = LEXICON.cues
    named = any(w in cues["first_name"] for w in lower[:2])
    if not named and all(LEXICON.is_ordinary(w) or w in cues["not_name"] or w in cues["role"] for w in lower):
        return None
    return fold(name), match.start("name"), match.end("name"), match.end()


def without_label(sentence: str) -> str:
    """Remove the speaker label from a sentence: a word in capitals (OPERATOR), or the name of a person."""
    match = _LABEL.match(sentence)
    if match is None:
        return sentence
    name = match.group("name")
    in_capitals = name.isupper() and len(name) > MAX_ACRONYM
    if not in_capitals and not (_label(sentence, 0, len(sentence)) and _is_person(name)):
        return sentence
    return sentence[match.end() :].strip()


def _is_person(label: str) -> bool:
    words = label.lower().split()
    titled = words[0].strip(".") in LEXICON.cues["strict_honorific"]
    return len(words) > 1 and (titled or words[0] in LEXICON.cues["first_name"])


def _boundaries(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for match in _BOUNDARY.finditer(text, start, end):
        if text[match.start()] != "." or not _is_abbreviation(text, start, match.start(), match.end()):
            spans.append((start, match.start() + len(match.group().rstrip())))
            start = match.end()
    sentences = []
    for first, last in [*spans, (start, end)]:
        span = text[first:last]
        if inside := span.strip(_OUTER):
            begin = first + len(span) - len(span.lstrip(_OUTER))
            sentences.append((begin, begin + len(inside)))
    return sentences


def _is_abbreviation(text: str, start: int, dot: int, following: int) -> bool:
    """Whether the full stop at `dot` belongs to the word before it.

    Dr., J., U.S., Inc. before a name, d. before a year.
    """
    match = _WORD_BEFORE.search(text, max(start, dot - 12), dot)
    if not match:
        return False
    cues, word = LEXICON.cues, match.group(1)
    lower = word.lower()
    if len(word) == 1 and word.islower():  # (d. 1803), p. 7
        return text[following : following + 1].isdigit()
    if word.isdecimal() and len(word) < 3:  # 30. Juni
        month = _FIRST_WORD.match(text, following)
        return month is not None and is_month(month.group().casefold())
    if len(word) > 1:
        if lower in cues["never_last"]:
            return True
        short = "." in word and len(word) <= 5
        fits = lower not in ("a.m", "p.m") if short else lower in cues["abbreviation"]
        return fits and not text[following : following + 1].isupper()
    # A capital letter is an initial (J. Marlowe), unless it belongs to a noun (Series S, Plan B, X|S) or the
    # next word cannot begin a name.
    letter = dot - 1
    if not word.isupper() or word == "I":
        return False
    if letter > start and not (text[letter - 1].isspace() or text[letter - 1] in ".-(\"“‘'"):
        return False
    before = _WORD_BEFORE.search(text, max(start, letter - 24), letter - 1 if letter > start else letter)
    if before is not None and text[before.end() : letter] == " ":
        kind = before.group(1).lower()
        name_sections = (cues["first_name"], cues["role"], cues["honorific"])
        if kind in LEXICON.nouns and not any(kind in section for section in name_sections):
            return False
    after = _FIRST_WORD.match(text, following)
    return after is None or after.group().lower() not in LEXICON.function
