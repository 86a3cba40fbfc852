"""The records that lists of hits have in front, as many as fill one context."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from graphrag_ray.base.declarations import SEARCHED
from graphrag_ray.graph.report_context import Context, Record, source
from graphrag_ray.query.methods.filling import MIN_NEIGHBOUR_TOKENS, Neighbour, Share, fill
from graphrag_ray.query.methods.method import Given, Hit, Kind, Rows, Search
from graphrag_ray.query.methods.record_rows import fitting, loaded, with_documents

T = TypeVar("T")

USUAL_CHUNK_TOKENS = 600
MIN_HITS = 32

Found: TypeAlias = tuple[Kind, str]


def ranked(
    searches: Sequence[Search], given: Given, k: int | None = None
) -> Generator[Any, Any, list[Found]]:
    """Kind and id of what the searches find, their lists fused by score.

    k: hits of each search; None: as many as it takes to fill a context
    """
    query = given.settings.query
    weights = {"vector": query.hybrid_vector_weight, "keyword": 1 - query.hybrid_vector_weight}
    k = k or usual_hits(given)
    lists: list[list[Hit]] = yield tuple(replace(s, k=k) for s in searches)
    return fused(
        [{(s.kind, hit.id): hit.score for hit in hits} for s, hits in zip(searches, lists, strict=True)],
        [weights[s.by] for s in searches],
    )


def usual_hits(given: Given) -> int:
    return max(MIN_HITS, 2 * given.settings.query.context_tokens // USUAL_CHUNK_TOKENS)


def nearest(
    searches: Sequence[Search], given: Given, within: Collection[str] | None = None
) -> Generator[Any, Any, Context]:
    """A context of at most query.context_tokens with what the searches find (`ranked`); in what room is left,
    the chunks beside the first ones. within: ids of the only chunks that count."""
    budget = given.settings.query.context_tokens
    k = usual_hits(given)
    known: dict[tuple[str, str], Record] = {}
    read: set[Found] = set()
    contexts = 1.5
    while True:
        order = yield from ranked(searches, given, k)
        chunks = [id_ for kind, id_ in order if kind == "text_unit"]
        while True:
            first, are_all = (yield from fitting(chunks, given, contexts)) if chunks else ([], True)
            likely = set(first)
            looked_at = [f for f in order if f[0] != "text_unit" or f[1] in likely]
            records = yield from loaded((f for f in looked_at if f not in read), given, within)
            read.update(looked_at)
            known |= {(record.section, record.id): record for record in records}
            keys = [(SEARCHED[kind].section, id_) for kind, id_ in looked_at]
            shares = [Share([known[key] for key in keys if key in known])]
            context = fill(shares, budget, given.count)
            if context.left_out or are_all:
                break
            contexts *= 2
        if context.left_out or len(order) < k:
            context = yield from with_neighbours(context, shares, given)
            return replace(context, left_out=0)  # a hit that did not fit is just not among the nearest
        k *= 4


def fused(lists: Sequence[Mapping[T, float]], weights: Sequence[float]) -> list[T]:
    """One ranking of several lists with scores: their convex combination (Bruch, Gai and Ingber 2023, "An
    Analysis of Fusion Functions for Hybrid Retrieval"), each list brought to 0–1 first, 0 where it lacks a
    record. Ties go to what stands first in the earlier list."""
    sums: dict[T, float] = {}
    for scores, weight in zip(lists, weights, strict=True):
        low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
        for found, score in scores.items():
            share = (score - low) / (high - low) if high > low else 1.0
            sums[found] = sums.get(found, 0.0) + weight * share
    return sorted(sums, key=lambda found: -sums[found])


def with_neighbours(
    context: Context, shares: Sequence[Share], given: Given, left_out: int = 0
) -> Generator[Any, Any, Context]:
    """The context that `fill` made of these shares; with room left, the chunk after and the one before each
    of its first query.neighbours chunks stand beside it."""
    query = given.settings.query
    sources = [id_ for (section, _), id_ in context.numbering.items() if section == "Sources"]
    chunks = sources[: query.neighbours]
    if not chunks or query.context_tokens - context.n_tokens < MIN_NEIGHBOUR_TOKENS:
        return context
    rows = (yield Rows("text_units", ["id", "document_id", "start", "end"], chunks)).to_pylist()
    own = {row["id"]: row for row in rows if row["document_id"]}
    ids = list(dict.fromkeys(row["document_id"] for row in own.values()))
    documents = (yield Rows("documents", ["id", "text_unit_ids"], ids)).to_pylist() if ids else []
    order = {d["id"]: d["text_unit_ids"] or [] for d in documents}
    wanted: list[tuple[str, str, bool]] = []
    for chunk, row in ((chunk, own[chunk]) for chunk in chunks if chunk in own):
        there = order.get(row["document_id"], [])
        at = there.index(chunk) if chunk in there else len(there)
        wanted += [(id_, chunk, False) for id_ in there[at + 1 : at + 2]]
        wanted += [(id_, chunk, True) for id_ in there[:at][-1:]]
    if not wanted:
        return context
    columns = ["id", "text", "document_id", "start", "end"]
    found = (yield Rows("text_units", columns, list(dict.fromkeys(w[0] for w in wanted)))).to_pylist()
    by_id = {row["id"]: row for row in (yield from with_documents(found, given))}
    beside = []
    for id_, chunk, before in wanted:
        if (row := by_id.get(id_)) is None:
            continue
        # Without what the chunk beside it also holds.
        end = max(0, own[chunk]["start"] - row["start"]) if before else None
        start = 0 if before else max(0, own[chunk]["end"] - row["start"])
        if text := row["text"][start:end].strip():
            beside.append(Neighbour(source(id_, text, row.get("document", "")), chunk, before))
    return fill(shares, query.context_tokens, given.count, left_out, beside) if beside else context
