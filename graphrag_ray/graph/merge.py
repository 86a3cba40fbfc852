"""Merge the instances of entities, relationships and claims from all chunks by key.

Instances (one row per record) are partitioned by key. The order of rows does not matter: equal rows give
equal tables. Merged tables have no descriptions, so a hub that occurs in half of all chunks costs only
integers and text unit ids. `descriptions_by_key` yields the descriptions of each key in canonical order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.ids import claim_id, entity_id, relationship_id
from graphrag_ray.base.schema import COVARIATES, ENTITY_INSTANCES, RELATIONSHIP_INSTANCES
from graphrag_ray.graph.extraction_dialogue import ClaimRecords, ExtractedRecords
from graphrag_ray.graph.integer_arrays import (
    Bools,
    Ints,
    encode_sorted,
    first_rows,
    run_starts,
    text_units_by_key,
)

_CHUNK_BYTES = 1 << 28  # size of descriptions gathered at a time; Arrow string arrays are limited to 2 GB
_MICRO = 1_000_000  # strengths are summed in millionths
_MAX_STRENGTH = 1e5  # above any stated scale; 9e7 such instances still fit in 64 bits


class ExtractionSource(NamedTuple):
    """The text unit that an extraction comes from, and the date of its document."""

    text_unit_id: str
    document_id: str
    position: int
    date: str | None = None


def entity_instance_rows(extractions: Iterable[tuple[ExtractionSource, ExtractedRecords]]) -> pa.Table:
    """Build `schema.ENTITY_INSTANCES`, one row per entity record, in the order given.

    A name that occurs only as an end of a relationship of its text unit gets a row with null type and
    description, after the records. (Not in the paper. Otherwise the relationship would be lost.)
    """
    rows: list[tuple[Any, ...]] = []
    for unit, extraction in extractions:
        for ordinal, e in enumerate(extraction.entities):
            rows.append(
                (e.title, e.title, e.type or None, e.description or None, *unit, e.turn, ordinal, None)
            )
        described = {e.title for e in extraction.entities}
        turns: dict[str, int] = {}
        for r in extraction.relationships:
            for title in (r.source, r.target):
                if title not in described:
                    turns.setdefault(title, r.turn)
        for ordinal, (title, turn) in enumerate(turns.items(), start=len(extraction.entities)):
            rows.append((title, title, None, None, *unit, turn, ordinal, None))
    table = _from_rows(rows, ENTITY_INSTANCES)
    return table.set_column(0, ENTITY_INSTANCES.field(0), entity_ids(table["title"]))


def relationship_instance_rows(extractions: Iterable[tuple[ExtractionSource, ExtractedRecords]]) -> pa.Table:
    """Build `schema.RELATIONSHIP_INSTANCES`, one row per record, in the order given, without self-loops."""
    rows: list[tuple[Any, ...]] = []
    ids: dict[tuple[str, str], str] = {}
    for unit, extraction in extractions:
        for ordinal, r in enumerate(extraction.relationships):
            pair = (r.source, r.target)
            if r.source != r.target:
                id_ = ids.get(pair) or ids.setdefault(pair, relationship_id(*pair))
                texts = (*pair, r.description or None)
                rows.append((id_, *texts, r.strength, *unit, r.turn, ordinal, r.relation or None))
    return _from_rows(rows, RELATIONSHIP_INSTANCES)


def merge_entities(instances: pa.Table) -> pa.Table:
    """Merge entity instances into one row per entity, sorted by id (paper 3.1.3: exact matching of names).

    Columns: id, title, type (the most frequent stated one, ties alphabetical, "" if none is stated),
    text_unit_ids (distinct, by document and position), frequency (number of text units), n_instances.
    """
    units = text_units_by_key(instances, "entity_id")
    key, n = units.key, len(units.keys)
    winner, types, _ = _most_frequent(instances["type"], key, n)
    return pa.table(
        {
            "id": units.keys,
            "title": instances["title"].take(pa.array(first_rows(key, n))),
            "type": pc.fill_null(types.take(pa.array(winner, mask=winner < 0)), ""),
            "text_unit_ids": units.lists,
            "frequency": units.n_units,
            "n_instances": np.bincount(key, minlength=n),
        }
    )


def _most_frequent(column: pa.ChunkedArray, key: Ints, n: int) -> tuple[Ints, pa.Array, Ints]:
    """Find the most frequent stated value of each of n keys, ties alphabetical.

    Returns its code, or -1 if none is stated, the values by code, and the code of each row, negative if null.
    """
    code, values = encode_sorted(column)
    stated = np.flatnonzero((code >= 0) & pc.fill_null(pc.not_equal(column, ""), False).to_numpy())
    votes, count = np.unique(key[stated] * len(values) + code[stated], return_counts=True)
    group, value = np.divmod(votes, max(1, len(values)))
    best = np.lexsort((value, -count, group))
    best = best[run_starts(group[best])]
    winner = np.full(n, -1, dtype=np.int64)
    winner[group[best]] = value[best]
    return winner, values.cast(pa.string()), code


def type_conflicts(instances: pa.Table) -> pa.Table:
    """Return the entities whose instances state several types, sorted by id: id, title, types and counts.

    `types` and `counts`, the number of instances of each type, are in descending order of the counts, ties
    alphabetical, so the first type is the one that `merge_entities` chooses.
    """
    stated = instances.filter(pc.fill_null(pc.not_equal(instances["type"], ""), False))
    votes = stated.select(["entity_id", "title", "type"]).group_by(["entity_id", "title", "type"])
    counted = votes.aggregate([([], "count_all")])
    n_types = counted.group_by("entity_id").aggregate([([], "count_all")])
    several = n_types.filter(pc.greater(n_types["count_all"], 1))["entity_id"]
    counted = counted.filter(pc.is_in(counted["entity_id"], value_set=several.combine_chunks()))
    order = [("entity_id", "ascending"), ("count_all", "descending"), ("type", "ascending")]
    by_entity = counted.sort_by(order).group_by(["entity_id", "title"], use_threads=False)
    lists = by_entity.aggregate([("type", "list"), ("count_all", "list")])
    columns = [lists[name] for name in ("entity_id", "title", "type_list", "count_all_list")]
    return pa.table(columns, schema=TYPE_CONFLICTS)


def merge_relationships(instances: pa.Table, weight_by: Literal["count", "strength"] = "count") -> pa.Table:
    """Merge relationship instances into one row per relationship, sorted by id.

    Columns: id, source and target (titles; edges are undirected, so source <= target), source_id, target_id,
    weight, text_unit_ids (distinct, by document and position), n_instances, relation (the most frequent
    stated one, ties alphabetical, "" if none is stated), relation_reversed (whether most instances with that
    relation lead from target to source).

    Args:
        instances: All rows of each key, in any order.
        weight_by: "count" is the number of text units that state the relationship (paper 3.1.3; a chunk
            counts once, because a gleaning may repeat the first reply). "strength" is the sum of the stated
            strengths, each limited to 0…100,000 and in whole millionths, so the order does not matter.
    """
    units = text_units_by_key(instances, "relationship_id")
    any_row = pa.array(first_rows(units.key, len(units.keys)))
    source, target = instances["source"].take(any_row), instances["target"].take(any_row)
    ordered = pc.less_equal(source, target)
    low, high = pc.if_else(ordered, source, target), pc.if_else(ordered, target, source)
    weights = units.n_units.astype(np.float64)
    if weight_by == "strength":
        strength = instances["strength"].to_numpy()
        strength = np.where(np.isfinite(strength), strength, 1.0)
        total = np.zeros(len(units.keys), dtype=np.int64)
        np.add.at(total, units.key, np.rint(np.clip(strength, 0, _MAX_STRENGTH) * _MICRO).astype(np.int64))
        weights = total / _MICRO
    winner, relations, relation = _most_frequent(instances["relation"], units.key, len(units.keys))
    backwards = pc.greater(instances["source"], instances["target"]).to_numpy()
    agreeing = (relation >= 0) & (relation == winner[units.key])
    n_more = np.zeros(len(units.keys), dtype=np.int64)
    np.add.at(n_more, units.key[agreeing], np.where(backwards[agreeing], 1, -1))
    return pa.table(
        {
            "id": units.keys,
            "source": low,
            "target": high,
            "source_id": entity_ids(low),
            "target_id": entity_ids(high),
            "weight": weights,
            "text_unit_ids": units.lists,
            "n_instances": np.bincount(units.key, minlength=len(units.keys)),
            "relation": pc.fill_null(relations.take(pa.array(winner, mask=winner < 0)), ""),
            "relation_reversed": n_more > 0,
        }
    )


def sort_instances(table: pa.Table) -> pa.Table:
    """Sort instances of any kind by (key, document_id, position, turn, ordinal). Claims have no turn.

    Rows are gathered in pieces with 64-bit offsets, so that descriptions do not overflow string arrays.
    """
    key, _ = encode_sorted(table.column(0))
    document, _ = encode_sorted(table["document_id"])
    names = [name for name in ("ordinal", "turn", "position") if name in table.column_names]
    order = np.lexsort((*(table[name].to_numpy() for name in names), document, key))
    wide = pa.schema([f.with_type(pa.large_string()) if f.type == pa.string() else f for f in table.schema])
    source = table.cast(wide).combine_chunks()
    lengths = pc.fill_null(pc.binary_length(source["description"]), 0).to_numpy()[order]
    piece = np.cumsum(lengths) // _CHUNK_BYTES
    bounds = [*np.flatnonzero(np.diff(piece, prepend=-1)).tolist(), len(order)]
    pieces = [source.take(pa.array(order[a:b])).cast(table.schema) for a, b in pairwise(bounds)]
    return pa.concat_tables(pieces) if pieces else table


def descriptions_by_key(
    sorted_instances: pa.Table, max_batch_rows: int = 1 << 17
) -> Iterator[pa.RecordBatch]:
    """Yield the distinct descriptions of each id in canonical order: (id, descriptions).

    Every id occurs once, in the order of `merge_entities` and `merge_relationships`. Its list is empty if no
    instance has a description. A batch covers at most `max_rows` instances or a single id.

    Raises:
        ValueError: If the instances are not sorted (`sort_instances`).
    """
    key = sorted_instances.column(0)
    n = len(key)
    if n == 0:
        return
    before, after = key.slice(0, n - 1), key.slice(1)
    if pc.any(pc.less(after, before)).as_py():
        raise ValueError("descriptions_by_key needs instances sorted by key (sort_instances)")
    starts = np.concatenate([[0], np.flatnonzero(pc.not_equal(before, after).to_numpy()) + 1])
    bounds = np.append(starts, n)
    first = 0
    while first < len(starts):
        # Take as many ids as fit in max_rows, but at least one.
        end = max(first + 1, int(np.searchsorted(bounds, bounds[first] + max_batch_rows, side="right")) - 1)
        rows, n_ids = sorted_instances.slice(bounds[first], bounds[end] - bounds[first]), end - first
        texts = rows["description"].cast(pa.large_string()).combine_chunks()
        id_index = np.repeat(np.arange(n_ids), np.diff(bounds[first : end + 1]))
        stated = np.flatnonzero(pc.fill_null(pc.not_equal(texts, ""), False).to_numpy(zero_copy_only=False))
        text = texts.take(pa.array(stated)).dictionary_encode().indices.to_numpy()
        _, first_row = np.unique(id_index[stated] * (len(text) + 1) + text, return_index=True)
        distinct_rows = stated[np.sort(first_row)]
        ends = np.cumsum(np.bincount(id_index[distinct_rows], minlength=n_ids))
        offsets = pa.array(np.concatenate([[0], ends]), type=pa.int64())
        lists = pa.LargeListArray.from_arrays(offsets, texts.take(pa.array(distinct_rows)))
        ids = key.take(pa.array(starts[first:end]))
        yield pa.record_batch({"id": pa.concat_arrays(ids.chunks), "descriptions": lists})
        first = end


def entity_ids(titles: pa.ChunkedArray) -> pa.Array:
    """Return the entity id of each title, hashing every distinct title once."""
    code, distinct = encode_sorted(titles)
    return pa.array([entity_id(t) for t in distinct.to_pylist()], type=pa.string()).take(pa.array(code))


def _from_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, type=f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


CLAIM_INSTANCES = pa.schema(
    [
        ("claim_id", pa.string()),  # hash of the normalised subject, object, type and description
        ("subject_entity_id", pa.string()),  # entity id of the subject, whether or not the entity exists
        ("subject", pa.string()),  # entity key
        ("object", pa.string()),  # entity key or "NONE"
        ("type", pa.string()),
        ("description", pa.string()),
        ("status", pa.string()),  # TRUE, FALSE or SUSPECTED
        ("start_date", pa.string()),
        ("end_date", pa.string()),
        ("source_text", pa.string()),
        ("text_unit_id", pa.string()),
        ("document_id", pa.string()),
        ("position", pa.int64()),
        ("ordinal", pa.int32()),
    ]
)
"""Schema with one row per extracted claim. Snapshots store the merged claims as covariates instead."""

TYPE_CONFLICTS = pa.schema(
    [
        *(("id", pa.string()), ("title", pa.string())),
        *(("types", pa.list_(pa.string())), ("counts", pa.list_(pa.int64()))),
    ]
)

_STATUSES = ("FALSE", "SUSPECTED", "TRUE")
_SUSPECTED = _STATUSES.index("SUSPECTED")


def claim_rows(claims: Iterable[tuple[ExtractionSource, ClaimRecords]]) -> pa.Table:
    """Build CLAIM_INSTANCES, one row per claim, in the order given."""
    rows: list[tuple[Any, ...]] = []
    for unit, extracted in claims:
        for ordinal, c in enumerate(extracted.claims):
            id_ = id_of_claim(c.subject, c.object, c.type, c.description)
            texts = (c.type, c.description, c.status, c.start_date or None, c.end_date or None, c.source_text)
            rows.append((id_, entity_id(c.subject), c.subject, c.object, *texts, *unit[:3], ordinal))
    return _from_rows(rows, CLAIM_INSTANCES)


def id_of_claim(subject: str, object_: str, type_: str, description: str) -> str:
    """Return the id of a claim, which does not depend on the text units that state it."""
    return claim_id(subject, object_, _fold(type_), _fold(description), "")


def merge_claims(instances: pa.Table) -> pa.Table:
    """Merge claim instances into `schema.COVARIATES`, sorted by id.

    Claims are equal if their subject, object, type and description are equal up to case, whitespace and final
    punctuation. Texts come from the first instance in (document, position, ordinal), and dates from the first
    instances that state them. The status is the most frequent one, or SUSPECTED if tied. `subject_entity_id`
    may refer to an entity that does not exist (see `null_unmatched_subjects`). `human_readable_id` is filled
    in when the snapshot is written.
    """
    units = text_units_by_key(instances, "claim_id")
    n = len(units.keys)
    document, _ = encode_sorted(instances["document_id"])
    order = np.lexsort((instances["ordinal"].to_numpy(), instances["position"].to_numpy(), document))
    key = units.key[order]
    first = pa.array(order[first_rows(key, n)])
    vote = pc.fill_null(
        pc.index_in(instances["status"], value_set=pa.array(_STATUSES)), _SUSPECTED
    ).to_numpy()
    votes = np.bincount(units.key * 3 + vote, minlength=3 * n).reshape(n, 3)
    is_most = votes == votes.max(axis=1, keepdims=True)
    status = np.where(is_most.sum(axis=1) == 1, votes.argmax(axis=1), _SUSPECTED)
    columns: dict[str, Any] = {
        "id": units.keys,
        "human_readable_id": np.zeros(n, dtype=np.int64),
        "covariate_type": pa.array(["claim"] * n, type=pa.string()),
        "subject_id": instances["subject"].take(first),
        "object_id": instances["object"].take(first),
        "status": pa.array(_STATUSES).take(pa.array(status)),
        "text_unit_ids": units.lists,
    }
    for name in ("start_date", "end_date"):
        stated = instances[name].is_valid().to_numpy()[order]
        row = first_rows(key[stated], n)
        # For claims without this date, the row is -1, which selects the appended row and is masked.
        columns[name] = instances[name].take(pa.array(np.append(order[stated], 0)[row], mask=row < 0))
    for name in ("type", "description", "source_text", "text_unit_id", "subject_entity_id"):
        columns[name] = instances[name].take(first)
    return pa.table([columns[name] for name in COVARIATES.names], schema=COVARIATES)


def null_unmatched_subjects(claims: pa.Table, is_entity: Bools) -> pa.Table:
    """Set `subject_entity_id` to null where the subject is not an entity."""
    column = claims.schema.get_field_index("subject_entity_id")
    ids = pc.if_else(pa.array(is_entity), claims["subject_entity_id"], pa.scalar(None, pa.string()))
    return claims.set_column(column, "subject_entity_id", ids)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".,;:! ")
