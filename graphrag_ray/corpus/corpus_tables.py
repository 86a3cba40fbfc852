"""Documents and chunks as Arrow tables (`schema.DOCUMENTS`, `schema.TEXT_UNITS`).

Columns are built from buffers: `pa.array` on a list imports pandas, which would cost every worker a
good part of a second at its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.base import ids, index_settings, schema
from graphrag_ray.base.arrow_arrays import arrow, strings
from graphrag_ray.corpus.chunks import chunk
from graphrag_ray.corpus.document import PREFIX, Document, metadata_lines, one_line
from graphrag_ray.corpus.document_titles import begins_with, own_title

MAX_HEADER_FIELD = 300
"""Characters of a title or a date that a chunk's header shows: a title can be a paragraph by mistake."""


def documents_table(documents: Iterable[Document]) -> pa.Table:
    """`schema.DOCUMENTS`, one row a document, in the order given.

    `human_readable_id` is 0 and `text_unit_ids` is empty: both are filled in when a snapshot is written.
    """
    docs = list(documents)
    columns: dict[str, Sequence[Any]] = {
        "id": [d.id for d in docs],
        "title": [d.title for d in docs],
        "text": [d.text for d in docs],
        "creation_date": [d.date for d in docs],
        "raw_data": [d.raw_data for d in docs],
        "path": [d.path for d in docs],
        "row": [d.row for d in docs],
        "content_hash": [d.content_hash for d in docs],
        "encoding": [d.encoding for d in docs],
    }
    return _table(schema.DOCUMENTS, len(docs), columns)


def text_units_table(document: Document, options: index_settings.Chunking, vocabulary: str) -> pa.Table:
    """`schema.TEXT_UNITS`, one row a chunk of the document, by position.

    A text unit's id is that of its document, its text and how many earlier chunks of the document have
    the same text: inserting a paragraph leaves the ids of the chunks it does not touch as they were.
    `human_readable_id` is 0 and the lists of ids are empty until a snapshot is written.
    """
    header = header_of(document, options)
    chunks = chunk(document.text, options, vocabulary, header(""))
    texts = [document.text[c.start : c.end] for c in chunks]
    document_id = document.id
    seen: Counter[str] = Counter()
    unit_ids = []
    for text in texts:
        unit_ids.append(ids.text_unit_id(document_id, text, seen[text]))
        seen[text] += 1
    columns: dict[str, Sequence[Any]] = {
        "id": unit_ids,
        "text": texts,
        "n_tokens": [c.n_tokens for c in chunks],
        "document_id": [document_id] * len(chunks),
        "position": range(len(chunks)),
        "start": [c.start for c in chunks],
        "end": [c.end for c in chunks],
        "header": [header(text) for text in texts],
    }
    return _table(schema.TEXT_UNITS, len(chunks), columns)


def header_of(document: Document, options: index_settings.Chunking) -> Callable[[str], str]:
    """What is written above a chunk of a document, by the chunk's text ("": whatever it is): a line for each
    field of `options.prepend` that the document has, then an empty line; "" where there is none."""
    names, title = options.prepend or (), one_line(document.title)
    own = ""
    if names == "auto":
        names, title = ("title", "date"), own_title(title, document.path, document.row)
        own = title
    fields = {"title": ("Title", title), "date": ("Date", one_line(document.date or ""))}
    lines = {}
    for name in names:
        if name not in fields:
            lines[name] = metadata_lines(document.metadata, [name.removeprefix(PREFIX)])
        elif value := fields[name][1]:
            lines[name] = f"{fields[name][0]}: {_shortened(value)}\n"
    whole = "".join(lines.values())
    rest = "".join(line for name, line in lines.items() if name != "title")

    def of(text: str) -> str:
        shown = rest if own and begins_with(text, own) else whole
        return shown and shown + "\n"

    return of


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_HEADER_FIELD else text[: MAX_HEADER_FIELD - 1].rstrip() + "…"


def _table(schema_: pa.Schema, rows: int, columns: dict[str, Sequence[Any]]) -> pa.Table:
    """Columns that are not given are 0 or empty lists, as `human_readable_id` and ids are at first."""
    arrays = []
    for column in schema_:
        values = columns.get(column.name)
        if pa.types.is_list(column.type):
            offsets = pa.py_buffer(np.zeros(rows + 1, dtype=np.int32))
            arrays.append(pa.Array.from_buffers(column.type, rows, [None, offsets], children=[strings([])]))
        elif pa.types.is_int64(column.type):
            arrays.append(arrow(np.fromiter(values or [0] * rows, dtype=np.int64, count=rows)))
        else:
            arrays.append(strings(columns[column.name], column.type))
    return pa.Table.from_arrays(arrays, schema=schema_)
