"""What lies under a cited record, of whichever section: what it rests on, down to the sentences in the
documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from graphrag_ray.base.declarations import OF_SECTION, REPORT_SECTIONS
from graphrag_ray.base.records import SECTIONS, Reference
from graphrag_ray.corpus.document import columns_of, metadata_lines
from graphrag_ray.corpus.document_titles import label, own_title
from graphrag_ray.corpus.quotes import best_sentence
from graphrag_ray.query.methods.answer import Answer
from graphrag_ray.query.methods.evidence import evidence, passages

MAX_CHUNKS = 500
"""Chunks that are read for one cited record, those that hold most of what it rests on: a name that stands in
half of a large corpus would lead to all of it."""

MAX_REPORTS = 2_000
"""That are read for all cited records, of those one level below: the top of a large tree of summaries would
lead to all of it."""

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
"""What is told of a record beside its short number."""
_ELEMENTS = ("Relationships", "Claims", "Entities")

_ENDS = {"Relationships": ("source_id", "target_id"), "Claims": ("subject_entity_id",)}
DOCUMENT_COLUMNS = ["id", "path", "row", "title", "creation_date", "raw_data"]
_OF_DOCUMENT = ("document", "row", "place", "title", "date", "metadata")

Rows: TypeAlias = dict[str, dict[str, Any]]
"""By id."""
Read: TypeAlias = Callable[[str, Iterable[str], Sequence[str]], Rows]
"""(table, ids, columns) -> its rows with these ids, in the table's order."""
_Rest: TypeAlias = dict[str, dict[str, None]]
"""Ids of what a record rests on, by section, in order."""


@dataclass(frozen=True)
class Source:
    """A cited record and what it rests on: plain values for JSON.

    record            section, id, human_readable_id, name (see `named`), and some columns of its table; of a
                      chunk also title and date of its document
    entities          with relationships and claims: what a report was written from; the ends of a
                      relationship; the subject of a claim; and the record itself where it is one
    chunks            document, row, place ("file" or "file, row 3": a row's id or number), title, date and
                      metadata of its document; start, end, text; its sentence to read first: quote,
                      quote_start
    chunks_left_out   further chunks, which were not read
    evidence          sentences that carry what an answer says with reference to the record, best first:
                      passage (of the answer), quote, start and end in the document's text, verbatim, share
                      (see evidence.py), chunk, and the columns of its document. [] where no answer
                      was given
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


def named(references: Iterable[Reference], read: Read, columns: Sequence[str] = ()) -> list[Cited]:
    """The cited records that the snapshot holds, section by section, each in the order of the references:
    by the title of a report or entity, the ends of a relationship, what a claim says, the title, date and
    place of a chunk. columns: of its document's metadata, which are said, too
    """
    wanted = list(references)
    out = []
    for section in SECTIONS:
        ids = [r.id for r in wanted if r.section == section]
        rows = _read(section, ids, read, without=("references", "text_unit_ids", "text"))
        documents = _documents(rows, read) if section == "Sources" else {}
        there = [rows[i] for i in ids if i in rows]
        out += [Cited(section, r["human_readable_id"], _name(section, r, documents, columns)) for r in there]
    return out


def under(
    references: Iterable[Reference], read: Read, *, shown: Collection[str] = (), columns: Sequence[str] = ()
) -> list[Source]:
    """A Source for each reference to a record that the snapshot holds.

    shown: ids of chunks that the answer's contexts held; where a record has too many, these are read first
    columns: as for `named`
    """
    wanted = list(references)
    rows = {s: _reports(s, [r.id for r in wanted if r.section == s], read) for s in REPORT_SECTIONS}
    rests = {r: _rests_on(r, rows.get(r.section, {})) for r in wanted}
    for section in _ELEMENTS:  # entities last: those that relationships and claims name are known by then
        rows[section] = _read(
            section, (id_ for rest in rests.values() for id_ in rest.get(section, ())), read
        )
        for reference, rest in rests.items():
            if reference.section == section and reference.id in rows[section]:
                row = rows[section][reference.id]
                ends = (row[c] for c in _ENDS.get(section, ()) if row[c])
                rest.setdefault("Entities", {}).update(dict.fromkeys(ends))
    # Each record's chunks: those that were shown, then those that hold most of what it rests on. A
    # relationship or claim rests on its own chunks, not on all that name its ends.
    chunks: dict[Reference, tuple[dict[str, tuple[bool, int]], int]] = {}
    for reference, rest in rests.items():
        held = Counter(rest.get("Sources", {}).keys())
        for section in _ELEMENTS if reference.section in REPORT_SECTIONS else (reference.section,):
            for id_, row in rows.get(section, {}).items():
                if id_ in rest.get(section, ()):
                    held.update(row["text_unit_ids"])
        place = {chunk: (chunk not in shown, -n) for chunk, n in held.items()}
        first = sorted(place, key=place.__getitem__)[:MAX_CHUNKS]
        chunks[reference] = {chunk: place[chunk] for chunk in first}, len(held) - len(first)
    units = rows["Sources"] = _read("Sources", (c for place, _ in chunks.values() for c in place), read)
    documents = _documents(units, read)
    found = []
    for reference, rest in rests.items():
        if reference.id not in rows[reference.section]:
            continue
        place, n_more = chunks[reference]
        row, of_chunk = rows[reference.section][reference.id], reference.section == "Sources"
        own = {s: [r for id_, r in rows[s].items() if id_ in rest.get(s, ())] for s in _ELEMENTS}
        record = {
            "section": reference.section,
            "id": reference.id,
            "human_readable_id": row["human_readable_id"],
            "name": _name(reference.section, row, documents, columns),
            **{column: row[column] for column in _SHOWN[reference.section]},
            **({c: documents[row["document_id"]][c] for c in ("title", "date")} if of_chunk else {}),
        }
        entities, relationships, claims = (
            [{c: r[c] for c in ("human_readable_id", *_SHOWN[s])} for r in own[s]]
            for s in ("Entities", "Relationships", "Claims")
        )
        names = [e["title"] for e in own["Entities"]]
        order = sorted((id_ for id_ in units if id_ in place), key=place.__getitem__)
        shown_chunks = [_chunk(units[id_], names, documents) for id_ in order]
        found.append(Source(record, entities, relationships, claims, shown_chunks, n_more))
    return found


def specific(sources: Sequence[Source], answer: Answer) -> list[Source]:
    """The same sources with what carries the answer first: `evidence` filled, chunks by how much of what
    the answer says with reference to the record they hold, entities that this evidence names first."""
    links = (f"{link.asked} {link.found}" for link in answer.chain)
    said = passages("\n\n".join([answer.text, *links]))
    return [
        _specific(s, said.get(Reference(s.record["section"], str(s.record["human_readable_id"])), []))
        for s in sources
    ]


def _specific(source: Source, said: Sequence[str]) -> Source:
    chunks = list(source.chunks)
    found, shares = evidence(said, [c["text"] for c in chunks], [c["start"] == 0 for c in chunks])
    if not found:
        return source
    carrying: list[dict[str, Any]] = []
    for f in reversed(found):  # the best one of a chunk is what it shows
        chunk = source.chunks[f.text]
        start, quote = chunk["start"] + f.start, chunk["text"][f.start : f.end]
        place = {"start": start, "end": chunk["start"] + f.end}
        about = {"verbatim": f.verbatim, "share": round(f.share, 3), "chunk": chunk["human_readable_id"]}
        of_document = {column: chunk[column] for column in _OF_DOCUMENT}
        carrying.insert(0, {"passage": f.passage, "quote": quote, **place, **about, **of_document})
        chunks[f.text] = {**chunk, "quote": quote, "quote_start": start}
    best = dict.fromkeys(f.text for f in found)
    rest = [n for n in range(len(chunks)) if n not in best]
    spoken = " ".join([*(f.passage for f in found), *(one["quote"] for one in carrying)]).casefold()
    return replace(
        source,
        entities=sorted(source.entities, key=lambda e: e["title"].casefold() not in spoken),
        relationships=sorted(
            source.relationships,
            key=lambda r: -sum(r[end].casefold() in spoken for end in ("source", "target")),
        ),
        chunks=[chunks[n] for n in [*best, *sorted(rest, key=lambda n: -shares[n])]],
        evidence=carrying,
    )


def _read(section: str, ids: Iterable[str], read: Read, without: Collection[str] = ()) -> Rows:
    wanted = list(dict.fromkeys(ids))
    columns = ["id", "human_readable_id", *(c for c in _COLUMNS[section] if c not in without)]
    return read(OF_SECTION[section].table, wanted, columns) if wanted else {}


def _reports(section: str, ids: Iterable[str], read: Read) -> Rows:
    """These reports, and those that they were written from, down to the last: of each level below the first
    MAX_REPORTS."""
    found: Rows = {}
    todo = list(ids)
    while todo:
        rows = _read(section, todo, read)
        found |= rows
        below = (c["id"] for r in rows.values() for c in r["references"] or () if c["section"] == section)
        todo = [id_ for id_ in dict.fromkeys(below) if id_ not in found][:MAX_REPORTS]
    return found


def _rests_on(reference: Reference, reports: Rows) -> _Rest:
    """What a record rests on, as far as reports tell: what it cites, and what the reports cite that it was
    written from; any other record rests on itself."""
    if reference.section not in REPORT_SECTIONS:
        return {reference.section: {reference.id: None}}
    cited: _Rest = {}
    todo = [reference.id]
    for id_ in todo:  # grows while we go through it
        for below in (reports[id_]["references"] or ()) if id_ in reports else ():
            of_section = cited.setdefault(below["section"], {})
            if below["id"] not in of_section:
                of_section[below["id"]] = None
                todo += [below["id"]] if below["section"] == reference.section else []
    return cited


def _chunk(
    unit: Mapping[str, Any], names: Sequence[str], documents: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A chunk with the sentence that holds most of the names."""
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
    # `Minutes (2023-09-14): minutes.csv, row 9, characters 0–80`; without a title that only repeats the
    # file's name.
    document = documents[row["document_id"]]
    title = own_title(document["title"], document["document"], document["row"])
    more = metadata_lines(columns_of(document["metadata"]), columns)
    about = label(title, document["date"], document["document"], document["row"], more=more)
    where = f"{document['place']}, characters {row['start']}–{row['end']}"
    return f"{about}: {where}" if about else where


def _documents(units: Rows, read: Read) -> dict[str, dict[str, Any]]:
    """By id, the documents of chunks."""
    ids = dict.fromkeys(u["document_id"] for u in units.values())
    rows = read("documents", ids, DOCUMENT_COLUMNS) if ids else {}
    return {id_: of_document(row) for id_, row in rows.items()}


def of_document(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a chunk says of its document (see Source.chunks); row: DOCUMENT_COLUMNS of its table."""
    return {
        "document": row["path"],
        "row": row["row"],
        "place": place(row["path"], row["row"]),
        "title": row["title"],
        "date": row["creation_date"],
        "metadata": row["raw_data"],
    }


def place(path: str, row: str) -> str:
    """Where a document is, for people: "file", or "file, row 3"."""
    return f"{path}, row {row}" if row else path
