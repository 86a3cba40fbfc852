"""TREX (Cahoon et al. 2025): search the chunks and summaries of a tree by keywords and embeddings.

Two lists of chunks and summaries are fused, the nearest by cosine similarity and by BM25. TREX has one index.
Here, chunks and summaries have separate indexes with separate word statistics. (Scaling their scores to 0–1
separately gives worse results.) TREX fuses by reciprocal rank with equal weights (`query.fusion: rrf`). The
default is by score, which loses fewer records that only keywords find: see "Fusion" in benchmarks/RESULTS.md.
"""

from __future__ import annotations

from graphrag_ray.base.declarations import HierarchyKind
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods.context_filling import Share, fill
from graphrag_ray.query.methods.hierarchy_choice import check_embedded, resolve_hierarchy
from graphrag_ray.query.methods.hybrid_search import BOTH
from graphrag_ray.query.methods.method import Hit, Kind, Method, Question, Search, SearchEnv
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.nearest import fuse_searches
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.reranking import reranked
from graphrag_ray.query.methods.single_context import answer_from

NAME = "trex"
TREE = "tree"
CANDIDATES = 100
"""Number of hits of each list."""
WITHOUT_TREE = "Only chunks were read: the index was made with --build names and has no summaries."


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the first `query.trex_k` chunks and summaries (chunks, if there are no hierarchies)."""
    kinds: list[Kind] = ["text_unit"]
    if env.settings.hierarchies:
        kinds = node_kinds(env, NAME)
    else:
        check_embedded(env, NAME, kinds)
    searches = [Search(kind, by, question.text, CANDIDATES) for by in BOTH for kind in kinds]
    hits: list[list[Hit]] = yield tuple(searches)
    lists = []
    for by in BOTH:
        of_type = [found for search, found in zip(searches, hits, strict=True) if search.by == by]
        ranked = [(kind, hit) for kind, found in zip(kinds, of_type, strict=True) for hit in found]
        ranked.sort(key=lambda scored: -scored[1].score)
        lists.append({(kind, hit.id): hit.score for kind, hit in ranked[:CANDIDATES]})
    query = env.settings.query
    (order,) = yield from reranked([(question.text, fuse_searches(lists, BOTH, query))], env)
    records = yield from load_records(order[: query.trex_k], env)
    context = fill([Share(records)], query.context_tokens, env.count)
    notes = [] if env.settings.hierarchies else [WITHOUT_TREE]
    return (yield from answer_from(question.text, env, NAME, context, notes))


METHOD = MethodKind(
    search,
    stages=("embed", "rerank", "answer"),
    description="passages and summaries by keywords and embedding",
    hierarchy="tree",
    alternative="hybrid",
    suggestions=("hybrid", "global"),
)


def tree_of(env: SearchEnv, method: str) -> HierarchyKind:
    """Look up the tree. Raises ReportsMissing, or UsageError without a tree or its embeddings."""
    other = env.settings.query.hierarchy
    if other not in (None, TREE):
        raise UsageError(f"{method} search reads only the hierarchy {TREE!r}, not {other!r}")
    kind = resolve_hierarchy(env, TREE)
    check_embedded(env, method, [kind.member_kind, kind.report_kind])
    return kind


def node_kinds(env: SearchEnv, method: str) -> list[Kind]:
    """List the kinds of tree nodes that exist. A small index may have no summaries."""
    tree = tree_of(env, method)
    return [kind for kind in (tree.member_kind, tree.report_kind) if env.n_rows.get(f"embeddings_{kind}")]
