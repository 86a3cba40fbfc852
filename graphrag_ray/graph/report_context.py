"""A context as text: records by falling priority in, numbered sections out, never above the budget.

Whatever the corpus says is data here: references and tags that mean something to us are taken out of
it (`clean`), and records.py sees to it that no text looks like a heading or another record. No degree
or count is shown that an unrelated document would change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from graphrag_ray.base import records
from graphrag_ray.base.declarations import OF_SECTION, REPORT_SECTIONS
from graphrag_ray.graph.plan import NUMBER_TOKENS, element_cap, report_cap

Count: TypeAlias = Callable[[str], int]
"""Tokens of a text in the model's vocabulary."""

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(REPORT_SECTIONS, ("id", "title", "content")),
    "Entities": ("id", "entity", "description"),
    "Relationships": ("id", "source", "target", "description"),
    "Claims": ("id", "subject", "object", "type", "status", "start_date", "end_date", "description"),
    "Sources": ("id", "document", "text"),
}

COLUMNS = {section: _COLUMNS[section] for section in OF_SECTION}
"""Columns of each section, in the order in which sections are shown."""

SEPARATE = (
    "The entities below form {} separate groups. They share a report because they are small; nothing below "
    "links one group to another."
)
"""First line of a context whose entities are not connected by its relationships, where it fits."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
_SCORE_TAG_START = re.compile(r"<(?=\s*+(?:/\s*+)?ANSWER[\s_]*+HELPFULNESS)", re.IGNORECASE)
_GAP = " " * 16
_LONG_GAP = re.compile(rf"[ \t\xa0]{{{len(_GAP)},}}")
_CUT = "…"
_MOST_TOKENS_PER_BYTE = 3
"""Of a field in its line: quotation marks are doubled there and put around it, and a vocabulary that brings
text into NFC makes it three times as long at most."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a context: its section, its string id, and its columns after the number, clean.

    columns: of its section's table, the number's included; (): those of COLUMNS
    """

    section: str
    id: str
    fields: tuple[str, ...]
    columns: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """What opens the table of its section; the same for all records of a context."""
        return records.heading(self.section, self.columns or COLUMNS[self.section])


@dataclass(frozen=True, slots=True)
class Context:
    """What a model is shown.

    numbering   (section, local number) -> string id of every record shown
    n_tokens    of text, exactly
    left_out    records that did not fit
    cut         records that are shown without their end
    """

    text: str
    numbering: Mapping[tuple[str, int], str]
    n_tokens: int
    left_out: int = 0
    cut: int = 0


def entity(id_: str, title: str, description: str) -> Record:
    return _record("Entities", id_, title, description)


def relationship(id_: str, source: str, target: str, description: str) -> Record:
    return _record("Relationships", id_, source, target, description)


def claim_of(row: Mapping[str, Any]) -> Record:
    """The record of a row of the covariates table."""
    names = ("subject_id", "object_id", "type", "status", "start_date", "end_date", "description")
    return _record("Claims", row["id"], *(row[name] or "" for name in names))


def report_record(id_: str, title: str, full_content: str, section: str = "Reports") -> Record:
    """full_content: as `full_content` wrote it or as the table holds it, whatever its references show."""
    return _record(section, id_, title, shown_content(full_content))


def source(id_: str, text: str, document: str = "") -> Record:
    """A chunk of the corpus, for ways of answering that read the source itself. document: what is said of
    its document."""
    return _record("Sources", id_, document, text)


def shown_content(full_content: str) -> str:
    """A report as contexts show it: without references, which mean nothing elsewhere, and without the
    title line, since the title is a column of its own."""
    return records.strip_references(re.sub(r"\A#[^\n]*\n+", "", full_content))


def clean(text: str) -> str:
    """Text of the corpus, or written from it, made harmless inside a prompt.

    Control characters and line breaks become spaces, nothing is left that would be read as a reference, and
    the opening of the map prompt's score tag loses its bracket.
    """
    # Control characters first: they could hide a reference until records.line folds them.
    # Long gaps (tables, ASCII art) say nothing.
    if not text.isprintable() or _GAP in text:
        text = _LONG_GAP.sub(" ", fold(text))
    text = records.harmless(text)
    return _SCORE_TAG_START.sub("(", text) if "<" in text else text


def fold(text: str) -> str:
    """Line breaks and control characters as spaces."""
    return _CONTROL.sub(" ", text)


def record_tokens(record: Record, count: Count) -> int:
    """Tokens of the record's line without its local number."""
    return count(records.line(["", *record.fields]))


def render(
    shown: Sequence[Record], budget: int, count: Count, left_out: int = 0, longest: int | None = None
) -> Context:
    """Write records as a context of at most `budget` tokens.

    shown: by falling priority; sections and numbers follow it. A record longer than `longest`, or else
    `element_cap` or `report_cap`, is cut at its end. Counted exactly: what is too much all the same goes from
    the end. Where all records of a community are shown and its entities are not connected, a first line says
    so.
    """
    long = (*REPORT_SECTIONS, "Sources")
    caps = [report_cap(budget) if r.section in long else element_cap(budget) for r in shown]
    fitted = [fit(r, longest or cap, count) for r, cap in zip(shown, caps, strict=True)]
    cut = [f is not r for f, r in zip(fitted, shown, strict=True)]
    text, numbering = write(fitted)
    n_tokens = count(text)
    while n_tokens > budget and fitted:
        excess = n_tokens - budget
        while excess > 0 and fitted:
            excess -= record_tokens(fitted.pop(), count) + NUMBER_TOKENS
        text, numbering = write(fitted)
        n_tokens = count(text)
    dropped = len(shown) - len(fitted)
    if left_out + dropped == 0 and (n_groups := _n_groups(shown)) > 1:
        told = SEPARATE.format(n_groups) + "\n" + text
        if (n_told := count(told)) <= budget:
            text, n_tokens = told, n_told
    return Context(text, numbering, n_tokens, left_out + dropped, sum(cut[: len(fitted)]))


def _n_groups(shown: Sequence[Record]) -> int:
    """Connected components of the entities under the relationships; 1 where reports stand in for some."""
    if any(r.section in REPORT_SECTIONS for r in shown):
        return 1
    parent = {r.fields[0]: r.fields[0] for r in shown if r.section == "Entities"}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for r in shown:
        if r.section == "Relationships" and r.fields[0] in parent and r.fields[1] in parent:
            parent[root(r.fields[0])] = root(r.fields[1])
    return sum(name == above for name, above in parent.items())


def fit(record: Record, limit: int, count: Count) -> Record:
    """The record itself where its line has at most `limit` tokens, else cut: its last column first."""
    if (
        _MOST_TOKENS_PER_BYTE * (sum(len(f.encode("utf-8", "surrogatepass")) + 1 for f in record.fields) + 1)
        <= limit
    ):
        return record
    for column in reversed(range(len(record.fields))):
        if record_tokens(record, count) <= limit:
            return record
        record = _cut_column(record, column, limit, count)
    return record


def _cut_column(record: Record, column: int, limit: int, count: Count) -> Record:
    fields = record.fields

    def shorter(start: str) -> Record:
        return replace(record, fields=(*fields[:column], start + _CUT, *fields[column + 1 :]))

    return shorter(longest_start(fields[column], lambda start: record_tokens(shorter(start), count) <= limit))


def longest_start(text: str, fits: Callable[[str], bool]) -> str:
    """The longest start of a text that fits, by bisection; "" where nothing does. A reference that the
    cut would split goes altogether."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle]):
            low = middle
        else:
            high = middle - 1
    return records.without_unfinished(text[:low]).rstrip()


def _record(section: str, id_: str, *fields: str) -> Record:
    return Record(section, id_, tuple(clean(f) for f in fields))


def write(shown: Sequence[Record]) -> tuple[str, dict[tuple[str, int], str]]:
    """Sections with local numbers 1…n, and what each number stands for."""
    parts: list[str] = []
    numbering: dict[tuple[str, int], str] = {}
    for section in COLUMNS:
        inside = [r for r in shown if r.section == section]
        if inside:
            parts.append(inside[0].heading)
            parts.append(records.lines([n, *r.fields] for n, r in enumerate(inside, start=1)))
            numbering |= {(section, n): r.id for n, r in enumerate(inside, start=1)}
    return "".join(parts), numbering
