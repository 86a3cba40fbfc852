"""Merge instances into one row per entity, relationship and claim.

found_* (by chunk) ──shuffle by id range──► *_instances, sorted by id; merged rows without descriptions
                                                └─ the driver prunes (integer arrays) ─► kept rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.corpus.tokens import count_tokens, vocabulary_for
from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.graph import report_context
from graphrag_ray.graph.community_signatures import content_hashes
from graphrag_ray.graph.integer_arrays import Ints, node_degrees
from graphrag_ray.graph.merge import (
    CLAIM_INSTANCES,
    merge_claims,
    merge_entities,
    merge_relationships,
    null_unmatched_subjects,
    sort_instances,
    type_conflicts,
)
from graphrag_ray.graph.prune import entities_to_retain, relationships_to_retain
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import (
    IDS,
    Keys,
    entity_positions,
    id_keys,
    load_integer_columns,
    row_slices,
)
from graphrag_ray.indexing.step_result import Result, count_rows, join_results, parts_by_input
from graphrag_ray.offline.prune_names import capitalised_counts, lower_case_counts, word_hash
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

Mask = npt.NDArray[np.bool_]

_PRUNING_COLUMNS = {
    "entities": pa.schema(
        [
            *(("id", pa.uint64()), ("type", pa.bool_()), ("frequency", pa.int64())),
            *(("word", pa.uint64()), ("as_name", pa.int64())),
        ]
    ),
    "relationships": pa.schema(
        [("source_id", pa.uint64()), ("target_id", pa.uint64()), ("n_units", pa.int64())]
    ),
}
"""Columns of merged rows that the driver needs to prune."""
N_EXAMPLES = 5
"""Number of entities with conflicting types that the summary of a run names."""
_PRUNING_ONLY = ("word", "as_name", "n_units")
CLAIM_COLUMNS = pa.schema(
    [
        *(("id", pa.uint64()), ("subject_entity_id", pa.uint64())),
        *(("n_tokens", pa.int64()), ("content", pa.uint64())),
    ]
)
"""Columns of covariates on the driver. The id of a subject that is not an entity is 0."""
_LOWER_WORDS = pa.schema([("word", pa.uint64()), ("count", pa.int64())])
"""Hashes of words, and how often texts contain each in lower case."""

RANGE_ROWS: Mapping[str, int] = {
    "entity_instances": 16_384,
    "relationship_instances": 8_192,
    "claim_instances": 8_192,
}
"""Maximum average number of rows in a range. Rebuilding such a range takes a tenth of a second."""
_INSTANCES = {
    "entity_instances": schema.ENTITY_INSTANCES,
    "relationship_instances": schema.RELATIONSHIP_INSTANCES,
    "claim_instances": CLAIM_INSTANCES,
}
BUNDLE_ROWS = 400_000
"""Number of rows that one shuffle task combines, about 100 MB."""


def merge_instances(run: Run, corpus: Result, extraction: Result, extracted_claims: Result) -> Result:
    """Merge instances by id, and prune accidental entities and relationships.

    Returns tables *_instances, entities and relationships (columns of graph.merge), and covariates, with a
    group per range of ids. Pruning adds lower_words, with a group per group of chunks.
    """
    prune = run.settings.graph.prune == "on" or (
        run.settings.graph.prune == "auto"
        and run.settings.model(run.settings.model_name("extract")).provider == "offline"
    )
    weight = run.settings.graph.edge_weight
    threshold = run.settings.graph.min_log_likelihood
    report_model = run.settings.model(run.settings.model_name("report"))
    vocabulary = vocabulary_for(report_model.model, report_model.tokenizer).name

    def compute() -> Result:
        result = Result()
        for kind, table in (("entities", "entity_instances"), ("relationships", "relationship_instances")):
            reduce = partial(_merge_range, kind, weight, prune)
            reduced = (f"merged_{kind}", *(["type_conflicts"] if kind == "entities" else []))
            ranges = _in_ranges(run, extraction.tables[f"found_{kind}"], table, reduced, reduce)
            result = join_results([result, ranges])
        merged = {kind: result.tables.pop(f"merged_{kind}") for kind in ("entities", "relationships")}
        if prune:
            n_units = count_rows(corpus.tables["text_units"])
            result = join_results([result, _prune(run, extraction, merged, n_units, threshold)])
        else:
            result.tables.update(merged)
        claims = _merge_claims(run, extracted_claims, result.tables["entities"], vocabulary)
        tables = result.tables | claims.tables
        counts = {
            "entities": count_rows(tables["entities"]),
            "relationships": count_rows(tables["relationships"]),
            "claims": count_rows(tables["covariates"]),
            **_count_type_conflicts(run, tables),
            **claims.counts,
            **result.counts,
        }
        return Result(tables, counts, made_from=result.made_from)

    depends_on = [corpus.tables["text_units"], extraction, extracted_claims, prune, weight, threshold]
    return run.step("merge", [*depends_on, vocabulary] if extracted_claims.tables else depends_on, compute)


def _count_type_conflicts(run: Run, tables: Mapping[str, list[list[Part]]]) -> dict[str, Any]:
    """Count the entities whose mentions disagree on the type, with examples.

    The examples, with the counts of all types, have the most instances of other types than the chosen one.
    """
    parts = [part for group in tables["type_conflicts"] for part in group]
    if not parts:
        return {}
    kept = load_integer_columns(run.store, tables["entities"], IDS)["id"].to_numpy()
    n, largest = 0, list[tuple[int, str, str]]()
    for part in parts:
        table = read_part(run.store, part)
        table = table.filter(pa.array(np.isin(id_keys(table["id"]), kept)))
        n += len(table)
        n_other = np.array([sum(counts[1:]) for counts in table["counts"].to_pylist()], np.int64)
        for row in table.take(pa.array(np.argsort(-n_other, kind="stable")[:N_EXAMPLES])).to_pylist():
            types = ", ".join(f"{t} {c}" for t, c in zip(row["types"], row["counts"], strict=True))
            largest.append((-sum(row["counts"][1:]), row["title"], types))
        largest = sorted(largest)[:N_EXAMPLES]
    examples = {f"{title} ({types})": -n_other for n_other, title, types in largest}
    return {"type_conflicts": n, "type_conflict_examples": examples}


def _in_ranges(
    run: Run,
    groups: Sequence[Sequence[Part]],
    table: str,
    reduced: Sequence[str],
    reduce: Callable[[pa.Table], Tables],
) -> Result:
    """Shuffle instances into ranges of ids: sorted in `table`, and the results of `reduce` in `reduced`."""
    inputs = [group for group in groups if group]
    total = count_rows(inputs)
    n = n_ranges(table, total)
    make = partial(_reduce, _INSTANCES[table], table, reduce)
    written = run.shuffle("merge", partial(_partition, n), inputs, make, n, n_bundles(total))
    return Result(parts_by_input(written, table, *reduced))


def range_of(prefixes: Keys, ranges: int) -> Ints:
    """Return the number of each id's range, given the id's first 64 bits. Ranges are in ascending order."""
    return ((prefixes >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32)).astype(np.int64)


def n_ranges(table: str, rows: int) -> int:
    return _power_of_two(rows / RANGE_ROWS[table])


def n_bundles(rows: int) -> int:
    return _power_of_two(rows / BUNDLE_ROWS)


def _power_of_two(minimum: float) -> int:
    n = 1
    while n < minimum:
        n *= 2
    return n


def _partition(ranges: int, store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    for part in parts:
        table = read_part(store, part)
        numbers = range_of(id_keys(table.column(0)), ranges).astype(np.int32)
        yield table.append_column(PARTITION, pa.array(numbers))


def _reduce(columns: pa.Schema, name: str, reduce: Callable[[pa.Table], Tables], rows: pa.Table) -> Tables:
    instances = sort_instances(rows.select(columns.names).cast(columns))
    return {name: instances, **reduce(instances)}


def _merge_range(kind: str, weight: Literal["count", "strength"], prune: bool, instances: pa.Table) -> Tables:
    """Merge the instances of a range. `prune` adds the columns that pruning needs."""
    is_entity = kind == "entities"
    merged = merge_entities(instances) if is_entity else merge_relationships(instances, weight)
    if prune and is_entity:
        _, words, counts = capitalised_counts(instances)
        hashes = pa.array([word_hash(w) if w else 0 for w in words], pa.uint64())
        merged = merged.append_column("word", hashes)
        merged = merged.append_column("as_name", pa.array(counts, pa.int64()))
    elif prune:
        merged = merged.append_column("n_units", pc.list_value_length(merged["text_unit_ids"]))
    return {f"merged_{kind}": merged} | ({"type_conflicts": type_conflicts(instances)} if is_entity else {})


def _prune(
    run: Run, extraction: Result, merged: Mapping[str, list[list[Part]]], n_units: int, threshold: float
) -> Result:
    """Decide from integer arrays which entities and relationships stay, and filter each range."""
    groups = extraction.tables["found_entities"]
    plan = run.reuse_plan("merge", groups, "lower_words", ("lower_words",))
    words = plan.merge_new(run.store, run.map("merge", _count_lower_case, plan.new_inputs))
    counted = read_table(run.store, words.parts("lower_words"), None, _LOWER_WORDS)
    sums = counted.group_by("word", use_threads=False).aggregate([("count", "sum")]).sort_by("word")
    lower = sums.filter(pc.not_equal(sums["count_sum"], 0)).rename_columns({"count_sum": "count"})
    columns = {
        kind: load_integer_columns(run.store, ranges, _PRUNING_COLUMNS[kind])
        for kind, ranges in merged.items()
    }
    masks = _pruning_masks(lower, columns["entities"], columns["relationships"], n_units, threshold)
    results = [words]
    for kind, ranges in merged.items():
        results.append(_apply_mask(run, kind, ranges, masks[kind], _filter))
    counts = {f"pruned_{kind}": int((~mask).sum()) for kind, mask in masks.items()}
    return replace(join_results(results), counts=counts)


def _count_lower_case(store: Store, parts: list[Part]) -> Iterator[Tables]:
    texts = read_table(store, parts, ["description"], schema.ENTITY_INSTANCES)["description"]
    counts = lower_case_counts(texts.to_pylist())
    columns = [pa.array(map(word_hash, counts), pa.uint64()), pa.array(counts.values(), pa.int64())]
    yield {"lower_words": pa.table(columns, schema=_LOWER_WORDS).sort_by("word")}


def _pruning_masks(
    lower: pa.Table, entities: pa.Table, relationships: pa.Table, n_units: int, threshold: float
) -> dict[str, Mask]:
    ids, frequency = entities["id"].to_numpy(), entities["frequency"].to_numpy()
    ends = (relationships[name].to_numpy() for name in ("source_id", "target_id"))
    source, target = (entity_positions(ids, keys) for keys in ends)
    # A name is weak if it is one word that the corpus writes in lower case more often than as a name.
    words, counts, word = (column.to_numpy() for column in (lower["word"], lower["count"], entities["word"]))
    position = np.minimum(np.searchsorted(words, word), max(len(words) - 1, 0))
    ordinary = np.where(words[position] == word, counts[position], 0) if len(words) else np.zeros_like(word)
    strong: Mask = (word == 0) | (ordinary <= entities["as_name"].to_numpy())
    units = relationships["n_units"].to_numpy()
    between = strong[source] & strong[target]
    kept_edges = np.zeros(len(source), dtype=np.bool_)
    kept_edges[between] = relationships_to_retain(
        source[between], target[between], units[between], frequency, n_units, threshold
    )
    degree = node_degrees(source[kept_edges], target[kept_edges], len(ids))
    stays = strong & entities_to_retain(frequency, entities["type"].to_numpy().astype(np.int64), degree)
    return {"entities": stays, "relationships": kept_edges}


def _apply_mask(
    run: Run, kind: str, ranges: Sequence[list[Part]], mask: Mask, make: Callable[[pa.Table, Mask], pa.Table]
) -> Result:
    """Write a table by calling `make` with each range of merged rows and its slice of the mask."""
    masks = (mask[span] for span in row_slices(ranges))
    written = run.map("merge", partial(_mask_range, kind, make), list(zip(ranges, masks, strict=True)))
    return Result(parts_by_input(written, kind))


def _mask_range(
    kind: str, make: Callable[[pa.Table, Mask], pa.Table], store: Store, pair: tuple[list[Part], Mask]
) -> Iterator[Tables]:
    merged, mask = pair
    if merged:
        yield {kind: make(read_table(store, merged), mask)}


def _filter(merged: pa.Table, stays: Mask) -> pa.Table:
    columns = [name for name in merged.column_names if name not in _PRUNING_ONLY]
    return merged.select(columns).filter(pa.array(stays))


def _merge_claims(run: Run, extracted_claims: Result, entities: list[list[Part]], vocabulary: str) -> Result:
    """Return claim_instances, and covariates with n_tokens (of their records in contexts) and content."""
    if not any(extracted_claims.tables.get("found_claims", [])):
        return Result({"covariates": []}, {"claims_without_entity": 0})
    reduce = partial(_reduce_claims, vocabulary)
    groups = extracted_claims.tables["found_claims"]
    result = _in_ranges(run, groups, "claim_instances", ["merged_covariates"], reduce)
    merged = result.tables.pop("merged_covariates")
    subjects = load_integer_columns(run.store, merged, pa.schema([("subject_entity_id", pa.uint64())]))
    ids = load_integer_columns(run.store, entities, IDS)["id"].to_numpy()
    is_entity = np.isin(subjects["subject_entity_id"].to_numpy(), ids)
    covariates = _apply_mask(run, "covariates", merged, is_entity, _with_subjects)
    counts = {"claims_without_entity": int((~is_entity).sum())}
    return Result(covariates.tables | result.tables, counts)


def _reduce_claims(vocabulary: str, instances: pa.Table) -> Tables:
    merged = merge_claims(instances)
    tokens = [
        report_context.count_record_tokens(
            report_context.claim_record(row), lambda text: count_tokens(text, vocabulary)
        )
        for row in merged.to_pylist()
    ]
    return {"merged_covariates": merged.append_column("n_tokens", pa.array(tokens, pa.int64()))}


def _with_subjects(merged: pa.Table, is_entity: Mask) -> pa.Table:
    claims = null_unmatched_subjects(merged, is_entity)
    columns = claims.select([name for name in schema.COVARIATES.names if name != "human_readable_id"])
    return claims.append_column("content", content_hashes(columns))
