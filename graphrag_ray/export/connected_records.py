"""One record of a snapshot with what it is connected to, as plain values for JSON and for print.

Lists hold at most `limit` records, the most important first; `totals` says how many there are of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from graphrag_ray.base.declarations import HIERARCHIES, SEARCHED
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.schema import ENDS
from graphrag_ray.corpus.quotes import quotes_in
from graphrag_ray.export import find
from graphrag_ray.export.view import (
    CLAIM,
    ENTITY,
    RELATIONSHIP,
    UNIT,
    Record,
    View,
    best_connected,
    heaviest,
)
from graphrag_ray.query.methods.asked_hierarchy import hierarchy_of
from graphrag_ray.query.sources import of_document

_WEIGHED = ["id", "human_readable_id", "weight"]


def entity(view: View, name: str) -> Record:
    """An entity, its communities from the coarsest on, relationships by weight, claims, and chunks."""
    row = view.row("entities", find.entity(view.reader, name))
    units = row.pop("text_unit_ids")
    edges = heaviest(view.rows("relationships", _WEIGHED, [row["id"]], ENDS))
    about = {"subject_id": row["title"], "object_id": row["title"]}
    claims = [claim["id"] for claim in view.where("covariates", ["id"], about)]
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
        "entities": best_connected(view.rows("entities", ENTITY, ends)),
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
    entities = best_connected(view.rows("entities", ENTITY, members))
    inside = heaviest(view.rows("relationships", _WEIGHED, edges))
    return {
        "kind": "community",
        **row,
        "title": known[number]["title"],
        "report": _report(view, number),
        "parent": known.get(row["parent"]),
        "children": sorted(children, key=lambda c: (-c["size"], c["community"]))[: view.limit],
        "entities": entities[: view.limit],
        "relationships": view.first("relationships", RELATIONSHIP, inside),
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
    inside = heaviest(view.rows("relationships", _WEIGHED, edges))
    return {
        "kind": "chunk",
        **view.documents([document_id])[document_id],
        **row,
        "before": beside.get(row["position"] - 1),
        "after": beside.get(row["position"] + 1),
        "entities": best_connected(view.rows("entities", ENTITY, members))[: view.limit],
        "relationships": view.first("relationships", RELATIONSHIP, inside),
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
        c["entities"] = best_connected(entities[id_] for id_ in c["entity_ids"])[: view.limit]
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


def _report(view: View, number: int) -> Record | None:
    columns = ["title", "summary", "full_content", "rank", "rating_explanation", "findings", "n_tokens",
               "context_left_out", "dropped_references"]  # fmt: skip
    found = view.rows(view.kind.reports_table, columns, [number], "human_readable_id")
    return found[0] if found else None


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


def kind_of(word: str) -> str | None:
    """The kind that is meant by a word in the singular or plural, in any case; None for others."""
    word = word.casefold()
    singular = word.removesuffix("s") if word not in _ALSO else word
    kind = _ALSO.get(word) or _ALSO.get(singular, singular)
    return kind if kind in KINDS else None


_OWN = tuple(own.word for kind in HIERARCHIES.values() if (own := SEARCHED[kind.reports]).word not in _ALSO)
"""Words for the communities of a certain hierarchy."""


def look_up(view: View, word: str, names: Sequence[str]) -> Record:
    """The record of a kind that is called so. Raises UsageError, saying what there is instead."""
    view, word = _of_hierarchy(view, word)
    kind = kind_of(word)
    if kind is None:
        raise UsageError(f"there is no kind of record {word!r}; there are {', '.join([*KINDS, *_OWN])}")
    wanted = (1, 2) if kind == "relationship" else (1,)
    if len(names) not in wanted:
        two = " (or the names of its two entities)" if kind == "relationship" else ""
        told = f"name one {kind} by its number or name{two}; quote a name with spaces"
        raise UsageError(f"{told}, as in: inspect {kind} {_EXAMPLES.get(kind, '12')}")
    return KINDS[kind](view, *names)


def _of_hierarchy(view: View, word: str) -> tuple[View, str]:
    """A word for the reports of a hierarchy, as references use it, means that one's communities. Raises
    UsageError where the index does not have it."""
    for hierarchy in HIERARCHIES.values():
        own = SEARCHED[hierarchy.reports]
        if own.word not in _ALSO and word.casefold() in (own.word, own.words):
            known = hierarchy_of(view.reader.manifest.hierarchies, hierarchy.name)
            return replace(view, kind=known), "community"
    return view, word


_EXAMPLES = {"entity": '"MARA VENN"', "community": "C1:12", "document": "letters/1987.txt"}
