"""What goes into the context of a community's report (paper 3.1.5): integers only, no texts.

Everything that fits goes in. Where it does not, sub-communities, the one with the most element tokens
first, give way to their reports until it does. What is still too large is cut by priority.

The order of priority, and so of the cut:

1. reports of sub-communities that gave way, the largest sub-community first;
2. edges by falling combined degree, ties by relationship id; for each its source, its target, the edge,
   then the claims about the two;
3. members without an edge inside, by id, each followed by its claims.

The degree is that in the whole graph where something is cut, as in the paper. Where everything fits, it is
the number of the edges shown: the context is then a function of what it shows, and a document elsewhere,
which changes degrees but none of these records, does not have the report written again.

Where the paper is silent:

- A sub-community's report stands for its members, the edges among them and the claims about them. An
  edge that leaves it stays, but its end inside is not shown again: the report describes it, the edge's
  line names it.
- Once the reports alone fill the context no further report is waited for: it would be cut anyway.
- A record longer than `element_cap` or `report_cap` counts, and is shown, as that long: one runaway
  description must not empty a context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.hierarchy import Hierarchy, Ints


@dataclass(frozen=True)
class Elements:
    """Nodes by place, edges sorted by community, claims sorted by the place of their subject.

    Token numbers are `context.record_tokens` of each record: its line without the local number.

    node_tokens      [N] by place
    edge_source      [E] place of one end
    edge_target      [E] place of the other
    edge_tokens      [E]
    edge_degree      [E] combined degree: the two ends' degrees in the whole graph, added (paper 3.1.5)
    edge_id_rank     [E] rank of the relationship's id among all of them; breaks ties
    edge_community   [E] ascending: the smallest community that holds both ends, -1 where none does
    claim_place      [K] ascending: place of the subject; claims without a matched subject are not here
    claim_tokens     [K]
    """

    node_tokens: Ints
    edge_source: Ints
    edge_target: Ints
    edge_tokens: Ints
    edge_degree: Ints
    edge_id_rank: Ints
    edge_community: Ints
    claim_place: Ints
    claim_tokens: Ints

    @property
    def n_nodes(self) -> int:
        return len(self.node_tokens)

    @property
    def n_edges(self) -> int:
        return len(self.edge_source)


def arrange(
    hierarchy: Hierarchy,
    node_tokens: Ints,
    source: Ints,
    target: Ints,
    edge_tokens: Ints,
    edge_order: Ints,
    edge_community: Ints,
    claim_node: Ints,
    claim_tokens: Ints,
) -> tuple[Elements, Ints]:
    """Bring a graph's elements into the order of its hierarchy.

    node_tokens, claim_node   by node number (nodes sorted by id), as are source and target
    source, target            [E] edges sorted by relationship id
    edge_order                [E] permutation that sorts edges by community, of `communities.edge_order`
    edge_community            [E] the community of each edge, in the order of `source`

    Returns the elements and the permutation that was applied to the claims. Edge e of the elements is
    edge edge_order[e] of the arguments, the node at place p is hierarchy.order[p].
    """
    place = np.empty(len(hierarchy.order), dtype=np.int64)
    place[hierarchy.order] = np.arange(len(hierarchy.order))
    ends = np.concatenate([source, target])
    degree = np.bincount(ends, minlength=len(hierarchy.order))
    claim_order = np.argsort(place[claim_node], kind="stable")
    elements = Elements(
        node_tokens=node_tokens[hierarchy.order],
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


NODE, EDGE, CLAIM, REPORT, CHUNK = range(5)
"""Kinds of record in a plan."""

NUMBER_TOKENS = 3
"""Tokens of a record's local number: up to nine digits in most vocabularies, three where each is one."""

HEADING_TOKENS = 64
"""Tokens of the headings of all sections together, at most, with reports of one hierarchy."""

MIN_CONTEXT_TOKENS = 4 * HEADING_TOKENS
"""Below this a context may not hold one edge with its two ends."""


def element_cap(budget: int) -> int:
    """Tokens of the longest line of an entity, relationship or claim: an edge and its ends always fit."""
    return budget // 4 - NUMBER_TOKENS


def report_cap(budget: int) -> int:
    """Tokens of the longest line of a sub-community's report."""
    return budget // 2 - NUMBER_TOKENS


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records that should have been shown and did not fit."""

    nodes: int = 0
    edges: int = 0
    claims: int = 0
    reports: int = 0

    @property
    def total(self) -> int:
        return self.nodes + self.edges + self.claims + self.reports


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """A context as integers.

    kinds, indices   [R] the records by falling priority. NODE: a place; EDGE and CLAIM: positions in
                     `Elements`; REPORT: a community; CHUNK: a place
    tokens           at most so many tokens, headings included
    replaced         the sub-communities that gave way to their reports, in that order, even where a
                     report did not fit
    failed           sub-communities whose report was wanted and had failed: their elements stayed
    """

    community: int
    kinds: npt.NDArray[np.int8]
    indices: Ints
    tokens: int
    left_out: LeftOut
    replaced: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()

    @property
    def nodes(self) -> Ints:
        return self._of(NODE)

    @property
    def edges(self) -> Ints:
        return self._of(EDGE)

    @property
    def claims(self) -> Ints:
        return self._of(CLAIM)

    @property
    def reports(self) -> Ints:
        return self._of(REPORT)

    def _of(self, kind: int) -> Ints:
        chosen: Ints = self.indices[self.kinds == kind]
        return chosen


@dataclass(frozen=True, slots=True)
class Needs:
    """The plan cannot go on before the report of `child` is there or has failed."""

    community: int
    child: int


@dataclass(slots=True)
class ReplacementProgress:
    """How far the replacement of a community's children has come; `Planner.advance` goes on from here."""

    community: int
    ranked: list[int]
    total: int
    at: int = 0
    report_cost: int = 0
    replaced: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)


class Planner:
    """Plans contexts of at most `budget` tokens.

    max_claims_per_entity   of an entity's claims only the first so many are ever shown

    Building one costs a few passes over all elements; each plan costs its own context plus numpy work
    on the slices of its community. Raises SettingsError where the budget is too small for any context.
    """

    def __init__(
        self, hierarchy: Hierarchy, elements: Elements, budget: int, max_claims_per_entity: int = 10
    ) -> None:
        if budget < MIN_CONTEXT_TOKENS:
            raise SettingsError(
                f"reports.context_tokens is {budget}; a context needs at least {MIN_CONTEXT_TOKENS} tokens"
            )
        self.hierarchy, self.elements, self.budget = hierarchy, elements, budget
        self.available = budget - HEADING_TOKENS
        self._cap = element_cap(budget)
        self._edge_key = _edge_keys(elements.edge_degree, elements.edge_id_rank)
        communities = np.arange(hierarchy.n_communities)
        self._edge_low = np.searchsorted(elements.edge_community, communities)
        self._edge_high = np.searchsorted(elements.edge_community, hierarchy.last)
        # The claims that may be shown, and [N+1] where those of each place begin among them.
        places = np.arange(elements.n_nodes + 1)
        first = np.searchsorted(elements.claim_place, places)
        rank = np.arange(len(elements.claim_place)) - first[elements.claim_place]
        self._claims = np.flatnonzero(rank < max_claims_per_entity)
        self._claim_start = np.searchsorted(elements.claim_place[self._claims], places)
        self._claim_low = self._claim_start[hierarchy.start]
        self._claim_high = self._claim_start[hierarchy.end]
        self._by_parent = np.argsort(hierarchy.parent, kind="stable")
        parents = hierarchy.parent[self._by_parent]
        self._child_low = np.searchsorted(parents, communities)
        self._child_high = np.searchsorted(parents, communities, side="right")
        # [C] tokens of all elements of each community, from running sums.
        nodes, edges, claims = (
            np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self._cost(tokens), dtype=np.int64)])
            for tokens in (elements.node_tokens, elements.edge_tokens, elements.claim_tokens[self._claims])
        )
        self.totals: Ints = (
            nodes[hierarchy.end]
            - nodes[hierarchy.start]
            + (edges[self._edge_high] - edges[self._edge_low])
            + (claims[self._claim_high] - claims[self._claim_low])
        )

    def plan(self, community: int, report_tokens: Mapping[int, int | None]) -> ContextPlan | Needs:
        """The plan of a community, or the report that it needs next.

        report_tokens: tokens of a report's line for every community whose report is known, None where
        it failed.
        """
        progress = self.start(community)
        child = self.advance(progress, report_tokens)
        return self.lay_out(progress, report_tokens) if child is None else Needs(community, child)

    def start(self, community: int) -> ReplacementProgress:
        """Sub-communities are replaced by falling element tokens, ties by their smallest node id."""
        total = int(self.totals[community])
        children = self._by_parent[self._child_low[community] : self._child_high[community]]
        if total <= self.available or not len(children):
            return ReplacementProgress(community, [], total)
        h = self.hierarchy
        smallest = np.array([int(h.order[h.start[c] : h.end[c]].min()) for c in children])
        ranked: list[int] = children[np.lexsort((smallest, -self.totals[children]))].tolist()
        return ReplacementProgress(community, ranked, total)

    def advance(self, progress: ReplacementProgress, report_tokens: Mapping[int, int | None]) -> int | None:
        """Replace further children as far as their reports are known.

        Returns the child whose report is needed next; None when the context can be laid out.
        """
        while (
            progress.total > self.available
            and progress.report_cost <= self.available
            and progress.at < len(progress.ranked)
        ):
            child = progress.ranked[progress.at]
            if child not in report_tokens:
                return child
            tokens = report_tokens[child]
            if tokens is None:
                progress.failed.append(child)
            elif (cost := self._report_cost(tokens)) < self.totals[child]:
                progress.replaced.append(child)
                progress.total += cost - int(self.totals[child])
                progress.report_cost += cost
            progress.at += 1
        return None

    def lay_out(self, progress: ReplacementProgress, report_tokens: Mapping[int, int | None]) -> ContextPlan:
        """The plan, once `advance` needs nothing more."""
        cuts = [(int(self._edge_low[c]), int(self._edge_high[c])) for c in sorted(progress.replaced)]
        low, high = self._edge_low[progress.community], self._edge_high[progress.community]
        edges = _outside(int(low), int(high), cuts)
        sheet = self._sheet(progress, report_tokens, edges, self._edge_key[edges])
        left_out = self._left_out(progress, sheet, len(edges))
        if not left_out.total:
            # By the degrees in the graph of these edges alone.
            ends = np.stack([self.elements.edge_source[edges], self.elements.edge_target[edges]])
            _, at, degree = np.unique(ends, return_inverse=True, return_counts=True)
            combined = degree[at].reshape(ends.shape).sum(axis=0)
            keys = _edge_keys(combined, self.elements.edge_id_rank[edges])
            sheet = self._sheet(progress, report_tokens, edges, keys)
        return ContextPlan(
            community=progress.community,
            kinds=np.array(sheet.kinds, dtype=np.int8),
            indices=np.array(sheet.indices, dtype=np.int64),
            tokens=self.budget - sheet.left if sheet.kinds else 0,
            left_out=left_out,
            replaced=tuple(progress.replaced),
            failed=tuple(progress.failed),
        )

    def _sheet(
        self, progress: ReplacementProgress, report_tokens: Mapping[int, int | None], edges: Ints, keys: Ints
    ) -> _Sheet:
        """Records by falling priority until one does not fit; keys: of the edges, smallest first."""
        sheet = _Sheet(self.available)
        for child in progress.replaced:
            if not sheet.add(REPORT, child, self._report_cost(report_tokens[child] or 0)):
                break
        ordered = sorted(progress.replaced)
        shown = self._add_edges(sheet, edges, keys, ordered)
        self._add_isolated(sheet, progress.community, ordered, shown)
        return sheet

    def _add_edges(self, sheet: _Sheet, edges: Ints, keys: Ints, replaced: list[int]) -> set[int]:
        """Edges with their ends and claims, until the sheet is full. Returns the places seen."""
        seen: set[int] = set()
        if sheet.full:
            return seen
        first = edges[_smallest(keys, self.available // NUMBER_TOKENS + 1)]
        sources, targets = self.elements.edge_source[first], self.elements.edge_target[first]
        hidden = zip(
            self._inside(sources, replaced).tolist(), self._inside(targets, replaced).tolist(), strict=True
        )
        tokens = self._cost(self.elements.edge_tokens[first])
        rows = zip(first.tolist(), tokens.tolist(), sources.tolist(), targets.tolist(), hidden, strict=True)
        for edge, cost, source, target, (source_hidden, target_hidden) in rows:
            ends = [p for p, gone in ((source, source_hidden), (target, target_hidden)) if not gone]
            new = [p for p in dict.fromkeys(ends) if p not in seen]
            for place in new:
                self._add_node(sheet, place)
            sheet.add(EDGE, edge, cost)
            for place in new:
                self._add_claims(sheet, place)
            seen.update(new)
            if sheet.full:
                break
        return seen

    def _add_isolated(self, sheet: _Sheet, community: int, replaced: list[int], seen: set[int]) -> None:
        """Members that no shown edge names, by id."""
        if sheet.full:
            return
        start, end = self.hierarchy.start, self.hierarchy.end
        cuts = [(int(start[c]), int(end[c])) for c in replaced]
        places = _outside(int(start[community]), int(end[community]), cuts)
        if seen:
            places = places[~np.isin(places, np.fromiter(seen, dtype=np.int64, count=len(seen)))]
        node_ids = self.hierarchy.order[places]
        for place in places[_smallest(node_ids, self.available // NUMBER_TOKENS + 1)].tolist():
            self._add_node(sheet, place)
            self._add_claims(sheet, place)
            if sheet.full:
                return

    def _add_node(self, sheet: _Sheet, place: int) -> None:
        sheet.add(NODE, place, min(int(self.elements.node_tokens[place]), self._cap) + NUMBER_TOKENS)

    def _add_claims(self, sheet: _Sheet, place: int) -> None:
        for claim in self._claims[self._claim_start[place] : self._claim_start[place + 1]].tolist():
            tokens = min(int(self.elements.claim_tokens[claim]), self._cap)
            sheet.add(CLAIM, claim, tokens + NUMBER_TOKENS)

    def _left_out(self, progress: ReplacementProgress, sheet: _Sheet, n_edges: int) -> LeftOut:
        kinds = np.bincount(np.array(sheet.kinds, dtype=np.int64), minlength=4).tolist()
        starts, ends = self.hierarchy.start, self.hierarchy.end
        community, gone = progress.community, progress.replaced
        nodes = int(ends[community] - starts[community] - (ends[gone] - starts[gone]).sum())
        first, last = self._claim_low, self._claim_high
        claims = int(last[community] - first[community] - (last[gone] - first[gone]).sum())
        return LeftOut(
            nodes - kinds[NODE], n_edges - kinds[EDGE], claims - kinds[CLAIM], len(gone) - kinds[REPORT]
        )

    def _inside(self, places: Ints, communities: list[int]) -> npt.NDArray[np.bool_]:
        """[len(places)] whether each place belongs to one of these disjoint communities (ascending)."""
        if not communities:
            return np.zeros(len(places), dtype=np.bool_)
        starts, ends = self.hierarchy.start[communities], self.hierarchy.end[communities]
        at = np.searchsorted(starts, places, side="right") - 1
        return (at >= 0) & (places < ends[np.maximum(at, 0)])

    def _cost(self, tokens: Ints) -> Ints:
        return np.minimum(tokens, self._cap) + NUMBER_TOKENS

    def _report_cost(self, tokens: int) -> int:
        return min(tokens, report_cap(self.budget)) + NUMBER_TOKENS


class _Sheet:
    """Records in order until the first that does not fit; from then on it is full."""

    def __init__(self, available: int) -> None:
        self.kinds: list[int] = []
        self.indices: list[int] = []
        self.left = available
        self.full = False

    def add(self, kind: int, index: int, cost: int) -> bool:
        if self.full or cost > self.left:
            self.full = True
            return False
        self.kinds.append(kind)
        self.indices.append(index)
        self.left -= cost
        return True


def _edge_keys(degree: Ints, id_rank: Ints) -> Ints:
    """[E] one number that sorts edges by falling combined degree, then by id."""
    if not len(degree):
        return np.zeros(0, dtype=np.int64)
    keys: Ints = (int(degree.max()) - degree) * (int(id_rank.max()) + 1) + id_rank
    return keys


def _outside(low: int, high: int, cuts: Iterable[tuple[int, int]]) -> Ints:
    """low…high-1 without the given ranges, which are ascending and disjoint."""
    pieces, at = [], low
    for start, end in cuts:
        pieces.append(np.arange(at, start))
        at = end
    return np.concatenate([*pieces, np.arange(at, high)])


def _smallest(keys: Ints, limit: int) -> Ints:
    """Positions of the `limit` smallest keys, ascending. Keys are distinct."""
    chosen = np.argpartition(keys, limit)[:limit] if len(keys) > limit else np.arange(len(keys))
    return chosen[np.argsort(keys[chosen], kind="stable")]
