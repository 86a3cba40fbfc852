"""Number arrays in one file, of which only the parts that are used are read; and ids as pairs of numbers.

The arrays start at multiples of 64 bytes. A JSON directory of their names, types, offsets and lengths
follows, and its own length in 8 bytes. An id of 32 hex digits is stored as two 64-bit halves.

Files are untrusted: `unpack` checks that arrays lie inside the file and have consistent lengths,
`MappedArray` that no number leads out of them.
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

STEP = 128  # Keys per block of a sorted array; lookups search the blocks' first keys before a block itself.
_BATCH = 8_192
_ALIGNMENT = 64
_LENGTH_BYTES = 8


class ByteSource(Protocol):
    """The bytes of a file: `data` ([bytes] uint8) may be read only where `load` was called before."""

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
    """An array that is read on demand. Positions outside of it raise `source.refused`."""

    source: ByteSource
    begin: int  # Offset in the file.
    values: npt.NDArray[Any]  # [n] or [n, width]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values at some positions."""
        places = np.asarray(places, np.int64)
        self._need(places, places + 1)
        return np.asarray(self.values[places])

    def run(self, start: int, end: int) -> npt.NDArray[Any]:
        """Return a slice without copying it."""
        self._need(np.array([start]), np.array([end]))
        return self.values[start:end]

    def runs(self, starts: Ints, ends: Ints) -> npt.NDArray[Any]:
        """Return several slices, concatenated."""
        self._need(starts, ends)
        return self.values[expand_ranges(starts, ends)[0]]

    def spans(self, places: Ints) -> tuple[Ints, Ints]:
        """Return the starts and ends of some consecutive ranges, of which this array holds the ends."""
        end = self.take(places)
        start = np.where(places > 0, self.take(np.maximum(places - 1, 0)), 0)
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
            raise self.source.invalid("its arrays are of different lengths")
        return MappedArray(self.source, self.begin, self.values.reshape(-1, width))

    def _need(self, starts: Ints, ends: Ints) -> None:
        if not len(starts):
            return
        if starts.min() < 0 or ends.max() > len(self) or (ends < starts).any():
            raise self.source.invalid("it leads out of itself")
        width = self.values.strides[0] if len(self) else 0
        self.source.load(self.begin + starts * width, self.begin + ends * width)


def pack(arrays: Mapping[str, npt.NDArray[Any]], types: Mapping[str, Any] = {}) -> bytes:
    """Return the bytes of a file, which depend on the arrays alone.

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
    """Return the arrays of a file without reading them. Invalid files raise `source.refused`.

    Args:
        types: The possible arrays, by name or by the part of the name before the first dot.
        needed: Arrays that must exist.
        equal: Groups of arrays of the same length.
        heads_of: Name of an array of `block_heads` -> name of the array to which it belongs.
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
                raise ValueError(f"{name} has another type, or lies outside")
            arrays[name] = MappedArray(source, begin, source.data[begin:end].view(dtype))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as e:
        raise source.invalid(f"it holds no such arrays ({e})") from e
    if missing := set(needed) - arrays.keys():
        raise source.invalid(f"it lacks {', '.join(sorted(missing))}")
    lengths = [{len(arrays[name]) for name in names} for names in equal]
    lengths += [{len(arrays[heads]), -(-len(arrays[name]) // STEP)} for heads, name in heads_of.items()]
    if any(len(distinct) > 1 for distinct in lengths):
        raise source.invalid("its arrays are of different lengths")
    return arrays


def _kind(dtype: np.dtype[Any]) -> Any:
    return [[name, dtype[name].str] for name in dtype.names] if dtype.names else dtype.str


def block_heads(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the first key of each block, for `find_positions`."""
    return keys[::STEP]


def find_positions(keys: MappedArray, heads: MappedArray, wanted: Keys) -> Ints:
    """Return [wanted] the first position of each in the sorted keys, or -1."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1)
    if len(wanted) > _BATCH:
        batches = [wanted[i : i + _BATCH] for i in range(0, len(wanted), _BATCH)]
        return np.concatenate([find_positions(keys, heads, batch) for batch in batches])
    begin = np.maximum(np.searchsorted(heads.whole(), wanted, "left") - 1, 0) * STEP
    end = np.minimum(begin + STEP + 1, len(keys))
    distinct, first = np.unique(begin, return_index=True)
    keys._need(distinct, end[first])
    candidates = np.minimum(begin[:, None] + np.arange(STEP + 1), len(keys) - 1)
    same = keys.values[candidates] == wanted[:, None]
    return np.where(same.any(axis=1), candidates[np.arange(len(wanted)), same.argmax(axis=1)], -1)


@dataclass(frozen=True)
class Ids:
    """Sorted ids: both halves, and the block heads of the first ones."""

    high: MappedArray
    low: MappedArray
    top: MappedArray

    def at(self, places: Ints) -> list[str]:
        return join_halves(self.high.take(places), self.low.take(places))

    def places(self, wanted: Halves) -> Ints:
        """Return [wanted] the position of each id, or -1."""
        places = find_positions(self.high, self.top, wanted[0])
        left = np.flatnonzero(places >= 0)
        while len(left):  # Once, unless different ids share their first half.
            left = left[self.low.take(places[left]) != wanted[1][left]]
            places[left] += 1
            inside = places[left] < len(self.high)
            inside[inside] = self.high.take(places[left[inside]]) == wanted[0][left[inside]]
            places[left[~inside]] = -1
            left = left[inside]
        return places

    def held(self, wanted: Halves) -> Ints:
        """Return the sorted positions of those ids that exist."""
        places = self.places(wanted)
        return np.unique(places[places >= 0])


@dataclass(frozen=True)
class Shard:
    """A file of arrays about records, whose ids are in the arrays high, low and top.high."""

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
        raise ValueError(f"An id must have {ID_LENGTH} hex digits")
    both = np.frombuffer(bytes.fromhex("".join(ids)), ">u8").reshape(-1, 2).astype("<u8")
    if len(both) != len(ids):  # `fromhex` skips white space.
        raise ValueError(f"An id must have {ID_LENGTH} hex digits")
    return both[:, 0].copy(), both[:, 1].copy()


def valid_ids(ids: Sequence[str]) -> list[str]:
    """Return the distinct valid ids."""
    return [i for i in dict.fromkeys(ids) if len(i) == ID_LENGTH and not i.strip("0123456789abcdef")]


def join_halves(high: Keys, low: Keys) -> list[str]:
    digits = np.stack([high, low], axis=1).astype(">u8").tobytes().hex()
    return [digits[i : i + ID_LENGTH] for i in range(0, len(digits), ID_LENGTH)]


def sorted_halves(ids: Sequence[str]) -> tuple[Halves, Ints]:
    """Return the halves of the sorted ids, and the order that sorts them."""
    high, low = id_halves(ids)
    order = np.lexsort((low, high))
    return (high[order], low[order]), order


def kept_records(shard: Shard, gone: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return [records] which records of a shard stay. It must hold all the ids that go."""
    places = shard.ids.held(id_halves(valid_ids(gone)))
    if len(places) != len(gone):
        raise shard.source.invalid("it lacks records")
    kept = np.ones(len(shard), np.bool_)
    kept[places] = False
    return kept


def merge_ids(source: ByteSource, one: Halves, other: Halves) -> tuple[Halves, Ints, Ints]:
    """Merge the sorted, disjoint ids of two shards; return them and the new positions of each shard's ids."""
    high, low = (np.concatenate(both) for both in zip(one, other, strict=True))
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    if ((high[1:] == high[:-1]) & (low[1:] == low[:-1])).any():
        raise source.invalid("a record is there twice")
    places = np.argsort(order)
    return (high, low), places[: len(one[0])], places[len(one[0]) :]
