"""Quotations: what a text quotes, whether that can be found again, and which sentence of a chunk to quote."""

from __future__ import annotations

import re
from collections.abc import Sequence

from graphrag_ray.corpus.boundaries import last_word_end, sentences

_SPACE = re.compile(r"\s+")
_MARKS = re.compile("[“”]")
_OMISSION = re.compile(r"\[(?:…|\.\.\.)\]|…|\.\.\.")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")
MAX_QUOTE_CHARACTERS = 400
MIN_WORDS = 3
"""A shorter quotation is a term, and stands in many places."""


def best_sentence(text: str, names: Sequence[str], *, is_start: bool = True) -> tuple[int, int]:
    """(start, end) of the first of the sentences that hold most of the names, in any case.

    A sentence longer than MAX_QUOTE_CHARACTERS is cut after a word. Without names, or where none occurs: the
    first sentence. (0, 0) for a text of white space. is_start: whether a document begins with the text
    """
    wanted = [name.casefold() for name in names if name]
    best, best_score = (0, 0), -1
    for start, end in quotable(text, is_start):
        sentence = " ".join(text[start:end].casefold().split())
        score = sum(name in sentence for name in wanted)
        if score > best_score:
            best, best_score = (start, shortened(text, start, end)), score
    return best


def quotable(text: str, is_start: bool) -> list[tuple[int, int]]:
    """(start, end) of the sentences of a chunk. Where it begins inside a sentence, which chunks of former
    versions did inside a word or number as well, that one comes last and begins with its first whole word."""
    spans = sentences(text)
    if is_start or not spans:
        return spans
    start, end = spans[0]
    first = text[start]  # scripts without capitals are given the benefit of the doubt
    if not (first.islower() or first.isdigit() or first in ".,;:!?%)]’"):
        return spans
    space = _SPACE.search(text, start, end)
    return [*spans[1:], (space.end() if space else start, end)]


def shortened(text: str, start: int, end: int) -> int:
    """Where a quotation ends that is not to be longer than MAX_QUOTE_CHARACTERS."""
    most = start + MAX_QUOTE_CHARACTERS
    if end <= most:
        return end
    return start + len(text[start : last_word_end(text, start, most) or most].rstrip())


def quotes_in(quotation: str) -> list[str]:
    """What stands before, between and after the marks of omission of a quotation: each stands in the text by
    itself."""
    return [part for p in _OMISSION.split(quotation) if (part := p.strip())]


def quoted(text: str) -> list[str]:
    """What stands between balanced “ and ”, outermost, in order; an unclosed one is left out."""
    out: list[str] = []
    depth, start = 0, 0
    for mark in _MARKS.finditer(text):
        if mark.group() == "“":
            if depth == 0:
                start = mark.end()
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                out.append(text[start : mark.start()])
    return out


def can_be_found(quotation: str) -> bool:
    """Whether it is long enough to be looked for as it stands."""
    return len(folded_words(quotation)) >= MIN_WORDS


def folded_words(text: str) -> list[str]:
    """Case-folded runs of letters and digits; in scripts without spaces every character is a word."""
    return [w.casefold() for w in _WORD.findall(text)]
