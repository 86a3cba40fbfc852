"""Which part of a journal holds rows of which item, as arrays (`journal.JournalIndex`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.store import journal_rows

_FLAGS = {journal_rows.DONE: 1, journal_rows.FAILED: 2, journal_rows.KILLED: 4, journal_rows.RETRY: 8}
"""Of the kinds of rows that are told apart."""

Held: TypeAlias = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]
"""Of one part: distinct prefixes of keys, in order, and the kinds of rows each has."""


@dataclass(frozen=True, slots=True)
class Entries:
    """What the parts hold: one entry for each distinct pair of key and part, sorted by key.

    prefixes  uint64, the key's first 64 bits
    parts     uint32, place in `paths`
    flags     uint8, kinds of rows
    kinds     all flags together
    retried_until  unix seconds: rows of items that were put back count from then on
    """

    paths: tuple[str, ...]
    prefixes: npt.NDArray[np.uint64]
    parts: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint8]
    damaged: tuple[str, ...] = ()
    kinds: int = 0
    retried_until: float = 0.0

    def have(self, kind: str) -> npt.NDArray[np.bool_]:
        """Which entries have a row of this kind."""
        found: npt.NDArray[np.bool_] = (self.flags & _FLAGS[kind]) != 0
        return found

    def any_has(self, kind: str) -> bool:
        return bool(self.kinds & _FLAGS[kind])

    def with_a(self, kind: str) -> npt.NDArray[np.uint64]:
        """Prefixes of what has a row of this kind, sorted, each once."""
        found: npt.NDArray[np.uint64] = self.prefixes[self.have(kind)]
        return found[_first_of_equals(found)]

    def having(self, found: Sequence[tuple[str, Held]]) -> Entries:
        """With more parts: the path of each, and what it holds."""
        first = len(self.paths)
        numbers = np.arange(first, first + len(found), dtype=np.uint32)
        lengths = np.array([len(held[0]) for _, held in found], dtype=np.int64)
        prefixes = np.concatenate([self.prefixes, *(held[0] for _, held in found)])
        flags = np.concatenate([self.flags, *(held[1] for _, held in found)])
        parts = np.concatenate([self.parts, np.repeat(numbers, lengths)])
        order = np.argsort(prefixes, kind="stable")
        return replace(
            self,
            paths=(*self.paths, *(path for path, _ in found)),
            prefixes=prefixes[order],
            parts=parts[order],
            flags=flags[order],
            kinds=int(np.bitwise_or.reduce(flags)),
        )

    def among(self, paths: Collection[str]) -> Entries:
        """Of those parts alone."""
        stays = np.array([path in paths for path in self.paths], dtype=np.bool_)
        if stays.all():
            return self
        kept, numbers = stays[self.parts], (np.cumsum(stays) - 1).astype(np.uint32)
        flags = self.flags[kept]
        return replace(
            self,
            paths=tuple(compress(self.paths, stays)),
            prefixes=self.prefixes[kept],
            parts=numbers[self.parts[kept]],
            flags=flags,
            kinds=int(np.bitwise_or.reduce(flags)),
        )


NONE = Entries((), np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.uint8))


def held_by(written: Sequence[journal_rows.JournalRow]) -> Held:
    """What rows come to as entries."""
    flags = np.array([_flag_of(row.kind) for row in written], dtype=np.uint8)
    return _distinct(journal_rows.key_prefixes([row.key for row in written]), flags)


def held_in(table: pa.Table) -> Held:
    """What the columns `key` and `kind` come to as entries."""
    flags = journal_rows.coded(table.column("kind"), _flag_of, np.uint8)
    return _distinct(journal_rows.column_prefixes(table.column("key")), flags)


def _flag_of(kind: str) -> int:
    return _FLAGS.get(kind, 0)


def _distinct(prefixes: npt.NDArray[np.uint64], flags: npt.NDArray[np.uint8]) -> Held:
    """Each prefix once, with the kinds of all its rows."""
    if not len(prefixes):
        return prefixes, flags
    order = np.argsort(prefixes, kind="stable")
    prefixes, flags = prefixes[order], flags[order]
    starts = np.flatnonzero(_first_of_equals(prefixes))
    return prefixes[starts], np.bitwise_or.reduceat(flags, starts)


def _first_of_equals(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Of sorted values."""
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first
