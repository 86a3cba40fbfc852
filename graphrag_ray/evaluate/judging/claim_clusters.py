"""The claims of an answer: how many it has, and how many different things they say (GraphRAG 4.2).

Comprehensiveness is the mean number of an answer's claims, diversity that of their clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.evaluate.judging.answer_metrics import normalised, words
from graphrag_ray.evaluate.judging.head_to_head import majorities

THRESHOLDS = (0.5, 0.6, 0.7, 0.8)

MOST_CLAIMS = 500
"""That are clustered at once: all pairs of them are compared. An answer of the paper has 31."""
MOST_CLAIM_WORDS = 200
"""Of a claim that are compared; a claim is a sentence."""


def distinct(claims: Iterable[str]) -> list[str]:
    """The claims without repeats, in their order. Claims are the same whose normal forms
    (`answer_metrics.normalised`) are; one of which nothing is left is no claim."""
    first: dict[str, str] = {}
    for claim in claims:
        first.setdefault(normalised(claim), claim)
    first.pop("", None)
    return list(first.values())


def clusters(claims: Sequence[str], thresholds: Sequence[float] = THRESHOLDS) -> dict[float, int]:
    """For each threshold, the number of clusters of an answer's claims.

    Complete linkage over the distance 1 - ROUGE-L F1: no two claims of a cluster are farther apart than the
    threshold. Of a claim the first MOST_CLAIM_WORDS words count. More than MOST_CLAIMS claims are clustered
    in blocks of so many, one after another; clusters of different blocks are not joined, so the number is an
    upper bound there. Time and memory are linear in the number of blocks.
    """
    from scipy.cluster import hierarchy

    found = dict.fromkeys(thresholds, 0)
    for start in range(0, len(claims), MOST_CLAIMS):
        block = claims[start : start + MOST_CLAIMS]
        if len(block) == 1:
            found = {threshold: n + 1 for threshold, n in found.items()}
            continue
        tree = hierarchy.linkage(_distances(block), "complete")
        # A merge within the threshold makes one cluster fewer; with complete linkage, distances only grow.
        found = {t: n + len(block) - int((tree[:, 2] <= t).sum()) for t, n in found.items()}
    return found


def agreement(
    counts: Mapping[tuple[str, str], float], judgements: pa.Table, criterion: str
) -> tuple[float | None, int]:
    """How often a judge names the answer that has more.

    counts          of claims or clusters, by question id and condition
    judgements      JUDGEMENTS, of which those under `criterion` count

    A case is a question and pair of conditions where the majority of the verdicts (`head_to_head.majorities`)
    is no tie, both answers have counts, and the counts differ. Returns the share of the cases where the
    judge's winner has more, None without a case, and the number of cases. Raises ValueError as `majorities`
    does.
    """
    rows = majorities(judgements.filter(pc.equal(judgements["criterion"], criterion)))
    agreed = cases = 0
    for question, first, second, winner in zip(
        *(rows[name].to_pylist() for name in ("question_id", "first", "second", "winner")), strict=True
    ):
        a, b = counts.get((question, first)), counts.get((question, second))
        if winner and a is not None and b is not None and a != b:
            cases += 1
            agreed += winner == (first if a > b else second)
    return agreed / cases if cases else None, cases


def _distances(claims: Sequence[str]) -> npt.NDArray[np.float64]:
    """1 - ROUGE-L F1 of all pairs (0, 1), (0, 2), …, (1, 2), …, as scipy's clustering wants them."""
    from rapidfuzz import process
    from rapidfuzz.distance import LCSseq

    texts = [words(claim)[:MOST_CLAIM_WORDS] for claim in claims]
    number: dict[str, int] = {}
    numbered = [[number.setdefault(word, len(number)) for word in text] for text in texts]
    common = process.cdist(numbered, numbered, scorer=LCSseq.similarity, dtype=np.int32, workers=1)
    length = np.array([len(text) for text in texts])
    a, b = np.triu_indices(len(texts), 1)
    both = length[a] + length[b]
    # One division of whole numbers: a distance of exactly 0.7 is not more than 0.7.
    distance: npt.NDArray[np.float64] = (both - 2 * common[a, b]) / np.maximum(both, 1)
    distance[both == 0] = 1.0  # without words nothing is alike
    return distance
