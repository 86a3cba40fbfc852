"""Read files of rows: .csv, .jsonl, .parquet, and .json with an array of objects."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Mapping
from typing import Any

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import Input
from graphrag_ray.base.urls import display_path
from graphrag_ray.corpus.decode import NotText
from graphrag_ray.corpus.table_rows import OPENERS, WHOLE_FILE, Table, TableRow, json_line
from graphrag_ray.query.question_files import ID_COLUMNS, QUESTION_COLUMNS, read_file

JSON = ".json"
EXTENSIONS = (*OPENERS, JSON)
_DELIMITING_COLUMNS = (*QUESTION_COLUMNS, *ID_COLUMNS, "document_id")


def read_table_file(url: str, options: Mapping[str, Any]) -> list[TableRow]:
    """Read the rows of a file. An unreadable row has an error instead of values. Raises UsageError."""
    source, extension = display_path(url), posixpath.splitext(url)[1].lower()
    if extension not in EXTENSIONS:
        raise UsageError(
            f"{source}: Unsupported file type {extension!r}. Choose from: {', '.join(EXTENSIONS)}"
        )
    content = read_file(url, options)
    if extension == JSON:
        return _json_rows(content, source)
    tables = list[Table]()
    for column in _DELIMITING_COLUMNS:  # A .csv file's delimiter is detected by this column.
        table = OPENERS[extension](io.BytesIO(content), Input(text_column=column))
        if isinstance(table, NotText):
            raise UsageError(f"{source}: {table.reason}")
        tables.append(table)
        if table.columns is None or column in table.columns:
            tables = [table]
            break
    rows = list(tables[0].rows)
    if damaged := next((row for row in rows if row.number == WHOLE_FILE), None):
        raise UsageError(f"{source}: {damaged.error}")
    return rows


def _json_rows(content: bytes, source: str) -> list[TableRow]:
    """Read an array of objects or questions, or a single object."""
    value, encoding, fault = json_line(content, "utf-8")
    if fault:
        raise UsageError(f"{source}: {fault}")
    if isinstance(value, dict) and any(isinstance(v, str) for v in value.values()):
        value = [value]
    if not isinstance(value, list):
        raise UsageError(f"{source} must contain a JSON array of objects. Write one object per row.")
    rows = []
    for number, item in enumerate(value, 1):
        row = {QUESTION_COLUMNS[0]: item} if isinstance(item, str) else item
        valid = isinstance(row, dict)
        rows.append(TableRow(number, row if valid else None, encoding, "" if valid else "not a JSON object"))
    return rows
