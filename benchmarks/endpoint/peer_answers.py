"""Answers to microsoft/graphrag's queries that cite the first records of its context tables.

The answer shows which records the context contained, and that their references resolve.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

import orjson

Messages = Sequence[tuple[str, str]]
"""(role, content) of each message."""
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
"""Number of records cited per table, and of characters quoted from the first record."""


def answer_query(messages: Messages) -> str | None:
    """The answer to a query of microsoft/graphrag, or None for other calls."""
    prompt = messages[0][1]
    if _ANALYSTS in prompt:
        return _between(prompt, _ANALYSTS)
    if _TABLES not in prompt:
        return None
    tables = _between(prompt, _TABLES)
    text = _cited_text(_tables(tables) or [("Reports" if _POINTS in prompt else "Sources", _csv(tables))])
    if _POINTS in prompt:
        return orjson.dumps({"points": [{"description": text, "score": 80}]}).decode()
    if _FOLLOW_UPS in prompt:
        return orjson.dumps({"response": text, "score": 80, _FOLLOW_UPS: []}).decode()
    return text


def _between(prompt: str, heading: str) -> str:
    """The text below a heading, down to the next one."""
    return prompt.partition(heading)[2].partition("\n---Goal---")[0].strip()


def _tables(text: str) -> list[tuple[str, Rows]]:
    """Tables under headings: a record begins with its number, and its text is not quoted."""
    pieces = _TABLE.split(text)
    return [(name, _ROW.findall(table)) for name, table in zip(pieces[1::2], pieces[2::2], strict=True)]


def _csv(text: str) -> Rows:
    """The single table of a map call, or of basic search, which has no heading and quotes its cells."""
    rows = csv.reader(io.StringIO(text), delimiter="|", escapechar="\\")
    return [(row[0], row[1]) for row in rows if len(row) > 1 and row[0].isdecimal()]


def _cited_text(tables: Sequence[tuple[str, Rows]]) -> str:
    """The beginning of the first record of each table, and a reference to its first records."""
    out = []
    for name, rows in tables:
        if rows:
            numbers = ", ".join(number for number, _ in rows[:_CITED])
            out.append(f"{' '.join(rows[0][1].split())[:_BEGINNING]} [Data: {name} ({numbers})].")
    return " ".join(out) or "The tables hold nothing."
