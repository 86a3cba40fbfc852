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


def loaded(
    found: Iterable[tuple[Kind, str]], given: Given, within: Collection[str] | None = None
) -> Generator[Any, Any, list[Record]]:
    """The records of kinds and ids, in this order, read at once; what the snapshot lacks is left out.

    within: ids of the only chunks that count
    """
    order = list(found)
    ids: dict[Kind, list[str]] = {}
    for kind, id_ in order:
        ids.setdefault(kind, []).append(id_)
    needs = []
    for kind, own in ids.items():
        shown = _SHOWN[kind]
        if within is None or not shown.instances:
            needs.append(Rows(SEARCHED[kind].table, ["id", *shown.columns], own))
        else:
            columns = [f"{kind}_id", "text_unit_id", *shown.columns]
            needs.append(Rows(shown.instances, columns, own, by=f"{kind}_id"))
    tables = yield tuple(needs)
    known: dict[tuple[Kind, str], Record] = {}
    for kind, table in zip(ids, tables, strict=True):
        shown, rows = _SHOWN[kind], table.to_pylist()
        if kind == "text_unit":
            rows = yield from with_documents(rows, given)
        elif within is not None and shown.instances:
            rows = _told_within(kind, rows, given, within)
        known |= {(kind, row["id"]): shown.record(row) for row in rows}
    return [known[one] for one in order if one in known]


def _told_within(kind: Kind, rows: Sequence[Row], given: Given, within: Collection[str]) -> list[Row]:
    """Rows of entities or relationships, each described by what these chunks said of it: its distinct
    descriptions, in the order of the corpus, in about as many tokens as a description."""
    limit = given.settings.descriptions.max_output_tokens
    told: dict[str, list[Row]] = {}
    for row in rows:
        if row["text_unit_id"] in within:
            told.setdefault(row[f"{kind}_id"], []).append(row)
    found: list[Row] = []
    for id_, instances in told.items():
        text = ""
        for said in dict.fromkeys(i["description"] for i in instances if i["description"]):
            longer = f"{text} {said}".strip()
            if text and given.count(longer) > limit:
                break
            text = longer
        found.append({**instances[0], "id": id_, "description": text})
    return found


def fitting(
    chunks: Sequence[str], given: Given, contexts: float = 1.5, context_tokens: int | None = None
) -> Generator[Any, Any, tuple[list[str], bool]]:
    """Of chunks in their order, the first that may fit into a context, and whether these are all: their texts
    lie in as many places of a large corpus, so no more of them are read.

    contexts: that they would fill, in tokens of the model that extracted; the other may count fewer
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
    short = {
        text: text
        if given.count(text) <= most
        else longest_start(text, lambda start: given.count(start) <= most)
        for text in set(about)
    }
    return [{**row, "document": short[text]} for row, text in zip(rows, about, strict=True)]
