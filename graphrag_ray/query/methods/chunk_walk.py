"""Rank chunks by a random walk from a question; used by PPR search and local search.

The walk starts at the names that the question mentions, with weight 1 / chunks^1.5, where chunks is the
number of chunks that mention the name: rare names are more specific. (HippoRAG 2 divides by the number of
chunks; the exponent is ours.) A mention that may not be a name, a single word in small letters, is weighted
by UNSURE.

Chunks that match by keywords start with WORDS · (score / best score)^SHARPNESS, so only near-best matches
count. A question with a rare name therefore follows the graph; one that describes what it asks for, or whose
names are frequent, follows the keywords. The weights were tuned on single-hop and multi-hop questions: see
"Walks" in benchmarks/RESULTS.md.

If the question mentions no known name, the entities and chunks nearest by embedding are starts, too: NEAR ·
(cosine / best)^8 / chunks^1.5, and NEAR_CHUNKS · (cosine / best)^16.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from graphrag_ray.base.ids import name_id
from graphrag_ray.query.methods.method import Hit, NameCounts, Rows, Search, SearchEnv, Steps, Walk, WalkHit
from graphrag_ray.query.methods.question_names import Mentions, find_mentions

RARITY = 1.5
UNSURE = 0.3
WORDS, SHARPNESS = 0.05, 20
NEAR, NEAR_SHARPNESS = 0.05, 8
NEAR_CHUNKS, NEAR_CHUNKS_SHARPNESS = 0.01, 16
MOST_NEAR_ENTITIES, MOST_NEAR_CHUNKS = 5, 20
FACT_WEIGHT = 0.5
"""Weight of a name in a picked fact that one chunk mentions."""
MOST_HITS = 100
"""Maximum number of chunks that match by keywords."""
MOST_NAMES = 50
"""Maximum number of names of a question; the rarest are kept."""


def walk_chunks(
    texts: Sequence[str],
    env: SearchEnv,
    k: int,
    chunks: Collection[str] | None = None,
    more_names: Mapping[str, float] | None = None,
) -> Steps[list[list[WalkHit]]]:
    """Find the k chunks (of `chunks`) that a walk from each text and `more_names` visits most often."""
    among = None if chunks is None else sorted(chunks)
    mentions = [find_mentions(text, name_id) for text in texts]
    counts: list[dict[str, int]] = yield tuple(
        NameCounts({id_: one.text(id_) for id_ in one.spans}) for one in mentions
    )
    by_keywords: list[list[Hit]] = yield tuple(
        Search("text_unit", "keyword", text, MOST_HITS, among) for text in texts
    )
    walks = []
    for text, mentioned, known, hits in zip(texts, mentions, counts, by_keywords, strict=True):
        names = add_weights(name_weights(mentioned, known), more_names or {})
        starts = hit_weights(hits, WORDS, SHARPNESS)
        if not names:
            names, near_chunks = yield from _near(text, env, among)
            starts = add_weights(starts, near_chunks)
        walks.append(Walk(names, add_weights(starts, {}), k, among))
    hits_of: list[list[WalkHit]] = yield tuple(walks)
    return hits_of


def _near(
    text: str, env: SearchEnv, among: Sequence[str] | None
) -> Steps[tuple[dict[str, float], dict[str, float]]]:
    """Weigh the names and chunks nearest to a question, as far as these are embedded."""
    searches = [
        Search("entity", "vector", text, MOST_NEAR_ENTITIES),
        Search("text_unit", "vector", text, MOST_NEAR_CHUNKS, among),
    ]
    embedded = [s for s in searches if env.n_rows.get(f"embeddings_{s.kind}")]
    lists: list[list[Hit]] = yield tuple(embedded)
    hits = {search.kind: own for search, own in zip(embedded, lists, strict=True)}
    weights = hit_weights(hits.get("entity", []), NEAR, NEAR_SHARPNESS)
    rows = (yield Rows("entities", ["id", "title"], list(weights))).to_pylist()
    named = {id_: row for row in rows if (id_ := name_id(row["title"]))}
    counts: dict[str, int] = yield NameCounts({id_: row["title"] for id_, row in named.items()})
    names = {id_: weights[named[id_]["id"]] * rarity(n) for id_, n in counts.items()}
    return names, hit_weights(hits.get("text_unit", []), NEAR_CHUNKS, NEAR_CHUNKS_SHARPNESS)


def rarity(n_chunks: int) -> float:
    """Weight of a name that `n_chunks` chunks mention; 1 for a single chunk."""
    return math.pow(max(1, n_chunks), -RARITY)


def name_weights(mentioned: Mentions, counts: Mapping[str, int]) -> dict[str, float]:
    """Weigh the names that a question mentions. `counts` has the number of chunks of each known name."""
    sure = set(mentioned.as_names(counts))
    weights = {id_: rarity(counts[id_]) * (1 if id_ in sure else UNSURE) for id_ in mentioned.named(counts)}
    return {id_: weights[id_] for id_ in sorted(weights, key=lambda id_: -weights[id_])[:MOST_NAMES]}


def hit_weights(hits: Sequence[Hit], weight: float, sharpness: float) -> dict[str, float]:
    """Weigh hits, best first, by their sharpened scores."""
    best = hits[0].score if hits else 0.0
    if best <= 0:
        return {}
    return {hit.id: weight * (hit.score / best) ** sharpness for hit in hits if hit.score > 0}


def add_weights(weights: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Add weights by id, and drop negligible ones."""
    sums = dict(weights)
    for id_, weight in more.items():
        sums[id_] = sums.get(id_, 0.0) + weight
    highest = max(sums.values(), default=0.0)
    return {id_: weight for id_, weight in sums.items() if weight > highest * 1e-9}
