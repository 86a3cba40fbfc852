"""The built-in readers (`readers.py`), and documents made from rows in memory or of a dataset.

Table files are streamed row by row and may have any size. Text files are read into memory. Faults in the data
become `Unreadable` values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import regex

from graphrag_ray.base import index_settings, unexpected_errors
from graphrag_ray.base.ids import stable_id
from graphrag_ray.corpus.decode import NotText, decode
from graphrag_ray.corpus.document import Document, Unreadable, normalise_text, one_line, to_json
from graphrag_ray.corpus.input_splits import Segment, Split, parquet_segments
from graphrag_ray.corpus.markup import declared_charset, read_html
from graphrag_ray.corpus.readers import Reader
from graphrag_ray.corpus.table_rows import (
    OPENERS,
    WHOLE_FILE,
    Opener,
    Table,
    TableRow,
    jsonl_rows,
    open_parquet,
)

DATASET_PATH = "dataset"  # path of documents from a dataset or a table in memory

ROW_PREFIX = "row"  # precedes the number of a row without a known id

# CPU time limit of `input.strip_pattern` on a text, because settings can come with an untrusted index.
_STRIP_S, _STRIP_S_PER_CHARACTER = 2.0, 2e-6
_MAX_LISTED_COLUMNS = 50
_NAME_LENGTH = 20  # length in hex characters of the content hash that identifies a row
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*)")
_NO_HEADER = "empty: no header row"
_FENCE = re.compile(r" {0,3}(```|~~~)")


def _read_text(
    kind: str, stream: BinaryIO, path: str, options: index_settings.Input
) -> Iterator[Document | Unreadable]:
    data = stream.read()
    decoded = decode(data, declared_charset(data) if kind == "html" else None)
    if isinstance(decoded, NotText):
        yield Unreadable(path, "", decoded.reason)
        return
    text, title, date = normalise_text(decoded.text), None, None
    if not text.strip():
        why = "empty: only whitespace. If that is intended, remove the file from INPUT"
        yield Unreadable(path, "", why, empty=True)
        return
    if kind == "html":
        page = read_html(text)
        # Clean again, because a page can contain a carriage return as an entity.
        text, title, date = normalise_text(page.text), page.title, page.date
        why = "no text except markup, scripts and navigation"
    else:
        if options.strip_pattern:
            limit_s = _STRIP_S + len(text) * _STRIP_S_PER_CHARACTER
            try:
                match = regex.match(options.strip_pattern, text, timeout=limit_s)
            except TimeoutError:
                why = f"input.strip_pattern takes longer than {limit_s:.1f} s on this text"
                yield Unreadable(path, "", f"{why}. Avoid nested repetitions, or set it to null")
                return
            text = text[match.end() :] if match else text
        title = _first_heading(text) if kind == "md" else None
        why = "input.strip_pattern matches the whole text"
    if not text.strip():
        yield Unreadable(path, "", f"empty: {why}")
    else:
        yield Document(path, "", title or PurePosixPath(path).stem, text, date, {}, decoded.encoding)


def _first_heading(text: str) -> str | None:
    """Return the first `# heading` of a Markdown text outside code blocks."""
    fence = ""
    for match in re.finditer(r".+", text):
        line = match.group()
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1] == fence else fence
        elif mark:
            fence = mark[1]
        elif (title := _HEADING.match(line)) and (heading := title[1].rstrip().rstrip("#").strip()):
            return one_line(heading)
    return None


def _read_table(
    opener: Opener, stream: BinaryIO, path: str, options: index_settings.Input
) -> Iterator[Document | Unreadable]:
    table = opener(stream, options)
    if fault := _fault_of(table, options):
        yield Unreadable(path, "", fault, empty=fault == _NO_HEADER and path.lower().endswith(".csv"))
        return
    assert isinstance(table, Table)
    empty, ids = True, set[str]()
    # Rows of .jsonl files can have different columns. If no row has the text column, that is a single fault
    # of the file. So rows are deferred, without their values, until one has the column.
    has_text_column, columns, deferred = table.columns is not None, dict[str, None](), list[TableRow]()
    for row in table.rows:
        empty = False
        has_text_column = has_text_column or (row.values is not None and options.text_column in row.values)
        if has_text_column or row.values is None:
            deferred.append(row)
        else:
            deferred.append(
                TableRow(row.number, {k: v for k, v in row.values.items() if k == options.id_column})
            )
            if len(columns) < _MAX_LISTED_COLUMNS:
                columns.update(dict.fromkeys(row.values))
        if has_text_column:
            yield from (_document_of(path, deferred_row, options, ids) for deferred_row in deferred)
            deferred.clear()
    if columns and not has_text_column:
        yield Unreadable(path, "", missing_column_fault(list(columns), options))
    else:
        yield from (_document_of(path, deferred_row, options, ids) for deferred_row in deferred)
    if empty:
        yield Unreadable(path, "", "empty: no rows", empty=path.lower().endswith(".jsonl"))


TEXT, MARKDOWN, HTML = (Reader(partial(_read_text, kind)) for kind in ("txt", "md", "html"))
JSONL, CSV, PARQUET = (Reader(partial(_read_table, opener), streams=True) for opener in OPENERS.values())


def documents_from_split(
    path: str, stream: BinaryIO, options: index_settings.Input, split: Split, names: set[str]
) -> Iterator[Document | Unreadable]:
    """Read a split of a .jsonl or .parquet file.

    For a .jsonl file, `stream` contains only the split. `names` are the ids (`input.id_column`) of earlier
    rows; the ids of this split are added.
    """
    if path.lower().endswith(".jsonl"):
        rows = jsonl_rows(stream, "utf-8", split.row, split.line)
    else:
        table = open_parquet(stream, options, (split.start, split.end), split.row)
        if isinstance(table, NotText):
            yield Unreadable(path, "", table.reason)
            return
        rows = table.rows
    for row in rows:
        yield _document_of(path, row, options, names)


def parquet_segments_of(stream: BinaryIO, options: index_settings.Input) -> list[Segment]:
    """Return the row groups of a .parquet file. Returns none if it cannot be split."""
    if not stream.seekable() or _fault_of(open_parquet(stream, options), options):
        return []
    return parquet_segments(stream)


def documents_from_rows(
    rows: Iterable[TableRow], options: index_settings.Input
) -> Iterator[Document | Unreadable]:
    """Make documents from rows that are not in a file. The order of rows and null cells do not matter.

    Without `input.id_column`, a row is identified by a hash of its content, so equal rows are one document.
    """
    for row in rows:
        if row.values is None:
            named_row = replace(row, name=stable_id("row", row.error)[:_NAME_LENGTH])
        else:
            values = {n: v for n, v in row.values.items() if v is not None and v == v}  # noqa: PLR0124 - NaN
            try:
                content = json.dumps(to_json(values), ensure_ascii=False, sort_keys=True)
            except ValueError:  # nested too deeply
                content = ", ".join(sorted(map(str, values)))
            named_row = replace(row, values=values, name=stable_id("row", content)[:_NAME_LENGTH])
        yield _document_of(DATASET_PATH, named_row, options, set())


def _fault_of(table: Table | NotText, options: index_settings.Input) -> str:
    """Return why no row of a table can be read, or "" if some may be readable."""
    if isinstance(table, NotText):
        return table.reason
    return "" if table.columns is None else missing_column_fault(table.columns, options)


def missing_column_fault(columns: Sequence[str], options: index_settings.Input) -> str:
    """Return why a table with these columns cannot be read, or "" if it can."""
    if not columns:
        return _NO_HEADER
    for key, column in (("text_column", options.text_column), ("id_column", options.id_column)):
        if column is not None and column not in columns:
            listed = ", ".join(columns[:_MAX_LISTED_COLUMNS])
            return f"no column {column!r}; the columns are: {listed} (set input.{key})"
    return ""


def _document_of(
    path: str, row: TableRow, options: index_settings.Input, ids: set[str]
) -> Document | Unreadable:
    """Return the document of a row and add its id to `ids`. An unexpected error affects only this row."""
    # The prefix distinguishes the number of a row without a known id from the id of another row.
    number = f"{ROW_PREFIX} {row.number}" if options.id_column else str(row.number)
    row_name = "" if row.number == WHOLE_FILE else row.name or number
    try:
        return _document(path, row, row_name, options, ids)
    except Exception as e:  # noqa: BLE001 - any error concerns only this row
        return Unreadable(path, row_name, unexpected_errors.describe_unexpected_error(e))


def _document(
    path: str, row: TableRow, row_name: str, options: index_settings.Input, ids: set[str]
) -> Document | Unreadable:
    if row.values is None:
        return Unreadable(path, row_name, row.error)
    name = row_name
    if options.id_column is not None:
        name = _as_line(row.values.get(options.id_column)) or ""
        if not name:
            return Unreadable(path, row_name, f"{row_name} has no id (column {options.id_column!r})")
        if name in ids:
            return Unreadable(path, name, f"{row_name} has the id {name!r} of an earlier row")
        ids.add(name)
    text = row.values.get(options.text_column)
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            text = ""
    text = normalise_text(text) if isinstance(text, str) else ""
    if not text.strip():
        return Unreadable(path, name, f"row {name} has no text (column {options.text_column!r})")
    used = (options.text_column, options.id_column, options.title_column, options.date_column)
    try:
        metadata = {
            normalise_text(name): to_json(value) for name, value in row.values.items() if name not in used
        }
    except ValueError as e:
        return Unreadable(path, name, f"row {name} has a value that cannot be stored: {e}")
    title, date = (
        None if column is None else _as_line(row.values.get(column))
        for column in (options.title_column, options.date_column)
    )
    title = title or f"{PurePosixPath(path).stem} {name}"
    return Document(path, name, title, text, date, metadata, row.encoding)


def _as_line(value: Any) -> str | None:
    """Return an id, title or date as one line. Returns None if it is missing or not a scalar."""
    if isinstance(value, Mapping | list | tuple):
        return None
    plain = to_json(value)
    return None if plain is None else one_line(str(plain)) or None
