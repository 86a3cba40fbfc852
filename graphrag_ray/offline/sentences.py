"""Text into turns and sentences, each a stretch of the text that can be quoted as it stands."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from graphrag_ray.corpus.boundaries import CLOSERS, FULL_WIDTH, STOPS
from graphrag_ray.offline.lexicon import LEXICON

SHORT_LINE = 45
"""A shorter line before one that begins with a capital is a heading or a signature, not hard-wrapped text."""

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
_NO_CASE = "\u0590-\u109f\u1200-\u137f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
"""Letters of scripts without capitals."""
_PARENTHESES = re.compile(r"\([^()]*\)")
_CLOSING = re.escape(CLOSERS)
_BOUNDARY = re.compile(
    rf"[{FULL_WIDTH}]{{1,8}}[{_CLOSING}]*\s*"
    rf"|[{STOPS}]{{1,8}}[{_CLOSING}*_]*\s+(?=[\"“‘'«(\[*_–—-]*\s?[{_CAPITALS}0-9{_NO_CASE}])"
)
_WORD_BEFORE = re.compile(r"([^\W_](?:[\w.&'’-]*[^\W_])?)$")
_OUTER = "".join(c for c in map(chr, range(0x3001)) if c.isspace()) + "*_|"
"""What a sentence neither begins nor ends with: white space and marks of Markdown."""
_FIRST_WORD = re.compile(r"[^\W\d_]{2,}")
_HEADING_WORD = re.compile(r"[^\W\d_][^\W_]{3,}|[A-Z]+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A stretch text[start:end] without a speaker label. `turn` numbers the turns of a transcript, -1
    where nobody is known to speak; `label_start` is where the label before it begins, for the first
    sentence of a turn, else `start`. `whole` is False for a fragment at an edge of the chunk."""

    start: int
    end: int
    turn: int = -1
    label_start: int = -1
    whole: bool = True


@dataclass(frozen=True, slots=True)
class SpeakerTurn:
    """Somebody speaks. `start`, `end`: the label's name in the text."""

    speaker: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Script:
    sentences: list[Sentence]
    turns: list[SpeakerTurn]


def is_opening(character: str) -> bool:
    """Whether a sentence may begin with a letter: a capital, or one of a script that has none."""
    return character.isalpha() and not character.islower()


def fold(text: str) -> str:
    """White space folded: how a quoted sentence is written, and how it is compared with its source."""
    return " ".join(text.split())


def has_cells(sentence: str) -> bool:
    """Whether it is a row of a Markdown table, or names beside one another: a stroke stands by itself, and
    not within parentheses, as in P(A | B)."""
    return " | " in sentence and " | " in _PARENTHESES.sub("", sentence)


def split_sentences(text: str) -> list[str]:
    """The sentences of running text, white space folded, for text without turns."""
    return [s for s in (fold(text[a:b]) for a, b in _boundaries(text, 0, len(text))) if s]


def read_script(text: str) -> Script:
    """Cut a chunk into sentences and, where lines begin with `NAME:`, into turns.

    A label in capitals counts as a speaker at once, one in mixed case when it comes twice or begins
    with a first name or an honorific. A blank line, a heading, a list item and a label end a sentence; a
    single line break does where the line before it ends one.
    """
    blocks = _blocks(text)
    labels = [_label(text, a, b) for a, b in blocks]
    following: dict[str, set[str]] = defaultdict(set)
    for label in filter(None, labels):
        following[label[0]].update(text[label[3] : label[3] + 40].split()[:1])
    sentences: list[Sentence] = []
    turns: list[SpeakerTurn] = []
    for (start, end), found in zip(blocks, labels, strict=True):
        body, label_start = start, -1
        if found and (
            # One short word in capitals may be part of a title (CSI: Miami).
            (found[0].isupper() and (len(found[0]) > MAX_ACRONYM or len(following[found[0]]) > 1))
            or len(following[found[0]]) > 1
            or _is_person(found[0])
        ):
            turns.append(SpeakerTurn(found[0], found[1], found[2]))
            body, label_start = found[3], start
        for a, b in _boundaries(text, body, end):
            sentences.append(Sentence(a, b, len(turns) - 1, label_start if label_start >= 0 else a))
            label_start = -1
    # The first and the last sentence may be cut by the edge of the chunk.
    if sentences and not is_opening(text[sentences[0].start]):
        sentences[0] = replace(sentences[0], whole=False)
    if sentences and text[: sentences[-1].end].rstrip(f"{CLOSERS}*_ ")[-1:] not in f"{STOPS}:":
        sentences[-1] = replace(sentences[-1], whole=False)
    return Script(sentences, turns)


def _blocks(text: str) -> list[tuple[int, int]]:
    """Stretches no sentence crosses, markup at their start left out."""
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
    """A short line in title case, or of digits: the running head and page number of a printed page."""
    if len(line) > MAX_HEADING or line.rstrip()[-1:] in ".!?,;":
        return False
    words = _HEADING_WORD.findall(line)
    if not words:
        return len(line) < 8
    return 2 < len(words) < 13 and all(w[0].isupper() for w in words)


def _label(text: str, start: int, end: int) -> tuple[str, int, int, int] | None:
    """(name, its start, its end, start of what is said) where a block opens with a speaker's label."""
    found = _LABEL.match(text, start, end)
    if not found:
        return None
    name = found.group("name")
    words = name.split()
    capital = all(w[0].isupper() or (i and len(w) <= 3) for i, w in enumerate(words))
    if not capital or any(c.isdigit() for c in name):
        return None
    lower = [w.lower().strip(".") for w in words]
    cues = LEXICON.cues
    named = any(w in cues["first_name"] for w in lower[:2])
    if not named and all(LEXICON.is_ordinary(w) or w in cues["not_name"] or w in cues["role"] for w in lower):
        return None
    return fold(name), found.start("name"), found.end("name"), found.end()


def without_label(sentence: str) -> str:
    """What is said, of a sentence that begins with its speaker's label: one in capitals, be it a name or
    not (OPERATOR), or a person's."""
    found = _LABEL.match(sentence)
    if found is None:
        return sentence
    name = found.group("name")
    shouted = name.isupper() and len(name) > MAX_ACRONYM
    if not shouted and not (_label(sentence, 0, len(sentence)) and _is_person(name)):
        return sentence
    return sentence[found.end() :].strip()


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
    found = []
    for first, last in [*spans, (start, end)]:
        span = text[first:last]
        if inside := span.strip(_OUTER):
            at = first + len(span) - len(span.lstrip(_OUTER))
            found.append((at, at + len(inside)))
    return found


def _is_abbreviation(text: str, start: int, dot: int, following: int) -> bool:
    """Whether the full stop at `dot` belongs to the word before it (Dr., J., U.S., Inc. before a name, d.
    before a year)."""
    found = _WORD_BEFORE.search(text, max(start, dot - 12), dot)
    if not found:
        return False
    cues, word = LEXICON.cues, found.group(1)
    lower = word.lower()
    if len(word) == 1 and word.islower():  # (d. 1803), p. 7
        return text[following : following + 1].isdigit()
    if len(word) > 1:
        if lower in cues["never_last"]:
            return True
        short = "." in word and len(word) <= 5
        fits = lower not in ("a.m", "p.m") if short else lower in cues["abbreviation"]
        return fits and not text[following : following + 1].isupper()
    # A capital letter begins a name (J. Marlowe), unless it is the letter of a kind (Series S, Plan B, X|S)
    # or stands before a word that no name begins with.
    at = dot - 1
    if not word.isupper() or word == "I":
        return False
    if at > start and not (text[at - 1].isspace() or text[at - 1] in ".-(\"“‘'"):
        return False
    before = _WORD_BEFORE.search(text, max(start, at - 24), at - 1 if at > start else at)
    if before is not None and text[before.end() : at] == " ":
        kind = before.group(1).lower()
        names = (cues["first_name"], cues["role"], cues["honorific"])
        if kind in LEXICON.nouns and not any(kind in section for section in names):
            return False
    after = _FIRST_WORD.match(text, following)
    return after is None or after.group().lower() not in LEXICON.function
