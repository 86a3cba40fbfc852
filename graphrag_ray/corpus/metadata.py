"""Columns of a document's metadata by name, as texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from graphrag_ray.corpus.document import one_line

PREFIX = "metadata."
"""Before a name: a column of the metadata, where a document's own field has the same name."""
MAX_SAID = 300
"""Characters of a column that are said above a chunk: one can hold a text."""


def columns_of(raw_data: str | None) -> dict[str, Any]:
    """`raw_data` as columns; {} where it holds none."""
    try:
        found = orjson.loads(raw_data or "null")
    except orjson.JSONDecodeError:
        return {}  # not written by us
    return found if isinstance(found, dict) else {}


def column(columns: Mapping[str, Any], name: str) -> Any:
    """A column, or what a path such as author.name leads to inside of one; None where there is none."""
    inner: Any = columns
    while isinstance(inner, Mapping):
        first, dot, rest = name.partition(".")
        if name in inner or not dot:
            return inner.get(name)
        inner, name = inner.get(first), rest
    return None


def as_texts(value: Any) -> list[str]:
    """A value as texts: several of a list, and of lists in it."""
    found, pending = [], [value]
    while pending:
        one = pending.pop()
        if isinstance(one, list):
            pending += reversed(one)
        elif isinstance(one, str):
            found.append(one)
        elif one is not None:
            with suppress(orjson.JSONEncodeError):  # nested deeper than anybody would ask for
                found.append(orjson.dumps(one).decode())
    return found


def metadata_lines(columns: Mapping[str, Any], names: Sequence[str]) -> str:
    """`author: Mara Venn`: a line for each of these columns that the document has."""
    lines = []
    for name in names:
        texts = [text[: 8 * MAX_SAID] for text in as_texts(column(columns, name))[:MAX_SAID]]
        if folded := one_line(", ".join(texts)):
            cut = folded if len(folded) <= MAX_SAID else folded[: MAX_SAID - 1].rstrip() + "…"
            lines.append(f"{name}: {cut}\n")
    return "".join(lines)
