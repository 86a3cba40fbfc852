from __future__ import annotations

import random
from contextlib import suppress

import igraph
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.ids import entity_id
from graphrag_ray.base.index_settings import Communities
from graphrag_ray.graph.communities import build_communities, sort_edges_by_community
from graphrag_ray.graph.integer_arrays import id_hash64
from graphrag_ray.graph.leiden import connected_components, leiden, seeded_igraph

DEFAULT = Communities()


def build(n, edges, options=DEFAULT, **more):
    source, target, weight = np.array([(*e, 1)[:3] for e in edges], dtype=np.float64).reshape(-1, 3).T
    return build_communities(n, source.astype(np.int64), target.astype(np.int64), weight, options, **more)


def members(h, c):
    return sorted(h.node_at_place[h.start[c] : h.end[c]].tolist())


def at(h, level):
    return [members(h, c) for c in h.communities_at_level(level)]


def clique(nodes):
    return [(a, b) for a in nodes for b in nodes if a < b]


def cliques(n, size=6, first=0):
    """A ring of cliques."""
    edges = [e for i in range(n) for e in clique(range(first + i * size, first + (i + 1) * size))]
    return edges + [(first + i * size, first + (i + 1) % n * size + 1) for i in range(n)]


def random_edges(n, m, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, n, m), rng.integers(0, n, m)
    near = rng.random(m) < 0.8
    b = np.where(near, a // 50 * 50 + b % 50, b)
    pairs = {(min(x, y), max(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True) if x != y and y < n}
    return [(x, y, 1 + (x + y) % 3) for x, y in sorted(pairs)]


def same(one, other):
    arrays = ("node_at_place", "level", "parent", "start", "end", "subtree_end", "packed")
    return all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)


@st.composite
def graphs(draw):
    """Up to 60 nodes with a few dense groups, some edges between them and isolated nodes."""
    n = draw(st.integers(1, 60))
    m = draw(st.integers(0, 120))
    seed = draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    groups = draw(st.integers(1, 6))
    a, b = rng.integers(0, n, m), rng.integers(0, n, m)
    b = np.where(rng.random(m) < 0.7, (a + groups * (b // groups)) % n, b)
    pairs = {(min(x, y), max(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True) if x != y}
    return n, [(x, y, int(rng.integers(1, 5))) for x, y in sorted(pairs)]


options = st.builds(
    Communities,
    max_size=st.sampled_from([None, 2, 5, 10]),
    pack_components_below=st.sampled_from([1, 3, 10]),
    components=st.sampled_from(["all", "all", "largest"]),
)


@given(graphs(), options, st.integers(1, 40))
def test_each_level_is_a_partition_of_all_nodes(graph, options, pack_tokens):
    n, edges = graph
    h = build(n, edges, options, pack_tokens=pack_tokens)
    ends = np.array([e[:2] for e in edges], dtype=np.int64).reshape(-1, 2)
    component = connected_components(n, ends)
    wanted = range(n)
    if options.components == "largest":
        wanted = np.flatnonzero(component == np.bincount(component).argmax()).tolist()
    assert sorted(h.node_at_place.tolist()) == list(range(n))
    for level in range(h.n_levels + 1):
        assert sorted(node for group in at(h, level) for node in group) == list(wanted)
    for c in range(h.n_communities):
        below = h.children(c)
        assert len(below) != 1
        if len(below):
            assert sorted(node for d in below for node in members(h, d)) == members(h, c)
            assert (h.level[below] == h.level[c] + 1).all()


@given(graphs(), options)
def test_a_community_is_connected_and_small_enough_or_cannot_be_split(graph, options):
    n, edges = graph
    h = build(n, edges, options)
    limit = options.max_size or 1
    for c in range(h.n_communities):
        nodes = np.array(members(h, c))
        inside = np.array([e for e in edges if e[0] in nodes and e[1] in nodes]).reshape(-1, 3)
        ends = np.searchsorted(nodes, inside[:, :2])
        parts = connected_components(len(nodes), ends)
        if h.packed[c]:
            assert h.level[c] == 0
            assert parts.max() > 0
            assert np.bincount(parts).max() < options.pack_components_below
            assert len(h.children(c)) == 0
            continue
        assert parts.max() == 0
        if len(nodes) > limit and not len(h.children(c)):
            with seeded_igraph(0) as generator:
                assert leiden(len(nodes), ends, inside[:, 2].astype(float), options, generator).max() == 0
        assert len(nodes) > limit or not len(h.children(c))


@given(graphs(), st.randoms(use_true_random=False), st.booleans())
def test_the_order_and_direction_of_edges_do_not_matter(graph, shuffle, twice):
    n, edges = graph
    edges = edges + [(a, b, w + 1) for a, b, w in edges] * twice
    other = [(b, a, w) if shuffle.random() < 0.5 else (a, b, w) for a, b, w in edges]
    shuffle.shuffle(other)
    one, two = build(n, edges), build(n, other)
    assert same(one, two)
    assert one.modularity == pytest.approx(two.modularity)


def test_leiden_gets_edges_in_canonical_order(monkeypatch):
    edges = [(a, b, w / 7) for a, b, w in random_edges(200, 500, 3)]
    edges += [(b, a, w + 0.1) for a, b, w in edges[:50]]
    seen = []

    def recording(n, ends, weight, *rest):
        seen.append((n, ends.tolist(), weight.tolist()))
        return leiden(n, ends, weight, *rest)

    monkeypatch.setattr("graphrag_ray.graph.seeded_partition.leiden", recording)
    build(200, edges)
    first, seen = seen, []
    build(200, random.Random(1).sample(edges, len(edges)))
    assert len(first) > 10
    assert seen == first


def test_the_order_of_entities_does_not_matter():
    """Node numbers follow ids, so communities do not depend on the order of rows."""
    edges = random_edges(200, 500, 3)
    weight = np.array([w for *_, w in edges], dtype=float)

    def titles(seed):
        rename = np.random.default_rng(seed).permutation(200)
        name = [f"NAME {i}" for i in rename]
        ids = sorted(entity_id(t) for t in name)
        title = {entity_id(t): t for t in name}
        back = {f"NAME {v}": v for v in range(200)}
        source, target = (np.array([ids.index(entity_id(f"NAME {e[i]}")) for e in edges]) for i in (0, 1))
        h = build_communities(200, source, target, weight, DEFAULT)
        return [
            [back[title[ids[node]]] for node in h.node_at_place[h.start[c] : h.end[c]]]
            for c in range(h.n_communities)
        ]

    assert titles(1) == titles(2)


def test_two_cliques_with_a_bridge_are_two_communities():
    edges = [*clique(range(8)), *clique(range(8, 16)), (0, 8)]
    for options in (
        DEFAULT,
        *(Communities(library="leidenalg", quality=q) for q in ("modularity", "surprise")),
    ):
        assert at(build(16, edges, options), 0) == [list(range(8)), list(range(8, 16))]


def test_leiden_runs_within_every_large_community():
    """Modularity merges small cliques of a large graph (resolution limit), but not those of a subgraph."""
    ring = cliques(60, size=4)
    h = build(240, ring, Communities(max_size=5))
    assert h.n_levels == 2
    assert 10 < len(at(h, 0)) < 60
    assert sorted(map(tuple, at(h, 1))) == [tuple(range(i * 4, i * 4 + 4)) for i in range(60)]
    whole = build(240, ring, Communities(max_size=1000))
    assert whole.n_levels == 1
    assert at(whole, 0) == at(h, 0)


def test_weights_determine_communities():
    edges = [(0, 1, 9), (1, 2, 1), (2, 3, 9), (3, 0, 1)]
    assert at(build(4, edges, Communities(pack_components_below=1, max_size=4)), 0) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("quality", ["modularity", "cpm", "rb_configuration", "significance", "surprise"])
def test_every_quality_function_of_leidenalg_gives_a_hierarchy(quality):
    options = Communities(library="leidenalg", quality=quality, resolution=0.2 if quality == "cpm" else 1.0)
    one, two = (build(120, cliques(20), options) for _ in range(2))
    assert same(one, two)
    assert sorted(node for g in at(one, 0) for node in g) == list(range(120))
    assert one.n_communities > 1


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_graph_without_an_edge_has_a_hierarchy(n):
    h = build(n, [])
    assert at(h, 0) == ([list(range(n))] if n else [])
    assert h.packed.tolist() == ([n > 1] if n else [])
    assert h.modularity == 0.0
    assert [len(a) for a in sort_edges_by_community(h, np.zeros(0, int), np.zeros(0, int))] == [0, 0]


def test_single_small_component_is_an_ordinary_community():
    h = build(6, clique(range(3)) + clique(range(3, 6)) + [(0, 3)], Communities(max_size=4))
    assert at(h, 0) == [list(range(6))]
    assert not h.packed.any()
    assert at(h, 1) == [[0, 1, 2], [3, 4, 5]]


def test_self_loops_and_weightless_edges_connect_nothing():
    h = build(4, [(0, 1), (2, 2, 5), (1, 2, 0), (2, 3)], pack_tokens=2)
    assert at(h, 0) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("edge", [(0, 1, -1), (0, 1, float("nan")), (0, 2, 1), (-1, 0, 1)])
def test_invalid_edges_are_rejected(edge):
    with pytest.raises(ValueError, match=r"weights|Edge ends"):
        build(2, [edge])


def test_components_largest_uses_only_the_largest_component():
    h = build(30, clique(range(3, 15)) + clique(range(20, 25)), Communities(components="largest"))
    assert at(h, 0) == [list(range(3, 15))]
    assert h.community_of(0)[[0, 3, 20]].tolist() == [-1, 0, -1]
    assert h.modularity == pytest.approx(0.0)


def test_modularity_refers_to_level_zero():
    edges = random_edges(300, 900, 1)
    h = build(300, edges, Communities(pack_components_below=1))
    graph = igraph.Graph(n=300, edges=[e[:2] for e in edges])
    expected = graph.modularity(h.community_of(0).tolist(), weights=[w for *_, w in edges])
    assert h.modularity == pytest.approx(expected)
    assert h.modularity > 0.3


def keyed(titles):
    """Sorted ids, edges and packs of small components with two nodes each."""
    ids = sorted(entity_id(f"{t} {i}") for t in titles for i in "ab")
    place = {id_: i for i, id_ in enumerate(ids)}
    edges = [(place[entity_id(f"{t} a")], place[entity_id(f"{t} b")]) for t in titles]
    h = build(len(ids), edges, node_keys=id_hash64(pa.array(ids)), pack_tokens=40)
    return {frozenset(ids[node] for node in group) for group in at(h, 0)}, h


def test_small_components_share_packs_within_the_budget():
    packs, h = keyed([f"T{i}" for i in range(300)])
    assert h.packed.all()
    assert all(len(p) <= 40 and len(p) % 2 == 0 for p in packs)
    assert len(packs) < 45


@pytest.mark.parametrize("new", ["ONE MORE", "ANOTHER", "THIRD"])
def test_additional_small_component_changes_few_packs(new):
    titles = [f"T{i}" for i in range(300)]
    before, after = keyed(titles)[0], keyed([*titles, new])[0]
    assert 1 <= len(after - before) <= 4


def test_pack_size_is_limited_by_node_tokens():
    h = build(6, [(0, 1)], node_tokens=np.array([10, 10, 50, 1, 1, 1]), pack_tokens=25)
    tokens = [sum([10, 10, 50, 1, 1, 1][node] for node in group) for group in at(h, 0)]
    assert sorted(tokens)[-1] == 50
    assert all(t <= 25 for t in sorted(tokens)[:-1])


def test_small_components_do_not_affect_others():
    edges = random_edges(300, 700, 2)
    # New nodes get the highest numbers, so the others remain in the same order.
    one, two = build(300, edges), build(305, [*edges, (301, 302)])
    large = [at(h, k) for h in (one, two) for k in range(4)]
    kept = [[g for g in level if len(g) > 3] for level in large]
    assert [g for g in kept[0] if max(g) < 300] == [g for g in kept[4] if max(g) < 300]
    assert [g for g in kept[2] if max(g) < 300] == [g for g in kept[6] if max(g) < 300]


def test_igraph_generator_is_restored():
    random.seed(5)
    state = random.getstate()
    build(300, random_edges(300, 900, 1))
    assert random.getstate() == state
    expected = igraph.Graph.Erdos_Renyi(50, 0.1).get_edgelist()
    random.setstate(state)
    with suppress(KeyError), seeded_igraph(1):
        igraph.Graph.Erdos_Renyi(50, 0.1)
        raise KeyError
    assert igraph.Graph.Erdos_Renyi(50, 0.1).get_edgelist() == expected


def test_random_state_does_not_matter():
    edges = np.array([e[:2] for e in random_edges(200, 400, 4)])
    weight = np.ones(len(edges))
    with seeded_igraph(1) as generator:
        one = leiden(200, edges, weight, DEFAULT, generator)
        leiden(50, edges[edges.max(axis=1) < 50], weight[edges.max(axis=1) < 50], DEFAULT, generator)
        assert np.array_equal(one, leiden(200, edges, weight, DEFAULT, generator))


def test_seed_affects_communities():
    edges = random_edges(300, 500, 5)
    found = [build(300, edges, Communities(seed=s)) for s in (1, 1, 2, 3)]
    assert same(found[0], found[1])
    assert not (same(found[0], found[2]) and same(found[0], found[3]))


@given(graphs(), options)
def test_edges_inside_any_community_are_a_range(graph, options):
    n, edges = graph
    h = build(n, edges, options)
    source, target = (np.array([e[i] for e in edges], dtype=np.int64) for i in (0, 1))
    order, community = sort_edges_by_community(h, source, target)
    in_order = community[order]
    assert sorted(order.tolist()) == list(range(len(edges)))
    assert all(a < b for a, b, x, y in zip(order, order[1:], in_order, in_order[1:], strict=False) if x == y)
    for c in range(h.n_communities):
        low, high = np.searchsorted(in_order, [c, h.subtree_end[c]])
        inside = set(members(h, c))
        assert set(order[low:high].tolist()) == {
            i for i, e in enumerate(edges) if e[0] in inside and e[1] in inside
        }


@pytest.mark.timeout(60)
def test_a_hundred_thousand_edges_take_seconds():
    rng = np.random.default_rng(0)
    source = rng.integers(0, 30_000, 100_000)
    target = np.where(rng.random(100_000) < 0.8, source // 100 * 100 + rng.integers(0, 100, 100_000), 0)
    target = np.where(target == 0, rng.integers(0, 30_000, 100_000), np.minimum(target, 29_999))
    h = build_communities(30_000, source, target, np.ones(100_000), DEFAULT)
    order, _ = sort_edges_by_community(h, source, target)
    assert len(order) == 100_000
    assert (
        h.sizes()[h.communities_at_level(0)].sum()
        == h.sizes()[h.communities_at_level(h.n_levels - 1)].sum()
        == 30_000
    )
