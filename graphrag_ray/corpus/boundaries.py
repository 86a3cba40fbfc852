"""Where a text may be cut: between sentences, else lines, else words, else characters.

Sentences by marks at their ends, whatever the script, and by empty lines; a full stop after an initial or an
abbreviation, or before a small letter, ends none. Words and characters as Unicode has them (UAX 29): "9.9",
"30,000" and an emoji of several code points are not parted. Everything is linear in what it looks at.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

import regex

MAX_WORD = 64
"""Characters of the longest word that is kept whole. An address may be longer."""
_LOOK_AHEAD = 8
_MAX_CLUSTER = 64

STOPS = ".!?…‽؟۔।॥።။។。！？｡"
FULL_WIDTH = "。！？｡"
"""Of these, those that white space does not follow."""
CLOSERS = "\"'”’»)]」』）】》〉"
"""What may stand behind them."""
_CLOSING = re.escape(CLOSERS)
_GAP = re.compile(rf"[{FULL_WIDTH}]++[{FULL_WIDTH}{_CLOSING}]*+\s*+|(?<!\s)\s++")
_AFTER_STOP = re.compile(rf"[{STOPS}][{STOPS}{_CLOSING}]*+\Z")
_INITIALS = re.compile(r"(?:\w\.)*\w")
_ABBREVIATIONS = frozenset(
    "approx apr aug bros ca capt cf co col corp dec dept dr ed eds esp est etc feb fig figs gen gov hon inc "  # noqa: SIM905
    "jan jr jul jun lt ltd maj mar mme mr mrs ms mt no nos nov nr oct op pp prof pt rep rev sen sept sgt sr "
    "st vol vols vs".split()
)
"""Titles, months and the commonest others of English, and those that French and German have as well."""
_WORD = regex.compile(r"\b", regex.WORD)
_CHARACTER = regex.compile(r"\X")


class Kind(enum.IntEnum):
    """What a boundary parts, the best last."""

    WORD = 0
    LINE = 1
    SENTENCE = 2


@dataclass(frozen=True, slots=True)
class Boundary:
    """White space of a text, or a place of no width. end: of what stands before; start: of what follows."""

    end: int
    start: int
    kind: Kind


def boundaries(text: str, start: int, end: int) -> Iterator[Boundary]:
    """The white space that begins between two places, and where sentences end without it. What is around
    them counts for their kind."""
    for gap in _GAP.finditer(text, start, end):
        place = gap.end()
        at = gap.start() + len(gap.group().rstrip())
        lines = text.count("\n", at, place)
        if at > gap.start() or lines > 1 or _is_sentence_end(text, at, place):
            yield Boundary(at, place, Kind.SENTENCE)
        else:
            yield Boundary(at, place, Kind.LINE if lines else Kind.WORD)


def _is_sentence_end(text: str, at: int, place: int) -> bool:
    """Of the white space between two places."""
    before = text[max(0, at - MAX_WORD) : at]
    stop = _AFTER_STOP.search(before)
    if stop is None or text[place : place + 1].islower():
        return False
    if not stop.group().startswith("."):
        return True
    word = before[: stop.start()].rpartition(" ")[2].lstrip("\"'“‘«([").lower()
    return not (_INITIALS.fullmatch(word) and not word.isdecimal()) and word not in _ABBREVIATIONS


def sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of the sentences of a text, without the white space around them."""
    spans, start = [], len(text) - len(text.lstrip())
    for boundary in boundaries(text, start, len(text)):
        if boundary.kind is Kind.SENTENCE:
            spans.append((start, boundary.end))
            start = boundary.start
    if start < len(text):
        spans.append((start, len(text.rstrip())))
    return spans


def last_word_end(text: str, start: int, end: int) -> int | None:
    """The last place in start < place <= end that parts no word; None where one is longer than MAX_WORD.

    start: a place that parts no character
    """
    near = max(start, end - MAX_WORD)
    for place in range(end, near, -1):
        if place == len(text) or text[place].isspace() or text[place - 1].isspace():
            return place
    # Of a part of the text: whether a flag begins can depend on a thousand flags before.
    around = text[start : end + _LOOK_AHEAD]
    words = [start + m.start() for m in _WORD.finditer(around, near - start)]
    return max((place for place in words if near < place <= end), default=None)


def is_word_end(text: str, place: int) -> bool:
    """Whether a place parts no word."""
    if place == len(text) or text[place].isspace() or text[place - 1].isspace():
        return True
    around = text[max(0, place - MAX_WORD) : place + _LOOK_AHEAD]
    at = min(place, MAX_WORD)
    return _WORD.match(around, at) is not None


def last_character_end(text: str, start: int, end: int) -> int | None:
    """The last place in start < place <= end that does not part what people see as one character; None
    where there is none. start: such a place."""
    found = None
    for character in _CHARACTER.finditer(text, start, min(end + _MAX_CLUSTER, len(text))):
        if character.end() > end:
            break
        found = character.end()
    return found


def character_end(text: str, start: int) -> int:
    """Where the character that begins at `start` ends."""
    found = _CHARACTER.match(text, start, start + _MAX_CLUSTER)
    return found.end() if found else start + 1
