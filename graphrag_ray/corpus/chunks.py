"""A document into chunks (text units): windows of tokens that overlap (paper 3.1.1: 600 with 100).

They begin and end between sentences, else between words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.base import index_settings
from graphrag_ray.corpus import boundaries, tokens

_SPACE = re.compile(r"\s++")
_LONGEST_TOKEN = 128
"""Characters, in any vocabulary. A text with more for each token that it may have need not be counted."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """start, end: character offsets into the document's text; n_tokens: of text[start:end]."""

    start: int
    end: int
    n_tokens: int


def chunk(text: str, options: index_settings.Chunking, vocabulary: str, header: str = "") -> list[Chunk]:
    """Cut a document's text.

    Windows of at most `size` tokens, each beginning about `overlap` tokens before the last one's end; with
    size "document" the whole text. header: what is written above every chunk; its tokens count within
    `size` (see `_window`). vocabulary: a name of `tokens.VOCABULARIES`.

    The last chunk may have `min_new_tokens` - 1 tokens more than `size`. Starts and ends both increase. Every
    character that is not white space is in a chunk. `n_tokens` counts the chunk's text by itself. Time
    is linear. See `_Cutter` for where cuts are.
    """
    if not text.strip():
        return []
    if options.size == "document":
        return [Chunk(0, len(text), tokens.count(text, vocabulary))]
    ends = tokens.offsets(text, vocabulary)
    length, overlap = _window(options.size, options.overlap, header, vocabulary)
    if len(ends) <= length:
        return [Chunk(0, len(text), len(ends))]
    return list(_Cutter(text, ends, length, overlap, options.min_new_tokens, vocabulary).chunks())


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Chunks that begin and end at boundaries. ends: where each token ends, in characters; length, overlap,
    min_new: in tokens.

    - A chunk ends with the last sentence, else the last line, within its budget; where that would leave less
      than half of its new tokens, with the last word.
    - The next one begins at the sentence, else the line, nearest to `overlap` tokens before that end, half as
      many more or fewer; else at the word before.
    - A word longer than boundaries.MAX_WORD is cut, but no character, even if that has more tokens than
      a chunk.
    - What is left for a last chunk joins the one before where it has fewer than `min_new` new tokens.
    """

    text: str
    ends: npt.NDArray[np.int64]
    length: int
    overlap: int
    min_new: int
    vocabulary: str

    def chunks(self) -> Iterator[Chunk]:
        last = len(self.text.rstrip())
        start = done = self._after_space(0)
        while True:
            end, n_tokens = self._end(start, done, last)
            if start < done and (n_tokens > self.length or not boundaries.is_word_end(self.text, end)):
                start = done  # a long word leaves no room for what was there before
                end, n_tokens = self._end(start, done, last)
            if end < last and self._token(last) - self._token(end) < self.min_new:
                end, n_tokens = self._with_the_rest(start, end, n_tokens, last)
            yield Chunk(start, end, n_tokens)
            if end == last:
                return
            done = self._after_space(end)
            start = self._next_start(start, end)
            if self._token(done) - self._token(start) > self.length - self._least_new:
                start = done  # there is a lot of white space between

    def _end(self, start: int, done: int, last: int) -> tuple[int, int]:
        """The end of a chunk and its tokens. done: where what no other chunk holds begins.

        A text by itself may have some tokens more than it has inside another: then it is cut shorter.
        """
        first, budget = self._token(start), self.length
        while True:
            end = self._cut(first + budget, done, last)
            n_tokens = tokens.count(self.text[start:end], self.vocabulary)
            if n_tokens <= self.length or end <= boundaries.character_end(self.text, done):
                return end, n_tokens
            budget = min(budget, self._token(end) - first) - (n_tokens - self.length)

    def _with_the_rest(self, start: int, end: int, n_tokens: int, last: int) -> tuple[int, int]:
        """The end and the tokens of a chunk that takes in what is left after it, if it has room for that."""
        most = self.length + self.min_new - 1
        if last - start <= _LONGEST_TOKEN * most:
            whole = tokens.count(self.text[start:last], self.vocabulary)
            if whole <= most:
                return last, whole
        return end, n_tokens

    def _cut(self, most_token: int, done: int, last: int) -> int:
        """The best place after `done` with at most so many tokens before it."""
        if most_token >= self._token(last):
            return last
        least = self._token(done) + self._least_new
        low, high = self._place(min(least, most_token)), self._place(most_token)
        if high <= done:
            return boundaries.character_end(self.text, done)
        best = None
        for boundary in boundaries.boundaries(self.text, low, high + 1):
            if done < boundary.end <= high and (best is None or boundary.kind >= best.kind):
                best = boundary
        if best is not None and best.kind > boundaries.Kind.WORD:
            return best.end
        end = boundaries.last_word_end(self.text, done, high) or (best.end if best else None)
        end = end or boundaries.last_character_end(self.text, done, high)
        end = end or boundaries.character_end(self.text, done)
        return done + len(self.text[done:end].rstrip())

    def _next_start(self, start: int, end: int) -> int:
        """Where the chunk after the one between two places begins, later than that one."""
        if not self.overlap:
            return self._after_space(end)
        last, slack = self._token(end), self.overlap // 2
        longest = min(self.overlap + slack, self.length - self._least_new)
        low = max(self._place(last - longest), start + 1)
        target = max(self._place(last - self.overlap), low)
        high = self._place(last - self.overlap + slack)
        found = []
        for boundary in boundaries.boundaries(self.text, low, end):
            if boundary.start < end:
                kind = boundary.kind if boundary.start <= high else boundaries.Kind.WORD
                found.append((-kind, abs(boundary.start - target), boundary.start))
        if found:
            return min(found)[2]
        place = boundaries.last_word_end(self.text, start, target)
        if place is None and not boundaries.is_word_end(self.text, end):
            place = boundaries.last_character_end(self.text, start, target)
        return self._after_space(place or end)

    @property
    def _least_new(self) -> int:
        """Of the tokens of a chunk, those that no other has, so that their number is at most doubled."""
        return (self.length - self.overlap + 1) // 2

    def _token(self, place: int) -> int:
        """How many tokens end at a place or before."""
        return int(np.searchsorted(self.ends, place, side="right"))

    def _place(self, token: int) -> int:
        """Where so many tokens end."""
        return int(self.ends[token - 1]) if token > 0 else 0

    def _after_space(self, place: int) -> int:
        found = _SPACE.match(self.text, place)
        return found.end() if found else place


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
