"""Conditions on documents: `title=…`, `path~reports/*`, `date>=2023-01-01`, `metadata.author=Mara Venn`.

    =  !=            the exact value, or one of the values of a list
    ~  !~            a pattern with * and ? (all other characters are literal)
    <  <=  >  >=     numbers, or dates compared to their common precision: date<=2023-05 includes all of May

`path`, `title` and `date` are fields of the document. Any other name, and a name after the prefix
`metadata.`, is a column of its metadata (`raw_data`). A document without a value satisfies only != and !~.

A report satisfies a condition on `date` if the whole period that it covers does.

In an index with a schema, `relation=TREATS` is a condition on relationships: it restricts a search to the
relationships with that type, their ends, and the chunks that state them. Case, spaces, hyphens and
underscores make no difference.
"""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.dates import describe_period, iso_date
from graphrag_ray.base.declarations import REPORT_KINDS
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.schema import PERIOD_COLUMNS
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.document import METADATA_PREFIX, as_texts, column_at_path, parse_raw_data
from graphrag_ray.graph.extraction_schema import fold_spelling
from graphrag_ray.query.methods.method import Kind, Notice, Rows, Steps

FIELDS: Mapping[str, str] = {"path": "path", "title": "title", "date": "creation_date"}
"""Fields of a document, and their columns."""
MAX_LISTED_VALUES = 8
"""Maximum number of values or names listed in a message."""
MAX_LISTED_VALUE_CHARACTERS = 60

MAX_CONDITIONS = 100
MAX_CHARACTERS = 4_000
"""Maximum length of a condition in characters."""

_SIGN = re.compile(r"!=|!~|>=|<=|[=~<>!]")
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_SYNTAX = "write it as NAME=VALUE, or with !=, ~ (a pattern), !~, <, <=, > or >="


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. `metadata` says whether the name is a column of raw_data."""

    text: str
    name: str
    sign: str
    value: str
    metadata: bool

    @property
    def is_comparison(self) -> bool:
        return self.sign[0] in "<>"

    @property
    def is_about_relations(self) -> bool:
        """Whether the name is `relation`, without the prefix for metadata."""
        return self.name == "relation" and not self.text.lstrip().startswith(METADATA_PREFIX)


class RelatedChunks(frozenset[str]):
    """Chunks that state relationships, with the ids of these relationships and of their ends."""

    relationship: frozenset[str]
    entity: frozenset[str]


def matching_chunks(conditions: Sequence[str]) -> Steps[frozenset[str] | None]:
    """Find the chunks that satisfy all conditions, or None if all do. Raises UsageError.

    With conditions on relations, returns RelatedChunks.
    """
    if not conditions:
        return None
    if len(conditions) > MAX_CONDITIONS:
        raise UsageError(f"At most {MAX_CONDITIONS} conditions can be combined, got {len(conditions):,}")
    parsed = [parse(c) for c in conditions]
    related = yield from _related_chunks([c for c in parsed if c.is_about_relations])
    if related is None:
        return (yield from _chunks_of_documents(parsed))
    parsed = [c for c in parsed if not c.is_about_relations]
    of_documents = (yield from _chunks_of_documents(parsed)) if parsed else None
    if of_documents is None:
        return related
    if related.isdisjoint(of_documents):
        raise UsageError("No document that satisfies the other conditions states such a relationship")
    chunks = RelatedChunks(related & of_documents)
    chunks.relationship, chunks.entity = related.relationship, related.entity
    return chunks


def _related_chunks(conditions: Sequence[Condition]) -> Steps[RelatedChunks | None]:
    """Find the relationships that satisfy all conditions, and their chunks.

    Returns None if there is no condition, or the index has no relation types. Then `relation` can only be a
    column of metadata.
    """
    if not conditions:
        return None
    table = yield Rows("relationships", ["id", "source_id", "target_id", "relation", "text_unit_ids"])
    counted = pc.value_counts(table["relation"].combine_chunks()).to_pylist()
    n_of = {c["values"]: c["counts"] for c in counted if c["values"]}
    if not n_of:
        return None
    plain = [replace(c, value=fold_spelling(c.value)) for c in conditions]
    matching = [
        name
        for name in [*n_of, ""]
        if all(_satisfies(c, [fold_spelling(name)] if name else []) for c in plain)
    ]
    chosen = table.filter(
        pc.is_in(pc.fill_null(table["relation"], ""), value_set=pa.array(matching, pa.string()))
    )
    if not chosen.num_rows:
        by_count = sorted(n_of.items(), key=lambda pair: (-pair[1], pair[0]))
        raise UsageError(
            f"No relationship satisfies {', '.join(_shorten(c.text) for c in conditions)!r}: relation is "
            f"{_listing([f'{name} ({n:,})' for name, n in by_count])}"
        )
    chunks = RelatedChunks(pc.list_flatten(chosen["text_unit_ids"]).to_pylist())
    chunks.relationship = frozenset(chosen["id"].to_pylist())
    chunks.entity = frozenset([*chosen["source_id"].to_pylist(), *chosen["target_id"].to_pylist()])
    return chunks


def _chunks_of_documents(parsed: Sequence[Condition]) -> Steps[frozenset[str] | None]:
    documents = yield Rows("documents", ["text_unit_ids", *columns(parsed)])
    mask = evaluate(parsed, documents)
    if n := _count_unreadable_dates(parsed, documents):
        yield Notice(
            f"{n:,} of {plural(documents.num_rows, 'document')} have no readable date and satisfy no "
            "condition on dates."
        )
    if all(mask):
        return None
    lists = documents["text_unit_ids"].filter(pa.array(mask))
    return frozenset(pc.list_flatten(lists).to_pylist())


def matching_ids(kind: Kind, chunks: Collection[str] | None) -> Steps[list[str] | None]:
    """Find the ids of a kind's records in chunks. None means all. Raises UsageError for reports.

    In RelatedChunks, these are only their relationships and the ends of these.
    """
    if chunks is None or kind == "text_unit":
        return None if chunks is None else sorted(chunks)
    if kind in REPORT_KINDS:
        raise UsageError(
            "Conditions on documents do not apply to reports, which are written from many documents. Remove "
            f"the conditions, or remove {kind} from query.hybrid_record_kinds."
        )
    column = f"{kind}_ids"
    units = yield Rows("text_units", [column], list(chunks))
    ids: list[str] = pc.unique(pc.list_flatten(units[column])).to_pylist()
    if isinstance(chunks, RelatedChunks):
        return [id_ for id_ in ids if id_ in getattr(chunks, kind)]
    return ids


def is_about_period(condition: Condition) -> bool:
    """Whether the condition can be applied to the period of a report: date with =, <, <=, > or >=."""
    return not condition.metadata and condition.name == "date" and condition.sign in ("=", *_OPERATORS)


@dataclass(frozen=True, slots=True)
class ReportsInPeriod:
    """The reports whose whole period satisfies conditions on dates.

    Attributes:
        mask: Whether each report satisfies all of the conditions.
        outside: Number of reports that cover other dates, too, or only these.
        undated: Number of reports without a period.
    """

    mask: list[bool]
    outside: int
    undated: int

    def note(self) -> str:
        return (
            f"The whole period of {plural(sum(self.mask), 'report')} satisfies the conditions. Left out: "
            f"{self.outside:,} that also or only cover other dates, {self.undated:,} without a period."
        )


def reports_in_period(conditions: Sequence[str], reports: pa.Table) -> ReportsInPeriod:
    """Find the reports whose whole period satisfies all conditions, given their `PERIOD_COLUMNS`.

    Raises:
        UsageError: A condition is not about dates, or no report satisfies all of them.
    """
    parsed = [parse(text) for text in conditions]
    for condition in parsed:
        if not is_about_period(condition):
            raise UsageError(
                f"Condition {_shorten(condition.text)!r} does not apply to reports. Use date with =, <, <=, "
                "> or >=, or a search method for passages, such as --method local."
            )
    periods = list(zip(*(reports[name].to_pylist() for name in PERIOD_COLUMNS), strict=True))
    dated = [(start, end) for start, end in periods if start and end]
    mask = [
        bool(start and end) and all(_compare(c, start) and _compare(c, end) for c in parsed)
        for start, end in periods
    ]
    if periods and not any(mask):
        actual = "no report has a period, because no document of theirs has a readable date"
        if dated:
            first, last = min(start for start, _ in dated), max(end for _, end in dated)
            actual = f"{plural(len(dated), 'report')} with a period cover {describe_period(first, last)}"
        quoted = ", ".join(_shorten(condition.text) for condition in parsed)
        raise UsageError(f"The whole period of no report satisfies {quoted!r}: {actual}")
    return ReportsInPeriod(mask, len(dated) - sum(mask), len(periods) - len(dated))


def parse(text: str) -> Condition:
    """Parse a condition. Raises UsageError."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"Condition {_shorten(text)!r} has {len(text):,} characters. At most {MAX_CHARACTERS:,} are "
            "allowed."
        )
    match = _SIGN.search(text)
    sign = match[0] if match else "!"
    name, _, value = (part.strip() for part in text.partition(sign))
    if sign == "!" or not name:
        raise UsageError(f"Condition {_shorten(text)!r} is not valid: {_SYNTAX}")
    metadata = name not in FIELDS
    condition = Condition(
        text, name.removeprefix(METADATA_PREFIX) if metadata else name, sign, value, metadata
    )
    if condition.is_comparison and _number(value) is None and not iso_date(value):
        raise UsageError(
            f"Condition {_shorten(text)!r} is not valid: {value!r} is neither a number nor a date such as "
            "2023, 2023-05 or 2023-05-17"
        )
    return condition


def columns(conditions: Sequence[Condition]) -> list[str]:
    """List the columns of `documents` that the conditions need."""
    return list(dict.fromkeys("raw_data" if c.metadata else FIELDS[c.name] for c in conditions))


def evaluate(conditions: Sequence[Condition], documents: pa.Table) -> list[bool]:
    """For each document, given with `columns(conditions)`, evaluate whether it satisfies all conditions.

    Raises:
        UsageError: No document satisfies one or all of the conditions. The message lists what exists.
    """
    n = documents.num_rows
    mask = [True] * n
    raw_data = documents["raw_data"].to_pylist() if "raw_data" in documents.column_names else []
    metadata = [parse_raw_data(text) for text in raw_data]
    for condition in conditions if n else ():
        if condition.metadata:
            values = [as_texts(column_at_path(row, condition.name)) for row in metadata]
        else:
            values = [[] if v is None else [v] for v in documents[FIELDS[condition.name]].to_pylist()]
        if condition.metadata and not any(values):
            names = _listing([_shorten(name) for name in sorted({name for row in metadata for name in row})])
            suffix = f", and in their metadata {names}" if names else "; they have no metadata"
            raise UsageError(
                f"Condition {_shorten(condition.text)!r}: no document has {_shorten(condition.name)!r}; they "
                f"have {', '.join(FIELDS)}{suffix}"
            )
        satisfies = [_satisfies(condition, of_document) for of_document in values]
        if not any(satisfies):
            counted = Counter(v for of_document in values for v in of_document).most_common()
            actual = f"{condition.name} is {_listing([f'{_shorten(v)} ({n})' for v, n in counted])}"
            if not counted:
                hint = ". Set input.date_column to the column that contains it"
                actual = f"none has a {condition.name}{hint if condition.name == 'date' else ''}"
            raise UsageError(f"No document satisfies {_shorten(condition.text)!r}: {actual}")
        mask = [a and b for a, b in zip(mask, satisfies, strict=True)]
    if n and not any(mask):
        raise UsageError(
            "Some documents satisfy each of these conditions, but none satisfies all of them: "
            + ", ".join(_shorten(c.text) for c in conditions)
        )
    return mask


def _count_unreadable_dates(conditions: Sequence[Condition], documents: pa.Table) -> int:
    if not any(c.is_comparison and c.name == "date" and not c.metadata for c in conditions):
        return 0
    return sum(not iso_date(text or "") for text in documents[FIELDS["date"]].to_pylist())


def _satisfies(condition: Condition, values: list[str]) -> bool:
    """Whether a document satisfies a condition, given its value, or its values if they are a list."""
    if condition.is_comparison:
        return any(_compare(condition, value) for value in values)
    wanted, number = condition.value, _number(condition.value)
    if condition.sign.endswith("~"):
        matches = any(fnmatch.fnmatchcase(value, wanted.replace("[", "[[]")) for value in values)
    else:
        matches = any(v.strip() == wanted or (number is not None and _number(v) == number) for v in values)
    return matches != condition.sign.startswith("!")


def _compare(condition: Condition, value: str) -> bool:
    """Compare a value as a number, or as a date to their common precision: 2023 is not before 2023-05."""
    a: Any = _number(value)
    b: Any = _number(condition.value)
    if a is None or b is None or not condition.metadata:
        a, b = iso_date(value), iso_date(condition.value)
        common = min(len(a), len(b))
        if not common:
            return False
        a, b = a[:common], b[:common]
    return bool(_OPERATORS.get(condition.sign, operator.eq)(a, b))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _listing(values: Sequence[str]) -> str:
    more = f" and {len(values) - MAX_LISTED_VALUES} more" if len(values) > MAX_LISTED_VALUES else ""
    return ", ".join(values[:MAX_LISTED_VALUES]) + more


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LISTED_VALUE_CHARACTERS else text[:MAX_LISTED_VALUE_CHARACTERS] + "…"
