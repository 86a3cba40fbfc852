"""Where a text may be cut: between sentences, else lines, else words, else characters.

Sentences end at marks, whatever the script, and at empty lines; a full stop after an initial or abbreviation,
or before a lower-case letter, ends none. Words and characters follow Unicode (UAX 29), so "9.9", "30,000" and
an emoji of several code points stay whole. Everything takes linear time.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

import regex

MAX_WORD = 64  # maximum characters of a word that is kept whole; an address may be longer
_LOOK_AHEAD = 8
_MAX_CLUSTER = 64

STOPS = ".!?…‽؟۔।॥።။។。！？｡"
FULL_WIDTH = "。！？｡"  # the stops that no white space follows
CLOSERS = "\"'”’»)]」』）】》〉"  # what may follow a stop
_CLOSING = re.escape(CLOSERS)
_GAP = re.compile(rf"[{FULL_WIDTH}]++[{FULL_WIDTH}{_CLOSING}]*+\s*+|(?<!\s)\s++")
_AFTER_STOP = re.compile(rf"[{STOPS}][{STOPS}{_CLOSING}]*+\Z")
_INITIALS = re.compile(r"(?:\w\.)*\w")
# Titles, months and the most common others of English, and those that French and German share.
_ABBREVIATIONS = frozenset(
    "approx apr aug bros ca capt cf co col corp dec dept dr ed eds esp est etc feb fig figs gen gov hon inc "  # noqa: SIM905
    "jan jr jul jun lt ltd maj mar mme mr mrs ms mt no nos nov nr oct op pp prof pt rep rev sen sept sgt sr "
    "st vol vols vs".split()
)
_WORD = regex.compile(r"\b", regex.WORD)
_CHARACTER = regex.compile(r"\X")


class Kind(enum.IntEnum):
    """What a boundary separates, the best last."""

    WORD = 0
    LINE = 1
    SENTENCE = 2


@dataclass(frozen=True, slots=True)
class Boundary:
    """A gap between `end` of what precedes it and `start` of what follows: white space, or of no width."""

    end: int
    start: int
    kind: Kind


def boundaries(text: str, start: int, end: int) -> Iterator[Boundary]:
    """Yield gaps that begin between two offsets. The text around them determines their kind."""
    for gap in _GAP.finditer(text, start, end):
        gap_start, gap_end = gap.start() + len(gap.group().rstrip()), gap.end()
        n_lines = text.count("\n", gap_start, gap_end)
        if gap_start > gap.start() or n_lines > 1 or _is_sentence_end(text, gap_start, gap_end):
            yield Boundary(gap_start, gap_end, Kind.SENTENCE)
        else:
            yield Boundary(gap_start, gap_end, Kind.LINE if n_lines else Kind.WORD)


def _is_sentence_end(text: str, gap_start: int, gap_end: int) -> bool:
    before = text[max(0, gap_start - MAX_WORD) : gap_start]
    stop = _AFTER_STOP.search(before)
    if stop is None or text[gap_end : gap_end + 1].islower():
        return False
    if not stop.group().startswith("."):
        return True
    word = before[: stop.start()].rpartition(" ")[2].lstrip("\"'“‘«([").lower()
    return not (_INITIALS.fullmatch(word) and not word.isdecimal()) and word not in _ABBREVIATIONS


def sentences(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of each sentence, without the white space around it."""
    spans, start = [], len(text) - len(text.lstrip())
    for boundary in boundaries(text, start, len(text)):
        if boundary.kind is Kind.SENTENCE:
            spans.append((start, boundary.end))
            start = boundary.start
    if start < len(text):
        spans.append((start, len(text.rstrip())))
    return spans


def last_word_end(text: str, start: int, end: int) -> int | None:
    """Return the last offset in start < offset <= end that splits no word.

    None if the word there is longer than MAX_WORD. `start` must not split a character.
    """
    near = max(start, end - MAX_WORD)
    for offset in range(end, near, -1):
        if _is_beside_space(text, offset):
            return offset
    # Search only a part of the text: whether a flag begins can depend on a thousand flags before it.
    around = text[start : end + _LOOK_AHEAD]
    offsets = [start + m.start() for m in _WORD.finditer(around, near - start)]
    return max((offset for offset in offsets if near < offset <= end), default=None)


def is_word_end(text: str, offset: int) -> bool:
    """Return whether an offset splits no word."""
    if _is_beside_space(text, offset):
        return True
    around = text[max(0, offset - MAX_WORD) : offset + _LOOK_AHEAD]
    return _WORD.match(around, min(offset, MAX_WORD)) is not None


def _is_beside_space(text: str, offset: int) -> bool:
    return offset == len(text) or text[offset].isspace() or text[offset - 1].isspace()


def last_character_end(text: str, start: int, end: int) -> int | None:
    """Return the last offset in start < offset <= end that splits no user-perceived character, if any.

    `start` must not split one either.
    """
    last = None
    for character in _CHARACTER.finditer(text, start, min(end + _MAX_CLUSTER, len(text))):
        if character.end() > end:
            break
        last = character.end()
    return last


def character_end(text: str, start: int) -> int:
    """Return where the character that begins at `start` ends."""
    character = _CHARACTER.match(text, start, start + _MAX_CLUSTER)
    return character.end() if character else start + 1
