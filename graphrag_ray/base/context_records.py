"""Records in contexts, and references to them in replies.

A context shows numbered records in sections, each of which is a CSV table:

    -----Entities-----
    id,entity,description
    1,MARA VENN,"Mayor of the town, …"

Numbers are local to the context (1…n per section), so that cached replies do not depend on the rest of the
index. `resolve_references` turns `[Data: Entities (1, 4)]` in a new reply into string ids. Line breaks in
fields are replaced, so that corpus text cannot imitate a heading or another record.

Small models vary the format. All of these references are recognised:

    [Data: Reports 1, 2]   [Data: Reports (1); 2]           square brackets, if they begin with "Data:"
    [Reports: 1]  [Data Reports (1)]  (Data: Reports (1))   for known sections, if numbers follow
    ［Data：Reports（1）］  【Data: Reports (1)】              with full-width punctuation
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
"""Maximum number of ids in a reference; "+more" replaces the others (GraphRAG paper, E.2)."""

_HEADING = re.compile(r"^-----([A-Za-z]+)-----$")
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")

# Possessive quantifiers and unambiguous starts make matching linear in the length of the text.
_SECTION_NAMES = tuple(name.lower() for kind in RECORD_KINDS for name in (kind.section, kind.singular))
_SECTION_NAME = rf"(?:{'|'.join(_SECTION_NAMES)})\b"
_OPEN, _CLOSE, _NOT_SQUARE = r"[\[［【]\s*+", r"[\]］】]", r"[^\[\]［］【】]*+"
_ROUND, _CLOSE_ROUND = r"[(（]", r"[)）]"
_DATA = r"Data\s*+[:：]"
_SEPARATORS = r"\s\d,;.、，；&#*+…–\-"
_GROUP = rf"{_ROUND}(?:[{_SEPARATORS}]++|(?:and|more|ids?|nos?)\b)*+"
_ITEMS = rf"(?:[{_SEPARATORS}:：]++|(?:{_SECTION_NAME}|(?:and|more|ids?|nos?)\b)|{_GROUP}{_CLOSE_ROUND})*+"
_LEAD = r"[\s:：#*]*+"
_NUMBER_FOLLOWS = rf"(?={_ROUND}?[\s#*]*+\d)"
_NUMBERED_SECTION = rf"{_SECTION_NAME}{_LEAD}{_NUMBER_FOLLOWS}{_ITEMS}"
_WITH_DATA = (
    rf"{_OPEN}{_DATA}({_NOT_SQUARE}){_CLOSE}|{_ROUND}\s*+{_DATA}\s*+({_NUMBERED_SECTION}){_CLOSE_ROUND}"
)
_WITHOUT_DATA = rf"{_OPEN}((?:Data\s++)?{_NUMBERED_SECTION}){_CLOSE}"
_BLANKS = r"(?<![ \t])([ \t]*+)"

_REFERENCE = re.compile(rf"{_WITH_DATA}|{_WITHOUT_DATA}", re.IGNORECASE)
_BRACKET = re.compile(r"[\[［【(（]")
_PREFIXED_REFERENCE = re.compile(rf"{_BLANKS}(?:{_WITH_DATA})", re.IGNORECASE)
_UNPREFIXED_REFERENCE = re.compile(_WITHOUT_DATA, re.IGNORECASE)
_PREFIXED_START = re.compile(rf"[\[［【](?=\s*+{_DATA})", re.IGNORECASE)
_PREFIXED_IN_ROUND_BRACKETS = re.compile(
    rf"({_ROUND}\s*+Data\s*+)[:：](?=\s*+{_NUMBERED_SECTION}{_CLOSE_ROUND})", re.IGNORECASE
)
_REFERENCE_START = re.compile(rf"[\[［【(（]\s*+(?:Data|{_SECTION_NAME})", re.IGNORECASE)
"""The start of any reference, to skip texts without references quickly."""
_TOKEN = re.compile(r"[()（）]|[^\s,;:、，；：&()（）]++")
_STRIPPED_CHARS = "#*_`.…\"'“”"
"""Characters that models add around a number or section name."""
_FILLER_WORDS = frozenset(("", "+", "+more", "more", "and", "id", "ids", "no", "nos", "data"))


def _prefixes_pattern(word: str) -> str:
    """Return a pattern that matches every prefix of a word, including the empty one."""
    return "".join(f"(?:{letter}" for letter in word) + ")?" * len(word)


_PARTIAL_NAME = "(?:" + "|".join(_prefixes_pattern(name) for name in _SECTION_NAMES) + ")"
_PARTIAL_ITEMS = rf"{_NUMBER_FOLLOWS}{_ITEMS}(?:{_GROUP})?[a-z]{{0,16}}"
_UNCLOSED_REFERENCE = re.compile(
    rf"(?:{_OPEN}(?:{_DATA}{_NOT_SQUARE}|(?:Data\s++)?{_SECTION_NAME}{_LEAD}{_PARTIAL_ITEMS})"
    rf"|{_ROUND}\s*+{_DATA}\s*+{_SECTION_NAME}{_LEAD}{_PARTIAL_ITEMS})\Z",
    re.IGNORECASE,
)
_PARTIAL_SECTION = rf"(?:{_PARTIAL_NAME}|{_SECTION_NAME}{_LEAD}(?:{_ROUND}?[\s#*]*+|{_PARTIAL_ITEMS}))"
_PARTIAL_REFERENCE = re.compile(
    rf"(?:{_OPEN}(?:{_prefixes_pattern('data')}|{_DATA}{_NOT_SQUARE}|(?:Data\s++)?{_PARTIAL_SECTION}|Data\s*+)"
    rf"|{_ROUND}\s*+(?:{_prefixes_pattern('data')}|Data\s*+|{_DATA}\s*+{_PARTIAL_SECTION}))\Z",
    re.IGNORECASE,
)


def section_heading(section: str, columns: Sequence[str]) -> str:
    """Return the first two lines of a section: its heading and its column names."""
    return f"-----{section}-----\n{','.join(columns)}\n"


def csv_line(fields: Sequence[str | int]) -> str:
    """Write one record as a CSV line. Spaces replace control characters and line breaks."""
    return csv_lines([fields])


def csv_lines(rows: Iterable[Sequence[str | int]]) -> str:
    """Like `csv_line`, for many records."""

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
            longest = max(map(len, rows), default=0)  # The default limit may be too low.
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
    """Replace local numbers in references with string ids.

    Args:
        text: A reply.
        numbering: String id of every record in the context, by section and local number.

    Returns:
        The text with references like `[Data: Entities (<id>, <id>)]`, the distinct references in order of
        appearance, and the number of dropped citations: numbers that are not in the context, and section
        names without a number. A reference without any known number is removed.
    """
    cited: dict[Reference, None] = {}
    dropped = 0

    def replace(section: str, items: list[str]) -> list[str]:
        nonlocal dropped
        ids: dict[str, None] = {}
        for item in items:
            id_ = numbering.get((section, int(item))) if item.isdecimal() and len(item) < 12 else None
            if id_ is None:
                dropped += 1
            else:
                ids[id_] = None
                cited[Reference(section, id_)] = None
        return list(ids)

    return _map_references(text, replace), list(cited), dropped


def render_references(text: str, number_of: Callable[[Reference], int | None]) -> str:
    """Replace string ids in references with numbers. An id is dropped if `number_of` returns None."""

    def numbers(section: str, items: list[str]) -> list[str]:
        return [str(n) for item in items if (n := number_of(Reference(section, item))) is not None]

    return _map_references(text, numbers)


def parse_references(text: str) -> list[Reference]:
    """Return the distinct references of a text with string ids, in order of appearance."""
    pairs = (pair for _, match in find_references(text) for pair in _sections_and_items(match))
    return list(dict.fromkeys(Reference(section, i) for section, items in pairs if section for i in items))


def strip_references(text: str) -> str:
    """Remove all references, for contexts in which their numbers have no meaning."""
    return _replace_references(text, lambda blanks, match: "")


def anonymize_references(text: str) -> str:
    """Rewrite references as [1, 2], numbered by first appearance.

    Section names would tell a judge which search method wrote an answer.
    """
    numbers: dict[tuple[str, str], int] = {}

    def anonymous(blanks: str, match: re.Match[str]) -> str:
        items = ((name, item) for name, items in _sections_and_items(match) for item in items)
        cited = dict.fromkeys(numbers.setdefault(item, len(numbers) + 1) for item in items)
        return f"{blanks}[{', '.join(map(str, cited))}]"

    return _replace_references(text, anonymous)


def defuse_references(text: str) -> str:
    """Rewrite everything in corpus text that would be parsed as a reference.

    References with "Data:" are removed. Lookalikes, such as "[Source 3]" in a paper, get round brackets. A
    reference that is not closed loses its opening bracket, because later text could close it.
    """
    if not _REFERENCE_START.search(text):
        return text
    text = _PREFIXED_REFERENCE.sub("", _UNPREFIXED_REFERENCE.sub(r"(\1)", text))
    # The text around a removed reference may form another one.
    text = _UNPREFIXED_REFERENCE.sub(r"(\1)", _PREFIXED_START.sub("(", text))
    return _PREFIXED_IN_ROUND_BRACKETS.sub(r"\1", text)


def drop_unclosed_reference(text: str) -> str:
    """Remove an unclosed reference from the end of a truncated reply."""
    match = _UNCLOSED_REFERENCE.search(text)
    return text[: match.start()].rstrip() if match else text


def partial_reference_start(text: str) -> int | None:
    """Return the position from which more text could complete a reference, or None."""
    match = _PARTIAL_REFERENCE.search(text)
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
    def render(blanks: str, match: re.Match[str]) -> str:
        sections: dict[str, dict[str, None]] = {}
        for name, items in _sections_and_items(match):
            replacements = replace(name, items)
            if name and replacements:
                sections.setdefault(name, {}).update(dict.fromkeys(replacements))
        reference = write_reference(sections)
        return blanks + reference if reference else ""

    return _replace_references(text, render)


def _replace_references(text: str, write: Callable[[str, re.Match[str]], str]) -> str:
    """Replace each reference and the blanks before it with `write(blanks, match)`."""
    pieces, end = [], 0
    for start, match in find_references(text):
        pieces += [text[end:start], write(text[start : match.start()], match)]
        end = match.end()
    return "".join([*pieces, text[end:]]) if end else text


def find_references(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Find every reference, and the position of the blanks before it."""
    end = 0
    # This is three times as fast as searching the whole text for the pattern.
    for bracket in _BRACKET.finditer(text):
        start = bracket.start()
        if start >= end and (match := _REFERENCE.match(text, start)):
            while start > end and text[start - 1] in " \t":
                start -= 1
            end = match.end()
            yield start, match


def _sections_and_items(match: re.Match[str]) -> list[tuple[str, list[str]]]:
    """Return the sections that a reference names, each with its items.

    Items of an unknown section and names without items are listed under "".
    """
    parts: list[tuple[str, list[str]]] = []
    name, section, items = "", "", []
    inside = False
    for token in _TOKEN.findall(match.group(1) or match.group(2) or match.group(3) or ""):
        if token in "()（）":
            inside = token in "(（"
            continue
        word = token.strip(_STRIPPED_CHARS)
        if word.lower() in _FILLER_WORDS:
            continue
        known = _find_section(word) if word.isalpha() else None
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
def _find_section(name: str) -> str | None:
    return next((s for s in SECTIONS if _stem(s) == _stem(name)), None)


def _stem(name: str) -> str:
    """Return a stem that is the same for "entity" and "entities"."""
    return name.lower().rstrip("s").removesuffix("ie").removesuffix("y")
