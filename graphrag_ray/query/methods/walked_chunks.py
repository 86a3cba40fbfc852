"""The chunks that a walk from a question comes to: those that `ppr` reads, and local search.

A question of names is walked from these; one that names nothing from what it is near to by meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from graphrag_ray.base.ids import name_id
from graphrag_ray.query.methods import restarts
from graphrag_ray.query.methods.method import By, Given, Hit, Kind, NameCounts, Rows, Search, Walk, WalkHit
from graphrag_ray.query.methods.question_names import mentions

NEAR_ENTITIES, NEAR_CHUNKS = 5, 20


def walked(
    texts: Sequence[str],
    given: Given,
    k: int,
    chunks: Collection[str] | None = None,
    more_names: Mapping[str, float] | None = None,
) -> Generator[Any, Any, list[list[WalkHit]]]:
    """For each text, the k chunks that a walk from it comes to most often.

    chunks: ids of the only ones that count; more_names: where every walk begins as well, by id
    """
    among = None if chunks is None else sorted(chunks)
    could_be = [mentions(text, name_id) for text in texts]
    counts: list[dict[str, int]] = yield tuple(
        NameCounts({id_: one.text(id_) for id_ in one.spans}) for one in could_be
    )
    by_words: list[list[Hit]] = yield tuple(
        Search("text_unit", "keyword", text, restarts.MOST_HITS, among) for text in texts
    )
    walks = []
    for text, one, known, hits in zip(texts, could_be, counts, by_words, strict=True):
        names = restarts.added(restarts.of_names(one, known), more_names or {})
        begin = restarts.of_hits(hits, restarts.WORDS, restarts.SHARPNESS)
        if not names:
            names, near_chunks = yield from _near(text, given, among)
            begin = restarts.added(begin, near_chunks)
        walks.append(Walk(names, restarts.added(begin, {}), k, among))
    found: list[list[WalkHit]] = yield tuple(walks)
    return found


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
