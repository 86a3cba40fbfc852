"""Conditions on documents: `title=…`, `path~reports/*`, `date>=2023-01-01`, `metadata.author=Mara Venn`.

    =  !=            the exact value; of a list, one of its values
    ~  !~            a pattern with * and ?; all other characters are literal
    <  <=  >  >=     numbers, or dates to the precision that both have: date<=2023-05 includes all of May

`path`, `title` and `date` are fields of the document; any other name is a column of its metadata
(`raw_data`), and `metadata.` before a name forces that. A document without a value satisfies only != and !~.
"""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import REPORT_KINDS
from graphrag_ray.base.errors import UsageError
from graphrag_ray.corpus.document import METADATA_PREFIX, as_texts, column_at_path, parse_raw_data
from graphrag_ray.query.methods.method import Kind, Rows, Steps

FIELDS: Mapping[str, str] = {"path": "path", "title": "title", "date": "creation_date"}
"""A document's own fields, and their columns."""
MAX_LISTED = 8
"""Values or names that a message lists."""
MAX_LISTED_CHARACTERS = 60

MAX_CONDITIONS = 100
MAX_CHARACTERS = 4_000
"""Characters of a condition."""

_SIGN = re.compile(r"!=|!~|>=|<=|[=~<>!]")
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_LONGEST_DATE = 100
_ISO = re.compile(r"(\d{4})(?:[-/.](\d{1,2})(?:[-/.](\d{1,2})(?:[T ](\d{2}:\d{2}(?::\d{2})?))?)?)?(?!\d)")
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})(?!\d)")
_MONTH = re.compile(r"[^\W\d_]{3}")
_SHAPE = "write it as NAME=VALUE, or with !=, ~ (a pattern), !~, <, <=, > or >="


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. `metadata` tells whether the name is a column of raw_data."""

    text: str
    name: str
    sign: str
    value: str
    metadata: bool

    @property
    def ordered(self) -> bool:
        return self.sign[0] in "<>"


def matching_chunks(conditions: Sequence[str]) -> Steps[frozenset[str] | None]:
    """Find the chunks of the documents that satisfy all conditions; None if all do. Raises UsageError."""
    if not conditions:
        return None
    if len(conditions) > MAX_CONDITIONS:
        raise UsageError(f"At most {MAX_CONDITIONS} conditions can be combined, got {len(conditions):,}")
    parsed = [parse(c) for c in conditions]
    documents = yield Rows("documents", ["text_unit_ids", *columns(parsed)])
    chosen = satisfied(parsed, documents)
    if all(chosen):
        return None
    lists = documents["text_unit_ids"].filter(pa.array(chosen))
    return frozenset(pc.list_flatten(lists).to_pylist())


def matching_ids(kind: Kind, chunks: Collection[str] | None) -> Steps[list[str] | None]:
    """Find records of a kind in, or mentioned by, chunks; None for all. Raises UsageError for reports."""
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
    return ids


def parse(text: str) -> Condition:
    """Parse a condition. Raises UsageError."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"Condition {_short(text)!r} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed"
        )
    match = _SIGN.search(text)
    sign = match[0] if match else "!"
    name, _, value = (part.strip() for part in text.partition(sign))
    if sign == "!" or not name:
        raise UsageError(f"Condition {_short(text)!r} is not valid: {_SHAPE}")
    metadata = name not in FIELDS
    condition = Condition(
        text, name.removeprefix(METADATA_PREFIX) if metadata else name, sign, value, metadata
    )
    if condition.ordered and _number(value) is None and not _ISO.fullmatch(value):
        raise UsageError(
            f"Condition {_short(text)!r} is not valid: {value!r} is neither a number nor a date such as "
            "2023, 2023-05 or 2023-05-17"
        )
    return condition


def columns(conditions: Sequence[Condition]) -> list[str]:
    """The columns of `documents` that the conditions need."""
    return list(dict.fromkeys("raw_data" if c.metadata else FIELDS[c.name] for c in conditions))


def satisfied(conditions: Sequence[Condition], documents: pa.Table) -> list[bool]:
    """Evaluate conditions: whether each document, with `columns(conditions)`, satisfies all of them.

    Raises:
        UsageError: No document satisfies a condition, or all of them together; the message lists what exists.
    """
    n = documents.num_rows
    chosen = [True] * n
    raw_data = documents["raw_data"].to_pylist() if "raw_data" in documents.column_names else []
    metadata = [parse_raw_data(text) for text in raw_data]
    for condition in conditions if n else ():
        if condition.metadata:
            values = [as_texts(column_at_path(row, condition.name)) for row in metadata]
        else:
            values = [[] if v is None else [v] for v in documents[FIELDS[condition.name]].to_pylist()]
        if condition.metadata and not any(values):
            has = _some([_short(name) for name in sorted({name for row in metadata for name in row})])
            more = f", and in their metadata {has}" if has else "; they have no metadata"
            raise UsageError(
                f"Condition {_short(condition.text)!r}: no document has {_short(condition.name)!r}; they "
                f"have {', '.join(FIELDS)}{more}"
            )
        alone = [_satisfies(condition, own) for own in values]
        if not any(alone):
            counted = Counter(v for own in values for v in own).most_common()
            actual = f"{condition.name} is {_some([f'{_short(v)} ({n})' for v, n in counted])}"
            if not counted:
                hint = "; input.date_column names the column that contains it"
                actual = f"none has a {condition.name}{hint if condition.name == 'date' else ''}"
            raise UsageError(f"No document satisfies {_short(condition.text)!r}: {actual}")
        chosen = [a and b for a, b in zip(chosen, alone, strict=True)]
    if n and not any(chosen):
        raise UsageError(
            "Some documents satisfy each of these conditions, but none satisfies all of them: "
            + ", ".join(_short(c.text) for c in conditions)
        )
    return chosen


def _satisfies(condition: Condition, values: list[str]) -> bool:
    """Whether the values of a document satisfy a condition. Several values come from a list."""
    if condition.ordered:
        return any(_compare(condition, value) for value in values)
    wanted, number = condition.value, _number(condition.value)
    if condition.sign.endswith("~"):
        found = any(fnmatch.fnmatchcase(value, wanted.replace("[", "[[]")) for value in values)
    else:
        found = any(v.strip() == wanted or (number is not None and _number(v) == number) for v in values)
    return found != condition.sign.startswith("!")


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
    return bool(_COMPARE[condition.sign](a, b))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def iso_date(text: str) -> str:
    """Convert a date to ISO 8601; "" for anything else and for ambiguous dates such as 3/4/2023."""
    if match := _COMPACT.match(text.strip()):
        return "-".join(match.groups())
    if match := _ISO.match(text.strip()):
        year, *rest, time = match.groups()
        return "-".join([year, *(part.zfill(2) for part in rest if part)]) + (f"T{time}" if time else "")
    if len(text) > _LONGEST_DATE or not _MONTH.search(text):
        return ""
    from dateutil import parser as dates  # takes 20 ms to import, and most questions do not need it

    try:
        return str(dates.parse(text, default=datetime(1, 1, 1)).isoformat())
    except (ValueError, ArithmeticError):
        return ""


def _some(listed: Sequence[str]) -> str:
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return ", ".join(listed[:MAX_LISTED]) + more


def _short(text: str) -> str:
    return text if len(text) <= MAX_LISTED_CHARACTERS else text[:MAX_LISTED_CHARACTERS] + "…"
