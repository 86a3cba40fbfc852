"""Tolerant parser of delimited records: entities, relationships and claims (paper 3.1.2, E.1).

A reply is a list of tuples `("entity"<|>NAME<|>TYPE<|>DESCRIPTION)`, separated by RECORD and ended by
COMPLETION. Real replies lack quotes, parentheses or delimiters, contain them inside the text, use Markdown or
are cut off. So the text is not split at RECORD. A record begins with its kind and a FIELD at the start of a
line, after a delimiter or after a closed record. Nothing here raises; unusable records are counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date

FIELD = "<|>"
RECORD = "##"
COMPLETION = "<|COMPLETE|>"

DELIMITERS: Mapping[str, str] = {"field": FIELD, "record": RECORD, "completion": COMPLETION}
"""The delimiters, by their placeholders in prompts."""

NONE = "NONE"  # the object of a claim without an object

_MAX_RELATION_CHARACTERS = 80  # a longer text is a piece of the description
_MAX_STRENGTH = 100.0  # prompts ask for 1 to 10; values up to 100 are accepted from models that use percent


@dataclass(frozen=True, slots=True)
class EntityRecord:
    title: str  # the name as written, with collapsed whitespace; the extraction dialogue returns entity keys
    type: str
    description: str
    turn: int = 0  # 0 for the first reply, 1, … for gleanings


@dataclass(frozen=True, slots=True)
class RelationshipRecord:
    """A relationship. Its ends are names like `EntityRecord.title` but need not be entities of the chunk."""

    source: str
    target: str
    description: str
    strength: float
    turn: int = 0
    relation: str = ""  # type of the relationship, if a schema asks for one


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    subject: str  # as written; the claims dialogue returns entity keys, which the chunk need not have
    object: str  # like `subject`, or "NONE"
    type: str
    status: str  # TRUE, FALSE or SUSPECTED
    start_date: str | None  # ISO 8601 with the precision of the text (2014, 2014-06, 2014-06-11), or None
    end_date: str | None
    description: str
    source_text: str  # quotes from the chunk, joined by " […] "; can be ""


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one reply, in order."""

    entities: tuple[EntityRecord, ...] = ()
    relationships: tuple[RelationshipRecord, ...] = ()
    claims: tuple[ClaimRecord, ...] = ()
    unusable: int = 0  # number of malformed or cut-off records
    unreadable: int = 0  # number of strengths, statuses and dates replaced by 1, SUSPECTED and None
    complete: bool = False  # whether the completion delimiter is present

    @property
    def is_answer(self) -> bool:
        """Whether the reply has records or is a clean "nothing to extract". If not, ask again."""
        any_record = self.entities or self.relationships or self.claims
        return bool(any_record) or (self.complete and not self.unusable)


def parse_records(
    text: str, *, truncated: bool = False, is_relation: Callable[[str], bool] | None = None
) -> Records:
    """Parse the entities and relationships of a reply.

    A last record that nothing closes is incomplete if the endpoint reported a cut-off reply (`truncated`) or
    if it opened a parenthesis.

    Args:
        is_relation: Whether a text is a relation type of the schema, if the reply follows one. Entities may
            then have attributes as a last field, which are added to the description in parentheses. The
            relation of a relationship is the first field that is such a type, otherwise the first of several
            texts.
    """
    entities: list[EntityRecord] = []
    relationships: list[RelationshipRecord] = []
    unreadable = 0
    tuples, unusable, complete = _split_records(text, truncated)
    for kind, fields in tuples:
        if kind == "entity" and len(fields) >= 3 and fields[0]:
            *texts, last = fields[2:]
            attributes = last if is_relation is None or not texts or ":" not in last else f"({last})"
            description = " ".join(filter(None, (*texts, attributes)))
            entities.append(EntityRecord(fields[0], fields[1].upper(), description))
        elif kind == "relationship" and len(fields) >= 3 and fields[0] and fields[1]:
            source, target, *texts = fields
            known = next((n for n, text in enumerate(texts) if is_relation and is_relation(text)), None)
            relation = "" if known is None else texts.pop(known)
            # The last field is the strength, unless it reads like a piece of the description.
            *texts, last = texts or [""]
            strength = _strength(last) if texts or _NUMBER.fullmatch(last) else None
            if strength is None and (len(last.split()) > 3 or not (texts or _NUMBER.fullmatch(last))):
                texts.append(last)
            unreadable += strength is None
            if is_relation and known is None and len(texts) > 1 and len(texts[0]) <= _MAX_RELATION_CHARACTERS:
                relation = texts.pop(0)
            description = " ".join(filter(None, texts))
            record = RelationshipRecord(source, target, description, strength or 1.0, relation=relation)
            relationships.append(record)
        else:
            unusable += 1
    return Records(tuple(entities), tuple(relationships), (), unusable, unreadable, complete)


def parse_claims(text: str, *, truncated: bool = False) -> Records:
    """Parse the claims of a reply, like `parse_records`. Surplus fields belong to the verbatim quote."""
    claims: list[ClaimRecord] = []
    unreadable = 0
    tuples, unusable, complete = _split_records(text, truncated)
    for kind, fields in tuples:
        if kind != "claim" or len(fields) < 7 or not fields[0] or not fields[6]:
            unusable += 1
            continue
        subject, object_, type_, status, start, end, description, *quote = fields
        object_ = NONE if _is_none(object_) else object_
        status = status.upper().strip(_QUOTES + " .")
        if status not in ("TRUE", "FALSE", "SUSPECTED"):
            status, unreadable = "SUSPECTED", unreadable + 1
        dates = parse_date(start), parse_date(end)
        unreadable += sum(d is None and not _is_none(f) for d, f in zip(dates, (start, end), strict=True))
        source_text = FIELD.join(quote)
        source_text = "" if _is_none(source_text) else source_text
        claims.append(ClaimRecord(subject, object_, type_.upper(), status, *dates, description, source_text))
    return Records((), (), tuple(claims), unusable, unreadable, complete)


def parse_date(text: str) -> str | None:
    """Return an ISO 8601 date with the stated precision, or None if it is missing or not a calendar date."""
    match = _DATE.fullmatch(text.strip())
    if not match:
        return None
    year, month, day = (int(g) if g else None for g in match.groups())
    try:
        date(year or 0, month or 1, day or 1)
    except ValueError:
        return None
    return "-".join([f"{year:04}"] + [f"{part:02}" for part in (month, day) if part is not None])


_DATE = re.compile(r"(\d{4})(?:[-/.](\d{1,2})(?:[-/.](\d{1,2})(?:[T ][\d:.]+(?:Z|[+-][\d:]+)?)?)?)?")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:[.,]\d+)?")
_FIELD_LIKE = re.compile(r"<\s{0,2}\|{1,3}\s{0,2}>")
_COMPLETION_LIKE = re.compile(r"<\s{0,2}\|\s{0,2}completed?\s{0,2}\|\s{0,2}>", re.IGNORECASE)

_KINDS = {kind: kind for kind in ("entity", "relationship", "claim")} | {
    "entities": "entity",
    "relationships": "relationship",
    "relation": "relationship",
    "claims": "claim",
}
_QUOTES = "\"'“”‘’„«»`*_"
_WRAPPERS = ("**", "**"), ("`", "`"), ('"', '"'), ("“", "”"), ("'", "'"), ("‘", "’"), ("«", "»")
_OPENERS = tuple(left for left, _ in _WRAPPERS)
_KIND = "|".join(sorted(_KINDS, key=len, reverse=True))
_STOP = f"{re.escape(RECORD)}|{re.escape(COMPLETION)}"

# Bounded repetitions ensure linear time on replies that consist only of `#` or spaces.
_HEAD = re.compile(
    rf"(?P<lead>\A|\n|{_STOP}|(?<=\)))"  # where a record can begin
    r"[\s*_`>•#,;–-]{0,20}(?:\d{1,4}[.)][\s*_`]{0,4})?"  # markdown: bullets, numbers, emphasis, fences
    r"(?:"
    rf"(?P<open>\()\s{{0,4}}(?P<any>[^<>()\n]{{1,80}}?)\s{{0,4}}{re.escape(FIELD)}"
    rf"|(?P<wrong>\()\s{{0,4}}[{_QUOTES}]{{1,4}}(?:{_KIND})[{_QUOTES}]{{1,4}}\s{{0,4}}[,;:|\t]"
    rf"|[{_QUOTES}]{{0,4}}(?P<bare>{_KIND})[{_QUOTES}]{{0,4}}\s{{0,4}}{re.escape(FIELD)}"
    r")",
    re.IGNORECASE,
)
_PARENTHESIS = re.compile(r"[()]")
_CLOSED = re.compile(rf"[ \t,;.{_QUOTES}]{{0,8}}(?:\n|{_STOP}|\Z)")
_OPEN_END = re.compile(rf"{re.escape(COMPLETION)}|{re.escape(RECORD)}\s{{0,8}}(?:\n|\Z)")
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n|\n```")
_PIECES = re.compile(rf"\n|{_STOP}")


def _split_records(reply: str, truncated: bool) -> tuple[list[tuple[str, list[str]]], int, bool]:
    """Return (kind or "", fields) of each record, the number of unusable ones, and completeness."""
    text = reply.replace("\r\n", "\n").replace("\r", "\n")
    text = _FIELD_LIKE.sub(FIELD, _COMPLETION_LIKE.sub(COMPLETION, text))
    heads = list(_HEAD.finditer(text))
    tuples: list[tuple[str, list[str]]] = []
    gaps = [text[: heads[0].start()] if heads else text]
    unusable, complete = 0, False
    for head, following in zip(heads, [*heads[1:], None], strict=False):
        stop = following.start() if following else len(text)
        complete = complete or head["lead"] == COMPLETION
        end, closed = _fields_end(text, head.end(), stop)
        gaps.append(text[end:stop])
        if following is None and not closed and (head["open"] or truncated):
            unusable += 1
            continue
        kind = (head["any"] or head["bare"] or "").strip(_QUOTES + " ").lower()
        tuples.append((_KINDS.get(kind, ""), [_clean_field(f) for f in text[head.end() : end].split(FIELD)]))
    unusable += sum(FIELD in piece for gap in gaps for piece in _PIECES.split(gap))
    return tuples, unusable, complete or any(COMPLETION in gap for gap in gaps)


def _fields_end(text: str, start: int, stop: int) -> tuple[int, bool]:
    """Return the end of a record's fields, and whether the text marks that end.

    A record ends at its closing parenthesis or, if that is missing, at a delimiter or a paragraph's end.
    """
    depth = 1
    for mark in _PARENTHESIS.finditer(text, start, stop):
        depth += 1 if mark.group() == "(" else -1
        if depth == 0:
            if _CLOSED.match(text, mark.end(), stop):
                return mark.start(), True
            depth = 1  # an unmatched parenthesis, as in "1) first"
    if delimiter := _OPEN_END.search(text, start, stop):
        return delimiter.start(), True
    paragraph = _PARAGRAPH_END.search(text, start, stop)
    return (paragraph.start() if paragraph else stop), stop < len(text)


def _clean_field(field: str) -> str:
    """Collapse whitespace, and strip emphasis and quotes around the whole field."""
    text = " ".join(field.split())
    if not text.startswith(_OPENERS):
        return text
    for left, right in _WRAPPERS:
        inner = text[len(left) : len(text) - len(right)]
        wraps = len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right)
        if wraps and left not in inner and right not in inner:
            text = inner.strip()
    return text


def _strength(field: str) -> float | None:
    if len(field.split()) > 4 or not (number := _NUMBER.search(field)):
        return None
    value = float(number.group().replace(",", "."))
    return value if math.isfinite(value) and 0 < value <= _MAX_STRENGTH else None


def _is_none(field: str) -> bool:
    return field.upper().strip(_QUOTES + " .-") in ("", NONE, "NULL", "N/A", "UNKNOWN")
