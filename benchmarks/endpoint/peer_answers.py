"""Answers to questions that microsoft/graphrag asks of an index: they name the first records of its tables.

So what the tool prints shows which records its context held, and that its references are theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

Messages = Sequence[tuple[str, str]]
"""(role, content) of each."""

_TABLES = "---Data tables---"
_ANALYSTS = "---Analyst Reports---"
_TABLE = re.compile(r"-----([A-Za-z]+)-----\n")
_ROW = re.compile(r"^(\d+)\|([^|\n]*)", re.MULTILINE)
_POINTS = '"points": ['
_FOLLOW_UPS = "follow_up_queries"
_CITED = 3
_TOLD = 80
"""Records that are cited of each table; characters of the first that are repeated."""


def told(messages: Messages) -> str | None:
    """None for what is no such question."""
    prompt = messages[0][1]
    if _ANALYSTS in prompt:
        return _between(prompt, _ANALYSTS)
    if _TABLES not in prompt:
        return None
    # The table of a map call, and that of basic search, have no heading.
    text = _records(_between(prompt, _TABLES), "Reports" if _POINTS in prompt else "Sources")
    if _POINTS in prompt:
        return orjson.dumps({"points": [{"description": text, "score": 80}]}).decode()
    if _FOLLOW_UPS in prompt:
        return orjson.dumps({"response": text, "score": 80, _FOLLOW_UPS: []}).decode()
    return text


def _between(prompt: str, heading: str) -> str:
    """What stands below a heading, down to the next."""
    return prompt.partition(heading)[2].partition("\n---Goal---")[0].strip()


def _records(tables: str, without_heading: str) -> str:
    """A reference to the first records of each table."""
    pieces = _TABLE.split(tables)
    named = list(zip(pieces[1::2], pieces[2::2], strict=True)) or [(without_heading, tables)]
    out = []
    for name, table in named:
        rows = _ROW.findall(table)
        if rows:
            numbers = ", ".join(number for number, _ in rows[:_CITED])
            out.append(f"{rows[0][1][:_TOLD].strip()} [Data: {name} ({numbers})].")
    return " ".join(out) or "The tables hold nothing."
