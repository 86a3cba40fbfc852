"""Communities: Leiden, and inside every community again (paper 3.1.4).

Level 0 is the partition of the graph; a community with more than `max_size` members is split by a run of
Leiden over the subgraph of its members, until it is small enough or comes back whole. Each run is one of its
own, as in the paper: modularity's null model over the disjoint union of all subgraphs would merge what Leiden
on a part alone keeps apart. All runs start from the same seed, so a community whose members and edges did not
change is split as before, whatever happened elsewhere.

Small components would fill C0 with communities of one or two nodes, each with a report. They are left out of
Leiden and packed, several to a community. The same graph gives the same hierarchy: edges are sorted before
every run, and nodes are numbered in the order of their ids.
"""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.index_settings import Communities
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.graph.hierarchy import Hierarchy, number_depth_first
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Edges, Floats, canonical, components, modularity, seeded_igraph
from graphrag_ray.graph.seeds import Past, Seeds, divide


def communities(
    n_nodes: int,
    source: Ints,
    target: Ints,
    weight: Floats,
    options: Communities,
    node_tokens: Ints | None = None,
    pack_tokens: int = 8000,
    past: Past | None = None,
    node_keys: npt.NDArray[np.uint64] | None = None,
) -> Hierarchy:
    """The hierarchy of communities of an undirected graph.

    source, target, weight  [E] node numbers 0…n_nodes-1 (in id order) and weights, in any order.
                            Self-loops and edges of weight 0 connect nothing and are passed over
    node_tokens             [N] tokens each node brings to a report; None: 1 each
    pack_tokens             small components share a community up to so many
    past                    the graph before this one and its hierarchy, to change as little as may be
    node_keys               [N] the first 64 bits of each node's id, by which `past` is matched and packs
                            are cut, so that one more small component changes few; None: node numbers

    Components with fewer than `options.small_component` nodes share packed communities at level 0, whole and
    by their smallest node. With `components: largest` the nodes outside of the largest component are in no
    community. Raises ValueError for weights that are negative or not finite and for ends that are no node.
    """
    edges = canonical(n_nodes, source, target, weight)
    component = components(n_nodes, edges.ends)
    if options.components == "largest" and n_nodes:
        largest = np.bincount(component).argmax()
        component = np.where(component == largest, 0, -1)
    tokens = (
        np.ones(n_nodes, dtype=np.int64) if node_tokens is None else np.asarray(node_tokens, dtype=np.int64)
    )
    keys = np.arange(n_nodes, dtype=np.uint64) if node_keys is None else node_keys
    label, packed = _pack(component, options.small_component, tokens, keys, pack_tokens)
    seeds = None if past is None else Seeds(past, n_nodes, keys, edges)
    # Where there is no label yet but a component, Leiden decides: level 0, all large components at once.
    large = (label < 0) & (component >= 0)
    nodes, inside = np.flatnonzero(large), np.flatnonzero(large[edges.ends[:, 0]])
    among = Edges((np.cumsum(large) - 1)[edges.ends[inside]], edges.weight[inside])
    seed = None
    if seeds is not None and len(nodes):
        seed = seeds.for_level(-1, np.where(large, 0, -1), 1, inside).of(0, nodes)
    n_packs = len(packed)

    def quality(part: Ints) -> float:
        """Of the whole level, packs included."""
        label[nodes] = n_packs + part
        return modularity(label, edges)

    with seeded_igraph(options.seed) as generator:
        label[nodes] = n_packs + divide(len(nodes), among, seed, options, generator, quality)
        n_top = int(label.max(initial=-1)) + 1
        packed = np.concatenate([packed, np.zeros(n_top - n_packs, dtype=np.bool_)])
        leaf, parent, level = _split(label, packed, edges, options, generator, seeds)
    packed = np.concatenate([packed, np.zeros(len(parent) - n_top, dtype=np.bool_)])
    return number_depth_first(leaf, parent, level, packed, modularity(label, edges))


def edge_order(hierarchy: Hierarchy, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Sort edges by the smallest community that holds both ends.

    Returns (order [E], community [E]): community of each edge as given, -1 where none holds both ends, and
    the permutation that sorts edges by it, those of one community in the order they came in. The edges
    inside community c, at any depth, are then a range: those of `order` whose community is in
    c…hierarchy.last[c]-1.
    """
    community = np.full(len(source), -1, dtype=np.int64)
    together = np.arange(len(source))
    for level in range(hierarchy.n_levels):
        of = hierarchy.community_of(level)
        here = of[source[together]]
        same = (here == of[target[together]]) & (here >= 0)
        together = together[same]  # what is apart at one level is apart below it
        community[together] = here[same]
    return np.argsort(community, kind="stable").astype(np.int64), community


def _pack(
    component: Ints,
    small_component: int,
    tokens: Ints,
    keys: npt.NDArray[np.uint64],
    pack_tokens: int,
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Label the nodes of small components with their packs: (label [N], -1 elsewhere; for each pack
    whether it holds more than one component)."""
    inside = np.flatnonzero(component >= 0)
    of = component[inside]
    small = np.flatnonzero(np.bincount(of) < small_component)  # by their smallest nodes
    label = np.full(len(component), -1, dtype=np.int64)
    if len(small) == 0:
        return label, np.zeros(0, dtype=np.bool_)
    _, first = np.unique(of, return_index=True)
    hashes = [stable_id("component", f"{key:016x}") for key in keys[inside[first[small]]].tolist()]
    sizes = np.bincount(of, weights=tokens[inside]).astype(np.int64)[small]
    batches = stable_batches(hashes, sizes.tolist(), pack_tokens)
    counts = np.array([len(b) for b in batches], dtype=np.int64)
    pack = np.full(int(of.max()) + 1, -1, dtype=np.int64)
    pack[small] = np.repeat(np.arange(len(counts)), counts)
    label[inside] = pack[of]
    return label, counts > 1


def _split(
    label: Ints,
    packed: npt.NDArray[np.bool_],
    edges: Edges,
    options: Communities,
    generator: random.Random,
    seeds: Seeds | None,
) -> tuple[Ints, Ints, Ints]:
    """Split communities level by level, each from its division of then where there is one.

    label [N]: level 0. Returns (leaf [N], parent [C], level [C]).
    """
    leaf, limit = label.copy(), options.max_size or 1
    parents = [np.full(len(packed), -1, dtype=np.int64)]
    candidates = np.flatnonzero((np.bincount(leaf[leaf >= 0], minlength=len(packed)) > limit) & ~packed)
    n = len(packed)
    inside = np.arange(len(edges))
    while len(candidates):
        # Each node's community by its place among the candidates; -1 for all others.
        place = np.full(n + 1, -1, dtype=np.int64)
        place[candidates] = np.arange(len(candidates))  # place n, hence -1, has none
        of = place[leaf]
        inside = inside[edges[inside].inside(of)]
        at_level = None if seeds is None else seeds.for_level(len(parents) - 1, of, len(candidates), inside)
        # Nodes and edges by community, nodes numbered within theirs.
        nodes = np.flatnonzero(of >= 0)
        nodes = nodes[np.argsort(of[nodes], kind="stable")]
        bounds = np.searchsorted(of[nodes], np.arange(len(candidates) + 1))
        local = np.zeros(len(of), dtype=np.int64)
        local[nodes] = np.arange(len(nodes)) - np.repeat(bounds[:-1], np.diff(bounds))
        of_edge = of[edges.ends[inside, 0]]
        in_order = edges[inside[np.argsort(of_edge, kind="stable")]]
        ends, edge_bounds = (
            local[in_order.ends],
            np.searchsorted(np.sort(of_edge), np.arange(len(candidates) + 1)),
        )
        born: list[int] = []
        first = n
        for c, community in enumerate(candidates.tolist()):
            members = nodes[bounds[c] : bounds[c + 1]]
            cut = slice(edge_bounds[c], edge_bounds[c + 1])
            among = Edges(ends[cut], in_order.weight[cut])
            seed = None if at_level is None else at_level.of(c, members)
            quality = partial(modularity, edges=among)
            part = divide(len(members), among, seed, options, generator, quality)
            k = int(part.max()) + 1
            if k > 1:
                leaf[members] = n + part
                born.extend([community] * k)
                n += k
        parents.append(np.array(born, dtype=np.int64))
        sizes = np.bincount(leaf[leaf >= first] - first, minlength=n - first)
        candidates = first + np.flatnonzero(sizes > limit)
    level = np.repeat(np.arange(len(parents)), [len(p) for p in parents])
    return leaf, np.concatenate(parents), level
