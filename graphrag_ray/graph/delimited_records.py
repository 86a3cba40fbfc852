"""Reading a model's delimited records: entities, relationships and claims (paper 3.1.2, E.1).

A reply is a list of tuples, `("entity"<|>NAME<|>TYPE<|>DESCRIPTION)`, separated by RECORD and ended by
COMPLETION. What models really send differs: quotes, parentheses or delimiters are missing or stand inside the
text, records come in markdown, the reply is cut off. So the text is not split at RECORD. A record begins
where its kind and a FIELD stand at the start of a line, after a delimiter or after a closed record; it ends
with the parenthesis that closes it, else with the delimiter or paragraph. Surplus fields belong to the free
text.

Nothing here raises: what cannot be used is counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

FIELD = "<|>"
RECORD = "##"
COMPLETION = "<|COMPLETE|>"

DELIMITERS: Mapping[str, str] = {"field": FIELD, "record": RECORD, "completion": COMPLETION}
"""The delimiters as prompts name them."""

MAX_STRENGTH = 100.0
"""Strengths are asked for from 1 to 10; up to 100 is taken as stated, in case a model counts in percent."""

NONE = "NONE"
"""What stands for the object of a claim that has none."""


@dataclass(frozen=True, slots=True)
class EntityRecord:
    """title: as written, white space folded; of the extraction dialogue the entity key. type: upper case;
    turn: 0 for the first reply, 1, … for gleanings."""

    title: str
    type: str
    description: str
    turn: int = 0


@dataclass(frozen=True, slots=True)
class RelationshipRecord:
    """source, target: as written; of the dialogue entity keys, among the chunk's entities or not."""

    source: str
    target: str
    description: str
    strength: float
    turn: int = 0


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One claim.

    subject      as written; from the claims dialogue on an entity key, among those asked about or not
    object       likewise, or "NONE"
    type         upper case
    status       TRUE, FALSE or SUSPECTED
    start_date, end_date  ISO 8601, as exact as the text (2014, 2014-06, 2014-06-11); None where not given
    source_text  quotes from the chunk, " […] " between several, "" where none was given
    """

    subject: str
    object: str
    type: str
    status: str
    start_date: str | None
    end_date: str | None
    description: str
    source_text: str


@dataclass(frozen=True, slots=True)
class Records:
    """One reply, read; its records in their order.

    unusable     what looked like a record and could not be used, and a record that was cut off
    unreadable   strengths (set to 1), statuses (set to SUSPECTED) and dates (set to None) that said something
                 else
    complete     the completion delimiter was there
    """

    entities: tuple[EntityRecord, ...] = ()
    relationships: tuple[RelationshipRecord, ...] = ()
    claims: tuple[ClaimRecord, ...] = ()
    unusable: int = 0
    unreadable: int = 0
    complete: bool = False

    @property
    def is_answer(self) -> bool:
        """False where the model has to be asked again: no record, and not a clean "nothing to extract"."""
        found = self.entities or self.relationships or self.claims
        return bool(found) or (self.complete and not self.unusable)


def parse_records(text: str, *, truncated: bool = False) -> Records:
    """Read the entities and relationships of one reply.

    truncated: the endpoint said so; a last record that nothing closes is then incomplete in any form.
    Otherwise it is incomplete if it opened a parenthesis.
    """
    entities: list[EntityRecord] = []
    relationships: list[RelationshipRecord] = []
    unreadable = 0
    tuples, unusable, complete = _tuples(text, truncated)
    for kind, fields in tuples:
        if kind == "entity" and len(fields) >= 3 and fields[0]:
            entities.append(EntityRecord(fields[0], fields[1].upper(), " ".join(filter(None, fields[2:]))))
        elif kind == "relationship" and len(fields) >= 3 and fields[0] and fields[1]:
            # The last field is the strength, unless it reads like a piece of the description.
            *said, last = fields[2:]
            strength = _strength(last) if said or _NUMBER.fullmatch(last) else None
            if strength is None and (len(last.split()) > 3 or not (said or _NUMBER.fullmatch(last))):
                said.append(last)
            unreadable += strength is None
            description = " ".join(filter(None, said))
            relationships.append(RelationshipRecord(fields[0], fields[1], description, strength or 1.0))
        else:
            unusable += 1
    return Records(tuple(entities), tuple(relationships), (), unusable, unreadable, complete)


def parse_claims(text: str, *, truncated: bool = False) -> Records:
    """Read the claims of one reply. Surplus fields belong to the quote, which is the text's own and may hold
    anything."""
    claims: list[ClaimRecord] = []
    unreadable = 0
    tuples, unusable, complete = _tuples(text, truncated)
    for kind, fields in tuples:
        if kind != "claim" or len(fields) < 7 or not fields[0] or not fields[6]:
            unusable += 1
            continue
        subject, object_, type_, status, start, end, description, *quote = fields
        status = status.upper().strip(_QUOTES + " .")
        known = status in ("TRUE", "FALSE", "SUSPECTED")
        dates = [parse_date(field) for field in (start, end)]
        unreadable += not known
        unreadable += sum(d is None and not _is_none(f) for d, f in zip(dates, (start, end), strict=True))
        source_text = FIELD.join(quote)  # verbatim
        claims.append(
            ClaimRecord(
                subject=subject,
                object=NONE if _is_none(object_) else object_,
                type=type_.upper(),
                status=status if known else "SUSPECTED",
                start_date=dates[0],
                end_date=dates[1],
                description=description,
                source_text="" if _is_none(source_text) else source_text,
            )
        )
    return Records((), (), tuple(claims), unusable, unreadable, complete)


def parse_date(text: str) -> str | None:
    """An ISO 8601 date as exact as stated, or None for none or what is not a date of the calendar."""
    found = _DATE.fullmatch(text.strip())
    if not found:
        return None
    year, month, day = (int(g) if g else None for g in found.groups())
    try:
        date(year or 0, month or 1, day or 1)
    except ValueError:
        return None
    parts = [f"{year:04}"] + [f"{part:02}" for part in (month, day) if part is not None]
    return "-".join(parts)


_DATE = re.compile(r"(\d{4})(?:[-/.](\d{1,2})(?:[-/.](\d{1,2})(?:[T ][\d:.]+(?:Z|[+-][\d:]+)?)?)?)?")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:[.,]\d+)?")
_FIELD_LIKE = re.compile(r"<\s{0,2}\|{1,3}\s{0,2}>")
_COMPLETION_LIKE = re.compile(r"<\s{0,2}\|\s{0,2}completed?\s{0,2}\|\s{0,2}>", re.IGNORECASE)

_KINDS = {
    "entity": "entity",
    "entities": "entity",
    "relationship": "relationship",
    "relationships": "relationship",
    "relation": "relationship",
    "claim": "claim",
    "claims": "claim",
}
_QUOTES = "\"'“”‘’„«»`*_"
_WRAPPERS = ("**", "**"), ("`", "`"), ('"', '"'), ("“", "”"), ("'", "'"), ("‘", "’"), ("«", "»")
_OPENERS = tuple(left for left, _ in _WRAPPERS)
_KIND = "|".join(sorted(_KINDS, key=len, reverse=True))
_STOP = f"{re.escape(RECORD)}|{re.escape(COMPLETION)}"

# Bounded repetitions keep this linear on replies of nothing but `#` or spaces.
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


def _tuples(reply: str, truncated: bool) -> tuple[list[tuple[str, list[str]]], int, bool]:
    """(kind, or "" for an unknown one; cleaned fields after it) of each record; how many pieces are unusable;
    whether the reply is complete."""
    text = reply.replace("\r\n", "\n").replace("\r", "\n")
    text = _FIELD_LIKE.sub(FIELD, _COMPLETION_LIKE.sub(COMPLETION, text))
    heads = list(_HEAD.finditer(text))
    found: list[tuple[str, list[str]]] = []
    around = [text[: heads[0].start()] if heads else text]
    unusable, complete = 0, False
    for head, following in zip(heads, [*heads[1:], None], strict=False):
        stop = following.start() if following else len(text)
        complete = complete or head["lead"] == COMPLETION
        end, closed = _end(text, head.end(), stop)
        around.append(text[end:stop])
        if following is None and not closed and (head["open"] or truncated):
            unusable += 1
            continue
        kind = (head["any"] or head["bare"] or "").strip(_QUOTES + " ").lower()
        fields = [_clean(f) for f in text[head.end() : end].split(FIELD)]
        found.append((_KINDS.get(kind, ""), fields))
    unusable += sum(FIELD in piece for rest in around for piece in _PIECES.split(rest))
    return found, unusable, complete or any(COMPLETION in rest for rest in around)


def _end(text: str, start: int, stop: int) -> tuple[int, bool]:
    """Where the fields of the record end, and whether something says so."""
    depth = 1
    for mark in _PARENTHESIS.finditer(text, start, stop):
        depth += 1 if mark.group() == "(" else -1
        if depth == 0:
            if _CLOSED.match(text, mark.end(), stop):
                return mark.start(), True
            depth = 1  # a parenthesis that closes nothing, as in "1) first"
    delimiter = _OPEN_END.search(text, start, stop)
    if delimiter:
        return delimiter.start(), True
    followed = stop < len(text)
    paragraph = _PARAGRAPH_END.search(text, start, stop)
    return (paragraph.start() if paragraph else stop), followed


def _clean(field: str) -> str:
    """White space folded; emphasis, and quotes around the whole, off."""
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
    return value if math.isfinite(value) and 0 < value <= MAX_STRENGTH else None


def _is_none(field: str) -> bool:
    return field.upper().strip(_QUOTES + " .-") in ("", NONE, "NULL", "N/A", "UNKNOWN")
