"""Rows of the snapshot as records of a context, for every kind of thing that can be looked up.

Where only some chunks count (`--where`), an entity or relationship is told by what these chunks said of it,
not by its description, which was written from all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from graphrag_ray.query.embedded import TABLE_OF
from graphrag_ray.query.method import Given, Kind, Rows
from graphrag_ray.reports.context import Record, entity, relationship, report_record, source

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Shown:
    """How a kind is shown: its columns, the record of a row; the table of its instances."""

    columns: tuple[str, ...]
    record: Callable[[Row], Record]
    instances: str = ""


_SHOWN: Mapping[Kind, _Shown] = {
    "text_unit": _Shown(("text",), lambda r: source(r["id"], r["text"])),
    "entity": _Shown(
        ("title", "description"),
        lambda r: entity(r["id"], r["title"], r["description"]),
        "entity_instances",
    ),
    "relationship": _Shown(
        ("source", "target", "description"),
        lambda r: relationship(r["id"], r["source"], r["target"], r["description"]),
        "relationship_instances",
    ),
    "community_report": _Shown(
        ("title", "full_content"), lambda r: report_record(r["id"], r["title"], r["full_content"])
    ),
}


def rows_for(kind: Kind, ids: Sequence[str], within: Collection[str] | None = None) -> Rows:
    """What has to be read for the records of these ids. within: ids of the only chunks that count."""
    shown = _SHOWN[kind]
    if within is None or not shown.instances:
        return Rows(TABLE_OF[kind], ["id", *shown.columns], ids)
    return Rows(shown.instances, [f"{kind}_id", "text_unit_id", *shown.columns], ids, by=f"{kind}_id")


def records_from(
    kind: Kind, rows: pa.Table, given: Given, within: Collection[str] | None = None
) -> dict[str, Record]:
    """By id, the records of the rows that `rows_for` asked for."""
    shown = _SHOWN[kind]
    if within is None or not shown.instances:
        return {row["id"]: shown.record(row) for row in rows.to_pylist()}
    limit = given.settings.descriptions.max_output_tokens
    told: dict[str, list[Row]] = {}
    for row in rows.to_pylist():
        if row["text_unit_id"] in within:
            told.setdefault(row[f"{kind}_id"], []).append(row)
    return {
        id_: shown.record({**said[0], "id": id_, "description": _together(said, limit, given)})
        for id_, said in told.items()
    }


def _together(instances: Sequence[Row], limit: int, given: Given) -> str:
    """Their distinct descriptions, in the order of the corpus, in about as many tokens as a description."""
    text = ""
    for said in dict.fromkeys(i["description"] for i in instances if i["description"]):
        longer = f"{text} {said}".strip()
        if text and given.count(longer) > limit:
            break
        text = longer
    return text
