"""Arrays of numbers as one file, of which only what is looked at is read; and ids as such numbers.

The arrays stand one behind the other, each from a multiple of 64 bytes on. Behind them stand as JSON the name
of each, its kind, where it begins and how long it is; and then how long that is, in eight bytes. An id of 32
hex digits is two numbers of 64 bits.

This is where a file that somebody else made is held to what it may do: `unpacked` sees that its arrays lie
inside it and are as long as they have to be, `MappedArray` that no number in it leads out of them.
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

STEP = 128
"""Of keys, each so many-th stands in an array of its own, which is looked at first."""
_AT_ONCE = 8_192
_APART = 64
_LENGTH = 8


class ByteSource(Protocol):
    """The bytes of a file. Of `data`, [bytes] uint8, only what `need` was told may be looked at."""

    @property
    def data(self) -> npt.NDArray[np.uint8]: ...
    def need(self, starts: Ints, ends: Ints) -> None: ...
    def refused(self, why: str) -> Exception:
        """What is raised where the file is not what it should be."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Bytes that are there."""

    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, data: bytes) -> InMemory:
        return cls(np.frombuffer(data, np.uint8))

    def need(self, starts: Ints, ends: Ints) -> None: ...

    def refused(self, why: str) -> Exception:
        return ValueError(why)


@dataclass(frozen=True)
class MappedArray:
    """values: [n] or [n, width], of which only what was asked for has been read. Whatever leads out of it is
    an error of the file."""

    source: ByteSource
    begin: int
    values: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values at these places."""
        places = np.asarray(places, np.int64)
        self._need(places, places + 1)
        return np.asarray(self.values[places])

    def run(self, start: int, end: int) -> npt.NDArray[Any]:
        """The values from start to end, without copying them."""
        self._need(np.array([start]), np.array([end]))
        return self.values[start:end]

    def runs(self, starts: Ints, ends: Ints) -> npt.NDArray[Any]:
        """The values of several runs, one behind the other."""
        self._need(starts, ends)
        return self.values[spread(starts, ends)[0]]

    def spans(self, places: Ints) -> tuple[Ints, Ints]:
        """Of an array of ends, one behind the other: where what belongs to these places begins and ends."""
        end = self.take(places)
        start = np.where(places > 0, self.take(np.maximum(places - 1, 0)), 0)
        if (start > end).any():
            raise self.source.refused("its ends are not one behind the other")
        return start, end

    def whole(self) -> npt.NDArray[Any]:
        return self._all

    @cached_property
    def _all(self) -> npt.NDArray[Any]:
        return self.run(0, len(self))

    def rows(self, width: int) -> MappedArray:
        """[n / width, width] the same values."""
        if width < 1 or len(self) % width:
            raise self.source.refused("its arrays are of different lengths")
        return MappedArray(self.source, self.begin, self.values.reshape(-1, width))

    def _need(self, starts: Ints, ends: Ints) -> None:
        if not len(starts):
            return
        if starts.min() < 0 or ends.max() > len(self) or (ends < starts).any():
            raise self.source.refused("it leads out of itself")
        width = self.values.strides[0] if len(self) else 0
        self.source.need(self.begin + starts * width, self.begin + ends * width)


def packed(arrays: Mapping[str, npt.NDArray[Any]], types: Mapping[str, Any] = {}) -> bytes:
    """The bytes of a file; the same for the same arrays. types: of each, in the order of the file."""
    arrays = {name: np.asarray(arrays[name], kind) for name, kind in types.items()} or arrays
    pieces: list[Any] = []
    told: dict[str, list[Any]] = {}
    at = 0
    for name, array in arrays.items():
        own = np.ascontiguousarray(array)
        told[name] = [_kind(own.dtype), at, len(own)]
        pieces += [own.data.cast("B") if own.size else b"", bytes(-own.nbytes % _APART)]
        at += own.nbytes + -own.nbytes % _APART
    head = orjson.dumps(told)
    return b"".join([*pieces, head, len(head).to_bytes(_LENGTH, "little")])


def unpacked(
    source: ByteSource,
    types: Mapping[str, Any],
    needed: Collection[str] = (),
    equal: Sequence[Collection[str]] = (),
    top_of: Mapping[str, str] = {},
) -> dict[str, MappedArray]:
    """The arrays of a file, none of which was read yet. Whoever made the file, they lie inside it, and what
    reads them (`MappedArray`) does not leave them.

    types   what arrays there can be, by their names or what stands before the first dot
    needed  those that there have to be
    equal   names of arrays of the same length
    top_of  by the name of an array of `tops`, that of which it is

    Raises what `source.refused` makes for what `packed` has not made of such arrays.
    """
    n = len(source.data)
    try:
        source.need(np.array([max(0, n - _LENGTH)]), np.array([n]))
        size = int.from_bytes(source.data[-_LENGTH:].tobytes(), "little")
        start = n - _LENGTH - size
        if n < _LENGTH or start < 0:
            raise ValueError("it is too short")
        source.need(np.array([start]), np.array([n - _LENGTH]))
        told = orjson.loads(source.data[start : n - _LENGTH].tobytes())
        found = {}
        for name, (kind, begin, length) in told.items():
            dtype = np.dtype(types.get(name) or types[name.partition(".")[0]])
            end = begin + length * dtype.itemsize
            if kind != _kind(dtype) or not 0 <= begin <= end <= start or begin % _APART or length < 0:
                raise ValueError(f"{name} is of another kind, or lies outside")
            found[name] = MappedArray(source, begin, source.data[begin:end].view(dtype))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as e:
        raise source.refused(f"it holds no such arrays ({e})") from e
    if missing := set(needed) - found.keys():
        raise source.refused(f"it lacks {', '.join(sorted(missing))}")
    same = [{len(found[name]) for name in names} for names in equal]
    same += [{len(found[top]), -(-len(found[name]) // STEP)} for top, name in top_of.items()]
    if any(len(lengths) > 1 for lengths in same):
        raise source.refused("its arrays are of different lengths")
    return found


def _kind(dtype: np.dtype[Any]) -> Any:
    return [[name, dtype[name].str] for name in dtype.names] if dtype.names else dtype.str


def tops(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What `places_in` looks at first."""
    return keys[::STEP]


def places_in(keys: MappedArray, top: MappedArray, wanted: Keys) -> Ints:
    """[wanted] the first place of each among keys, which rise; -1 where it is not there."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1)
    if len(wanted) > _AT_ONCE:
        some = [wanted[at : at + _AT_ONCE] for at in range(0, len(wanted), _AT_ONCE)]
        return np.concatenate([places_in(keys, top, of) for of in some])
    begin = np.maximum(np.searchsorted(top.whole(), wanted, "left") - 1, 0) * STEP
    end = np.minimum(begin + STEP + 1, len(keys))
    distinct, first = np.unique(begin, return_index=True)
    keys._need(distinct, end[first])
    looked_at = np.minimum(begin[:, None] + np.arange(STEP + 1), len(keys) - 1)
    same = keys.values[looked_at] == wanted[:, None]
    return np.where(same.any(axis=1), looked_at[np.arange(len(wanted)), same.argmax(axis=1)], -1)


@dataclass(frozen=True)
class Ids:
    """Sorted ids: the halves of each, and `tops` of the former."""

    high: MappedArray
    low: MappedArray
    top: MappedArray

    def at(self, places: Ints) -> list[str]:
        return ids_of(self.high.take(places), self.low.take(places))

    def places(self, wanted: Halves) -> Ints:
        """[wanted] the place of each; -1 where it is not there."""
        at = places_in(self.high, self.top, wanted[0])
        left = np.flatnonzero(at >= 0)
        while len(left):  # once, unless different ids share their first half
            left = left[self.low.take(at[left]) != wanted[1][left]]
            at[left] += 1
            inside = at[left] < len(self.high)
            inside[inside] = self.high.take(at[left[inside]]) == wanted[0][left[inside]]
            at[left[~inside]] = -1
            left = left[inside]
        return at

    def held(self, wanted: Halves) -> Ints:
        """The places of those that are there, rising."""
        at = self.places(wanted)
        return np.unique(at[at >= 0])


@dataclass(frozen=True)
class Shard:
    """A file of arrays about records, whose ids are among them: high, low, top.high."""

    source: ByteSource
    arrays: Mapping[str, MappedArray]

    def __len__(self) -> int:
        return len(self.arrays["high"])

    @property
    def ids(self) -> Ids:
        return Ids(*(self.arrays[name] for name in ("high", "low", "top.high")))


def spread(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """All places from left to right, of each pair of these; and which pair each is of."""
    lengths = right - left
    whose = np.repeat(np.arange(len(left)), lengths)
    return np.arange(len(whose)) + np.repeat(left - (np.cumsum(lengths) - lengths), lengths), whose


def halves(ids: Sequence[str]) -> tuple[Keys, Keys]:
    """The first and the second half of each. Raises ValueError for what is no id."""
    if any(len(id_) != ID_LENGTH for id_ in ids):
        raise ValueError(f"an id has {ID_LENGTH} hex digits")
    both = np.frombuffer(bytes.fromhex("".join(ids)), ">u8").reshape(-1, 2).astype("<u8")
    if len(both) != len(ids):  # white space is passed over
        raise ValueError(f"an id has {ID_LENGTH} hex digits")
    return both[:, 0].copy(), both[:, 1].copy()


def known(ids: Sequence[str]) -> list[str]:
    """The different ones that are ids."""
    return [i for i in dict.fromkeys(ids) if len(i) == ID_LENGTH and not i.strip("0123456789abcdef")]


def ids_of(high: Keys, low: Keys) -> list[str]:
    both = np.stack([high, low], axis=1).astype(">u8").tobytes().hex()
    return [both[at : at + ID_LENGTH] for at in range(0, len(both), ID_LENGTH)]


def sorted_halves(ids: Sequence[str]) -> tuple[Halves, Ints]:
    """The halves of ids in their order, and which id stands at each place there."""
    high, low = halves(ids)
    order = np.lexsort((low, high))
    return (high[order], low[order]), order


def staying(shard: Shard, gone: Sequence[str]) -> npt.NDArray[np.bool_]:
    """[records] which records of a shard are none of these. Raises what its source refuses with where one of
    these is not there."""
    places = shard.ids.held(halves(known(gone)))
    if len(places) != len(gone):
        raise shard.source.refused("it lacks records")
    stays = np.ones(len(shard), np.bool_)
    stays[places] = False
    return stays


def interleaved(source: ByteSource, one: Halves, other: Halves) -> tuple[Halves, Ints, Ints]:
    """Ids of two shards as those of one, sorted, and the places of each one's in them. Both are sorted.

    Raises what `source.refused` makes where an id is there twice.
    """
    high, low = (np.concatenate(both) for both in zip(one, other, strict=True))
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    if ((high[1:] == high[:-1]) & (low[1:] == low[:-1])).any():
        raise source.refused("a record is there twice")
    places = np.argsort(order)
    return (high, low), places[: len(one[0])], places[len(one[0]) :]
