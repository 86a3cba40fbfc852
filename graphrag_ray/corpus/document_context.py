"""What identifies a document to a model that sees one of its chunks: its title, its date and its opening.

The paper (3.1.1) splits documents into chunks without any context. A chunk by itself often does not say who
"we" are or when "this quarter" is, so the graph loses both.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath

from graphrag_ray.base.index_settings import Input
from graphrag_ray.corpus.document import Document, one_line
from graphrag_ray.corpus.document_dates import date_in_first_lines, date_in_name
from graphrag_ray.corpus.document_titles import HEADING_MARKS, begins_with, explicit_title
from graphrag_ray.corpus.tokens import token_ends

BEGINNING_CHARACTERS = 6_000
"""A model that describes a document sees its beginning, about 1,500 tokens."""
_MAX_TITLE = 120
_MAX_TITLE_WORDS = 20
_FIRST_CHARACTERS = 2_000
_NO_TITLE_END = (".", ",", ";", ":", "。", "，", "、", "।")
_SPEAKER = re.compile(r"[^\W\d_][^:a-z]{1,40}:\s")
_CHARACTERS_PER_TOKEN = 12  # a generous bound, to count the tokens of few characters


def identify(document: Document, options: Input) -> Document:
    """Complete a document with a title from its first line, and a date from its first lines or file name.

    Metadata takes precedence. The row of a table gets no title, and no date from the name of the table. With
    `input.document_context: metadata`, nothing is added.
    """
    title, date, source = document.title, one_line(document.date or "") or None, "metadata"
    if options.document_context != "metadata":
        if not document.row:
            title = explicit_title(title, document.path, "") or _first_line_title(document) or title
        if not date:
            date, source = date_in_first_lines(document.text), "text"
        if not date and not document.row:
            date, source = date_in_name(document.path), "file name"
    return replace(document, title=title, date=date or document.date, date_source=source if date else None)


def opening(document: Document, options: Input, vocabulary: str) -> str:
    """Return the first words of a document below its title, in one line, or "" if no request needs them."""
    if options.document_context == "metadata":
        return ""
    max_tokens = options.document_context_tokens
    text = one_line(document.text[: _FIRST_CHARACTERS + _CHARACTERS_PER_TOKEN * max_tokens])
    title = one_line(document.title)
    if begins_with(text, title):
        text = text.lstrip(HEADING_MARKS)[len(title) :].lstrip(HEADING_MARKS)
    text = text[: _CHARACTERS_PER_TOKEN * max_tokens]
    ends = token_ends(text, vocabulary)
    if len(ends) <= max_tokens:
        return text
    cut = text[: int(ends[max_tokens - 1])]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + " …"


def _first_line_title(document: Document) -> str:
    """Return the first line of a text if it looks like a title, or ""."""
    lines = [line for line in document.text[:_FIRST_CHARACTERS].split("\n") if line.strip()]
    first = next((n for n, line in enumerate(lines) if any(c.isalpha() for c in line)), len(lines))
    if first + 1 >= len(lines):
        return ""
    line = one_line(lines[first]).strip(HEADING_MARKS)
    path = PurePosixPath(document.path)
    is_title = (
        line not in (path.name, path.stem)
        and len(line) <= _MAX_TITLE
        and line.count(" ") < _MAX_TITLE_WORDS
        and not line.endswith(_NO_TITLE_END)
        and not _SPEAKER.match(line)
    )
    return line if is_title else ""
