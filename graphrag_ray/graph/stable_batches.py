"""Split a sequence into batches with content-defined boundaries.

If a sequence that is too long for one call were split from the left, one new item would shift all later
boundaries, and all later calls would be repeated. Here a boundary depends only on the items around it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


def stable_batches(hashes: Sequence[str], sizes: Sequence[int], limit: int) -> list[range]:
    """Split 0…n-1 into consecutive ranges so that inserting or removing an item changes few of them.

    Boundaries are tried in pseudo-random order of hashes. A boundary is rejected if it would leave less than
    half the limit, or fewer than two items, between itself and an accepted one. This is the car-parking
    process of Rényi (1958), in which distant positions rarely affect each other. Local maxima of the hashes,
    the usual choice for content-defined chunking, leave gaps of any length.

    `hashes` are hashes of the items' content. `limit` is the maximum total size of a batch, which only a
    batch of a single item can exceed.
    """
    n = len(hashes)
    if n == 0:
        return []
    # Hash again, because items are often sorted by their hashes.
    ranks = [hashlib.blake2b(h.encode(), digest_size=8).digest() for h in hashes]
    offsets = [0, *np.cumsum(np.asarray(sizes, dtype=np.int64)).tolist()]
    pair_fits = [i > 0 and offsets[i + 1] - offsets[i - 1] <= limit for i in range(n)]
    cuts = [0, *(i for i in range(1, n) if not pair_fits[i]), n]
    for i in sorted((i for i in range(1, n) if pair_fits[i]), key=lambda i: (ranks[i], i)):
        position = bisect(cuts, i)
        left, right = cuts[position - 1], cuts[position]
        smaller = min(offsets[i] - offsets[left], offsets[right] - offsets[i])
        if min(i - left, right - i) >= 2 and 2 * smaller >= limit:
            cuts.insert(position, i)
    return [batch for start, stop in pairwise(cuts) for batch in _halves(offsets, start, stop, limit)]


def _halves(offsets: list[int], start: int, stop: int, limit: int) -> list[range]:
    """Halve a range until it fits the limit, which it can exceed if sizes are uneven."""
    if stop - start == 1 or offsets[stop] - offsets[start] <= limit:
        return [range(start, stop)]
    # Leave at least two items on either side if possible.
    candidates = range(start + 2, stop - 1) or range(start + 1, stop)
    middle = offsets[start] + offsets[stop]
    cut = min(candidates, key=lambda i: abs(2 * offsets[i] - middle))
    return [*_halves(offsets, start, cut, limit), *_halves(offsets, cut, stop, limit)]


def stable_stream(
    items: Iterable[Item], measure: Callable[[Item], tuple[str, int]], limit: int
) -> Iterator[list[Item]]:
    """Like `stable_batches`, but for a sequence that does not fit in memory. Buffers one batch and one item.

    When the limit would be exceeded, the batch ends before the item with the smallest hash of all that
    leave the batch at least half full. Two sequences that agree from some point on soon have the same
    boundaries. `measure` returns the hash and the size of an item.
    """
    buffer: list[Item] = []
    hashes: list[str] = []
    offsets = [0]
    for item in items:
        hash_, size = measure(item)
        buffer.append(item)
        hashes.append(hash_)
        offsets.append(offsets[-1] + size)
        while len(buffer) > 1 and offsets[-1] > limit:
            last = max(1, bisect(offsets, limit) - 1)
            first = next((i for i in range(1, last + 1) if 2 * offsets[i] >= limit), last)
            cut = min(range(first, last + 1), key=lambda i: hashes[i])
            yield buffer[:cut]
            buffer, hashes = buffer[cut:], hashes[cut:]
            offsets = [offset - offsets[cut] for offset in offsets[cut:]]
    if buffer:
        yield buffer
