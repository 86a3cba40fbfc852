"""The k nearest rows of every row of a matrix, by cosine.

Up to `EXACT_ROWS` rows, all pairs are compared, in blocks. Above, k-means divides the rows into about sqrt(N)
cells, and each row is compared with the members of the `PROBED` nearest cells (the inverted file of Jégou,
Douze and Schmid 2011, without their codes): recall of the 8 nearest is .95 to .97 on clustered vectors. Cells
of more than `LARGE` times their share are read through a window of row numbers, which bounds the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.integer_arrays import Ints

Vectors = npt.NDArray[np.float32]
Keys = npt.NDArray[np.signedinteger[Any]]

EXACT_ROWS = 20_000
PROBED = 20
LARGE = 8
_SCALE = 10_000  # cosines have four digits
_BLOCK = 1 << 22  # cosines in memory at a time
_SAMPLE_PER_CELL, _MAX_SAMPLE = 64, 100_000  # rows on which k-means runs
_ROUNDS = 8
_SEED = 20_130
_NORM_TOLERANCE = 1e-5


def nearest_neighbours(
    vectors: Vectors, k: int, centres: Vectors | None = None
) -> tuple[Ints, Vectors, Vectors | None]:
    """Find the k nearest other rows of each row, best first.

    Cosines are rounded to four digits. Of equal ones, the row closest in number comes first, then the smaller
    number, so that equal vectors form a chain and not a star. A row of zeros neither has nor is a neighbour.

    Args:
        vectors: [N, D], finite, of any length.
        centres: Cell centres of a similar matrix, so that results change little; used while there are about
            sqrt(N) of them.

    Returns:
        Row numbers [N, k], -1 if there are fewer; cosines [N, k]; and the cell centres, None if all pairs
        were compared.
    """
    n = len(vectors)
    k = max(k, 0)
    neighbours = np.full((n, k), -1, dtype=np.int64)
    cosines = np.zeros((n, k), dtype=np.float32)
    rows, unit = _unit_rows(vectors)
    if len(rows) < 2 or k == 0:
        return neighbours, cosines, None
    base, r = 2 * n, len(rows)
    dtype = np.dtype(np.int32 if base * (_SCALE + 2) < 1 << 31 else np.int64)
    search = _Search(rows, unit, base, min(k, r - 1), dtype, -base * (_SCALE + 1))
    if r <= EXACT_ROWS:
        step = max(1, _BLOCK // r)
        best = np.concatenate([search.best(slice(i, i + step), slice(r)) for i in range(0, r, step)])
        centres = None
    else:
        if centres is None or centres.shape[1] != unit.shape[1] or not 0.5 < len(centres) ** 2 / r < 2:
            n_cells = ceil(r**0.5)
            centres = cell_centres(unit, n_cells, max(_MAX_SAMPLE, 8 * n_cells))
            centres = centres[np.unique(nearest_centres(unit, centres, 1)[:, 0])]
        best = search.by_cells(centres)
    # Decode the keys.
    best = best.astype(np.int64)
    scaled = -(-best // base)
    distance = scaled * base - best  # twice the distance; less one if the number is smaller
    numbers = np.where(distance % 2, -(distance + 1) // 2, distance // 2) + rows[:, None]
    empty = scaled < -_SCALE
    neighbours[rows, : best.shape[1]] = np.where(empty, -1, numbers)
    cosines[rows, : best.shape[1]] = np.where(empty, 0, scaled) / np.float32(_SCALE)
    return neighbours, cosines, centres


def cell_centres(unit: Vectors, n_cells: int, max_sample: int = _MAX_SAMPLE) -> Vectors:
    """Run k-means on a sample of unit vectors [R, D]: [at most n_cells, D] of length 1, deterministic."""
    generator = np.random.default_rng(_SEED)
    size = min(len(unit), _SAMPLE_PER_CELL * n_cells, max_sample)
    sample = unit[np.sort(generator.choice(len(unit), size, replace=False))]
    # Vectors equal to four digits need no more than one centre.
    rounded = np.ascontiguousarray(np.rint(sample * _SCALE).astype(np.int16))
    as_bytes = rounded.view(np.dtype((np.void, rounded.itemsize * rounded.shape[1]))).ravel()
    sample = sample[np.sort(np.unique(as_bytes, return_index=True)[1])]
    centres = sample[np.sort(generator.choice(len(sample), min(n_cells, len(sample)), replace=False))]
    for _ in range(_ROUNDS):
        # Move each centre to the direction of the mean of its rows; one without rows stays.
        cell = nearest_centres(sample, centres, 1)[:, 0]
        order = np.argsort(cell, kind="stable")
        present, starts = np.unique(cell[order], return_index=True)
        sums = np.add.reduceat(sample[order], starts, axis=0)
        length = np.sqrt(np.einsum("nd,nd->n", sums, sums))
        centres = centres.copy()
        centres[present[length > 0]] = sums[length > 0] / length[length > 0, None]
    return centres


def _unit_rows(vectors: Vectors) -> tuple[Ints, Vectors]:
    """Return the rows that are not zero and their vectors at length 1."""
    squared = np.einsum("nd,nd->n", vectors, vectors)
    if len(squared) and np.abs(squared - 1).max() < _NORM_TOLERANCE:
        return np.arange(len(vectors)), vectors  # not copied: they may be memory-mapped
    largest = np.abs(vectors).max(axis=1, initial=0)
    if not np.isfinite(largest).all():
        raise ValueError("Vectors must be finite")
    rows = np.flatnonzero(largest > 0)
    # Divide by the largest entry first: the squares of very large or small entries overflow or vanish.
    unit = np.asarray(vectors[rows] / largest[rows, None], dtype=np.float32)
    unit /= np.sqrt(np.einsum("nd,nd->n", unit, unit))[:, None]
    return rows.astype(np.int64), unit


@dataclass(frozen=True)
class _Search:
    """Searches neighbours as keys: one integer for a cosine and a row, the larger the better."""

    rows: Ints  # [R] row numbers, ascending, below base / 2
    unit: Vectors  # [R, D] their vectors
    base: int
    k: int
    dtype: np.dtype[Any]
    nothing: int  # the key of no row

    def by_cells(self, centres: Vectors) -> Keys:
        """[R, k] keys of each row's neighbours in the cells nearest to it, best first."""
        n = len(self.rows)
        probed = nearest_centres(self.unit, centres, min(PROBED, len(centres)))
        best = np.full((n, self.k), self.nothing, dtype=self.dtype)
        limit = max(LARGE * isqrt(n), 4 * self.k + 4)
        for seekers, members in zip(
            _grouped(probed, len(centres)), _grouped(probed[:, :1], len(centres)), strict=True
        ):
            for some, candidates in _windows(seekers, members, limit):
                step = max(1, _BLOCK // len(candidates))
                for start in range(0, len(some), step):
                    part = some[start : start + step]
                    both = np.concatenate([best[part], self.best(part, candidates)], axis=1)
                    best[part] = np.sort(both, axis=1)[:, : -self.k - 1 : -1]
        return best

    def best(self, some: Ints | slice, candidates: Ints | slice) -> Keys:
        """[S, at most k] the best keys of some rows among candidates, best first (positions in `rows`)."""
        cosines = self.unit[some] @ self.unit[candidates].T
        cosines *= _SCALE
        np.rint(cosines, out=cosines)
        np.clip(cosines, -_SCALE, _SCALE, out=cosines)
        keys = cosines.astype(self.dtype)
        keys *= self.base
        distance = self.rows[candidates].astype(keys.dtype) - self.rows[some].astype(keys.dtype)[:, None]
        before = distance < 0
        np.abs(distance, out=distance)
        distance *= 2
        distance -= before
        keys -= distance
        keep = min(self.k + 1, keys.shape[1])  # one more, for the row itself if it is a candidate
        if keep < keys.shape[1]:
            keys = np.partition(keys, keys.shape[1] - keep, axis=1)[:, -keep:]
        # Only a row's own key combines a cosine of 1 with no distance.
        keys[keys == self.base * _SCALE] = self.nothing
        keys.sort(axis=1)
        return keys[:, : -self.k - 1 : -1]


def _grouped(group: Ints, n_groups: int) -> list[Ints]:
    """Return the rows of each group, ascending, from the groups [R, P] of each row."""
    order = np.argsort(group, axis=None, kind="stable")
    bounds = np.searchsorted(group.ravel()[order], np.arange(1, n_groups))
    return np.split(order // group.shape[1], bounds)


def _windows(seekers: Ints, members: Ints, limit: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield rows with at most `limit` members to compare them with, those closest in number."""
    if len(members) <= limit:
        yield seekers, members
        return
    position = np.searchsorted(members, seekers)
    half, margin = limit // 2, limit // 4
    for start in range(0, len(members), half):
        end = start + half if start + half < len(members) else len(members) + 1
        first, last = np.searchsorted(position, [start, end])
        if first < last:
            yield seekers[first:last], members[max(0, start - margin) : start + half + margin]


def nearest_centres(unit: Vectors, centres: Vectors, n: int) -> Ints:
    """[R, n] the centres nearest to each row, best first."""
    step = max(1, _BLOCK // len(centres))
    nearest = []
    for start in range(0, len(unit), step):
        cosines = unit[start : start + step] @ centres.T
        if n == 1:
            nearest.append(cosines.argmax(axis=1)[:, None])
            continue
        best = np.argpartition(cosines, len(centres) - n, axis=1)[:, -n:]
        order = np.argsort(-np.take_along_axis(cosines, best, axis=1), axis=1, kind="stable")
        nearest.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(nearest).astype(np.int64)
