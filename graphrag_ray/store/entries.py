"""Which part of a journal holds rows of which item, as arrays (`journal.JournalIndex`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.store import rows

HAS_DONE, HAS_FAILED, HAS_KILLED, HAS_RETRY = 1, 2, 4, 8

_FLAGS = {
    rows.DONE: HAS_DONE,
    rows.FAILED: HAS_FAILED,
    rows.KILLED: HAS_KILLED,
    rows.RETRY: HAS_RETRY,
}


@dataclass(frozen=True, slots=True)
class Entries:
    """What the parts hold: one entry for each distinct pair of key and part, sorted by key.

    prefixes  uint64, the key's first 64 bits
    parts     uint32, place in `paths`
    flags     uint8, kinds of rows (HAS_…)
    kinds     all flags together
    """

    paths: tuple[str, ...]
    prefixes: npt.NDArray[np.uint64]
    parts: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint8]
    damaged: tuple[str, ...]
    kinds: int

    def with_a(self, flag: int) -> npt.NDArray[np.uint64]:
        """Prefixes of what has a row of this kind, sorted; of several parts several times."""
        found: npt.NDArray[np.uint64] = self.prefixes[(self.flags & flag) != 0]
        return found

    def extended(self, path: str, prefixes: npt.NDArray[np.uint64], flags: npt.NDArray[np.uint8]) -> Entries:
        """With one more part. prefixes: sorted and distinct."""
        places = np.searchsorted(self.prefixes, prefixes, "right")
        return Entries(
            (*self.paths, path),
            np.insert(self.prefixes, places, prefixes),
            np.insert(self.parts, places, np.uint32(len(self.paths))),
            np.insert(self.flags, places, flags),
            self.damaged,
            self.kinds | int(np.bitwise_or.reduce(flags)),
        )


def flag_of(kind: str) -> int:
    """Of a row of this kind; 0 for kinds that are not told apart."""
    return _FLAGS.get(kind, 0)


def distinct(
    prefixes: npt.NDArray[np.uint64], flags: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """Each prefix once, in order, with the kinds of all its rows. There is at least one."""
    order = np.argsort(prefixes, kind="stable")
    prefixes, flags = prefixes[order], flags[order]
    starts = np.flatnonzero(np.concatenate(([True], prefixes[1:] != prefixes[:-1])))
    return prefixes[starts], np.bitwise_or.reduceat(flags, starts)
