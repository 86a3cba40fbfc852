"""Extraction and claims: one dialogue a chunk, what it found written beside the chunk's own part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.base.messages import Dialogue
from graphrag_ray.engine.executor import Tables
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.extract.claims_dialogue import ClaimRecords, ClaimsSpec, claims, claims_spec
from graphrag_ray.extract.extraction_dialogue import (
    ExtractedRecords,
    ExtractSpec,
    ShownChunk,
    extract,
    extract_spec,
)
from graphrag_ray.graph.aliases import EntityNames
from graphrag_ray.graph.merge import ExtractedFrom, entity_instance_rows, relationship_instance_rows
from graphrag_ray.graph.merge_claims import claim_rows
from graphrag_ray.indexing.run import Run, failure_rows, replayed
from graphrag_ray.indexing.step_result import Result, add_counts, passing, rows_of, spec_key
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import MAX_PART_BYTES, Part, read_part, read_table

UNIT_COLUMNS = ["id", "document_id", "position", "header", "text"]

COUNTS = pa.schema([("name", pa.string()), ("value", pa.int64())])
"""What could not be used, added up over chunks and shown in the run's summary."""


def extract_graph(run: Run, corpus: Result, names: EntityNames) -> Result:
    """Entity and relationship instances of every chunk (paper 3.1.2), aligned with the chunks' parts.

    Tables found_entities, found_relationships (schema.*_INSTANCES in the order of the chunks), counts,
    failures.
    """
    spec = extract_spec(run.prompts, run.settings, names.key)
    work = Work("extract", partial(_start_extract, spec), _label, turns=_turns(spec.max_gleanings))

    units = corpus.tables["text_units"]
    depends_on = [spec_key(spec), names.to_json()]
    tables = ("found_entities", "found_relationships", "counts", "failures")

    def compute() -> Result:
        run.items["extract"] = rows_of(units), "chunks"
        known = run.taken_over("extract", units, depends_on, tables, journal=work.name)
        index = run.sweep_rows(work, _load_units, known.new, rows_of(known.new))
        written = run.executor.map("extract", partial(_collect_extractions, work, index), known.new)
        return _added_up(run, "extract", known.with_new(run.store, written))

    return run.step("extract", [units, *depends_on], compute, work.name)


def extract_claims(run: Run, corpus: Result, extracted: Result, names: EntityNames) -> Result:
    """Claims about the extracted entities of every chunk (paper 3.1.2): found_claims, counts, failures.

    Nothing where claims are off. The names come from the extraction, so a claim's subject is an entity.
    """
    if not run.settings.claims.enabled:
        return Result()
    spec = claims_spec(run.prompts, run.settings, names.key)
    work = Work("claims", partial(_start_claims, spec), _label)

    units = corpus.tables["text_units"]
    inputs = list(zip(units, extracted.tables["found_entities"], strict=True))
    depends_on = [spec_key(spec), names.to_json()]

    def compute() -> Result:
        tables = ("found_claims", "counts", "failures")
        run.items["claims"] = rows_of(units), "chunks"
        known = run.taken_over("claims", inputs, depends_on, tables, journal=work.name)
        n_rows = sum(rows_of([of]) for of, _ in known.new)
        index = run.sweep_rows(work, _load_units_with_names, known.new, n_rows)
        written = run.executor.map("claims", partial(_collect_claims, work, index), known.new)
        return _added_up(run, "claims", known.with_new(run.store, written))

    return run.step("claims", [units, extracted, *depends_on], compute, work.name)


def _added_up(run: Run, step: str, result: Result) -> Result:
    """With the counts of all chunks."""
    before = None if run.damaged else run.before(step)
    counts = add_counts(run.store, result.tables, before)
    return replace(result, counts=counts, final=not passing(run.store, result.tables))


def _start_extract(spec: ExtractSpec, store: Store, row: Row) -> Dialogue[ExtractedRecords]:
    return extract(ShownChunk(row["text"], row["header"] or ""), spec)


def _start_claims(spec: ClaimsSpec, store: Store, row: Row) -> Dialogue[ClaimRecords]:
    return claims(ShownChunk(row["text"], row["header"] or ""), row["names"], spec)


def _label(row: Row) -> tuple[str, str]:
    return row["id"], row["document_id"]


def _load_units(store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    for part in parts:
        yield read_part(store, part, UNIT_COLUMNS)


def _load_units_with_names(store: Store, x: tuple[list[Part], list[Part]]) -> Iterator[pa.Table]:
    """Chunks with the entity keys extracted from each, in the order of the records."""
    units, entities = x
    found = read_table(store, entities, ["text_unit_id", "title"], schema.ENTITY_INSTANCES)
    names: dict[str, list[str]] = {}
    for unit, title in zip(found["text_unit_id"].to_pylist(), found["title"].to_pylist(), strict=True):
        names.setdefault(unit, []).append(title)
    for table in _load_units(store, units):
        column = [names.get(unit, []) for unit in table["id"].to_pylist()]
        yield table.append_column("names", pa.array(column, pa.list_(pa.string())))


def _collect_extractions(
    work: Work[ExtractedRecords], index: Callable[[], JournalIndex], store: Store, parts: list[Part]
) -> Iterator[Tables]:
    def tables() -> Iterator[Tables]:
        for batch in replayed(work, index(), store, _load_units(store, parts)):
            found = _units(batch)
            relationships = relationship_instance_rows(found)
            yield {
                "found_entities": entity_instance_rows(found),
                "found_relationships": relationships.table,
                "counts": _counts(
                    unusable_records=sum(e.unusable for _, e in found),
                    odd_gleaning_replies=sum(e.odd_glean_replies for _, e in found),
                    blocked_names=sum(e.blocked for _, e in found),
                    unreadable_strengths=sum(e.unreadable_strengths for _, e in found),
                    self_relationships=relationships.n_self_relationships,
                    gleaned_entities=sum(r.turn > 0 for _, e in found for r in e.entities),
                    chunks_without_entity=sum(not e.entities for _, e in found),
                ),
                "failures": failure_rows("extract", work, batch),
            }

    return _gathered(tables())


def _collect_claims(
    work: Work[ClaimRecords],
    index: Callable[[], JournalIndex],
    store: Store,
    x: tuple[list[Part], list[Part]],
) -> Iterator[Tables]:
    def tables() -> Iterator[Tables]:
        for batch in replayed(work, index(), store, _load_units_with_names(store, x)):
            found = _units(batch)
            yield {
                "found_claims": claim_rows(found),
                "counts": _counts(
                    unusable_claims=sum(c.unusable for _, c in found),
                    blocked_claims=sum(c.blocked for _, c in found),
                ),
                "failures": failure_rows("claims", work, batch),
            }

    return _gathered(tables())


def _gathered(batches: Iterable[Tables]) -> Iterator[Tables]:
    """The same rows in few parts, of MAX_PART_BYTES and a batch at most, and the counts added up: parts of a
    large corpus are named one by one in its manifest."""
    held: dict[str, list[pa.Table]] = {}
    counts: Counter[str] = Counter()
    for batch in batches:
        for name, table in batch.items():
            if name != "counts":
                held.setdefault(name, []).append(table)
                continue
            for row in table.to_pylist():
                counts[row["name"]] += row["value"]
        if sum(table.nbytes for tables in held.values() for table in tables) >= MAX_PART_BYTES:
            yield {name: pa.concat_tables(tables) for name, tables in held.items()}
            held = {}
    yield {name: pa.concat_tables(tables) for name, tables in held.items()} | {"counts": _counts(**counts)}


def _units(batch: Iterable[tuple[Row, Outcome[Any]]]) -> list[tuple[ExtractedFrom, Any]]:
    return [
        (ExtractedFrom(row["id"], row["document_id"], row["position"]), outcome.result)
        for row, outcome in batch
        if outcome.status == "complete"
    ]


def _counts(**counts: int) -> pa.Table:
    rows: list[Mapping[str, Any]] = [{"name": n, "value": v} for n, v in counts.items() if v]
    return pa.Table.from_pylist(rows, schema=COUNTS)


def _turns(rounds: int) -> float:
    """Calls of a chunk, as long as none has told: each gleaning question is answered with yes half the time,
    and then gleaned."""
    return 1.0 + sum(1.5 * 0.5**i for i in range(rounds))
