"""The records that lists of hits have in front, as many as fill one context."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from graphrag_ray.graph.report_context import Context, Record
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.method import Given, Hit, Kind, Search
from graphrag_ray.query.methods.neighbours import with_neighbours
from graphrag_ray.query.methods.record_rows import fitting, looked_up

T = TypeVar("T")

USUAL_CHUNK_TOKENS = 600
MIN_HITS = 32

Found: TypeAlias = tuple[Kind, str]


def nearest(
    searches: Sequence[Search], given: Given, within: Collection[str] | None = None
) -> Generator[Any, Any, Context]:
    """A context of at most query.context_tokens with what the searches find, their lists fused by score; in
    what room is left, the chunks beside the first ones.

    searches  their `k` is set here: as many hits as it takes to fill the context
    within    ids of the only chunks that count
    """
    query = given.settings.query
    budget = query.context_tokens
    weights = {"vector": query.hybrid_vector_weight, "keyword": 1 - query.hybrid_vector_weight}
    k = max(MIN_HITS, 2 * budget // USUAL_CHUNK_TOKENS)
    known: dict[Found, Record] = {}
    contexts = 1.5
    while True:
        lists: list[list[Hit]] = yield tuple(replace(s, k=k) for s in searches)
        order = fused(
            [{(s.kind, hit.id): hit.score for hit in hits} for s, hits in zip(searches, lists, strict=True)],
            [weights[s.by] for s in searches],
        )
        chunks = [id_ for kind, id_ in order if kind == "text_unit"]
        while True:
            first, are_all = (yield from fitting(chunks, given, contexts)) if chunks else ([], True)
            likely = set(first)
            looked_at = [f for f in order if f[0] != "text_unit" or f[1] in likely]
            missing: dict[Kind, list[str]] = {}
            for kind, id_ in looked_at:
                if (kind, id_) not in known:
                    missing.setdefault(kind, []).append(id_)
            read = yield from looked_up(missing, given, within)
            known |= {(kind, id_): record for kind, of in read.items() for id_, record in of.items()}
            shares = [Share([known[f] for f in looked_at if f in known])]
            context = fill(shares, budget, given.count)
            if context.left_out or are_all:
                break
            contexts *= 2
        if context.left_out or all(len(hits) < k for hits in lists):
            context = yield from with_neighbours(context, shares, given)
            return replace(context, left_out=0)  # a hit that did not fit is just not among the nearest
        k *= 4


def fused(lists: Sequence[Mapping[T, float]], weights: Sequence[float]) -> list[T]:
    """One ranking of several lists with scores: their convex combination (Bruch, Gai and Ingber 2023, "An
    Analysis of Fusion Functions for Hybrid Retrieval"), each list brought to 0–1 first, 0 where it lacks a
    record.

    Ties go to what stands first in the earlier list.
    """
    sums: dict[T, float] = {}
    for scores, weight in zip(lists, weights, strict=True):
        low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
        for found, score in scores.items():
            share = (score - low) / (high - low) if high > low else 1.0
            sums[found] = sums.get(found, 0.0) + weight * share
    return sorted(sums, key=lambda found: -sums[found])
