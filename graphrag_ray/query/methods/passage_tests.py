"""Choose which passages to test for relevance to a query: best first, spread over communities, then deeper.

A pass tests one batch of passages of each community, in order of rank. It ends after MAX_MISSES communities
in a row without a relevant passage. The next pass covers the sub-communities of the relevant communities, or
these themselves if they have none. So a community without a relevant passage is eliminated with everything
below it.

The first pass covers the nearest passages of the whole corpus, and the second one the coarsest communities.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

FIRST_BATCH = 8
"""Number of passages of the whole corpus that are tested first, whatever their communities."""
BATCH = 4
"""Number of passages of a community that one pass tests, unless it is the only one."""
RANKED_BY = 5
"""Number of best passages whose mean rank is the rank of a community."""
MAX_MISSES = 5
"""Number of communities in a row without a relevant passage after which a pass ends."""
CORPUS, STRAYS = -1, -2
"""Numbers that stand for the whole corpus, and for the passages that are in no community."""


@dataclass(frozen=True)
class ChunkCommunities:
    """The communities of chunks.

    Attributes:
        of_chunk: Chunk id -> its communities on all levels. Chunks without communities may be missing.
        path: Community -> its ancestors, coarsest first, and itself.
        children: Community -> its sub-communities; CORPUS -> the coarsest communities.
    """

    of_chunk: Mapping[str, Collection[int]] = field(default_factory=dict)
    path: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    children: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @staticmethod
    def build(parent: Mapping[int, int], of_chunk: Mapping[str, Collection[int]]) -> ChunkCommunities:
        """Build from the parent of each community (a number that is no community at the top)."""
        path: dict[int, tuple[int, ...]] = {}
        children: dict[int, list[int]] = {}
        for community in sorted(parent):
            above = [community]
            while (up := parent[above[-1]]) in parent and up not in above:
                above.append(up)
            path[community] = tuple(reversed(above))
            children.setdefault(above[1] if len(above) > 1 else CORPUS, []).append(community)
        return ChunkCommunities(of_chunk, path, children)

    def grouped(self, chunks: Sequence[str], above: tuple[int, ...] = ()) -> list[str]:
        """Order chunks of a community so that those of a sub-community are adjacent, on every level below.

        A chunk that is in several of them goes to the one with the most of these chunks.
        """
        below = {
            chunk: [c for c in self.of_chunk.get(chunk, ()) if self.path[c][:-1] == above] for chunk in chunks
        }
        sizes = Counter(c for communities in below.values() for c in communities)
        order = sorted(sizes, key=lambda c: (-sizes[c], c))
        place = {c: n for n, c in enumerate(order)}
        parts: list[list[str]] = [[] for _ in [*order, STRAYS]]
        for chunk in chunks:
            parts[min((place[c] for c in below[chunk]), default=-1)].append(chunk)
        split = (self.grouped(part, (*above, c)) for c, part in zip(order, parts, strict=False) if part)
        return [*chain.from_iterable(split), *parts[-1]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Passages of a community to test together, most similar to the query first."""

    community: int
    chunks: tuple[str, ...]


class PassageTests:
    """The tests of one query. Take batches with `next_batches`, and report their results with `add`.

    Args:
        ranked: Ids of the chunks that may be tested, most similar to the query first.
    """

    def __init__(self, ranked: Sequence[str], communities: ChunkCommunities) -> None:
        self._communities = communities
        self._rank = {chunk: n for n, chunk in enumerate(ranked)}
        self._tested: set[str] = set()
        self._misses = 0
        self._kept: list[int] = []
        """Communities of this pass with a relevant passage, or whose test failed."""
        self._queue = deque([Batch(CORPUS, tuple(ranked[:FIRST_BATCH]))] if ranked else [])
        self.ended = not ranked
        if not communities.children:  # Test all passages in order of rank.
            starts = range(FIRST_BATCH, len(ranked), BATCH)
            self._queue.extend(Batch(CORPUS, tuple(ranked[n : n + BATCH])) for n in starts)

    def next_batches(self, limit: int) -> list[Batch]:
        """Take the next batches of the pass, with at most `limit` passages. Empty only if `ended` or 0."""
        if limit > 0 and not self.ended and (not self._queue or self._misses >= MAX_MISSES):
            self._start_pass()
        taken = []
        while self._queue and limit > 0:
            batch = self._queue.popleft()
            if rest := batch.chunks[limit:]:
                self._queue.appendleft(Batch(batch.community, rest))
                batch = Batch(batch.community, batch.chunks[:limit])
            limit -= len(batch.chunks)
            self._tested.update(batch.chunks)
            taken.append(batch)
        return taken

    def add(self, batch: Batch, relevant: bool | None) -> None:
        """Add the result of a batch, in the order of `next_batches`. None means that its test failed."""
        if relevant is not None:
            self._misses = 0 if relevant else self._misses + 1
        if relevant is not False or batch.community == CORPUS:
            self._kept.append(batch.community)

    def _start_pass(self) -> None:
        """Assign the untested chunks to the communities of the next pass, and rank these."""
        children, scope = self._communities.children, dict[int, None]()
        for kept in self._kept:
            scope |= dict.fromkeys(children.get(kept, () if kept == CORPUS else (kept,)))
            if kept == CORPUS and children:
                scope[STRAYS] = None
        self._kept, self._misses = [], 0
        inside = {
            chunk: [c for c in self._communities.of_chunk.get(chunk) or (STRAYS,) if c in scope]
            for chunk in self._rank
        }
        best: dict[int, list[int]] = {}
        for chunk, communities in inside.items():  # in order of rank
            for c in communities:
                if len(ranks := best.setdefault(c, [])) < RANKED_BY:
                    ranks.append(self._rank[chunk])
        order = sorted(best, key=lambda c: (sum(best[c]) / len(best[c]), c))
        place = {c: n for n, c in enumerate(order)}
        untested: dict[int, list[str]] = {n: [] for n in range(len(order))}
        for chunk, communities in inside.items():
            if communities and chunk not in self._tested:
                untested[min(place[c] for c in communities)].append(chunk)
        n_communities = sum(map(bool, untested.values()))
        size = max(BATCH, FIRST_BATCH // max(1, n_communities))  # a single community fills a call
        self._queue = deque(Batch(order[n], tuple(chunks[:size])) for n, chunks in untested.items() if chunks)
        self.ended = not self._queue
