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
        places = np.flatnonzero(scores >= np.partition(scores, n - k)[n - k])
    return np.asarray(places[np.argsort(-scores[places], kind="stable")][:k], dtype=np.int64)


def merged(lists: Iterable[Sequence[Found]], k: int) -> list[Found]:
    """The k best of several lists."""
    found = [hit for hits in lists for hit in hits]
    return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k]
