"""Answers that hop: personalised PageRank over names and chunks, in the way of HippoRAG 2 (Gutierrez et al.
2025).

A walk begins at the names that the question holds, and at the chunks that match its words
(`restarts.py`); it goes from names to the chunks that hold them and from these to the names that they hold
(`search/walk.py`). So it finds the passage that shares no word with the question: the one on the husband of
whom the question asks about. The chunks where it is most often are read, in one context.

Where we differ from HippoRAG 2: the graph is of names and chunks, without facts and without links between
names that are near by meaning (`indexing/stages/walk_stage.py`); names are found in the question literally.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.ids import name_id
from graphrag_ray.base.schema import WALKS
from graphrag_ray.query import restarts
from graphrag_ray.query.filling import Share, fill
from graphrag_ray.query.method import (
    By,
    Given,
    Hit,
    Kind,
    Method,
    NameCounts,
    Question,
    Rows,
    Search,
    Walk,
    WalkHit,
)
from graphrag_ray.query.one_context import answered, read
from graphrag_ray.query.question_names import mentions
from graphrag_ray.query.record_rows import looked_up
from graphrag_ray.query.where import within
from graphrag_ray.reports.report_context import Context

NAME = "ppr"
NEAR_ENTITIES, NEAR_CHUNKS = 5, 20


def search(question: Question, given: Given) -> Method:
    """Answer from the chunks that a walk comes to. Raises UsageError for an index that cannot be walked, and
    for conditions that cannot be met."""
    check_walks(given)
    chunks = yield from within(question.where)
    hits = yield from walked(question.text, given, given.settings.query.ppr_k, chunks)
    context = yield from context_of([hit.id for hit in hits], given)
    what = yield from read(question.text, given, context)
    return (yield from answered(question.text, NAME, what))


def check_walks(given: Given) -> None:
    """Raises UsageError for an index without a graph, and for one of an earlier version."""
    if WALKS in given.n_rows:
        return
    if not given.n_rows.get("entities"):
        raise UsageError(
            f"{NAME} search walks over names, and this index has none: it was made without a graph. "
            "`graphrag-ray index --build names` finds them without a model, in seconds a million tokens"
        )
    raise UsageError(
        f"{NAME} search needs an index for walks, and this snapshot has none: it was made by an earlier "
        "graphrag-ray. Run the same `graphrag-ray index` command again to build it; no model is asked"
    )


def walked(
    text: str, given: Given, k: int, chunks: Collection[str] | None = None
) -> Generator[Any, Any, list[WalkHit]]:
    """The k chunks that a walk from a question comes to most often. chunks: the only ones that count."""
    among = None if chunks is None else sorted(chunks)
    could_be = mentions(text, name_id)
    counts, by_words = yield (
        NameCounts({id_: could_be.text(id_) for id_ in could_be.spans}),
        Search("text_unit", "keyword", text, restarts.MOST_HITS, among),
    )
    names = restarts.of_names(could_be, counts)
    begin = restarts.of_hits(by_words, restarts.WORDS, restarts.SHARPNESS)
    if not names:
        near_names, near_chunks = yield from _near(text, given, among)
        names, begin = near_names, restarts.added(begin, near_chunks)
    hits: list[WalkHit] = yield Walk(names, restarts.added(begin, {}), k, among)
    return hits


def context_of(ids: Sequence[str], given: Given) -> Generator[Any, Any, Context]:
    """A context of these chunks, in their order."""
    known = yield from looked_up({"text_unit": ids}, given)
    records = [known["text_unit"][id_] for id_ in ids if id_ in known["text_unit"]]
    return fill([Share(records)], given.settings.query.context_tokens, given.count)


def _near(
    text: str, given: Given, among: Sequence[str] | None
) -> Generator[Any, Any, tuple[dict[str, float], dict[str, float]]]:
    """Names and chunks that the question is near to by meaning, as far as these are embedded."""
    kinds: list[tuple[Kind, int]] = [("entity", NEAR_ENTITIES), ("text_unit", NEAR_CHUNKS)]
    there = [(kind, k) for kind, k in kinds if given.n_rows.get(f"embeddings_{kind}")]
    by: By = "vector"
    lists: list[list[Hit]] = yield tuple(
        Search(kind, by, text, k, among if kind == "text_unit" else None) for kind, k in there
    )
    found = {kind: hits for (kind, _), hits in zip(there, lists, strict=True)}
    names = yield from _names_of(found.get("entity", []))
    chunks = restarts.of_hits(
        found.get("text_unit", []), restarts.NEAR_CHUNKS, restarts.NEAR_CHUNKS_SHARPNESS
    )
    return names, chunks


def _names_of(hits: Sequence[Hit]) -> Generator[Any, Any, dict[str, float]]:
    """The names of entities, the rarer the heavier."""
    rows = (yield Rows("entities", ["id", "title"], [hit.id for hit in hits])).to_pylist()
    title: Mapping[str, str] = {row["id"]: row["title"] for row in rows}
    weights = restarts.of_hits(hits, restarts.NEAR, restarts.NEAR_SHARPNESS)
    of_name = {name_id(title[id_]): id_ for id_ in weights if id_ in title}
    counts: dict[str, int] = yield NameCounts({name: title[id_] for name, id_ in of_name.items() if name})
    return {name: weights[of_name[name]] * restarts.rarity(n) for name, n in counts.items()}
