"""Find quotations in a text, and choose the sentence of a chunk to quote."""

from __future__ import annotations

import re
from collections.abc import Sequence

from graphrag_ray.corpus.boundaries import last_word_end, sentences

_SPACE = re.compile(r"\s+")
_QUOTATION_MARKS = re.compile("[“”]")
_OMISSION = re.compile(r"\[(?:…|\.\.\.)\]|…|\.\.\.")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")
MAX_QUOTE_CHARACTERS = 400
MIN_WORDS = 3  # a shorter quotation is a term that occurs in many texts


def best_sentence(text: str, names: Sequence[str], *, is_start: bool = True) -> tuple[int, int]:
    """Return (start, end) of the first sentence with the largest number of the names, ignoring case.

    If there are no names in it, this is the first sentence, or (0, 0) if the text is blank. A sentence longer
    than MAX_QUOTE_CHARACTERS is cut after a word. `is_start` is true if the document begins with this text.
    """
    wanted = [name.casefold() for name in names if name]
    best, best_score = (0, 0), -1
    for start, end in quotable_sentences(text, is_start):
        sentence = " ".join(text[start:end].casefold().split())
        score = sum(name in sentence for name in wanted)
        if score > best_score:
            best, best_score = (start, quotation_end(text, start, end)), score
    return best


def quotable_sentences(text: str, is_start: bool) -> list[tuple[int, int]]:
    """Return (start, end) of the sentences of a chunk.

    If the chunk begins inside a sentence, that fragment comes last and starts at its first whole word.
    """
    spans = sentences(text)
    if is_start or not spans:
        return spans
    start, end = spans[0]
    first = text[start]  # in scripts without capitals, assume that a sentence begins here
    if not (first.islower() or first.isdigit() or first in ".,;:!?%)]’"):
        return spans
    space = _SPACE.search(text, start, end)
    return [*spans[1:], (space.end() if space else start, end)]


def quotation_end(text: str, start: int, end: int) -> int:
    """Return the end of a quotation, limited to MAX_QUOTE_CHARACTERS."""
    limit = start + MAX_QUOTE_CHARACTERS
    if end <= limit:
        return end
    return start + len(text[start : last_word_end(text, start, limit) or limit].rstrip())


def quotation_parts(quotation: str) -> list[str]:
    """Split a quotation at ellipses. Each part must occur in the text by itself."""
    return [part for p in _OMISSION.split(quotation) if (part := p.strip())]


def quotations_in(text: str) -> list[str]:
    """Return the outermost texts between balanced “ and ”, in order. Unclosed quotations are ignored."""
    quotes: list[str] = []
    depth, start = 0, 0
    for mark in _QUOTATION_MARKS.finditer(text):
        if mark.group() == "“":
            if depth == 0:
                start = mark.end()
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                quotes.append(text[start : mark.start()])
    return quotes


def is_searchable(quotation: str) -> bool:
    """Return whether a quotation is long enough to be searched verbatim."""
    return len(folded_words(quotation)) >= MIN_WORDS


def folded_words(text: str) -> list[str]:
    """Return case-folded runs of letters and digits. In scripts without spaces, each character is a word."""
    return [w.casefold() for w in _WORD.findall(text)]
