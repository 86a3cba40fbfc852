"""Fuse ranked lists of hits, and fill a context with the nearest records."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from typing import TypeVar

from graphrag_ray.base.index_settings import Query
from graphrag_ray.base.schema import search_index_table
from graphrag_ray.graph.report_context import Context, passage_record
from graphrag_ray.query.methods.context_filling import MIN_NEIGHBOUR_TOKENS, Neighbour, Share, fill
from graphrag_ray.query.methods.method import By, Hit, Kind, Rows, Search, SearchEnv, Steps
from graphrag_ray.query.methods.record_loading import load_records, prefix_that_fits, with_documents
from graphrag_ray.query.methods.reranking import RecordId, n_candidates, reranked

T = TypeVar("T")

TYPICAL_CHUNK_TOKENS = 600
MIN_HITS = 32
FEWEST = 3
"""Number of records of a kind that are shown whatever their similarity to the question."""
RRF_K = 60
"""Constant of reciprocal rank fusion, as published and as in Azure AI Search."""


def rank(searches: Sequence[Search], env: SearchEnv, k: int | None = None) -> Steps[list[RecordId]]:
    """Run searches with k hits each, or enough to fill a context, and fuse their results."""
    k = k or default_k(env)
    lists: list[list[Hit]] = yield tuple(replace(s, k=k) for s in searches)
    scored = [{(s.kind, hit.id): hit.score for hit in hits} for s, hits in zip(searches, lists, strict=True)]
    return fuse_searches(scored, [s.by for s in searches], env.settings.query)


def fuse_searches(lists: Sequence[Mapping[T, float]], by: Sequence[By], query: Query) -> list[T]:
    """Fuse the results of searches, each best first, as `query.fusion` and `hybrid_vector_weight` say."""
    share = query.hybrid_vector_weight
    weights = None if share == "auto" else [share if b == "vector" else 1 - share for b in by]
    return (fuse if query.fusion == "score" else fuse_ranks)(lists, weights)


def similarities_of(
    kind: Kind, ids: Collection[str], text: str, env: SearchEnv, share: float
) -> Steps[dict[str, float]]:
    """Score records by similarity to a text: by embedding or, without one, by keywords.

    Returns {} if they are not indexed, or if the minimum `share` of the highest similarity is 0.
    """
    wanted = sorted(ids)
    by: By = "vector" if env.n_rows.get(f"embeddings_{kind}") else "keyword"
    if not share or not wanted or (by == "keyword" and search_index_table(kind, by) not in env.n_rows):
        return {}
    hits: list[Hit] = yield Search(kind, by, text, len(wanted), wanted)
    return {hit.id: hit.score for hit in hits}


def relevant(ids: Iterable[str], similarity: Mapping[str, float], share: float) -> list[str]:
    """Leave out ids whose similarity is below this share of the highest, but never the FEWEST most similar.

    Without similarities, all are kept.
    """
    if not share or not similarity:
        return list(ids)
    lowest = min([share * max(similarity.values()), *nlargest(FEWEST, similarity.values())[FEWEST - 1 :]])
    return [id_ for id_ in ids if similarity.get(id_, 0.0) >= lowest]


def default_k(env: SearchEnv) -> int:
    query = env.settings.query
    return n_candidates(query, max(MIN_HITS, 2 * query.context_tokens // TYPICAL_CHUNK_TOKENS))


def nearest_context(
    searches: Sequence[Search], env: SearchEnv, chunks: Collection[str] | None = None
) -> Steps[Context]:
    """Fill a context with the results of searches (see `rank`) and neighbour chunks.

    Args:
        chunks: Ids of the chunks to which the question is restricted. None allows all.
    """
    budget = env.settings.query.context_tokens
    k = default_k(env)
    contexts = 1.5
    head: list[RecordId] = []
    while True:
        order = yield from rank(searches, env, k)
        if not head:  # Longer lists scale scores differently, which would reorder the first records.
            (ranked,) = yield from reranked([(searches[0].text, order)], env, chunks)
            head = ranked[: n_candidates(env.settings.query, MIN_HITS)]
        order = list(dict.fromkeys([*head, *order]))
        ranked_chunks = [id_ for kind, id_ in order if kind == "text_unit"]
        while True:
            likely, are_all = set[str](), True
            if ranked_chunks:
                first, are_all = yield from prefix_that_fits(ranked_chunks, env, contexts)
                likely = set(first)
            candidates = [(kind, id_) for kind, id_ in order if kind != "text_unit" or id_ in likely]
            shares = [Share((yield from load_records(candidates, env, chunks, distinct_texts=True)))]
            context = fill(shares, budget, env.count)
            if context.left_out or are_all:
                break
            contexts *= 2
        if context.left_out or len(order) < k:
            context = yield from add_neighbours(context, shares, env)
            return replace(context, left_out=0)  # any search leaves out records that are less near
        k *= 4


def fuse(lists: Sequence[Mapping[T, float]], weights: Sequence[float] | None = None) -> list[T]:
    """Fuse scored lists into one ranking by a weighted sum of their scores.

    Each list is scaled to 0–1 first, with 0 for records that it lacks. With weights, this is the convex
    combination of Bruch, Gai and Ingber 2023, "An Analysis of Fusion Functions for Hybrid Retrieval". Without
    weights, each list is divided by its sum (Montague and Aslam 2001, "Relevance Score Normalization for
    Metasearch"). So a list whose best records stand out counts more than one with many similar scores. Ties
    keep the order of the earlier list.
    """
    sums: dict[T, float] = {}
    for n, scores in enumerate(lists):
        low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
        scaled = {key: (s - low) / (high - low) if high > low else 1.0 for key, s in scores.items()}
        weight = weights[n] if weights else 1 / (math.fsum(scaled.values()) or 1.0)
        for key, score in scaled.items():
            sums[key] = sums.get(key, 0.0) + weight * score
    return sorted(sums, key=lambda key: -sums[key])


def fuse_ranks(lists: Sequence[Iterable[T]], weights: Sequence[float] | None = None) -> list[T]:
    """Fuse lists, each best first, into one ranking by reciprocal rank (Cormack, Clarke and Büttcher 2009).

    Ranks count from 1, and without weights all lists count equally. Ties keep the order of the earlier list.
    """
    sums: dict[T, float] = {}
    for ranked, weight in zip(lists, weights or [1.0] * len(lists), strict=True):
        for position, key in enumerate(ranked, 1):
            sums[key] = sums.get(key, 0.0) + weight / (RRF_K + position)
    return sorted(sums, key=lambda key: -sums[key])


def add_neighbours(
    context: Context, shares: Sequence[Share], env: SearchEnv, left_out: int = 0
) -> Steps[Context]:
    """Refill a context with the neighbours of its first `query.adjacent_chunks` chunks, if they fit."""
    query = env.settings.query
    sources = [id_ for (section, _), id_ in context.numbering.items() if section == "Sources"]
    chunks = sources[: query.adjacent_chunks]
    if not chunks or query.context_tokens - context.n_tokens < MIN_NEIGHBOUR_TOKENS:
        return context
    columns = ["id", "document_id", "start", "end"]
    rows = (yield Rows("text_units", columns, chunks)).to_pylist()
    row_of = {row["id"]: row for row in rows if row["document_id"]}
    ids = list(dict.fromkeys(row["document_id"] for row in row_of.values()))
    documents = (yield Rows("documents", ["id", "text_unit_ids"], ids)).to_pylist() if ids else []
    order = {d["id"]: d["text_unit_ids"] or [] for d in documents}
    wanted: list[tuple[str, str, bool]] = []
    for chunk in chunks:
        siblings = order.get(row_of[chunk]["document_id"], []) if chunk in row_of else []
        if chunk in siblings:
            position = siblings.index(chunk)
            wanted += [(id_, chunk, False) for id_ in siblings[position + 1 : position + 2]]
            wanted += [(id_, chunk, True) for id_ in siblings[:position][-1:]]
    if not wanted:
        return context
    columns = ["id", "text", "document_id", "start", "end"]
    units = (yield Rows("text_units", columns, list(dict.fromkeys(w[0] for w in wanted)))).to_pylist()
    by_id = {row["id"]: row for row in (yield from with_documents(units, env))}
    neighbours = []
    for id_, chunk, before in wanted:
        if (row := by_id.get(id_)) is None:
            continue
        # Remove the overlap with the adjacent chunk.
        end = max(0, row_of[chunk]["start"] - row["start"]) if before else None
        start = 0 if before else max(0, row_of[chunk]["end"] - row["start"])
        if text := row["text"][start:end].strip():
            neighbours.append(Neighbour(passage_record(id_, text, row.get("document", "")), chunk, before))
    if not neighbours:
        return context
    return fill(shares, query.context_tokens, env.count, left_out, neighbours)
