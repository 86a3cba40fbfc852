"""What reading a corpus gives: documents, and what could not be read.

Both are values. A file that is no text, a row without text or a broken line is a fault of the data: it
is told as `Unreadable`, counted and listed as a failure, and never stops the reading of the others.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from graphrag_ray.base import ids
from graphrag_ray.base.wording import shortened

_SURROGATE = re.compile("[\ud800-\udfff]")
_INT64 = 2**63
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Document:
    """One text of the corpus.

    path      relative to INPUT, with forward slashes
    row       id or number of the row inside a table file; "" for a file that is one document
    text      decoded, with \\n line ends: what all offsets count (in characters)
    date      as written; None where there is none
    metadata  the other columns of a table's row, ready for JSON; empty for plain files
    encoding  what the bytes were decoded as
    """

    path: str
    row: str
    title: str
    text: str
    date: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    encoding: str = "utf-8"

    @property
    def id(self) -> str:
        return ids.document_id(self.path, self.row)

    @property
    def raw_data(self) -> str | None:
        """The metadata as a JSON object with sorted keys; None where there is none."""
        if not self.metadata:
            return None
        return json.dumps(dict(self.metadata), ensure_ascii=False, sort_keys=True)

    @property
    def content_hash(self) -> str:
        """SHA-256 (hex) of text, title, date and raw_data: whether a document changed between runs.

        Parts are length-prefixed, and a missing one differs from an empty one.
        """
        digest = hashlib.sha256()
        for part in (self.text, self.title, self.date, self.raw_data):
            data = None if part is None else part.encode("utf-8", "surrogatepass")
            digest.update(b"-" if data is None else b"%d:" % len(data) + data)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file, or a row of a table file, that gives no document.

    row     as in Document; "" for a whole file, or all of it from some row on
    reason  what is wrong and, where it is not obvious, what to do
    empty   a whole file without a character: nothing is wrong with it, unless it held something before
    """

    path: str
    row: str
    reason: str
    empty: bool = False

    @property
    def id(self) -> str:
        """The id of the document that would have been here: an earlier version of it can be kept."""
        return ids.document_id(self.path, self.row)


def clean(text: str) -> str:
    """Line ends as \\n; halves of surrogate pairs, which no UTF-8 can hold, as U+FFFD."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The text with white space folded, as titles and dates are kept."""
    return " ".join(clean(text).split())


def to_json(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """A table's value as JSON can hold it and read it back anywhere.

    Dates and times become ISO 8601, durations seconds, bytes text where they are UTF-8 and else base64,
    decimals and integers beyond 64 bits strings (no digit is lost), NaN and infinities null.
    Raises ValueError for values nested deeper than `depth`, with which others would overflow.
    """
    if depth < 0:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    # bool before int: a bool is an int
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {clean(str(k)): to_json(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v, depth - 1) for v in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return clean(value.decode("utf-8"))
        return base64.b64encode(value).decode("ascii")
    return clean(str(value))


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
            lines.append(f"{name}: {shortened(folded, MAX_SAID)}\n")
    return "".join(lines)
