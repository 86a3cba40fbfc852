"""Counting each of very many values once, in some eight bytes each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Distinct:
    """64-bit values that were met: sorted arrays, each more than twice as long as the next, so that a look is
    a few binary searches and a new value moves a few times."""

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Take some values; which of them were not met before, of equal ones the first."""
        distinct, places = np.unique(values, return_index=True)
        is_new = np.ones(len(distinct), dtype=np.bool_)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, distinct), len(run) - 1)
            is_new &= run[at] != distinct
        self._keep(distinct[is_new])
        first = np.zeros(len(values), dtype=np.bool_)
        first[places[is_new]] = True
        return first

    def _keep(self, new: npt.NDArray[np.uint64]) -> None:
        if not len(new):
            return
        while self._runs and len(self._runs[-1]) <= 2 * len(new):
            new = np.concatenate([self._runs.pop(), new])
            new.sort(kind="stable")  # two sorted halves: it merges them
        self._runs.append(new)


def hashes(records: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """64 bits of each record of numbers. Of a hundred million records two different ones have the same once
    in 3,700 times."""
    found = np.zeros(len(records), dtype=np.uint64)
    for name in records.dtype.names or ():
        column = np.ascontiguousarray(records[name])
        found ^= column.view(np.uint64) if column.dtype == np.float64 else column.astype(np.uint64)
        # The last step of MurmurHash3 (Appleby, 2011), after each column.
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            found ^= found >> np.uint64(33)
            found *= np.uint64(factor)
        found ^= found >> np.uint64(33)
    return found
