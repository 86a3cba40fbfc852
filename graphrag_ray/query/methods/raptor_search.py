"""RAPTOR (Sarthi et al. 2024, section 3): search a summary tree by embeddings, in one call.

`query.raptor_traversal` chooses the strategy:
    collapsed   the nearest of all nodes, both chunks and summaries, within `query.raptor_context_tokens` tree
    the nearest nodes of the highest level, then the nearest of their children, down to chunks; the
                nearest of all that fit into `query.context_tokens`
"""

from __future__ import annotations

from graphrag_ray.base.ids import report_id
from graphrag_ray.query.methods.context_filling import Share, fill
from graphrag_ray.query.methods.method import Hit, Kind, Method, Question, Rows, Search, SearchEnv, Steps
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.record_loading import load_records
from graphrag_ray.query.methods.single_context import answer_from
from graphrag_ray.query.methods.trex_search import node_kinds, tree_of

NAME = "raptor"
CLUSTER_COLUMNS = ["id", "human_readable_id", "children"]


def search(question: Question, env: SearchEnv) -> Method:
    """Answer from the nearest nodes of the tree."""
    query, k = env.settings.query, env.settings.query.raptor_k
    kinds = node_kinds(env, NAME)
    if query.raptor_traversal == "tree":
        hits, setting = (yield from _traverse(question.text, env)), "context_tokens"
    else:
        lists = yield tuple(Search(kind, "vector", question.text, k) for kind in kinds)
        hits = [(kind, hit) for kind, found in zip(kinds, lists, strict=True) for hit in found]
        setting = "raptor_context_tokens"
    nearest = sorted(hits, key=lambda hit: -hit[1].score)
    first = nearest if query.raptor_traversal == "tree" else nearest[:k]
    records = yield from load_records(((kind, hit.id) for kind, hit in first), env)
    context = fill([Share(records)], getattr(query, setting), env.count)
    return (yield from answer_from(question.text, env, NAME, context, setting=setting))


METHOD = MethodKind(
    search,
    stages=("embed", "answer"),
    description="passages and summaries by embedding",
    hierarchy="tree",
    alternative="vector",
    suggestions=("trex", "hybrid"),
    option=("traversal", "raptor_traversal"),
    reports=True,
)


def _traverse(text: str, env: SearchEnv) -> Steps[list[tuple[Kind, Hit]]]:
    """Find the nearest nodes level by level. Clusters without an embedding are always followed."""
    tree, k = tree_of(env, NAME), env.settings.query.raptor_k
    found: list[tuple[Kind, Hit]] = []
    chunks: dict[str, None] = {}
    clusters = (yield Rows(tree.communities_table, CLUSTER_COLUMNS, [0], by="level")).to_pylist()
    if not clusters:
        hits = yield Search(tree.member_kind, "vector", text, k)
        return [(tree.member_kind, hit) for hit in hits]
    while clusters:
        by_report = {report_id(row["id"]): row for row in clusters}
        hits = yield Search(tree.report_kind, "vector", text, len(by_report), sorted(by_report))
        found += [(tree.report_kind, hit) for hit in hits[:k]]
        embedded = {hit.id for hit in hits}
        chosen = [by_report[hit.id] for hit in hits[:k]]
        chosen += [row for id_, row in by_report.items() if id_ not in embedded]
        lowest = [row["id"] for row in chosen if not row["children"]]
        members = yield Rows(tree.communities_table, ["id", "text_unit_ids"], lowest)
        chunks |= dict.fromkeys(id_ for ids in members["text_unit_ids"].to_pylist() for id_ in ids)
        below = dict.fromkeys(number for row in chosen for number in row["children"])
        clusters = (
            yield Rows(tree.communities_table, CLUSTER_COLUMNS, list(below), by="human_readable_id")
        ).to_pylist()
    hits = yield Search(tree.member_kind, "vector", text, k, sorted(chunks))
    return [*found, *((tree.member_kind, hit) for hit in hits)]
