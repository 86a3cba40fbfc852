"""The answer to the description prompt: the sentences that say most, as they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from graphrag_ray.offline.summarise import MAX_SENTENCES, content_stems, lexrank, mmr, similarities
from graphrag_ray.offline.units import JOIN, join_pieces, pieces

CHARS_PER_TOKEN = 3.4
"""Of English prose, on the safe side, for lengths given in tokens."""
MAX_PIECES = {"entity": 8, "relationship": 4}

_SAYS = re.compile(
    r"['’)]?s?,? (?:is|was|are|were|has been) (?:a|an|the|one of)\b|, (?:a|an|the|who|whose)\b", re.I
)


def description(variables: Mapping[str, str]) -> str:
    """Choose among the quotations in `descriptions` (one description a line) by LexRank and MMR, those
    that define `name` first; they are written in the order in which they came."""
    texts = list(dict.fromkeys(p for line in variables["descriptions"].split("\n") for p in pieces(line)))
    if not texts:  # nothing but phrases of our own
        return variables["descriptions"].split("\n")[0].strip() or variables.get("name", "")
    room = int(_number(variables.get("max_tokens", ""), 500) * CHARS_PER_TOKEN)
    limit = MAX_PIECES.get(variables.get("kind", ""), 6)
    texts = texts[:MAX_SENTENCES]
    if len(texts) <= limit and len(join_pieces(texts)) <= room:
        return join_pieces(texts)
    stems = [content_stems(t) for t in texts]
    similarity = similarities(stems)
    relevance = 0.6 * lexrank(similarity) + np.array([_worth(t, variables.get("name", "")) for t in texts])
    chosen: list[int] = []
    used = 0
    for index in mmr(np.maximum(relevance, 0.01), similarity, limit):
        size = len(texts[index]) + len(JOIN)
        if chosen and used + size > room:
            continue
        chosen.append(index)
        used += size
    return join_pieces(texts[i] for i in sorted(chosen))[: max(room, 1)] if chosen else texts[0]


def _worth(text: str, name: str) -> float:
    """Definitional sentences first, greetings and fragments last."""
    worth = min(len(text), 160) / 400 - max(0, len(text) - 350) / 500
    at = text.upper().find(name)
    if at >= 0 and _SAYS.match(text, at + len(name)):
        worth += 0.5
    if text[-1:] == "?" or not text[:1].isupper():
        worth -= 0.2
    return worth


def _number(text: str, default: int) -> int:
    return int(text) if text.isdigit() and int(text) > 0 else default
