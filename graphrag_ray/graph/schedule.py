"""Which reports can be written now: bottom-up, each as soon as what it needs is there.

A community whose elements all fit, or without sub-communities, needs nothing. Any other waits for one
report at a time, that of the next sub-community to be replaced, and is woken by it. A plan depends on
the lengths of its sub-communities' reports only, never on the order in which these finished.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.plan import (
    HEADING_TOKENS,
    NUMBER_TOKENS,
    REPORT,
    ContextPlan,
    Elements,
    Planner,
    ReplacementProgress,
    report_cap,
)


class Schedule:
    """The state of writing one hierarchy's reports: three integers per community and, for those that wait,
    the place in their list of children. 110,000 communities over 800,000 nodes: built in 0.3 s, 47 µs a plan.

    known: communities that have a report, with the tokens of its record
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        elements: Elements,
        budget: int,
        max_claims_per_entity: int = 10,
        known: Mapping[int, int | None] = {},
    ) -> None:
        self._planner = Planner(hierarchy, elements, budget, max_claims_per_entity)
        self._hierarchy = hierarchy
        self._tokens: dict[int, int | None] = dict(known)
        # Of communities that give sub-communities up: how far they are, by the child that they wait for,
        # and of those that wait no longer, by their own number.
        self._waiting: dict[int, ReplacementProgress] = {}
        self._woken: dict[int, ReplacementProgress] = {}
        self._open: set[int] = set()
        n = hierarchy.n_communities
        has_children = np.zeros(n, dtype=np.bool_)
        has_children[hierarchy.parent[hierarchy.parent >= 0]] = True
        waits = has_children & (self._planner.totals > self._planner.available)
        # How many communities above each may wait for its report, one through the other: first what the
        # longest chain waits for; reports that nobody waits for fill the gaps.
        above = np.zeros(n, dtype=np.int64)
        for level in range(1, hierarchy.n_levels):
            here = np.flatnonzero(hierarchy.level == level)
            parent = hierarchy.parent[here]
            above[here] = np.where(waits[parent], 1 + above[parent], 0)
        self._rank = -above
        open_ = np.ones(n, dtype=np.bool_)
        open_[list(known)] = False
        at_once = np.flatnonzero(~waits & open_)
        self._ready = list(zip(self._rank[at_once].tolist(), at_once.tolist(), strict=True))
        heapq.heapify(self._ready)
        for community in np.flatnonzero(waits & open_).tolist():
            self._go_on(self._planner.start(community))

    @property
    def is_cut(self) -> npt.NDArray[np.bool_]:
        """[C] communities whose elements do not all fit."""
        return np.asarray(self._planner.totals > self._planner.available)

    @property
    def finished(self) -> bool:
        return len(self._tokens) == self._hierarchy.n_communities

    def ready(self, limit: int | None = None) -> list[ContextPlan]:
        """Plans of communities not handed out before: those with the longest chain of others above them that
        may wait for them, then by number.

        Plans are made only when handed out; a `limit` keeps few of them in memory.
        """
        n = len(self._ready) if limit is None else min(limit, len(self._ready))
        plans = []
        for _ in range(n):
            _, community = heapq.heappop(self._ready)
            progress = self._woken.pop(community, None) or self._planner.start(community)
            self._open.add(community)
            plans.append(self._planner.lay_out(progress, self._tokens))
        return plans

    def done(self, community: int, tokens: int | None) -> None:
        """A report was written, or failed for good (None).

        tokens: of its record in a context (`context.record_tokens`). Raises ValueError for a community
        that was not handed out or is done already.
        """
        if community not in self._open:
            raise ValueError(f"community {community} was not handed out, or is done already")
        self._open.remove(community)
        self._tokens[community] = tokens
        if (progress := self._waiting.pop(community, None)) is not None:
            self._go_on(progress)

    def _go_on(self, progress: ReplacementProgress) -> None:
        child = self._planner.advance(progress, self._tokens)
        if child is not None:
            self._waiting[child] = progress
            return
        community = progress.community
        self._woken[community] = progress
        heapq.heappush(self._ready, (int(self._rank[community]), community))


class ReportsAlone:
    """The state of writing the reports of one level from those of the level below, and nothing else (ArchRAG,
    algorithm 1, line 8; RAPTOR): the longest first, as many as fit.

    children   of each community, numbers of the level below
    tokens     of the record of each report of the level below in a context; None where there is none
    kind       of what lies below: REPORT or CHUNK
    longest    tokens that a record takes at most; None: `report_cap`
    in_order   what fits is shown in the order of its numbers
    places     what plans call each of the level below; None: its number
    without    communities of which no report below is there: they are not handed out
    """

    def __init__(
        self,
        children: Sequence[Ints],
        tokens: Sequence[int | None],
        budget: int,
        kind: int = REPORT,
        in_order: bool = False,
        places: Ints | None = None,
        longest: int | None = None,
    ) -> None:
        self._children, self._tokens = children, tokens
        self._cap = longest or report_cap(budget)
        self._budget, self._kind, self._in_order, self._places = budget, kind, in_order, places
        there = [any(tokens[child] for child in own.tolist()) for own in children]
        self.without = [community for community, some in enumerate(there) if not some]
        self._with = [community for community, some in enumerate(there) if some]
        self._next = self._done = 0

    @property
    def finished(self) -> bool:
        return self._done == len(self._with)

    def ready(self, limit: int) -> list[ContextPlan]:
        """Plans of communities not handed out before."""
        first, self._next = self._next, self._next + limit
        plans = []
        for community in self._with[first : self._next]:
            children, left = self._children[community].tolist(), self._budget - HEADING_TOKENS
            shown: list[int] = []
            for less, child in sorted((-n, child) for child in children if (n := self._tokens[child])):
                left -= min(-less, self._cap) + NUMBER_TOKENS
                if left < 0:
                    break
                shown.append(child)
            numbers = np.array(sorted(shown) if self._in_order else shown, dtype=np.int64)
            indices = numbers if self._places is None else self._places[numbers]
            kinds = np.full(len(shown), self._kind, dtype=np.int8)
            tokens, left_out = self._budget - max(left, 0), len(children) - len(shown)
            plans.append(ContextPlan(community, kinds, indices, tokens, left_out))
        return plans

    def done(self, community: int, tokens: int | None) -> None:
        self._done += 1
