"""Document readers: how the files of INPUT become documents, by extension.

A reader is a plug-in of the entry-point group `graphrag_ray.readers`. Its name is the extension that it
reads, without the dot:

    [project.entry-points."graphrag_ray.readers"]
    epub = "my_package.epub:READER"

The built-in formats use the same API (`parse.py`). Each process that reads looks its readers up by itself,
so on a cluster the package must be installed on every node.
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
from graphrag_ray.base.unforeseen import is_unforeseen
from graphrag_ray.corpus.document import Document, Unreadable, clean, one_line, to_json

__all__ = ["READERS", "Document", "Input", "Reader", "Unreadable", "documents_in", "extensions"]

_BLOCK_BYTES = 1 << 20
_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the files of one format.

    Attributes:
        read: called with a file, its path relative to INPUT and the settings under `input`. Yields a
            `Document` for each text in the file, with that path and, if there can be several, a `row` that
            tells them apart and stays the same from run to run; an `Unreadable` for what cannot be read.
        streams: False: the file is a seekable stream of all its bytes, at most `input.max_bytes` of them.
            True: the file may have any size, and only `read` is certain to work.
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
    """What can be read, in lower case and with the dot; a file's own extension may have any case."""
    return [f".{name}" for name in READERS]


def documents_in(
    path: str, stream: BinaryIO, options: Input, package: str = ""
) -> Iterator[Document | Unreadable]:
    """Read one file: one value for a .txt, .md or .html file, one a row for a .jsonl, .csv or .parquet file.

    A fault of a whole file is one value with row "", and so is any fault of a reader from another package.
    Errors of the stream itself (a network that fails) are raised: they say nothing about the document.

    Args:
        path: relative to INPUT, with forward slashes.
        stream: only `read` is used; by readers of .parquet files `seek` and `tell`, too.
        package: the package whose reader the driver found for this file, or which read it before.
    """
    # A file system's names need not be UTF-8, but messages about them must be.
    path = path.encode("utf-8", "backslashreplace").decode("utf-8")
    extension = PurePosixPath(path).suffix.lower()
    name = extension[1:]
    if name not in READERS:
        known = " ".join(sorted(extensions()))
        why = f"no known kind of file: {extension or 'no extension'} (known: {known})"
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
        data = _whole(stream, options.max_bytes)
        if data is None:
            limit = f"input.max_bytes ({options.max_bytes:,})"
            yield Unreadable(path, "", f"larger than {limit}: split it, or raise the limit")
            return
        stream = io.BytesIO(data)
    if package := READERS.package_of(name):
        yield from _checked(reader, path, stream, options, f"the {extension} reader of the package {package}")
    else:
        yield from reader.read(stream, path, options)


def _whole(stream: BinaryIO, limit: int) -> bytes | None:
    """All bytes, or None where there are more than the limit."""
    blocks, size = [], 0
    while block := stream.read(_BLOCK_BYTES):
        size += len(block)
        if size > limit:
            return None
        blocks.append(block)
    return b"".join(blocks)


def _checked(
    reader: Reader, path: str, stream: BinaryIO, options: Input, who: str
) -> Iterator[Document | Unreadable]:
    """What a reader of another package yields, made fit to be stored; its first error ends the file."""
    rows: set[str] = set()
    try:
        for value in reader.read(stream, path, options):
            found = _fit(value, path, who)
            if found.row in rows:
                raise ValueError(f"it yielded two documents with the row {found.row[:100]!r}")
            rows.add(found.row)
            yield found
        if not rows:
            yield Unreadable(path, "", f"{who} found no document")
    except BaseException as e:
        if (isinstance(e, OSError) and reader.streams) or not (
            is_unforeseen(e) or isinstance(e, GraphRagError)
        ):
            raise
        what = f"{type(e).__name__}: {one_line(str(e))}"[:_ERROR_CHARACTERS]
        yield Unreadable(path, "", f"{who} failed: {what}")


def _fit(found: Any, path: str, who: str) -> Document | Unreadable:
    """A document with clean text and metadata fit for JSON. Raises TypeError for values of a wrong type."""
    if isinstance(found, Unreadable):
        return Unreadable(path, one_line(found.row), f"{who}: {one_line(found.reason)}", found.empty is True)
    if not isinstance(found, Document):
        raise TypeError(f"it yielded a {type(found).__name__}, which is no Document or Unreadable")
    for name in ("row", "title", "text", "encoding"):
        if not isinstance(getattr(found, name), str):
            raise TypeError(f"{name} of a document is a {type(getattr(found, name)).__name__}, not a str")
    if not isinstance(found.date, str | None) or not isinstance(found.metadata, Mapping):
        raise TypeError("date of a document must be a str or None, and metadata a mapping")
    text, row = clean(found.text), one_line(found.row)
    if not text.strip():
        return Unreadable(path, row, "empty: no character but white space")
    title = one_line(found.title) or f"{PurePosixPath(path).stem} {row}".strip()
    return replace(
        found,
        path=path,
        row=row,
        title=title,
        text=text,
        date=one_line(found.date) or None if found.date else None,
        metadata=to_json(found.metadata),
        encoding=one_line(found.encoding),
    )
