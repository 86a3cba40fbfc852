"""The results of reading a corpus: documents, and what could not be read.

A file that is not text, a row without text or a broken line is a fault of the data: an `Unreadable`, which is
listed as a failure and never stops the reading of others.
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

METADATA_PREFIX = "metadata."  # prefix for a metadata column whose name is also a field of documents
MAX_METADATA_CHARACTERS = 300  # maximum characters of a metadata column above a chunk: one can hold a text
_SURROGATE = re.compile("[\ud800-\udfff]")
_INT64 = 2**63
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Document:
    """One text of the corpus.

    Attributes:
        path: Relative to INPUT, with forward slashes.
        row: Id or number of the row inside a table file; "" for a file that is one document.
        text: Decoded, with \\n line ends. All offsets count its characters.
        date: As written; None if there is none.
        metadata: The other columns of a table's row, JSON-compatible; empty for plain files.
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
        """The metadata as a JSON object with sorted keys; None if there is none."""
        return json.dumps(dict(self.metadata), ensure_ascii=False, sort_keys=True) if self.metadata else None

    @property
    def content_hash(self) -> str:
        """SHA-256 (hex) of text, title, date and raw_data, which tells whether a document changed."""
        digest = hashlib.sha256()
        for part in (self.text, self.title, self.date, self.raw_data):
            # Parts are length-prefixed, and a missing one differs from an empty one.
            data = None if part is None else part.encode("utf-8", "surrogatepass")
            digest.update(b"-" if data is None else b"%d:" % len(data) + data)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file, or a row of a table file, that yields no document.

    Attributes:
        row: As in `Document`; "" for a whole file, or for all of it from some row on.
        reason: What is wrong and, unless it is obvious, what to do.
        empty: A whole file without a character: a fault only if it held something before.
    """

    path: str
    row: str
    reason: str
    empty: bool = False

    @property
    def id(self) -> str:
        """The id that the document would have, so that an earlier version of it can be kept."""
        return ids.document_id(self.path, self.row)


def clean(text: str) -> str:
    """Convert line ends to \\n, and halves of surrogate pairs, which UTF-8 cannot hold, to U+FFFD."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def one_line(text: str) -> str:
    """Fold white space, as in stored titles and dates."""
    return " ".join(clean(text).split())


def to_json(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Convert a table's value to portable JSON.

    Dates and times become ISO 8601, durations seconds, bytes text if they are UTF-8 and else base64, decimals
    and integers beyond 64 bits strings (no digit is lost), NaN and infinities null.

    Raises:
        ValueError: If the value is nested deeper than `depth`, which would overflow other parsers.
    """
    if depth < 0:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    # bool before int, since a bool is an int
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


def parse_raw_data(raw_data: str | None) -> dict[str, Any]:
    """Parse `raw_data`; {} if it holds no columns or was not written by us."""
    with suppress(orjson.JSONDecodeError):
        if isinstance(columns := orjson.loads(raw_data or "null"), dict):
            return columns
    return {}


def column_at_path(columns: Mapping[str, Any], name: str) -> Any:
    """Return a column, or the value at a path inside one such as author.name; None if there is none."""
    inner: Any = columns
    while isinstance(inner, Mapping):
        first, dot, rest = name.partition(".")
        if name in inner or not dot:
            return inner.get(name)
        inner, name = inner.get(first), rest
    return None


def as_texts(value: Any) -> list[str]:
    """Return a value as texts: several for a list, flattened."""
    texts, pending = [], [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += reversed(item)
        elif isinstance(item, str):
            texts.append(item)
        elif item is not None:
            with suppress(orjson.JSONEncodeError):  # nested unreasonably deep
                texts.append(orjson.dumps(item).decode())
    return texts


def metadata_lines(columns: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return a line such as `author: Mara Venn` for each of these columns that the document has."""
    lines = []
    for name in names:
        texts = [
            text[: 8 * MAX_METADATA_CHARACTERS]
            for text in as_texts(column_at_path(columns, name))[:MAX_METADATA_CHARACTERS]
        ]
        if folded := one_line(", ".join(texts)):
            lines.append(f"{name}: {shortened(folded, MAX_METADATA_CHARACTERS)}\n")
    return "".join(lines)
