"""Trace a cited record of any section to its evidence, down to sentences in the documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from graphrag_ray.base.context_records import SECTIONS, Reference
from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION, REPORT_SECTIONS
from graphrag_ray.base.wording import document_location
from graphrag_ray.corpus.document import metadata_lines, parse_raw_data
from graphrag_ray.corpus.document_titles import document_label, explicit_title
from graphrag_ray.corpus.quotes import best_sentence
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.evidence import find_evidence, passages

MAX_SOURCE_CHUNKS = 500
"""Maximum number of chunks per cited record. Chunks that contain most of its evidence come first."""
MAX_REPORTS_BELOW = 2_000
"""Maximum number of reports per lower level, because the top report of a large tree leads to all others."""

_COLUMNS: Mapping[str, list[str]] = {
    **{section: ["title", "rank", "references"] for section in REPORT_SECTIONS},
    "Entities": ["title", "type", "text_unit_ids"],
    "Relationships": ["source", "target", "description", "source_id", "target_id", "text_unit_ids"],
    "Claims": ["subject_id", "object_id", "description", "subject_entity_id", "text_unit_ids"],
    "Sources": ["document_id", "start", "end", "text"],
}
_DISPLAY_COLUMNS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(REPORT_SECTIONS, ("title", "rank")),
    "Entities": ("title", "type"),
    "Relationships": ("source", "target", "description"),
    "Claims": ("subject_id", "object_id", "description"),
    "Sources": ("start", "end"),
}
"""Columns of a record that are displayed in addition to its short number."""
_ELEMENTS = ("Relationships", "Claims", "Entities")
_ENDS = {"Relationships": ("source_id", "target_id"), "Claims": ("subject_entity_id",)}

DOCUMENT_COLUMNS = ["id", "path", "row", "title", "creation_date", "raw_data"]
_DOCUMENT_KEYS = ("document", "row", "place", "title", "date", "metadata")

RowsById: TypeAlias = dict[str, dict[str, Any]]
Read: TypeAlias = Callable[[str, Iterable[str], Sequence[str]], RowsById]
"""Reads (table, ids, columns), in table order."""
_Basis: TypeAlias = dict[str, dict[str, None]]
"""Ids of the records that a record is based on, by section, in order."""


@dataclass(frozen=True)
class Source:
    """A cited record and its evidence, as plain values for JSON.

    Attributes:
        record: section, id, human_readable_id, name (see `cited_records`) and columns of its table. A chunk
            also has the title and date of its document.
        entities: Entities that the record is based on: the inputs of a report, the ends of a relationship,
            the subject of a claim, or the record itself.
        relationships, claims: Relationships and claims that the record is based on.
        chunks: document, row, place ("file" or "file, row 3", with the row's id or number), title, date and
            metadata of the document; start, end, text; quote and quote_start of the sentence to read first.
        chunks_left_out: Number of further chunks, which were not read.
        evidence: Sentences that support the answer's statements about the record, best first: passage (of the
            answer), quote, start and end in the document's text, verbatim, share (see evidence.py), chunk,
            and the columns of its document. Empty without an answer.
    """

    record: Mapping[str, Any]
    entities: list[dict[str, Any]]
    relationships: list[dict[str, Any]]
    claims: list[dict[str, Any]]
    chunks: list[dict[str, Any]]
    chunks_left_out: int = 0
    evidence: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cited:
    """A cited record for display: its section, short number and name."""

    section: str
    number: int
    name: str


def cited_records(references: Iterable[Reference], read: Read, columns: Sequence[str] = ()) -> list[Cited]:
    """Name the cited records that exist, grouped by section, in the order of the references.

    The name is the title of a report or entity, the ends of a relationship, the description of a claim, or
    the title, date and position of a chunk.

    Args:
        columns: Metadata columns of a chunk's document to include.
    """
    wanted = list(references)
    cited = []
    for section in SECTIONS:
        ids = [r.id for r in wanted if r.section == section]
        rows = _read(section, ids, read, without=("references", "text_unit_ids", "text"))
        documents = _documents(rows, read) if section == "Sources" else {}
        for row in (rows[i] for i in ids if i in rows):
            cited.append(Cited(section, row["human_readable_id"], _name(section, row, documents, columns)))
    return cited


def sources_of(
    references: Iterable[Reference], read: Read, *, used: Collection[str] = (), columns: Sequence[str] = ()
) -> list[Source]:
    """Build a Source for each existing record. Chunks in `used`, those of contexts, come first."""
    wanted = list(references)
    rows = {s: _reports(s, [r.id for r in wanted if r.section == s], read) for s in REPORT_SECTIONS}
    bases = {r: _basis_of(r, rows.get(r.section, {})) for r in wanted}
    for section in _ELEMENTS:  # entities last, because relationships and claims refer to them
        ids = (id_ for basis in bases.values() for id_ in basis.get(section, ()))
        rows[section] = _read(section, ids, read)
        for reference, basis in bases.items():
            if reference.section == section and reference.id in rows[section]:
                row = rows[section][reference.id]
                ends = (row[c] for c in _ENDS.get(section, ()) if row[c])
                basis.setdefault("Entities", {}).update(dict.fromkeys(ends))
    # Order the chunks of each record: first the chunks of contexts, then those with the most evidence. Take
    # only a relationship's or claim's own chunks, not all chunks that mention its ends.
    chunks: dict[Reference, tuple[dict[str, tuple[bool, int]], int]] = {}
    for reference, basis in bases.items():
        n_evidence = Counter(basis.get("Sources", {}).keys())
        for section in _ELEMENTS if reference.section in REPORT_SECTIONS else (reference.section,):
            for id_, row in rows.get(section, {}).items():
                if id_ in basis.get(section, ()):
                    n_evidence.update(row["text_unit_ids"])
        order = {chunk: (chunk not in used, -n) for chunk, n in n_evidence.items()}
        selected = sorted(order, key=order.__getitem__)[:MAX_SOURCE_CHUNKS]
        chunks[reference] = {chunk: order[chunk] for chunk in selected}, len(order) - len(selected)
    units = rows["Sources"] = _read("Sources", (c for order, _ in chunks.values() for c in order), read)
    documents = _documents(units, read)
    sources = []
    for reference, basis in bases.items():
        if reference.id not in rows[reference.section]:
            continue
        order, left_out = chunks[reference]
        row, is_chunk = rows[reference.section][reference.id], reference.section == "Sources"
        elements = {s: [r for id_, r in rows[s].items() if id_ in basis.get(s, ())] for s in _ELEMENTS}
        record = {
            "section": reference.section,
            "id": reference.id,
            "human_readable_id": row["human_readable_id"],
            "name": _name(reference.section, row, documents, columns),
            **{column: row[column] for column in _DISPLAY_COLUMNS[reference.section]},
            **({c: documents[row["document_id"]][c] for c in ("title", "date")} if is_chunk else {}),
        }
        entities, relationships, claims = (
            [{c: r[c] for c in ("human_readable_id", *_DISPLAY_COLUMNS[s])} for r in elements[s]]
            for s in ("Entities", "Relationships", "Claims")
        )
        names = [e["title"] for e in elements["Entities"]]
        ordered = sorted((id_ for id_ in units if id_ in order), key=order.__getitem__)
        described = [_chunk(units[id_], names, documents) for id_ in ordered]
        sources.append(Source(record, entities, relationships, claims, described, left_out))
    return sources


def rank_by_answer(sources: Sequence[Source], answer: Answer) -> list[Source]:
    """Order chunks and elements by how well they support the answer, and fill in `evidence`."""
    links = (f"{link.asked} {link.found}" for link in answer.chain)
    passages_of = passages("\n\n".join([answer.text, *links]))
    return [
        _ranked(s, passages_of.get(Reference(s.record["section"], str(s.record["human_readable_id"])), []))
        for s in sources
    ]


def _ranked(source: Source, cited_by: Sequence[str]) -> Source:
    chunks = list(source.chunks)
    found, shares = find_evidence(cited_by, [c["text"] for c in chunks], [c["start"] == 0 for c in chunks])
    if not found:
        return source
    evidence: list[dict[str, Any]] = []
    for f in reversed(found):  # the best quote comes last and overwrites the others of its chunk
        chunk = source.chunks[f.text]
        start, quote = chunk["start"] + f.start, chunk["text"][f.start : f.end]
        span = {"start": start, "end": chunk["start"] + f.end}
        match = {"verbatim": f.verbatim, "share": round(f.share, 3), "chunk": chunk["human_readable_id"]}
        document = {key: chunk[key] for key in _DOCUMENT_KEYS}
        evidence.insert(0, {"passage": f.passage, "quote": quote, **span, **match, **document})
        chunks[f.text] = {**chunk, "quote": quote, "quote_start": start}
    best = dict.fromkeys(f.text for f in found)
    others = [n for n in range(len(chunks)) if n not in best]
    text = " ".join([*(f.passage for f in found), *(e["quote"] for e in evidence)]).casefold()
    return replace(
        source,
        entities=sorted(source.entities, key=lambda e: e["title"].casefold() not in text),
        relationships=sorted(
            source.relationships,
            key=lambda r: -sum(r[end].casefold() in text for end in ("source", "target")),
        ),
        chunks=[chunks[n] for n in [*best, *sorted(others, key=lambda n: -shares[n])]],
        evidence=evidence,
    )


def _read(section: str, ids: Iterable[str], read: Read, without: Collection[str] = ()) -> RowsById:
    wanted = list(dict.fromkeys(ids))
    columns = ["id", "human_readable_id", *(c for c in _COLUMNS[section] if c not in without)]
    return read(RECORD_KIND_BY_SECTION[section].table, wanted, columns) if wanted else {}


def _reports(section: str, ids: Iterable[str], read: Read) -> RowsById:
    """Read reports and, recursively, the reports below them, at most MAX_REPORTS_BELOW per level."""
    reports: RowsById = {}
    todo = list(ids)
    while todo:
        rows = _read(section, todo, read)
        reports |= rows
        below = (c["id"] for r in rows.values() for c in r["references"] or () if c["section"] == section)
        todo = [id_ for id_ in dict.fromkeys(below) if id_ not in reports][:MAX_REPORTS_BELOW]
    return reports


def _basis_of(reference: Reference, reports: RowsById) -> _Basis:
    """Collect the ids that a report cites, directly or indirectly. Any other record is its own basis."""
    if reference.section not in REPORT_SECTIONS:
        return {reference.section: {reference.id: None}}
    cited: _Basis = {}
    todo = [reference.id]
    for id_ in todo:  # grows during the loop
        for below in (reports[id_]["references"] or ()) if id_ in reports else ():
            of_section = cited.setdefault(below["section"], {})
            if below["id"] not in of_section:
                of_section[below["id"]] = None
                todo += [below["id"]] if below["section"] == reference.section else []
    return cited


def _chunk(
    unit: Mapping[str, Any], names: Sequence[str], documents: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe a chunk, with the sentence that contains most of the names."""
    start, end = best_sentence(unit["text"], names, is_start=unit["start"] == 0)
    return {
        "human_readable_id": unit["human_readable_id"],
        **documents[unit["document_id"]],
        "start": unit["start"],
        "end": unit["end"],
        "text": unit["text"],
        "quote": unit["text"][start:end],
        "quote_start": unit["start"] + start,
    }


def _name(
    section: str, row: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]], columns: Sequence[str]
) -> str:
    if section == "Relationships":
        return f"{row['source']} – {row['target']}"
    if section == "Claims":
        return str(row["description"])
    if section != "Sources":
        return str(row["title"])
    # Example: `Minutes (2023-09-14): minutes.csv, row 9, characters 0–80`. A title that only repeats the file
    # name is left out.
    document = documents[row["document_id"]]
    title = explicit_title(document["title"], document["document"], document["row"])
    metadata = metadata_lines(parse_raw_data(document["metadata"]), columns)
    label = document_label(title, document["date"], document["document"], document["row"], metadata=metadata)
    position = f"{document['place']}, characters {row['start']}–{row['end']}"
    return f"{label}: {position}" if label else position


def _documents(units: RowsById, read: Read) -> dict[str, dict[str, Any]]:
    """Describe the documents of chunks, by id."""
    ids = dict.fromkeys(u["document_id"] for u in units.values())
    rows = read("documents", ids, DOCUMENT_COLUMNS) if ids else {}
    return {id_: describe_document(row) for id_, row in rows.items()}


def describe_document(row: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the document of a chunk (see Source.chunks) from its DOCUMENT_COLUMNS."""
    return {
        "document": row["path"],
        "row": row["row"],
        "place": document_location(row["path"], row["row"]),
        "title": row["title"],
        "date": row["creation_date"],
        "metadata": row["raw_data"],
    }
