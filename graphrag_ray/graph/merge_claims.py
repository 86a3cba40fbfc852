"""Claims brought together: the same statement made in several places becomes one, with its provenance.

Paper 3.1.3: claims are aggregated like entities and relationships. A partition holds all rows of its claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.ids import claim_id, entity_id
from graphrag_ray.base.schema import COVARIATES
from graphrag_ray.graph.integer_arrays import Ints, codes, first_rows, text_units_by_key
from graphrag_ray.graph.merge import ExtractedFrom

if TYPE_CHECKING:
    from graphrag_ray.graph.claims_dialogue import ClaimRecords

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
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(CLAIM_INSTANCES)
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, CLAIM_INSTANCES, strict=True)]
    return pa.table(arrays, schema=CLAIM_INSTANCES)


def merge_claims(instances: pa.Table) -> pa.Table:
    """Claim instances (all rows of each claim, in any order) to schema.COVARIATES, sorted by id.

    Equal are claims with the same subject, object, type and description, but for case, white space and
    closing punctuation. Words, quote and `text_unit_id` are those of the first in (document, position,
    ordinal); a date is the first that is stated; the status is that of most, a tie is SUSPECTED.
    `text_unit_ids` names all that state it. `subject_entity_id` is of the subject's key, whether there is
    such an entity or not (`with_entities`). `human_readable_id` is 0 until a snapshot is written.
    """
    units = text_units_by_key(instances, "claim_id")
    n = len(units.keys)
    document, _ = codes(instances["document_id"])
    order = np.lexsort((instances["ordinal"].to_numpy(), instances["position"].to_numpy(), document))
    key = units.key[order]
    first = pa.array(order[first_rows(key, n)])
    columns: dict[str, Any] = {
        "id": units.keys,
        "human_readable_id": np.zeros(n, dtype=np.int64),
        "covariate_type": pa.array(["claim"] * n, type=pa.string()),
        "subject_id": instances["subject"].take(first),
        "object_id": instances["object"].take(first),
        "status": _majority_status(instances["status"], units.key, n),
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


def _majority_status(status: pa.ChunkedArray, key: Ints, n: int) -> pa.Array:
    at = pc.fill_null(pc.index_in(status, value_set=pa.array(_STATUSES)), _SUSPECTED).to_numpy()
    votes = np.bincount(key * 3 + at, minlength=3 * n).reshape(n, 3)
    most = votes.max(axis=1, keepdims=True) if n else votes[:, :1]
    winner = np.where((votes == most).sum(axis=1) == 1, votes.argmax(axis=1), _SUSPECTED)
    return pa.array(_STATUSES).take(pa.array(winner))


def _fold(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".,;:! ")
