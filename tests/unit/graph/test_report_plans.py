"""Plans and schedules compared with a simple reference implementation on sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import SettingsError
from graphrag_ray.graph.context_plan import (
    CLAIM,
    ENTITY,
    HEADING_TOKENS,
    MIN_CONTEXT_TOKENS,
    NUMBER_TOKENS,
    RELATIONSHIP,
    REPORT,
    ContextPlan,
    GraphElements,
    Planner,
    ReplacementProgress,
    max_element_tokens,
    max_report_tokens,
    order_elements,
)
from graphrag_ray.graph.hierarchy import Hierarchy
from graphrag_ray.graph.report_schedule import HierarchySchedule

MAX_CLAIMS = 2


@dataclass
class Case:
    """A random graph, its hierarchy and the length of each report (None: it fails)."""

    hierarchy: Hierarchy
    elements: GraphElements
    budget: int
    reports: dict[int, int | None]


def ints(values) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


def hierarchy_of(tree: list, n_nodes: int | None = None) -> Hierarchy:
    """Convert nested lists: [[0, 1], [2]] is a community of 0, 1 and 2 with two sub-communities."""
    order, level, parent, start, end, last = [], [], [], [], [], []

    def add(members: list, above: int, depth: int) -> None:
        number = len(level)
        for column, value in ((level, depth), (parent, above), (start, len(order)), (end, 0), (last, 0)):
            column.append(value)
        for member in members:
            if isinstance(member, list):
                add(member, number, depth + 1)
            else:
                order.append(member)
        end[number], last[number] = len(order), len(level)

    for community in tree:
        add(community, -1, 0)
    order += sorted(set(range(n_nodes or 0)) - set(order))
    columns = [ints(c) for c in (order, level, parent, start, end, last)]
    return Hierarchy(*columns, packed=np.zeros(len(level), dtype=bool), modularity=0.0)


def smallest_common(h: Hierarchy, a: int, b: int) -> int:
    place = {int(node): p for p, node in enumerate(h.node_at_place)}
    holding = [
        c
        for c in range(h.n_communities)
        if h.start[c] <= place[a] < h.end[c] and h.start[c] <= place[b] < h.end[c]
    ]
    return max(holding, default=-1)


def elements_of(
    h: Hierarchy, nodes: list[int], edges: list[tuple[int, int, int]], claims=()
) -> GraphElements:
    """edges: (source, target, tokens) by id; claims: (subject, tokens)."""
    community = ints(smallest_common(h, a, b) for a, b, _ in edges)
    elements, _ = order_elements(
        h,
        ints(nodes),
        source=ints(a for a, _, _ in edges),
        target=ints(b for _, b, _ in edges),
        edge_tokens=ints(t for _, _, t in edges),
        edge_order=np.argsort(community, kind="stable"),
        edge_community=community,
        claim_node=ints(n for n, _ in claims),
        claim_tokens=ints(t for _, t in claims),
    )
    return elements


@st.composite
def cases(draw) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = int(rng.integers(1, 24))

    def split(members: list[int], depth: int) -> list:
        if len(members) < 2 or depth > 3 or rng.random() < 0.3:
            return sorted(members)
        parts = rng.integers(0, rng.integers(2, 5), len(members))
        groups = [[m for m, p in zip(members, parts, strict=True) if p == k] for k in range(4)]
        groups = [g for g in groups if g]
        return sorted(members) if len(groups) == 1 else [split(g, depth + 1) for g in groups]

    inside = [int(m) for m in rng.permutation(n)[: max(1, n - int(rng.integers(0, 3)))]]
    top = split(inside, 0)
    h = hierarchy_of(top if isinstance(top[0], list) else [top], n)
    pairs = {tuple(sorted(p)) for p in rng.integers(0, n, (int(rng.integers(0, 40)), 2)).tolist()}
    longest = int(rng.choice([5, 20, 90]))
    edges = [(a, b, int(rng.integers(1, longest))) for a, b in sorted(pairs) if a != b]
    claims = [(int(rng.integers(0, n)), int(rng.integers(1, longest))) for _ in range(rng.integers(0, 12))]
    elements = elements_of(h, rng.integers(1, longest, n).tolist(), edges, claims)
    lengths = {c: int(rng.integers(1, 120)) for c in range(h.n_communities)}
    reports = {c: None if rng.random() < 0.15 else tokens for c, tokens in lengths.items()}
    return Case(h, elements, int(rng.integers(MIN_CONTEXT_TOKENS, 500)), reports)


class ReferencePlanner:
    """A reference implementation of the rules in context_plan.py."""

    def __init__(self, case: Case) -> None:
        self.case, self.h, self.e = case, case.hierarchy, case.elements
        self.available = case.budget - HEADING_TOKENS
        of_place: dict[int, list[int]] = {}
        for claim, place in enumerate(self.e.claim_place.tolist()):
            of_place.setdefault(place, []).append(claim)
        self.claims = {place: claims[:MAX_CLAIMS] for place, claims in of_place.items()}

    def cost(self, kind: int, index: int) -> int:
        cap = max_report_tokens(self.case.budget) if kind == REPORT else max_element_tokens(self.case.budget)
        tokens = {
            ENTITY: lambda: self.e.node_tokens[index],
            RELATIONSHIP: lambda: self.e.edge_tokens[index],
            CLAIM: lambda: self.e.claim_tokens[index],
            REPORT: lambda: self.case.reports[index],
        }[kind]()
        return min(int(tokens), cap) + NUMBER_TOKENS

    def members(self, c: int) -> set[int]:
        return set(range(int(self.h.start[c]), int(self.h.end[c])))

    def inside(self, c: int) -> set[tuple[int, int]]:
        places = self.members(c)
        edges = zip(self.e.edge_source.tolist(), self.e.edge_target.tolist(), strict=True)
        return (
            {(ENTITY, p) for p in places}
            | {(RELATIONSHIP, i) for i, (a, b) in enumerate(edges) if a in places and b in places}
            | {(CLAIM, k) for p in places for k in self.claims.get(p, [])}
        )

    def total(self, c: int) -> int:
        return sum(self.cost(*item) for item in self.inside(c))

    def plan(self, c: int) -> tuple[list[tuple[int, int]], int, list[int]]:
        children = [k for k in range(self.h.n_communities) if self.h.parent[k] == c]
        children.sort(key=lambda k: (-self.total(k), min(self.h.node_at_place[sorted(self.members(k))])))
        wanted, replaced = self.inside(c), []
        for child in children:
            reports = [(REPORT, r) for r in replaced]
            in_reports = sum(self.cost(*r) for r in reports)
            fits = in_reports + sum(self.cost(*i) for i in wanted) <= self.available
            if fits or in_reports > self.available:
                break
            if self.case.reports[child] is not None and self.cost(REPORT, child) < self.total(child):
                replaced.append(child)
                wanted -= self.inside(child)
        edges = [i for kind, i in wanted if kind == RELATIONSHIP]
        fits = sum(self.cost(*item) for item in [*((REPORT, r) for r in replaced), *wanted]) <= self.available
        degree = self.degree_among(edges) if fits else dict(enumerate(self.e.edge_degree.tolist()))
        order = [(REPORT, r) for r in replaced] + self.ordered(wanted, degree)
        shown, left = [], self.available
        for item in order:
            if self.cost(*item) > left:
                break
            shown.append(item)
            left -= self.cost(*item)
        return shown, len(order) - len(shown), replaced

    def degree_among(self, edges: list[int]) -> dict[int, int]:
        ends = {i: (int(self.e.edge_source[i]), int(self.e.edge_target[i])) for i in edges}
        degree = Counter(place for both in ends.values() for place in both)
        return {i: degree[a] + degree[b] for i, (a, b) in ends.items()}

    def ordered(self, wanted: set[tuple[int, int]], degree: dict[int, int]) -> list[tuple[int, int]]:
        order: list[tuple[int, int]] = []
        edges = [i for kind, i in wanted if kind == RELATIONSHIP]
        for edge in sorted(edges, key=lambda i: (-degree[i], self.e.edge_id_rank[i])):
            ends = [int(self.e.edge_source[edge]), int(self.e.edge_target[edge])]
            new = [p for p in ends if (ENTITY, p) in wanted and (ENTITY, p) not in order]
            order += [(ENTITY, p) for p in new]
            order.append((RELATIONSHIP, edge))
            order += [(CLAIM, k) for p in new for k in self.claims.get(p, [])]
        isolated = [p for kind, p in wanted if kind == ENTITY and (ENTITY, p) not in order]
        for place in sorted(isolated, key=lambda p: self.h.node_at_place[p]):
            order.append((ENTITY, place))
            order += [(CLAIM, k) for k in self.claims.get(place, [])]
        return order


def planned(
    planner: Planner, community: int, reports: Mapping[int, int | None]
) -> tuple[ContextPlan, ReplacementProgress]:
    progress = planner.start(community)
    assert planner.advance(progress, reports) is None
    return planner.lay_out(progress, reports), progress


def items(plan: ContextPlan) -> list[tuple[int, int]]:
    return list(zip(plan.kinds.tolist(), plan.indices.tolist(), strict=True))


@given(cases())
def test_plan_matches_the_reference_implementation(case: Case) -> None:
    planner, naive = Planner(case.hierarchy, case.elements, case.budget, MAX_CLAIMS), ReferencePlanner(case)
    for community in range(case.hierarchy.n_communities):
        plan, progress = planned(planner, community, case.reports)
        shown, left_out, replaced = naive.plan(community)
        assert items(plan) == shown
        assert plan.left_out == left_out
        assert progress.replaced == replaced
        assert plan.tokens == HEADING_TOKENS + sum(naive.cost(*i) for i in shown) <= case.budget
        assert shown, "a context is never empty"


@given(cases(), st.randoms(use_true_random=False))
def test_plans_do_not_depend_on_the_order_in_which_reports_finish(case: Case, random) -> None:
    expected = Planner(case.hierarchy, case.elements, case.budget, MAX_CLAIMS)
    schedule = HierarchySchedule(case.hierarchy, case.elements, case.budget, MAX_CLAIMS)
    opened, seen = [], set()
    while not schedule.finished:
        opened += schedule.take_ready(random.choice([None, 1, 3]))
        assert opened, "every community can be written sooner or later"
        plan = opened.pop(random.randrange(len(opened)))
        assert plan.community not in seen
        seen.add(plan.community)
        assert items(plan) == items(planned(expected, plan.community, case.reports)[0])
        schedule.mark_done(plan.community, case.reports[plan.community])
    assert len(seen) == case.hierarchy.n_communities


# Two sub-communities: the first, nodes 0–2, has more tokens than the second, nodes 3–5.
TWO = [[[0, 1, 2], [3, 4, 5]]]


def two(first: int = 44, second: int = 40, edges=((0, 1, 9), (1, 2, 9), (2, 3, 9), (3, 4, 9))) -> Planner:
    h = hierarchy_of(TWO)
    return Planner(h, elements_of(h, [first] * 3 + [second] * 3, list(edges)), MIN_CONTEXT_TOKENS)


def test_a_report_waits_only_for_the_next_candidate_it_needs() -> None:
    planner = two()
    progress = planner.start(0)
    assert planner.advance(progress, {}) == 1
    assert planner.advance(progress, {1: 10}) is None, "with the first replaced all fits"
    assert progress.replaced == [1]


def test_members_of_a_replaced_community_are_omitted_but_not_its_outer_edges() -> None:
    planner = two()
    plan, _ = planned(planner, 0, {1: 10})
    h, e = planner.hierarchy, planner.elements
    assert {int(h.node_at_place[p]) for p in plan.indices_of(ENTITY)} == {3, 4, 5}
    ends = {
        (int(h.node_at_place[e.edge_source[i]]), int(h.node_at_place[e.edge_target[i]]))
        for i in plan.indices_of(RELATIONSHIP)
    }
    assert ends == {(2, 3), (3, 4)}
    assert plan.left_out == 0


def test_community_with_failed_report_is_not_replaced() -> None:
    plan, progress = planned(two(), 0, {1: None, 2: 10})
    assert progress.replaced == [2]
    assert {0, 1, 2} <= set(plan.indices_of(ENTITY).tolist())


def test_a_report_longer_than_its_elements_replaces_nothing() -> None:
    # Each sub-community has 2 * 53 tokens of elements, its report report_cap + 3 = 128.
    h = hierarchy_of([[[0, 1], [2, 3]]])
    planner = Planner(h, elements_of(h, [50] * 4, []), MIN_CONTEXT_TOKENS)
    plan, progress = planned(planner, 0, {1: 500, 2: 500})
    assert progress.replaced == []
    assert plan.left_out == 1


def test_no_report_is_awaited_once_reports_fill_the_context() -> None:
    h = hierarchy_of([[[3 * k, 3 * k + 1, 3 * k + 2] for k in range(9)]])
    planner = Planner(h, elements_of(h, [60] * 27, []), MIN_CONTEXT_TOKENS)
    plan, _ = planned(planner, 0, {1: 90, 2: 90, 3: 90})
    assert plan.indices_of(REPORT).tolist() == [1, 2]
    assert plan.left_out == 19


def ends(elements: GraphElements, plan: ContextPlan) -> list[tuple[int, int]]:
    return [
        (int(elements.edge_source[e]), int(elements.edge_target[e])) for e in plan.indices_of(RELATIONSHIP)
    ]


OUTWARD = [(0, 1, 5), (2, 3, 5), (3, 4, 5), (3, 5, 5)]
"""Node 3 has two more relationships, outside of the community of 0 to 3."""


def test_edges_are_ranked_by_combined_degree_in_the_whole_graph() -> None:
    h = hierarchy_of([[0, 1, 2, 3], [4, 5]])
    elements = elements_of(h, [40] * 6, [(a, b, 60) for a, b, _ in OUTWARD])
    plan, _ = planned(Planner(h, elements, MIN_CONTEXT_TOKENS), 0, {})
    assert plan.left_out == 2
    assert ends(elements, plan) == [(2, 3)]


def test_if_everything_fits_edges_are_ranked_by_degree_in_the_context() -> None:
    h = hierarchy_of([[0, 1, 2, 3], [4, 5]])
    elements = elements_of(h, [5] * 6, [*OUTWARD, (0, 2, 5)])
    plan, _ = planned(Planner(h, elements, 1000), 0, {})
    assert ends(elements, plan) == [(0, 2), (0, 1), (2, 3)]


@given(cases(), st.lists(st.integers(1, 60), min_size=40, max_size=40))
def test_complete_context_does_not_depend_on_degrees_elsewhere(case: Case, degrees: list[int]) -> None:
    e = case.elements
    other = replace(e, edge_degree=ints(degrees[: len(e.edge_source)]))
    for community in range(case.hierarchy.n_communities):
        plan, changed = (
            planned(Planner(case.hierarchy, x, case.budget, MAX_CLAIMS), community, case.reports)[0]
            for x in (e, other)
        )
        if not plan.left_out:
            assert items(plan) == items(changed)


def test_claims_per_entity_are_limited() -> None:
    h = hierarchy_of([[0, 1]])
    elements = elements_of(h, [5, 5], [], claims=[(0, 1), (1, 1), (0, 2), (0, 3)])
    plan, _ = planned(Planner(h, elements, 1000, max_claims_per_entity=2), 0, {})
    assert elements.claim_tokens[plan.indices_of(CLAIM)].tolist() == [1, 2, 1]
    assert plan.left_out == 0


def test_runaway_description_does_not_fill_a_context() -> None:
    h = hierarchy_of([[0, 1]])
    plan, _ = planned(Planner(h, elements_of(h, [10**9, 10**9], [(0, 1, 10**9)]), 400), 0, {})
    assert len(plan.indices_of(ENTITY)) == 2
    assert len(plan.indices_of(RELATIONSHIP)) == 1


def test_too_small_budget_is_rejected() -> None:
    h = hierarchy_of([[0]])
    with pytest.raises(SettingsError, match=r"context_tokens is 20"):
        HierarchySchedule(h, elements_of(h, [1], []), 20)


def test_empty_graph_has_no_reports() -> None:
    h = hierarchy_of([])
    schedule = HierarchySchedule(h, elements_of(h, [], []), 8000)
    assert schedule.finished
    assert schedule.take_ready() == []


def test_a_report_cannot_be_done_twice_or_before_it_was_handed_out() -> None:
    h = hierarchy_of([[0], [1]])
    schedule = HierarchySchedule(h, elements_of(h, [1, 1], []), 8000)
    with pytest.raises(ValueError, match="not handed out"):
        schedule.mark_done(0, 5)
    schedule.take_ready()
    schedule.mark_done(0, 5)
    with pytest.raises(ValueError, match="done already"):
        schedule.mark_done(0, 5)


def test_reports_with_the_longest_waiting_chain_come_first() -> None:
    many = iter(range(2000))

    def nodes(n: int) -> list[int]:
        return [next(many) for _ in range(n)]

    # One has no parent, one has a parent that fits, and one has two ancestors that do not fit.
    h = hierarchy_of([nodes(10), [nodes(10), nodes(10)], [nodes(300), [nodes(300), nodes(300)]]])
    schedule = HierarchySchedule(h, elements_of(h, [20] * 930, []), 8000)
    plans = schedule.take_ready()
    chains = [int(h.level[p.community]) if h.end[p.community] > 30 else 0 for p in plans]
    assert chains == [2, 2, 1, 0, 0, 0, 0]
    assert len(schedule.take_ready()) == 0


@pytest.mark.timeout(30)
def test_parent_of_many_children_is_not_replanned_for_each_child() -> None:
    n = 30_000
    h = hierarchy_of([[[k] for k in range(n)]])
    none = np.zeros(0, dtype=np.int64)
    elements = GraphElements(np.full(n, 20), none, none, none, none, none, none, none, none)
    schedule = HierarchySchedule(h, elements, 8000)
    while not schedule.finished:
        for plan in schedule.take_ready(100):
            schedule.mark_done(plan.community, None)
