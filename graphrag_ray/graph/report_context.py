"""Render records in order of priority as a context of numbered sections within a token budget.

The corpus is untrusted: `sanitize` removes references and tags with a meaning in prompts, and
`base.context_records` escapes text that looks like a heading or another record. Contexts do not contain
degrees or counts, which unrelated documents would change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from graphrag_ray.base import context_records
from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION, REPORT_SECTIONS
from graphrag_ray.corpus.repeated_paragraphs import MARK, paragraphs
from graphrag_ray.graph.context_plan import NUMBER_TOKENS, max_element_tokens, max_report_tokens
from graphrag_ray.graph.distinct_sentences import distinct_sentences

Count: TypeAlias = Callable[[str], int]
"""Counts the tokens of a text in the model's vocabulary."""

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(REPORT_SECTIONS, ("id", "title", "content")),
    "Entities": ("id", "entity", "description"),
    "Relationships": ("id", "source", "target", "description"),
    "Claims": ("id", "subject", "object", "type", "status", "start_date", "end_date", "description"),
    "Sources": ("id", "document", "text"),
}

REPORT_COLUMNS_WITH_PERIOD = ("id", "title", "period", "content")

COLUMNS = {section: _COLUMNS[section] for section in RECORD_KIND_BY_SECTION}
"""Columns of each section, in the order of sections in a context."""

_DESCRIBED = ("Entities", "Relationships", "Claims")
"""Sections whose last column is a description, in the order of sections in a context."""

SEPARATE_GROUPS_NOTE = (
    "The entities below form {} separate groups. They share a report because they are small; nothing below "
    "links one group to another."
)
"""First line of a context with unconnected groups of entities, if it fits."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
_SCORE_TAG_START = re.compile(r"<(?=\s*+(?:/\s*+)?ANSWER[\s_]*+HELPFULNESS)", re.IGNORECASE)
_GAP = " " * 16
_LONG_GAP = re.compile(rf"[ \t\xa0]{{{len(_GAP)},}}")
_ELLIPSIS = "…"
# A line can be longer than its fields, because quotation marks are doubled and added around fields, and
# because NFC, to which some vocabularies normalise, can triple the length.
_MAX_TOKENS_PER_BYTE = 3


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a context.

    Attributes:
        id: String id.
        fields: The columns after the number, sanitized.
        columns: Columns of the section's table, including the number. () stands for COLUMNS.
        paragraphs: Long paragraphs of the last field, in order. A context shows each of them once.
    """

    section: str
    id: str
    fields: tuple[str, ...]
    columns: tuple[str, ...] = ()
    paragraphs: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The heading of the section's table, which all its records in a context share."""
        return context_records.section_heading(self.section, self.columns or COLUMNS[self.section])


@dataclass(frozen=True, slots=True)
class Context:
    """A context for a model.

    Attributes:
        numbering: (section, local number) -> string id of each record.
        n_tokens: Exact number of tokens of the text.
        left_out: Number of records that did not fit.
        cut: Number of records that were shortened.
    """

    text: str
    numbering: Mapping[tuple[str, int], str]
    n_tokens: int
    left_out: int = 0
    cut: int = 0


def entity_record(id_: str, title: str, description: str) -> Record:
    return _record("Entities", id_, title, description)


def relationship_record(
    id_: str,
    source: str,
    target: str,
    description: str,
    relation: str | None = "",
    relation_reversed: bool | None = False,
) -> Record:
    """Return the record of a relationship. A relation precedes the description and directs the ends."""
    if relation:
        source, target = (target, source) if relation_reversed else (source, target)
        description = f"{relation}: {description}"
    return _record("Relationships", id_, source, target, description)


def claim_record(row: Mapping[str, Any]) -> Record:
    """Return the record of a row of the covariates table."""
    names = ("subject_id", "object_id", "type", "status", "start_date", "end_date", "description")
    return _record("Claims", row["id"], *(row[name] or "" for name in names))


def report_record(
    id_: str, title: str, full_content: str, section: str = "Reports", period: str = ""
) -> Record:
    """Return the record of a report, with a column for the period that it covers, if known.

    References in `full_content` can be in any form.
    """
    content = content_for_context(full_content)
    if not period:
        return _record(section, id_, title, content)
    return replace(_record(section, id_, title, period, content), columns=REPORT_COLUMNS_WITH_PERIOD)


def source_record(id_: str, text: str, document: str = "") -> Record:
    """Return the record of a chunk. `document` describes its document."""
    return _record("Sources", id_, document, text)


def passage_record(id_: str, text: str, document: str = "") -> Record:
    """Return the record of a chunk with its paragraphs: long lines, and blocks without any long line."""
    spans = [*paragraphs(text), (len(text), len(text), 0)]
    innermost = (text[start:end] for (start, end, _), after in pairwise(spans) if after[0] >= end)
    return replace(source_record(id_, text, document), paragraphs=tuple(map(sanitize, innermost)))


def leave_out_shown(record: Record, shown: Collection[str]) -> Record:
    """Replace paragraphs that a context already shows with a mark, unless the record has no other text."""
    text, pieces, end = record.fields[-1], list[str](), 0
    for paragraph in record.paragraphs:
        if paragraph in shown:
            start = text.find(paragraph, end)
            if start < 0:  # Sanitizing the whole text changed it.
                break
            pieces += [text[end:start], MARK]
            end = start + len(paragraph)
    rest = [*pieces[::2], text[end:]]
    if not pieces or not any(c.isalnum() for piece in rest for c in piece):
        return record
    return replace(record, fields=(*record.fields[:-1], "".join([*pieces, rest[-1]])))


def _record(section: str, id_: str, *fields: str) -> Record:
    return Record(section, id_, tuple(sanitize(f) for f in fields))


def content_for_context(full_content: str) -> str:
    """Return a report without its title line and references, which have no meaning in other contexts."""
    return context_records.strip_references(re.sub(r"\A#[^\n]*\n+", "", full_content))


def without_repetitions(records: Sequence[Record]) -> list[Record]:
    """Return records whose descriptions do not end with sentences of earlier sections or records.

    A description that says nothing new stays, because a record without one would seem to lack it. Reports and
    chunks are left alone.
    """
    shown = [n for section in _DESCRIBED for n, r in enumerate(records) if r.section == section]
    result = list(records)
    for n, text in zip(shown, distinct_sentences(records[n].fields[-1] for n in shown), strict=True):
        if text:
            result[n] = replace(records[n], fields=(*records[n].fields[:-1], text))
    return result


def sanitize(text: str) -> str:
    """Make text from the corpus, or written by a model from it, safe to include in a prompt.

    Control characters and line breaks become spaces, long gaps (tables, ASCII art) are shortened, references
    are disabled, and the opening of the map prompt's score tag loses its bracket.
    """
    # Fold control characters first, because they could hide a reference.
    if not text.isprintable() or _GAP in text:
        text = _LONG_GAP.sub(" ", fold_control_characters(text))
    text = context_records.defuse_references(text)
    return _SCORE_TAG_START.sub("(", text) if "<" in text else text


def fold_control_characters(text: str) -> str:
    """Replace line breaks and control characters with spaces."""
    return _CONTROL.sub(" ", text)


def count_record_tokens(record: Record, count: Count) -> int:
    """Count the tokens of the record's line without its local number."""
    return count(context_records.csv_line(["", *record.fields]))


def render(
    selected: Sequence[Record],
    budget: int,
    count: Count,
    left_out: int = 0,
    max_record_tokens: int | None = None,
) -> Context:
    """Render records as a context of at most `budget` tokens, counted exactly.

    Records that do not fit are dropped from the end. If nothing is left out and the entities are not all
    connected, the first line says so.

    Args:
        selected: Records by descending priority, which also determines their numbers.
        left_out: Number of records that the plan left out.
        max_record_tokens: Maximum tokens of a record. Default: `max_element_tokens` or `max_report_tokens`.
    """
    long = (*REPORT_SECTIONS, "Sources")
    caps = [
        max_record_tokens or (max_report_tokens(budget) if r.section in long else max_element_tokens(budget))
        for r in selected
    ]
    fitted = [shorten_record(r, cap, count) for r, cap in zip(selected, caps, strict=True)]
    cut = [f is not r for f, r in zip(fitted, selected, strict=True)]
    text, numbering = write_sections(fitted)
    n_tokens = count(text)
    while n_tokens > budget and fitted:
        excess = n_tokens - budget
        while excess > 0 and fitted:
            excess -= count_record_tokens(fitted.pop(), count) + NUMBER_TOKENS
        text, numbering = write_sections(fitted)
        n_tokens = count(text)
    left_out += len(selected) - len(fitted)
    if left_out == 0 and (n_groups := _n_groups(selected)) > 1:
        with_note = SEPARATE_GROUPS_NOTE.format(n_groups) + "\n" + text
        if (n_with_note := count(with_note)) <= budget:
            text, n_tokens = with_note, n_with_note
    return Context(text, numbering, n_tokens, left_out, sum(cut[: len(fitted)]))


def _n_groups(records: Sequence[Record]) -> int:
    """Count the connected components of the entities. Returns 1 if reports replace some entities."""
    if any(r.section in REPORT_SECTIONS for r in records):
        return 1
    parent = {r.fields[0]: r.fields[0] for r in records if r.section == "Entities"}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for r in records:
        if r.section == "Relationships" and r.fields[0] in parent and r.fields[1] in parent:
            parent[root(r.fields[0])] = root(r.fields[1])
    return sum(name == above for name, above in parent.items())


def shorten_record(record: Record, limit: int, count: Count) -> Record:
    """Shorten a record, last column first, until its line has at most `limit` tokens."""
    n_bytes = sum(len(f.encode("utf-8", "surrogatepass")) + 1 for f in record.fields) + 1
    if _MAX_TOKENS_PER_BYTE * n_bytes <= limit:
        return record  # certainly fits, so tokens need not be counted
    for column in reversed(range(len(record.fields))):
        if count_record_tokens(record, count) <= limit:
            return record
        record = _shorten_column(record, column, limit, count)
    return record


def _shorten_column(record: Record, column: int, limit: int, count: Count) -> Record:
    fields = record.fields

    def shorter(start: str) -> Record:
        return replace(record, fields=(*fields[:column], start + _ELLIPSIS, *fields[column + 1 :]))

    return shorter(
        longest_prefix_that_fits(
            fields[column], lambda start: count_record_tokens(shorter(start), count) <= limit
        )
    )


def longest_prefix_that_fits(text: str, fits: Callable[[str], bool]) -> str:
    """Find the longest prefix of a text that fits by bisection. Returns "" if none fits.

    A reference that would be split is dropped.
    """
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle]):
            low = middle
        else:
            high = middle - 1
    return context_records.drop_unclosed_reference(text[:low]).rstrip()


def _align_columns(records: list[Record]) -> list[Record]:
    """Give all records of a section the columns of the record that has most. Missing fields are empty."""
    widest = max((r.columns or COLUMNS[r.section] for r in records), key=len, default=())

    def align(r: Record) -> Record:
        columns = r.columns or COLUMNS[r.section]
        if columns == widest:
            return r
        by_name = dict(zip(columns[1:], r.fields, strict=True))
        return replace(r, fields=tuple(by_name.get(name, "") for name in widest[1:]), columns=widest)

    return [align(r) for r in records]


def write_sections(records: Sequence[Record]) -> tuple[str, dict[tuple[str, int], str]]:
    """Return the text of all sections with local numbers 1…n, and the string id of each number."""
    parts: list[str] = []
    numbering: dict[tuple[str, int], str] = {}
    for section in COLUMNS:
        if rows := _align_columns([r for r in records if r.section == section]):
            parts += (
                rows[0].heading,
                context_records.csv_lines([n, *r.fields] for n, r in enumerate(rows, start=1)),
            )
            numbering |= {(section, n): r.id for n, r in enumerate(rows, start=1)}
    return "".join(parts), numbering
