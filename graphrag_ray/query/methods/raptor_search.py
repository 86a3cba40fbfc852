"""RAPTOR (Sarthi et al. 2024, section 3): a question read against a tree of summaries by meaning alone, in
one call.

collapsed   all nodes, chunks and summaries alike: the nearest, within `query.raptor_tokens`
tree        the nearest of the highest level, then the nearest of their children, down to chunks: those of all
            levels, within `query.context_tokens`

Where that does not hold all nodes of a traversal, those nearest to the question come first.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from graphrag_ray.base.ids import report_id
from graphrag_ray.query.methods.filling import Share, fill
from graphrag_ray.query.methods.method import Given, Hit, Kind, Method, Question, Rows, Search
from graphrag_ray.query.methods.methods import MethodKind
from graphrag_ray.query.methods.one_context import answer_from
from graphrag_ray.query.methods.record_rows import loaded
from graphrag_ray.query.methods.trex_search import node_kinds, tree_of

NAME = "raptor"
CLUSTER = ["id", "human_readable_id", "children"]


def search(question: Question, given: Given) -> Method:
    """Answer from the nearest nodes. Raises UsageError for an index without a tree or its embeddings."""
    query, k = given.settings.query, given.settings.query.raptor_k
    kinds = node_kinds(given, NAME)
    if query.traversal == "tree":
        hits, setting = (yield from _descended(question.text, given)), "context_tokens"
    else:
        lists = yield tuple(Search(kind, "vector", question.text, k) for kind in kinds)
        hits = [(kind, hit) for kind, own in zip(kinds, lists, strict=True) for hit in own]
        setting = "raptor_tokens"
    nearest = sorted(hits, key=lambda hit: -hit[1].score)
    first = nearest if query.traversal == "tree" else nearest[:k]
    records = yield from loaded(((kind, hit.id) for kind, hit in first), given)
    context = fill([Share(records)], getattr(query, setting), given.count)
    return (yield from answer_from(question.text, given, NAME, context, setting=setting))


METHOD = MethodKind(
    search,
    asks=("embed", "answer"),
    reads="passages and summaries, by meaning",
    hierarchy="tree",
    instead="vector",
    others=("trex", "hybrid"),
    option=("traversal", "traversal"),
    reports=True,
)


def _descended(text: str, given: Given) -> Generator[Any, Any, list[tuple[Kind, Hit]]]:
    """The nearest of each level among the children of those above. A cluster whose summary failed, or was not
    embedded, stands aside for its own children."""
    tree, k = tree_of(given, NAME), given.settings.query.raptor_k
    found: list[tuple[Kind, Hit]] = []
    chunks: dict[str, None] = {}
    clusters = (yield Rows(tree.communities, CLUSTER, [0], by="level")).to_pylist()
    if not clusters:
        hits = yield Search(tree.over, "vector", text, k)
        return [(tree.over, hit) for hit in hits]
    while clusters:
        by_report = {report_id(row["id"]): row for row in clusters}
        hits = yield Search(tree.reports, "vector", text, len(by_report), sorted(by_report))
        found += [(tree.reports, hit) for hit in hits[:k]]
        there = {hit.id for hit in hits}
        chosen = [by_report[hit.id] for hit in hits[:k]]
        chosen += [row for id_, row in by_report.items() if id_ not in there]
        lowest = [row["id"] for row in chosen if not row["children"]]
        of_lowest = yield Rows(tree.communities, ["id", "text_unit_ids"], lowest)
        chunks |= dict.fromkeys(id_ for ids in of_lowest["text_unit_ids"].to_pylist() for id_ in ids)
        below = dict.fromkeys(number for row in chosen for number in row["children"])
        clusters = (yield Rows(tree.communities, CLUSTER, list(below), by="human_readable_id")).to_pylist()
    hits = yield Search(tree.over, "vector", text, k, sorted(chunks))
    return [*found, *((tree.over, hit) for hit in hits)]
