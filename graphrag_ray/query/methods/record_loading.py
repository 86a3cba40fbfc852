"""Load rows of the snapshot as records of a context, for every kind of record that can be searched.

The description of an entity or relationship summarises all chunks. If a question is restricted to some chunks
(`--where`), it is replaced by the descriptions from these chunks. A chunk is labelled with the title and date
of its document and the metadata columns of `chunking.prepend_metadata`.

The first passage of a document also has its opening, which may name who speaks.

With `distinct_texts`, text that chunks share is shown once, under the first of them, and so are equal
descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

from graphrag_ray.base.dates import describe_period
from graphrag_ray.base.declarations import REPORT_KINDS, SEARCHABLE_KINDS
from graphrag_ray.base.schema import PERIOD_COLUMNS, TABLES
from graphrag_ray.corpus.chunks import with_opening
from graphrag_ray.corpus.document import metadata_lines, parse_raw_data
from graphrag_ray.corpus.document_titles import document_label
from graphrag_ray.corpus.quotes import folded_words
from graphrag_ray.graph.report_context import (
    Record,
    entity_record,
    longest_prefix_that_fits,
    passage_record,
    relationship_record,
    report_record,
    sanitize,
)
from graphrag_ray.query.methods.method import Kind, Rows, SearchEnv, Steps

LABEL_TOKENS = 40
"""Maximum size of a chunk's label. Each metadata column in it adds as much."""

IN_DOCUMENT = ("start", "end", "header")
"""Columns of a chunk that relate it to its document."""

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Format:
    """How a kind is rendered: its columns, a function from row to record, and the table of its instances."""

    columns: tuple[str, ...]
    record: Callable[[Row], Record]
    instances: str = ""


_REPORT_COLUMNS = ("title", "full_content")


def _report(section: str, row: Row) -> Record:
    period = describe_period(row["period_start"], row["period_end"])
    return report_record(row["id"], row["title"], row["full_content"], section, period)


_FORMATS: dict[Kind, _Format] = {
    "text_unit": _Format(
        ("text", "document_id"), lambda r: passage_record(r["id"], r["text"], r.get("document", ""))
    ),
    "entity": _Format(
        ("title", "description"),
        lambda r: entity_record(r["id"], r["title"], r["description"]),
        "entity_instances",
    ),
    "relationship": _Format(
        ("source", "target", "description", "relation", "relation_reversed"),
        lambda r: relationship_record(
            # An instance has its ends in the direction of its relation.
            *(r["id"], r["source"], r["target"], r["description"]),
            r["relation"],
            r.get("relation_reversed"),
        ),
        "relationship_instances",
    ),
    **{
        k: _Format((*_REPORT_COLUMNS, *PERIOD_COLUMNS), partial(_report, SEARCHABLE_KINDS[k].section))
        for k in REPORT_KINDS
    },
}


def load_records(
    wanted: Iterable[tuple[Kind, str]],
    env: SearchEnv,
    chunks: Collection[str] | None = None,
    distinct_texts: bool = False,
) -> Steps[list[Record]]:
    """Load the records that exist, in the given order.

    Args:
        chunks: Restrict descriptions to these chunks. None allows all.
        distinct_texts: Leave out text that an earlier record of the same kind has.
    """
    order = list(wanted)
    ids: dict[Kind, list[str]] = {}
    for kind, id_ in order:
        ids.setdefault(kind, []).append(id_)
    needs = []
    for kind, of_kind in ids.items():
        form = _FORMATS[kind]
        if chunks is None or not form.instances:
            columns = ["id", *form.columns, *(IN_DOCUMENT if distinct_texts and kind == "text_unit" else ())]
            needs.append(Rows(SEARCHABLE_KINDS[kind].table, columns, of_kind))
        else:
            known = TABLES[form.instances].names
            columns = [f"{kind}_id", "text_unit_id", *(name for name in form.columns if name in known)]
            needs.append(Rows(form.instances, columns, of_kind, by=f"{kind}_id"))
    tables = yield tuple(needs)
    records: dict[tuple[Kind, str], Record] = {}
    for kind, table in zip(ids, tables, strict=True):
        form, rows = _FORMATS[kind], table.to_pylist()
        if kind == "text_unit":
            rows = yield from with_documents(rows, env)
            if distinct_texts:
                by_id = {row["id"]: row for row in rows}
                rows = without_overlaps([by_id[id_] for id_ in ids[kind] if id_ in by_id])
        elif chunks is not None and form.instances:
            rows = _described_by(chunks, kind, rows, env)
        loaded = {row["id"]: form.record(row) for row in rows}
        if distinct_texts:
            first = distinct(loaded[id_] for id_ in ids[kind] if id_ in loaded)
            if kind == "text_unit":
                first = with_openings(first, rows)
            loaded = {record.id: record for record in first}
        records |= {(kind, id_): record for id_, record in loaded.items()}
    return [records[key] for key in order if key in records]


def with_openings(records: Iterable[Record], rows: Iterable[Row]) -> list[Record]:
    """Add the opening of the document to the label of its first passage, unless the passage contains it."""
    of_document = {row["id"]: (row["document_id"], row["header"]) for row in rows}
    labelled: set[str] = set()
    result = []
    for record in records:
        (document, header), (label, text) = of_document[record.id], record.fields
        if document not in labelled:
            labelled.add(document)
            label = sanitize(with_opening(label, header))
        result.append(replace(record, fields=(label, text)))
    return result


def without_overlaps(rows: Iterable[Row]) -> list[Row]:
    """Cut the text that a chunk shares with earlier rows of its document, and drop chunks without a rest."""
    shown: dict[str, list[tuple[int, int]]] = {}
    shortened: list[Row] = []
    for row in rows:
        start, end = None, None
        if row["document_id"] and row["start"] is not None and row["end"] is not None:
            start, end = row["start"], row["end"]
            spans = shown.setdefault(row["document_id"], [])
            for first, last in spans:
                if first <= start < last:
                    start = last
                elif start < first < end <= last:
                    end = first
            spans.append((row["start"], row["end"]))
            start, end = start - row["start"], max(0, end - row["start"])
        text = row["text"][start:end]
        if text.strip():
            shortened.append({**row, "text": text})
    return shortened


def distinct(records: Iterable[Record]) -> list[Record]:
    """Show each text once, ignoring case, spacing and punctuation.

    A record with the text of an earlier one is left out, or has only its name if it is an entity. Equal
    passages of documents with different titles or dates say different things, so both stay.
    """
    shown: set[tuple[str, str]] = set()
    different: list[Record] = []
    for record in records:
        *fields, text = record.fields
        words = " ".join(folded_words(text))
        key = (fields[0] if record.section == "Sources" else "", words)
        if not words or key not in shown:
            different.append(record)
        elif record.section == "Entities":
            different.append(replace(record, fields=(*fields, "")))
        shown.add(key)
    return different


def _described_by(chunks: Collection[str], kind: Kind, instances: Sequence[Row], env: SearchEnv) -> list[Row]:
    """Merge instances from these chunks into rows, with descriptions of at most the usual length."""
    limit = env.settings.descriptions.max_output_tokens
    by_id: dict[str, list[Row]] = {}
    for instance in instances:
        if instance["text_unit_id"] in chunks:
            by_id.setdefault(instance[f"{kind}_id"], []).append(instance)
    rows: list[Row] = []
    for id_, of_record in by_id.items():
        text = ""
        for description in dict.fromkeys(i["description"] for i in of_record if i["description"]):
            longer = f"{text} {description}".strip()
            if text and env.count(longer) > limit:
                break
            text = longer
        shown = next((i for i in of_record if i.get("relation")), of_record[0])
        rows.append({**shown, "id": id_, "description": text})
    return rows


def prefix_that_fits(
    chunks: Sequence[str], env: SearchEnv, contexts: float = 1.5, context_tokens: int | None = None
) -> Steps[tuple[list[str], bool]]:
    """Return the leading chunks that may fit into a context, and whether they are all of the chunks.

    Args:
        contexts: Number of contexts to fill, by tokens of the indexing model. More than one is needed if the
            answering model counts fewer tokens.
    """
    sizes = yield Rows("text_units", ["id", "n_tokens"], chunks)
    n_tokens = dict(zip(sizes["id"].to_pylist(), sizes["n_tokens"].to_pylist(), strict=True))
    order = [id_ for id_ in chunks if id_ in n_tokens]
    budget = context_tokens or env.settings.query.context_tokens
    ends = accumulate(n_tokens[id_] or 0 for id_ in order)
    first = order[: 1 + sum(end <= contexts * budget for end in ends)]
    return first, len(first) == len(order)


def label_tokens(env: SearchEnv) -> int:
    return LABEL_TOKENS * (1 + len(env.settings.chunking.prepended_metadata))


def with_documents(rows: Sequence[Row], env: SearchEnv) -> Steps[list[Row]]:
    """Add a column `document` with the label of the document to rows of chunks."""
    columns, limit = env.settings.chunking.prepended_metadata, label_tokens(env)
    ids = dict.fromkeys(row["document_id"] for row in rows if row["document_id"])
    if not ids:
        return list(rows)
    wanted = ["id", "title", "creation_date", "path", "row", *(["raw_data"] if columns else [])]
    table = yield Rows("documents", wanted, list(ids))
    label_of = {}
    for d in table.to_pylist():
        metadata = metadata_lines(parse_raw_data(d["raw_data"]), columns) if columns else ""
        label = document_label(d["title"], d["creation_date"], d["path"] or "", d["row"] or "", metadata)
        if env.count(label) > limit:
            label = longest_prefix_that_fits(label, lambda start: env.count(start) <= limit)
        label_of[d["id"]] = label
    return [{**row, "document": label_of.get(row["document_id"], "")} for row in rows]
