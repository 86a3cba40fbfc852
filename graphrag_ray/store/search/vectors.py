"""Vector search by cosine similarity: all vectors one by one or, where there are very many, those whose signs
are like the question's.

A shard of an index is one file, of which only what is looked at is read:

    high, low  the halves of the records' ids, sorted
    top.high   some of the former
    exact      the vectors, of length 1, one after the other, or zeros where there is no direction; float32

or, where there are very many, in place of the last:

    vectors    the same as float16
    mean       of the vectors; float32
    signs      of each vector less the mean, a bit for each dimension: 64 dimensions of all vectors, then the
               next 64
    spread     how far the numbers of each vector less the mean are from zero, on average

A question goes through all signs, which takes a sixteenth of the bytes, and keeps the vectors that differ
in fewest; of these it keeps those whose signs, times their spread, have the highest products with it; and of
these it computes the scores. A sign for each dimension is the coarsest product quantisation (Jégou, Douze and
Schmid 2011, "Product Quantization for Nearest Neighbor Search"), and products with whole questions are the
estimate of Gao and Long (2024, "RaBitQ"), without its random rotation. Lists of near vectors and graphs of
neighbours were tried: docs/concepts/decisions/rows-by-pages.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search.mapped_arrays import (
    ByteSource,
    Halves,
    Ints,
    Keys,
    MappedArray,
    Shard,
    halves,
    interleaved,
    packed,
    sorted_halves,
    staying,
    tops,
    unpacked,
)

Floats = npt.NDArray[np.float32]
Found: TypeAlias = tuple[str, float]
"""Id and score of a record. Best first, ties by id: the same question has the same answer."""

DIGITS = 6
"""Of a score: what is equal in them is equal. The last bits of a sum depend on how it was added up."""
FIRST, FIRST_SHARE = 16_384, 64
"""So many vectors are kept by their signs, or one of so many."""
SECOND, SECOND_OF_EACH = 2_048, 32
"""So many are kept by products with their signs, or so many for each that is wanted."""
SAMPLE = 64
"""One of so many signs tells how many differences are few."""

_ROWS_AT_ONCE = 16_384
_WORD = 64
_HALF = np.dtype("<f2")
_TYPES = {"high": "<u8", "low": "<u8", "top": "<u8", "exact": "<f4", "vectors": "<f2", "mean": "<f4"}
_TYPES |= {"signs": "<u8", "spread": "<f4"}
_IDS = {"high", "low", "top.high"}
_KINDS = ({"exact"}, {"vectors", "mean", "signs", "spread"})


@dataclass(frozen=True)
class VectorShard(Shard):
    """Arrays as above; vectors: [records, dimensions]."""

    vectors: MappedArray

    @property
    def dimensions(self) -> int:
        return int(self.vectors.values.shape[1])

    @property
    def has_signs(self) -> bool:
        return "signs" in self.arrays

    def signs(self) -> Keys:
        """[dimensions / 64, records]"""
        return self.arrays["signs"].rows(len(self)).whole()

    def scores(self, rows: Ints | None, wanted: Floats) -> npt.NDArray[np.float64]:
        """Of some vectors, or of all."""
        found = self.vectors.whole() if rows is None else self.vectors.take(rows)
        return np.round(_sound(_products(found, wanted)), DIGITS)

    def estimated(self, rows: Ints, wanted: Floats) -> npt.NDArray[np.float64]:
        """What tells, of some vectors, which products with the wanted one are high."""
        signs, spread, found = self.signs(), self.arrays["spread"].whole(), np.empty(len(rows))
        for at in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[at : at + _ROWS_AT_ONCE]
            bits = np.unpackbits(signs[:, some].T.copy().view(np.uint8), axis=1, bitorder="little")
            of_signs = _products(bits[:, : self.dimensions], 2 * wanted) - wanted.sum()
            found[at : at + _ROWS_AT_ONCE] = of_signs * spread[some]
        return _sound(found + float(self.arrays["mean"].whole() @ wanted))


def kth(scores: npt.NDArray[np.floating], k: int, fewer: float) -> float:
    """The k-th highest score; `fewer` where there are not so many."""
    return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if 0 < k <= len(scores) else fewer


def build(ids: Sequence[str], vectors: Floats, signs: bool = False) -> bytes:
    """The bytes of a shard: the same for the same records, whatever their order.

    vectors: [ids, dimensions], of any length; signs: since there are very many. Raises ValueError for what is
    no id.
    """
    own, order = sorted_halves(ids)
    matrix = unit(vectors[order])
    return _packed(own, matrix.astype(_HALF) if signs else matrix)


def changed(shard: VectorShard, gone: Sequence[str], ids: Sequence[str], vectors: Floats) -> bytes:
    """The bytes of the shard that holds other records: those that `build` makes of them.

    gone: ids of records that it holds no more; ids, vectors: of those that come to it, which may be gone ones
    with other vectors. Raises what `source.refused` makes where the shard is not what `build` makes, or lacks
    a record that goes, or has one that comes; ValueError for what is no id.
    """
    stays = staying(shard, gone)
    held = shard.arrays["high"].whole()[stays], shard.arrays["low"].whole()[stays]
    new, order = sorted_halves(ids)
    both, of_held, of_new = interleaved(shard.source, held, new)
    own = shard.vectors.take(np.flatnonzero(stays))
    matrix = np.empty((len(both[0]), shard.dimensions), own.dtype)
    matrix[of_held] = own
    del own  # as large as the shard
    if len(ids):
        if vectors.shape[1] != shard.dimensions:
            raise shard.source.refused("its vectors have another number of dimensions")
        matrix[of_new] = unit(vectors[order])
    return _packed(both, matrix)


def _packed(ids: Halves, matrix: npt.NDArray[Any]) -> bytes:
    """matrix: of sorted ids; float32, or float16 where there are signs.

    All that a shard with signs holds follows from what it holds of its vectors, so that it can be derived.
    """
    high, low = ids
    arrays: dict[str, npt.NDArray[Any]] = {"high": high, "low": low, "top.high": tops(high)}
    if matrix.dtype != _HALF:
        return packed(arrays | {"exact": matrix.reshape(-1)})
    # No order of adding up changes this sum: all numbers are multiples of 2**-24 and at most 1.
    mean = (matrix.sum(axis=0, dtype=np.float64) / max(1, len(matrix))).astype(np.float32)
    n_words = -(-matrix.shape[1] // _WORD)
    signs, spread = np.empty((len(matrix), n_words), "<u8"), np.empty(len(matrix), np.float32)
    for at, some in enumerate(_blocks(matrix)):
        own, less = slice(at * _ROWS_AT_ONCE, at * _ROWS_AT_ONCE + len(some)), some - mean
        padded = np.zeros((len(less), n_words * _WORD), np.bool_)
        padded[:, : less.shape[1]] = less > 0
        signs[own] = np.packbits(padded, axis=1, bitorder="little").view("<u8")
        spread[own] = np.abs(less).mean(axis=1, dtype=np.float32)
    arrays |= {"vectors": matrix.reshape(-1), "mean": mean}
    return packed(arrays | {"signs": signs.T.reshape(-1), "spread": spread})


def _blocks(rows: npt.NDArray[Any]) -> Iterator[Floats]:
    """Some rows after the other."""
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        yield rows[at : at + _ROWS_AT_ONCE].astype(np.float32, copy=False)


def read(source: ByteSource) -> VectorShard:
    """A shard. Raises what `source.refused` makes for what is none."""
    arrays = unpacked(source, _TYPES, _IDS, [("high", "low")], {"top.high": "high"})
    if arrays.keys() - _IDS not in _KINDS:
        raise source.refused("it holds vectors, or vectors and their signs")
    n, name = len(arrays["high"]), "exact" if "exact" in arrays else "vectors"
    width = len(arrays[name]) // max(1, n)
    lengths = {name: n * width, "spread": n, "mean": width, "signs": n * -(-width // _WORD)}
    if width < 1 or any(len(array) != lengths.get(own, len(array)) for own, array in arrays.items()):
        raise source.refused("its arrays are of different lengths")
    return VectorShard(source, arrays, arrays[name].rows(width))


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
    rows: list[Ints | None] = [None for _ in shards]
    if among is not None:
        wanted_ids = halves(among)
        rows = [shard.ids.held(wanted_ids) for shard in shards]
    for at, some in _alike(shards, rows, wanted, k):
        rows[at] = some
    found: list[tuple[float, str]] = []
    for shard, own in zip(shards, rows, strict=True):
        scores = shard.scores(own, wanted)
        chosen = np.flatnonzero(scores >= kth(scores, k, -math.inf))
        places = chosen if own is None else own[chosen]
        ids = shard.ids.at(places)
        found += [(-score, id_) for id_, score in zip(ids, scores[chosen].tolist(), strict=True)]
        found = sorted(found)[:k]
    return [(id_, -score) for score, id_ in found]


def _alike(
    shards: Sequence[VectorShard], among: Sequence[Ints | None], wanted: Floats, k: int
) -> Iterator[tuple[int, Ints]]:
    """Of each shard that has signs, which of the rows that count are worth a score."""
    own = [at for at, shard in enumerate(shards) if shard.has_signs]
    n = sum(len(shards[at]) if (some := among[at]) is None else len(some) for at in own)
    second = max(SECOND, SECOND_OF_EACH * k)
    first = max(FIRST, 8 * second, n // FIRST_SHARE)
    if n <= second:
        return
    rows = {}
    if n > first:
        differing = {at: _differing(shards[at], among[at], wanted) for at in own}
        # In how many signs about so many of the vectors differ at most, as a sample tells.
        sample = np.sort(np.concatenate([of[::SAMPLE] for of in differing.values()]))
        few = int(sample[min(len(sample) - 1, first // SAMPLE)])
        for at, of in differing.items():
            # Of those that differ as much as the last one, which may be all, not more than are wanted.
            places = np.append(np.flatnonzero(of < few), np.flatnonzero(of == few)[:first])
            rows[at] = np.sort(places) if (some := among[at]) is None else some[np.sort(places)]
    else:
        rows = {at: np.arange(len(shards[at])) if (some := among[at]) is None else some for at in own}
    estimates = {at: shards[at].estimated(rows[at], wanted) for at in own}
    least = kth(np.concatenate([*estimates.values()]), second, -math.inf)
    for at, estimate in estimates.items():
        yield at, rows[at][estimate >= least]


def _differing(shard: VectorShard, among: Ints | None, wanted: Floats) -> npt.NDArray[np.uint16]:
    """In how many signs each vector differs from the wanted one."""
    padded = np.zeros(-(-len(wanted) // _WORD) * _WORD, np.bool_)
    padded[: len(wanted)] = wanted > 0
    count = np.zeros(len(shard) if among is None else len(among), np.uint16)
    for own, word in zip(shard.signs(), np.packbits(padded, bitorder="little").view("<u8"), strict=True):
        count += np.bitwise_count((own if among is None else own[among]) ^ word)
    return count


def _products(rows: npt.NDArray[Any], wanted: Floats) -> npt.NDArray[np.float32]:
    return np.concatenate([np.zeros(0, np.float32), *(some @ wanted for some in _blocks(rows))])


def _sound(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What is no number is near to nothing."""
    return np.nan_to_num(numbers.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
