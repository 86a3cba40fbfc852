"""Records in contexts, and references to them in replies.

A context shows numbered records in sections, as the rows of CSV tables:

    -----Entities-----
    id,entity,description
    1,MARA VENN,"Mayor of the town, …"

Numbers are local to the context (1…n per section), so that cached replies do not depend on the rest of the
index. `resolve_references` immediately turns `[Data: Entities (1, 4)]` in a reply into string ids. Line
breaks in fields are replaced, so that no text of the corpus can pose as a heading or another record.

Small models vary the format. All of these references are understood:

    [Data: Reports 1, 2]   [Data: Reports (1); 2]   anything in square brackets that begins with "Data:"
    [Reports: 1]  [Data Reports (1)]  (Data: Reports (1))   only known sections, each followed by numbers
    ［Data：Reports（1）］  【Data: Reports (1)】              full-width punctuation
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION, RECORD_KINDS

SECTIONS = tuple(RECORD_KIND_BY_SECTION)
"""Sections that a reference can name."""

MAX_REFERENCE_IDS = 5
"""Maximum number of ids in one reference, followed by "+more" (paper E.2)."""

_HEADING = re.compile(r"^-----([A-Za-z]+)-----$")
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")

# Possessive quantifiers and unambiguous starts keep matching linear on any text.
_SECTION_NAMES = tuple(name.lower() for kind in RECORD_KINDS for name in (kind.section, kind.singular))
_NAME = rf"(?:{'|'.join(_SECTION_NAMES)})\b"
_OPEN, _CLOSE, _NO_SQUARE = r"[\[［【]\s*+", r"[\]］】]", r"[^\[\]［］【】]*+"
_ROUND, _CLOSE_ROUND = r"[(（]", r"[)）]"
_DATA = r"Data\s*+[:：]"
_MARKS = r"\s\d,;.、，；&#*+…–\-"
_GROUP = rf"{_ROUND}(?:[{_MARKS}]++|(?:and|more|ids?|nos?)\b)*+"
_ITEMS = rf"(?:[{_MARKS}:：]++|(?:{_NAME}|(?:and|more|ids?|nos?)\b)|{_GROUP}{_CLOSE_ROUND})*+"
_LEAD = r"[\s:：#*]*+"
_NUMBER_FOLLOWS = rf"(?={_ROUND}?[\s#*]*+\d)"
_NUMBERED = rf"{_NAME}{_LEAD}{_NUMBER_FOLLOWS}{_ITEMS}"
_WITH_DATA = rf"{_OPEN}{_DATA}({_NO_SQUARE}){_CLOSE}|{_ROUND}\s*+{_DATA}\s*+({_NUMBERED}){_CLOSE_ROUND}"
_WITHOUT_DATA = rf"{_OPEN}((?:Data\s++)?{_NUMBERED}){_CLOSE}"
_BLANKS = r"(?<![ \t])([ \t]*+)"

_REFERENCE = re.compile(rf"{_WITH_DATA}|{_WITHOUT_DATA}", re.IGNORECASE)
_BRACKET = re.compile(r"[\[［【(（]")
_NAMED = re.compile(rf"{_BLANKS}(?:{_WITH_DATA})", re.IGNORECASE)
_UNNAMED = re.compile(_WITHOUT_DATA, re.IGNORECASE)
_NAMED_START = re.compile(rf"[\[［【](?=\s*+{_DATA})", re.IGNORECASE)
_ROUND_NAMED = re.compile(rf"({_ROUND}\s*+Data\s*+)[:：](?=\s*+{_NUMBERED}{_CLOSE_ROUND})", re.IGNORECASE)
_START = re.compile(rf"[\[［【(（]\s*+(?:Data|{_NAME})", re.IGNORECASE)
"""The start of any reference: a fast check for texts without one."""
_TOKEN = re.compile(r"[()（）]|[^\s,;:、，；：&()（）]++")
_AROUND = "#*_`.…\"'“”"
"""Insignificant characters around a number or name."""
_NO_ITEMS = frozenset(("", "+", "+more", "more", "and", "id", "ids", "no", "nos", "data"))


def _beginnings(word: str) -> str:
    """A pattern that matches every prefix of a word, including the empty one."""
    return "".join(f"(?:{letter}" for letter in word) + ")?" * len(word)


_NAME_BEGINS = "(?:" + "|".join(_beginnings(name) for name in _SECTION_NAMES) + ")"
_ITEMS_BEGIN = rf"{_NUMBER_FOLLOWS}{_ITEMS}(?:{_GROUP})?[a-z]{{0,16}}"
_UNFINISHED = re.compile(
    rf"(?:{_OPEN}(?:{_DATA}{_NO_SQUARE}|(?:Data\s++)?{_NAME}{_LEAD}{_ITEMS_BEGIN})"
    rf"|{_ROUND}\s*+{_DATA}\s*+{_NAME}{_LEAD}{_ITEMS_BEGIN})\Z",
    re.IGNORECASE,
)
_NAME_GOES_ON = rf"(?:{_NAME_BEGINS}|{_NAME}{_LEAD}(?:{_ROUND}?[\s#*]*+|{_ITEMS_BEGIN}))"
_MAY_BECOME = re.compile(
    rf"(?:{_OPEN}(?:{_beginnings('data')}|{_DATA}{_NO_SQUARE}|(?:Data\s++)?{_NAME_GOES_ON}|Data\s*+)"
    rf"|{_ROUND}\s*+(?:{_beginnings('data')}|Data\s*+|{_DATA}\s*+{_NAME_GOES_ON}))\Z",
    re.IGNORECASE,
)


def section_heading(section: str, columns: Sequence[str]) -> str:
    """The two lines that begin a section."""
    return f"-----{section}-----\n{','.join(columns)}\n"


def csv_line(fields: Sequence[str | int]) -> str:
    """One record as a CSV line, with control characters and line breaks replaced by spaces."""
    return csv_lines([fields])


def csv_lines(rows: Iterable[Sequence[str | int]]) -> str:
    """Many records, each as by `line`."""

    def clean(text: str) -> str:
        return (text if text.isprintable() else _CONTROL.sub(" ", text)).strip()

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([clean(str(f)) for f in fields] for fields in rows)
    return out.getvalue()


def parse_sections(context: str) -> dict[str, list[dict[str, str]]]:
    """Parse a context into the records of each section, for the offline engine."""
    sections: dict[str, list[dict[str, str]]] = {}
    rows: list[str] = []
    name = ""
    for text in [*context.split("\n"), "-----End-----"]:
        start = _HEADING.match(text)
        if not start:
            if text:
                rows.append(text)
            continue
        if name:
            longest = max(map(len, rows), default=0)  # A source may exceed the default limit of csv.
            csv.field_size_limit(max(csv.field_size_limit(), longest))
            sections.setdefault(name, []).extend(csv.DictReader(rows))
        name, rows = start.group(1), []
    return sections


@dataclass(frozen=True, slots=True)
class Reference:
    """A cited record: its section and string id."""

    section: str
    id: str


def resolve_references(
    text: str, numbering: Mapping[tuple[str, int], str]
) -> tuple[str, list[Reference], int]:
    """Replace local numbers in references by string ids.

    Args:
        text: A reply.
        numbering: (section, local number) -> id of every record in the context.

    Returns:
        The text with references like `[Data: Entities (<id>, <id>)]`, the distinct references in order of
        appearance, and the number of dropped citations: numbers that are not in the context and names without
        a number. A reference left empty is removed and counts once.
    """
    cited: dict[Reference, None] = {}
    dropped = 0

    def replace(section: str, items: list[str]) -> list[str]:
        nonlocal dropped
        kept: dict[str, None] = {}
        for item in items:
            id_ = numbering.get((section, int(item))) if item.isdecimal() and len(item) < 12 else None
            if id_ is None:
                dropped += 1
            else:
                kept[id_] = None
                cited[Reference(section, id_)] = None
        return list(kept)

    return _map_references(text, replace), list(cited), dropped


def render_references(text: str, number: Callable[[Reference], int | None]) -> str:
    """Replace string ids in references by numbers: human_readable_ids, or local numbers of another
    context."""

    def numbers(section: str, items: list[str]) -> list[str]:
        return [str(n) for item in items if (n := number(Reference(section, item))) is not None]

    return _map_references(text, numbers)


def references_in(text: str) -> list[Reference]:
    """The distinct references, in order, of a text whose references hold string ids."""
    parts = (part for _, match in find_references(text) for part in _parts(match))
    return list(dict.fromkeys(Reference(section, i) for section, items in parts if section for i in items))


def strip_references(text: str) -> str:
    """The text without its references, for contexts in which their numbers have no meaning."""
    return _replace(text, lambda blanks, match: "")


def anonymize_references(text: str) -> str:
    """The text with its references as [1, 2], numbered by first appearance.

    Without sections, a judge cannot tell which search method wrote an answer.
    """
    numbers: dict[tuple[str, str], int] = {}

    def blinded(blanks: str, match: re.Match[str]) -> str:
        items = ((name, item) for name, items in _parts(match) for item in items)
        cited = dict.fromkeys(numbers.setdefault(item, len(numbers) + 1) for item in items)
        return f"{blanks}[{', '.join(map(str, cited))}]"

    return _replace(text, blinded)


def defuse_references(text: str) -> str:
    """Defuse everything in a text of the corpus that would be read as a reference.

    References with "Data:" are removed. Lookalikes, such as "[Source 3]" in a paper, get round brackets. An
    unclosed start of a reference loses its bracket, since later text could close it.
    """
    if not _START.search(text):
        return text
    text = _NAMED.sub("", _UNNAMED.sub(r"(\1)", text))
    # The removal may have joined parts of another reference.
    text = _UNNAMED.sub(r"(\1)", _NAMED_START.sub("(", text))
    return _ROUND_NAMED.sub(r"\1", text)


def drop_unclosed_reference(text: str) -> str:
    """The text of a truncated reply, without an unclosed reference at its end."""
    match = _UNFINISHED.search(text)
    return text[: match.start()].rstrip() if match else text


def partial_reference_start(text: str) -> int | None:
    """The position from which the end of a text may become a reference once more text follows, or None."""
    match = _MAY_BECOME.search(text)
    return match.start() if match else None


def write_reference(by_section: Mapping[str, Iterable[str | int]]) -> str:
    """Render a reference: `[Data: Entities (5, 7); Relationships (23)]`."""
    parts = []
    for section, ids in by_section.items():
        items = [str(i) for i in ids]
        if items:
            more = ["+more"] if len(items) > MAX_REFERENCE_IDS else []
            parts.append(f"{section} ({', '.join(items[:MAX_REFERENCE_IDS] + more)})")
    return f"[Data: {'; '.join(parts)}]" if parts else ""


def _map_references(text: str, replace: Callable[[str, list[str]], list[str]]) -> str:
    def mapped(blanks: str, match: re.Match[str]) -> str:
        sections: dict[str, dict[str, None]] = {}
        for name, items in _parts(match):
            kept = replace(name, items)
            if name and kept:
                sections.setdefault(name, {}).update(dict.fromkeys(kept))
        written = write_reference(sections)
        # A removed reference takes the space before it along. Other text may be a quotation and is kept.
        return blanks + written if written else ""

    return _replace(text, mapped)


def _replace(text: str, write: Callable[[str, re.Match[str]], str]) -> str:
    """Replace each reference and the blanks before it by what `write` returns for both."""
    written, end = [], 0
    for start, match in find_references(text):
        written += [text[end:start], write(text[start : match.start()], match)]
        end = match.end()
    return "".join([*written, text[end:]]) if end else text


def find_references(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Find every reference, with the position of the blanks before it."""
    end = 0
    # Trying only at brackets is three times as fast as searching the whole text.
    for bracket in _BRACKET.finditer(text):
        start = bracket.start()
        if start >= end and (match := _REFERENCE.match(text, start)):
            while start > end and text[start - 1] in " \t":
                start -= 1
            end = match.end()
            yield start, match


def _parts(match: re.Match[str]) -> list[tuple[str, list[str]]]:
    """The sections that a reference names, each with its items.

    Items of an unknown section, and names without items, are listed under "".
    """
    parts: list[tuple[str, list[str]]] = []
    name, section, items = "", "", []
    inside = False
    for token in _TOKEN.findall(match.group(1) or match.group(2) or match.group(3) or ""):
        if token in "()（）":
            inside = token in "(（"
            continue
        word = token.strip(_AROUND)
        if word.lower() in _NO_ITEMS:
            continue
        known = _section(word) if word.isalpha() else None
        if not known and (inside or not word.isalpha()):
            items.append(word)
            continue
        if name and (items or section):
            parts.append((section, items) if items else ("", [name]))
        name, section, items = word, known or "", []
    if items:
        parts.append((section, items))
    elif name or not parts:
        parts.append(("", [name]))
    return parts


@lru_cache(maxsize=1024)
def _section(name: str) -> str | None:
    return next((s for s in SECTIONS if _stem(s) == _stem(name)), None)


def _stem(name: str) -> str:
    """A stem that "entity" and "entities" share."""
    return name.lower().rstrip("s").removesuffix("ie").removesuffix("y")
