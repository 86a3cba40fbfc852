"""Batches of a sequence with content-defined boundaries.

A sequence too long for one call is cut into batches. Were it cut from the left, one new item would shift
every later boundary, and every later call would be paid again. Here a boundary depends on the items
around it only.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

X = TypeVar("X")


def stable_batches(hashes: Sequence[str], sizes: Sequence[int], limit: int) -> list[range]:
    """Cut 0…n-1 into consecutive ranges so that inserting or removing one item changes few of them.

    hashes: of the items' content; sizes: in any unit, not negative; limit: of the sum of a batch's sizes,
    which only a single item exceeds. Where two neighbours fit together, there are fewer batches than items.

    Boundaries are taken in the order of pseudo-random ranks from the hashes, each unless it would leave less
    than half the limit, or fewer than two items, between itself and one already taken: the car-parking
    process of Rényi (1958), in which what happens at one place hardly depends on distant ones. Local maxima
    of the ranks, the usual way to content-defined chunks, leave gaps of any length.
    """
    n = len(hashes)
    if n == 0:
        return []
    # Rehashed: the given order is often that of the hashes themselves.
    ranks = [hashlib.blake2b(h.encode(), digest_size=8).digest() for h in hashes]
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64)).tolist()
    before = [0, *ends]
    pair_fits = [i > 0 and before[i + 1] - before[i - 1] <= limit for i in range(n)]
    cuts = [0, *(i for i in range(1, n) if not pair_fits[i]), n]
    for i in sorted((i for i in range(1, n) if pair_fits[i]), key=lambda i: (ranks[i], i)):
        at = bisect(cuts, i)
        left, right = cuts[at - 1], cuts[at]
        if (
            min(i - left, right - i) >= 2
            and 2 * min(before[i] - before[left], before[right] - before[i]) >= limit
        ):
            cuts.insert(at, i)
    batches: list[range] = []
    for start, stop in pairwise(cuts):
        batches.extend(_fitting(before, start, stop, limit))
    return batches


def _fitting(before: list[int], start: int, stop: int, limit: int) -> list[range]:
    """A gap between boundaries, halved where uneven sizes make it exceed the limit."""
    if stop - start == 1 or before[stop] - before[start] <= limit:
        return [range(start, stop)]
    inner = range(start + 2, stop - 1) or range(
        start + 1, stop
    )  # two items on either side, if there are four
    middle = before[start] + before[stop]
    cut = min(inner, key=lambda i: abs(2 * before[i] - middle))
    return [*_fitting(before, start, cut, limit), *_fitting(before, cut, stop, limit)]


def stable_stream(
    items: Iterable[X], measure: Callable[[X], tuple[str, int]], limit: int
) -> Iterator[list[X]]:
    """`stable_batches` of a sequence that is too long to be held: one batch and an item are.

    measure: an item's hash and its size. Where the limit would be passed, the cut is taken before that item
    which has the smallest hash of those that leave between half the limit and all of it behind. Two sequences
    that agree from some place on choose the same cut soon after it, and the same ones from there on.
    """
    held: list[X] = []
    ranks: list[str] = []
    ends = [0]
    for item in items:
        rank, size = measure(item)
        held.append(item)
        ranks.append(rank)
        ends.append(ends[-1] + size)
        while len(held) > 1 and ends[-1] > limit:
            last = max(1, bisect(ends, limit) - 1)
            first = next((i for i in range(1, last + 1) if 2 * ends[i] >= limit), last)
            cut = min(range(first, last + 1), key=lambda i: ranks[i])
            yield held[:cut]
            held, ranks, ends = held[cut:], ranks[cut:], [end - ends[cut] for end in ends[cut:]]
    if held:
        yield held
