"""Vector search by cosine similarity.

A shard of the index is one file, which is read on demand. Small indexes are searched exhaustively. Large ones
store float16 vectors and their signs: one bit per dimension of the vector minus the mean. First, a search
scans all signs, a sixteenth of the bytes, for the vectors with the fewest differences from the query vector.
Second, it estimates the products of these vectors with the query vector from their signs and spread. Third,
it computes the scores of the best ones.

One sign per dimension is the coarsest product quantization (Jégou, Douze and Schmid 2011, "Product
Quantization for Nearest Neighbor Search"). The estimate with the unquantized query vector is the one of Gao
and Long (2024, "RaBitQ"), without its random rotation. See docs/concepts/decisions/rows-by-pages.md for our
experiments with inverted lists and neighbour graphs.
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
"""Id and score of a record. Results are sorted by falling score, then by id, to be reproducible."""

DIGITS = 6  # Scores are rounded, because the last bits of a sum depend on the order of its terms.
SIGN_CANDIDATES = 16_384  # The first step keeps at least this many vectors,
SIGN_CANDIDATES_SHARE = 64  # or one in this many.
PRODUCT_CANDIDATES = 2_048  # The second step keeps at least this many vectors,
PRODUCT_CANDIDATES_PER_RESULT = 32  # or this many per result.
SAMPLE = 64  # One in this many vectors is sampled to find a threshold for the first step.

_BATCH_ROWS = 16_384
_WORD = 64
_HALF = np.dtype("<f2")
_TYPES = {
    "high": "<u8",  # Halves of the sorted record ids, and their block heads (top.high).
    "low": "<u8",
    "top": "<u8",
    "exact": "<f4",  # Small indexes: vectors of length 1 or 0.
    "vectors": "<f2",  # Large indexes: the same vectors, and their mean.
    "mean": "<f4",
    "signs": "<u8",  # [dimensions / 64, records] One bit per dimension of each vector minus the mean.
    "spread": "<f4",  # Mean absolute component of each vector minus the mean.
}
_IDS = {"high", "low", "top.high"}
_LAYOUTS = ({"exact"}, {"vectors", "mean", "signs", "spread"})


@dataclass(frozen=True)
class VectorShard(Shard):
    vectors: MappedArray  # [records, dimensions]

    @property
    def dimensions(self) -> int:
        return int(self.vectors.values.shape[1])

    @property
    def has_signs(self) -> bool:
        return "signs" in self.arrays

    def signs(self) -> Keys:
        """Return the signs of all vectors: [dimensions / 64, records]."""
        return self.arrays["signs"].rows(len(self)).whole()

    def scores(self, rows: Ints | None, wanted: Floats) -> npt.NDArray[np.float64]:
        """Return the scores of some vectors, or of all if `rows` is None."""
        vectors = self.vectors.whole() if rows is None else self.vectors.take(rows)
        return np.round(_finite(_products(vectors, wanted)), DIGITS)

    def estimate_products(self, rows: Ints, wanted: Floats) -> npt.NDArray[np.float64]:
        """Estimate the products of some vectors with the wanted one from their signs."""
        signs, spread, estimates = self.signs(), self.arrays["spread"].whole(), np.empty(len(rows))
        for start in range(0, len(rows), _BATCH_ROWS):
            batch = rows[start : start + _BATCH_ROWS]
            bits = np.unpackbits(signs[:, batch].T.copy().view(np.uint8), axis=1, bitorder="little")
            products = _products(bits[:, : self.dimensions], 2 * wanted) - wanted.sum()
            estimates[start : start + _BATCH_ROWS] = products * spread[batch]
        return _finite(estimates + float(self.arrays["mean"].whole() @ wanted))


def kth_highest(scores: npt.NDArray[np.floating], k: int, default: float) -> float:
    """Return the k-th highest score, or `default` if there are fewer than k."""
    return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if 0 < k <= len(scores) else default


def build(ids: Sequence[str], vectors: Floats, signs: bool = False) -> bytes:
    """Return the bytes of a shard, which do not depend on the order of the records.

    Args:
        vectors: [ids, dimensions] Vectors of any length.
        signs: Whether to store signs, for a large index.
    """
    sorted_ids, order = mapped_arrays.sorted_halves(ids)
    matrix = normalize(vectors[order])
    return _packed(sorted_ids, matrix.astype(_HALF) if signs else matrix)


def update(shard: VectorShard, removed_ids: Sequence[str], ids: Sequence[str], vectors: Floats) -> bytes:
    """Derive a shard from an earlier one, with the same bytes as `build` would return.

    A shard that does not match raises `source.invalid`.

    Args:
        removed_ids: Records to remove.
        ids: Records to add. They may be removed ones with other vectors.
        vectors: [ids, dimensions] Vectors of the records to add.
    """
    remaining = mapped_arrays.remaining_records(shard, removed_ids)
    old_ids = shard.arrays["high"].whole()[remaining], shard.arrays["low"].whole()[remaining]
    new_ids, order = mapped_arrays.sorted_halves(ids)
    merged, old_positions, new_positions = mapped_arrays.merge_ids(shard.source, old_ids, new_ids)
    old = shard.vectors.take(np.flatnonzero(remaining))
    matrix = np.empty((len(merged[0]), shard.dimensions), old.dtype)
    matrix[old_positions] = old
    del old  # It is as large as the shard.
    if len(ids):
        if vectors.shape[1] != shard.dimensions:
            raise shard.source.invalid("its vectors have a different number of dimensions")
        matrix[new_positions] = normalize(vectors[order])
    return _packed(merged, matrix)


def _packed(ids: Halves, matrix: npt.NDArray[Any]) -> bytes:
    """Return the bytes of a shard of sorted ids and their vectors: float32, or float16 for one with signs.

    All arrays are computed from the stored vectors, so `update` returns the same bytes as `build`.
    """
    high, low = ids
    heads = mapped_arrays.block_heads(high)
    arrays: dict[str, npt.NDArray[Any]] = {"high": high, "low": low, "top.high": heads}
    if matrix.dtype != _HALF:
        return mapped_arrays.pack(arrays | {"exact": matrix.reshape(-1)})
    # The sum is exact in any order, because all numbers are multiples of 2**-24 and at most 1.
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
    """Open a shard. Invalid files raise `source.invalid`."""
    arrays = mapped_arrays.unpack(source, _TYPES, _IDS, [("high", "low")], {"top.high": "high"})
    if arrays.keys() - _IDS not in _LAYOUTS:
        raise source.invalid("it must contain either exact vectors, or vectors and their signs")
    n, name = len(arrays["high"]), "exact" if "exact" in arrays else "vectors"
    width = len(arrays[name]) // max(1, n)
    lengths = {name: n * width, "spread": n, "mean": width, "signs": n * -(-width // _WORD)}
    if width < 1 or any(len(array) != lengths.get(key, len(array)) for key, array in arrays.items()):
        raise source.invalid("its arrays have inconsistent lengths")
    return VectorShard(source, arrays, arrays[name].rows(width))


def normalize(vectors: Floats) -> Floats:
    """Scale each vector to length 1. Vectors whose length is 0 or not finite become zeros."""
    # Divide by the largest component first, because squares may overflow float32.
    scale = np.max(np.abs(vectors), axis=1, keepdims=True, initial=0.0)
    valid = np.isfinite(scale) & (scale > 0)
    scaled = np.where(valid, vectors, 0.0) / np.where(valid, scale, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(length > 0, length, 1.0), dtype=np.float32)


def search(
    shards: Sequence[VectorShard], wanted: Floats, k: int, allowed_ids: Sequence[str] | None = None
) -> list[ScoredId]:
    """Return the k records with the highest cosine similarity to `wanted`, a vector of length 1.

    `allowed_ids` limits the search to these records.
    """
    if k <= 0:
        return []
    rows: list[Ints | None] = [None for _ in shards]
    if allowed_ids is not None:
        allowed = mapped_arrays.id_halves(allowed_ids)
        rows = [shard.ids.find_existing(allowed) for shard in shards]
    for i, candidates in _candidates(shards, rows, wanted, k):
        rows[i] = candidates
    best: list[tuple[float, str]] = []
    for shard, shard_rows in zip(shards, rows, strict=True):
        scores = shard.scores(shard_rows, wanted)
        chosen = np.flatnonzero(scores >= kth_highest(scores, k, -math.inf))
        ids = shard.ids.at(chosen if shard_rows is None else shard_rows[chosen])
        best += [(-score, id_) for id_, score in zip(ids, scores[chosen].tolist(), strict=True)]
        best = sorted(best)[:k]
    return [(id_, -score) for score, id_ in best]


def _candidates(
    shards: Sequence[VectorShard], rows: Sequence[Ints | None], wanted: Floats, k: int
) -> Iterator[tuple[int, Ints]]:
    """Yield the candidates for scoring in each shard with signs. `rows` limits the search unless None."""
    signed = [i for i, shard in enumerate(shards) if shard.has_signs]
    n = sum(len(shards[i]) if (limit := rows[i]) is None else len(limit) for i in signed)
    second = max(PRODUCT_CANDIDATES, PRODUCT_CANDIDATES_PER_RESULT * k)
    first = max(SIGN_CANDIDATES, 8 * second, n // SIGN_CANDIDATES_SHARE)
    if n <= second:
        return
    candidates = {}
    if n > first:
        differences = {i: _count_differences(shards[i], rows[i], wanted) for i in signed}
        # About `first` of the vectors have at most this number of differences, estimated from a sample.
        sample = np.sort(np.concatenate([counts[::SAMPLE] for counts in differences.values()]))
        threshold = int(sample[min(len(sample) - 1, first // SAMPLE)])
        for i, counts in differences.items():
            # All vectors may have exactly this number, so limit those that have.
            at_threshold = np.flatnonzero(counts == threshold)[:first]
            chosen = np.sort(np.append(np.flatnonzero(counts < threshold), at_threshold))
            candidates[i] = chosen if (limit := rows[i]) is None else limit[chosen]
    else:
        candidates = {i: np.arange(len(shards[i])) if (limit := rows[i]) is None else limit for i in signed}
    estimates = {i: shards[i].estimate_products(candidates[i], wanted) for i in signed}
    lowest = kth_highest(np.concatenate([*estimates.values()]), second, -math.inf)
    for i, estimate in estimates.items():
        yield i, candidates[i][estimate >= lowest]


def _count_differences(shard: VectorShard, rows: Ints | None, wanted: Floats) -> npt.NDArray[np.uint16]:
    """Count in how many signs each vector differs from the wanted one."""
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
