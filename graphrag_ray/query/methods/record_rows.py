"""Rows of the snapshot as records of a context, for every kind of thing that can be looked up.

Where only some chunks count (`--where`), an entity or relationship is told by what these chunks said of it,
not by its description, which was written from all. A chunk is told with what is said of its document:
title, date, and the columns of its metadata that `chunking.prepend` names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

from graphrag_ray.base.declarations import REPORTS, SEARCHED
from graphrag_ray.corpus.document import columns_of, metadata_lines
from graphrag_ray.corpus.document_titles import label
from graphrag_ray.graph.report_context import (
    Count,
    Record,
    entity,
    longest_start,
    relationship,
    report_record,
    source,
)
from graphrag_ray.query.methods.method import Given, Kind, Rows

LABEL_TOKENS = 40
"""Of title and date of a chunk's document, at most; as many more for each further column that is said."""

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Shown:
    """How a kind is shown: its columns, the record of a row; the table of its instances."""

    columns: tuple[str, ...]
    record: Callable[[Row], Record]
    instances: str = ""


def _report(section: str, row: Row) -> Record:
    return report_record(row["id"], row["title"], row["full_content"], section)


_SHOWN: dict[Kind, _Shown] = {
    "text_unit": _Shown(("text", "document_id"), lambda r: source(r["id"], r["text"], r.get("document", ""))),
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
}
_SHOWN |= {
    kind: _Shown(("title", "full_content"), partial(_report, SEARCHED[kind].section)) for kind in REPORTS
}


def looked_up(
    wanted: Mapping[Kind, Sequence[str]], given: Given, within: Collection[str] | None = None
) -> Generator[Any, Any, dict[Kind, dict[str, Record]]]:
    """By kind and id, the records of these ids. within: ids of the only chunks that count."""
    tables = yield tuple(_rows_for(kind, ids, within) for kind, ids in wanted.items())
    found: dict[Kind, dict[str, Record]] = {}
    for kind, table in zip(wanted, tables, strict=True):
        rows = table.to_pylist()
        if kind == "text_unit":
            rows = yield from with_documents(rows, given)
        found[kind] = _records_from(kind, rows, given, within)
    return found


def loaded(
    found: Iterable[tuple[Kind, str]], given: Given, within: Collection[str] | None = None
) -> Generator[Any, Any, list[Record]]:
    """The records of kinds and ids, in this order, read at once; what the snapshot lacks is left out."""
    order = list(found)
    ids: dict[Kind, list[str]] = {}
    for kind, id_ in order:
        ids.setdefault(kind, []).append(id_)
    known = yield from looked_up(ids, given, within)
    return [known[kind][id_] for kind, id_ in order if id_ in known[kind]]


def fitting(
    chunks: Sequence[str], given: Given, contexts: float = 1.5, context_tokens: int | None = None
) -> Generator[Any, Any, tuple[list[str], bool]]:
    """Of chunks in their order, the first that may fit into a context, and whether these are all: their texts
    lie in as many places of a large corpus, so no more of them are read.

    contexts: that they would fill, in tokens of the model that extracted. The one that answers may count
    fewer.
    context_tokens: of one of these; None: query.context_tokens
    """
    sizes = yield Rows("text_units", ["id", "n_tokens"], chunks)
    n_tokens = dict(zip(sizes["id"].to_pylist(), sizes["n_tokens"].to_pylist(), strict=True))
    order = [id_ for id_ in chunks if id_ in n_tokens]
    budget = context_tokens or given.settings.query.context_tokens
    ends = accumulate(min(budget, n_tokens[id_] or 0) for id_ in order)
    first = order[: 1 + sum(end <= contexts * budget for end in ends)]
    return first, len(first) == len(order)


def label_tokens(given: Given) -> int:
    """Of what is said of a chunk's document, at most."""
    return LABEL_TOKENS * (1 + len(given.settings.chunking.prepended_metadata))


def with_documents(rows: Sequence[Row], given: Given) -> Generator[Any, Any, list[Row]]:
    """Rows of chunks with what is said of their documents."""
    columns, most = given.settings.chunking.prepended_metadata, label_tokens(given)
    ids = dict.fromkeys(row["document_id"] for row in rows if row["document_id"])
    if not ids:
        return list(rows)
    wanted = ["id", "title", "creation_date", "path", "row", *(["raw_data"] if columns else [])]
    table = yield Rows("documents", wanted, list(ids))
    of = {
        d["id"]: partial(
            label,
            *(d["title"], d["creation_date"], d["path"] or "", d["row"] or ""),
            more=metadata_lines(columns_of(d["raw_data"]), columns) if columns else "",
        )
        for d in table.to_pylist()
    }
    about = [of[r["document_id"]](r["text"]) if r["document_id"] in of else "" for r in rows]
    short = {text: _shortened(text, most, given.count) for text in set(about)}
    return [{**row, "document": short[text]} for row, text in zip(rows, about, strict=True)]


def _shortened(text: str, most: int, count: Count) -> str:
    if count(text) <= most:
        return text
    return longest_start(text, lambda start: count(start) <= most)


def _rows_for(kind: Kind, ids: Sequence[str], within: Collection[str] | None = None) -> Rows:
    """What has to be read for the records of these ids."""
    shown = _SHOWN[kind]
    if within is None or not shown.instances:
        return Rows(SEARCHED[kind].table, ["id", *shown.columns], ids)
    return Rows(shown.instances, [f"{kind}_id", "text_unit_id", *shown.columns], ids, by=f"{kind}_id")


def _records_from(
    kind: Kind, rows: Sequence[Row], given: Given, within: Collection[str] | None
) -> dict[str, Record]:
    """By id, the records of the rows that `_rows_for` asked for."""
    shown = _SHOWN[kind]
    if within is None or not shown.instances:
        return {row["id"]: shown.record(row) for row in rows}
    limit = given.settings.descriptions.max_output_tokens
    told: dict[str, list[Row]] = {}
    for row in rows:
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
