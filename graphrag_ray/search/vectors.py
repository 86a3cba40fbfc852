"""Vector search by cosine similarity: exact, or by lists of near vectors where there are very many.

A shard of an index is one file, of which only what is looked at is read:

    high, low  the halves of the records' ids, in the order of the vectors
    key, row   the former, rising, and the places of the vectors; top.key: some of these
    vectors    of length 1, one after the other, or zeros where there is no direction; float32

or, in place of the last, where there are very many:

    centroids  of lists of vectors that are near each other; float32
    ends       where the vectors of each list end
    codes      the vectors as 8-bit integers, of the first list first
    scale      by which those of each vector are multiplied

These are the inverted lists of Jégou, Douze and Schmid (2011, "Product Quantization for Nearest Neighbor
Search"), but each vector is kept as a whole. A question looks at the lists whose centroids are nearest to it,
over all shards; a graph of neighbours would look at places all over the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.search.id_halves import halves, ids_of
from graphrag_ray.search.mapped_arrays import (
    Ints,
    Keys,
    MappedArray,
    Source,
    packed,
    places_in,
    spread,
    tops,
    unpacked,
)
from graphrag_ray.search.ranking import Found

Floats = npt.NDArray[np.float32]

DIGITS = 6
"""Of a score: what is equal in them is equal. The last bits of a sum depend on how it was added up."""
LIST_ROWS = 256
"""Vectors of a list, on average."""
LISTS = 2.0
"""So many times the square root of the number of lists are looked at: see "Search" in RESULTS.md."""
LIST_CANDIDATES = 16
"""But so many times the vectors that are wanted, at least."""
_ROUNDS, _LEARNT_FROM = 8, 32
"""Of placing centroids; vectors of each list that this is done with."""
_ROWS_AT_ONCE = 16_384
_LARGEST_CODE = 127
_TYPES = {"high": "<u8", "low": "<u8", "key": "<u8", "top": "<u8", "row": "<u4", "vectors": "<f4"}
_TYPES |= {"centroids": "<f4", "ends": "<i8", "codes": "<i1", "scale": "<f4"}
_IDS = {"high", "low", "key", "top.key", "row"}
_KINDS = (_IDS | {"vectors"}, _IDS | {"centroids", "ends", "codes", "scale"})


@dataclass(frozen=True)
class VectorShard:
    """Arrays as above; vectors: [records, dimensions], or codes."""

    source: Source
    arrays: Mapping[str, MappedArray]
    vectors: MappedArray

    def __len__(self) -> int:
        return len(self.arrays["high"])

    @property
    def dimensions(self) -> int:
        return int(self.vectors.values.shape[1])

    @property
    def has_lists(self) -> bool:
        return "codes" in self.arrays

    def centroids(self) -> Floats:
        """[lists, dimensions]"""
        return self.arrays["centroids"].rows(self.dimensions).whole()

    def list_ends(self) -> Ints:
        ends = self.arrays["ends"].whole()
        if not len(ends) or ends[0] < 0 or (ends[1:] < ends[:-1]).any() or ends[-1] != len(self):
            raise self.source.refused("its lists are not one behind the other")
        return ends

    def rows_of(self, ids: Keys) -> Ints:
        """The vectors of those of these ids that it holds, by their first halves; rising."""
        places = places_in(self.arrays["key"], self.arrays["top.key"], ids)
        rows = self.arrays["row"].take(places[places >= 0])
        if len(rows) and rows.max() >= len(self):
            raise self.source.refused("an id is of no vector")
        return np.unique(rows).astype(np.int64)

    def scores(self, left: Ints, right: Ints, wanted: Floats) -> npt.NDArray[np.float64]:
        """Of the vectors of some runs."""
        if not len(left):
            return np.zeros(0)
        found = self.vectors.runs(left, right) if len(left) > 1 else self.vectors.run(left[0], right[0])
        products = np.concatenate([some.astype(np.float32, copy=False) @ wanted for some in _pieces(found)])
        if self.has_lists:
            products = products * self.arrays["scale"].runs(left, right)
        # What is no number is near to nothing.
        sound = np.nan_to_num(products.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        return np.asarray(np.round(sound, DIGITS), np.float64)


def build(ids: Sequence[str], vectors: Floats, lists: bool = False) -> bytes:
    """The bytes of a shard: the same for the same records, whatever their order.

    vectors: [ids, dimensions], of any length. Raises ValueError for what is no id.
    """
    order = np.asarray(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    matrix = unit(vectors[order])
    if lists:
        centroids, of = _lists(matrix)
        by_list = np.argsort(of, kind="stable")
        order, matrix = order[by_list], matrix[by_list]
    high, low = halves([ids[i] for i in order])
    row = np.argsort(high, kind="stable")
    arrays = {
        "high": high,
        "low": low,
        "key": high[row],
        "top.key": tops(high[row]),
        "row": row.astype("<u4"),
    }
    if not lists:
        return packed(arrays | {"vectors": matrix.reshape(-1)})
    scale = np.abs(matrix).max(axis=1, initial=0.0) / _LARGEST_CODE
    codes = np.rint(matrix / np.where(scale > 0, scale, 1.0)[:, None])
    return packed(
        arrays
        | {
            "centroids": centroids.reshape(-1),
            "ends": np.cumsum(np.bincount(of, minlength=len(centroids))).astype("<i8"),
            "codes": codes.astype(np.int8).reshape(-1),
            "scale": scale.astype(np.float32),
        }
    )


def read(source: Source) -> VectorShard:
    """A shard. Raises what `source.refused` makes for what is none."""
    arrays = unpacked(source, _TYPES)
    if arrays.keys() not in _KINDS:
        raise source.refused("it holds vectors, or lists of them")
    n = len(arrays["high"])
    numbers = arrays["vectors" if "vectors" in arrays else "codes"]
    lengths = {len(arrays[name]) for name in arrays.keys() & {"low", "key", "row", "scale"}}
    width = len(numbers) // max(1, n)
    if lengths != {n} or not n or width * n != len(numbers) or width < 1:
        raise source.refused("its arrays are of different lengths")
    shard = VectorShard(source, arrays, numbers.rows(width))
    if shard.has_lists and len(arrays["centroids"]) != len(arrays["ends"]) * width:
        raise source.refused("its arrays are of different lengths")
    return shard


def unit(vectors: Floats) -> Floats:
    """Each vector with length 1; zeros where it has no length, or none that is a number."""
    # Divided by the largest first: float32 cannot hold the square of each number that it can hold.
    scale = np.max(np.abs(vectors), axis=1, keepdims=True, initial=0.0)
    sound = np.isfinite(scale) & (scale > 0)
    scaled = np.where(sound, vectors, 0.0) / np.where(sound, scale, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(length > 0, length, 1.0), dtype=np.float32)


def search(
    shards: Sequence[VectorShard], wanted: Floats, k: int, among: Sequence[str] | None = None
) -> list[Found]:
    """The k records whose vectors have the least angle to the wanted one, which has length 1.

    shards: all of a kind; among: ids of the only records that count
    """
    if k <= 0:
        return []
    if among is not None:
        ids = halves(among)[0]
        runs = [_runs_of(shard, ids) for shard in shards]
    else:
        runs = [(np.array([0]), np.array([len(shard)])) for shard in shards]
        listed = [at for at, shard in enumerate(shards) if shard.has_lists]
        for at, some in zip(listed, _near([shards[i] for i in listed], wanted, k), strict=True):
            runs[at] = some
    found: list[tuple[float, str]] = []
    for shard, (left, right) in zip(shards, runs, strict=True):
        scores = shard.scores(left, right, wanted)
        chosen = np.flatnonzero(scores >= _kth(scores, k))
        places = spread(left, right)[0][chosen]
        own = ids_of(shard.arrays["high"].take(places), shard.arrays["low"].take(places))
        found += [(-score, id_) for id_, score in zip(own, scores[chosen].tolist(), strict=True)]
        found = sorted(found)[:k]
    return [(id_, -score) for score, id_ in found]


def _runs_of(shard: VectorShard, ids: Keys) -> tuple[Ints, Ints]:
    """The vectors of some ids, as runs."""
    rows = shard.rows_of(ids)
    first = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    return rows[first], rows[np.append(first[1:], len(rows)) - 1] + 1 if len(rows) else rows


def _near(shards: Sequence[VectorShard], wanted: Floats, k: int) -> Iterator[tuple[Ints, Ints]]:
    """Of each shard the lists whose centroids are nearest to the wanted vector, of all shards."""
    if not shards:
        return
    ends = [shard.list_ends() for shard in shards]
    starts = [np.append(0, of[:-1]) for of in ends]
    nearness = np.concatenate([shard.centroids() @ wanted for shard in shards])
    order = np.argsort(-nearness, kind="stable")
    rows = np.cumsum((np.concatenate(ends) - np.concatenate(starts))[order])
    most = math.ceil(LISTS * math.sqrt(len(order)))
    enough = int(np.searchsorted(rows, LIST_CANDIDATES * k)) + 1
    chosen = np.zeros(len(order), np.bool_)
    chosen[order[: max(most, enough)]] = True
    for of, first in zip(ends, starts, strict=True):
        own, chosen = chosen[: len(of)], chosen[len(of) :]
        yield first[own], of[own]


def _kth(scores: npt.NDArray[np.float64], k: int) -> float:
    """The k-th highest; of fewer the lowest there can be."""
    return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if k <= len(scores) else -math.inf


def _pieces(found: npt.NDArray[np.generic]) -> Iterator[npt.NDArray[np.generic]]:
    for at in range(0, max(1, len(found)), _ROWS_AT_ONCE):
        yield found[at : at + _ROWS_AT_ONCE]


def _lists(matrix: Floats) -> tuple[Floats, Ints]:
    """Centroids of lists, and the list of each vector: spherical k-means (Dhillon and Modha 2001), learnt
    from vectors that are evenly spread over the matrix."""
    n = max(1, len(matrix) // LIST_ROWS)
    sample = matrix[_spaced(len(matrix), _LEARNT_FROM * n)]
    centroids = sample[_spaced(len(sample), n)]
    for _ in range(_ROUNDS):
        of, near = _nearest(sample, centroids)
        sums = np.zeros_like(centroids)
        np.add.at(sums, of, sample)
        empty = np.flatnonzero(np.bincount(of, minlength=n) == 0)
        sums[empty] = sample[np.argsort(near, kind="stable")[: len(empty)]]  # those that are farthest
        centroids = unit(sums)
    return centroids, _nearest(matrix, centroids)[0]


def _spaced(n: int, count: int) -> Ints:
    return np.unique(np.linspace(0, n - 1, min(n, count)).astype(np.int64))


def _nearest(vectors: Floats, centroids: Floats) -> tuple[Ints, Floats]:
    """The nearest centroid of each vector, and how near it is."""
    of, near = np.zeros(len(vectors), np.int64), np.zeros(len(vectors), np.float32)
    for at in range(0, len(vectors), _ROWS_AT_ONCE // 4):
        part = slice(at, at + _ROWS_AT_ONCE // 4)
        products = vectors[part] @ centroids.T
        of[part] = products.argmax(axis=1)
        near[part] = products.max(axis=1)
    return of, near
