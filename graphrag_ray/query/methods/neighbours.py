"""What stands beside the first chunks of a context in their documents, where the context has room left.

A chunk may end in the middle of what it tells. What was found by rank is never pushed out, and what two
chunks share is shown once: in the one that was found, not in the one beside it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from graphrag_ray.graph.report_context import Context, source
from graphrag_ray.query.methods.filling import MIN_NEIGHBOUR_TOKENS, Neighbour, Share, fill
from graphrag_ray.query.methods.method import Given, Rows
from graphrag_ray.query.methods.record_rows import Row, with_documents


def with_neighbours(
    context: Context, shares: Sequence[Share], given: Given, left_out: int = 0
) -> Generator[Any, Any, Context]:
    """The context that `fill` made of these shares; with room left, the chunk after and the one before each
    of its first query.neighbours chunks stand beside it."""
    query = given.settings.query
    sources = [id_ for (section, _), id_ in context.numbering.items() if section == "Sources"]
    first = sources[: query.neighbours]
    if not first or query.context_tokens - context.n_tokens < MIN_NEIGHBOUR_TOKENS:
        return context
    beside = yield from _beside(first, given)
    return fill(shares, query.context_tokens, given.count, left_out, beside) if beside else context


def _beside(chunks: Sequence[str], given: Given) -> Generator[Any, Any, list[Neighbour]]:
    rows = (yield Rows("text_units", ["id", "document_id", "start", "end"], chunks)).to_pylist()
    own = {row["id"]: row for row in rows if row["document_id"]}
    ids = list(dict.fromkeys(row["document_id"] for row in own.values()))
    documents = (yield Rows("documents", ["id", "text_unit_ids"], ids)).to_pylist() if ids else []
    order = {d["id"]: d["text_unit_ids"] or [] for d in documents}
    wanted = [
        (id_, chunk, before)
        for chunk in chunks
        if chunk in own
        for id_, before in _next_to(chunk, order.get(own[chunk]["document_id"], []))
    ]
    if not wanted:
        return []
    columns = ["id", "text", "document_id", "start", "end"]
    found = (yield Rows("text_units", columns, list(dict.fromkeys(w[0] for w in wanted)))).to_pylist()
    by_id = {row["id"]: row for row in (yield from with_documents(found, given))}
    return [
        Neighbour(source(id_, text, by_id[id_].get("document", "")), chunk, before)
        for id_, chunk, before in wanted
        if id_ in by_id and (text := _new_in(by_id[id_], own[chunk], before).strip())
    ]


def _next_to(chunk: str, order: Sequence[str]) -> list[tuple[str, bool]]:
    """The chunk after it, the one before it; and whether it is before."""
    at = order.index(chunk) if chunk in order else len(order)
    return [(id_, False) for id_ in order[at + 1 : at + 2]] + [(id_, True) for id_ in order[:at][-1:]]


def _new_in(row: Row, own: Mapping[str, Any], before: bool) -> str:
    """The text of a chunk without what the one beside it also holds."""
    text: str = row["text"]
    if before:
        return text[: max(0, own["start"] - row["start"])]
    return text[max(0, own["end"] - row["start"]) :]
