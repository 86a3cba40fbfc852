"""The merge: instances shuffled to their keys, and one row for each entity, relationship and claim.

found_* (by chunk) ──shuffle by id range──► *_instances, merged_* and descriptions, each sorted by id
                                                └─ the driver prunes (integer arrays) ─► kept
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.graph.integer_arrays import degrees, id_prefixes
from graphrag_ray.graph.merge import (
    descriptions_by_key,
    merge_entities,
    merge_relationships,
    sort_instances,
)
from graphrag_ray.graph.merge_claims import CLAIM_INSTANCES, merge_claims
from graphrag_ray.graph.prune import keep_entities, keep_relationships
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.extract_stage import COUNTS
from graphrag_ray.indexing.stages.id_columns import Keys, edge_ends, keys
from graphrag_ray.indexing.step_result import Result, add_counts, rows_of
from graphrag_ray.offline.prune_names import lower_case_words, weak_names
from graphrag_ray.reports import report_context
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

ROWS_PER_PARTITION = 400_000
"""Instances that a reducer sorts at once: some 100 MB."""

Ints = npt.NDArray[np.int64]

_ON_DRIVER = pa.schema(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("frequency", pa.int64()),
        ("weak", pa.bool_()),
        ("n_units", pa.int64()),
    ]
)
"""Columns that are read on the driver, which must be there where there is no entity or relationship too."""


def merge(run: Run, corpus: Result, extracted: Result, claimed: Result) -> Result:
    """Tables entity_instances, relationship_instances, entities and relationships (merged, pruned, not
    yet described: columns of graph.merge plus `descriptions`), covariates. One group per partition."""
    prune = run.settings.graph.prune == "on" or (
        run.settings.graph.prune == "auto"
        and run.settings.model(run.settings.model_name("extract")).provider == "offline"
    )
    weight = run.settings.graph.weight
    threshold = run.settings.graph.min_log_likelihood
    report_model = run.settings.model(run.settings.model_name("report"))
    vocabulary = vocabulary_for(report_model.model, report_model.tokenizer).name

    def compute() -> Result:
        lower = run.executor.share(_lower_case_words(run, extracted)) if prune else None
        entities = _shuffle(run, extracted, "found_entities", partial(_reduce_entities, lower))
        relationships = _shuffle(
            run, extracted, "found_relationships", partial(_reduce_relationships, weight)
        )
        n_units = sum(p.rows for g in corpus.tables["text_units"] for p in g)
        tables = entities | relationships
        kept = _prune(run, tables, n_units, threshold) if prune else None
        for kind in ("entities", "relationships"):
            groups = tables.pop(f"merged_{kind}")
            tables[kind] = _keep(run, kind, groups, kept[kind]) if kept else groups
        tables["covariates"], unmatched = _claims(run, claimed, tables["entities"], vocabulary)
        counts = {
            "entities": rows_of(tables["entities"]),
            "relationships": rows_of(tables["relationships"]),
            "claims": rows_of(tables["covariates"]),
            "claims_without_entity": unmatched,
        }
        if kept:
            counts["pruned_entities"] = int((~kept["entities"]).sum())
            counts["pruned_relationships"] = int((~kept["relationships"]).sum())
        return Result(tables, counts)

    units = corpus.tables["text_units"]
    depends_on = [units, extracted, claimed, prune, weight, threshold]
    return run.step("merge", [*depends_on, vocabulary] if claimed.tables else depends_on, compute)


def _shuffle(run: Run, extracted: Result, table: str, reduce: Any) -> dict[str, list[list[Part]]]:
    groups = [g for g in extracted.tables[table] if g]
    partitions = _partitions(groups)
    written = run.executor.shuffle("merge", partial(_partitioned, partitions), groups, reduce, partitions)
    names = reduce(_of(table).empty_table()).keys()
    return {name: [w.get(name, []) for w in written] for name in names}


def _partitions(groups: list[list[Part]]) -> int:
    partitions = 1
    while partitions * ROWS_PER_PARTITION < rows_of(groups):
        partitions *= 2
    return partitions


def _of(table: str) -> pa.Schema:
    return schema.ENTITY_INSTANCES if table == "found_entities" else schema.RELATIONSHIP_INSTANCES


def _partitioned(partitions: int, store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    """Rows with the number of their id range: the partitions' ids ascend, whatever their number."""
    for part in parts:
        table = read_part(store, part)
        prefix = id_prefixes(table.column(0))
        assert prefix is not None, "instance tables hold ids of our own"
        top = (prefix >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)
        yield table.append_column(PARTITION, pa.array(top.astype(np.int32)))


def _lower_case_words(run: Run, extracted: Result) -> Mapping[str, int]:
    """How often the corpus writes each word in lower case: a vocabulary, however large the corpus."""
    counts: Counter[str] = Counter()
    groups = [g for g in extracted.tables["found_entities"] if g]
    for table in run.executor.stream("merge", _count_lower_case, groups):
        for word, n in zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True):
            counts[word] += n
    return counts


def _count_lower_case(store: Store, parts: list[Part]) -> Iterator[pa.Table]:
    texts = read_table(store, parts, ["description"], schema.ENTITY_INSTANCES)["description"]
    counts = lower_case_words(texts.to_pylist())
    columns = {
        "word": pa.array(list(counts), pa.string()),
        "count": pa.array(list(counts.values()), pa.int64()),
    }
    yield pa.table(columns)


def _reduce_entities(lower: Callable[[], Mapping[str, int]] | None, rows: pa.Table) -> Tables:
    instances = _sorted(rows, schema.ENTITY_INSTANCES)
    merged = _with_descriptions(merge_entities(instances), instances)
    weak = weak_names(instances, lower()) if lower else pa.array([], pa.string())
    merged = merged.append_column("weak", pc.is_in(merged["id"], value_set=weak))
    return {"entity_instances": instances, "merged_entities": merged}


def _reduce_relationships(weight: Literal["count", "strength"], rows: pa.Table) -> Tables:
    instances = _sorted(rows, schema.RELATIONSHIP_INSTANCES)
    merged = _with_descriptions(merge_relationships(instances, weight), instances)
    # Pruning needs the number of text units on the driver, not the list.
    merged = merged.append_column("n_units", pc.list_value_length(merged["text_unit_ids"]))
    return {"relationship_instances": instances, "merged_relationships": merged}


def _sorted(rows: pa.Table, of: pa.Schema) -> pa.Table:
    return sort_instances(rows.select(of.names).cast(of))


def _with_descriptions(merged: pa.Table, instances: pa.Table) -> pa.Table:
    batches = list(descriptions_by_key(instances))
    lists = [b["descriptions"] for b in batches]
    column = pa.chunked_array(lists, pa.large_list(pa.large_string()))
    return merged.append_column("descriptions", column)


def _prune(
    run: Run, tables: dict[str, list[list[Part]]], n_units: int, threshold: float
) -> dict[str, npt.NDArray[np.bool_]]:
    """Which entities and relationships stay, from integer arrays on the driver."""
    entities = _columns(run, tables["merged_entities"], ["id", "type", "frequency", "weak"])
    relationships = _columns(run, tables["merged_relationships"], ["n_units"])
    n = entities.num_rows
    edges = [p for g in tables["merged_relationships"] for p in g]
    source, target = edge_ends(run.store, entities["id"], edges)
    frequency = entities["frequency"].to_numpy()
    strong = ~np.asarray(entities["weak"].to_numpy(), dtype=np.bool_)
    n_ab = relationships["n_units"].to_numpy().astype(np.int64)
    between = strong[source] & strong[target]
    kept_edges = np.zeros(len(source), dtype=np.bool_)
    kept_edges[between] = keep_relationships(
        source[between], target[between], n_ab[between], frequency, n_units, threshold
    )
    degree = degrees(source[kept_edges], target[kept_edges], n)
    typed = pc.not_equal(entities["type"], "").to_numpy().astype(np.int64)
    kept = strong & keep_entities(frequency, typed, degree)
    return {"entities": kept, "relationships": kept_edges}


def _keep(run: Run, kind: str, groups: list[list[Part]], kept: npt.NDArray[np.bool_]) -> list[list[Part]]:
    inputs = []
    at = 0
    for group in groups:
        rows = sum(p.rows for p in group)
        inputs.append((group, np.packbits(kept[at : at + rows]), rows))
        at += rows
    return [w.get(kind, []) for w in run.executor.map("prune", partial(_keep_rows, kind), inputs)]


def _keep_rows(kind: str, store: Store, x: tuple[list[Part], Any, int]) -> Iterator[Tables]:
    group, bits, rows = x
    if not group:
        return
    table = read_table(store, group)
    yield {kind: table.filter(pa.array(np.unpackbits(bits, count=rows).astype(np.bool_)))}


def _claims(
    run: Run, claimed: Result, entities: list[list[Part]], vocabulary: str
) -> tuple[list[list[Part]], int]:
    """Covariates with n_tokens (of their record in a context), sorted by id over all parts; and how many
    have a subject that is no entity."""
    groups = [g for g in claimed.tables.get("found_claims", []) if g]
    if not groups:
        return [], 0
    partitions = _partitions(groups)
    known = run.executor.share(np.sort(keys(run.store, [p for g in entities for p in g])))
    reduce = partial(_reduce_claims, known, vocabulary)
    written = run.executor.shuffle("merge", partial(_partitioned, partitions), groups, reduce, partitions)
    counted = {"counts": [w.get("counts", []) for w in written]}
    unmatched = add_counts(run.store, counted).get("claims_without_entity", 0)
    return [w.get("covariates", []) for w in written], unmatched


def _reduce_claims(known: Callable[[], Keys], vocabulary: str, rows: pa.Table) -> Tables:
    instances = rows.select(CLAIM_INSTANCES.names).cast(CLAIM_INSTANCES)
    subjects = instances["subject_entity_id"].unique()
    prefixes, entities = id_prefixes(subjects), known()
    assert prefixes is not None, "subjects have ids of our own"
    at = np.searchsorted(entities, prefixes)
    found = np.append(entities, np.uint64(0))[at] == prefixes
    found &= at < len(entities)
    merged = merge_claims(instances, subjects.filter(pa.array(found)))
    tokens = [
        report_context.record_tokens(report_context.claim_of(row), lambda text: count(text, vocabulary))
        for row in merged.table.to_pylist()
    ]
    counts = [{"name": "claims_without_entity", "value": merged.n_unmatched}]
    return {
        "covariates": merged.table.append_column("n_tokens", pa.array(tokens, pa.int64())),
        "counts": pa.Table.from_pylist(counts, schema=COUNTS),
    }


def _columns(run: Run, groups: list[list[Part]], names: list[str]) -> pa.Table:
    return read_table(run.store, [p for g in groups for p in g], names, _ON_DRIVER)
