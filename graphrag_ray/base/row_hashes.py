"""A hash of what each row of a table holds, from Arrow's buffers: without a Python object per row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes: TypeAlias = npt.NDArray[np.uint64]

_AT_ONCE = 1 << 16
"""Values that are looked at together: what is computed of them stays in the processor's cache."""
_BASE = 0x9E3779B97F4A7C15
_SEED, _NULL = np.uint64(0x2545F4914F6CDD1D), np.uint64(0xD6E8FEB86659FD93)


def _powers(base: int) -> Hashes:
    factors = np.full(_AT_ONCE + 1, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


_POWERS, _INVERSES = _powers(_BASE), _powers(pow(_BASE, -1, 1 << 64))


def row_hashes(columns: Sequence[pa.ChunkedArray], n_rows: int) -> Hashes:
    """[rows] 64 bits for what the columns hold there: texts, numbers, or lists of these. Equal rows have the
    same; rows that are not equal have others, unless somebody seeks them. A float that is no number is as
    null."""
    found = np.zeros(n_rows, np.uint64)
    for column in columns:
        own = np.concatenate([np.zeros(0, np.uint64), *(_of_array(chunk) for chunk in column.chunks)])
        found = mixed(found * _SEED + own)
    return found


def digests(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers in place of texts that somebody might choose so that their rows' hashes are equal."""
    found = [
        None
        if text is None
        else int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)
        for text in texts.to_pylist()
    ]
    return pa.chunked_array([pa.array(found, pa.int64())])


def _of_array(array: pa.Array) -> Hashes:
    type_ = array.type
    if pa.types.is_floating(type_):
        numbers = array.fill_null(np.nan).cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
        numbers[np.isnan(numbers)] = np.nan  # of which there are many
        return mixed(numbers.view(np.uint64))
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        numbers = array.fill_null(False if pa.types.is_boolean(type_) else 0).cast(pa.int64())
        found = mixed(numbers.to_numpy().view(np.uint64))
    elif pa.types.is_string(type_) or pa.types.is_large_string(type_):
        wide = array.cast(pa.large_string())
        _, ends, data = wide.buffers()
        places = np.frombuffer(ends, np.int64)[wide.offset : wide.offset + len(wide) + 1]
        found = _of_runs(np.frombuffer(data or b"", np.uint8), places)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        found = _of_runs(_of_array(array.values), array.offsets.to_numpy().astype(np.int64))
    else:
        raise TypeError(f"a column of {type_} has no hashes")
    if array.null_count:
        found[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return found


def _of_runs(values: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> Hashes:
    """[n] of each run of values. places: [n + 1] where they begin and end

    A run's hash is that of Rabin and Karp: the sum of its values times powers of _BASE, as a difference of
    sums over many runs, modulo 2^64.
    """
    found = np.empty(len(places) - 1, np.uint64)
    at = 0
    while at < len(found):
        stop = max(at + 1, int(np.searchsorted(places, places[at] + _AT_ONCE, "right")) - 1)
        start, end = int(places[at]), int(places[stop])
        if end - start > _AT_ONCE:
            digest = hashlib.blake2b(values[start:end].tobytes(), digest_size=8).digest()
            found[at] = int.from_bytes(digest, "little")
        else:
            sums = np.empty(end - start + 1, np.uint64)
            sums[0] = 0
            np.cumsum(values[start:end] * _POWERS[: end - start], out=sums[1:])
            own = places[at : stop + 1] - start
            found[at:stop] = (sums[own[1:]] - sums[own[:-1]]) * _INVERSES[own[:-1]]
        at = stop
    return mixed(found + np.diff(places).astype(np.uint64) * _SEED)


def mixed(hashes: Hashes) -> Hashes:
    """Every bit of a hash in all bits of another one (splitmix64, Steele, Lea and Flood 2014)."""
    mixed = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
