"""The merge: instances brought to their keys, and one row for each entity, relationship and claim.

found_* (by chunk) ──by id range (`instance_ranges.py`)──► *_instances; merged rows with their descriptions
                                                └─ the driver prunes (integer arrays) ─► kept

A range is merged again only where its instances changed, or what is pruned of it. What pruning needs of all
ranges are small tables of integers, of which the rows of a range are replaced when it changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import STAGES
from graphrag_ray.base.row_hashes import digests, row_hashes
from graphrag_ray.base.schema import COVARIATES
from graphrag_ray.corpus.tokens import count, vocabulary_for
from graphrag_ray.engine.executor import Tables
from graphrag_ray.graph import report_context
from graphrag_ray.graph.integer_arrays import degrees
from graphrag_ray.graph.merge import (
    descriptions_by_key,
    merge_claims,
    merge_entities,
    merge_relationships,
    with_entities,
)
from graphrag_ray.graph.prune import keep_entities, keep_relationships
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.driver_columns import GROUP, IDS, columns_of, columns_since, places_of
from graphrag_ray.indexing.stages.instance_ranges import INSTANCES, Ranges, in_ranges
from graphrag_ray.indexing.step_result import Result, by_input, joined, rows_of
from graphrag_ray.offline.prune_names import lower_case_words, word_hash, written_as_names
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table, read_table_each

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
    "covariates": pa.schema([("subject_entity_id", pa.uint64())]),
}
"""Columns of merged rows by which is pruned, or by which claims are matched."""
CLAIM_COLUMNS = pa.schema(
    [
        ("id", pa.uint64()),
        ("subject_entity_id", pa.uint64()),
        ("n_tokens", pa.int64()),
        ("content", pa.uint64()),
    ]
)
"""Table covariate_columns of the step, for the driver. A subject that is no entity is 0."""
_EVIDENCE = ("word", "as_name", "n_units")
"""Those that are for nothing else."""
_LOWER = pa.schema([("word", pa.uint64()), ("count", pa.int64())])
"""How often chunks, or all of them, hold each word (a hash of it) in lower case."""


@dataclass(frozen=True)
class _Reducing:
    """How rows of a kind are merged. weight: of relationships; prune: what is asked of them later."""

    kind: str
    weight: Literal["count", "strength"]
    prune: bool

    def __call__(self, instances: pa.Table) -> Tables:
        """The merged rows of a range, with their descriptions."""
        is_entity = self.kind == "entities"
        merged = merge_entities(instances) if is_entity else merge_relationships(instances, self.weight)
        merged = _with_descriptions(merged, instances)
        if self.prune and is_entity:
            _, words, counts = written_as_names(instances)
            hashes = pa.array([word_hash(w) if w else 0 for w in words], pa.uint64())
            merged = merged.append_column("word", hashes)
            merged = merged.append_column("as_name", pa.array(counts, pa.int64()))
        elif self.prune:
            merged = merged.append_column("n_units", pc.list_value_length(merged["text_unit_ids"]))
        return {f"merged_{self.kind}": merged}


def merge(run: Run, corpus: Result, extracted: Result, claimed: Result) -> Result:
    """Tables entity_instances, relationship_instances, entities and relationships (merged, pruned, not
    yet described: columns of graph.merge plus `descriptions`), covariates. One group per range of ids. More
    tables are for the next run: claim_instances, *_statistics, entity_ids, lower_words, lower_all; and
    covariate_columns."""
    prune = run.settings.graph.prune == "on" or (
        run.settings.graph.prune == "auto"
        and run.settings.model(run.settings.model_name("extract")).provider == "offline"
    )
    weight = run.settings.graph.weight
    threshold = run.settings.graph.min_log_likelihood
    report_model = run.settings.model(run.settings.model_name("report"))
    vocabulary = vocabulary_for(report_model.model, report_model.tokenizer).name

    def compute() -> Result:
        ranges = {}
        for kind, table in (("entities", "entity_instances"), ("relationships", "relationship_instances")):
            reducing = _Reducing(kind, weight, prune)
            how = [STAGES["merge"].version, reducing]
            beside = f"{kind}_statistics" if prune else kind
            ranges[kind] = in_ranges(run, "extract", extracted, f"found_{kind}", table, how, reducing, beside)
        result = Result(
            {of.table: of.parts for of in ranges.values()},
            made_from={of.table: [of.how] for of in ranges.values()},
        )
        if prune:
            n_units = rows_of(corpus.tables["text_units"])
            result = joined([result, _pruned(run, extracted, ranges, n_units, threshold)])
        else:
            result.tables.update({kind: _merged(kind, of) for kind, of in ranges.items()})
        claims = _claims(run, claimed, result.tables["entities"], vocabulary)
        tables = result.tables | claims.tables
        counts = {
            "entities": rows_of(tables["entities"]),
            "relationships": rows_of(tables["relationships"]),
            "claims": rows_of(tables["covariates"]),
            **claims.counts,
            **result.counts,
        }
        return Result(tables, counts, made_from=result.made_from | claims.made_from)

    units = corpus.tables["text_units"]
    depends_on = [units, extracted, claimed, prune, weight, threshold]
    return run.step("merge", [*depends_on, vocabulary] if claimed.tables else depends_on, compute)


def _merged(kind: str, ranges: Ranges) -> list[list[Part]]:
    """The merged rows of each range, the parent's where it is the parent's."""
    old = ranges.before.tables[kind] if ranges.before else []
    pairs = enumerate(zip(ranges.made, ranges.kept, strict=True))
    return [old[at] if kept else made.get(f"merged_{kind}", []) for at, (made, kept) in pairs]


def _with_descriptions(merged: pa.Table, instances: pa.Table) -> pa.Table:
    batches = list(descriptions_by_key(instances))
    lists = [b["descriptions"] for b in batches]
    column = pa.chunked_array(lists, pa.large_list(pa.large_string()))
    return merged.append_column("descriptions", column)


def _pruned(
    run: Run, extracted: Result, ranges: Mapping[str, Ranges], n_units: int, threshold: float
) -> Result:
    """Tables entities and relationships, of each range what stays; and what the next run needs of those that
    it does not read: lower_words by part of chunks, lower_all, entities_statistics, relationships_statistics.
    In the counts, how many rows went."""
    words = _lower_words(run, extracted)
    statistics = {kind: _statistics(run, kind, of) for kind, of in ranges.items()}
    lower = read_table(run.store, words.parts("lower_all"), None, _LOWER)
    kept = _kept(lower, statistics["entities"], statistics["relationships"], n_units, threshold)
    results = [words]
    for kind, of in ranges.items():
        results.append(_told(run, kind, of, statistics[kind][GROUP].to_numpy(), kept[kind], _filtered))
        written = run.executor.map("merge", _just, [{f"{kind}_statistics": statistics[kind]}])
        results.append(Result(by_input(written, f"{kind}_statistics")))
    counts = {f"pruned_{kind}": int((~of).sum()) for kind, of in kept.items()}
    return replace(joined(results), counts=counts)


def _lower_words(run: Run, extracted: Result) -> Result:
    """Tables lower_words, by part of chunks, and lower_all, which is their sum: a vocabulary, however large
    the corpus."""
    groups = extracted.tables["found_entities"]
    known = run.taken_over("merge", groups, "lower_words", ("lower_words",))
    words = known.with_new(run.store, run.executor.map("merge", _count_lower_case, known.new))
    before = run.before("merge")
    names = ("lower_words", "lower_all")
    if before is None or not before.parts(names[1]) or run.lost([p for n in names for p in before.parts(n)]):
        before = Result()
    now, then = Counter(words.parts("lower_words")), Counter(before.parts("lower_words"))
    come = [*before.parts("lower_all"), *(now - then).elements()]
    went = [*(then - now).elements()]
    tables = [_LOWER.empty_table(), *read_table_each(run.store, come, _LOWER.names)]
    for table in read_table_each(run.store, went, _LOWER.names):
        tables.append(table.set_column(1, "count", pc.negate(table["count"])))
    totals = pa.concat_tables(tables)
    written = run.executor.map("merge", _just, [{"lower_all": _sums(totals)}])
    return replace(words, tables=words.tables | by_input(written, "lower_all"))


def _sums(words: pa.Table) -> pa.Table:
    """By word, those whose counts do not add up to nothing."""
    sums = words.group_by("word", use_threads=False).aggregate([("count", "sum")]).sort_by("word")
    return sums.filter(pc.not_equal(sums["count_sum"], 0)).rename_columns({"count_sum": "count"})


def _count_lower_case(store: Store, parts: list[Part]) -> Iterator[Tables]:
    texts = read_table(store, parts, ["description"], schema.ENTITY_INSTANCES)["description"]
    counts = lower_case_words(texts.to_pylist())
    columns = [pa.array(map(word_hash, counts), pa.uint64()), pa.array(counts.values(), pa.int64())]
    yield {"lower_words": pa.table(columns, schema=_LOWER).sort_by("word")}


def _statistics(run: Run, kind: str, ranges: Ranges) -> pa.Table:
    """Of the merged rows of all ranges, range by range, what they are pruned by."""
    held = ranges.before.parts(f"{kind}_statistics") if ranges.before else []
    groups = [made.get(f"merged_{kind}", []) for made in ranges.made]
    before = [n if kept else -1 for n, kept in enumerate(ranges.kept)]
    return columns_of(run, groups, _STATISTICS[kind], before, held)


def _kept(
    lower: pa.Table, entities: pa.Table, relationships: pa.Table, n_units: int, threshold: float
) -> dict[str, Mask]:
    """Which entities and relationships stay, from integer arrays on the driver."""
    ids, frequency = entities["id"].to_numpy(), entities["frequency"].to_numpy()
    source, target = (places_of(ids, relationships[name].to_numpy()) for name in ("source_id", "target_id"))
    strong = ~_weak(lower, entities)
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


def _weak(lower: pa.Table, entities: pa.Table) -> Mask:
    """Names of one word that the corpus writes in lower case more often than as a name (`prune_names`)."""
    words, counts = lower["word"].to_numpy(), lower["count"].to_numpy()
    wanted = entities["word"].to_numpy()
    at = np.minimum(np.searchsorted(words, wanted), max(len(words) - 1, 0))
    ordinary = np.where(words[at] == wanted, counts[at], 0) if len(words) else np.zeros(len(wanted), np.int64)
    weak: Mask = (wanted != 0) & (ordinary > entities["as_name"].to_numpy())
    return weak


def _told(
    run: Run,
    kind: str,
    ranges: Ranges,
    range_of: Ints,
    mask: Mask,
    make: Callable[[pa.Table, Mask], pa.Table],
) -> Result:
    """The table of a kind, made of the merged rows of each range and of what the driver tells about each row.
    range_of, mask: of the merged rows of all ranges."""
    ends = np.searchsorted(range_of, np.arange(len(ranges.parts)), "right")
    inputs = []
    for at, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
        bits = np.packbits(mask[start:end]).tobytes()
        inputs.append(_Range(ranges.made[at].get(f"merged_{kind}"), ranges.parts[at], bits, end - start))
    known = run.taken_over(
        "merge", inputs, [kind, ranges.how], (kind,), told=[[x.instances, x.bits.hex()] for x in inputs]
    )
    written = run.executor.map("prune", partial(_made, kind, ranges.reduce, ranges.table, make), known.new)
    return known.with_new(run.store, written)


@dataclass(frozen=True)
class _Range:
    """merged: parts, None where they are not there any more; bits: what is told of each row."""

    merged: list[Part] | None
    instances: list[Part]
    bits: bytes
    rows: int


def _made(
    kind: str,
    reduce: Callable[[pa.Table], Tables],
    table: str,
    make: Callable[[pa.Table, Mask], pa.Table],
    store: Store,
    x: _Range,
) -> Iterator[Tables]:
    if x.merged is None:
        merged = reduce(read_table(store, x.instances, None, INSTANCES[table]))[f"merged_{kind}"]
    elif x.merged:
        merged = read_table(store, x.merged)
    else:
        return
    mask = np.unpackbits(np.frombuffer(x.bits, np.uint8), count=x.rows).astype(np.bool_)
    yield {kind: make(merged, mask)}


def _filtered(merged: pa.Table, stays: Mask) -> pa.Table:
    columns = [name for name in merged.column_names if name not in _EVIDENCE]
    return merged.select(columns).filter(pa.array(stays))


def _just(store: Store, tables: Tables) -> list[Tables]:
    return [tables]


def _claims(run: Run, claimed: Result, entities: list[list[Part]], vocabulary: str) -> Result:
    """Covariates with n_tokens (of their record in a context) and content, by id range; in the counts, how
    many have a subject that is no entity. claim_instances, covariates_statistics and entity_ids are for the
    next run."""
    if not any(claimed.tables.get("found_claims", [])):
        return Result({"covariates": []}, {"claims_without_entity": 0})
    how, reduce = [STAGES["merge"].version, vocabulary], partial(_reduce_claims, vocabulary)
    beside = "covariates_statistics"
    ranges = in_ranges(run, "claims", claimed, "found_claims", "claim_instances", how, reduce, beside)
    statistics = _statistics(run, "covariates", ranges)
    ids = columns_since(run, "merge", "entities", entities, IDS, "entity_ids")
    is_entity = np.isin(statistics["subject_entity_id"].to_numpy(), ids["id"].to_numpy())
    kept = _told(run, "covariates", ranges, statistics[GROUP].to_numpy(), is_entity, _matched)
    tables = kept.tables | {ranges.table: ranges.parts}
    groups = tables["covariates"]
    columns = columns_since(run, "merge", "covariates", groups, CLAIM_COLUMNS, "covariate_columns")
    for name, table in ((beside, statistics), ("entity_ids", ids), ("covariate_columns", columns)):
        tables |= by_input(run.executor.map("merge", _just, [{name: table}]), name)
    counts = {"claims_without_entity": int((~is_entity).sum())}
    return Result(tables, counts, made_from=kept.made_from | {ranges.table: [ranges.how]})


def claim_columns(run: Run, merged: Result) -> pa.Table:
    """The driver's columns of claims. merged: of this snapshot or of another, maybe of an earlier version."""
    held = merged.parts("covariate_columns")
    if held and not run.lost(held):
        return read_table(run.store, held, None, CLAIM_COLUMNS)
    return columns_of(run, merged.tables["covariates"], CLAIM_COLUMNS)


def _reduce_claims(vocabulary: str, instances: pa.Table) -> Tables:
    merged = merge_claims(instances)
    tokens = [
        report_context.record_tokens(report_context.claim_of(row), lambda text: count(text, vocabulary))
        for row in merged.to_pylist()
    ]
    return {"merged_covariates": merged.append_column("n_tokens", pa.array(tokens, pa.int64()))}


def _matched(merged: pa.Table, is_entity: Mask) -> pa.Table:
    claims = with_entities(merged, is_entity)
    shown = [
        digests(claims[field.name]) if pa.types.is_string(field.type) else claims[field.name]
        for field in COVARIATES
        if field.name != "human_readable_id"
    ]
    return claims.append_column("content", pa.array(row_hashes(shown, claims.num_rows)))
