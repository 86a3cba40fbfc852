"""The merge: what chunks say about an entity or a relationship, brought together under its key.

Instances (one row per record) arrive by partition of the key, all rows of a key together and in any order;
every function gives the same table for the same rows. Nothing here carries a description in an aggregate: a
hub that occurs in half of all chunks costs its integers and text unit ids. `descriptions_by_key` reads them
per key instead, in canonical order: (document, position, turn, ordinal).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.ids import claim_id, entity_id, relationship_id
from graphrag_ray.base.schema import COVARIATES, ENTITY_INSTANCES, RELATIONSHIP_INSTANCES
from graphrag_ray.graph.extraction_dialogue import ClaimRecords, ExtractedRecords
from graphrag_ray.graph.integer_arrays import Ints, codes, first_rows, run_starts, text_units_by_key

_CHUNK_BYTES = 1 << 28  # of descriptions gathered into one chunk; Arrow's strings end at 2 GB
_MICRO = 1_000_000  # strengths are added in millionths
_MAX_STRENGTH = 1e5  # above any stated scale; 9e7 instances of it still fit 64 bits


class ExtractedFrom(NamedTuple):
    """Where an extraction comes from."""

    text_unit_id: str
    document_id: str
    position: int


def entity_instance_rows(extractions: Iterable[tuple[ExtractedFrom, ExtractedRecords]]) -> pa.Table:
    """One row of schema.ENTITY_INSTANCES per entity record, in the order given.

    A name that stands only at the end of a relationship of its text unit gets a row with null type and
    description, after the records and with the turn of that relationship: so it is kept and has
    provenance (the paper does not say; dropping it would drop the relationship).
    """
    rows: list[tuple[Any, ...]] = []
    for unit, extraction in extractions:
        described: set[str] = set()
        for ordinal, e in enumerate(extraction.entities):
            described.add(e.title)
            rows.append((e.title, e.title, e.type or None, e.description or None, *unit, e.turn, ordinal))
        ends: dict[str, int] = {}
        for r in extraction.relationships:
            for title in (r.source, r.target):
                if title not in described:
                    ends.setdefault(title, r.turn)
        for ordinal, (title, turn) in enumerate(ends.items(), start=len(extraction.entities)):
            rows.append((title, title, None, None, *unit, turn, ordinal))
    table = _from_rows(rows, ENTITY_INSTANCES)
    return table.set_column(0, ENTITY_INSTANCES.field(0), _entity_ids(table["title"]))


def relationship_instance_rows(
    extractions: Iterable[tuple[ExtractedFrom, ExtractedRecords]],
) -> pa.Table:
    """One row of schema.RELATIONSHIP_INSTANCES per relationship record, in the order given. Relationships of
    an entity with itself are left out of the graph."""
    rows: list[tuple[Any, ...]] = []
    known: dict[tuple[str, str], str] = {}
    for unit, extraction in extractions:
        for ordinal, r in enumerate(extraction.relationships):
            pair = (r.source, r.target)
            if r.source == r.target:
                continue
            id_ = known.get(pair) or known.setdefault(pair, relationship_id(*pair))
            rows.append((id_, *pair, r.description or None, r.strength, *unit, r.turn, ordinal))
    return _from_rows(rows, RELATIONSHIP_INSTANCES)


def partials(entity_instances: pa.Table) -> pa.Table:
    """Partial aggregates of entity instances: entity_id, title, type (null: none stated), n and
    n_described (instances, and those with a description), sorted by (entity_id, title, type)."""
    ones = pa.array(np.ones(len(entity_instances), dtype=np.int64))
    described = entity_instances["description"].is_valid().cast(pa.int64())
    counted = entity_instances.select(["entity_id", "title", "type"])
    return combine(counted.append_column("n", ones).append_column("n_described", described))


def combine(partial: pa.Table) -> pa.Table:
    """Add partial aggregates up. Associative, commutative, idempotent on its own result: the same
    function combines on the map side and reduces."""
    keys = ["entity_id", "title", "type"]
    grouped = pa.TableGroupBy(partial, keys, use_threads=False).aggregate(
        [("n", "sum"), ("n_described", "sum")]
    )
    grouped = grouped.rename_columns([*keys, "n", "n_described"])
    return grouped.sort_by([(k, "ascending") for k in keys])


def majority_types(partial: pa.Table) -> pa.Table:
    """One row per entity from combined partials, sorted by id: id, title, type, n_instances.

    type: that of most instances with one, ties alphabetical, "" where none has.
    """
    key, ids = codes(partial["entity_id"])
    type_, types = codes(partial["type"])
    n = partial["n"].to_numpy()
    title = first_rows(key, len(ids))
    stated = np.flatnonzero((type_ >= 0) & pc.fill_null(pc.not_equal(partial["type"], ""), False).to_numpy())
    # Several titles under one id would be a hash collision; summed all the same, to be exact.
    votes, inverse = np.unique(key[stated] * len(types) + type_[stated], return_inverse=True)
    count = np.bincount(inverse, weights=n[stated], minlength=len(votes)).astype(np.int64)
    entity, kind = np.divmod(votes, max(1, len(types)))
    best = np.lexsort((kind, -count, entity))
    best = best[run_starts(entity[best])]
    winner = np.full(len(ids), -1, dtype=np.int64)
    winner[entity[best]] = kind[best]
    chosen = pc.fill_null(types.cast(pa.string()).take(pa.array(winner, mask=winner < 0)), "")
    n_instances = np.bincount(key, weights=n, minlength=len(ids)).astype(np.int64)
    titles = partial["title"].take(pa.array(title))
    return pa.table({"id": ids, "title": titles, "type": chosen, "n_instances": n_instances})


def merge_entities(instances: pa.Table) -> pa.Table:
    """Entity instances (all rows of each key, in any order) to one row per entity, sorted by id.

    Columns: id, title, type (`majority_types`), text_unit_ids (distinct, by document and position),
    frequency (their number), n_instances. Paper 3.1.3: exact matching of names.
    """
    merged = majority_types(partials(instances))
    units = text_units_by_key(instances, "entity_id")
    merged = merged.add_column(3, "text_unit_ids", units.lists)
    return merged.add_column(4, "frequency", pa.array(units.n_units))


def merge_relationships(instances: pa.Table, weight: Literal["count", "strength"] = "count") -> pa.Table:
    """Relationship instances (all rows of each key, in any order) to one row each, sorted by id.

    Columns: id, source and target (titles, source <= target: edges are undirected), source_id,
    target_id, weight, text_unit_ids (distinct, by document and position), n_instances.

    weight   "count": number of text units that state it (paper 3.1.3: the number of duplicates; a
             chunk counts once, since a gleaning may repeat what the first reply said)
             "strength": sum of the stated strengths, added in whole millionths, so that the order of
             adding does not matter; negative ones count 0, absurd ones are cut at 100,000
    """
    units = text_units_by_key(instances, "relationship_id")
    any_row = pa.array(first_rows(units.key, len(units.keys)))
    source, target = instances["source"].take(any_row), instances["target"].take(any_row)
    in_order = pc.less_equal(source, target)
    low, high = pc.if_else(in_order, source, target), pc.if_else(in_order, target, source)
    if weight == "count":
        weights = units.n_units.astype(np.float64)
    else:
        strength = instances["strength"].to_numpy()
        readable = np.where(np.isfinite(strength), strength, 1.0)
        micro = np.rint(np.clip(readable, 0.0, _MAX_STRENGTH) * _MICRO).astype(np.int64)
        total = np.zeros(len(units.keys), dtype=np.int64)
        np.add.at(total, units.key, micro)
        weights = total / _MICRO
    return pa.table(
        {
            "id": units.keys,
            "source": low,
            "target": high,
            "source_id": _entity_ids(low),
            "target_id": _entity_ids(high),
            "weight": weights,
            "text_unit_ids": units.lists,
            "n_instances": np.bincount(units.key, minlength=len(units.keys)),
        }
    )


def sort_instances(table: pa.Table) -> pa.Table:
    """Instances of any kind in canonical order: (key, document_id, position, turn, ordinal). Claims have no
    turn.

    Gathered in pieces through 64-bit offsets, so that no number of descriptions overflows a column.
    """
    key, _ = codes(table.column(0))
    document, _ = codes(table["document_id"])
    names = [name for name in ("ordinal", "turn", "position") if name in table.column_names]
    columns = [table[name].to_numpy() for name in names]
    order = np.lexsort((*columns, document, key))
    wide = pa.schema([f.with_type(pa.large_string()) if f.type == pa.string() else f for f in table.schema])
    source = table.cast(wide).combine_chunks()
    lengths = pc.fill_null(pc.binary_length(source["description"]), 0).to_numpy()[order]
    piece = np.cumsum(lengths) // _CHUNK_BYTES
    bounds = [*np.flatnonzero(np.diff(piece, prepend=-1)).tolist(), len(order)]
    pieces = [source.take(pa.array(order[a:b])).cast(table.schema) for a, b in pairwise(bounds)]
    return pa.concat_tables(pieces) if pieces else table


def descriptions_by_key(sorted_instances: pa.Table, max_rows: int = 1 << 17) -> Iterator[pa.RecordBatch]:
    """For each id its descriptions: distinct, in canonical order, without nulls.

    sorted_instances: of either kind, from `sort_instances`. Yields batches of (id: string,
    descriptions: large_list<large_string>), every id once, in the order of `merge_entities` and
    `merge_relationships`, with an empty list where no instance has a description. A batch is made of
    at most `max_rows` instances, or of one id with more. Raises ValueError where ids are not sorted.
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
    at = 0
    while at < len(starts):
        # The last id that still ends within max_rows, but at least one.
        upto = max(at + 1, int(np.searchsorted(bounds, bounds[at] + max_rows, side="right")) - 1)
        rows, counts = sorted_instances.slice(bounds[at], bounds[upto] - bounds[at]), upto - at
        texts = rows["description"].cast(pa.large_string()).combine_chunks()
        owner = np.repeat(np.arange(counts), np.diff(bounds[at : upto + 1]))
        stated = np.flatnonzero(pc.fill_null(pc.not_equal(texts, ""), False).to_numpy(zero_copy_only=False))
        text = texts.take(pa.array(stated)).dictionary_encode().indices.to_numpy()
        _, first = np.unique(owner[stated] * (len(text) + 1) + text, return_index=True)
        kept = stated[np.sort(first)]
        ends = np.cumsum(np.bincount(owner[kept], minlength=counts))
        offsets = pa.array(np.concatenate([[0], ends]), type=pa.int64())
        lists = pa.LargeListArray.from_arrays(offsets, texts.take(pa.array(kept)))
        ids = key.take(pa.array(starts[at:upto]))
        yield pa.record_batch({"id": pa.concat_arrays(ids.chunks), "descriptions": lists})
        at = upto


def _entity_ids(titles: pa.ChunkedArray) -> pa.Array:
    """The entity id of each title; every distinct one is hashed once."""
    code, distinct = codes(titles)
    hashed = pa.array([entity_id(t) for t in distinct.to_pylist()], type=pa.string())
    return hashed.take(pa.array(code))


def _from_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, type=f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


CLAIM_INSTANCES = pa.schema(
    [
        ("claim_id", pa.string()),  # of subject, object, type and description, folded
        ("subject_entity_id", pa.string()),  # of the subject's key, whether there is such an entity or not
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
"""One row per claim a model wrote. No table of a snapshot: the covariates hold all of it."""

_STATUSES = ("FALSE", "SUSPECTED", "TRUE")
_SUSPECTED = _STATUSES.index("SUSPECTED")


def claim_rows(claims: Iterable[tuple[ExtractedFrom, ClaimRecords]]) -> pa.Table:
    """One row of CLAIM_INSTANCES per claim, in the order given."""
    rows: list[tuple[Any, ...]] = []
    for unit, found in claims:
        for ordinal, c in enumerate(found.claims):
            # Not of the text unit: the claim keeps its id when an earlier document comes to state it too.
            id_ = claim_id(c.subject, c.object, _fold(c.type), _fold(c.description), "")
            said = (c.type, c.description, c.status, c.start_date or None, c.end_date or None, c.source_text)
            rows.append((id_, entity_id(c.subject), c.subject, c.object, *said, *unit, ordinal))
    return _from_rows(rows, CLAIM_INSTANCES)


def merge_claims(instances: pa.Table) -> pa.Table:
    """Claim instances (all rows of each claim, in any order) to schema.COVARIATES, sorted by id.

    Equal are claims with the same subject, object, type and description, but for case, white space and
    closing punctuation. Words and quote are those of the first in (document, position, ordinal); a date is
    the first that is stated; the status is that of most, a tie is SUSPECTED. `subject_entity_id` is of the
    subject's key, whether there is such an entity or not (`with_entities`). `human_readable_id` is 0 until a
    snapshot is written.
    """
    units = text_units_by_key(instances, "claim_id")
    n = len(units.keys)
    document, _ = codes(instances["document_id"])
    order = np.lexsort((instances["ordinal"].to_numpy(), instances["position"].to_numpy(), document))
    key = units.key[order]
    first = pa.array(order[first_rows(key, n)])
    at = pc.fill_null(pc.index_in(instances["status"], value_set=pa.array(_STATUSES)), _SUSPECTED).to_numpy()
    votes = np.bincount(units.key * 3 + at, minlength=3 * n).reshape(n, 3)
    most = votes.max(axis=1, keepdims=True) if n else votes[:, :1]
    status = np.where((votes == most).sum(axis=1) == 1, votes.argmax(axis=1), _SUSPECTED)
    columns: dict[str, Any] = {
        "id": units.keys,
        "human_readable_id": np.zeros(n, dtype=np.int64),
        "covariate_type": pa.array(["claim"] * n, type=pa.string()),
        "subject_id": instances["subject"].take(first),
        "object_id": instances["object"].take(first),
        "status": pa.array(_STATUSES).take(pa.array(status)),
        "start_date": _first_stated(instances["start_date"], key, order, n),
        "end_date": _first_stated(instances["end_date"], key, order, n),
        "subject_entity_id": instances["subject_entity_id"].take(first),
        "text_unit_ids": units.lists,
    }
    for name in ("type", "description", "source_text", "text_unit_id"):
        columns[name] = instances[name].take(first)
    return pa.table([columns[name] for name in COVARIATES.names], schema=COVARIATES)


def with_entities(claims: pa.Table, is_entity: npt.NDArray[np.bool_]) -> pa.Table:
    """Merged claims with a null `subject_entity_id` where the subject is no entity."""
    at = claims.schema.get_field_index("subject_entity_id")
    ids = pc.if_else(pa.array(is_entity), claims["subject_entity_id"], pa.scalar(None, pa.string()))
    return claims.set_column(at, "subject_entity_id", ids)


def _first_stated(column: pa.ChunkedArray, key: Ints, order: npt.NDArray[np.intp], n: int) -> pa.ChunkedArray:
    stated = column.is_valid().to_numpy()[order]
    row = np.full(n, -1, dtype=np.int64)
    at = first_rows(key[stated], n)
    row[at >= 0] = order[stated][at[at >= 0]]
    return column.take(pa.array(row, mask=row < 0))


def _fold(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".,;:! ")
