"""Communities: Leiden, and inside every community again (paper 3.1.4).

Level 0 is the partition of the graph; a community with more than `max_size` members is split by a run
of Leiden over the subgraph of its members, until it is small enough or comes back whole. Each of these
runs is one of its own, with its own total weight, as in the paper: one run over the disjoint union of
all subgraphs of a level would be a single call, but modularity's null model would then take its total
weight from the union, which lowers the expected weight inside each part and merges what Leiden on the
part alone keeps apart. Separate runs are cheap (some 60 µs for 30 nodes) when the subgraphs are cut out
by slices. They also start from the same seed, so that a community whose members and edges did not change
is split as before, whatever happened elsewhere.

Small components would fill C0 with communities of one or two nodes, each with a report. They are left
out of Leiden (hence a new one does not disturb the rest) and packed, several to a community.

The same graph gives the same hierarchy: edges are sorted before every run, and nodes are numbered in
the order of their ids.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.arrays import Ints
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.graph.hierarchy import Hierarchy, number_depth_first
from graphrag_ray.graph.leiden import Floats, components, leiden, seeded_igraph
from graphrag_ray.ids import stable_id
from graphrag_ray.settings import Communities


@dataclass(frozen=True, slots=True)
class _Edges:
    """ends [E, 2] with ends[:, 0] < ends[:, 1], sorted; weight [E], all above 0."""

    ends: npt.NDArray[np.int64]
    weight: Floats

    def __getitem__(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice) -> _Edges:
        return _Edges(self.ends[rows], self.weight[rows])

    def inside(self, label: Ints) -> npt.NDArray[np.bool_]:
        """Edges whose two ends have the same label, -1 being none."""
        one, other = label[self.ends[:, 0]], label[self.ends[:, 1]]
        together: npt.NDArray[np.bool_] = (one == other) & (one >= 0)
        return together


def communities(
    n_nodes: int,
    source: Ints,
    target: Ints,
    weight: Floats,
    options: Communities,
    node_tokens: Ints | None = None,
    pack_tokens: int = 8000,
    initial: Ints | None = None,
    node_keys: npt.NDArray[np.uint64] | None = None,
) -> Hierarchy:
    """The hierarchy of communities of an undirected graph.

    source, target, weight  [E] node numbers 0…n_nodes-1 (in id order) and weights, in any order.
                            Self-loops and edges of weight 0 connect nothing and are passed over
    node_tokens             [N] tokens each node brings to a report; None: 1 each
    pack_tokens             small components share a community up to so many
    initial                 [N] a partition to start level 0 from (the parent snapshot's), -1: unknown
    node_keys               [N] the first 64 bits of each node's id (`arrays.id_prefixes`). Packs are cut by
                            these, so that one more small component changes few of them; None: the node
                            numbers, which shift when nodes are added

    Components with fewer than `options.small_component` nodes share packed communities at level 0, whole
    and by their smallest node; one that is alone in its pack is a community like others. With
    `components: largest` the nodes outside of the largest component (ties: that of the smallest node)
    are in no community.

    Raises ValueError for weights that are negative or not finite and for ends that are no node.
    """
    edges = _canonical(n_nodes, source, target, weight)
    component = components(n_nodes, edges.ends)
    if options.components == "largest" and n_nodes:
        largest = np.bincount(component).argmax()
        component = np.where(component == largest, 0, -1)
    tokens = (
        np.ones(n_nodes, dtype=np.int64) if node_tokens is None else np.asarray(node_tokens, dtype=np.int64)
    )
    keys = np.arange(n_nodes, dtype=np.uint64) if node_keys is None else node_keys
    label, packed = _pack(component, options.small_component, tokens, keys, pack_tokens)
    with seeded_igraph(options.seed) as generator:
        # Where there is no label yet but a component, Leiden decides.
        large = (label < 0) & (component >= 0)
        label[large] = len(packed) + _top(large, edges, options, generator, initial)
        n_top = int(label.max(initial=-1)) + 1
        modularity = _modularity(label, edges)
        packed = np.concatenate([packed, np.zeros(n_top - len(packed), dtype=np.bool_)])
        leaf, parent, level = _split(label, packed, edges, options, generator)
    packed = np.concatenate([packed, np.zeros(len(parent) - n_top, dtype=np.bool_)])
    return number_depth_first(leaf, parent, level, packed, modularity)


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


def _canonical(n_nodes: int, source: Ints, target: Ints, weight: Floats) -> _Edges:
    ends = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1).astype(np.int64)
    weight = np.asarray(weight, dtype=np.float64)
    if len(ends) and (ends.min() < 0 or ends.max() >= n_nodes):
        raise ValueError(f"an edge ends outside of the {n_nodes} nodes")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError("edge weights must be finite and not negative")
    connects = (ends[:, 0] != ends[:, 1]) & (weight > 0)
    ends, weight = ends[connects], weight[connects]
    key = ends[:, 0] * n_nodes + ends[:, 1]
    order = np.argsort(key)
    if (np.diff(key[order]) == 0).any():  # parallel edges: their order must not matter either
        order = np.lexsort((weight, key))
    return _Edges(ends[order], weight[order])


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


def _top(
    large: npt.NDArray[np.bool_],
    edges: _Edges,
    options: Communities,
    generator: random.Random,
    initial: Ints | None,
) -> Ints:
    """Level 0 of the nodes of large components: Leiden over all of these at once."""
    nodes = np.flatnonzero(large)
    local = np.cumsum(large) - 1
    among = edges[large[edges.ends[:, 0]]] if len(nodes) < len(large) else edges
    ends = local[among.ends] if len(nodes) < len(large) else among.ends
    start = None
    if initial is not None:
        # A community of then may have lost the edges that held it together: start from its pieces.
        # Unknown nodes are pieces of their own.
        known = _Edges(ends, among.weight).inside(np.asarray(initial, dtype=np.int64)[nodes])
        start = components(len(nodes), ends[known])
    return leiden(len(nodes), ends, among.weight, options, generator, start)


def _split(
    label: Ints,
    packed: npt.NDArray[np.bool_],
    edges: _Edges,
    options: Communities,
    generator: random.Random,
) -> tuple[Ints, Ints, Ints]:
    """Split communities level by level. label [N]: level 0. Returns (leaf [N], parent [C], level [C])."""
    limit = options.max_size or 1
    leaf = label.copy()
    parents = [np.full(len(packed), -1, dtype=np.int64)]
    candidates = np.flatnonzero((np.bincount(leaf[leaf >= 0], minlength=len(packed)) > limit) & ~packed)
    n = len(packed)
    while len(candidates):
        edges = edges[edges.inside(_only(leaf, candidates, n))]
        nodes, bounds, local = _group(_only(leaf, candidates, n))
        group = np.searchsorted(candidates, leaf[edges.ends[:, 0]])
        edges = edges[np.argsort(group, kind="stable")]
        edge_bounds = np.searchsorted(np.sort(group), np.arange(len(candidates) + 1))
        ends = local[edges.ends]
        born: list[int] = []
        first = n
        for i, community in enumerate(candidates.tolist()):
            members = nodes[bounds[i] : bounds[i + 1]]
            cut = slice(edge_bounds[i], edge_bounds[i + 1])
            part = leiden(len(members), ends[cut], edges.weight[cut], options, generator)
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


def _only(leaf: Ints, candidates: Ints, n: int) -> Ints:
    """[N] the community of each node where it is a candidate, else -1."""
    is_candidate = np.zeros(n + 1, dtype=np.bool_)
    is_candidate[candidates] = True  # place n, hence -1, stays False
    return np.where(is_candidate[leaf], leaf, -1)


def _group(label: Ints) -> tuple[Ints, Ints, Ints]:
    """Nodes with a label, grouped by it: (nodes, bounds of groups, [N] place of each node in its group)."""
    nodes = np.flatnonzero(label >= 0)
    nodes = nodes[np.argsort(label[nodes], kind="stable")]
    bounds = np.append(np.flatnonzero(np.diff(label[nodes], prepend=-1)), len(nodes))
    local = np.zeros(len(label), dtype=np.int64)
    local[nodes] = np.arange(len(nodes)) - np.repeat(bounds[:-1], np.diff(bounds))
    return nodes, bounds, local


def _modularity(label: Ints, edges: _Edges) -> float:
    """Weighted modularity (Newman 2004) of a partition; nodes labelled -1 do not belong to the graph."""
    ends, weight = edges.ends, edges.weight
    belongs = label[ends[:, 0]] >= 0
    ends, weight = ends[belongs], weight[belongs]
    total = float(weight.sum())
    if total == 0:
        return 0.0
    strength = np.bincount(label[ends].ravel(), weights=np.repeat(weight, 2))
    inside = weight[label[ends[:, 0]] == label[ends[:, 1]]].sum()
    return float(inside / total - ((strength / (2 * total)) ** 2).sum())
