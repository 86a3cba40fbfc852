"""Records in a context, and references to them.

A context shows numbered records in sections, each line one record of a CSV table:

    -----Entities-----
    id,entity,description
    1,MARA VENN,"Mayor of the town, …"

Numbers are local to the context (1…n per section), so that no cached reply depends on what else is in
the index; `References` turns a model's `[Data: Entities (1, 4)]` into string ids at once. Line breaks
inside a field are folded, so no text of the corpus can look like a heading or another record.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

SECTIONS = ("Reports", "Entities", "Relationships", "Claims", "Sources")
"""The kinds of record a reference can name."""

MAX_REFERENCE_IDS = 5
"""At most so many ids are listed in one reference, then "+more" (paper E.2)."""

_HEADING = re.compile(r"^-----([A-Za-z]+)-----$")
# Possessive repetitions, and starts that only one place can be: linear on replies of nothing but spaces.
_REFERENCE = re.compile(r"(?<![ \t])([ \t]*+)\[\s*+Data:([^\[\]]*+)\]", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_PART = re.compile(r"(?<![A-Za-z])([A-Za-z]++)\s*+\(([^()]*+)\)")


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
    first appearance, and how many cited numbers were not in the context (these are taken out; an
    empty reference goes altogether).
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
        found.update(dict.fromkeys(Reference(section, i) for i in items))
        return items

    _map_references(text, collect)
    return list(found)


def strip_references(text: str) -> str:
    """The text without its references, for contexts in which their numbers would mean nothing."""
    return _REFERENCE.sub("", text)


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
    def one(match: re.Match[str]) -> str:
        sections: dict[str, dict[str, None]] = {}
        for part in _PART.finditer(match.group(2)):
            name = _section(part.group(1))
            items = [i.strip() for i in re.split(r"[,;]", part.group(2))]
            items = [i for i in items if i and i.lower() != "+more"]
            kept = replace(name, items) if name else replace("", items)
            if name and kept:
                sections.setdefault(name, {}).update(dict.fromkeys(kept))
        written = write_reference(sections)
        # The space before a reference goes with it; no other is touched, since text may be a quotation.
        return match.group(1) + written if written else ""

    return _REFERENCE.sub(one, text)


@lru_cache(maxsize=1024)
def _section(name: str) -> str | None:
    return next((s for s in SECTIONS if _stem(s) == _stem(name)), None)


def _stem(name: str) -> str:
    """Singular and plural alike: "entity" and "entities"."""
    return name.lower().rstrip("s").removesuffix("ie").removesuffix("y")


def _fold(text: str) -> str:
    return (text if text.isprintable() else _CONTROL.sub(" ", text)).strip()
