"""A document into chunks (text units): windows of tokens that overlap (paper 3.1.1: 600 with 100)."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray import settings
from graphrag_ray.corpus import tokens

_MAX_MARKS = 32
_ZERO_WIDTH_JOINER = "\u200d"
_SKIN_TONES = ("\U0001f3fb", "\U0001f3ff")


@dataclass(frozen=True, slots=True)
class Chunk:
    """start, end: character offsets into the document's text; n_tokens: of text[start:end]."""

    start: int
    end: int
    n_tokens: int


def chunk(text: str, options: settings.Chunking, vocabulary: str, header: str = "") -> list[Chunk]:
    """Cut a document's text.

    Windows of `size` tokens of the document's own tokenisation, each beginning `overlap` tokens before
    the last one's end; with size "document" the whole text. header: what is written above every chunk;
    its tokens count within `size` (see `_window`). vocabulary: a name of `tokens.VOCABULARIES`.

    - A last window with fewer than `min_new_tokens` tokens that no other holds joins the one before,
      which is then up to `min_new_tokens - 1` tokens longer than `size`.
    - No cut is inside a character, nor before a combining mark or a joined emoji: cuts there move to
      the character's start. A window always holds a whole character, even if that has more tokens.
    - A window of nothing but white space is dropped.

    Starts and ends both increase. Every character that is not white space is in a chunk. `n_tokens`
    counts the chunk's text by itself: where a cut parts a word this may be a token or two more or less
    than the window had. Time is linear.
    """
    if not text.strip():
        return []
    if options.size == "document":
        return [Chunk(0, len(text), tokens.count(text, vocabulary))]
    ends = tokens.offsets(text, vocabulary)
    length, overlap = _window(options.size, options.overlap, header, vocabulary)
    if len(ends) <= length:
        return [Chunk(0, len(text), len(ends))]
    spans = _spans(text, ends, _windows(len(ends), length, overlap, options.min_new_tokens))
    counts = tokens.count_many([text[start:end] for start, end in spans], vocabulary)
    return [Chunk(start, end, int(n)) for (start, end), n in zip(spans, counts, strict=True)]


def _window(size: int, overlap: int, header: str, vocabulary: str) -> tuple[int, int]:
    """Length and overlap in tokens under a header.

    A header takes its tokens from the window. A long one would leave few new tokens a chunk and so
    multiply the calls: from half of the new tokens on (250 of 500 by default) the overlap gives way,
    and then the budget.
    """
    if not header:
        return size, overlap
    least_new = (size - overlap + 1) // 2
    length = max(size - tokens.count(header, vocabulary), least_new)
    return length, min(overlap, length - least_new)


def _windows(n_tokens: int, length: int, overlap: int, min_new: int) -> list[tuple[int, int]]:
    """Windows over token numbers 0…n_tokens, which is more than `length`."""
    windows: list[tuple[int, int]] = []
    for start in range(0, n_tokens, length - overlap):
        end = min(start + length, n_tokens)
        if end == n_tokens and n_tokens - windows[-1][1] < min_new:
            windows[-1] = (windows[-1][0], n_tokens)
        else:
            windows.append((start, end))
        if end == n_tokens:
            break
    return windows


def _spans(text: str, ends: npt.NDArray[np.int64], windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Windows of tokens as spans of characters, without empty ones and white space."""
    spans: list[tuple[int, int]] = []
    for first, stop in windows:
        start = _cut(text, int(ends[first - 1])) if first else 0
        end = _cut(text, int(ends[stop - 1]))
        if spans and end <= spans[-1][1]:
            continue
        if spans and start == spans[-1][0]:
            # a character longer than a window: the earlier span lies within this one
            spans.pop()
        if start < end and not text[start:end].isspace():
            spans.append((start, end))
    return spans


def _cut(text: str, offset: int) -> int:
    """The nearest place at or before `offset` that does not part what people see as one character.

    An approximation of Unicode's grapheme clusters (UAX 29) by the common cases: marks, joiners,
    variation selectors, skin tones. Longer piles of marks than any language has are cut.
    """
    for place in range(offset, max(0, offset - _MAX_MARKS), -1):
        if place >= len(text) or not _continues(text[place - 1], text[place]):
            return place
    return offset if offset > _MAX_MARKS else 0


def _continues(before: str, character: str) -> bool:
    if character.isascii():
        return False
    return (
        unicodedata.category(character) in ("Mn", "Mc", "Me")
        or character == _ZERO_WIDTH_JOINER
        or _SKIN_TONES[0] <= character <= _SKIN_TONES[1]
        or before == _ZERO_WIDTH_JOINER
    )
