"""Decide which reports can be written now: bottom-up, each as soon as its inputs are available.

A community whose elements all fit, or that has no sub-communities, needs nothing. Any other waits for one
report at a time, that of the next sub-community to be replaced. A plan depends only on the lengths of
sub-communities' reports, never on the order in which these finished.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from graphrag_ray.graph.context_plan import (
    HEADING_TOKENS,
    NUMBER_TOKENS,
    REPORT,
    ContextPlan,
    GraphElements,
    Planner,
    ReplacementProgress,
    max_report_tokens,
)
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.integer_arrays import Bools


class HierarchySchedule:
    """Schedules the reports of one hierarchy.

    The state is a few integers per community; 110,000 communities over 800,000 nodes take 0.3 s to set up.
    `known` are communities that have a report already, with the tokens of its record.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        elements: GraphElements,
        budget: int,
        max_claims_per_entity: int = 10,
        known: Mapping[int, int | None] = {},
    ) -> None:
        self._planner = Planner(hierarchy, elements, budget, max_claims_per_entity)
        self._hierarchy = hierarchy
        self._tokens: dict[int, int | None] = dict(known)
        # Replacement progress, by the child that it waits for, or by community once it waits no longer.
        self._waiting: dict[int, ReplacementProgress] = {}
        self._woken: dict[int, ReplacementProgress] = {}
        self._handed_out: set[int] = set()
        n = hierarchy.n_communities
        has_children = np.zeros(n, dtype=np.bool_)
        has_children[hierarchy.parent[hierarchy.parent >= 0]] = True
        waits = has_children & self.is_cut
        # Count the ancestors that may wait for each report, one through the other. Reports on the longest
        # chain go first; reports that nobody waits for fill the gaps.
        n_waiting = np.zeros(n, dtype=np.int64)
        for level in range(1, hierarchy.n_levels):
            here = np.flatnonzero(hierarchy.level == level)
            parent = hierarchy.parent[here]
            n_waiting[here] = np.where(waits[parent], 1 + n_waiting[parent], 0)
        self._rank = -n_waiting
        pending = np.ones(n, dtype=np.bool_)
        pending[list(known)] = False
        at_once = np.flatnonzero(~waits & pending)
        self._ready = list(zip(self._rank[at_once].tolist(), at_once.tolist(), strict=True))
        heapq.heapify(self._ready)
        for community in np.flatnonzero(waits & pending).tolist():
            self._advance(self._planner.start(community))

    @property
    def is_cut(self) -> Bools:
        """[C] communities whose elements do not all fit."""
        return np.asarray(self._planner.totals > self._planner.available)

    @property
    def finished(self) -> bool:
        return len(self._tokens) == self._hierarchy.n_communities

    def take_ready(self, limit: int | None = None) -> list[ContextPlan]:
        """Return up to `limit` plans not handed out before, those with most waiting ancestors first.

        Plans are made when they are handed out, so a limit keeps few of them in memory.
        """
        plans = []
        for _ in range(len(self._ready) if limit is None else min(limit, len(self._ready))):
            _, community = heapq.heappop(self._ready)
            progress = self._woken.pop(community, None) or self._planner.start(community)
            self._handed_out.add(community)
            plans.append(self._planner.lay_out(progress, self._tokens))
        return plans

    def mark_done(self, community: int, tokens: int | None) -> None:
        """Record that a report was written, with the tokens of its record, or failed for good (None).

        Raises:
            ValueError: If the community was not handed out or is done already.
        """
        if community not in self._handed_out:
            raise ValueError(f"Community {community} was not handed out or is done already")
        self._handed_out.remove(community)
        self._tokens[community] = tokens
        if (progress := self._waiting.pop(community, None)) is not None:
            self._advance(progress)

    def _advance(self, progress: ReplacementProgress) -> None:
        child = self._planner.advance(progress, self._tokens)
        if child is not None:
            self._waiting[child] = progress
            return
        community = progress.community
        self._woken[community] = progress
        heapq.heappush(self._ready, (int(self._rank[community]), community))


class LevelSchedule:
    """Schedules reports of one level, each written from those of the level below only, the longest first.

    (ArchRAG, algorithm 1, line 8; RAPTOR.)

    Args:
        children: Numbers of the level below, for each community.
        tokens: Tokens of each record of the level below; None if there is none.
        kind: Kind of the level below: REPORT or CHUNK.
        in_order: Whether to show what fits in the order of its numbers.
        places: What plans call each record of the level below; None: its number.
        max_record_tokens: Maximum tokens of a record; None: `max_report_tokens`.

    Attributes:
        without_inputs: Communities without any record below, which are never handed out.
    """

    def __init__(
        self,
        children: Sequence[Ints],
        tokens: Sequence[int | None],
        budget: int,
        kind: int = REPORT,
        in_order: bool = False,
        places: Ints | None = None,
        max_record_tokens: int | None = None,
    ) -> None:
        self._children, self._tokens = children, tokens
        self._cap = max_record_tokens or max_report_tokens(budget)
        self._budget, self._kind, self._in_order, self._places = budget, kind, in_order, places
        has_records = [any(tokens[child] for child in members.tolist()) for members in children]
        self.without_inputs = [community for community, has_any in enumerate(has_records) if not has_any]
        self._with = [community for community, has_any in enumerate(has_records) if has_any]
        self._next = self._done = 0

    @property
    def finished(self) -> bool:
        return self._done == len(self._with)

    def take_ready(self, limit: int) -> list[ContextPlan]:
        """Return up to `limit` plans not handed out before."""
        first, self._next = self._next, self._next + limit
        plans = []
        for community in self._with[first : self._next]:
            children, left = self._children[community].tolist(), self._budget - HEADING_TOKENS
            shown: list[int] = []
            for negative, child in sorted((-n, child) for child in children if (n := self._tokens[child])):
                left -= min(-negative, self._cap) + NUMBER_TOKENS
                if left < 0:
                    break
                shown.append(child)
            numbers = np.array(sorted(shown) if self._in_order else shown, dtype=np.int64)
            indices = numbers if self._places is None else self._places[numbers]
            kinds = np.full(len(shown), self._kind, dtype=np.int8)
            tokens, left_out = self._budget - max(left, 0), len(children) - len(shown)
            plans.append(ContextPlan(community, kinds, indices, tokens, left_out))
        return plans

    def mark_done(self, community: int, tokens: int | None) -> None:
        self._done += 1
