"""The chunks that a walk from a question comes to: those that `ppr` reads, and local search.

Names that the question holds begin with 1 / chunks^1.5, chunks being those that hold the name: a rare one
says more. (HippoRAG 2 divides by the chunks; the exponent is ours.) One that is not surely a name, a single
word in small letters, counts UNSURE as much.

Chunks that match by words begin with WORDS · (score / best score)^SHARPNESS: only what matches nearly as well
as the best. So a question with a rare name follows the graph, and one that describes what it asks for, or
whose names are everywhere, follows the words. The weights were tried on questions of one hop and of several:
"Walks" in benchmarks/RESULTS.md.

Where the question holds no name that is known, entities and chunks that it is near to by meaning begin as
well: NEAR · (cosine / best)^8 / chunks^1.5, and NEAR_CHUNKS · (cosine / best)^16.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from graphrag_ray.base.ids import name_id
from graphrag_ray.query.methods.method import Given, Hit, NameCounts, Rows, Search, Walk, WalkHit
from graphrag_ray.query.methods.question_names import Mentions, mentions

RARITY = 1.5
UNSURE = 0.3
WORDS, SHARPNESS = 0.05, 20
NEAR, NEAR_SHARPNESS = 0.05, 8
NEAR_CHUNKS, NEAR_CHUNKS_SHARPNESS = 0.01, 16
MOST_NEAR_ENTITIES, MOST_NEAR_CHUNKS = 5, 20
FACT_WEIGHT = 0.5
"""Of a name that a picked fact links, which one chunk holds."""
MOST_HITS = 100
"""Chunks that match by words, at most."""
MOST_NAMES = 50
"""Names of a question, at most: the rarest ones."""


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
        Search("text_unit", "keyword", text, MOST_HITS, among) for text in texts
    )
    walks = []
    for text, one, known, hits in zip(texts, could_be, counts, by_words, strict=True):
        names = added(of_names(one, known), more_names or {})
        begin = of_hits(hits, WORDS, SHARPNESS)
        if not names:
            names, near_chunks = yield from _near(text, given, among)
            begin = added(begin, near_chunks)
        walks.append(Walk(names, added(begin, {}), k, among))
    found: list[list[WalkHit]] = yield tuple(walks)
    return found


def _near(
    text: str, given: Given, among: Sequence[str] | None
) -> Generator[Any, Any, tuple[dict[str, float], dict[str, float]]]:
    """Names and chunks that the question is near to by meaning, as far as these are embedded."""
    searches = [
        Search("entity", "vector", text, MOST_NEAR_ENTITIES),
        Search("text_unit", "vector", text, MOST_NEAR_CHUNKS, among),
    ]
    there = [s for s in searches if given.n_rows.get(f"embeddings_{s.kind}")]
    lists: list[list[Hit]] = yield tuple(there)
    found = {search.kind: hits for search, hits in zip(there, lists, strict=True)}
    weights = of_hits(found.get("entity", []), NEAR, NEAR_SHARPNESS)
    rows = (yield Rows("entities", ["id", "title"], list(weights))).to_pylist()
    named = {id_: row for row in rows if (id_ := name_id(row["title"]))}
    counts: dict[str, int] = yield NameCounts({id_: row["title"] for id_, row in named.items()})
    names = {id_: weights[named[id_]["id"]] * rarity(n) for id_, n in counts.items()}
    return names, of_hits(found.get("text_unit", []), NEAR_CHUNKS, NEAR_CHUNKS_SHARPNESS)


def rarity(n_chunks: int) -> float:
    """Of a name that so many chunks hold; 1 for one."""
    return math.pow(max(1, n_chunks), -RARITY)


def of_names(could_be: Mentions, counts: Mapping[str, int]) -> dict[str, float]:
    """By id, the names that a question holds. counts: chunks that hold each name that is known."""
    sure = set(could_be.as_names(counts))
    found = {id_: rarity(counts[id_]) * (1 if id_ in sure else UNSURE) for id_ in could_be.named(counts)}
    first = sorted(found, key=lambda id_: -found[id_])[:MOST_NAMES]
    return {id_: found[id_] for id_ in first}


def of_hits(hits: Sequence[Hit], weight: float, sharpness: float) -> dict[str, float]:
    """By id, what was found, sharpened. hits: best first."""
    best = hits[0].score if hits else 0.0
    if best <= 0:
        return {}
    return {hit.id: weight * (hit.score / best) ** sharpness for hit in hits if hit.score > 0}


def added(weights: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """The sums of both. What is too little to count is left out."""
    found = dict(weights)
    for id_, weight in more.items():
        found[id_] = found.get(id_, 0.0) + weight
    most = max(found.values(), default=0.0)
    return {id_: weight for id_, weight in found.items() if weight > most * 1e-9}
