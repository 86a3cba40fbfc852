"""Document readers, which turn the files in INPUT into documents.

A reader is a plugin of the entry-point group `graphrag_ray.readers`, named after the extension it reads,
without the dot. The built-in formats use the same API (`parse.py`):

    [project.entry-points."graphrag_ray.readers"]
    epub = "my_package.epub:READER"

Every process loads its own readers, so on a cluster the package must be installed on every node.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.index_settings import Input
from graphrag_ray.base.plugins import PluginError, Registry
from graphrag_ray.base.unexpected_errors import is_unexpected
from graphrag_ray.corpus.document import Document, Unreadable, normalise_text, one_line, to_json

__all__ = ["READERS", "Document", "Input", "Reader", "Unreadable", "documents_in", "extensions"]

_BLOCK_BYTES = 1 << 20
_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the files of one format.

    Attributes:
        read: Takes a file, its path relative to INPUT and the settings under `input`. Yields a `Document` for
            each text and an `Unreadable` for each part that cannot be read, with that path. If there can be
            several documents, their `row` must identify them across runs.
        streams: If False, the file is a seekable stream of at most `input.max_bytes`. If True, it may have
            any size, and only `read` is guaranteed to work.
    """

    read: Callable[[BinaryIO, str, Input], Iterable[Document | Unreadable]]
    streams: bool = False


READERS = Registry(
    "graphrag_ray.readers",
    "document reader",
    Reader,
    {
        "txt": "graphrag_ray.corpus.parse:TEXT",
        "md": "graphrag_ray.corpus.parse:MARKDOWN",
        "html": "graphrag_ray.corpus.parse:HTML",
        "htm": "graphrag_ray.corpus.parse:HTML",
        "jsonl": "graphrag_ray.corpus.parse:JSONL",
        "csv": "graphrag_ray.corpus.parse:CSV",
        "parquet": "graphrag_ray.corpus.parse:PARQUET",
    },
)


def extensions() -> list[str]:
    """Return the supported extensions, in lower case and with the dot."""
    return [f".{name}" for name in READERS]


def documents_in(
    path: str, stream: BinaryIO, options: Input, package: str = ""
) -> Iterator[Document | Unreadable]:
    """Read one file: one value per .txt, .md or .html file, or per row of a .jsonl, .csv or .parquet file.

    A fault of a whole file is one value with row "", and so is any fault of a reader from another package.
    Errors of the stream itself (a failing network) are raised, because they do not concern the document.

    Args:
        path: Relative to INPUT, with forward slashes. The extension is case-insensitive.
        stream: Needs only `read`, and for .parquet files `seek` and `tell`.
        package: The package whose reader the driver found for this file or an earlier run used.
    """
    # File names need not be UTF-8, but messages about them must be.
    path = path.encode("utf-8", "backslashreplace").decode("utf-8")
    extension = PurePosixPath(path).suffix.lower()
    name = extension[1:]
    if name not in READERS:
        known = " ".join(sorted(extensions()))
        why = f"unknown file format: {extension or 'no extension'} (known: {known})"
        if package:
            why = f"no reader for {extension}: install the package {package} (on a cluster, on every node)"
        yield Unreadable(path, "", why)
        return
    try:
        reader = READERS[name]
    except PluginError as e:
        yield Unreadable(path, "", str(e))
        return
    if not reader.streams:
        blocks, size = [], 0
        while block := stream.read(_BLOCK_BYTES):
            size += len(block)
            if size > options.max_bytes:
                limit = f"input.max_bytes ({options.max_bytes:,})"
                yield Unreadable(path, "", f"larger than {limit}: split it, or raise the limit")
                return
            blocks.append(block)
        stream = io.BytesIO(b"".join(blocks))
    if package := READERS.package_of(name):
        label = f"the {extension} reader of the package {package}"
        yield from _read_with_plugin(reader, path, stream, options, label)
    else:
        yield from reader.read(stream, path, options)


def _read_with_plugin(
    reader: Reader, path: str, stream: BinaryIO, options: Input, label: str
) -> Iterator[Document | Unreadable]:
    """Yield the values of another package's reader, normalised for storage. Its first error ends the file."""
    rows: set[str] = set()
    try:
        for value in reader.read(stream, path, options):
            checked = _normalised(value, path, label)
            if checked.row in rows:
                raise ValueError(f"it yielded two documents with the row {checked.row[:100]!r}")
            rows.add(checked.row)
            yield checked
        if not rows:
            yield Unreadable(path, "", f"{label} found no document")
    except BaseException as e:
        if (isinstance(e, OSError) and reader.streams) or not (
            is_unexpected(e) or isinstance(e, GraphRagError)
        ):
            raise
        what = f"{type(e).__name__}: {one_line(str(e))}"[:_ERROR_CHARACTERS]
        yield Unreadable(path, "", f"{label} failed: {what}")


def _normalised(value: Any, path: str, label: str) -> Document | Unreadable:
    """Normalise a value of another package's reader. Raises TypeError for values of a wrong type."""
    if isinstance(value, Unreadable):
        reason = f"{label}: {one_line(value.reason)}"
        return Unreadable(path, one_line(value.row), reason, value.empty is True)
    if not isinstance(value, Document):
        raise TypeError(f"it yielded a {type(value).__name__}, not a Document or Unreadable")
    for name in ("row", "title", "text", "encoding"):
        if not isinstance(getattr(value, name), str):
            raise TypeError(f"{name} of a document is a {type(getattr(value, name)).__name__}, not a str")
    if not isinstance(value.date, str | None) or not isinstance(value.metadata, Mapping):
        raise TypeError("date of a document must be a str or None, and metadata a mapping")
    text, row = normalise_text(value.text), one_line(value.row)
    if not text.strip():
        return Unreadable(path, row, "empty: only whitespace")
    return replace(
        value,
        path=path,
        row=row,
        title=one_line(value.title) or f"{PurePosixPath(path).stem} {row}".strip(),
        text=text,
        date=one_line(value.date or "") or None,
        metadata=to_json(value.metadata),
        encoding=one_line(value.encoding),
    )
