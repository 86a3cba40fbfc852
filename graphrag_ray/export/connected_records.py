"""What a snapshot holds, as plain values for JSON and for print: where to begin, names that hold a text, and
one record with what it is connected to.

Lists hold at most `limit` records, the most important first; `totals` says how many there are of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import HIERARCHIES, SEARCHED, HierarchyKind
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.index_settings import about_in
from graphrag_ray.base.schema import ENDS
from graphrag_ray.corpus.quotes import best_sentence, quotes_in
from graphrag_ray.export import find
from graphrag_ray.query.methods.asked_hierarchy import hierarchy_of
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.reading import Reader
from graphrag_ray.query.sources import DOCUMENT_COLUMNS, of_document, place

Record: TypeAlias = dict[str, Any]

ENTITY = ("human_readable_id", "title", "type", "degree")
RELATIONSHIP = ("human_readable_id", "source", "target", "weight", "description")
CLAIM = ("human_readable_id", "subject_id", "object_id", "type", "status", "description")
DOCUMENT = ("human_readable_id", "path", "row", "title")
UNIT = ("human_readable_id", "position", "start", "end", "n_tokens")
_COMMUNITY = ("community", "level", "title", "size", "children")
_NAMES_LOOKED_FOR = 20
"""In a chunk's sentences, of all that somebody asked for."""
MAX_TEXT_CHARACTERS = 1_000


@dataclass(frozen=True)
class View:
    """limit: records of a list; None: all. kind: the hierarchy whose communities are shown."""

    reader: Reader
    limit: int | None = 10
    kind: HierarchyKind = HIERARCHIES["leiden"]

    def count(self, table: str) -> int:
        return sum(part.rows for part in self.reader.manifest.parts(table))

    def rows(
        self, table: str, columns: Sequence[str], ids: Iterable[str | int], by: str | tuple[str, ...] = "id"
    ) -> list[Record]:
        """In the table's order."""
        found: list[Record] = self.reader.rows(Rows(table, columns, list(ids), by)).to_pylist()
        return found

    def row(self, table: str, id_: str) -> Record:
        """All columns of a record that there is."""
        return self.rows(table, schema.TABLES[table].names, [id_])[0]

    def first(self, table: str, columns: Sequence[str], ids: Sequence[str]) -> list[Record]:
        """The first `limit` of these, in their order."""
        wanted = list(ids)[: self.limit]
        by_id = {row["id"]: row for row in self.rows(table, ["id", *columns], wanted)}
        return [{c: by_id[id_][c] for c in columns} for id_ in wanted if id_ in by_id]

    def where(
        self, table: str, columns: Sequence[str], among: Sequence[str], value: str | int
    ) -> list[Record]:
        """Rows in which one of the columns `among` has this value."""

        def of(part: pa.Table) -> pa.Table:
            masks = [pc.equal(part[column], value) for column in among]
            return part.filter(reduce(pc.or_kleene, masks)).select(list(columns))

        read = list(dict.fromkeys([*columns, *among]))
        found: list[Record] = self.reader.scan(table, read, of).select(list(columns)).to_pylist()
        return found

    def largest(self, table: str, columns: Sequence[str], by: str) -> list[Record]:
        """The first `limit` rows, those with most of a column first, ties by short id. The column `chunks`
        is the number of `text_unit_ids`."""
        order = [(by, "descending"), ("human_readable_id", "ascending")]
        read = ["text_unit_ids" if column == "chunks" else column for column in columns]

        def top(part: pa.Table) -> pa.Table:
            return part.take(pc.sort_indices(part, sort_keys=order)[: self.limit])

        def of(part: pa.Table) -> pa.Table:
            if "chunks" in columns:
                chunks = pc.list_value_length(part["text_unit_ids"]).cast(pa.int64())
                part = part.append_column("chunks", chunks).select(list(columns))
            return top(part)

        found: list[Record] = top(self.reader.scan(table, read, of)).to_pylist()
        return found

    def communities(self, numbers: Iterable[int]) -> dict[int, Record]:
        """By number: community, level, title and rank of its report (None where that failed), size, and
        the number of its children."""
        wanted, number = sorted(set(numbers)), "human_readable_id"
        rows = {r["community"]: r for r in self.rows(self.kind.communities, _COMMUNITY, wanted, number)}
        reports = self.rows(self.kind.reports_table, ["community", "title", "rank"], wanted, number)
        titles = {r["community"]: (r["title"], r["rank"]) for r in reports}
        for number, row in rows.items():
            row["children"] = len(row["children"])
            row["title"], row["rank"] = titles.get(number, (row["title"], None))
        return rows

    def chunks(self, ids: Sequence[str], names: Sequence[str]) -> list[Record]:
        """The first `limit` of these chunks: place and date of the document, and of the text the sentence
        that holds most of the names (see quotes.best_sentence) with its position in the document."""
        wanted = list(ids)[: self.limit]
        columns = ["id", "document_id", "human_readable_id", "start", "end", "text"]
        units = {row["id"]: row for row in self.rows("text_units", columns, wanted)}
        documents = self.documents([row["document_id"] for row in units.values()])
        found = []
        for unit in (units[id_] for id_ in wanted if id_ in units):
            looked_for = names[:_NAMES_LOOKED_FOR]
            start, end = best_sentence(unit["text"], looked_for, is_start=unit["start"] == 0)
            found.append(
                {
                    "human_readable_id": unit["human_readable_id"],
                    **documents[unit["document_id"]],
                    "start": unit["start"],
                    "end": unit["end"],
                    "quote": unit["text"][start:end],
                    "quote_start": unit["start"] + start,
                }
            )
        return found

    def heaviest(self, ids: Iterable[str], by: str | tuple[str, ...] = "id") -> list[str]:
        """Ids of relationships, by falling weight; there may be very many."""
        rows = self.rows("relationships", ["id", "human_readable_id", "weight"], ids, by)
        return [row["id"] for row in sorted(rows, key=_by("weight"))]

    def entities(self, ids: Iterable[str]) -> list[Record]:
        """By falling degree."""
        return sorted(self.rows("entities", ENTITY, ids), key=_by("degree"))

    def documents(self, ids: Iterable[str]) -> dict[str, Record]:
        """By id, as sources.of_document has them."""
        rows = self.rows("documents", DOCUMENT_COLUMNS, ids)
        return {row["id"]: of_document(row) for row in rows}


def _by(column: str, then: str = "human_readable_id") -> Callable[[Record], tuple[Any, Any]]:
    """Falling by a column, ties by another one."""
    return lambda row: (-row[column], row[then])


def overview(view: View) -> Record:
    """The largest communities of the coarsest level, the best connected entities, and the documents with
    most chunks."""
    coarsest = view.where(view.kind.communities, ["community", "size"], ["level"], 0)
    coarsest.sort(key=_by("size", "community"))
    shown = [c["community"] for c in coarsest][: view.limit]
    known = view.communities(shown)
    documents = view.largest("documents", [*DOCUMENT, "chunks"], "chunks")
    return {
        "kind": "overview",
        "snapshot": view.reader.manifest.number,
        "about": about_in(view.reader.manifest.settings) or "",
        "counts": dict(view.reader.manifest.counts),
        "communities": [known[number] for number in shown],
        "entities": view.largest("entities", ENTITY, "degree"),
        "documents": [{"place": place(row["path"], row["row"]), **row} for row in documents],
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
    if not find.fold(text) or len(text) > MAX_TEXT_CHARACTERS:
        raise UsageError(f"name the text to search for, of at most {MAX_TEXT_CHARACTERS} characters")
    entities = view.reader.table("entities", list(ENTITY))
    by_degree = entities.sort_by([("degree", "descending"), ("human_readable_id", "ascending")])
    titles = by_degree["title"].to_pylist()
    reports = view.reader.table(view.kind.reports_table, ["community", "title", "size"])
    by_size = reports.sort_by([("size", "descending"), ("community", "ascending")])
    report_titles = by_size["title"].to_pylist()
    documents = view.reader.table("documents", DOCUMENT)
    places = [*map(place, documents["path"].to_pylist(), documents["row"].to_pylist())]
    named = [f"{p}\n{t or ''}" for p, t in zip(places, documents["title"].to_pylist(), strict=True)]
    found = {
        "entities": find.containing(text, titles),
        "communities": find.containing(text, report_titles),
        "documents": find.containing(text, named),
    }
    shown = {name: at[: view.limit] for name, at in found.items()}
    numbers = [by_size["community"][at].as_py() for at in shown["communities"]]
    communities = view.communities(numbers)
    everything = [*titles, *report_titles, *places]
    alike = [] if any(found.values()) else [everything[at] for at in find.near(text, everything)]
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


def entity(view: View, name: str) -> Record:
    """An entity, its communities from the coarsest on, relationships by weight, claims, and chunks."""
    row = view.row("entities", find.entity(view.reader, name))
    units = row.pop("text_unit_ids")
    edges = view.heaviest([row["id"]], ENDS)
    claims = [c["id"] for c in view.where("covariates", ["id"], ["subject_id", "object_id"], row["title"])]
    return {
        "kind": "entity",
        **row,
        "communities": _holding(view, "entity_ids", row["id"]),
        "relationships": view.first("relationships", RELATIONSHIP, edges),
        "claims": view.first("covariates", CLAIM, claims),
        "chunks": view.chunks(units, [row["title"]]),
        "totals": {"relationships": len(edges), "claims": len(claims), "chunks": len(units)},
    }


def relationship(view: View, *names: str) -> Record:
    """A relationship, its two ends, the communities that hold both, and its chunks."""
    row = view.row("relationships", find.relationship(view.reader, names))
    units, ends = row.pop("text_unit_ids"), [row.pop("source_id"), row.pop("target_id")]
    return {
        "kind": "relationship",
        **row,
        "entities": view.entities(ends),
        "communities": _holding(view, "relationship_ids", row["id"]),
        "chunks": view.chunks(units, [row["source"], row["target"]]),
        "totals": {"chunks": len(units)},
    }


def claim(view: View, name: str) -> Record:
    """A claim and the chunks that state it."""
    row = view.row("covariates", find.record(view.reader, "claim", "covariates", name))
    units = row.pop("text_unit_ids")
    return {
        "kind": "claim",
        **row,
        "chunks": view.chunks(units, [*quotes_in(row["source_text"]), row["subject_id"], row["object_id"]]),
        "totals": {"chunks": len(units)},
    }


def community(view: View, name: str) -> Record:
    """A community: its report (None where that failed), the communities above and below, members by
    degree, the relationships between them by weight, and chunks."""
    number = find.community(view.reader, name, view.kind)
    columns = ["id", "community", "level", "parent", "children", "period", "size", "packed"]
    lists = ["entity_ids", "relationship_ids", "text_unit_ids"]
    row = view.rows(view.kind.communities, [*columns, *lists], [number], "human_readable_id")[0]
    members, edges, units = (row.pop(column) for column in lists)
    known = view.communities([number, row["parent"], *row["children"]])
    children = [known[child] for child in row.pop("children")]
    entities = view.entities(members)
    columns = ["title", "summary", "full_content", "rank", "rating_explanation", "findings", "n_tokens",
               "context_left_out", "dropped_references"]  # fmt: skip
    reports = view.rows(view.kind.reports_table, columns, [number], "human_readable_id")
    return {
        "kind": "community",
        **row,
        "title": known[number]["title"],
        "report": reports[0] if reports else None,
        "parent": known.get(row["parent"]),
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


def chunk(view: View, name: str) -> Record:
    """A chunk: its text, its document, the chunks before and after it, and what was found in it."""
    row = view.row("text_units", find.record(view.reader, "chunk", "text_units", name))
    members, edges, claims = (row.pop(c) for c in ("entity_ids", "relationship_ids", "covariate_ids"))
    document_id = row.pop("document_id")
    order = [
        id_ for d in view.rows("documents", ["text_unit_ids"], [document_id]) for id_ in d["text_unit_ids"]
    ]
    at = order.index(row["id"]) if row["id"] in order else 0
    next_to = view.rows("text_units", UNIT, order[max(0, at - 1) : at + 2])
    beside = {r["position"]: r["human_readable_id"] for r in next_to}
    return {
        "kind": "chunk",
        **view.documents([document_id])[document_id],
        **row,
        "before": beside.get(row["position"] - 1),
        "after": beside.get(row["position"] + 1),
        "entities": view.entities(members)[: view.limit],
        "relationships": view.first("relationships", RELATIONSHIP, view.heaviest(edges)),
        "claims": view.first("covariates", CLAIM, claims),
        "totals": {"entities": len(members), "relationships": len(edges), "claims": len(claims)},
    }


def document(view: View, name: str) -> Record:
    """A document: its chunks in order, and the entities that were found in each, by degree."""
    row = view.row("documents", find.document(view.reader, name))
    text, units = row.pop("text"), row.pop("text_unit_ids")
    found = {"entity_ids": "entities", "relationship_ids": "relationships", "covariate_ids": "claims"}
    chunks = view.first("text_units", [*UNIT, *found], units)
    named = {id_ for c in chunks for id_ in c["entity_ids"]}
    entities = {r["id"]: r for r in view.rows("entities", ["id", *ENTITY], named)}
    for c in chunks:
        own = sorted((entities[id_] for id_ in c["entity_ids"]), key=_by("degree"))
        c["entities"] = [{column: row[column] for column in ENTITY} for row in own[: view.limit]]
        c["totals"] = {word: len(c.pop(column)) for column, word in found.items()}
    return {
        "kind": "document",
        **of_document(row),
        **{column: row[column] for column in ("id", "human_readable_id", "encoding", "content_hash")},
        "n_characters": len(text),
        "chunks": chunks,
        "totals": {"chunks": len(units)},
    }


def _holding(view: View, column: str, id_: str) -> list[Record]:
    """The communities that hold a member, the coarsest first."""
    held = view.rows(view.kind.communities, ["community"], [id_], by=column)
    known = view.communities(row["community"] for row in held)
    return sorted(known.values(), key=lambda c: c["level"])


KINDS: Mapping[str, Callable[..., Record]] = {
    "community": community,
    "entity": entity,
    "relationship": relationship,
    "claim": claim,
    "chunk": chunk,
    "document": document,
}

_ALSO = {
    "report": "community", "communities": "community", "entities": "entity", "source": "chunk",
    "text_unit": "chunk",
}  # fmt: skip
"""Other words for them: those of references, `[Data: Reports (3); Sources (5)]`, and of tables."""


def look_up(view: View, given: str, names: Sequence[str]) -> Record:
    """The record of a kind, in the singular or plural and in any case, that is called so. A word for the
    reports of a hierarchy, as references use it, means its communities. Raises UsageError, saying what there
    is instead."""
    word, own_words = given.casefold(), []
    for hierarchy in HIERARCHIES.values():
        own = SEARCHED[hierarchy.reports]
        if own.word not in _ALSO:
            own_words.append(own.word)
            if word in (own.word, own.words):
                view = replace(view, kind=hierarchy_of(view.reader.manifest.hierarchies, hierarchy.name))
                word = "community"
    singular = word.removesuffix("s")
    kind = _ALSO.get(word) or _ALSO.get(singular, singular)
    if kind not in KINDS:
        there = ", ".join([*KINDS, *own_words])
        raise UsageError(f"there is no kind of record {given!r}; there are {there}")
    wanted = (1, 2) if kind == "relationship" else (1,)
    if len(names) not in wanted:
        two = " (or the names of its two entities)" if kind == "relationship" else ""
        told = f"name one {kind} by its number or name{two}; quote a name with spaces"
        raise UsageError(f"{told}, as in: inspect {kind} {_EXAMPLES.get(kind, '12')}")
    return KINDS[kind](view, *names)


_EXAMPLES = {"entity": '"MARA VENN"', "community": "C1:12", "document": "letters/1987.txt"}
