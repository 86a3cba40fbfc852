"""Quotations as units: how they are joined in a description, marked in a report, and read back.

Everything that this engine writes consists of quotations and of a few fixed phrases of its own, and the
two must not be mixed up on the way from chunk to answer:

- a description holds quotations joined by ` […] `, the usual mark of an omission;
- reports and answers put each quotation between “ and ”, followed by the reference to its record.

Quotation marks inside a quotation stay, so a unit is only used where they are balanced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from graphrag_ray.corpus.boundaries import CLOSERS, STOPS
from graphrag_ray.corpus.quotes import quoted
from graphrag_ray.offline.extraction_reply import CONVERSE
from graphrag_ray.offline.sentences import fold, has_cells, is_opening

JOIN = " […] "
MARK = "Written without a language model: what stands in quotation marks is quoted from the corpus."
"""Ends every report's summary and every answer."""
NONE = "NONE"
CHARS_PER_TOKEN = 3.4
"""Of English prose, on the safe side, for lengths given in tokens."""

_JOIN = re.compile(r"(?:(?<!\s)\s++)?\[…\]\s*")
_MARKS = re.compile("[“”]")
_CUT = "…"
_ENDS = frozenset(STOPS + CLOSERS)
_LABELLED = re.compile(r"[A-Z][A-Z.'’ -]+: ")
_POINTS_BACK = re.compile(r"(?:But|And|So|Then|He|She|It|They|This|That|These|Those|His|Her|Its|Their)\b")
_BOILERPLATE = re.compile(
    r"forward[- ]looking statement|safe harbou?r|differ materially|(?:no|any) obligation to update|"
    r"all rights reserved|without (?:any )?warrant|terms (?:of use|and conditions)|privacy policy|"
    r"(?:not|no) constitute\b.{0,40}\b(?:advice|offer)|unsubscribe|reconciliations? of .{0,20}non-GAAP|"
    r"this (?:call|conference|webcast) is being recorded|replay of th",
    re.IGNORECASE,
)
_PLEASANTRY = re.compile(
    r"(?:(?:yeah|yes|well|great|okay|ok|and|so|all right|hi|hello|hey)[,.!]? )*"
    r"(?:thank(?:s| you)\b|good (?:morning|afternoon|evening|day)\b|you're welcome|welcome (?:to|back)\b|"
    r"(?:our|the|your) next question\b|please go ahead|congrat)",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(?:^|\s)##\s+")


def pieces(description: str) -> list[str]:
    """The quotations of a description; what a context cut off at its end is left out."""
    found = [p for p in _JOIN.split(fold(description)) if p and p != CONVERSE]
    if found and found[-1].endswith(_CUT) and len(found[-1]) > 1:
        found.pop()
    return found


def is_balanced(text: str) -> bool:
    depth = 0
    for mark in _MARKS.findall(text):
        depth += 1 if mark == "“" else -1
        if depth < 0:
            return False
    return depth == 0


@lru_cache(maxsize=1 << 14)
def stands_alone(text: str) -> float:
    """0–1, how much a quotation means out of its place: legal notices, courtesies, questions, what a speaker
    says to another, headings, rows of tables, fragments and what points back (he, this, but) mean little
    (Paice 1990, "Constructing literature abstracts by computer")."""
    if _BOILERPLATE.search(text) or _PLEASANTRY.match(text):
        return 0.1
    if has_cells(text):
        return 0.2
    worth = 0.6 if "?" in text else 1.0
    if _LABELLED.match(text) or text[-1:] not in _ENDS:
        worth *= 0.6
    if _POINTS_BACK.match(text):
        worth *= 0.8
    return worth if is_opening(text[:1]) or text[:1].isdigit() else worth * 0.7


def report_parts(content: str) -> list[tuple[str, list[str]]]:
    """A report as contexts show it, on one line: (the name a finding is about, its quotations), the
    summary first under ""."""
    parts = []
    for number, part in enumerate(_HEADING.split(content)):
        head, _, _ = part.partition("“")
        parts.append((first_name(head) if number else "", quoted(part)))
    return parts


def first_name(heading: str) -> str:
    """The first name of a heading or title that this engine wrote (`Mara Venn — with …`, `A, B, C`)."""
    head = re.split(r" — |, ", heading.strip(), maxsplit=1)[0]
    return fold(head)


def number_in(variables: Mapping[str, str], name: str, usual: int) -> int:
    """The positive number that a placeholder holds; `usual` where it holds none."""
    text = variables.get(name, "")
    return (int(text) or usual) if text.isdecimal() and len(text) < 10 else usual


def room_in(variables: Mapping[str, str], usual_tokens: int) -> float:
    """Characters of a reply of `max_tokens`."""
    return number_in(variables, "max_tokens", usual_tokens) * CHARS_PER_TOKEN
