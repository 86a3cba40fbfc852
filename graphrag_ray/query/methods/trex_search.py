"""TREX (Cahoon et al. 2025): search the chunks and summaries of a tree by keywords and meaning.

Two lists, the nearest by cosine and by BM25, each of chunks and summaries, are fused. TREX has one index;
here chunks and summaries have one each, with its own word statistics. (Scaling each to 0–1 separately finds
less.) TREX fuses by reciprocal ranks of equal weight. We fuse by score like hybrid search, which loses less
of what only keywords find: see "Summary trees" in benchmarks/RESULTS.md.
"""

from __future__ import annotations

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods.context_filling import Share, fill
from graphrag_ray.query.methods.hierarchy_choice import check_embedded, resolve_hierarchy
from graphrag_ray.query.methods.hybrid_search import BOTH
from graphrag_ray.query.methods.method import Hit, Kind, Method, Question, Search, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import fuse
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import answer_from

NAME = "trex"
TREE = "tree"
CANDIDATES = 100
"""Hits of each list that are fused."""
WITHOUT_TREE = "Only chunks were read: the index was made with --build names and has no summaries."


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the first `query.trex_k` chunks and summaries, or chunks if the index has only names."""
    kinds: list[Kind] = ["text_unit"]
    if env.settings.hierarchies:
        kinds = node_kinds(env, NAME)
    else:
        check_embedded(env, NAME, kinds)
    searches = [Search(kind, by, question.text, CANDIDATES) for by in BOTH for kind in kinds]
    hits: list[list[Hit]] = yield tuple(searches)
    lists = []
    for by in BOTH:
        found = [(s.kind, hit) for s, own in zip(searches, hits, strict=True) if s.by == by for hit in own]
        found.sort(key=lambda one: -one[1].score)
        lists.append({(kind, hit.id): hit.score for kind, hit in found[:CANDIDATES]})
    query = env.settings.query
    order = fuse(lists, [query.hybrid_vector_weight, 1 - query.hybrid_vector_weight])
    records = yield from load_records(order[: query.trex_k], env)
    context = fill([Share(records)], query.context_tokens, env.count)
    notes = [] if env.settings.hierarchies else [WITHOUT_TREE]
    return (yield from answer_from(question.text, env, NAME, context, notes))


METHOD = MethodKind(
    search,
    stages=("embed", "answer"),
    description="passages and summaries, by words and meaning",
    hierarchy="tree",
    alternative="hybrid",
    suggestions=("hybrid", "global"),
)


def tree_of(env: SearchEnv, method: str) -> HierarchyKind:
    """Look up the tree of an index. Raises ReportsMissing, and UsageError without a tree or
    its embeddings."""
    other = env.settings.query.hierarchy
    if other not in (None, TREE):
        raise UsageError(f"{method} search reads only the hierarchy {TREE!r}, not {other!r}")
    kind = resolve_hierarchy(env, TREE)
    check_embedded(env, method, [kind.member_kind, kind.report_kind])
    return kind


def node_kinds(env: SearchEnv, method: str) -> list[Kind]:
    """The kinds of tree nodes that exist: a small index may have no summaries."""
    tree = tree_of(env, method)
    return [kind for kind in (tree.member_kind, tree.report_kind) if env.n_rows.get(f"embeddings_{kind}")]
