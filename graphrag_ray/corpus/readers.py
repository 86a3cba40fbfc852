"""Document readers: how the files of INPUT become documents, by extension.

A reader is a plug-in of the entry-point group `graphrag_ray.readers`, named after the extension it reads,
without the dot. The built-in formats use the same API (`parse.py`):

    [project.entry-points."graphrag_ray.readers"]
    epub = "my_package.epub:READER"

Every process looks up its readers by itself, so on a cluster the package must be installed on every node.
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
from graphrag_ray.corpus.document import Document, Unreadable, clean, one_line, to_json

__all__ = ["READERS", "Document", "Input", "Reader", "Unreadable", "documents_in", "extensions"]

_BLOCK_BYTES = 1 << 20
_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the files of one format.

    Attributes:
        read: Takes a file, its path relative to INPUT and the settings under `input`. Yields a `Document` for
            each text, with that path and, if there can be several, a `row` that identifies them from run to
            run; and an `Unreadable` for what cannot be read.
        streams: If False, the file is a seekable stream of at most `input.max_bytes`. If True, it may have
            any size, and only its `read` is certain to work.
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
    """Return the extensions that can be read, in lower case and with the dot."""
    return [f".{name}" for name in READERS]


def documents_in(
    path: str, stream: BinaryIO, options: Input, package: str = ""
) -> Iterator[Document | Unreadable]:
    """Read one file: a value per .txt, .md or .html file, or per row of a .jsonl, .csv or .parquet file.

    A fault of a whole file is one value with row "", and so is any fault of a reader from another package.
    Errors of the stream itself (a failing network) are raised, since they say nothing about the document.

    Args:
        path: Relative to INPUT, with forward slashes; its extension may be in any case.
        stream: Only `read` is used, and `seek` and `tell` for .parquet files.
        package: The package whose reader the driver found for this file, or which read it before.
    """
    # File names need not be UTF-8, but messages about them must be.
    path = path.encode("utf-8", "backslashreplace").decode("utf-8")
    extension = PurePosixPath(path).suffix.lower()
    name = extension[1:]
    if name not in READERS:
        known = " ".join(sorted(extensions()))
        why = f"unknown file format: {extension or 'no extension'} (known: {known})"
        if package:
            why = f"no reader for {extension}: install the package {package}, also on every node of a cluster"
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
        yield from _checked(reader, path, stream, options, f"the {extension} reader of the package {package}")
    else:
        yield from reader.read(stream, path, options)


def _checked(
    reader: Reader, path: str, stream: BinaryIO, options: Input, who: str
) -> Iterator[Document | Unreadable]:
    """Yield what a reader of another package yields, made fit for storage; its first error ends the file."""
    rows: set[str] = set()
    try:
        for value in reader.read(stream, path, options):
            checked = _fit(value, path, who)
            if checked.row in rows:
                raise ValueError(f"it yielded two documents with the row {checked.row[:100]!r}")
            rows.add(checked.row)
            yield checked
        if not rows:
            yield Unreadable(path, "", f"{who} found no document")
    except BaseException as e:
        if (isinstance(e, OSError) and reader.streams) or not (
            is_unexpected(e) or isinstance(e, GraphRagError)
        ):
            raise
        what = f"{type(e).__name__}: {one_line(str(e))}"[:_ERROR_CHARACTERS]
        yield Unreadable(path, "", f"{who} failed: {what}")


def _fit(value: Any, path: str, who: str) -> Document | Unreadable:
    """Clean text and metadata. Raises TypeError for values of a wrong type."""
    if isinstance(value, Unreadable):
        return Unreadable(path, one_line(value.row), f"{who}: {one_line(value.reason)}", value.empty is True)
    if not isinstance(value, Document):
        raise TypeError(f"it yielded a {type(value).__name__}, which is no Document or Unreadable")
    for name in ("row", "title", "text", "encoding"):
        if not isinstance(getattr(value, name), str):
            raise TypeError(f"{name} of a document is a {type(getattr(value, name)).__name__}, not a str")
    if not isinstance(value.date, str | None) or not isinstance(value.metadata, Mapping):
        raise TypeError("date of a document must be a str or None, and metadata a mapping")
    text, row = clean(value.text), one_line(value.row)
    if not text.strip():
        return Unreadable(path, row, "empty: nothing but white space")
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
