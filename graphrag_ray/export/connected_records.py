"""Look up records of a snapshot and the records connected to them, as plain values for JSON and printing.

Lists contain at most `limit` records, starting with the most important one. `totals` has the full counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, SEARCHABLE_KINDS, HierarchyKind
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.schema import RELATIONSHIP_ENDS
from graphrag_ray.base.stored_settings import stored_corpus_description
from graphrag_ray.base.wording import document_location
from graphrag_ray.corpus.quotes import best_sentence, quotation_parts
from graphrag_ray.export import record_lookup
from graphrag_ray.query.methods.hierarchy_choice import find_hierarchy
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.row_reader import Reader
from graphrag_ray.query.sources import DOCUMENT_COLUMNS, describe_document

Record = dict[str, Any]

ENTITY = ("human_readable_id", "title", "type", "degree")
RELATIONSHIP = ("human_readable_id", "source", "target", "weight", "description", *schema.RELATION_COLUMNS)
RESOLUTION = ("name", "document_id", "rule", "evidence", "n_instances")
CLAIM = ("human_readable_id", "subject_id", "object_id", "type", "status", "description")
DOCUMENT = ("human_readable_id", "path", "row", "title")
UNIT = ("human_readable_id", "position", "start", "end", "n_tokens")
_COMMUNITY = ("community", "level", "title", "size", "children")
_MAX_QUOTED_NAMES = 20
"""Maximum number of names to look for when choosing the quote from a chunk."""
MAX_SEARCH_CHARS = 1_000


@dataclass(frozen=True)
class RecordView:
    """Reads records. `limit` is the maximum number per list. `hierarchy` has the communities to show."""

    reader: Reader
    limit: int | None = 10
    hierarchy: HierarchyKind = HIERARCHIES["leiden"]

    def count(self, table: str) -> int:
        return sum(part.rows for part in self.reader.manifest.parts(table))

    def rows(
        self, table: str, columns: Sequence[str], ids: Iterable[str | int], by: str | tuple[str, ...] = "id"
    ) -> list[Record]:
        """Return the rows whose `by` is one of these ids, in table order."""
        rows: list[Record] = self.reader.rows(Rows(table, columns, list(ids), by)).to_pylist()
        return rows

    def row(self, table: str, id_: str) -> Record:
        return self.rows(table, schema.TABLES[table].names, [id_])[0]

    def first(self, table: str, columns: Sequence[str], ids: Sequence[str]) -> list[Record]:
        """Return the first `limit` of these records, in this order."""
        wanted = list(ids)[: self.limit]
        by_id = {row["id"]: row for row in self.rows(table, ["id", *columns], wanted)}
        return [{c: by_id[id_][c] for c in columns} for id_ in wanted if id_ in by_id]

    def where(
        self, table: str, columns: Sequence[str], keys: Sequence[str], value: str | int
    ) -> list[Record]:
        """Return the rows in which one of the key columns has this value."""

        def select_rows(part: pa.Table) -> pa.Table:
            masks = [pc.equal(part[key], value) for key in keys]
            return part.filter(reduce(pc.or_kleene, masks)).select(list(columns))

        read = list(dict.fromkeys([*columns, *keys]))
        rows: list[Record] = self.reader.scan(table, read, select_rows).select(list(columns)).to_pylist()
        return rows

    def largest(self, table: str, columns: Sequence[str], by: str) -> list[Record]:
        """Return the `limit` largest rows. The column `chunks` is the length of `text_unit_ids`."""
        order = [(by, "descending"), ("human_readable_id", "ascending")]

        def top(part: pa.Table) -> pa.Table:
            if "text_unit_ids" in part.column_names:
                chunks = pc.list_value_length(part["text_unit_ids"]).cast(pa.int64())
                part = part.append_column("chunks", chunks).select(list(columns))
            return part.take(pc.sort_indices(part, sort_keys=order)[: self.limit])

        read = ["text_unit_ids" if column == "chunks" else column for column in columns]
        rows: list[Record] = top(self.reader.scan(table, read, top)).to_pylist()
        return rows

    def communities(self, numbers: Iterable[int]) -> dict[int, Record]:
        """Return communities by number, with their child count, title, and rank unless the report failed."""
        wanted, number = sorted(set(numbers)), "human_readable_id"
        rows = {
            r["community"]: r for r in self.rows(self.hierarchy.communities_table, _COMMUNITY, wanted, number)
        }
        reports = self.rows(self.hierarchy.reports_table, ["community", "title", "rank"], wanted, number)
        titles = {r["community"]: (r["title"], r["rank"]) for r in reports}
        for number, row in rows.items():
            row["children"] = len(row["children"])
            row["title"], row["rank"] = titles.get(number, (row["title"], None))
        return rows

    def chunks(self, ids: Sequence[str], names: Sequence[str]) -> list[Record]:
        """Return the first `limit` chunks, with their documents and the sentences with the most names."""
        wanted = list(ids)[: self.limit]
        columns = ["id", "document_id", "human_readable_id", "start", "end", "text"]
        units = {row["id"]: row for row in self.rows("text_units", columns, wanted)}
        documents = self.documents([row["document_id"] for row in units.values()])
        chunks = []
        for unit in (units[id_] for id_ in wanted if id_ in units):
            is_start = unit["start"] == 0
            start, end = best_sentence(unit["text"], names[:_MAX_QUOTED_NAMES], is_start=is_start)
            chunks.append(
                {
                    "human_readable_id": unit["human_readable_id"],
                    **documents[unit["document_id"]],
                    "start": unit["start"],
                    "end": unit["end"],
                    "quote": unit["text"][start:end],
                    "quote_start": unit["start"] + start,
                }
            )
        return chunks

    def heaviest(self, ids: Iterable[str], by: str | tuple[str, ...] = "id") -> list[str]:
        """Return ids of relationships by descending weight."""
        rows = self.rows("relationships", ["id", "human_readable_id", "weight"], ids, by)
        return [row["id"] for row in sorted(rows, key=_by("weight"))]

    def entities(self, ids: Iterable[str]) -> list[Record]:
        """Return entities by descending degree."""
        return sorted(self.rows("entities", ENTITY, ids), key=_by("degree"))

    def documents(self, ids: Iterable[str]) -> dict[str, Record]:
        """Return documents by id, as `sources.describe_document` describes them."""
        rows = self.rows("documents", DOCUMENT_COLUMNS, ids)
        return {row["id"]: describe_document(row) for row in rows}


def _by(column: str, tie_breaker: str = "human_readable_id") -> Callable[[Record], tuple[Any, Any]]:
    """Return a sort key: one column descending, then another one ascending."""
    return lambda row: (-row[column], row[tie_breaker])


def overview(view: RecordView) -> Record:
    """Return the largest top-level communities, entities by degree, and documents by number of chunks."""
    coarsest = view.where(view.hierarchy.communities_table, ["community", "size"], ["level"], 0)
    coarsest.sort(key=_by("size", "community"))
    numbers = [c["community"] for c in coarsest][: view.limit]
    communities = view.communities(numbers)
    documents = view.largest("documents", [*DOCUMENT, "chunks"], "chunks")
    return {
        "kind": "overview",
        "snapshot": view.reader.manifest.number,
        "about": stored_corpus_description(view.reader.manifest.settings) or "",
        "counts": dict(view.reader.manifest.counts),
        "communities": [communities[number] for number in numbers],
        "entities": view.largest("entities", ENTITY, "degree"),
        "documents": [{"place": document_location(row["path"], row["row"]), **row} for row in documents],
        "totals": {
            "communities": len(coarsest),
            "entities": view.count("entities"),
            "documents": view.count("documents"),
        },
    }


def search(view: RecordView, text: str) -> Record:
    """Find entities, communities and documents whose names contain a text, ignoring case and accents.

    Exact matches come first, then names that begin with the text. Larger records precede smaller ones.
    Without any match, `near` lists similar names. Raises UsageError if the text is blank or too long.
    """
    if not record_lookup.fold(text) or len(text) > MAX_SEARCH_CHARS:
        raise UsageError(f"Pass a text to search for, with at most {MAX_SEARCH_CHARS:,} characters")
    entities = view.reader.table("entities", list(ENTITY))
    by_degree = entities.sort_by([("degree", "descending"), ("human_readable_id", "ascending")])
    titles = by_degree["title"].to_pylist()
    reports = view.reader.table(view.hierarchy.reports_table, ["community", "title", "size"])
    by_size = reports.sort_by([("size", "descending"), ("community", "ascending")])
    report_titles = by_size["title"].to_pylist()
    documents = view.reader.table("documents", DOCUMENT)
    places = [*map(document_location, documents["path"].to_pylist(), documents["row"].to_pylist())]
    document_names = [f"{p}\n{t or ''}" for p, t in zip(places, documents["title"].to_pylist(), strict=True)]
    matches = {
        "entities": record_lookup.find_containing(text, titles),
        "communities": record_lookup.find_containing(text, report_titles),
        "documents": record_lookup.find_containing(text, document_names),
    }
    top = {name: rows[: view.limit] for name, rows in matches.items()}
    numbers = [by_size["community"][row].as_py() for row in top["communities"]]
    communities = view.communities(numbers)
    names = [*titles, *report_titles, *places]
    similar = [] if any(matches.values()) else [names[i] for i in record_lookup.find_similar(text, names)]
    return {
        "kind": "search",
        "text": text,
        "entities": [by_degree.slice(row, 1).to_pylist()[0] for row in top["entities"]],
        "communities": [communities[number] for number in numbers],
        "documents": [
            {"place": places[row], **documents.slice(row, 1).to_pylist()[0]} for row in top["documents"]
        ],
        "near": similar,
        "totals": {name: len(rows) for name, rows in matches.items()},
    }


def show_entity(view: RecordView, name: str) -> Record:
    """Return an entity with its communities, relationships by weight, claims and chunks."""
    row = view.row("entities", record_lookup.find_entity(view.reader, name))
    units = row.pop("text_unit_ids")
    edges = view.heaviest([row["id"]], RELATIONSHIP_ENDS)
    resolved = view.rows("resolutions", RESOLUTION, [row["id"]], by="entity_id")
    claims = [c["id"] for c in view.where("covariates", ["id"], ["subject_id", "object_id"], row["title"])]
    return {
        "kind": "entity",
        **row,
        "names": _with_places(view, sorted(resolved, key=_by("n_instances", "name"))[: view.limit]),
        "communities": _communities_with(view, "entity_ids", row["id"]),
        "relationships": view.first("relationships", RELATIONSHIP, edges),
        "claims": view.first("covariates", CLAIM, claims),
        "chunks": view.chunks(units, [row["title"], *(name["name"] for name in resolved)]),
        "totals": {
            "names": len(resolved),
            "relationships": len(edges),
            "claims": len(claims),
            "chunks": len(units),
        },
    }


def _with_places(view: RecordView, names: list[Record]) -> list[Record]:
    """Add the place of the document to names that were replaced in one document."""
    documents = view.documents([name["document_id"] for name in names if name["document_id"]])
    return [
        {
            **name,
            "place": documents[name["document_id"]]["place"] if name["document_id"] in documents else None,
        }
        for name in names
    ]


def show_relationship(view: RecordView, *names: str) -> Record:
    """Return a relationship with its entities, communities and chunks."""
    row = view.row("relationships", record_lookup.find_relationship(view.reader, names))
    units, ends = row.pop("text_unit_ids"), [row.pop("source_id"), row.pop("target_id")]
    return {
        "kind": "relationship",
        **row,
        "entities": view.entities(ends),
        "communities": _communities_with(view, "relationship_ids", row["id"]),
        "chunks": view.chunks(units, [row["source"], row["target"]]),
        "totals": {"chunks": len(units)},
    }


def show_claim(view: RecordView, name: str) -> Record:
    """Return a claim with the chunks that state it."""
    row = view.row("covariates", record_lookup.find_record(view.reader, "claim", "covariates", name))
    units = row.pop("text_unit_ids")
    return {
        "kind": "claim",
        **row,
        "chunks": view.chunks(
            units, [*quotation_parts(row["source_text"]), row["subject_id"], row["object_id"]]
        ),
        "totals": {"chunks": len(units)},
    }


def show_community(view: RecordView, name: str) -> Record:
    """Return a community with its report (None if it failed), parent, children, members and chunks."""
    number = record_lookup.find_community(view.reader, name, view.hierarchy)
    columns = ["id", "community", "level", "parent", "children", "period", "size", "packed",
               *schema.PERIOD_COLUMNS]  # fmt: skip
    lists = ["entity_ids", "relationship_ids", "text_unit_ids"]
    row = view.rows(view.hierarchy.communities_table, [*columns, *lists], [number], "human_readable_id")[0]
    members, edges, units = (row.pop(column) for column in lists)
    communities = view.communities([number, row["parent"], *row["children"]])
    children = [communities[child] for child in row.pop("children")]
    entities = view.entities(members)
    columns = ["title", "summary", "full_content", "rank", "rating_explanation", "findings", "n_tokens",
               "context_left_out", "dropped_references", "composed"]  # fmt: skip
    reports = view.rows(view.hierarchy.reports_table, columns, [number], "human_readable_id")
    return {
        "kind": "community",
        **row,
        "title": communities[number]["title"],
        "report": reports[0] if reports else None,
        "parent": communities.get(row["parent"]),
        "children": sorted(children, key=_by("size", "community"))[: view.limit],
        "entities": entities[: view.limit],
        "relationships": view.first("relationships", RELATIONSHIP, view.heaviest(edges)),
        "chunks": view.chunks(units, [e["title"] for e in entities]),
        "totals": {
            "children": len(children),
            "entities": len(members),
            "relationships": len(edges),
            "chunks": len(units),
        },
    }


def show_chunk(view: RecordView, name: str) -> Record:
    """Return a chunk with its document, adjacent chunks and extracted records."""
    row = view.row("text_units", record_lookup.find_record(view.reader, "chunk", "text_units", name))
    members, edges, claims = (row.pop(c) for c in ("entity_ids", "relationship_ids", "covariate_ids"))
    document_id = row.pop("document_id")
    documents = view.rows("documents", ["text_unit_ids"], [document_id])
    order = [id_ for document in documents for id_ in document["text_unit_ids"]]
    i = order.index(row["id"]) if row["id"] in order else 0
    nearby = view.rows("text_units", UNIT, order[max(0, i - 1) : i + 2])
    neighbours = {r["position"]: r["human_readable_id"] for r in nearby}
    return {
        "kind": "chunk",
        **view.documents([document_id])[document_id],
        **row,
        "before": neighbours.get(row["position"] - 1),
        "after": neighbours.get(row["position"] + 1),
        "entities": view.entities(members)[: view.limit],
        "relationships": view.first("relationships", RELATIONSHIP, view.heaviest(edges)),
        "claims": view.first("covariates", CLAIM, claims),
        "totals": {"entities": len(members), "relationships": len(edges), "claims": len(claims)},
    }


def show_document(view: RecordView, name: str) -> Record:
    """Return a document with its chunks in order and their entities by degree."""
    row = view.row("documents", record_lookup.find_document(view.reader, name))
    text, units = row.pop("text"), row.pop("text_unit_ids")
    lists = {"entity_ids": "entities", "relationship_ids": "relationships", "covariate_ids": "claims"}
    chunks = view.first("text_units", [*UNIT, *lists], units)
    entity_ids = {id_ for c in chunks for id_ in c["entity_ids"]}
    entities = {r["id"]: r for r in view.rows("entities", ["id", *ENTITY], entity_ids)}
    for c in chunks:
        members = sorted((entities[id_] for id_ in c["entity_ids"]), key=_by("degree"))
        c["entities"] = [{column: member[column] for column in ENTITY} for member in members[: view.limit]]
        c["totals"] = {name: len(c.pop(column)) for column, name in lists.items()}
    return {
        "kind": "document",
        **describe_document(row),
        **{column: row[column] for column in ("id", "human_readable_id", "encoding", "content_hash")},
        "date_source": row.get("date_source"),
        "n_characters": len(text),
        "chunks": chunks,
        "totals": {"chunks": len(units)},
    }


def _communities_with(view: RecordView, column: str, id_: str) -> list[Record]:
    """Return the communities that contain a member, from the top level down."""
    rows = view.rows(view.hierarchy.communities_table, ["community"], [id_], by=column)
    communities = view.communities(row["community"] for row in rows)
    return sorted(communities.values(), key=lambda c: c["level"])


KINDS: Mapping[str, Callable[..., Record]] = {
    "community": show_community,
    "entity": show_entity,
    "relationship": show_relationship,
    "claim": show_claim,
    "chunk": show_chunk,
    "document": show_document,
}

_ALIASES = {
    "report": "community", "communities": "community", "entities": "entity", "source": "chunk",
    "text_unit": "chunk",
}  # fmt: skip
"""Other words for kinds, from references (`[Data: Reports (3); Sources (5)]`) and table names."""


def look_up(view: RecordView, kind_name: str, names: Sequence[str]) -> Record:
    """Look up one record by kind and name.

    The kind may be singular or plural, and its case is ignored. A word for reports in references (theme,
    summary) means the communities of their hierarchy. Raises UsageError if there is no such record.
    """
    word, hierarchy_words = kind_name.casefold(), []
    for hierarchy in HIERARCHIES.values():
        reports = SEARCHABLE_KINDS[hierarchy.report_kind]
        if reports.word not in _ALIASES:
            hierarchy_words.append(reports.word)
            if word in (reports.word, reports.words):
                view = replace(
                    view, hierarchy=find_hierarchy(view.reader.manifest.hierarchies, hierarchy.name)
                )
                word = "community"
    singular = word.removesuffix("s")
    kind = _ALIASES.get(word) or _ALIASES.get(singular, singular)
    if kind not in KINDS:
        raise UsageError(
            f"Unknown kind of record {kind_name!r}. Choose from: {', '.join([*KINDS, *hierarchy_words])}"
        )
    if len(names) != 1 and (kind != "relationship" or len(names) != 2):
        examples = {"entity": '"MARA VENN"', "community": "C1:12", "document": "letters/1987.txt"}
        alternative = " (or the names of its two entities)" if kind == "relationship" else ""
        raise UsageError(
            f"Pass the number or name of one {kind}{alternative}, and quote a name with spaces. Example: "
            f"inspect {kind} {examples.get(kind, '12')}"
        )
    return KINDS[kind](view, *names)
