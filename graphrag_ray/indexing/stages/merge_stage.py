"""The merge: instances brought to their keys, and one row for each entity, relationship and claim.

found_* (by chunk) ──shuffle by id range──► *_instances, sorted by id; merged rows with their descriptions
                                                └─ the driver prunes (integer arrays) ─► kept
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.schema import COVARIATES
from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.graph import report_context
from graphrag_ray.graph.integer_arrays import degrees
from graphrag_ray.graph.merge import (
    CLAIM_INSTANCES,
    descriptions_by_key,
    merge_claims,
    merge_entities,
    merge_relationships,
    sort_instances,
    with_entities,
)
from graphrag_ray.graph.prune import keep_entities, keep_relationships
from graphrag_ray.graph.signatures import content_hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import GROUP, IDS, Keys, columns_of, places_of, prefixes_of
from graphrag_ray.indexing.step_result import Result, by_input, joined, rows_of
from graphrag_ray.offline.prune_names import lower_case_words, word_hash, written_as_names
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_STATISTICS = {
    "entities": pa.schema(
        [
            ("id", pa.uint64()),
            ("type", pa.bool_()),
            ("frequency", pa.int64()),
            ("word", pa.uint64()),
            ("as_name", pa.int64()),
        ]
    ),
    "relationships": pa.schema(
        [("source_id", pa.uint64()), ("target_id", pa.uint64()), ("n_units", pa.int64())]
    ),
}
"""Columns of merged rows by which is pruned."""
CLAIM_COLUMNS = pa.schema(
    [
        ("id", pa.uint64()),
        ("subject_entity_id", pa.uint64()),
        ("n_tokens", pa.int64()),
        ("content", pa.uint64()),
    ]
)
"""Columns of covariates for the driver. A subject that is no entity is 0."""
_EVIDENCE = ("word", "as_name", "n_units")
"""Those that are for nothing else."""
_LOWER = pa.schema([("word", pa.uint64()), ("count", pa.int64())])
"""How often chunks, or all of them, hold each word (a hash of it) in lower case."""

RANGE_ROWS: Mapping[str, int] = {
    "entity_instances": 16_384,
    "relationship_instances": 8_192,
    "claim_instances": 8_192,
}
"""Rows that a range has at most, on average: a tenth of a second to make it anew."""
_INSTANCES = {
    "entity_instances": schema.ENTITY_INSTANCES,
    "relationship_instances": schema.RELATIONSHIP_INSTANCES,
    "claim_instances": CLAIM_INSTANCES,
}
BUNDLE_ROWS = 400_000
"""Rows that a task brings together: some 100 MB."""


def _merged(kind: str, weight: Literal["count", "strength"], prune: bool, instances: pa.Table) -> Tables:
    """The merged rows of a range, with their descriptions. weight: of relationships; prune: what pruning asks
    of them is needed."""
    is_entity = kind == "entities"
    merged = merge_entities(instances) if is_entity else merge_relationships(instances, weight)
    lists = [batch["descriptions"] for batch in descriptions_by_key(instances)]
    merged = merged.append_column("descriptions", pa.chunked_array(lists, pa.large_list(pa.large_string())))
    if prune and is_entity:
        _, words, counts = written_as_names(instances)
        hashes = pa.array([word_hash(w) if w else 0 for w in words], pa.uint64())
        merged = merged.append_column("word", hashes)
        merged = merged.append_column("as_name", pa.array(counts, pa.int64()))
    elif prune:
        merged = merged.append_column("n_units", pc.list_value_length(merged["text_unit_ids"]))
    return {f"merged_{kind}": merged}


def merge(run: Run, corpus: Result, extracted: Result, claimed: Result) -> Result:
    """Tables entity_instances, relationship_instances, entities and relationships (merged, pruned, not
    yet described: columns of graph.merge plus `descriptions`), covariates. One group per range of ids.
    claim_instances and, of parts of chunks, lower_words are kept beside them."""
    prune = run.settings.graph.prune == "on" or (
        run.settings.graph.prune == "auto"
        and run.settings.model(run.settings.model_name("extract")).provider == "offline"
    )
    weight = run.settings.graph.weight
    threshold = run.settings.graph.min_log_likelihood
    report_model = run.settings.model(run.settings.model_name("report"))
    vocabulary = vocabulary_for(report_model.model, report_model.tokenizer).name

    def compute() -> Result:
        result = Result()
        for kind, table in (("entities", "entity_instances"), ("relationships", "relationship_instances")):
            found, reduce = extracted.tables[f"found_{kind}"], partial(_merged, kind, weight, prune)
            result = joined([result, in_ranges(run, found, table, f"merged_{kind}", reduce)])
        merged = {kind: result.tables.pop(f"merged_{kind}") for kind in ("entities", "relationships")}
        if prune:
            n_units = rows_of(corpus.tables["text_units"])
            result = joined([result, _pruned(run, extracted, merged, n_units, threshold)])
        else:
            result.tables.update(merged)
        claims = _claims(run, claimed, result.tables["entities"], vocabulary)
        tables = result.tables | claims.tables
        counts = {
            "entities": rows_of(tables["entities"]),
            "relationships": rows_of(tables["relationships"]),
            "claims": rows_of(tables["covariates"]),
            **claims.counts,
            **result.counts,
        }
        return Result(tables, counts, made_from=result.made_from)

    units = corpus.tables["text_units"]
    depends_on = [units, extracted, claimed, prune, weight, threshold]
    return run.step("merge", [*depends_on, vocabulary] if claimed.tables else depends_on, compute)


def in_ranges(
    run: Run, groups: Sequence[Sequence[Part]], table: str, reduced: str, reduce: Callable[[pa.Table], Tables]
) -> Result:
    """Tables `table` of instances in ranges of ids, and `reduced` of what `reduce` makes of each range."""
    found = [group for group in groups if group]
    total = rows_of(found)
    n = n_ranges(table, total)
    make = partial(_reduce, _INSTANCES[table], table, reduce)
    written = run.shuffle("merge", partial(partitioned, n), found, make, n, n_bundles(total))
    return Result(by_input(written, table, reduced))


def range_of(prefixes: Keys, ranges: int) -> Ints:
    """The range of each id, which is given by its first 64 bits."""
    return ((prefixes >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32)).astype(np.int64)


def n_ranges(table: str, rows: int) -> int:
    return _power_of_two(rows, RANGE_ROWS[table])


def n_bundles(rows: int) -> int:
    return _power_of_two(rows, BUNDLE_ROWS)


def _power_of_two(rows: int, most: int) -> int:
    n = 1
    while n * most < rows:
        n *= 2
    return n


def partitioned(ranges: int, store: Store, parts: Sequence[Part]) -> Iterator[pa.Table]:
    """Rows with the number of their id range: the ranges' ids ascend, whatever their number."""
    for part in parts:
        table = read_part(store, part)
        of = range_of(prefixes_of(table.column(0)), ranges).astype(np.int32)
        yield table.append_column(PARTITION, pa.array(of))


def _reduce(of: pa.Schema, name: str, reduce: Callable[[pa.Table], Tables], rows: pa.Table) -> Tables:
    instances = sort_instances(rows.select(of.names).cast(of))
    return {name: instances, **reduce(instances)}


def _pruned(
    run: Run,
    extracted: Result,
    merged: Mapping[str, list[list[Part]]],
    n_units: int,
    threshold: float,
) -> Result:
    """Tables entities and relationships, of each range what stays; and lower_words, by part of chunks. In the
    counts, how many rows went."""
    groups = extracted.tables["found_entities"]
    known = run.taken_over("merge", groups, "lower_words", ("lower_words",))
    words = known.with_new(run.store, run.map("merge", _count_lower_case, known.new))
    counted = read_table(run.store, words.parts("lower_words"), None, _LOWER)
    sums = counted.group_by("word", use_threads=False).aggregate([("count", "sum")]).sort_by("word")
    lower = sums.filter(pc.not_equal(sums["count_sum"], 0)).rename_columns({"count_sum": "count"})
    statistics = {kind: columns_of(run.store, of, _STATISTICS[kind]) for kind, of in merged.items()}
    kept = _kept(lower, statistics["entities"], statistics["relationships"], n_units, threshold)
    results = [words]
    for kind, of in merged.items():
        results.append(_told(run, kind, of, statistics[kind][GROUP].to_numpy(), kept[kind], _filtered))
    counts = {f"pruned_{kind}": int((~of).sum()) for kind, of in kept.items()}
    return replace(joined(results), counts=counts)


def _count_lower_case(store: Store, parts: list[Part]) -> Iterator[Tables]:
    texts = read_table(store, parts, ["description"], schema.ENTITY_INSTANCES)["description"]
    counts = lower_case_words(texts.to_pylist())
    columns = [pa.array(map(word_hash, counts), pa.uint64()), pa.array(counts.values(), pa.int64())]
    yield {"lower_words": pa.table(columns, schema=_LOWER).sort_by("word")}


def _kept(
    lower: pa.Table, entities: pa.Table, relationships: pa.Table, n_units: int, threshold: float
) -> dict[str, Mask]:
    """Which entities and relationships stay, from integer arrays on the driver."""
    ids, frequency = entities["id"].to_numpy(), entities["frequency"].to_numpy()
    source, target = (places_of(ids, relationships[name].to_numpy()) for name in ("source_id", "target_id"))
    # Weak are names of one word that the corpus writes in lower case more often than as a name.
    words, counts, wanted = (of.to_numpy() for of in (lower["word"], lower["count"], entities["word"]))
    at = np.minimum(np.searchsorted(words, wanted), max(len(words) - 1, 0))
    ordinary = np.where(words[at] == wanted, counts[at], 0) if len(words) else np.zeros(len(wanted), np.int64)
    strong: Mask = (wanted == 0) | (ordinary <= entities["as_name"].to_numpy())
    n_ab = relationships["n_units"].to_numpy()
    between = strong[source] & strong[target]
    kept_edges = np.zeros(len(source), dtype=np.bool_)
    kept_edges[between] = keep_relationships(
        source[between], target[between], n_ab[between], frequency, n_units, threshold
    )
    degree = degrees(source[kept_edges], target[kept_edges], len(ids))
    typed = entities["type"].to_numpy().astype(np.int64)
    kept = strong & keep_entities(frequency, typed, degree)
    return {"entities": kept, "relationships": kept_edges}


def _told(
    run: Run,
    kind: str,
    merged: Sequence[list[Part]],
    range_of: Ints,
    mask: Mask,
    make: Callable[[pa.Table, Mask], pa.Table],
) -> Result:
    """The table of a kind, made of the merged rows of each range and of what the driver tells about each row.
    range_of, mask: of the merged rows of all ranges."""
    ends = np.searchsorted(range_of, np.arange(len(merged)), "right")
    masks = [mask[start:end] for start, end in pairwise([0, *ends.tolist()])]
    written = run.map("merge", partial(_made, kind, make), list(zip(merged, masks, strict=True)))
    return Result(by_input(written, kind))


def _made(
    kind: str, make: Callable[[pa.Table, Mask], pa.Table], store: Store, x: tuple[list[Part], Mask]
) -> Iterator[Tables]:
    merged, mask = x
    if merged:
        yield {kind: make(read_table(store, merged), mask)}


def _filtered(merged: pa.Table, stays: Mask) -> pa.Table:
    columns = [name for name in merged.column_names if name not in _EVIDENCE]
    return merged.select(columns).filter(pa.array(stays))


def _claims(run: Run, claimed: Result, entities: list[list[Part]], vocabulary: str) -> Result:
    """Covariates with n_tokens (of their record in a context) and content, and claim_instances, by id range;
    in the counts, how many have a subject that is no entity."""
    if not any(claimed.tables.get("found_claims", [])):
        return Result({"covariates": []}, {"claims_without_entity": 0})
    reduce = partial(_reduce_claims, vocabulary)
    result = in_ranges(run, claimed.tables["found_claims"], "claim_instances", "merged_covariates", reduce)
    merged = result.tables.pop("merged_covariates")
    subjects = columns_of(run.store, merged, pa.schema([("subject_entity_id", pa.uint64())]))
    ids = columns_of(run.store, entities, IDS)["id"].to_numpy()
    is_entity = np.isin(subjects["subject_entity_id"].to_numpy(), ids)
    kept = _told(run, "covariates", merged, subjects[GROUP].to_numpy(), is_entity, _matched)
    counts = {"claims_without_entity": int((~is_entity).sum())}
    return Result(kept.tables | result.tables, counts)


def _reduce_claims(vocabulary: str, instances: pa.Table) -> Tables:
    merged = merge_claims(instances)
    tokens = [
        report_context.record_tokens(report_context.claim_of(row), lambda text: count(text, vocabulary))
        for row in merged.to_pylist()
    ]
    return {"merged_covariates": merged.append_column("n_tokens", pa.array(tokens, pa.int64()))}


def _matched(merged: pa.Table, is_entity: Mask) -> pa.Table:
    claims = with_entities(merged, is_entity)
    shown = claims.select([name for name in COVARIATES.names if name != "human_readable_id"])
    return claims.append_column("content", content_hashes(shown))
