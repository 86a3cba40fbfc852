"""Trace a cited record of any section to what it rests on, down to sentences in the documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from graphrag_ray.base.context_records import SECTIONS, Reference
from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION, REPORT_SECTIONS
from graphrag_ray.corpus.document import metadata_lines, parse_raw_data
from graphrag_ray.corpus.document_titles import document_label, own_title
from graphrag_ray.corpus.quotes import best_sentence
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.evidence import find_evidence, passages

MAX_CHUNKS = 500
"""Maximum number of chunks per cited record, by how much of what it rests on they contain."""
MAX_REPORTS = 2_000
"""Maximum number of reports per lower level: the top of a large tree would lead to all."""

_COLUMNS: Mapping[str, list[str]] = {
    **{section: ["title", "rank", "references"] for section in REPORT_SECTIONS},
    "Entities": ["title", "type", "text_unit_ids"],
    "Relationships": ["source", "target", "description", "source_id", "target_id", "text_unit_ids"],
    "Claims": ["subject_id", "object_id", "description", "subject_entity_id", "text_unit_ids"],
    "Sources": ["document_id", "start", "end", "text"],
}
_SHOWN: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(REPORT_SECTIONS, ("title", "rank")),
    "Entities": ("title", "type"),
    "Relationships": ("source", "target", "description"),
    "Claims": ("subject_id", "object_id", "description"),
    "Sources": ("start", "end"),
}
"""Columns that are shown of a record besides its short number."""
_ELEMENTS = ("Relationships", "Claims", "Entities")
_ENDS = {"Relationships": ("source_id", "target_id"), "Claims": ("subject_entity_id",)}

DOCUMENT_COLUMNS = ["id", "path", "row", "title", "creation_date", "raw_data"]
_OF_DOCUMENT = ("document", "row", "place", "title", "date", "metadata")

RowsById: TypeAlias = dict[str, dict[str, Any]]
Read: TypeAlias = Callable[[str, Iterable[str], Sequence[str]], RowsById]
"""Reads (table, ids, columns), in table order."""
_Rest: TypeAlias = dict[str, dict[str, None]]
"""Ids of what a record rests on, by section, in order."""


@dataclass(frozen=True)
class Source:
    """A cited record and what it rests on, as plain values for JSON.

    Attributes:
        record: section, id, human_readable_id, name (see `cited_records`) and columns of its table; for a
            chunk also title and date of its document.
        entities: With relationships and claims: what a report was written from; the ends of a relationship;
            the subject of a claim; and the record itself.
        chunks: document, row, place ("file" or "file, row 3", with the row's id or number), title, date and
            metadata of the document; start, end, text; and the sentence to read first: quote, quote_start.
        chunks_left_out: Number of further chunks, which were not read.
        evidence: Sentences that support what the answer says about the record, best first: passage (of the
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
    """A cited record as people know it: its short number and its name."""

    section: str
    number: int
    name: str


def cited_records(references: Iterable[Reference], read: Read, columns: Sequence[str] = ()) -> list[Cited]:
    """Name the cited records that exist, section by section, in the order of the references.

    Names are the title of a report or entity, the ends of a relationship, the description of a claim, and
    title, date and place of a chunk.

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
    references: Iterable[Reference], read: Read, *, shown: Collection[str] = (), columns: Sequence[str] = ()
) -> list[Source]:
    """Build a Source for each existing record. Chunks in `shown`, those of the contexts, come first."""
    wanted = list(references)
    rows = {s: _reports(s, [r.id for r in wanted if r.section == s], read) for s in REPORT_SECTIONS}
    rests = {r: _rests_on(r, rows.get(r.section, {})) for r in wanted}
    for section in _ELEMENTS:  # entities last, since relationships and claims refer to them
        ids = (id_ for rest in rests.values() for id_ in rest.get(section, ()))
        rows[section] = _read(section, ids, read)
        for reference, rest in rests.items():
            if reference.section == section and reference.id in rows[section]:
                row = rows[section][reference.id]
                ends = (row[c] for c in _ENDS.get(section, ()) if row[c])
                rest.setdefault("Entities", {}).update(dict.fromkeys(ends))
    # The chunks of each record: first those in a context, then those that contain most of what it rests on. A
    # relationship or claim rests on its own chunks, not on all that mention its ends.
    chunks: dict[Reference, tuple[dict[str, tuple[bool, int]], int]] = {}
    for reference, rest in rests.items():
        held = Counter(rest.get("Sources", {}).keys())
        for section in _ELEMENTS if reference.section in REPORT_SECTIONS else (reference.section,):
            for id_, row in rows.get(section, {}).items():
                if id_ in rest.get(section, ()):
                    held.update(row["text_unit_ids"])
        order = {chunk: (chunk not in shown, -n) for chunk, n in held.items()}
        first = sorted(order, key=order.__getitem__)[:MAX_CHUNKS]
        chunks[reference] = {chunk: order[chunk] for chunk in first}, len(held) - len(first)
    units = rows["Sources"] = _read("Sources", (c for order, _ in chunks.values() for c in order), read)
    documents = _documents(units, read)
    sources = []
    for reference, rest in rests.items():
        if reference.id not in rows[reference.section]:
            continue
        order, left_out = chunks[reference]
        row, is_chunk = rows[reference.section][reference.id], reference.section == "Sources"
        own = {s: [r for id_, r in rows[s].items() if id_ in rest.get(s, ())] for s in _ELEMENTS}
        record = {
            "section": reference.section,
            "id": reference.id,
            "human_readable_id": row["human_readable_id"],
            "name": _name(reference.section, row, documents, columns),
            **{column: row[column] for column in _SHOWN[reference.section]},
            **({c: documents[row["document_id"]][c] for c in ("title", "date")} if is_chunk else {}),
        }
        entities, relationships, claims = (
            [{c: r[c] for c in ("human_readable_id", *_SHOWN[s])} for r in own[s]]
            for s in ("Entities", "Relationships", "Claims")
        )
        names = [e["title"] for e in own["Entities"]]
        ordered = sorted((id_ for id_ in units if id_ in order), key=order.__getitem__)
        own_chunks = [_chunk(units[id_], names, documents) for id_ in ordered]
        sources.append(Source(record, entities, relationships, claims, own_chunks, left_out))
    return sources


def rank_by_answer(sources: Sequence[Source], answer: Answer) -> list[Source]:
    """Order chunks and elements by how much of what the answer says they support, and fill in `evidence`."""
    links = (f"{link.asked} {link.found}" for link in answer.chain)
    said = passages("\n\n".join([answer.text, *links]))
    return [
        _ranked(s, said.get(Reference(s.record["section"], str(s.record["human_readable_id"])), []))
        for s in sources
    ]


def _ranked(source: Source, said: Sequence[str]) -> Source:
    chunks = list(source.chunks)
    found, shares = find_evidence(said, [c["text"] for c in chunks], [c["start"] == 0 for c in chunks])
    if not found:
        return source
    evidence: list[dict[str, Any]] = []
    for f in reversed(found):  # a chunk keeps the best quote, which comes last
        chunk = source.chunks[f.text]
        start, quote = chunk["start"] + f.start, chunk["text"][f.start : f.end]
        place = {"start": start, "end": chunk["start"] + f.end}
        about = {"verbatim": f.verbatim, "share": round(f.share, 3), "chunk": chunk["human_readable_id"]}
        document = {column: chunk[column] for column in _OF_DOCUMENT}
        evidence.insert(0, {"passage": f.passage, "quote": quote, **place, **about, **document})
        chunks[f.text] = {**chunk, "quote": quote, "quote_start": start}
    best = dict.fromkeys(f.text for f in found)
    rest = [n for n in range(len(chunks)) if n not in best]
    text = " ".join([*(f.passage for f in found), *(one["quote"] for one in evidence)]).casefold()
    return replace(
        source,
        entities=sorted(source.entities, key=lambda e: e["title"].casefold() not in text),
        relationships=sorted(
            source.relationships,
            key=lambda r: -sum(r[end].casefold() in text for end in ("source", "target")),
        ),
        chunks=[chunks[n] for n in [*best, *sorted(rest, key=lambda n: -shares[n])]],
        evidence=evidence,
    )


def _read(section: str, ids: Iterable[str], read: Read, without: Collection[str] = ()) -> RowsById:
    wanted = list(dict.fromkeys(ids))
    columns = ["id", "human_readable_id", *(c for c in _COLUMNS[section] if c not in without)]
    return read(RECORD_KIND_BY_SECTION[section].table, wanted, columns) if wanted else {}


def _reports(section: str, ids: Iterable[str], read: Read) -> RowsById:
    """Read reports and, recursively, those they were written from: at most MAX_REPORTS per level below."""
    found: RowsById = {}
    todo = list(ids)
    while todo:
        rows = _read(section, todo, read)
        found |= rows
        below = (c["id"] for r in rows.values() for c in r["references"] or () if c["section"] == section)
        todo = [id_ for id_ in dict.fromkeys(below) if id_ not in found][:MAX_REPORTS]
    return found


def _rests_on(reference: Reference, reports: RowsById) -> _Rest:
    """Collect what a report cites, also through other reports; any other record rests on itself."""
    if reference.section not in REPORT_SECTIONS:
        return {reference.section: {reference.id: None}}
    cited: _Rest = {}
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
    # `Minutes (2023-09-14): minutes.csv, row 9, characters 0–80`, without a title that only repeats the file
    # name.
    document = documents[row["document_id"]]
    title = own_title(document["title"], document["document"], document["row"])
    more = metadata_lines(parse_raw_data(document["metadata"]), columns)
    about = document_label(title, document["date"], document["document"], document["row"], more=more)
    where = f"{document['place']}, characters {row['start']}–{row['end']}"
    return f"{about}: {where}" if about else where


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
        "place": document_place(row["path"], row["row"]),
        "title": row["title"],
        "date": row["creation_date"],
        "metadata": row["raw_data"],
    }


def document_place(path: str, row: str) -> str:
    """Where a document is, for people: "file", or "file, row 3"."""
    return f"{path}, row {row}" if row else path
