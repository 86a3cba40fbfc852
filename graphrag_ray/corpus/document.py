"""The results of reading a corpus: documents, and files or rows that could not be read.

A file that is not text, a row without text or a malformed line yields an `Unreadable`, which is listed as a
failure and does not affect other documents.
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
from graphrag_ray.base.wording import shorten

METADATA_PREFIX = "metadata."  # distinguishes a metadata column from the document field of the same name
MAX_METADATA_CHARACTERS = 300  # maximum length of a metadata value above a chunk
_SURROGATE = re.compile("[\ud800-\udfff]")
_INT64 = 2**63
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Document:
    """One text of the corpus.

    Attributes:
        path: Relative to INPUT, with forward slashes.
        row: Id or number of the row inside a table file; "" for a file that is one document.
        text: Decoded, with \\n line endings. All offsets count its characters.
        date: As written in metadata, otherwise in ISO 8601. None if unknown.
        date_source: Where the date was found: "metadata", "text" or "file name". None if there is no date.
        metadata: The other columns of a table's row, as JSON-compatible values. Empty for plain files.
    """

    path: str
    row: str
    title: str
    text: str
    date: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    encoding: str = "utf-8"
    date_source: str | None = None

    @property
    def id(self) -> str:
        return ids.document_id(self.path, self.row)

    @property
    def raw_data(self) -> str | None:
        """The metadata as a JSON object with sorted keys, or None if there is no metadata."""
        return json.dumps(dict(self.metadata), ensure_ascii=False, sort_keys=True) if self.metadata else None

    @property
    def content_hash(self) -> str:
        """SHA-256 (hex) of text, title, date and raw_data, to detect changed documents."""
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
        row: As in `Document`. "" if the whole file, or all of it after some row, could not be read.
        reason: The problem and, unless obvious, how to solve it.
        empty: The whole file is empty, which is a failure only if it had content in the previous snapshot.
    """

    path: str
    row: str
    reason: str
    empty: bool = False

    @property
    def id(self) -> str:
        """The id that the document would have, to find an earlier version of it in the index."""
        return ids.document_id(self.path, self.row)


def normalise_text(text: str) -> str:
    """Convert line endings to \\n, and lone surrogates, which UTF-8 cannot encode, to U+FFFD."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def one_line(text: str) -> str:
    """Collapse whitespace, as in stored titles and dates."""
    return " ".join(normalise_text(text).split())


def to_json(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Convert a table's value to portable JSON.

    Dates and times become ISO 8601 strings, durations become seconds, and bytes become UTF-8 text or base64.
    Decimals and integers beyond 64 bits become strings. NaN and infinities become null.

    Raises:
        ValueError: If the value is nested more than `depth` levels deep, which other parsers cannot read.
    """
    if depth < 0:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    # Test bool before int, because a bool is an int.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return normalise_text(value)
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {normalise_text(str(k)): to_json(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v, depth - 1) for v in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return normalise_text(value.decode("utf-8"))
        return base64.b64encode(value).decode("ascii")
    return normalise_text(str(value))


def parse_raw_data(raw_data: str | None) -> dict[str, Any]:
    """Parse `raw_data`. Returns {} if it is not a JSON object."""
    with suppress(orjson.JSONDecodeError):
        if isinstance(columns := orjson.loads(raw_data or "null"), dict):
            return columns
    return {}


def column_at_path(columns: Mapping[str, Any], name: str) -> Any:
    """Return a column, or a nested value by its path, such as `author.name`. Returns None if missing."""
    value: Any = columns
    while isinstance(value, Mapping):
        first, dot, rest = name.partition(".")
        if name in value or not dot:
            return value.get(name)
        value, name = value.get(first), rest
    return None


def as_texts(value: Any) -> list[str]:
    """Return a value as a list of texts. Nested lists are flattened."""
    texts, pending = [], [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += reversed(item)
        elif isinstance(item, str):
            texts.append(item)
        elif item is not None:
            with suppress(orjson.JSONEncodeError):  # nested too deeply
                texts.append(orjson.dumps(item).decode())
    return texts


def metadata_lines(columns: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return a line such as `author: Mara Venn` for each named column that the document has."""
    lines = []
    for name in names:
        texts = [
            text[: 8 * MAX_METADATA_CHARACTERS]
            for text in as_texts(column_at_path(columns, name))[:MAX_METADATA_CHARACTERS]
        ]
        if folded := one_line(", ".join(texts)):
            lines.append(f"{name}: {shorten(folded, MAX_METADATA_CHARACTERS)}\n")
    return "".join(lines)
