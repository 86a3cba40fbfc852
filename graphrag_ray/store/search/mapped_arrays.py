"""Numeric arrays in one file, which are read on demand, and ids as pairs of 64-bit numbers.

The arrays start at multiples of 64 bytes. They are followed by a JSON directory with their names, types,
offsets and lengths, and by the length of the directory in 8 bytes. An id of 32 hex digits is stored as two
64-bit halves.

Files are untrusted: `unpack` checks that arrays are inside the file and have consistent lengths, and
`MappedArray` checks all positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from graphrag_ray.base.ids import ID_LENGTH

Ints: TypeAlias = npt.NDArray[np.int64]
Keys: TypeAlias = npt.NDArray[np.uint64]
Halves: TypeAlias = tuple[Keys, Keys]

BLOCK = 128  # Keys per block of a sorted array. Lookups first search the first keys of all blocks.
_BATCH = 8_192
_ALIGNMENT = 64
_LENGTH_BYTES = 8


class ByteSource(Protocol):
    """The bytes of a file. `data` ([bytes] uint8) may only be read in ranges passed to `load` before."""

    @property
    def data(self) -> npt.NDArray[np.uint8]: ...
    def load(self, starts: Ints, ends: Ints) -> None: ...
    def invalid(self, why: str) -> Exception:
        """Return the error to raise for invalid contents."""
        ...


@dataclass(frozen=True)
class InMemory:
    """A `ByteSource` of bytes in memory."""

    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, data: bytes) -> InMemory:
        return cls(np.frombuffer(data, np.uint8))

    def load(self, starts: Ints, ends: Ints) -> None: ...

    def invalid(self, why: str) -> Exception:
        return ValueError(why)


@dataclass(frozen=True)
class MappedArray:
    """An array that is read on demand. Invalid positions raise `source.invalid`."""

    source: ByteSource
    begin: int  # Offset in the file.
    values: npt.NDArray[Any]  # [n] or [n, width]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values at some positions."""
        positions = np.asarray(positions, np.int64)
        self._load(positions, positions + 1)
        return np.asarray(self.values[positions])

    def run(self, start: int, end: int) -> npt.NDArray[Any]:
        """Return a slice without copying it."""
        self._load(np.array([start]), np.array([end]))
        return self.values[start:end]

    def runs(self, starts: Ints, ends: Ints) -> npt.NDArray[Any]:
        """Return several slices, concatenated."""
        self._load(starts, ends)
        return self.values[expand_ranges(starts, ends)[0]]

    def spans(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the starts and ends of some of the consecutive ranges whose ends this array contains."""
        end = self.take(positions)
        start = np.where(positions > 0, self.take(np.maximum(positions - 1, 0)), 0)
        if (start > end).any():
            raise self.source.invalid("its ranges are not in order")
        return start, end

    def whole(self) -> npt.NDArray[Any]:
        return self._whole

    @cached_property
    def _whole(self) -> npt.NDArray[Any]:
        return self.run(0, len(self))

    def rows(self, width: int) -> MappedArray:
        """Return the array as [n / width, width]."""
        if width < 1 or len(self) % width:
            raise self.source.invalid("its arrays have inconsistent lengths")
        return MappedArray(self.source, self.begin, self.values.reshape(-1, width))

    def _load(self, starts: Ints, ends: Ints) -> None:
        if not len(starts):
            return
        if starts.min() < 0 or ends.max() > len(self) or (ends < starts).any():
            raise self.source.invalid("a position is out of range")
        width = self.values.strides[0] if len(self) else 0
        self.source.load(self.begin + starts * width, self.begin + ends * width)


def pack(arrays: Mapping[str, npt.NDArray[Any]], types: Mapping[str, Any] = {}) -> bytes:
    """Return the bytes of a file, which depend only on the arrays.

    Args:
        types: The type of each array, in the order of the file. By default the arrays are stored as given.
    """
    arrays = {name: np.asarray(arrays[name], kind) for name, kind in types.items()} or arrays
    pieces: list[Any] = []
    directory: dict[str, list[Any]] = {}
    offset = 0
    for name, array in arrays.items():
        data, padding = np.ascontiguousarray(array), -array.nbytes % _ALIGNMENT
        directory[name] = [_kind(data.dtype), offset, len(data)]
        pieces += [data.data.cast("B") if data.size else b"", bytes(padding)]
        offset += data.nbytes + padding
    head = orjson.dumps(directory)
    return b"".join([*pieces, head, len(head).to_bytes(_LENGTH_BYTES, "little")])


def unpack(
    source: ByteSource,
    types: Mapping[str, Any],
    needed: Collection[str] = (),
    equal: Sequence[Collection[str]] = (),
    heads_of: Mapping[str, str] = {},
) -> dict[str, MappedArray]:
    """Return the arrays of a file, which are read on demand. Invalid files raise `source.invalid`.

    Args:
        types: The types of all possible arrays, by name or by the part of the name before the first dot.
        needed: Names of arrays that must exist.
        equal: Groups of names of arrays that must have the same length.
        heads_of: Name of an array of `block_heads` -> name of the array of its keys.
    """
    n = len(source.data)
    try:
        source.load(np.array([max(0, n - _LENGTH_BYTES)]), np.array([n]))
        size = int.from_bytes(source.data[-_LENGTH_BYTES:].tobytes(), "little")
        start = n - _LENGTH_BYTES - size
        if n < _LENGTH_BYTES or start < 0:
            raise ValueError("it is too short")
        source.load(np.array([start]), np.array([n - _LENGTH_BYTES]))
        arrays = {}
        for name, (kind, begin, length) in orjson.loads(source.data[start:-_LENGTH_BYTES].tobytes()).items():
            dtype = np.dtype(types.get(name) or types[name.partition(".")[0]])
            end = begin + length * dtype.itemsize
            if kind != _kind(dtype) or not 0 <= begin <= end <= start or begin % _ALIGNMENT or length < 0:
                raise ValueError(f"{name} has another type or is outside of the file")
            arrays[name] = MappedArray(source, begin, source.data[begin:end].view(dtype))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as e:
        raise source.invalid(f"its arrays cannot be read ({e})") from e
    if missing := set(needed) - arrays.keys():
        raise source.invalid(f"it lacks {', '.join(sorted(missing))}")
    lengths = [{len(arrays[name]) for name in names} for names in equal]
    lengths += [{len(arrays[heads]), -(-len(arrays[name]) // BLOCK)} for heads, name in heads_of.items()]
    if any(len(distinct) > 1 for distinct in lengths):
        raise source.invalid("its arrays have inconsistent lengths")
    return arrays


def _kind(dtype: np.dtype[Any]) -> Any:
    return [[name, dtype[name].str] for name in dtype.names] if dtype.names else dtype.str


def block_heads(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the first key of each block, for `find_positions`."""
    return keys[::BLOCK]


def find_positions(keys: MappedArray, heads: MappedArray, wanted: Keys) -> Ints:
    """Return the first position of each wanted key in the sorted keys, or -1: [wanted]."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1)
    if len(wanted) > _BATCH:
        batches = [wanted[i : i + _BATCH] for i in range(0, len(wanted), _BATCH)]
        return np.concatenate([find_positions(keys, heads, batch) for batch in batches])
    begin = np.maximum(np.searchsorted(heads.whole(), wanted, "left") - 1, 0) * BLOCK
    end = np.minimum(begin + BLOCK + 1, len(keys))
    distinct, first = np.unique(begin, return_index=True)
    keys._load(distinct, end[first])
    candidates = np.minimum(begin[:, None] + np.arange(BLOCK + 1), len(keys) - 1)
    same = keys.values[candidates] == wanted[:, None]
    return np.where(same.any(axis=1), candidates[np.arange(len(wanted)), same.argmax(axis=1)], -1)


@dataclass(frozen=True)
class Ids:
    """Sorted ids: their high and low halves, and the block heads of the high halves."""

    high: MappedArray
    low: MappedArray
    top: MappedArray

    def at(self, positions: Ints) -> list[str]:
        return join_halves(self.high.take(positions), self.low.take(positions))

    def find(self, wanted: Halves) -> Ints:
        """Return the position of each wanted id, or -1: [wanted]."""
        positions = find_positions(self.high, self.top, wanted[0])
        pending = np.flatnonzero(positions >= 0)
        while len(pending):  # One iteration, unless different ids share their first half.
            pending = pending[self.low.take(positions[pending]) != wanted[1][pending]]
            positions[pending] += 1
            inside = positions[pending] < len(self.high)
            inside[inside] = self.high.take(positions[pending[inside]]) == wanted[0][pending[inside]]
            positions[pending[~inside]] = -1
            pending = pending[inside]
        return positions

    def find_existing(self, wanted: Halves) -> Ints:
        """Return the sorted positions of the wanted ids that exist."""
        positions = self.find(wanted)
        return np.unique(positions[positions >= 0])


@dataclass(frozen=True)
class Shard:
    """A file of arrays about records. The arrays high, low and top.high contain the ids of the records."""

    source: ByteSource
    arrays: Mapping[str, MappedArray]

    def __len__(self) -> int:
        return len(self.arrays["high"])

    @property
    def ids(self) -> Ids:
        return Ids(*(self.arrays[name] for name in ("high", "low", "top.high")))


def expand_ranges(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Return all positions of the ranges [left, right), and the range of each position."""
    lengths = right - left
    owners = np.repeat(np.arange(len(left)), lengths)
    return np.arange(len(owners)) + np.repeat(left - (np.cumsum(lengths) - lengths), lengths), owners


def id_halves(ids: Sequence[str]) -> tuple[Keys, Keys]:
    """Return the first and second halves of ids. Raises ValueError for invalid ids."""
    if any(len(id_) != ID_LENGTH for id_ in ids):
        raise ValueError(f"An id must consist of {ID_LENGTH} hex digits")
    both = np.frombuffer(bytes.fromhex("".join(ids)), ">u8").reshape(-1, 2).astype("<u8")
    if len(both) != len(ids):  # `fromhex` skips whitespace.
        raise ValueError(f"An id must consist of {ID_LENGTH} hex digits")
    return both[:, 0].copy(), both[:, 1].copy()


def valid_ids(ids: Sequence[str]) -> list[str]:
    """Return the distinct valid ids."""
    return [i for i in dict.fromkeys(ids) if len(i) == ID_LENGTH and not i.strip("0123456789abcdef")]


def join_halves(high: Keys, low: Keys) -> list[str]:
    digits = np.stack([high, low], axis=1).astype(">u8").tobytes().hex()
    return [digits[i : i + ID_LENGTH] for i in range(0, len(digits), ID_LENGTH)]


def sorted_halves(ids: Sequence[str]) -> tuple[Halves, Ints]:
    """Return the halves of the sorted ids, and the order that sorts the ids."""
    high, low = id_halves(ids)
    order = np.lexsort((low, high))
    return (high[order], low[order]), order


def remaining_records(shard: Shard, removed_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return a mask of the records that stay in a shard: [records]. All removed ids must be in the shard."""
    positions = shard.ids.find_existing(id_halves(valid_ids(removed_ids)))
    if len(positions) != len(removed_ids):
        raise shard.source.invalid("it lacks records")
    remaining = np.ones(len(shard), np.bool_)
    remaining[positions] = False
    return remaining


def merge_ids(source: ByteSource, one: Halves, other: Halves) -> tuple[Halves, Ints, Ints]:
    """Merge the sorted, disjoint ids of two shards. Return them and the new positions of each shard's ids."""
    high, low = (np.concatenate(both) for both in zip(one, other, strict=True))
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    if ((high[1:] == high[:-1]) & (low[1:] == low[:-1])).any():
        raise source.invalid("it contains a record twice")
    positions = np.argsort(order)
    return (high, low), positions[: len(one[0])], positions[len(one[0]) :]
