"""Extract entities, relationships and claims: one dialogue per chunk, parts aligned with the chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.corpus.chunks import with_note
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph import extraction_dialogue, merge
from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.indexing.run import Run, failure_rows, replay_rows
from graphrag_ray.indexing.stages.context_stage import NOTES
from graphrag_ray.indexing.step_result import Result, count_rows, has_transient_failures, spec_key, sum_counts
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part, read_table

T = TypeVar("T")
_Chunks = tuple[list[Part], list[Part], list[Part], list[Part] | None]
"""Parts of chunks, of their documents, of notes on these and, for claims, of the extracted entities."""
COUNTS = pa.schema([("text_unit_id", pa.string()), ("name", pa.string()), ("value", pa.int64())])
"""Counts of unusable output by chunk. The run's summary shows the totals."""


def extract_graph(run: Run, corpus: Result, notes: Result, names: EntityNames) -> Result:
    """Extract entity and relationship instances from every chunk (paper 3.1.2).

    `notes` has the table notes if a model describes every document (`context_stage.py`).

    Returns tables found_entities and found_relationships (schema.*_INSTANCES, in the order of the chunks),
    counts and failures.
    """
    spec = extraction_dialogue.extract_spec(run.prompts, run.settings, names.key)
    # Initial estimate of the calls per chunk: half of the gleanings find something, and so do half of the
    # checks before them.
    turns = 1.0 + sum((1.5 if spec.check_first else 1.0) * 0.5**i for i in range(spec.max_gleanings))
    work = Work(
        "extract",
        lambda store, row: extraction_dialogue.extract(_chunk_text(row), spec),
        lambda row: (row["id"], row["document_id"]),
        expected_turns=turns,
    )
    chunks: list[_Chunks] = [(*group, None) for group in _groups(run, corpus, notes)]
    tables = ("found_entities", "found_relationships", "counts", "failures")
    return _run_dialogues(run, work, chunks, [spec_key(spec), names.to_json()], tables, _graph_tables)


def extract_claims(run: Run, corpus: Result, notes: Result, extraction: Result, names: EntityNames) -> Result:
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
    chunks = [(*group, parts) for group, parts in zip(_groups(run, corpus, notes), found, strict=True)]
    tables = ("found_claims", "counts", "failures")
    return _run_dialogues(run, work, chunks, [spec_key(spec), names.to_json()], tables, _claim_tables)


def _groups(run: Run, corpus: Result, notes: Result) -> Iterator[tuple[list[Part], list[Part], list[Part]]]:
    units, documents = corpus.tables["text_units"], corpus.tables["documents"]
    if run.settings.input.document_context == "metadata":
        documents = [[] for _ in units]  # Descriptions are merged without dates.
    return zip(units, documents, notes.tables.get("notes") or [[] for _ in units], strict=True)


def _run_dialogues(
    run: Run,
    work: Work[T],
    chunks: Sequence[_Chunks],
    depends_on: Sequence[Any],
    tables: Sequence[str],
    make_tables: Callable[[Sequence[tuple[merge.ExtractionSource, T]]], Tables],
) -> Result:
    def compute() -> Result:
        run.item_totals[work.name] = count_rows([units for units, *_ in chunks]), "chunks"
        plan = run.reuse_plan(work.name, chunks, depends_on, tables, journal=work.name)
        n_new = count_rows([units for units, *_ in plan.new_inputs])
        index = run.sweep_rows(work, _load, plan.new_inputs, n_new)
        collect = partial(_collect, work, index, make_tables)
        result = plan.merge_new(run.store, run.map(work.name, collect, plan.new_inputs))
        counts = sum_counts(run.store, result.tables)
        return Result(
            result.tables, counts, not has_transient_failures(run.store, result.tables), result.made_from
        )

    return run.step(work.name, [chunks, *depends_on], compute, work.name)


def _load(store: Store, chunks: _Chunks) -> Iterator[pa.Table]:
    units, documents, notes, entities = chunks
    note_of = _by_document(read_table(store, notes, NOTES.names, NOTES))
    date_of = _by_document(read_table(store, documents, ["id", "creation_date"], schema.DOCUMENTS))
    names: dict[str, list[str]] = {}
    if entities is not None:
        rows = read_table(store, entities, ["text_unit_id", "title"], schema.ENTITY_INSTANCES)
        for unit, title in zip(rows["text_unit_id"].to_pylist(), rows["title"].to_pylist(), strict=True):
            names.setdefault(unit, []).append(title)
    for part in units:
        table = read_part(store, part, ["id", "document_id", "position", "header", "text"])
        if entities is not None:
            column = [names.get(unit, []) for unit in table["id"].to_pylist()]
            table = table.append_column("names", pa.array(column, pa.list_(pa.string())))
        column = table["document_id"].to_pylist()
        for name, values in (("note", note_of), ("date", date_of)):
            table = table.append_column(name, pa.array(map(values.get, column), pa.string()))
        yield table


def _by_document(table: pa.Table) -> dict[str, str]:
    ids, values = (column.to_pylist() for column in table.columns)
    return dict(zip(ids, values, strict=True))


def _chunk_text(row: Row) -> extraction_dialogue.ChunkText:
    return extraction_dialogue.ChunkText(row["text"], with_note(row["header"] or "", row["note"]))


def _source(row: Row) -> merge.ExtractionSource:
    return merge.ExtractionSource(row["id"], row["document_id"], row["position"], row["date"])


def _collect(
    work: Work[T],
    index: Callable[[], JournalIndex],
    make_tables: Callable[[Sequence[tuple[merge.ExtractionSource, T]]], Tables],
    store: Store,
    chunks: _Chunks,
) -> Iterator[Tables]:
    """Replay a group of chunks. Yields one part per table, because the manifest lists every part."""
    tables: dict[str, list[pa.Table]] = {}
    for batch in replay_rows(work, index(), store, _load(store, chunks)):
        results = [
            (_source(row), outcome.result)
            for row, outcome in batch
            if outcome.status == "complete" and outcome.result is not None
        ]
        for name, table in {"failures": failure_rows(work.name, work, batch), **make_tables(results)}.items():
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
