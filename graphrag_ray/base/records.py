"""Records in a context, and references to them.

A context shows numbered records in sections, each line one record of a CSV table:

    -----Entities-----
    id,entity,description
    1,MARA VENN,"Mayor of the town, …"

Numbers are local to the context (1…n per section), so that no cached reply depends on what else is in
the index; `resolve_references` turns a model's `[Data: Entities (1, 4)]` into string ids at once. Line breaks
inside a field are folded, so no text of the corpus can look like a heading or another record.

Small models write references in forms of their own, and all of these are read:

    [Data: Reports 1, 2]   [Data: Reports (1); 2]   anything in square brackets that begins with "Data:"
    [Reports: 1]  [Data Reports (1)]  (Data: Reports (1))   only known sections, each followed by numbers
    ［Data：Reports（1）］  【Data: Reports (1)】              full-width marks
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from graphrag_ray.base.declarations import OF_SECTION, RECORD_KINDS

SECTIONS = tuple(OF_SECTION)
"""The kinds of record a reference can name."""

MAX_REFERENCE_IDS = 5
"""At most so many ids are listed in one reference, then "+more" (paper E.2)."""

_HEADING = re.compile(r"^-----([A-Za-z]+)-----$")
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")

# Possessive repetitions, and starts that only one place can be: linear on any text.
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
"""What every reference begins with, in any form: most texts hold none, and this is found fast."""
_TOKEN = re.compile(r"[()（）]|[^\s,;:、，；：&()（）]++")
_AROUND = "#*_`.…\"'“”"
"""Marks around a number or name that say nothing."""
_NO_ITEMS = frozenset(("", "+", "+more", "more", "and", "id", "ids", "no", "nos", "data"))


def _beginnings(word: str) -> str:
    """A pattern for every beginning of a word, the empty one too."""
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


def heading(section: str, columns: Sequence[str]) -> str:
    """The two lines that open a section."""
    return f"-----{section}-----\n{','.join(columns)}\n"


def line(fields: Sequence[str | int]) -> str:
    """One record as a line of CSV, line breaks and control characters folded to spaces."""
    return lines([fields])


def lines(rows: Iterable[Sequence[str | int]]) -> str:
    """Many records, each as `line` writes it."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_fold(str(f)) for f in fields] for fields in rows)
    return out.getvalue()


def parse_sections(context: str) -> dict[str, list[dict[str, str]]]:
    """Read a context back: section -> records. What the offline engine does with a context."""
    sections: dict[str, list[dict[str, str]]] = {}
    rows: list[str] = []
    name = ""
    for text in [*context.split("\n"), "-----End-----"]:
        found = _HEADING.match(text)
        if not found:
            if text:
                rows.append(text)
            continue
        if name:
            longest = max(map(len, rows), default=0)  # a source may be longer than csv's own limit
            csv.field_size_limit(max(csv.field_size_limit(), longest))
            sections.setdefault(name, []).extend(csv.DictReader(rows))
        name, rows = found.group(1), []
    return sections


@dataclass(frozen=True, slots=True)
class Reference:
    """One cited record: a section of SECTIONS and the record's string id."""

    section: str
    id: str


def resolve_references(
    text: str, numbering: Mapping[tuple[str, int], str]
) -> tuple[str, list[Reference], int]:
    """Turn local numbers into string ids.

    numbering: (section, local number) -> id for every record that was in the context.
    Returns the text with `[Data: Entities (<id>, <id>)]`, the distinct references in order of their
    first appearance, and how much was cited that is not in the context: each such number, and each name
    without a number. These are taken out; an empty reference goes altogether, and counts once.
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
    """Turn string ids into numbers: human_readable_ids for people, local numbers for a next context."""

    def replace(section: str, items: list[str]) -> list[str]:
        numbers = [number(Reference(section, item)) for item in items]
        return [str(n) for n in numbers if n is not None]

    return _map_references(text, replace)


def references_in(text: str) -> list[Reference]:
    """The distinct references of a text whose references hold string ids, in order."""
    found: dict[Reference, None] = {}

    def collect(section: str, items: list[str]) -> list[str]:
        if section:
            found.update(dict.fromkeys(Reference(section, i) for i in items))
        return items

    _map_references(text, collect)
    return list(found)


def strip_references(text: str) -> str:
    """The text without its references, for contexts in which their numbers would mean nothing."""
    return _replaced(text, lambda blanks, found: "")


def blind_references(text: str) -> str:
    """The text with its references as [1, 2]: the distinct records in order, and nothing of what they are.
    So whoever compares answers does not see by which method they were found."""
    numbers: dict[tuple[str, str], int] = {}

    def one(blanks: str, match: re.Match[str]) -> str:
        parts = _parts(match.group(1) or match.group(2) or match.group(3) or "")
        found = [
            numbers.setdefault((name, item), len(numbers) + 1) for name, items in parts for item in items
        ]
        return f"{blanks}[{', '.join(map(str, dict.fromkeys(found)))}]"

    return _replaced(text, one)


def harmless(text: str) -> str:
    """Text that was not written as an answer, without anything that would be read as a reference.

    What calls itself "Data:" goes. What only looks like one, "[Source 3]" in a paper, keeps its words and
    gets round brackets. An opening that is left over loses its bracket, for what follows could close it.
    """
    if not _START.search(text):
        return text
    text = _NAMED.sub("", _UNNAMED.sub(r"(\1)", text))
    # What is taken out may bring together what was apart.
    text = _UNNAMED.sub(r"(\1)", _NAMED_START.sub("(", text))
    return _ROUND_NAMED.sub(r"\1", text)


def without_unfinished(text: str) -> str:
    """The text of a reply that was cut off, without a reference that is not closed."""
    found = _UNFINISHED.search(text)
    return text[: found.start()].rstrip() if found else text


def may_become_reference(text: str) -> int | None:
    """Where the end of a text begins that is a reference once more follows; None where there is none."""
    found = _MAY_BECOME.search(text)
    return found.start() if found else None


def write_reference(by_section: Mapping[str, Iterable[str | int]]) -> str:
    """`[Data: Entities (5, 7); Relationships (23)]`, at most five ids each, then "+more"."""
    parts = []
    for section, ids in by_section.items():
        items = [str(i) for i in ids]
        if items:
            more = ["+more"] if len(items) > MAX_REFERENCE_IDS else []
            parts.append(f"{section} ({', '.join(items[:MAX_REFERENCE_IDS] + more)})")
    return f"[Data: {'; '.join(parts)}]" if parts else ""


def _map_references(text: str, replace: Callable[[str, list[str]], list[str]]) -> str:
    def one(blanks: str, match: re.Match[str]) -> str:
        sections: dict[str, dict[str, None]] = {}
        for name, items in _parts(match.group(1) or match.group(2) or match.group(3) or ""):
            kept = replace(name, items)
            if name and kept:
                sections.setdefault(name, {}).update(dict.fromkeys(kept))
        written = write_reference(sections)
        # The space before a reference goes with it; no other is touched, since text may be a quotation.
        return blanks + written if written else ""

    return _replaced(text, one)


def _replaced(text: str, write: Callable[[str, re.Match[str]], str]) -> str:
    """The text with other words for each reference and the blanks before it; `write` is told both."""
    written, end = [], 0
    for start, match in find_references(text):
        written += [text[end:start], write(text[start : match.start()], match)]
        end = match.end()
    return "".join([*written, text[end:]]) if end else text


def find_references(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Every reference, in any form, with where the blanks before it begin."""
    end = 0
    # Looked for at brackets only: in the whole text it takes three times as long.
    for bracket in _BRACKET.finditer(text):
        start = bracket.start()
        if start >= end and (match := _REFERENCE.match(text, start)):
            while start > end and text[start - 1] in " \t":
                start -= 1
            end = match.end()
            yield start, match


def _parts(body: str) -> list[tuple[str, list[str]]]:
    """What a reference names, in order: a section of SECTIONS and its items. "" as the section: of none that
    is known, or a name without an item, which stands for itself."""
    parts: list[tuple[str, list[str]]] = []
    name, section, items = "", "", []
    inside = False
    for token in _TOKEN.findall(body):
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
    """Singular and plural alike: "entity" and "entities"."""
    return name.lower().rstrip("s").removesuffix("ie").removesuffix("y")


def _fold(text: str) -> str:
    return (text if text.isprintable() else _CONTROL.sub(" ", text)).strip()
