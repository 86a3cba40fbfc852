"""Abbreviations and their long forms.

Schwartz and Hearst, "A simple algorithm for identifying abbreviation definitions in biomedical text"
(PSB 2003). We differ in two points: only `long form (SHORT)` is read, since `SHORT (long form)` is rare
outside of abstracts, and the long form has to start with a capital, since names are wanted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LONG_CHARS = 200

_SHORT = re.compile(r"\(\s*[“\"]?([^\W\d_][\w.&/-]{1,9})[”\"]?\s*[),;]")

_PLAIN = re.compile(r"[\w\s&'’./-]+")


@dataclass(frozen=True, slots=True)
class Definition:
    """`short` stands for the text[start:end] before it."""

    short: str
    start: int
    end: int


def definitions(text: str, start: int, end: int) -> list[Definition]:
    """The abbreviations defined in text[start:end]."""
    if "(" not in text:
        return []
    found = []
    for match in _SHORT.finditer(text, start, end):
        short = match.group(1)
        if sum(c.isupper() for c in short) < 2:
            continue
        before_end = match.start()
        while before_end > start and text[before_end - 1] == " ":
            before_end -= 1
        # At most min(|A| + 5, |A| * 2) words before the parenthesis hold the long form (section 3.1).
        letters = sum(c.isalnum() for c in short)
        nearest = max(start, before_end - MAX_LONG_CHARS)
        words = [m.start() for m in re.finditer(r"\S+", text[nearest:before_end])]
        limit = min(letters + 5, letters * 2)
        window = nearest + words[-limit] if len(words) > limit else nearest
        begin = _best_long_form(short, text[window:before_end])
        if begin is not None and text[window + begin].isupper():
            found.append(Definition(short, window + begin, before_end))
    return found


def _best_long_form(short: str, long_text: str) -> int | None:
    """Where the long form begins: every character of the short form is found from the right, its first
    at the start of a word (figure 1 of the paper)."""
    s, at = len(short) - 1, len(long_text) - 1
    while s >= 0:
        wanted = short[s].lower()
        if not wanted.isalnum():
            s -= 1
            continue
        while at >= 0 and (
            long_text[at].lower() != wanted or (s == 0 and at > 0 and long_text[at - 1].isalnum())
        ):
            at -= 1
        if at < 0:
            return None
        at -= 1
        s -= 1
    begin = at + 1
    long_form = long_text[begin:]
    if len(long_form) < len(short) or not _PLAIN.fullmatch(long_form) or len(long_form.split()) < 2:
        return None
    return begin
