"""Labels and headers that identify a document in contexts and search: title, date and selected metadata.

A title is omitted if it only counts the rows of a table, and in a header if the chunk's text begins with it.
A title made from the file name is not omitted, because it may be all that distinguishes documents.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from graphrag_ray.base.wording import shorten

MAX_TITLE = 300  # maximum length of a title or date in characters; some title columns hold whole paragraphs

HEADING_MARKS = "#*_=-> \t\n\r"  # heading and list marks that can precede a title
_NOT_WORD = re.compile(r"[\W_]+")
_BRACKETED = re.compile(r"(?:(?<!\s)\s++)?[(\[（【][^()\[\]（）【】]*[)\]）】]\s*\Z")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z0-9])")
_AFTER_DIGIT = re.compile(r"(?<=[0-9])(?=[A-Z])")
_ISO = re.compile(r"(?<!\d)([12]\d{3})[-_.](\d{2})(?:[-_.](\d{2}))?(?!\d)", re.ASCII)
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def explicit_title(title: str | None, path: str, row: str) -> str:
    """Return the title, or "" if it is derived from the file name."""
    name = PurePosixPath(path)
    folded = _shorten_line(title)
    return "" if folded in map(_shorten_line, (name.name, name.stem, f"{name.stem} {row}", "")) else folded


def name_from_title(title: str | None, path: str, row: str) -> str:
    """Return the name of the subject that a document's title or file name states.

    Brackets at the end of a title are removed, as in Mercury (planet). Returns "" if the title only counts
    the rows of a table.
    """
    full_title = explicit_title(title, path, row)
    if not full_title:
        return "" if row else " ".join(_NOT_WORD.split(PurePosixPath(path).stem)).strip()
    return _BRACKETED.sub("", full_title) or full_title


def document_label(title: str | None, date: str | None, path: str, row: str, metadata: str = "") -> str:
    """Return title, date and metadata in one line for a context: `Minutes (2023-09-14); author: Mara Venn`.

    `metadata` is the result of `document.metadata_lines`.
    """
    displayed_title, day = _title_to_display(title, path, row), _shorten_line(date)
    about = f"{displayed_title} ({day})" if displayed_title and day else displayed_title or day
    return "; ".join(filter(None, [about, *metadata.splitlines()]))


def document_header(
    title: str | None, date: str | None, path: str, row: str, text: str, metadata: str = ""
) -> str:
    """Return the lines above a chunk's text when it is embedded and indexed for search.

    Parts of file names and dates in words are added because questions use them. `text` is the text of the
    chunk, and the other arguments are those of `document_label`.
    """
    displayed_title = _title_to_display(title, path, row, text)
    if displayed_title and not explicit_title(title, path, row):
        displayed_title = " ".join([displayed_title, *_name_parts(displayed_title)])
    lines = [
        _with_words(line) for line in (displayed_title, _shorten_line(date), *metadata.splitlines()) if line
    ]
    return "\n".join([*lines, "", ""]) if lines else ""


def _title_to_display(title: str | None, path: str, row: str, text: str = "") -> str:
    folded = _shorten_line(title)
    counts_rows = row.isdecimal() and folded == _shorten_line(f"{PurePosixPath(path).stem} {row}")
    return "" if not folded or counts_rows or begins_with(text, folded) else folded


def begins_with(text: str, title: str) -> bool:
    """Return whether the text begins with the title, ignoring whitespace, case and heading marks."""
    start = _shorten_line(text[: 2 * MAX_TITLE].lstrip(HEADING_MARKS))
    after = start[len(title) : len(title) + 1]
    return start[: len(title)].casefold() == title.casefold() and not after.isalnum()


def _name_parts(name: str) -> list[str]:
    """Split compounds in a file name: TranscriptFY24Q1 yields Transcript, FY24Q1, FY24 and Q1."""
    words = _NOT_WORD.split(name)
    parts = [p for word in words for part in _CAMEL.split(word) for p in (part, *_AFTER_DIGIT.split(part))]
    return [part for part in dict.fromkeys(parts) if part not in words]


def _with_words(line: str) -> str:
    """Append an ISO date in words: 2023-09-14 (14 September 2023)."""
    date = _ISO.search(line)
    if not date or not 1 <= int(date[2]) <= len(_MONTHS):
        return line
    day = f"{int(date[3])} " if date[3] else ""
    return f"{line} ({day}{_MONTHS[int(date[2]) - 1]} {date[1]})"


def _shorten_line(text: str | None) -> str:
    return shorten(" ".join((text or "").split()), MAX_TITLE)
