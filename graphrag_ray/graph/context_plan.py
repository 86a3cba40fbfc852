"""Plan the context of a community's report (paper 3.1.5) with integers only, without loading any text.

A context contains all elements of the community if they fit. Otherwise sub-communities are replaced by their
reports, starting with those with the most element tokens, until the context fits. If it never does, records
are included by priority:

1. reports of replaced sub-communities, the largest sub-community first; 2. edges by descending combined
degree, ties by relationship id; for each its source, its target, the edge, and
   the claims about both;
3. members without an edge inside the community, by id, each followed by its claims.

If records are left out, degrees refer to the whole graph, as in the paper. Otherwise they refer to the
included edges, so that an unrelated document does not cause the report to be rewritten. A report replaces the
members of its community, the edges between them and the claims about them, but not edges to other nodes.
Records longer than `max_element_tokens` or `max_report_tokens` are truncated, so that one runaway description
cannot fill a context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.hierarchy import Hierarchy, Ints


@dataclass(frozen=True)
class GraphElements:
    """Nodes sorted by place, edges by community, and claims by the place of their subject.

    Token counts are those of `report_context.count_record_tokens`.
    """

    node_tokens: Ints  # [N]
    edge_source: Ints  # [E] places of the two ends
    edge_target: Ints
    edge_tokens: Ints
    edge_degree: Ints  # [E] combined degree: the sum of the ends' degrees in the whole graph (paper 3.1.5)
    edge_id_rank: Ints  # [E] rank of the relationship's id among all of them; breaks ties
    edge_community: Ints  # [E] ascending: smallest community that contains both ends, or -1
    claim_place: Ints  # [K] ascending: place of the subject; excludes claims without a matched subject
    claim_tokens: Ints


def order_elements(
    hierarchy: Hierarchy,
    node_tokens: Ints,
    source: Ints,
    target: Ints,
    edge_tokens: Ints,
    edge_order: Ints,
    edge_community: Ints,
    claim_node: Ints,
    claim_tokens: Ints,
) -> tuple[GraphElements, Ints]:
    """Sort a graph's elements in the order of its hierarchy.

    Arguments refer to nodes by number (in id order) and list edges by relationship id; `edge_order` and
    `edge_community` come from `communities.sort_edges_by_community`.

    Returns:
        The elements, and the permutation of the claims. Edge e of the elements is edge edge_order[e] of the
        arguments, and the node at place p is hierarchy.node_at_place[p].
    """
    place = np.empty(len(hierarchy.node_at_place), dtype=np.int64)
    place[hierarchy.node_at_place] = np.arange(len(hierarchy.node_at_place))
    degree = np.bincount(np.concatenate([source, target]), minlength=len(hierarchy.node_at_place))
    claim_order = np.argsort(place[claim_node], kind="stable")
    elements = GraphElements(
        node_tokens=node_tokens[hierarchy.node_at_place],
        edge_source=place[source[edge_order]],
        edge_target=place[target[edge_order]],
        edge_tokens=edge_tokens[edge_order],
        edge_degree=(degree[source] + degree[target])[edge_order],
        edge_id_rank=np.asarray(edge_order, dtype=np.int64),
        edge_community=edge_community[edge_order],
        claim_place=place[claim_node][claim_order],
        claim_tokens=claim_tokens[claim_order],
    )
    return elements, claim_order


ENTITY, RELATIONSHIP, CLAIM, REPORT, CHUNK = range(5)  # kinds of records in a plan

NUMBER_TOKENS = 3
"""Maximum tokens of a local number: of nine digits in most vocabularies, of three if digits are split."""

HEADING_TOKENS = 64  # maximum total tokens of all section headings, with reports of one hierarchy

MIN_CONTEXT_TOKENS = 4 * HEADING_TOKENS  # a smaller context may not fit an edge and its two ends


def max_element_tokens(budget: int) -> int:
    """Return the maximum tokens of an entity, relationship or claim. An edge and its ends always fit."""
    return budget // 4 - NUMBER_TOKENS


def max_report_tokens(budget: int) -> int:
    """Return the maximum tokens of a sub-community's report."""
    return budget // 2 - NUMBER_TOKENS


@dataclass(frozen=True, slots=True)
class ContextPlan:
    community: int
    # [R] records by descending priority. Indices are places (ENTITY), rows of `GraphElements` (RELATIONSHIP,
    # CLAIM), communities (REPORT) or chunk numbers (CHUNK).
    kinds: npt.NDArray[np.int8]
    indices: Ints
    tokens: int  # upper bound, including headings
    left_out: int  # number of records that did not fit

    @property
    def reports(self) -> Ints:
        return self.indices_of(REPORT)

    def indices_of(self, kind: int) -> Ints:
        chosen: Ints = self.indices[self.kinds == kind]
        return chosen


@dataclass(slots=True)
class ReplacementProgress:
    """The state of replacing a community's children by their reports, which `Planner.advance` continues."""

    community: int
    ranked: list[int]
    total: int
    next: int = 0
    report_cost: int = 0
    replaced: list[int] = field(default_factory=list)


class Planner:
    """Plans contexts of at most `budget` tokens, with the first `max_claims_per_entity` claims per entity.

    Construction takes a few passes over all elements. The cost of a plan is proportional to its context,
    apart from numpy operations on the slices of its community.

    Raises:
        SettingsError: If the budget is too small for any context.
    """

    def __init__(
        self, hierarchy: Hierarchy, elements: GraphElements, budget: int, max_claims_per_entity: int = 10
    ) -> None:
        if budget < MIN_CONTEXT_TOKENS:
            raise SettingsError(
                f"reports.context_tokens is {budget}, but must be at least {MIN_CONTEXT_TOKENS}"
            )
        self.hierarchy, self.elements, self.budget = hierarchy, elements, budget
        self.available = budget - HEADING_TOKENS

        self._edge_key = _edge_keys(elements.edge_degree, elements.edge_id_rank)
        communities = np.arange(hierarchy.n_communities)
        self._edge_low = np.searchsorted(elements.edge_community, communities)
        self._edge_high = np.searchsorted(elements.edge_community, hierarchy.subtree_end)
        # The claims within max_claims_per_entity, and [N+1] the start of each place's range in them.
        places = np.arange(len(elements.node_tokens) + 1)
        first = np.searchsorted(elements.claim_place, places)
        rank = np.arange(len(elements.claim_place)) - first[elements.claim_place]
        self._claims = np.flatnonzero(rank < max_claims_per_entity)
        self._claim_start = np.searchsorted(elements.claim_place[self._claims], places)
        self._claim_low = self._claim_start[hierarchy.start]
        self._claim_high = self._claim_start[hierarchy.end]
        self._node_cost, self._edge_cost, self._claim_cost = (
            np.minimum(tokens, max_element_tokens(budget)) + NUMBER_TOKENS
            for tokens in (elements.node_tokens, elements.edge_tokens, elements.claim_tokens)
        )
        # [C] total tokens of the elements of each community, from running sums.
        self.totals: Ints = np.zeros(hierarchy.n_communities, dtype=np.int64)
        for cost, low, high in (
            (self._node_cost, hierarchy.start, hierarchy.end),
            (self._edge_cost, self._edge_low, self._edge_high),
            (self._claim_cost[self._claims], self._claim_low, self._claim_high),
        ):
            running = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(cost, dtype=np.int64)])
            self.totals += running[high] - running[low]

    def start(self, community: int) -> ReplacementProgress:
        """Rank sub-communities for replacement, by descending element tokens, ties by smallest node id."""
        h, total = self.hierarchy, int(self.totals[community])
        children = h.children(community)
        if total <= self.available or not len(children):
            return ReplacementProgress(community, [], total)
        smallest = np.array([int(h.node_at_place[h.start[c] : h.end[c]].min()) for c in children])
        ranked: list[int] = children[np.lexsort((smallest, -self.totals[children]))].tolist()
        return ReplacementProgress(community, ranked, total)

    def advance(self, progress: ReplacementProgress, report_tokens: Mapping[int, int | None]) -> int | None:
        """Replace further children while their reports are known (None: failed).

        Returns the child whose report is needed next, or None if the context can be laid out. No report is
        needed once the reports alone fill the context.
        """
        while (
            progress.total > self.available
            and progress.report_cost <= self.available
            and progress.next < len(progress.ranked)
        ):
            child = progress.ranked[progress.next]
            if child not in report_tokens:
                return child
            tokens = report_tokens[child]
            if tokens is not None and (cost := self._report_cost(tokens)) < self.totals[child]:
                progress.replaced.append(child)
                progress.total += cost - int(self.totals[child])
                progress.report_cost += cost
            progress.next += 1
        return None

    def lay_out(self, progress: ReplacementProgress, report_tokens: Mapping[int, int | None]) -> ContextPlan:
        """Return the plan. Requires that `advance` has returned None."""
        community, replaced, h = progress.community, sorted(progress.replaced), self.hierarchy
        low, high = self._edge_low, self._edge_high
        cuts = zip(low[replaced].tolist(), high[replaced].tolist(), strict=True)
        edges = _without_ranges(int(low[community]), int(high[community]), cuts)
        n_elements = h.end - h.start + self._claim_high - self._claim_low
        n_candidates = len(edges) + len(replaced) + int(n_elements[community] - n_elements[replaced].sum())
        records, tokens_left = self._fill(progress, report_tokens, edges, self._edge_key[edges])
        if len(records) == n_candidates:
            # Everything fits, so rank edges by their degrees in this context.
            ends = np.stack([self.elements.edge_source[edges], self.elements.edge_target[edges]])
            _, inverse, degree = np.unique(ends, return_inverse=True, return_counts=True)
            combined = degree[inverse].reshape(ends.shape).sum(axis=0)
            keys = _edge_keys(combined, self.elements.edge_id_rank[edges])
            records, tokens_left = self._fill(progress, report_tokens, edges, keys)
        kinds, indices = np.array(records, dtype=np.int64).reshape(-1, 2).T
        tokens = self.budget - tokens_left if records else 0
        return ContextPlan(community, kinds.astype(np.int8), indices, tokens, n_candidates - len(records))

    def _fill(
        self, progress: ReplacementProgress, report_tokens: Mapping[int, int | None], edges: Ints, keys: Ints
    ) -> tuple[list[tuple[int, int]], int]:
        """Return (kind, index) of records by descending priority until one does not fit, and the tokens left.

        `keys` are the sort keys of `edges`.
        """
        records: list[tuple[int, int]] = []
        tokens_left, is_full = self.available, False

        def add(kind: int, index: int, cost: int) -> None:
            nonlocal tokens_left, is_full
            is_full = is_full or cost > tokens_left
            if not is_full:
                records.append((kind, index))
                tokens_left -= cost

        def add_claims(place: int) -> None:
            for claim in self._claims[self._claim_start[place] : self._claim_start[place + 1]].tolist():
                add(CLAIM, claim, int(self._claim_cost[claim]))

        for child in progress.replaced:
            add(REPORT, child, self._report_cost(report_tokens[child] or 0))
        h, e, replaced = self.hierarchy, self.elements, sorted(progress.replaced)
        max_records = 0 if is_full else self.available // NUMBER_TOKENS + 1
        seen: set[int] = set()
        first = edges[_smallest_positions(keys, max_records)]
        ends = np.stack([e.edge_source[first], e.edge_target[first]], axis=1)
        # Leave out ends that are members of a replaced sub-community.
        position = np.searchsorted(h.start[replaced], ends, side="right") - 1
        hidden = (position >= 0) & (ends < np.append(h.end[replaced], 0)[np.maximum(position, 0)])
        columns = (first, self._edge_cost[first], ends, hidden)
        for edge, cost, edge_ends, hidden_ends in zip(*(c.tolist() for c in columns), strict=True):
            new_places = [
                p for p, skip in zip(edge_ends, hidden_ends, strict=True) if not skip and p not in seen
            ]
            for place in new_places:
                add(ENTITY, place, int(self._node_cost[place]))
            add(RELATIONSHIP, edge, cost)
            for place in new_places:
                add_claims(place)
            seen.update(new_places)
            if is_full:
                break
        # Add the remaining members by id.
        cuts = zip(h.start[replaced].tolist(), h.end[replaced].tolist(), strict=True)
        places = _without_ranges(int(h.start[progress.community]), int(h.end[progress.community]), cuts)
        places = places[~np.isin(places, np.fromiter(seen, dtype=np.int64, count=len(seen)))]
        for place in places[_smallest_positions(h.node_at_place[places], max_records)].tolist():
            if is_full:
                break
            add(ENTITY, place, int(self._node_cost[place]))
            add_claims(place)
        return records, tokens_left

    def _report_cost(self, tokens: int) -> int:
        return min(tokens, max_report_tokens(self.budget)) + NUMBER_TOKENS


def _edge_keys(degree: Ints, id_rank: Ints) -> Ints:
    """[E] sort keys for descending combined degree, then id."""
    keys: Ints = (degree.max(initial=0) - degree) * (id_rank.max(initial=0) + 1) + id_rank
    return keys


def _without_ranges(low: int, high: int, cuts: Iterable[tuple[int, int]]) -> Ints:
    """Return low…high-1 without the ranges `cuts`, which are ascending and disjoint."""
    pieces = []
    for start, end in cuts:
        pieces.append(np.arange(low, start))
        low = end
    return np.concatenate([*pieces, np.arange(low, high)])


def _smallest_positions(keys: Ints, limit: int) -> Ints:
    """Return the positions of the `limit` smallest keys, in ascending order of keys. Keys are distinct."""
    chosen = np.argpartition(keys, limit)[:limit] if len(keys) > limit else np.arange(len(keys))
    return chosen[np.argsort(keys[chosen], kind="stable")]
