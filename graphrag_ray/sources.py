"""What lies under a cited report: what it was written from, down to the sentences in the documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from graphrag_ray.query.answer import Answer
from graphrag_ray.query.evidence import Found, evidence, passages
from graphrag_ray.query.quotes import best_sentence

_ELEMENT_COLUMNS = ["id", "human_readable_id", "text_unit_ids"]
_CITED = (
    ("Entities", "entities", [*_ELEMENT_COLUMNS, "title", "type"]),
    ("Relationships", "relationships", [*_ELEMENT_COLUMNS, "source", "target", "description"]),
    ("Claims", "covariates", [*_ELEMENT_COLUMNS, "subject_id", "object_id", "description"]),
)
_UNIT_COLUMNS = ["id", "human_readable_id", "document_id", "start", "end", "text"]
DOCUMENT_COLUMNS = ["id", "path", "row", "title", "creation_date", "raw_data"]
_OF_DOCUMENT = ("document", "row", "place", "title", "date", "metadata")

Rows: TypeAlias = dict[str, dict[str, Any]]
"""By id."""


@dataclass(frozen=True)
class Source:
    """A cited report and what it was written from: plain values for JSON.

    chunks     document, row, place ("file" or "file, row 3", rows counted from 1), title, date and
               metadata of its document; start, end, text; its sentence to read first: quote, quote_start
    evidence   sentences that carry what an answer says with reference to the report, best first: passage
               (of the answer), quote, start and end in the document's text, verbatim, share (see
               query/evidence.py), chunk, and the columns of its document. [] where no answer was given
    """

    report: Mapping[str, Any]
    entities: list[dict[str, Any]]
    relationships: list[dict[str, Any]]
    claims: list[dict[str, Any]]
    chunks: list[dict[str, Any]]
    evidence: list[dict[str, Any]] = field(default_factory=list)


def under(
    wanted: Sequence[str],
    reports: Mapping[str, Mapping[str, Any]],
    rows: Callable[[str, Iterable[str], Sequence[str]], Rows],
    *,
    has_ids: bool,
) -> list[Source]:
    """A Source for each wanted report.

    reports   by id: human_readable_id, title, rank, references
    rows      (table, ids, columns) -> its rows with these ids, in the table's order
    has_ids   rows of table files are named by an id of their own; else by number, from 0
    """
    cited = [_cited(id_, reports) for id_ in wanted]
    entities, edges, claims = (
        rows(table, [id_ for c in cited for id_ in c.get(section, [])], columns)
        for section, table, columns in _CITED
    )
    elements = [
        (_chosen(edges, c, "Relationships"), _chosen(claims, c, "Claims"), _chosen(entities, c, "Entities"))
        for c in cited
    ]
    named = [Counter(u for kind in kinds for row in kind for u in row["text_unit_ids"]) for kinds in elements]
    units = rows("text_units", [u for counted in named for u in counted], _UNIT_COLUMNS)
    documents = rows("documents", [u["document_id"] for u in units.values()], DOCUMENT_COLUMNS)
    shown = {id_: of_document(d, has_ids) for id_, d in documents.items()}
    return [
        Source(
            report={k: reports[id_][k] for k in ("id", "human_readable_id", "title", "rank")},
            entities=_plain(found, "human_readable_id", "title", "type"),
            relationships=_plain(related, "human_readable_id", "source", "target", "description"),
            claims=_plain(stated, "human_readable_id", "subject_id", "object_id", "description"),
            chunks=_chunks(counted, [e["title"] for e in found], units, shown),
        )
        for id_, (related, stated, found), counted in zip(wanted, elements, named, strict=True)
    ]


def specific(sources: Sequence[Source], answer: Answer) -> list[Source]:
    """The same sources with what carries the answer first: `evidence` filled, chunks by how much of what
    the answer says with reference to the report they hold, entities that this evidence names first."""
    said = passages(answer.text)
    return [_specific(s, said.get(str(s.report["human_readable_id"]), [])) for s in sources]


def _specific(source: Source, said: Sequence[str]) -> Source:
    found, shares = evidence(said, [c["text"] for c in source.chunks])
    if not found:
        return source
    best: dict[int, Found] = {}
    for f in found:
        best.setdefault(f.text, f)
    rest = [n for n in range(len(source.chunks)) if n not in best]
    order = [*best, *sorted(rest, key=lambda n: -shares[n])]
    named = " ".join(f.passage for f in found).casefold()
    named += " ".join(source.chunks[f.text]["text"][f.start : f.end] for f in found).casefold()
    return replace(
        source,
        entities=sorted(source.entities, key=lambda e: e["title"].casefold() not in named),
        relationships=sorted(
            source.relationships,
            key=lambda r: -sum(r[end].casefold() in named for end in ("source", "target")),
        ),
        chunks=[_quoting(source.chunks[n], best.get(n)) for n in order],
        evidence=[_evidence(source.chunks[f.text], f) for f in found],
    )


def _quoting(chunk: dict[str, Any], found: Found | None) -> dict[str, Any]:
    if not found:
        return chunk
    quote = chunk["text"][found.start : found.end]
    return {**chunk, "quote": quote, "quote_start": chunk["start"] + found.start}


def _evidence(chunk: Mapping[str, Any], found: Found) -> dict[str, Any]:
    return {
        "passage": found.passage,
        "quote": chunk["text"][found.start : found.end],
        "start": chunk["start"] + found.start,
        "end": chunk["start"] + found.end,
        "verbatim": found.verbatim,
        "share": round(found.share, 3),
        "chunk": chunk["human_readable_id"],
        **{column: chunk[column] for column in _OF_DOCUMENT},
    }


def _cited(report: str, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, None]]:
    """What a report cites, by section, and what the reports cite that it was written from."""
    cited: dict[str, dict[str, None]] = {}
    todo = [report]
    for id_ in todo:  # grows while we go through it
        for reference in reports[id_]["references"] if id_ in reports else []:
            of_section = cited.setdefault(reference["section"], {})
            if reference["id"] not in of_section:
                of_section[reference["id"]] = None
                todo += [reference["id"]] if reference["section"] == "Reports" else []
    return cited


def _chosen(rows: Rows, cited: Mapping[str, Any], section: str) -> list[dict[str, Any]]:
    return [row for id_, row in rows.items() if id_ in cited.get(section, ())]


def _chunks(
    named: Counter[str], names: Sequence[str], units: Rows, documents: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Chunks, those that hold most of what was cited first, each with its best sentence."""
    out = []
    mine = [units[id_] for id_ in named if id_ in units]
    for unit in sorted(mine, key=lambda u: (-named[u["id"]], u["human_readable_id"])):
        start, end = best_sentence(unit["text"], names)
        out.append(
            {
                "human_readable_id": unit["human_readable_id"],
                **documents[unit["document_id"]],
                "start": unit["start"],
                "end": unit["end"],
                "text": unit["text"],
                "quote": unit["text"][start:end],
                "quote_start": unit["start"] + start,
            }
        )
    return out


def of_document(row: Mapping[str, Any], has_ids: bool) -> dict[str, Any]:
    """What a chunk says of its document: document, row, place, title, date, metadata (see Source).

    row: of the documents table; has_ids: as `under` has it
    """
    return {
        "document": row["path"],
        "row": row["row"],
        "place": place(row["path"], row["row"], has_ids),
        "title": row["title"],
        "date": row["creation_date"],
        "metadata": row["raw_data"],
    }


def place(path: str, row: str, has_ids: bool) -> str:
    """Where a document is, for people: "file", or "file, row 3"."""
    if row and not has_ids and row.isdecimal():
        row = str(int(row) + 1)
    return f"{path}, row {row}" if row else path


def _plain(rows: Iterable[Mapping[str, Any]], *columns: str) -> list[dict[str, Any]]:
    return [{column: row[column] for column in columns} for row in rows]
