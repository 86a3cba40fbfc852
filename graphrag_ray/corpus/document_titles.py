"""What is said of a document above each of its chunks, where they are searched and shown: its title and date,
and the columns of its metadata that `chunking.prepend` names.

A title with which the chunk's text begins is left out. One that is only the file's name is said, since that
may be all that tells documents apart. One that only counts the rows of a table says nothing.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from graphrag_ray.base.wording import shortened

MAX_TITLE = 300
"""Characters of a title or a date that are said: a title can be a paragraph by mistake."""

_MARKS = "#*_=-> \t\n\r"
"""What may stand before a title at the start of a text."""
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
    """A title that says more than where the document is; "" where it is made of the file's name."""
    name = PurePosixPath(path)
    made = (name.name, name.stem, f"{name.stem} {row}", "")
    folded = _folded(title)
    return "" if folded in map(_folded, made) else folded


def title_name(title: str | None, path: str, row: str) -> str:
    """What a document is named after: its title without what stands in brackets at its end, as in Mercury
    (planet), or the name of its file; "" where the title only counts the rows of a table."""
    own = own_title(title, path, row)
    if not own:
        return "" if row else " ".join(_NOT_WORD.split(PurePosixPath(path).stem)).strip()
    return _BRACKETED.sub("", own) or own


def label(title: str | None, date: str | None, path: str, row: str, text: str = "", more: str = "") -> str:
    """Title and date in one line, `Minutes (2023-09-14); author: Mara Venn`, for a context.

    text: of the chunk; more: lines of chosen metadata (`metadata.said`)
    """
    said, day = _said(title, path, row, text), _folded(date)
    about = f"{said} ({day})" if said and day else said or day
    return "; ".join(filter(None, [about, *more.splitlines()]))


def header(title: str | None, date: str | None, path: str, row: str, text: str, more: str = "") -> str:
    """The lines above a chunk's text where it is embedded and indexed by keywords; "" where there are none.

    Parts of file names, and dates in words, are said beside them, since questions name these. more: as for
    `label`
    """
    said = _said(title, path, row, text)
    if said and not own_title(title, path, row):
        said = " ".join([said, *_parts(said)])
    lines = [_with_words(line) for line in (said, _folded(date), *more.splitlines()) if line]
    return "\n".join([*lines, "", ""]) if lines else ""


def _said(title: str | None, path: str, row: str, text: str) -> str:
    folded = _folded(title)
    counts_rows = row.isdecimal() and folded == _folded(f"{PurePosixPath(path).stem} {row}")
    if not folded or counts_rows or begins_with(text, folded):
        return ""
    return folded


def begins_with(text: str, title: str) -> bool:
    """Whether the text begins with the title, but for white space, capitals and marks of a heading."""
    start = _folded(text[: 2 * MAX_TITLE].lstrip(_MARKS))
    after = start[len(title) : len(title) + 1]
    return start[: len(title)].casefold() == title.casefold() and not after.isalnum()


def _parts(name: str) -> list[str]:
    """What is written together in a file's name. TranscriptFY24Q1: Transcript, FY24Q1, FY24, Q1."""
    found: list[str] = []
    for word in _NOT_WORD.split(name):
        for part in _CAMEL.split(word):
            found += dict.fromkeys([part, *_AFTER_DIGIT.split(part)])
    words = set(_NOT_WORD.split(name))
    return [part for part in dict.fromkeys(found) if part not in words]


def _with_words(line: str) -> str:
    """2023-09-14: 2023-09-14 (14 September 2023); a line without such a date as it is."""
    found = _ISO.search(line)
    if not found or not 1 <= int(found[2]) <= len(_MONTHS):
        return line
    day = f"{int(found[3])} " if found[3] else ""
    return f"{line} ({day}{_MONTHS[int(found[2]) - 1]} {found[1]})"


def _folded(text: str | None) -> str:
    return shortened(" ".join((text or "").split()), MAX_TITLE)
