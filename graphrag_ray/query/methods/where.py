"""Conditions on documents: `title=…`, `path~reports/*`, `date>=2023-01-01`, `metadata.author=Mara Venn`.

    =  !=            the value as it stands; of a list, one of its values
    ~  !~            a pattern with * and ?; any other character is itself
    <  <=  >  >=     numbers, or dates to the precision that both have: date<=2023-05 is all of May too

`path`, `title` and `date` are the document's own, any other name is a column of its metadata (`raw_data`);
`metadata.` before a name says so. A document without a value fulfils != and !~ alone.
"""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import REPORTS
from graphrag_ray.base.errors import UsageError
from graphrag_ray.corpus.document import PREFIX, as_texts, column, columns_of
from graphrag_ray.query.methods.method import Kind, Rows

OWN: Mapping[str, str] = {"path": "path", "title": "title", "date": "creation_date"}
"""Names of a document's own fields, and their columns."""
MAX_TOLD = 8
"""Values or names that a message lists."""
MAX_TOLD_CHARACTERS = 60

MAX_CONDITIONS = 100
MAX_CHARACTERS = 4_000
"""Of a condition."""

_SIGN = re.compile(r"!=|!~|>=|<=|[=~<>!]")

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_LONGEST_DATE = 100
_ISO = re.compile(r"(\d{4})(?:[-/.](\d{1,2})(?:[-/.](\d{1,2})(?:[T ](\d{2}:\d{2}(?::\d{2})?))?)?)?(?!\d)")
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})(?!\d)")
_MONTH = re.compile(r"[^\W\d_]{3}")
_SHAPE = "write it as NAME=VALUE, or with !=, ~ (a pattern), !~, <, <=, > or >="


@dataclass(frozen=True, slots=True)
class Condition:
    """text: as it was written; metadata: the name is a column of raw_data."""

    text: str
    name: str
    sign: str
    value: str
    metadata: bool

    @property
    def ordered(self) -> bool:
        return self.sign[0] in "<>"


def within(conditions: Sequence[str]) -> Generator[Any, Any, frozenset[str] | None]:
    """Ids of the chunks of the documents that fulfil all conditions; None where all documents do.

    Raises UsageError for a condition that cannot be read, that names what no document has, or that none
    fulfils; it says what there is.
    """
    if not conditions:
        return None
    if len(conditions) > MAX_CONDITIONS:
        raise UsageError(
            f"there are {len(conditions):,} conditions; {MAX_CONDITIONS} at most can be met together"
        )
    parsed = [parse(c) for c in conditions]
    documents = yield Rows("documents", ["text_unit_ids", *columns(parsed)])
    chosen = fulfilled(parsed, documents)
    if all(chosen):
        return None
    lists = documents["text_unit_ids"].filter(pa.array(chosen))
    return frozenset(pc.list_flatten(lists).to_pylist())


def among(kind: Kind, chunks: Collection[str] | None) -> Generator[Any, Any, list[str] | None]:
    """What can be found of a kind where only these chunks count: themselves, or what they name; None: all.

    Raises UsageError for reports, which no single document wrote.
    """
    if chunks is None or kind == "text_unit":
        return None if chunks is None else sorted(chunks)
    if kind in REPORTS:
        raise UsageError(
            "reports are written from many documents: conditions on documents cannot be met by them. Leave "
            f"out the conditions, or {kind} in query.hybrid_over"
        )
    column = f"{kind}_ids"
    units = yield Rows("text_units", [column], list(chunks))
    named: list[str] = pc.unique(pc.list_flatten(units[column])).to_pylist()
    return named


def parse(text: str) -> Condition:
    """Raises UsageError, which names the condition."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"condition {_short(text)!r} has {len(text):,} characters; {MAX_CHARACTERS:,} at most"
        )
    found = _SIGN.search(text)
    sign = found[0] if found else "!"
    name, _, value = (part.strip() for part in text.partition(sign))
    if sign == "!" or not name:
        raise UsageError(f"condition {_short(text)!r}: {_SHAPE}")
    metadata = name not in OWN
    condition = Condition(text, name.removeprefix(PREFIX) if metadata else name, sign, value, metadata)
    if condition.ordered and _number(value) is None and not _ISO.fullmatch(value):
        raise UsageError(
            f"condition {_short(text)!r}: {value!r} is neither a number nor a date such as 2023, 2023-05 or "
            "2023-05-17"
        )
    return condition


def columns(conditions: Sequence[Condition]) -> list[str]:
    """What has to be read of documents."""
    return list(dict.fromkeys("raw_data" if c.metadata else OWN[c.name] for c in conditions))


def fulfilled(conditions: Sequence[Condition], documents: pa.Table) -> list[bool]:
    """[documents] whether each fulfils all conditions. documents: at least `columns`. Raises UsageError."""
    n = documents.num_rows
    chosen = [True] * n
    raw_data = documents["raw_data"].to_pylist() if "raw_data" in documents.column_names else []
    metadata = [columns_of(text) for text in raw_data]
    for condition in conditions if n else ():
        if condition.metadata:
            values = [as_texts(column(row, condition.name)) for row in metadata]
        else:
            values = [[] if v is None else [v] for v in documents[OWN[condition.name]].to_pylist()]
        if condition.metadata and not any(values):
            has = _some([_short(name) for name in sorted({name for row in metadata for name in row})])
            more = f", and in their metadata {has}" if has else "; they have no metadata"
            raise UsageError(
                f"condition {_short(condition.text)!r}: no document has {_short(condition.name)!r}; they "
                f"have {', '.join(OWN)}{more}"
            )
        alone = [_fulfils(condition, own) for own in values]
        if not any(alone):
            counted = Counter(v for own in values for v in own).most_common()
            told = f"{condition.name} is {_some([f'{_short(v)} ({n})' for v, n in counted])}"
            if not counted:
                hint = "; input.date_column names the column that holds it"
                told = f"none has a {condition.name}{hint if condition.name == 'date' else ''}"
            raise UsageError(f"no document fulfils {_short(condition.text)!r}: {told}")
        chosen = [a and b for a, b in zip(chosen, alone, strict=True)]
    if n and not any(chosen):
        raise UsageError(
            "each of these is fulfilled by some documents, and all together by none: "
            + ", ".join(_short(c.text) for c in conditions)
        )
    return chosen


def _fulfils(condition: Condition, values: list[str]) -> bool:
    """Whether the values of a document, of a list each, fulfil a condition."""
    if condition.ordered:
        return any(_holds(condition, value) for value in values)
    wanted, number = condition.value, _number(condition.value)
    if condition.sign.endswith("~"):
        found = any(fnmatch.fnmatchcase(value, wanted.replace("[", "[[]")) for value in values)
    else:
        found = any(v.strip() == wanted or (number is not None and _number(v) == number) for v in values)
    return found != condition.sign.startswith("!")


def _holds(condition: Condition, value: str) -> bool:
    """Whether a value lies on the right side of the bound; one that is no number, or no date, does not.

    Dates are compared as far as both go: 2023 is neither before nor after 2023-05.
    """
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
    """A date as ISO 8601, as far as it goes; "" for what is none. Days and months by number, in whichever
    order, are not read: 3/4/2023 is March to some and April to others."""
    if found := _COMPACT.match(text.strip()):
        return "-".join(found.groups())
    if found := _ISO.match(text.strip()):
        year, *rest, time = found.groups()
        return "-".join([year, *(part.zfill(2) for part in rest if part)]) + (f"T{time}" if time else "")
    if len(text) > _LONGEST_DATE or not _MONTH.search(text):
        return ""
    from dateutil import parser as dates  # 20 ms that most questions need not wait for

    try:
        return str(dates.parse(text, default=datetime(1, 1, 1)).isoformat())
    except (ValueError, ArithmeticError):
        return ""


def _some(listed: Sequence[str]) -> str:
    more = f" and {len(listed) - MAX_TOLD} more" if len(listed) > MAX_TOLD else ""
    return ", ".join(listed[:MAX_TOLD]) + more


def _short(text: str) -> str:
    return text if len(text) <= MAX_TOLD_CHARACTERS else text[:MAX_TOLD_CHARACTERS] + "…"
