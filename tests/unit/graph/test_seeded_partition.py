from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from graphrag_ray.base.index_settings import Communities
from graphrag_ray.graph.communities import build_communities
from graphrag_ray.graph.leiden import connected_components, leiden, seeded_igraph
from graphrag_ray.graph.seeded_partition import TOLERANCE, PreviousPartition

DEFAULT = Communities()


class Graph:
    """Nodes as ordered keys, and edges {(key, key): weight}."""

    def __init__(self, nodes, edges) -> None:
        self.keys = np.array(sorted(nodes), dtype=np.uint64)
        place = {int(k): i for i, k in enumerate(self.keys)}
        self.edges = {e: w for e, w in edges.items() if e[0] in place and e[1] in place}
        pairs = [(place[a], place[b]) for a, b in sorted(self.edges)]
        self.source, self.target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self.weight = np.array([self.edges[e] for e in sorted(self.edges)], dtype=np.float64)

    def hierarchy(self, options=DEFAULT, past=None):
        return build_communities(
            len(self.keys),
            self.source,
            self.target,
            self.weight,
            options,
            pack_tokens=20,
            previous=past,
            node_keys=self.keys,
        )

    def past(self, hierarchy) -> PreviousPartition:
        return PreviousPartition(hierarchy, self.keys, self.source, self.target, self.weight)

    def groups(self, hierarchy, level) -> set[frozenset[int]]:
        h = hierarchy
        return {
            frozenset(self.keys[h.node_at_place[h.start[c] : h.end[c]]].tolist())
            for c in h.communities_at_level(level)
        }


def clique(nodes):
    return {(a, b): 1 for a in nodes for b in nodes if a < b}


def ring(n, size=12):
    """A ring of cliques with gaps between node keys for new nodes."""
    edges: dict[tuple[int, int], int] = {}
    for i in range(n):
        edges |= clique(range(10_000 * i, 10_000 * i + size))
        edges[tuple(sorted((10_000 * i, 10_000 * ((i + 1) % n) + 1)))] = 1
    return edges


def graph_of(edges):
    return Graph({node for e in edges for node in e}, edges)


@st.composite
def histories(draw):
    """Two to four graphs, each made from the previous one by adding, removing and changing elements."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, groups = draw(st.integers(2, 90)), draw(st.integers(1, 6))
    nodes = set(range(n))
    edges: dict[tuple[int, int], int] = {}

    def connect(a, n_edges):
        for other in rng.integers(0, n, n_edges).tolist():
            b = (a + groups * (other // groups)) % n if rng.random() < 0.8 else other
            if a != b:
                edges[min(a, b), max(a, b)] = int(rng.integers(1, 5))

    for a in range(n):
        connect(a, draw(st.integers(0, 3)))
    graphs = [Graph(nodes, edges)]
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(0, 12))):
            kind, a = rng.integers(0, 4), int(rng.integers(0, n))
            if kind == 0:
                nodes ^= {a}
            elif kind == 1 and edges:
                edges.pop(sorted(edges)[int(rng.integers(0, len(edges)))])
            else:
                connect(a, int(rng.integers(1, 4)))
        graphs.append(Graph(nodes, edges))
    return graphs


options = st.builds(
    Communities,
    max_size=st.sampled_from([None, 2, 5, 10]),
    pack_components_below=st.sampled_from([1, 3, 10]),
    components=st.sampled_from(["all", "all", "largest"]),
    iterations=st.sampled_from([1, 2]),
)


def check(graph, h, options):
    """Check the invariants of a hierarchy."""
    limit = options.max_size or 1
    for level in range(h.n_levels):
        at = h.communities_at_level(level)
        placed = np.concatenate([h.node_at_place[h.start[c] : h.end[c]] for c in at])
        assert len(set(placed.tolist())) == len(placed)
        assert options.components == "largest" or len(placed) == len(graph.keys)
    ends = np.stack([graph.source, graph.target], axis=1)
    for c in range(h.n_communities):
        nodes = np.sort(h.node_at_place[h.start[c] : h.end[c]])
        inside = np.isin(ends, nodes).all(axis=1)
        among = np.searchsorted(nodes, ends[inside])
        assert h.packed[c] or connected_components(len(nodes), among).max() == 0
        if len(nodes) > limit and not len(h.children(c)) and not h.packed[c]:
            with seeded_igraph(0) as generator:
                found = leiden(len(nodes), among, graph.edge_weight[inside], options, generator)
            assert found.max() == 0, "what Leiden can divide is divided"
        assert len(nodes) > limit or not len(h.children(c))


@given(histories(), options)
def test_seeded_hierarchy_is_valid_and_nearly_as_modular_as_a_fresh_one(graphs, options):
    past = None
    for graph in graphs:
        h = graph.hierarchy(options, past)
        check(graph, h, options)
        rebuilt = graph.hierarchy(options)
        assert h.modularity >= rebuilt.modularity - TOLERANCE * abs(rebuilt.modularity) - 1e-12
        event(f"same as rebuilt: {np.array_equal(h.node_at_place, rebuilt.node_at_place)}")
        past = graph.past(h)


@given(histories(), options)
def test_unchanged_graph_retains_its_hierarchy(graphs, options):
    past = None
    for graph in graphs:
        h = graph.hierarchy(options, past)
        past = graph.past(h)
    again = graphs[-1].hierarchy(options, past)
    for array in ("node_at_place", "level", "parent", "start", "end", "subtree_end", "packed"):
        assert np.array_equal(getattr(again, array), getattr(h, array)), array
    assert again.modularity == h.modularity


@given(histories(), st.sampled_from(["modularity", "surprise", "significance", "cpm", "rb_configuration"]))
def test_every_quality_function_can_be_seeded(graphs, quality):
    options = Communities(library="leidenalg", quality=quality, pack_components_below=3, resolution=0.5)
    past = None
    for graph in graphs:
        h = graph.hierarchy(options, past)
        check(graph, h, options)
        past = graph.past(h)


@given(histories())
def test_cpm_with_igraph_can_be_seeded(graphs):
    options = Communities(quality="cpm", pack_components_below=3, resolution=0.3)
    past = None
    for graph in graphs:
        h = graph.hierarchy(options, past)
        check(graph, h, options)
        past = graph.past(h)


def test_new_node_joins_its_neighbours_without_affecting_other_communities():
    edges = ring(30)
    then = graph_of(edges)
    h = then.hierarchy()
    new = {(10_000 * 7 + i, 10_000 * 7 + 99): 1 for i in range(3)}
    now = graph_of(edges | new)
    updated = now.hierarchy(past=then.past(h))
    for level in range(h.n_levels):
        before, after = then.groups(h, level), now.groups(updated, level)
        assert [g - {70_099} for g in after - before] == [next(iter(before - after))], level


def test_removed_edge_affects_only_its_community():
    edges = ring(30)
    then = graph_of(edges)
    h = then.hierarchy()
    fewer = {e: w for e, w in edges.items() if e != (70_003, 70_004)}
    now = graph_of(fewer)
    updated = now.hierarchy(past=then.past(h))
    before = set().union(*(then.groups(h, k) for k in range(h.n_levels)))
    after = set().union(*(now.groups(updated, k) for k in range(updated.n_levels)))
    assert then.groups(h, 0) == now.groups(updated, 0)
    assert all(70_003 in group for group in after - before)


def test_disconnected_community_is_not_retained():
    two = clique(range(12)) | clique(range(100, 112))
    then = graph_of(two | {(5, 105): 9, (6, 106): 9, (7, 107): 9})
    whole = Communities(resolution=0.05, max_size=100)
    h = then.hierarchy(whole)
    assert len(then.groups(h, 0)) == 1
    now = graph_of(two)
    assert now.groups(now.hierarchy(whole, then.past(h)), 0) == {
        frozenset(range(12)),
        frozenset(range(100, 112)),
    }


def test_obsolete_partition_is_replaced():
    """The same nodes with different edges, so that the old communities are disconnected."""
    then = graph_of(ring(12))
    nodes = then.keys.tolist()
    rng = np.random.default_rng(5)
    other = dict(zip(nodes, rng.permutation(nodes).tolist(), strict=True))
    now = Graph(nodes, {tuple(sorted((other[a], other[b]))): w for (a, b), w in ring(12).items()})
    rebuilt = now.hierarchy()
    updated = now.hierarchy(past=then.past(then.hierarchy()))
    assert updated.modularity == pytest.approx(rebuilt.modularity, rel=TOLERANCE)


def test_merged_parallel_edges_are_a_change():
    nodes = list(range(14))
    source, target = np.array(list(clique(nodes)), dtype=np.int64).T
    keys = np.array(nodes, dtype=np.uint64)
    double = (np.append(source, 0), np.append(target, 1), np.ones(len(source) + 1))
    h = build_communities(14, *double, DEFAULT, node_keys=keys)
    once = (source, target, np.ones(len(source)))
    updated = build_communities(
        14, *once, DEFAULT, previous=PreviousPartition(h, keys, *double), node_keys=keys
    )
    rebuilt = build_communities(14, *once, DEFAULT, node_keys=keys)
    assert updated.modularity == pytest.approx(rebuilt.modularity)


@pytest.mark.parametrize("gone", ["then", "now"])
def test_either_graph_can_be_empty(gone):
    full, empty = graph_of(ring(5)), Graph([], {})
    then, now = (empty, full) if gone == "then" else (full, empty)
    h = now.hierarchy(past=then.past(then.hierarchy()))
    rebuilt = now.hierarchy()
    assert np.array_equal(h.node_at_place, rebuilt.node_at_place) and np.array_equal(h.start, rebuilt.start)
