"""Where to begin: the largest of everything, and names that hold a text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import about_in
from graphrag_ray.export.name_search import containing, fold, near
from graphrag_ray.export.view import ENTITY, Record, View
from graphrag_ray.query.sources import place

MAX_TEXT_CHARACTERS = 1_000


def overview(view: View) -> Record:
    """The largest communities of the coarsest level, the best connected entities, and the documents with
    most chunks."""
    coarsest = view.where(view.kind.communities, ["community", "size"], {"level": 0})
    coarsest.sort(key=lambda c: (-c["size"], c["community"]))
    shown = [c["community"] for c in coarsest][: view.limit]
    known = view.communities(shown)
    counts: dict[str, Any] = dict(view.reader.manifest.counts)
    return {
        "kind": "overview",
        "snapshot": view.reader.manifest.number,
        "about": about_in(view.reader.manifest.settings) or "",
        "counts": counts,
        "communities": [known[number] for number in shown],
        "entities": view.largest("entities", ENTITY, "degree"),
        "documents": _documents(view),
        "totals": {
            "communities": len(coarsest),
            "entities": view.count("entities"),
            "documents": view.count("documents"),
        },
    }


def search(view: View, text: str) -> Record:
    """Entities, communities and documents whose names hold a text, in any case and without regard to
    accents: those that are called just so first, then those that begin with it, then larger ones first.
    Where there are none: `near`, names that are alike. Raises UsageError for a text of white space."""
    if not fold(text) or len(text) > MAX_TEXT_CHARACTERS:
        raise UsageError(f"name the text to search for, of at most {MAX_TEXT_CHARACTERS} characters")
    entities = view.reader.table("entities", list(ENTITY))
    by_degree = entities.sort_by([("degree", "descending"), ("human_readable_id", "ascending")])
    titles = by_degree["title"].to_pylist()
    reports = view.reader.table(view.kind.reports_table, ["community", "title", "size"])
    by_size = reports.sort_by([("size", "descending"), ("community", "ascending")])
    report_titles = by_size["title"].to_pylist()
    documents = view.reader.table("documents", ["human_readable_id", "path", "row", "title"])
    places = _places(documents)
    named = [f"{p}\n{t or ''}" for p, t in zip(places, documents["title"].to_pylist(), strict=True)]
    found = {
        "entities": containing(text, titles),
        "communities": containing(text, report_titles),
        "documents": containing(text, named),
    }
    shown = {name: at[: view.limit] for name, at in found.items()}
    numbers = [by_size["community"][at].as_py() for at in shown["communities"]]
    communities = view.communities(numbers)
    everything = [*titles, *report_titles, *places]
    alike = [] if any(found.values()) else [everything[at] for at in near(text, everything)]
    return {
        "kind": "search",
        "text": text,
        "entities": [by_degree.slice(at, 1).to_pylist()[0] for at in shown["entities"]],
        "communities": [communities[number] for number in numbers],
        "documents": [
            {"place": places[at], **documents.slice(at, 1).to_pylist()[0]} for at in shown["documents"]
        ],
        "near": alike,
        "totals": {name: len(at) for name, at in found.items()},
    }


def _documents(view: View) -> list[Record]:
    order = [("chunks", "descending"), ("human_readable_id", "ascending")]

    def of(part: pa.Table) -> pa.Table:
        chunks = pc.list_value_length(part["text_unit_ids"]).cast(pa.int64())
        counted = part.drop_columns(["text_unit_ids"]).append_column("chunks", chunks)
        return counted.take(pc.sort_indices(counted, sort_keys=order)[: view.limit])

    columns = ["human_readable_id", "path", "row", "title"]
    found = view.reader.scan("documents", [*columns, "text_unit_ids"], of)
    most = found.take(pc.sort_indices(found, sort_keys=order)[: view.limit])
    rows = most.select([*columns, "chunks"]).to_pylist()
    return [{"place": at, **row} for at, row in zip(_places(most), rows, strict=True)]


def _places(documents: pa.Table) -> list[str]:
    paths, rows = documents["path"].to_pylist(), documents["row"].to_pylist()
    return [place(*both) for both in zip(paths, rows, strict=True)]
