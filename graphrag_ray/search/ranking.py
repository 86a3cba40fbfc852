"""Best first, ties by id: the same question has the same answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.search.mapped_arrays import numbers

Rows: TypeAlias = npt.NDArray[np.int64]
Found: TypeAlias = tuple[str, float]
"""Id and score of a record."""


def best(scores: npt.NDArray[np.floating], k: int) -> Rows:
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


def named(ids: pa.Array, places: Rows, scores: npt.NDArray[np.floating]) -> list[Found]:
    """Records with their scores, by their places among the ids."""
    return [(ids[at].as_py(), score) for at, score in zip(places.tolist(), scores.tolist(), strict=True)]


def places_of(ids: pa.Array, among: pa.Array | None) -> Rows | None:
    """The places of some ids, rising; None for all."""
    if among is None:
        return None
    return numbers(pc.indices_nonzero(pc.is_in(ids, value_set=among))).astype(np.int64)
