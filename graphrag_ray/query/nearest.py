"""The records that lists of hits have in front, as many as fill one context."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from graphrag_ray.query.filling import Share, fill
from graphrag_ray.query.method import Given, Hit, Kind, Search
from graphrag_ray.query.record_rows import records_from, rows_for
from graphrag_ray.reports.context import Context, Record

RRF_K = 60
"""What keeps the first ranks of one list from deciding alone (Cormack et al. 2009)."""
USUAL_CHUNK_TOKENS = 600
MIN_HITS = 32

Found: TypeAlias = tuple[Kind, str]


def nearest(
    searches: Sequence[Search], given: Given, within: Collection[str] | None = None
) -> Generator[Any, Any, Context]:
    """A context of at most query.context_tokens with what the searches find, their lists fused by rank.

    searches  their `k` is set here: as many hits as it takes to fill the context
    within    ids of the only chunks that count
    """
    budget = given.settings.query.context_tokens
    k = max(MIN_HITS, 2 * budget // USUAL_CHUNK_TOKENS)
    known: dict[Found, Record] = {}
    while True:
        lists: list[list[Hit]] = yield tuple(replace(s, k=k) for s in searches)
        order = fused([[(s.kind, hit.id) for hit in hits] for s, hits in zip(searches, lists, strict=True)])
        missing: dict[Kind, list[str]] = {}
        for kind, id_ in order:
            if (kind, id_) not in known:
                missing.setdefault(kind, []).append(id_)
        tables = yield tuple(rows_for(kind, ids, within) for kind, ids in missing.items())
        for kind, table in zip(missing, tables, strict=True):
            known |= {(kind, id_): r for id_, r in records_from(kind, table, given, within).items()}
        context = fill([Share([known[f] for f in order if f in known])], budget, given.count)
        if context.left_out or all(len(hits) < k for hits in lists):
            return replace(context, left_out=0)  # a hit that did not fit is just not among the nearest
        k *= 4


def fused(lists: Sequence[Sequence[Found]]) -> list[Found]:
    """One ranking of several: reciprocal rank fusion (Cormack, Clarke and Büttcher 2009), k = 60.

    Ties go to what stands first in the earlier list.
    """
    score: dict[Found, float] = {}
    for ranking in lists:
        for rank, found in enumerate(ranking, start=1):
            score[found] = score.get(found, 0.0) + 1 / (RRF_K + rank)
    return sorted(score, key=lambda found: -score[found])
