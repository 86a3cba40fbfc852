"""Where a walk over names and chunks begins, and with which weights, for a question.

Names that the question holds begin with 1 / chunks^1.5, chunks being those that hold the name: a rare one
says more. (HippoRAG 2 divides by the chunks; the exponent is ours.) One that is not surely a name, a single
word in small letters, counts UNSURE as much.

Chunks that match by words begin with WORDS · (score / best score)^SHARPNESS: only what matches nearly as well
as the best. So a question with a rare name follows the graph, and one that describes what it asks for, or
whose names are everywhere, follows the words. The weights were tried on
questions of one hop and of several: "Walks" in benchmarks/RESULTS.md.

Where the question holds no name that is known, entities and chunks that it is near to by meaning begin as
well: NEAR · (cosine / best)^8 / chunks^1.5, and NEAR_CHUNKS · (cosine / best)^16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graphrag_ray.query.methods.method import Hit
from graphrag_ray.query.methods.question_names import Mentions

RARITY = 1.5
UNSURE = 0.3
WORDS, SHARPNESS = 0.05, 20
NEAR, NEAR_SHARPNESS = 0.05, 8
NEAR_CHUNKS, NEAR_CHUNKS_SHARPNESS = 0.01, 16
FACTS = 0.5
"""Of a name that a picked fact links, which one chunk holds."""
MOST_HITS = 100
"""Chunks that match by words, at most."""
MOST_NAMES = 50
"""Names of a question, at most: the rarest ones."""


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
