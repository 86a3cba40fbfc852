"""Ids as pairs of numbers: 32 hex digits are two halves of 64 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.ids import ID_LENGTH
from graphrag_ray.store.search.mapped_arrays import ByteSource, Ints, Keys, MappedArray, places_of

Halves = tuple[Keys, Keys]


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


def rise(ids: Halves) -> bool:
    """Whether they are sorted, and none is there twice."""
    high, low = ids
    same = high[1:] == high[:-1]
    return bool(((high[1:] > high[:-1]) | (same & (low[1:] > low[:-1]))).all())


def staying(
    source: ByteSource, arrays: Mapping[str, MappedArray], gone: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """[records] which records of a shard are none of these. Raises what `source.refused` makes where one of
    these is not there.

    arrays: of the shard: high, low, top.high
    """
    places = places_of(arrays["high"], arrays["low"], arrays["top.high"], halves(known(gone)))
    if len(places) != len(gone):
        raise source.refused("it lacks records")
    stays = np.ones(len(arrays["high"]), np.bool_)
    stays[places] = False
    return stays


def interleaved(source: ByteSource, one: Halves, other: Halves) -> tuple[Halves, Ints, Ints]:
    """Ids of two shards as those of one, sorted, and the places of each one's in them. Both are sorted.

    Raises what `source.refused` makes where an id is there twice.
    """
    high, low = (np.concatenate(both) for both in zip(one, other, strict=True))
    order = np.lexsort((low, high))
    ids = high[order], low[order]
    if not rise(ids):
        raise source.refused("a record is there twice")
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return ids, places[: len(one[0])], places[len(one[0]) :]
