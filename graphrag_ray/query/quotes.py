"""The sentence of a chunk that says most about what was cited: where a reader should look first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|\n\s*\n")
_MARKS = re.compile("[“”]")
MAX_QUOTE_CHARACTERS = 400


def best_sentence(text: str, names: Sequence[str]) -> tuple[int, int]:
    """(start, end) of the first of the sentences that hold most of the names, in any case.

    A sentence longer than MAX_QUOTE_CHARACTERS is cut. Without names, or where none occurs: the first
    sentence. (0, 0) for a text of white space.
    """
    wanted = [name.casefold() for name in names if name]
    best, best_score = (0, 0), -1
    for start, end in sentences(text):
        sentence = " ".join(text[start:end].casefold().split())
        score = sum(name in sentence for name in wanted)
        if score > best_score:
            best, best_score = (start, min(end, start + MAX_QUOTE_CHARACTERS)), score
    return best


def sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of the sentences of a text, white space around them left out."""
    cuts = [0, *(m.end() for m in _SENTENCE_END.finditer(text)), len(text)]
    spans = []
    for start, end in pairwise(cuts):
        inside = text[start:end]
        left = len(inside) - len(inside.lstrip())
        if inside.strip():
            spans.append((start + left, start + len(inside.rstrip())))
    return spans


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
