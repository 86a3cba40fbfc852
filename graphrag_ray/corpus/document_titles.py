"""What identifies a document above each of its chunks in search and contexts: title, date, chosen metadata.

A title with which the chunk's text begins is omitted, and so is one that only counts the rows of a table. The
name of a file is kept, since it may be all that distinguishes documents.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from graphrag_ray.base.wording import shortened

MAX_TITLE = 300  # maximum characters of a title or date that are shown: a title can be a paragraph by mistake

_MARKS = "#*_=-> \t\n\r"  # may precede a title at the start of a text
_NOT_WORD = re.compile(r"[\W_]+")
_BRACKETED = re.compile(r"(?:(?<!\s)\s++)?[(\[（【][^()\[\]（）【】]*[)\]）】]\s*\Z")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z0-9])")
_AFTER_DIGIT = re.compile(r"(?<=[0-9])(?=[A-Z])")
_ISO = re.compile(r"(?<!\d)([12]\d{3})[-_.](\d{2})(?:[-_.](\d{2}))?(?!\d)", re.ASCII)
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def own_title(title: str | None, path: str, row: str) -> str:
    """Return the title; "" if it is made from the name of the file."""
    name = PurePosixPath(path)
    folded = _folded(title)
    return "" if folded in map(_folded, (name.name, name.stem, f"{name.stem} {row}", "")) else folded


def name_from_title(title: str | None, path: str, row: str) -> str:
    """Return what a document is named after.

    That is its title without final brackets, as in Mercury (planet), or the name of its file; "" if the title
    only counts the rows of a table.
    """
    named = own_title(title, path, row)
    if not named:
        return "" if row else " ".join(_NOT_WORD.split(PurePosixPath(path).stem)).strip()
    return _BRACKETED.sub("", named) or named


def document_label(
    title: str | None, date: str | None, path: str, row: str, text: str = "", more: str = ""
) -> str:
    """Return title and date in one line for a context: `Minutes (2023-09-14); author: Mara Venn`.

    `text` is that of the chunk; `more` holds lines of metadata (`document.metadata_lines`).
    """
    shown, day = _shown_title(title, path, row, text), _folded(date)
    about = f"{shown} ({day})" if shown and day else shown or day
    return "; ".join(filter(None, [about, *more.splitlines()]))


def document_header(
    title: str | None, date: str | None, path: str, row: str, text: str, more: str = ""
) -> str:
    """Return the lines above a chunk's text where it is embedded and indexed; "" if there are none.

    Parts of file names, and dates in words, are added, since questions use these. Arguments as for `label`.
    """
    shown = _shown_title(title, path, row, text)
    if shown and not own_title(title, path, row):
        shown = " ".join([shown, *_name_parts(shown)])
    lines = [_with_words(line) for line in (shown, _folded(date), *more.splitlines()) if line]
    return "\n".join([*lines, "", ""]) if lines else ""


def _shown_title(title: str | None, path: str, row: str, text: str) -> str:
    folded = _folded(title)
    counts_rows = row.isdecimal() and folded == _folded(f"{PurePosixPath(path).stem} {row}")
    return "" if not folded or counts_rows or begins_with(text, folded) else folded


def begins_with(text: str, title: str) -> bool:
    """Return whether the text begins with the title, ignoring white space, case and heading marks."""
    start = _folded(text[: 2 * MAX_TITLE].lstrip(_MARKS))
    after = start[len(title) : len(title) + 1]
    return start[: len(title)].casefold() == title.casefold() and not after.isalnum()


def _name_parts(name: str) -> list[str]:
    """Split what a file name writes together. TranscriptFY24Q1: Transcript, FY24Q1, FY24, Q1."""
    words = _NOT_WORD.split(name)
    parts = [p for word in words for part in _CAMEL.split(word) for p in (part, *_AFTER_DIGIT.split(part))]
    return [part for part in dict.fromkeys(parts) if part not in words]


def _with_words(line: str) -> str:
    """Add an ISO date in words: 2023-09-14 (14 September 2023)."""
    date = _ISO.search(line)
    if not date or not 1 <= int(date[2]) <= len(_MONTHS):
        return line
    day = f"{int(date[3])} " if date[3] else ""
    return f"{line} ({day}{_MONTHS[int(date[2]) - 1]} {date[1]})"


def _folded(text: str | None) -> str:
    return shortened(" ".join((text or "").split()), MAX_TITLE)
