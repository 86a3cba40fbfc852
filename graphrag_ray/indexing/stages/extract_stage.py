"""Extract entities, relationships and claims: one dialogue per chunk, parts aligned with the chunks.

Repeated paragraphs are left out of the chunks' texts (`repeats_stage.py`). A chunk without any other text has
no dialogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.dates import iso_date
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.corpus.chunks import with_note
from graphrag_ray.corpus.repeated_paragraphs import Span, shown_texts
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph import extraction_dialogue, merge
from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.graph.schema_conformance import CORRECTION_RATE
from graphrag_ray.indexing.run import Run, failure_rows, replay_rows
from graphrag_ray.indexing.stages.context_stage import NOTES
from graphrag_ray.indexing.stages.repeats_stage import SPANS
from graphrag_ray.indexing.step_result import Result, count_rows, has_transient_failures, spec_key, sum_counts
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part, read_table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """The input of a task: parts of tables, all about the same documents.

    Attributes:
        documents: Empty if descriptions are merged without dates.
        spans: Text to leave out.
        notes: Notes on the documents.
        entities: Entities extracted from the chunks, for claims.
    """

    units: list[Part]
    documents: list[Part]
    spans: list[Part]
    notes: list[Part]
    entities: list[Part]


COUNTS = pa.schema([("text_unit_id", pa.string()), ("name", pa.string()), ("value", pa.int64())])
"""Counts of unusable output by chunk. The run's summary shows the totals."""


def extract_graph(run: Run, corpus: Result, repeats: Result, notes: Result, names: EntityNames) -> Result:
    """Extract entity and relationship instances from every chunk (paper 3.1.2).

    Args:
        repeats: Table spans of text to leave out (`repeats_stage.py`).
        notes: Table notes on documents, or none (`context_stage.py`).

    Returns:
        Tables found_entities and found_relationships (schema.*_INSTANCES, in the order of the
        chunks), counts and failures.
    """
    spec = extraction_dialogue.extract_spec(run.prompts, run.settings, names.key)
    # Initial estimate of the calls per chunk: half of the gleanings find something, and so do half of the
    # checks before them.
    turns = 1.0 + sum((1.5 if spec.check_first else 1.0) * 0.5**i for i in range(spec.max_gleanings))
    turns += CORRECTION_RATE if spec.schema else 0.0
    work = Work(
        "extract",
        lambda store, row: extraction_dialogue.extract(_chunk_text(row), spec) if row["text"] else _nothing(),
        lambda row: (row["id"], row["document_id"]),
        expected_turns=turns,
    )
    chunks = _chunk_groups(run, corpus, repeats, notes)
    tables = ("found_entities", "found_relationships", "counts", "failures")
    return _run_dialogues(run, work, chunks, [spec_key(spec), names.to_json()], tables, _graph_tables)


def extract_claims(
    run: Run, corpus: Result, repeats: Result, notes: Result, extraction: Result, names: EntityNames
) -> Result:
    """Extract claims about the extracted entities of every chunk (paper 3.1.2), if claims are enabled.

    The dialogue is given the names from the extraction, so that a claim's subject is an entity. Returns
    tables found_claims, counts and failures.
    """
    if not run.settings.claims.enabled:
        return Result()
    spec = extraction_dialogue.claims_spec(run.prompts, run.settings, names.key)
    work = Work(
        "claims",
        lambda store, row: extraction_dialogue.claims(_chunk_text(row), row["names"], spec),
        lambda row: (row["id"], row["document_id"]),
    )
    found = extraction.tables["found_entities"]
    chunks = [
        replace(group, entities=entities)
        for group, entities in zip(_chunk_groups(run, corpus, repeats, notes), found, strict=True)
    ]
    tables = ("found_claims", "counts", "failures")
    return _run_dialogues(run, work, chunks, [spec_key(spec), names.to_json()], tables, _claim_tables)


def _chunk_groups(run: Run, corpus: Result, repeats: Result, notes: Result) -> list[ChunkGroup]:
    units, documents = corpus.tables["text_units"], corpus.tables["documents"]
    none: list[list[Part]] = [[] for _ in units]
    documents = none if run.settings.input.document_context == "metadata" else documents
    others = repeats.tables.get("spans") or none, notes.tables.get("notes") or none, none
    return [ChunkGroup(*group) for group in zip(units, documents, *others, strict=True)]


def _nothing() -> Dialogue[Any]:
    """A dialogue without requests."""
    return None
    yield


def _run_dialogues(
    run: Run,
    work: Work[T],
    chunks: Sequence[ChunkGroup],
    depends_on: Sequence[Any],
    tables: Sequence[str],
    make_tables: Callable[[Sequence[tuple[merge.ExtractionSource, T]]], Tables],
) -> Result:
    def compute() -> Result:
        run.item_totals[work.name] = count_rows([group.units for group in chunks]), "chunks"
        plan = run.reuse_plan(work.name, chunks, depends_on, tables, journal=work.name)
        n_new = count_rows([group.units for group in plan.new_inputs])
        index = run.sweep_rows(work, _load, plan.new_inputs, n_new)
        collect = partial(_collect, work, index, make_tables)
        result = plan.merge_new(run.store, run.map(work.name, collect, plan.new_inputs))
        counts = sum_counts(run.store, result.tables)
        return Result(
            result.tables, counts, not has_transient_failures(run.store, result.tables), result.made_from
        )

    return run.step(work.name, [chunks, *depends_on], compute, work.name)


def _load(store: Store, chunks: ChunkGroup) -> Iterator[pa.Table]:
    left_out: dict[str, list[Span]] = {}
    for document, start, end in zip(
        *read_table(store, chunks.spans, None, SPANS).to_pydict().values(), strict=True
    ):
        left_out.setdefault(document, []).append((start, end))
    note_of = _by_document(read_table(store, chunks.notes, NOTES.names, NOTES))
    dates = _by_document(read_table(store, chunks.documents, ["id", "creation_date"], schema.DOCUMENTS))
    date_of = {id_: iso_date(date or "")[:10] or None for id_, date in dates.items()}
    names: dict[str, list[str]] = {}
    rows = read_table(store, chunks.entities, ["text_unit_id", "title"], schema.ENTITY_INSTANCES)
    for unit, title in zip(rows["text_unit_id"].to_pylist(), rows["title"].to_pylist(), strict=True):
        names.setdefault(unit, []).append(title)
    for part in chunks.units:
        table = read_part(store, part, ["id", "document_id", "position", "start", "header", "text"])
        table = _leave_out(table, left_out)
        column = [names.get(unit, []) for unit in table["id"].to_pylist()]
        table = table.append_column("names", pa.array(column, pa.list_(pa.string())))
        documents_of_units = table["document_id"].to_pylist()
        for name, values in (("note", note_of), ("date", date_of)):
            table = table.append_column(name, pa.array(map(values.get, documents_of_units), pa.string()))
        yield table


def _by_document(table: pa.Table) -> dict[str, str | None]:
    ids, values = (column.to_pylist() for column in table.columns)
    return dict(zip(ids, values, strict=True))


def _leave_out(units: pa.Table, spans: Mapping[str, Sequence[Span]]) -> pa.Table:
    """Leave out spans of documents. Column left_out, the number of characters left out, replaces start."""
    n_left_out = [0] * units.num_rows
    if spans:
        texts, starts = units["text"].to_pylist(), units["start"].to_pylist()
        rows_of: dict[str, list[int]] = {}
        for n, document in enumerate(units["document_id"].to_pylist()):
            rows_of.setdefault(document, []).append(n)
        for document in rows_of.keys() & spans.keys():
            rows = rows_of[document]
            shown = shown_texts([texts[n] for n in rows], [starts[n] for n in rows], spans[document])
            for n, (text, n_characters) in zip(rows, shown, strict=True):
                texts[n], n_left_out[n] = text, n_characters
        units = units.set_column(units.schema.get_field_index("text"), "text", pa.array(texts, pa.string()))
    return units.drop_columns(["start"]).append_column("left_out", pa.array(n_left_out, pa.int64()))


def _chunk_text(row: Row) -> extraction_dialogue.ChunkText:
    return extraction_dialogue.ChunkText(row["text"], with_note(row["header"] or "", row["note"]))


def _source(row: Row) -> merge.ExtractionSource:
    return merge.ExtractionSource(row["id"], row["document_id"], row["position"], row["date"])


def _collect(
    work: Work[T],
    index: Callable[[], JournalIndex],
    make_tables: Callable[[Sequence[tuple[merge.ExtractionSource, T]]], Tables],
    store: Store,
    chunks: ChunkGroup,
) -> Iterator[Tables]:
    """Replay a group of chunks. Yields one part per table, because the manifest lists every part."""
    tables: dict[str, list[pa.Table]] = {}
    for batch in replay_rows(work, index(), store, _load(store, chunks)):
        results = [
            (_source(row), outcome.result)
            for row, outcome in batch
            if outcome.status == "complete" and outcome.result is not None
        ]
        new = {"failures": failure_rows(work.name, work, batch), **make_tables(results)}
        if work.name == "extract":
            new["counts"] = pa.concat_tables([new["counts"], _left_out_counts(row for row, _ in batch)])
        for name, table in new.items():
            tables.setdefault(name, []).append(table)
    yield {name: pa.concat_tables(batches) for name, batches in tables.items()}


def _graph_tables(
    results: Sequence[tuple[merge.ExtractionSource, extraction_dialogue.ExtractedRecords]],
) -> Tables:
    counts = (
        {
            "unusable_records": records.unusable,
            "unexpected_gleaning_replies": records.unexpected_glean_replies,
            "blocked_names": records.blocked,
            "unreadable_strengths": records.unreadable_strengths,
            "self_relationships": sum(r.source == r.target for r in records.relationships),
            "gleaned_entities": sum(r.turn > 0 for r in records.entities),
            "chunks_without_entities": int(not records.entities),
            **records.schema_counts,
        }
        for _, records in results
    )
    return {
        "found_entities": merge.entity_instance_rows(results),
        "found_relationships": merge.relationship_instance_rows(results),
        "counts": _count_rows(results, counts),
    }


def _claim_tables(
    results: Sequence[tuple[merge.ExtractionSource, extraction_dialogue.ClaimRecords]],
) -> Tables:
    counts = (
        {"unusable_claims": records.unusable, "blocked_claims": records.blocked} for _, records in results
    )
    return {"found_claims": merge.claim_rows(results), "counts": _count_rows(results, counts)}


def _left_out_counts(rows: Iterable[Row]) -> pa.Table:
    counts = [
        {"text_unit_id": row["id"], "name": name, "value": n}
        for row in rows
        if row["left_out"]
        for name, n in {
            "left_out_characters": row["left_out"],
            "shortened_chunks": int(bool(row["text"])),
            "left_out_chunks": int(not row["text"]),
        }.items()
        if n
    ]
    return pa.Table.from_pylist(counts, schema=COUNTS)


def _count_rows(
    results: Sequence[tuple[merge.ExtractionSource, Any]], counts: Iterable[Mapping[str, int]]
) -> pa.Table:
    rows = [
        {"text_unit_id": unit.text_unit_id, "name": name, "value": n}
        for (unit, _), by_name in zip(results, counts, strict=True)
        for name, n in by_name.items()
        if n
    ]
    return pa.Table.from_pylist(rows, schema=COUNTS)
