"""Arrays of numbers as one file, of which only what is looked at is read.

The arrays stand one behind the other, each from a multiple of 64 bytes on. Behind them stand as JSON the name
of each, its kind, where it begins and how long it is; and then how long that is, in eight bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

Ints: TypeAlias = npt.NDArray[np.int64]
Keys: TypeAlias = npt.NDArray[np.uint64]

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


def packed(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The bytes of a file; the same for the same arrays."""
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


def unpacked(source: ByteSource, types: Mapping[str, Any]) -> dict[str, MappedArray]:
    """The arrays of a file, none of which was read yet.

    types: what arrays there can be, by their names or what stands before the first dot. Raises what
    `source.refused` makes for what `packed` has not made of such arrays.
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
    if len(top) != -(-len(keys) // STEP):
        raise keys.source.refused("its arrays are of different lengths")
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


def places_of(high: MappedArray, low: MappedArray, top: MappedArray, ids: tuple[Keys, Keys]) -> Ints:
    """The places of those of these ids that are there, rising. high, low: halves of sorted ids; top: of the
    former."""
    at = places_in(high, top, ids[0])
    wanted = np.flatnonzero(at >= 0)
    at, found = at[wanted], []
    while len(wanted):  # once, unless different ids share their first half
        same = low.take(at) == ids[1][wanted]
        found.append(at[same])
        wanted, at = wanted[~same], at[~same] + 1
        inside = at < len(high)
        wanted, at = wanted[inside], at[inside]
        next_one = high.take(at) == ids[0][wanted]
        wanted, at = wanted[next_one], at[next_one]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))


def spread(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """All places from left to right, of each pair of these; and which pair each is of."""
    lengths = right - left
    whose = np.repeat(np.arange(len(left)), lengths)
    return np.arange(len(whose)) + np.repeat(left - (np.cumsum(lengths) - lengths), lengths), whose
