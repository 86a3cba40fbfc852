"""Find positions where a text can be cut: between sentences, lines, words or characters.

Sentences end at punctuation marks of any script and at empty lines. A full stop after an initial or
abbreviation, or before a lower-case letter, does not end a sentence. Words and characters follow Unicode
(UAX 29), so "9.9", "30,000" and an emoji of several code points stay whole. Everything takes linear time.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

import regex

MAX_WORD = 64  # maximum length in characters of a word that is never split; URLs can be longer
_LOOKAHEAD_CHARACTERS = 8
_MAX_CLUSTER = 64

STOPS = ".!?…‽؟۔।॥።။។。！？｡"
FULL_WIDTH = "。！？｡"  # stops without whitespace after them
CLOSERS = "\"'”’»)]」』）】》〉"  # closing quotes and brackets that can follow a stop
_CLOSING = re.escape(CLOSERS)
_GAP = re.compile(rf"[{FULL_WIDTH}]++[{FULL_WIDTH}{_CLOSING}]*+\s*+|(?<!\s)\s++")
_AFTER_STOP = re.compile(rf"[{STOPS}][{STOPS}{_CLOSING}]*+\Z")
_INITIALS = re.compile(r"(?:\w\.)*\w")
# Titles, months and other common English abbreviations, some of which French and German share.
_ABBREVIATIONS = frozenset(
    "approx apr aug bros ca capt cf co col corp dec dept dr ed eds esp est etc feb fig figs gen gov hon inc "  # noqa: SIM905
    "jan jr jul jun lt ltd maj mar mme mr mrs ms mt no nos nov nr oct op pp prof pt rep rev sen sept sgt sr "
    "st vol vols vs".split()
)
_WORD = regex.compile(r"\b", regex.WORD)
_CHARACTER = regex.compile(r"\X")


class Kind(enum.IntEnum):
    """What a boundary separates, in ascending order of preference."""

    WORD = 0
    LINE = 1
    SENTENCE = 2


@dataclass(frozen=True, slots=True)
class Boundary:
    """A gap in a text: the text before it ends at `end`, the text after it begins at `start`."""

    end: int
    start: int
    kind: Kind


def boundaries(text: str, start: int, end: int) -> Iterator[Boundary]:
    """Yield the boundaries that begin between two offsets. Text outside can affect their kind."""
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
    """Return (start, end) of each sentence, without surrounding whitespace."""
    spans, start = [], len(text) - len(text.lstrip())
    for boundary in boundaries(text, start, len(text)):
        if boundary.kind is Kind.SENTENCE:
            spans.append((start, boundary.end))
            start = boundary.start
    if start < len(text):
        spans.append((start, len(text.rstrip())))
    return spans


def last_word_end(text: str, start: int, end: int) -> int | None:
    """Return the last offset in start < offset <= end that does not split a word.

    Returns None if the word there is longer than MAX_WORD. `start` must not split a character.
    """
    min_offset = max(start, end - MAX_WORD)
    for offset in range(end, min_offset, -1):
        if _is_next_to_space(text, offset):
            return offset
    # Search an excerpt, because whether a flag emoji begins here can depend on a thousand flags before it.
    excerpt = text[start : end + _LOOKAHEAD_CHARACTERS]
    offsets = [start + m.start() for m in _WORD.finditer(excerpt, min_offset - start)]
    return max((offset for offset in offsets if min_offset < offset <= end), default=None)


def is_word_end(text: str, offset: int) -> bool:
    """Return whether a text can be cut at an offset without splitting a word."""
    if _is_next_to_space(text, offset):
        return True
    excerpt = text[max(0, offset - MAX_WORD) : offset + _LOOKAHEAD_CHARACTERS]
    return _WORD.match(excerpt, min(offset, MAX_WORD)) is not None


def _is_next_to_space(text: str, offset: int) -> bool:
    return offset == len(text) or text[offset].isspace() or text[offset - 1].isspace()


def last_character_end(text: str, start: int, end: int) -> int | None:
    """Return the last offset in start < offset <= end that does not split a user-perceived character.

    Returns None if there is no such offset. `start` must not split a character.
    """
    last = None
    for character in _CHARACTER.finditer(text, start, min(end + _MAX_CLUSTER, len(text))):
        if character.end() > end:
            break
        last = character.end()
    return last


def character_end(text: str, start: int) -> int:
    """Return the end of the user-perceived character that begins at `start`."""
    character = _CHARACTER.match(text, start, start + _MAX_CLUSTER)
    return character.end() if character else start + 1
