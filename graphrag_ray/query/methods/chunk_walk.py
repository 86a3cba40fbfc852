"""Rank chunks by a random walk from a question; used by PPR search and local search.

The walk starts at the names that the question mentions, with weight 1 / n^1.5, where n is the number of
chunks that mention the name: rare names are more specific. (HippoRAG 2 divides by the number of chunks; the
exponent is our choice.) A single word in lower case may not be a name, so its weight is multiplied by
UNSURE_WEIGHT.

The walk also starts at chunks that match by keywords, with weight KEYWORD_WEIGHT · (score / best
score)^KEYWORD_SHARPNESS, so only near-best matches count. A question with a rare name therefore follows the
graph, and a question with only descriptions or frequent names follows the keywords. The weights were tuned on
single-hop and multi-hop questions: see "Walks" in benchmarks/RESULTS.md.

If the question mentions no known name, the walk also starts at the entities and chunks nearest by embedding,
with weights NEAR_WEIGHT · (cosine / best)^8 / n^1.5 and NEAR_CHUNK_WEIGHT · (cosine / best)^16.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from graphrag_ray.base.ids import name_id
from graphrag_ray.query.methods.method import Hit, NameCounts, Rows, Search, SearchEnv, Steps, Walk, WalkHit
from graphrag_ray.query.methods.question_names import Mentions, find_mentions
from graphrag_ray.query.methods.reranking import RecordId, n_candidates, reranked

RARITY = 1.5
UNSURE_WEIGHT = 0.3
KEYWORD_WEIGHT, KEYWORD_SHARPNESS = 0.05, 20
NEAR_WEIGHT, NEAR_SHARPNESS = 0.05, 8
NEAR_CHUNK_WEIGHT, NEAR_CHUNK_SHARPNESS = 0.01, 16
MAX_NEAR_ENTITIES, MAX_NEAR_CHUNKS = 5, 20
FACT_WEIGHT = 0.5
"""Weight of a name in a selected fact, if a single chunk mentions the name."""
MAX_KEYWORD_HITS = 100
"""Maximum number of chunks that match by keywords."""
MAX_NAMES = 50
"""Maximum number of names of a question. The rarest are used."""


def walk_chunks(
    texts: Sequence[str],
    env: SearchEnv,
    k: int,
    chunks: Collection[str] | None = None,
    extra_names: Mapping[str, float] | None = None,
) -> Steps[list[list[WalkHit]]]:
    """Find the k chunks (of `chunks`) that a walk from each text and `extra_names` visits most often."""
    only_ids = None if chunks is None else sorted(chunks)
    mentions = [find_mentions(text, name_id) for text in texts]
    counts: list[dict[str, int]] = yield tuple(
        NameCounts({id_: mentioned.text(id_) for id_ in mentioned.spans}) for mentioned in mentions
    )
    by_keywords: list[list[Hit]] = yield tuple(
        Search("text_unit", "keyword", text, MAX_KEYWORD_HITS, only_ids) for text in texts
    )
    walks = []
    for text, mentioned, known, hits in zip(texts, mentions, counts, by_keywords, strict=True):
        names = add_weights(name_weights(mentioned, known), extra_names or {})
        starts = hit_weights(hits, KEYWORD_WEIGHT, KEYWORD_SHARPNESS)
        if not names:
            names, near_chunks = yield from _nearest_starts(text, env, only_ids)
            starts = add_weights(starts, near_chunks)
        depth = n_candidates(env.settings.query, k)
        walks.append(Walk(names, add_weights(starts, {}), depth, only_ids))
    hits_of: list[list[WalkHit]] = yield tuple(walks)
    orders: list[tuple[str, list[RecordId]]] = [
        (text, [("text_unit", hit.id) for hit in hits]) for text, hits in zip(texts, hits_of, strict=True)
    ]
    hit_of = [{hit.id: hit for hit in hits} for hits in hits_of]
    lists = yield from reranked(orders, env)
    return [[by_id[id_] for _, id_ in ids[:k]] for by_id, ids in zip(hit_of, lists, strict=True)]


def _nearest_starts(
    text: str, env: SearchEnv, only_ids: Sequence[str] | None
) -> Steps[tuple[dict[str, float], dict[str, float]]]:
    """Weight the names and chunks nearest to a question, if the index has their embeddings."""
    searches = [
        Search("entity", "vector", text, MAX_NEAR_ENTITIES),
        Search("text_unit", "vector", text, MAX_NEAR_CHUNKS, only_ids),
    ]
    embedded = [s for s in searches if env.n_rows.get(f"embeddings_{s.kind}")]
    lists: list[list[Hit]] = yield tuple(embedded)
    hits = {search.kind: found for search, found in zip(embedded, lists, strict=True)}
    weights = hit_weights(hits.get("entity", []), NEAR_WEIGHT, NEAR_SHARPNESS)
    rows = (yield Rows("entities", ["id", "title"], list(weights))).to_pylist()
    named = {id_: row for row in rows if (id_ := name_id(row["title"]))}
    counts: dict[str, int] = yield NameCounts({id_: row["title"] for id_, row in named.items()})
    names = {id_: weights[named[id_]["id"]] * rarity(n) for id_, n in counts.items()}
    return names, hit_weights(hits.get("text_unit", []), NEAR_CHUNK_WEIGHT, NEAR_CHUNK_SHARPNESS)


def rarity(n_chunks: int) -> float:
    """Compute the weight of a name that `n_chunks` chunks mention. A name in a single chunk has weight 1."""
    return math.pow(max(1, n_chunks), -RARITY)


def name_weights(mentioned: Mentions, counts: Mapping[str, int]) -> dict[str, float]:
    """Weight the names that a question mentions. `counts` has the number of chunks of each known name."""
    sure = set(mentioned.as_names(counts))
    named = mentioned.named(counts)
    weights = {id_: rarity(counts[id_]) * (1 if id_ in sure else UNSURE_WEIGHT) for id_ in named}
    return {id_: weights[id_] for id_ in sorted(weights, key=lambda id_: -weights[id_])[:MAX_NAMES]}


def hit_weights(hits: Sequence[Hit], weight: float, sharpness: float) -> dict[str, float]:
    """Weight hits, given best first, by their sharpened scores."""
    best = hits[0].score if hits else 0.0
    if best <= 0:
        return {}
    return {hit.id: weight * (hit.score / best) ** sharpness for hit in hits if hit.score > 0}


def add_weights(weights: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Add weights by id, and drop negligible sums."""
    sums = dict(weights)
    for id_, weight in others.items():
        sums[id_] = sums.get(id_, 0.0) + weight
    highest = max(sums.values(), default=0.0)
    return {id_: weight for id_, weight in sums.items() if weight > highest * 1e-9}
