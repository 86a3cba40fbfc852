"""Vector search by cosine similarity.

A shard of the index is one file, of which only some parts are read. Small indexes are searched
exhaustively. Large ones store float16 vectors and the sign of each number less the mean. A question scans all
signs, a sixteenth of the bytes, and keeps the vectors that differ in the fewest; of these it keeps those
whose signs, scaled by their spread, have the highest products with it; of these it computes the scores.

One sign per dimension is the coarsest product quantization (Jégou, Douze and Schmid 2011, "Product
Quantization for Nearest Neighbor Search"). Products with the unquantized question are the estimate of Gao and
Long (2024, "RaBitQ"), without its random rotation. Inverted lists and neighbour graphs were tried:
docs/concepts/decisions/rows-by-pages.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search import mapped_arrays
from graphrag_ray.store.search.mapped_arrays import ByteSource, Halves, Ints, Keys, MappedArray, Shard

Floats = npt.NDArray[np.float32]
ScoredId: TypeAlias = tuple[str, float]
"""Id and score of a record. Results are sorted by falling score, then by id, so they are reproducible."""

DIGITS = 6  # Scores are rounded: the last bits of a sum depend on the order of its terms.
FIRST, FIRST_SHARE = 16_384, 64  # Vectors kept by their signs: at least FIRST, or one in FIRST_SHARE.
SECOND, SECOND_PER_RESULT = 2_048, 32  # Vectors kept by products: at least SECOND, or this many per result.
SAMPLE = 64  # One in this many vectors is sampled to find out which number of differences is small.

_BATCH_ROWS = 16_384
_WORD = 64
_HALF = np.dtype("<f2")
_TYPES = {
    "high": "<u8",  # Halves of the records' ids, sorted, and their block heads (top.high).
    "low": "<u8",
    "top": "<u8",
    "exact": "<f4",  # Small indexes: the vectors, of length 1 or 0.
    "vectors": "<f2",  # Large indexes: the same, and their mean.
    "mean": "<f4",
    "signs": "<u8",  # [dimensions / 64, records] One bit per dimension of each vector less the mean.
    "spread": "<f4",  # Mean absolute number of each vector less the mean.
}
_IDS = {"high", "low", "top.high"}
_LAYOUTS = ({"exact"}, {"vectors", "mean", "signs", "spread"})


@dataclass(frozen=True)
class VectorShard(Shard):
    """A shard of the index; `vectors` is [records, dimensions]."""

    vectors: MappedArray

    @property
    def dimensions(self) -> int:
        return int(self.vectors.values.shape[1])

    @property
    def has_signs(self) -> bool:
        return "signs" in self.arrays

    def signs(self) -> Keys:
        """Return [dimensions / 64, records]."""
        return self.arrays["signs"].rows(len(self)).whole()

    def scores(self, rows: Ints | None, wanted: Floats) -> npt.NDArray[np.float64]:
        """Return the scores of some vectors, or of all."""
        vectors = self.vectors.whole() if rows is None else self.vectors.take(rows)
        return np.round(_finite(_products(vectors, wanted)), DIGITS)

    def estimated(self, rows: Ints, wanted: Floats) -> npt.NDArray[np.float64]:
        """Estimate the products of some vectors with the wanted one from their signs."""
        signs, spread, estimates = self.signs(), self.arrays["spread"].whole(), np.empty(len(rows))
        for start in range(0, len(rows), _BATCH_ROWS):
            batch = rows[start : start + _BATCH_ROWS]
            bits = np.unpackbits(signs[:, batch].T.copy().view(np.uint8), axis=1, bitorder="little")
            of_signs = _products(bits[:, : self.dimensions], 2 * wanted) - wanted.sum()
            estimates[start : start + _BATCH_ROWS] = of_signs * spread[batch]
        return _finite(estimates + float(self.arrays["mean"].whole() @ wanted))


def kth_highest(scores: npt.NDArray[np.floating], k: int, default: float) -> float:
    """Return the k-th highest score, or `default` if there are fewer than k."""
    return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if 0 < k <= len(scores) else default


def build(ids: Sequence[str], vectors: Floats, signs: bool = False) -> bytes:
    """Return the bytes of a shard, which do not depend on the order of the records.

    Args:
        vectors: [ids, dimensions] Of any length.
        signs: Whether the index is large and needs signs.
    """
    sorted_ids, order = mapped_arrays.sorted_halves(ids)
    matrix = normalize(vectors[order])
    return _packed(sorted_ids, matrix.astype(_HALF) if signs else matrix)


def update(shard: VectorShard, gone: Sequence[str], ids: Sequence[str], vectors: Floats) -> bytes:
    """Derive the shard with other records from an earlier one; equals what `build` makes.

    A shard that does not fit raises `source.refused`.

    Args:
        gone: Ids of records to remove.
        ids: Ids of records to add; may be removed ones with other vectors.
        vectors: [ids, dimensions]
    """
    kept = mapped_arrays.kept_records(shard, gone)
    old_ids = shard.arrays["high"].whole()[kept], shard.arrays["low"].whole()[kept]
    new_ids, order = mapped_arrays.sorted_halves(ids)
    merged, old_places, new_places = mapped_arrays.merge_ids(shard.source, old_ids, new_ids)
    old = shard.vectors.take(np.flatnonzero(kept))
    matrix = np.empty((len(merged[0]), shard.dimensions), old.dtype)
    matrix[old_places] = old
    del old  # As large as the shard.
    if len(ids):
        if vectors.shape[1] != shard.dimensions:
            raise shard.source.invalid("its vectors have another number of dimensions")
        matrix[new_places] = normalize(vectors[order])
    return _packed(merged, matrix)


def _packed(ids: Halves, matrix: npt.NDArray[Any]) -> bytes:
    """Pack a shard of sorted ids and their vectors: float32, or float16 for a shard with signs.

    All arrays follow from the stored vectors, so that `changed` gives the same bytes as `build`.
    """
    high, low = ids
    heads = mapped_arrays.block_heads(high)
    arrays: dict[str, npt.NDArray[Any]] = {"high": high, "low": low, "top.high": heads}
    if matrix.dtype != _HALF:
        return mapped_arrays.pack(arrays | {"exact": matrix.reshape(-1)})
    # Exact in any order of addition: all numbers are multiples of 2**-24 and at most 1.
    mean = (matrix.sum(axis=0, dtype=np.float64) / max(1, len(matrix))).astype(np.float32)
    n_words = -(-matrix.shape[1] // _WORD)
    signs, spread = np.empty((len(matrix), n_words), "<u8"), np.empty(len(matrix), np.float32)
    for i, batch in enumerate(_batches(matrix)):
        rows, centered = slice(i * _BATCH_ROWS, i * _BATCH_ROWS + len(batch)), batch - mean
        padded = np.zeros((len(centered), n_words * _WORD), np.bool_)
        padded[:, : centered.shape[1]] = centered > 0
        signs[rows] = np.packbits(padded, axis=1, bitorder="little").view("<u8")
        spread[rows] = np.abs(centered).mean(axis=1, dtype=np.float32)
    arrays |= {"vectors": matrix.reshape(-1), "mean": mean, "signs": signs.T.reshape(-1), "spread": spread}
    return mapped_arrays.pack(arrays)


def _batches(rows: npt.NDArray[Any]) -> Iterator[Floats]:
    for start in range(0, len(rows), _BATCH_ROWS):
        yield rows[start : start + _BATCH_ROWS].astype(np.float32, copy=False)


def read(source: ByteSource) -> VectorShard:
    """Open a shard. Invalid files raise `source.refused`."""
    arrays = mapped_arrays.unpack(source, _TYPES, _IDS, [("high", "low")], {"top.high": "high"})
    if arrays.keys() - _IDS not in _LAYOUTS:
        raise source.invalid("it must hold either exact vectors, or vectors and their signs")
    n, name = len(arrays["high"]), "exact" if "exact" in arrays else "vectors"
    width = len(arrays[name]) // max(1, n)
    lengths = {name: n * width, "spread": n, "mean": width, "signs": n * -(-width // _WORD)}
    if width < 1 or any(len(array) != lengths.get(key, len(array)) for key, array in arrays.items()):
        raise source.invalid("its arrays are of different lengths")
    return VectorShard(source, arrays, arrays[name].rows(width))


def normalize(vectors: Floats) -> Floats:
    """Scale each vector to length 1; zeros if its length is 0 or not finite."""
    # First divide by the largest number: float32 cannot hold the square of every number that it can hold.
    scale = np.max(np.abs(vectors), axis=1, keepdims=True, initial=0.0)
    valid = np.isfinite(scale) & (scale > 0)
    scaled = np.where(valid, vectors, 0.0) / np.where(valid, scale, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(length > 0, length, 1.0), dtype=np.float32)


def search(
    shards: Sequence[VectorShard], wanted: Floats, k: int, allowed_ids: Sequence[str] | None = None
) -> list[ScoredId]:
    """Return the k records with the highest cosine similarity to a vector of length 1.

    Searches all shards of a kind, or only `allowed_ids`.
    """
    if k <= 0:
        return []
    rows: list[Ints | None] = [None for _ in shards]
    if allowed_ids is not None:
        allowed = mapped_arrays.id_halves(allowed_ids)
        rows = [shard.ids.held(allowed) for shard in shards]
    for i, candidates in _candidates(shards, rows, wanted, k):
        rows[i] = candidates
    found: list[tuple[float, str]] = []
    for shard, shard_rows in zip(shards, rows, strict=True):
        scores = shard.scores(shard_rows, wanted)
        chosen = np.flatnonzero(scores >= kth_highest(scores, k, -math.inf))
        ids = shard.ids.at(chosen if shard_rows is None else shard_rows[chosen])
        found += [(-score, id_) for id_, score in zip(ids, scores[chosen].tolist(), strict=True)]
        found = sorted(found)[:k]
    return [(id_, -score) for score, id_ in found]


def _candidates(
    shards: Sequence[VectorShard], rows: Sequence[Ints | None], wanted: Floats, k: int
) -> Iterator[tuple[int, Ints]]:
    """Yield the rows worth scoring of each shard that has signs; `rows` limits the search (None: all)."""
    signed = [i for i, shard in enumerate(shards) if shard.has_signs]
    n = sum(len(shards[i]) if (limit := rows[i]) is None else len(limit) for i in signed)
    second = max(SECOND, SECOND_PER_RESULT * k)
    first = max(FIRST, 8 * second, n // FIRST_SHARE)
    if n <= second:
        return
    kept = {}
    if n > first:
        differences = {i: _count_differences(shards[i], rows[i], wanted) for i in signed}
        # The number of differences that about `first` of the vectors do not exceed, estimated from a sample.
        sample = np.sort(np.concatenate([counts[::SAMPLE] for counts in differences.values()]))
        few = int(sample[min(len(sample) - 1, first // SAMPLE)])
        for i, counts in differences.items():
            # Of those with exactly that many, which may be all, no more than wanted.
            places = np.append(np.flatnonzero(counts < few), np.flatnonzero(counts == few)[:first])
            kept[i] = np.sort(places) if (limit := rows[i]) is None else limit[np.sort(places)]
    else:
        kept = {i: np.arange(len(shards[i])) if (limit := rows[i]) is None else limit for i in signed}
    estimates = {i: shards[i].estimated(kept[i], wanted) for i in signed}
    least = kth_highest(np.concatenate([*estimates.values()]), second, -math.inf)
    for i, estimate in estimates.items():
        yield i, kept[i][estimate >= least]


def _count_differences(shard: VectorShard, rows: Ints | None, wanted: Floats) -> npt.NDArray[np.uint16]:
    """Count the signs in which each vector differs from the wanted one."""
    padded = np.zeros(-(-len(wanted) // _WORD) * _WORD, np.bool_)
    padded[: len(wanted)] = wanted > 0
    counts = np.zeros(len(shard) if rows is None else len(rows), np.uint16)
    for signs, word in zip(shard.signs(), np.packbits(padded, bitorder="little").view("<u8"), strict=True):
        counts += np.bitwise_count((signs if rows is None else signs[rows]) ^ word)
    return counts


def _products(rows: npt.NDArray[Any], wanted: Floats) -> npt.NDArray[np.float32]:
    return np.concatenate([np.zeros(0, np.float32), *(batch @ wanted for batch in _batches(rows))])


def _finite(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.nan_to_num(numbers.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
