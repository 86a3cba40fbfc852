"""The k nearest rows of every row of a matrix, by cosine.

Up to `EXACT_ROWS` rows all pairs are compared, in blocks. Above, rows are put into some sqrt(N) cells by
k-means, and each row is compared with the members of the `PROBED` cells whose centres are nearest to it (the
inverted file of Jégou, Douze and Schmid 2011, without their codes). A cell that has more than `LARGE` times
its share is read through a window of neighbouring row numbers, so that N vectors cost N * PROBED * LARGE *
sqrt(N) products at most, even if all are the same.

100,000 vectors of 256 dimensions about 1,000 to 5,000 centres of very unequal popularity: recall of the 8
nearest .95 to .97, 15 seconds of CPU. Of vectors about no centre, far from all others, more is missed.
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
"""So many rows are compared each with each."""
PROBED = 20
"""Cells in which a row looks for its neighbours."""
LARGE = 8
"""A cell with more than so many times sqrt(N) rows is not searched as a whole."""
_DIGITS = 10_000  # cosines have four
_BLOCK = 1 << 22  # cosines held at a time
_OF_SAMPLE = 64  # rows a cell that k-means sees
_SAMPLE = 100_000  # rows in all that it sees
_ROUNDS = 8
_SEED = 20_130
_NEAR_1 = 1e-5


def nearest_neighbours(
    vectors: Vectors, k: int, centres: Vectors | None = None
) -> tuple[Ints, Vectors, Vectors | None]:
    """The k nearest other rows of each row, best first: row numbers [N, k], cosines [N, k]; and the centres
    of the cells [C, D], None where all rows are compared.

    vectors: [N, D], finite; they need not have length 1. centres: of a matrix that was much like this one, to
    find nearly the same; taken while there are about sqrt(N) of them.

    Where there are fewer, -1 and cosine 0 fill the rest. A row of zeros has no neighbours and is nobody's.
    Cosines are rounded to four digits; of equal ones the row that is nearest in number comes first, of two at
    the same distance the smaller, so that equal vectors make a chain and not a star. Above `EXACT_ROWS` some
    are missed.
    """
    n = len(vectors)
    k = max(k, 0)
    of_row = np.full((n, k), -1, dtype=np.int64)
    cosine = np.zeros((n, k), dtype=np.float32)
    rows, unit = units(vectors)
    if len(rows) < 2 or k == 0:
        return of_row, cosine, None
    base, r = 2 * n, len(rows)
    kind = np.dtype(np.int32 if base * (_DIGITS + 2) < 1 << 31 else np.int64)
    keys = _Search(rows, unit, base, min(k, r - 1), kind, -base * (_DIGITS + 1))
    if r <= EXACT_ROWS:
        step = max(1, _BLOCK // r)
        best = np.concatenate([keys.best(slice(at, at + step), slice(r)) for at in range(0, r, step)])
        centres = None
    else:
        if centres is None or centres.shape[1] != unit.shape[1] or not 0.5 < len(centres) ** 2 / r < 2:
            n_cells = ceil(r**0.5)
            centres = cell_centres(unit, n_cells, max(_SAMPLE, 8 * n_cells))
            centres = centres[np.unique(nearest_centres(unit, centres, 1)[:, 0])]
        best = keys.by_cells(centres)
    found, digits = keys.read(best)
    of_row[rows, : best.shape[1]] = found
    cosine[rows, : best.shape[1]] = digits / np.float32(_DIGITS)
    return of_row, cosine, centres


def cell_centres(unit: Vectors, n_cells: int, most: int = _SAMPLE) -> Vectors:
    """[n_cells or fewer, D] of length 1: directions about which the rows lie, by k-means over a sample of at
    most `most` of them. unit: [R, D] of length 1. The same rows give the same."""
    n = len(unit)
    generator = np.random.default_rng(_SEED)
    size = min(n, _OF_SAMPLE * n_cells, most)
    sample = unit[np.sort(generator.choice(n, size, replace=False))]
    sample = sample[_distinct(sample)]  # equal vectors need no more than one centre
    chosen = generator.choice(len(sample), min(n_cells, len(sample)), replace=False)
    centres = sample[np.sort(chosen)]
    for _ in range(_ROUNDS):
        own = nearest_centres(sample, centres, 1)[:, 0]
        centres = _means(sample, own, centres)
    return centres


def units(vectors: Vectors) -> tuple[Ints, Vectors]:
    """The rows that are not zero and, at length 1, their vectors."""
    length = np.einsum("nd,nd->n", vectors, vectors)
    if len(length) and np.abs(length - 1).max() < _NEAR_1:
        return np.arange(len(vectors)), vectors  # no copy: they may lie in a file
    size = np.abs(vectors).max(axis=1, initial=0)
    if not np.isfinite(size).all():
        raise ValueError("vectors must be finite")
    rows = np.flatnonzero(size > 0)
    # By the largest entry first: squares of very large or small ones are not numbers.
    unit = np.asarray(vectors[rows] / size[rows, None], dtype=np.float32)
    unit /= np.sqrt(np.einsum("nd,nd->n", unit, unit))[:, None]
    return rows.astype(np.int64), unit


@dataclass(frozen=True)
class _Search:
    """The k best of rows, as keys: one integer for a cosine and a row, the larger the better.

    rows    [R] row numbers, ascending, below base / 2
    unit    [R, D] their vectors
    kind    of keys; nothing: the key of no row
    """

    rows: Ints
    unit: Vectors
    base: int
    k: int
    kind: np.dtype[Any]
    nothing: int

    def by_cells(self, centres: Vectors) -> Keys:
        """[R, k] keys of each row among the cells nearest to it, best first."""
        n = len(self.rows)
        n_cells = len(centres)
        probed = nearest_centres(self.unit, centres, min(PROBED, n_cells))
        best = np.full((n, self.k), self.nothing, dtype=self.kind)
        members, seekers = _grouped(probed[:, :1], n_cells), _grouped(probed, n_cells)
        limit = max(LARGE * isqrt(n), 4 * self.k + 4)
        for seeking, inside in zip(seekers, members, strict=True):
            for some, among in _windows(seeking, inside, limit):
                step = max(1, _BLOCK // len(among))
                for at in range(0, len(some), step):
                    part = some[at : at + step]
                    both = np.concatenate([best[part], self.best(part, among)], axis=1)
                    best[part] = np.sort(both, axis=1)[:, : -self.k - 1 : -1]
        return best

    def read(self, best: Keys) -> tuple[Ints, Ints]:
        """Row numbers, -1 for none, and cosines in ten thousandths."""
        best = best.astype(np.int64)
        digits = -(-best // self.base)
        behind = digits * self.base - best  # twice the distance; less one where the number is smaller
        numbers = np.where(behind % 2, -(behind + 1) // 2, behind // 2) + self.rows[: len(best), None]
        empty = digits < -_DIGITS
        return np.where(empty, -1, numbers), np.where(empty, 0, digits)

    def best(self, some: Ints | slice, among: Ints | slice) -> Keys:
        """[S, at most k] keys of the best for some rows among others, best first (places in `rows`)."""
        cosines = self.unit[some] @ self.unit[among].T
        cosines *= _DIGITS
        np.rint(cosines, out=cosines)
        np.clip(cosines, -_DIGITS, _DIGITS, out=cosines)
        keys = cosines.astype(self.kind)
        keys *= self.base
        apart = self.rows[among].astype(keys.dtype) - self.rows[some].astype(keys.dtype)[:, None]
        before = apart < 0
        np.abs(apart, out=apart)
        apart *= 2
        apart -= before
        keys -= apart
        keep = min(self.k + 1, keys.shape[1])  # one is the row itself, if it is among them
        if keep < keys.shape[1]:
            keys = np.partition(keys, keys.shape[1] - keep, axis=1)[:, -keep:]
        # A row's own key is a whole cosine and no distance: nothing else has it.
        keys[keys == self.base * _DIGITS] = self.nothing
        keys.sort(axis=1)
        return keys[:, : -self.k - 1 : -1]


def _grouped(group: Ints, n_groups: int) -> list[Ints]:
    """The rows of each group, ascending. group [R, P]: those that each row is in."""
    order = np.argsort(group, axis=None, kind="stable")
    bounds = np.searchsorted(group.ravel()[order], np.arange(1, n_groups))
    return np.split(order // group.shape[1], bounds)


def _windows(seeking: Ints, inside: Ints, limit: int) -> Iterator[tuple[Ints, Ints]]:
    """Rows with those that they are compared with: at most `limit`, about them in number."""
    if len(inside) <= limit:
        yield seeking, inside
        return
    place = np.searchsorted(inside, seeking)
    half, margin = limit // 2, limit // 4
    for at in range(0, len(inside), half):
        end = at + half if at + half < len(inside) else len(inside) + 1
        first, last = np.searchsorted(place, [at, end])
        if first < last:
            yield seeking[first:last], inside[max(0, at - margin) : at + half + margin]


def _distinct(unit: Vectors) -> Ints:
    """The first of every set of rows that are the same to four digits."""
    rounded = np.ascontiguousarray(np.rint(unit * _DIGITS).astype(np.int16))
    as_bytes = rounded.view(np.dtype((np.void, rounded.itemsize * rounded.shape[1]))).ravel()
    return np.sort(np.unique(as_bytes, return_index=True)[1])


def nearest_centres(unit: Vectors, centres: Vectors, n: int) -> Ints:
    """[R, n] the centres nearest to each row, best first."""
    step = max(1, _BLOCK // len(centres))
    found = []
    for at in range(0, len(unit), step):
        cosines = unit[at : at + step] @ centres.T
        if n == 1:
            found.append(cosines.argmax(axis=1)[:, None])
            continue
        best = np.argpartition(cosines, len(centres) - n, axis=1)[:, -n:]
        order = np.argsort(-np.take_along_axis(cosines, best, axis=1), axis=1, kind="stable")
        found.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(found).astype(np.int64)


def _means(unit: Vectors, own: Ints, centres: Vectors) -> Vectors:
    """The directions of the means of each centre's rows; a centre without rows stays."""
    order = np.argsort(own, kind="stable")
    present, starts = np.unique(own[order], return_index=True)
    sums = np.add.reduceat(unit[order], starts, axis=0)
    size = np.sqrt(np.einsum("nd,nd->n", sums, sums))
    moved = centres.copy()
    moved[present[size > 0]] = sums[size > 0] / size[size > 0, None]
    return moved
