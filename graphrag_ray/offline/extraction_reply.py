"""The answer to the extraction prompt: entities and relationships of one chunk, as the paper's tuples."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphrag_ray.offline.key_sentences import balanced, describe
from graphrag_ray.offline.lexicon import lexicon
from graphrag_ray.offline.mentions import Reading, read
from graphrag_ray.offline.relations import relation_quote, relations
from graphrag_ray.offline.type_cues import CONCEPT
from graphrag_ray.offline.types import type_names

_DELIMITER_LIKE = re.compile(r"<\s{0,2}\|[^<>\n]{0,20}>")

DEFAULT_TYPES = "person, organization, location, event, work"


def extract_records(variables: Mapping[str, str]) -> str:
    """Read `text` and write `("entity"<|>NAME<|>TYPE<|>DESCRIPTION)` and
    `("relationship"<|>SOURCE<|>TARGET<|>DESCRIPTION<|>STRENGTH)` records.

    Descriptions are quotations. The header (title, date) is not read: it is not part of the document's
    text, so nothing in it could be quoted.
    """
    field, record = variables.get("field", "<|>"), variables.get("record", "##")
    types = type_names(variables.get("entity_types", DEFAULT_TYPES))
    reading = read(variables["text"], lexicon(), types[CONCEPT] is not None)
    rows: list[tuple[str, ...]] = [
        ("entity", thing.title, types[thing.kind] or "", describe(reading, thing)) for thing in reading.things
    ]
    rows += relationship_rows(reading)
    lines = [_tuple(row, field, record) for row in rows]
    return f"\n{record}\n".join(lines) + f"\n{variables.get('completion', '<|COMPLETE|>')}"


def relationship_rows(reading: Reading) -> list[tuple[str, ...]]:
    return [
        ("relationship", r.source.title, r.target.title, relation_quote(reading, r), str(r.strength))
        for r in relations(reading)
    ]


def without(value: str, *delimiters: str) -> str:
    """The longest balanced part of a value without a delimiter, or what is read as one."""
    if "<" not in value and not any(d in value for d in delimiters if d):  # as nearly always
        return value
    parts = [value]
    for delimiter in filter(None, delimiters):
        parts = [p for part in parts for p in part.split(delimiter)]
    parts = [p for part in parts for p in _DELIMITER_LIKE.split(part)]
    return value if len(parts) == 1 else balanced(max(parts, key=len).strip())


def _tuple(row: tuple[str, ...], field: str, record: str) -> str:
    kind, *values = row
    return f'("{kind}"{field}{field.join(without(v, field, record) for v in values)})'
