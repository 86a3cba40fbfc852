"""Extraction and claims: one dialogue a chunk, what it found written beside the chunk's own part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.graph.extraction_dialogue import (
    ClaimRecords,
    ClaimsSpec,
    ExtractedRecords,
    ExtractSpec,
    ShownChunk,
    claims,
    claims_spec,
    extract,
    extract_spec,
)
from graphrag_ray.graph.merge import (
    ExtractedFrom,
    claim_rows,
    entity_instance_rows,
    relationship_instance_rows,
)
from graphrag_ray.indexing.run import Run, failure_rows, replayed
from graphrag_ray.indexing.step_result import Result, add_counts, passing, rows_of, spec_key
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import Part, read_part, read_table

T = TypeVar("T")
UNIT_COLUMNS = ["id", "document_id", "position", "header", "text"]
COUNTS = pa.schema([("text_unit_id", pa.string()), ("name", pa.string()), ("value", pa.int64())])
"""What could not be used of a chunk, added up over chunks and shown in the run's summary."""


def extract_graph(run: Run, corpus: Result, names: EntityNames) -> Result:
    """Entity and relationship instances of every chunk (paper 3.1.2), aligned with the chunks' parts.

    Tables found_entities, found_relationships (schema.*_INSTANCES in the order of the chunks), counts,
    failures.
    """
    spec = extract_spec(run.prompts, run.settings, names.key)
    # Calls of a chunk, as long as none has told: each gleaning question is answered with yes half the time,
    # and then gleaned.
    turns = 1.0 + sum(1.5 * 0.5**i for i in range(spec.max_gleanings))
    work = Work("extract", partial(_start_extract, spec), _label, turns=turns)

    inputs = [_Chunks(of) for of in corpus.tables["text_units"]]
    tables = ("found_entities", "found_relationships", "counts", "failures")
    return _ask_about(run, work, inputs, [spec_key(spec), names.to_json()], tables, _extracted)


def extract_claims(run: Run, corpus: Result, extracted: Result, names: EntityNames) -> Result:
    """Claims about the extracted entities of every chunk (paper 3.1.2): found_claims, counts, failures.

    Nothing where claims are off. The names come from the extraction, so a claim's subject is an entity.
    """
    if not run.settings.claims.enabled:
        return Result()
    spec = claims_spec(run.prompts, run.settings, names.key)
    work = Work("claims", partial(_start_claims, spec), _label)

    both = zip(corpus.tables["text_units"], extracted.tables["found_entities"], strict=True)
    inputs = [_Chunks(*of) for of in both]
    tables = ("found_claims", "counts", "failures")
    return _ask_about(run, work, inputs, [spec_key(spec), names.to_json()], tables, _claimed)


@dataclass(frozen=True)
class _Chunks:
    """Parts that hold some chunks. entities: parts of what was found in them, by whose names they are asked
    about; None: by none."""

    units: list[Part]
    entities: list[Part] | None = None


def _load(store: Store, x: _Chunks) -> Iterator[pa.Table]:
    """What a model is asked about each chunk."""
    names: dict[str, list[str]] = {}
    if x.entities is not None:
        found = read_table(store, x.entities, ["text_unit_id", "title"], schema.ENTITY_INSTANCES)
        for unit, title in zip(found["text_unit_id"].to_pylist(), found["title"].to_pylist(), strict=True):
            names.setdefault(unit, []).append(title)
    for part in x.units:
        table = read_part(store, part, UNIT_COLUMNS)
        if x.entities is not None:  # in the order of the records
            column = [names.get(unit, []) for unit in table["id"].to_pylist()]
            table = table.append_column("names", pa.array(column, pa.list_(pa.string())))
        yield table


def _ask_about(
    run: Run,
    work: Work[T],
    inputs: Sequence[_Chunks],
    depends_on: Sequence[Any],
    tables: Sequence[str],
    made: Callable[[Sequence[tuple[ExtractedFrom, T]]], Tables],
) -> Result:
    """The step's tables, and the counts of all chunks. made: tables of what some chunks hold."""
    told = [[x.units, x.entities] for x in inputs]

    def compute() -> Result:
        run.items[work.name] = rows_of([x.units for x in inputs]), "chunks"
        known = run.taken_over(work.name, inputs, depends_on, tables, told=told, journal=work.name)
        index = run.sweep_rows(work, _load, known.new, rows_of([x.units for x in known.new]))
        result = known.with_new(
            run.store, run.map(work.name, partial(_collect, work, index, made), known.new)
        )
        counts = add_counts(run.store, result.tables)
        return Result(result.tables, counts, not passing(run.store, result.tables), result.made_from)

    return run.step(work.name, [told, *depends_on], compute, work.name)


def _start_extract(spec: ExtractSpec, store: Store, row: Row) -> Dialogue[ExtractedRecords]:
    return extract(ShownChunk(row["text"], row["header"] or ""), spec)


def _start_claims(spec: ClaimsSpec, store: Store, row: Row) -> Dialogue[ClaimRecords]:
    return claims(ShownChunk(row["text"], row["header"] or ""), row["names"], spec)


def _label(row: Row) -> tuple[str, str]:
    return row["id"], row["document_id"]


def _collect(
    work: Work[T],
    index: Callable[[], JournalIndex],
    made: Callable[[Sequence[tuple[ExtractedFrom, T]]], Tables],
    store: Store,
    x: _Chunks,
) -> Iterator[Tables]:
    """What was found in some chunks, in one part each: parts of a large corpus are named one by one in its
    manifest."""
    tables: dict[str, list[pa.Table]] = {}
    for batch in replayed(work, index(), store, _load(store, x)):
        found = [
            (ExtractedFrom(row["id"], row["document_id"], row["position"]), outcome.result)
            for row, outcome in batch
            if outcome.status == "complete" and outcome.result is not None
        ]
        for name, table in {"failures": failure_rows(work.name, work, batch), **made(found)}.items():
            tables.setdefault(name, []).append(table)
    yield {name: pa.concat_tables(of) for name, of in tables.items()}


def _extracted(found: Sequence[tuple[ExtractedFrom, ExtractedRecords]]) -> Tables:
    return {
        "found_entities": entity_instance_rows(found),
        "found_relationships": relationship_instance_rows(found),
        "counts": _counts(
            (
                unit,
                {
                    "unusable_records": e.unusable,
                    "odd_gleaning_replies": e.odd_glean_replies,
                    "blocked_names": e.blocked,
                    "unreadable_strengths": e.unreadable_strengths,
                    "self_relationships": sum(r.source == r.target for r in e.relationships),
                    "gleaned_entities": sum(r.turn > 0 for r in e.entities),
                    "chunks_without_entity": int(not e.entities),
                },
            )
            for unit, e in found
        ),
    }


def _claimed(found: Sequence[tuple[ExtractedFrom, ClaimRecords]]) -> Tables:
    return {
        "found_claims": claim_rows(found),
        "counts": _counts(
            (unit, {"unusable_claims": c.unusable, "blocked_claims": c.blocked}) for unit, c in found
        ),
    }


def _counts(found: Iterable[tuple[ExtractedFrom, Mapping[str, int]]]) -> pa.Table:
    rows = [(unit.text_unit_id, name, n) for unit, counts in found for name, n in counts.items() if n]
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    return pa.table([pa.array(of, field.type) for of, field in zip(columns, COUNTS, strict=True)], COUNTS)
