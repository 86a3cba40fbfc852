"""Find the k nearest neighbours of every row of a matrix by cosine.

Up to `EXACT_ROWS` rows, all pairs are compared, in blocks. For more rows, k-means divides them into about
sqrt(N) cells, and each row is compared with the members of the `PROBED_CELLS` nearest cells (an inverted file
as in Jégou, Douze and Schmid 2011, without quantisation). The recall of the 8 nearest is 0.95 to 0.97 on
clustered vectors. Cells larger than `LARGE_CELL_FACTOR` times the average are searched in windows of rows.
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
PROBED_CELLS = 20
LARGE_CELL_FACTOR = 8
_SCALE = 10_000  # cosines have four digits
_BLOCK_COSINES = 1 << 22  # number of cosines in memory at a time
_SAMPLE_PER_CELL, _MAX_SAMPLE = 64, 100_000  # number of rows that k-means uses
_KMEANS_ROUNDS = 8
_SEED = 20_130
_NORM_TOLERANCE = 1e-5


def nearest_neighbours(
    vectors: Vectors, k: int, centres: Vectors | None = None
) -> tuple[Ints, Vectors, Vectors | None]:
    """Find the k nearest other rows of each row, best first.

    Cosines are rounded to four digits. Ties are ordered by distance in row number, then by row number, so
    that equal vectors form a chain rather than a star. A row of zeros neither has neighbours nor is one.

    Args:
        vectors: [N, D], finite, of any length.
        centres: Cell centres of a similar matrix, so that results change little. They are used if there are
            about sqrt(N) of them.

    Returns:
        Row numbers [N, k], padded with -1, cosines [N, k], and cell centres (None if all pairs were
        compared).
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
        step = max(1, _BLOCK_COSINES // r)
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
    distance = scaled * base - best  # twice the distance, minus one if the neighbour has the smaller number
    numbers = np.where(distance % 2, -(distance + 1) // 2, distance // 2) + rows[:, None]
    empty = scaled < -_SCALE
    neighbours[rows, : best.shape[1]] = np.where(empty, -1, numbers)
    cosines[rows, : best.shape[1]] = np.where(empty, 0, scaled) / np.float32(_SCALE)
    return neighbours, cosines, centres


def cell_centres(unit: Vectors, n_cells: int, max_sample: int = _MAX_SAMPLE) -> Vectors:
    """Run `k_means` on a sample of `unit` [R, D], deterministically. Returns at most n_cells unit vectors."""
    generator = np.random.default_rng(_SEED)
    size = min(len(unit), _SAMPLE_PER_CELL * n_cells, max_sample)
    sample = unit[np.sort(generator.choice(len(unit), size, replace=False))]
    # Vectors that are equal to four digits share a centre.
    rounded = np.ascontiguousarray(np.rint(sample * _SCALE).astype(np.int16))
    as_bytes = rounded.view(np.dtype((np.void, rounded.itemsize * rounded.shape[1]))).ravel()
    sample = sample[np.sort(np.unique(as_bytes, return_index=True)[1])]
    first = np.sort(generator.choice(len(sample), min(n_cells, len(sample)), replace=False))
    return k_means(sample, sample[first])


def k_means(sample: Vectors, centres: Vectors) -> Vectors:
    """Run k-means by cosine on rows of length 1 or 0, from these centres. Returns centres of length 1."""
    for _ in range(_KMEANS_ROUNDS):
        # Move each centre in the direction of the mean of its rows. A centre without rows does not move.
        cell = nearest_centres(sample, centres, 1)[:, 0]
        order = np.argsort(cell, kind="stable")
        present, starts = np.unique(cell[order], return_index=True)
        sums = np.add.reduceat(sample[order], starts, axis=0)
        length = np.sqrt(np.einsum("nd,nd->n", sums, sums))
        centres = centres.copy()
        centres[present[length > 0]] = sums[length > 0] / length[length > 0, None]
    return centres


def _unit_rows(vectors: Vectors) -> tuple[Ints, Vectors]:
    """Return the numbers of the non-zero rows and their vectors, scaled to length 1."""
    squared = np.einsum("nd,nd->n", vectors, vectors)
    if len(squared) and np.abs(squared - 1).max() < _NORM_TOLERANCE:
        return np.arange(len(vectors)), vectors  # not copied, because they may be memory-mapped
    largest = np.abs(vectors).max(axis=1, initial=0)
    if not np.isfinite(largest).all():
        raise ValueError("Vectors must be finite")
    rows = np.flatnonzero(largest > 0)
    # Divide by the largest entry first, because squares of very large or small entries overflow or vanish.
    unit = np.asarray(vectors[rows] / largest[rows, None], dtype=np.float32)
    unit /= np.sqrt(np.einsum("nd,nd->n", unit, unit))[:, None]
    return rows.astype(np.int64), unit


@dataclass(frozen=True)
class _Search:
    """Searches neighbours as keys. A key encodes a cosine and a row in one integer; larger is better."""

    rows: Ints  # [R] row numbers, ascending, below base / 2
    unit: Vectors  # [R, D] vectors of the rows
    base: int
    k: int
    dtype: np.dtype[Any]
    empty_key: int  # key of a missing neighbour

    def by_cells(self, centres: Vectors) -> Keys:
        """[R, k] keys of the best neighbours of each row in its nearest cells, best first."""
        n = len(self.rows)
        probed_cells = nearest_centres(self.unit, centres, min(PROBED_CELLS, len(centres)))
        best = np.full((n, self.k), self.empty_key, dtype=self.dtype)
        limit = max(LARGE_CELL_FACTOR * isqrt(n), 4 * self.k + 4)
        for searching, members in zip(
            _grouped(probed_cells, len(centres)), _grouped(probed_cells[:, :1], len(centres)), strict=True
        ):
            for searched, candidates in _windows(searching, members, limit):
                step = max(1, _BLOCK_COSINES // len(candidates))
                for start in range(0, len(searched), step):
                    part = searched[start : start + step]
                    merged_keys = np.concatenate([best[part], self.best(part, candidates)], axis=1)
                    best[part] = np.sort(merged_keys, axis=1)[:, : -self.k - 1 : -1]
        return best

    def best(self, searched: Ints | slice, candidates: Ints | slice) -> Keys:
        """[S, at most k] keys of the best candidates, best first. Arguments are positions in `rows`."""
        cosines = self.unit[searched] @ self.unit[candidates].T
        cosines *= _SCALE
        np.rint(cosines, out=cosines)
        np.clip(cosines, -_SCALE, _SCALE, out=cosines)
        keys = cosines.astype(self.dtype)
        keys *= self.base
        distance = self.rows[candidates].astype(keys.dtype) - self.rows[searched].astype(keys.dtype)[:, None]
        before = distance < 0
        np.abs(distance, out=distance)
        distance *= 2
        distance -= before
        keys -= distance
        n_best = min(self.k + 1, keys.shape[1])  # one more, in case the row itself is a candidate
        if n_best < keys.shape[1]:
            # Copy, because a view would keep the keys of all candidates in memory.
            keys = np.partition(keys, keys.shape[1] - n_best, axis=1)[:, -n_best:].copy()
        # Only the row itself has a cosine of 1 and a distance of 0.
        keys[keys == self.base * _SCALE] = self.empty_key
        keys.sort(axis=1)
        return keys[:, : -self.k - 1 : -1]


def _grouped(group: Ints, n_groups: int) -> list[Ints]:
    """Return the rows of each group in ascending order. `group` [R, P] are the groups of each row."""
    order = np.argsort(group, axis=None, kind="stable")
    bounds = np.searchsorted(group.ravel()[order], np.arange(1, n_groups))
    return np.split(order // group.shape[1], bounds)


def _windows(searching: Ints, members: Ints, limit: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield rows, and the at most `limit` members closest in number to compare them with."""
    if len(members) <= limit:
        yield searching, members
        return
    position = np.searchsorted(members, searching)
    half, margin = limit // 2, limit // 4
    for start in range(0, len(members), half):
        end = start + half if start + half < len(members) else len(members) + 1
        first, last = np.searchsorted(position, [start, end])
        if first < last:
            yield searching[first:last], members[max(0, start - margin) : start + half + margin]


def nearest_centres(unit: Vectors, centres: Vectors, n: int) -> Ints:
    """[R, n] the nearest centres of each row, best first."""
    step = max(1, _BLOCK_COSINES // len(centres))
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
