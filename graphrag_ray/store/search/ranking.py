"""Best first, ties by id: the same question has the same answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Found: TypeAlias = tuple[str, float]
"""Id and score of a record."""


def best(scores: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.int64]:
    """The places of the k highest scores, highest first; of equal ones the first."""
    n = len(scores)
    if k >= n:
        places = np.arange(n)
    elif k <= 0:
        return np.zeros(0, np.int64)
    else:
        places = np.flatnonzero(scores >= kth(scores, k, -np.inf))
    return np.asarray(places[np.argsort(-scores[places], kind="stable")][:k], dtype=np.int64)


def kth(scores: npt.NDArray[np.floating], k: int, fewer: float) -> float:
    """The k-th highest score; `fewer` where there are not so many."""
    return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if 0 < k <= len(scores) else fewer


def merged(lists: Iterable[Sequence[Found]], k: int) -> list[Found]:
    """The k best of several lists."""
    found = [hit for hits in lists for hit in hits]
    return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k]
