"""Answers to questions that microsoft/graphrag asks of an index: they name the first records of its tables.

So what the tool prints shows which records its context held, and that its references are theirs.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

import orjson

Messages = Sequence[tuple[str, str]]
"""(role, content) of each."""
Rows = list[tuple[str, str]]
"""Number and first column of each record."""

_TABLES = "---Data tables---"
_ANALYSTS = "---Analyst Reports---"
_TABLE = re.compile(r"-----([A-Za-z]+)-----\n")
_ROW = re.compile(r"^(\d+)\|([^|\n]*)", re.MULTILINE)
_POINTS = '"points": ['
_FOLLOW_UPS = "follow_up_queries"
_CITED = 3
_BEGINNING = 80
"""Records that are cited of each table; characters of the first that are repeated."""


def told(messages: Messages) -> str | None:
    """None for what is no such question."""
    prompt = messages[0][1]
    if _ANALYSTS in prompt:
        return _between(prompt, _ANALYSTS)
    if _TABLES not in prompt:
        return None
    tables = _between(prompt, _TABLES)
    text = _told(_tables(tables) or [("Reports" if _POINTS in prompt else "Sources", _csv(tables))])
    if _POINTS in prompt:
        return orjson.dumps({"points": [{"description": text, "score": 80}]}).decode()
    if _FOLLOW_UPS in prompt:
        return orjson.dumps({"response": text, "score": 80, _FOLLOW_UPS: []}).decode()
    return text


def _between(prompt: str, heading: str) -> str:
    """What stands below a heading, down to the next."""
    return prompt.partition(heading)[2].partition("\n---Goal---")[0].strip()


def _tables(text: str) -> list[tuple[str, Rows]]:
    """Tables under headings: a record begins with its number, and its text is as it is."""
    pieces = _TABLE.split(text)
    return [(name, _ROW.findall(table)) for name, table in zip(pieces[1::2], pieces[2::2], strict=True)]


def _csv(text: str) -> Rows:
    """The one table of a map call, or of basic search: it has no heading, and its cells are quoted."""
    rows = csv.reader(io.StringIO(text), delimiter="|", escapechar="\\")
    return [(row[0], row[1]) for row in rows if len(row) > 1 and row[0].isdecimal()]


def _told(tables: Sequence[tuple[str, Rows]]) -> str:
    """The beginning of each table's first record, and a reference to its first ones."""
    out = []
    for name, rows in tables:
        if rows:
            numbers = ", ".join(number for number, _ in rows[:_CITED])
            out.append(f"{' '.join(rows[0][1].split())[:_BEGINNING]} [Data: {name} ({numbers})].")
    return " ".join(out) or "The tables hold nothing."
