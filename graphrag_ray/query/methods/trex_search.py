"""TREX (Cahoon et al. 2025): chunks and the summaries of a tree over them in one index, found by words and by
meaning; the first few answer the question in one call.

Two lists, the nearest by cosine and the nearest by keywords (BM25), each over chunks and summaries alike, are
fused. (TREX has one index; here chunks and summaries have one each, which counts its own words. To bring each
to 0 to 1 by itself finds less.) TREX does so by reciprocal ranks of equal weight. Ours are fused by score, as
hybrid search fuses its lists: that loses less of what keywords alone find ("Trees of summaries" in
benchmarks/RESULTS.md).
"""

from __future__ import annotations

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods.asked_hierarchy import asked_hierarchy, check_embedded
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.method import By, Given, Hit, Kind, Method, Question, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import fused
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
    lists = []
    for by in _WAYS:  # the best of all kinds
        found = [(s.kind, hit) for s, own in zip(searches, hits, strict=True) if s.by == by for hit in own]
        found.sort(key=lambda one: -one[1].score)
        lists.append({(kind, hit.id): hit.score for kind, hit in found[:CANDIDATES]})
    query = given.settings.query
    order = fused(lists, [query.hybrid_vector_weight, 1 - query.hybrid_vector_weight])
    records = yield from loaded(order[: query.trex_k], given)
    context = fill([Share(records)], query.context_tokens, given.count)
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
