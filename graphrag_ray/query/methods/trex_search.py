"""TREX (Cahoon et al. 2025): chunks and the summaries of a tree over them in one index, found by words and by
meaning; the first few answer the question in one call.

Two lists, the nearest by cosine and the nearest by keywords (BM25), each over chunks and summaries alike, are
fused. (TREX has one index; here chunks and summaries have one each, which counts its own words. To bring each
to 0 to 1 by itself finds less.) TREX does so by reciprocal ranks of equal weight. Ours are fused by score, as
hybrid search fuses its lists: that loses less of what keywords alone find ("Trees of summaries" in
benchmarks/RESULTS.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy, check_embedded
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.method import By, Given, Hit, Kind, Method, Question, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import Found, fused
from graphrag_ray.query.methods.one_context import answer_from
from graphrag_ray.query.methods.record_rows import loaded

NAME = "trex"
TREE = "tree"
CANDIDATES = 100
"""Hits of each list that are fused."""
WITHOUT_TREE = "Chunks alone were read: the index was made with --build names, and has no summaries."
_WAYS: tuple[By, ...] = ("vector", "keyword")


def search(question: Question, given: Given) -> Method:
    """Answer from the first `query.trex_k` chunks and summaries; of an index of names alone, from chunks.
    Raises UsageError for an index without a tree or its embeddings."""
    kinds: list[Kind] = ["text_unit"]
    if given.settings.hierarchies:
        kinds = node_kinds(given, NAME)
    else:
        check_embedded(given, NAME, kinds)
    searches = [Search(kind, by, question.text, CANDIDATES) for by in _WAYS for kind in kinds]
    hits: list[list[Hit]] = yield tuple(searches)
    lists: dict[By, dict[Found, float]] = {by: {} for by in _WAYS}
    for of, own in zip(searches, hits, strict=True):
        lists[of.by] |= {(of.kind, hit.id): hit.score for hit in own}
    weight = given.settings.query.hybrid_vector_weight
    order = fused([_first(lists[by]) for by in _WAYS], [weight, 1 - weight])
    first = order[: given.settings.query.trex_k]
    records = yield from loaded(first, given)
    context = fill([Share(records)], given.settings.query.context_tokens, given.count)
    notes = [] if given.settings.hierarchies else [WITHOUT_TREE]
    return (yield from answer_from(question.text, given, NAME, context, notes))


METHOD = MethodKind(
    search,
    asks=("embed", "answer"),
    reads="passages and summaries, by words and meaning",
    hierarchy="tree",
    instead="hybrid",
    others=("hybrid", "global"),
)


def tree_of(given: Given, method: str) -> HierarchyKind:
    """Raises NoReports for an index of names alone; UsageError where the index has no tree, or no embeddings
    of its nodes, or another hierarchy is asked for."""
    other = given.settings.query.hierarchy
    if other not in (None, TREE):
        raise UsageError(f"{method} search reads hierarchy {TREE}, and no other: it cannot read {other}")
    kind = asked_hierarchy(given, TREE)
    check_embedded(given, method, [kind.over, kind.reports])
    return kind


def node_kinds(given: Given, method: str) -> list[Kind]:
    """The kinds of record that are nodes of the tree; a small index may have no summary. Raises as
    `tree_of`."""
    tree = tree_of(given, method)
    return [kind for kind in (tree.over, tree.reports) if given.n_rows.get(f"embeddings_{kind}")]


def _first(scores: Mapping[Found, float]) -> dict[Found, float]:
    """The best CANDIDATES of all kinds."""
    best = sorted(scores, key=lambda found: -scores[found])[:CANDIDATES]
    return {found: scores[found] for found in best}
