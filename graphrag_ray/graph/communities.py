"""Detect communities with Leiden, recursively within every large community (paper 3.1.4).

Level 0 partitions the graph. A community larger than `max_size` is split by a separate Leiden run over its
subgraph. A single run over all subgraphs would use a different null model of modularity and merge groups that
separate runs distinguish. All runs use the same seed and sorted edges, so a community with the same members
and edges is always split in the same way.
"""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.index_settings import Communities
from graphrag_ray.graph.hierarchy import Hierarchy, number_depth_first
from graphrag_ray.graph.integer_arrays import Bools, Floats, Ints
from graphrag_ray.graph.leiden import (
    Edges,
    canonical_edges,
    connected_components,
    modularity,
    seeded_igraph,
    subgraphs,
)
from graphrag_ray.graph.seeded_partition import PreviousPartition, Seeds, divide
from graphrag_ray.graph.stable_batches import stable_batches


def build_communities(
    n_nodes: int,
    source: Ints,
    target: Ints,
    weight: Floats,
    options: Communities,
    node_tokens: Ints | None = None,
    pack_tokens: int = 8000,
    previous: PreviousPartition | None = None,
    node_keys: npt.NDArray[np.uint64] | None = None,
) -> Hierarchy:
    """Build the hierarchy of communities of an undirected graph.

    Components with fewer than `options.pack_components_below` nodes are not worth a report each. They are
    excluded from Leiden and packed into shared communities of level 0. With `components: largest`, nodes
    outside the largest component are in no community.

    Args:
        n_nodes: Number of nodes.
        source, target, weight: [E] edges in any order. Self-loops and edges of weight 0 are dropped.
        node_tokens: [N] tokens that each node adds to a report. None counts 1 per node.
        pack_tokens: Maximum total tokens of the small components in a pack.
        previous: The previous graph and its hierarchy, to minimise changes.
        node_keys: [N] first 64 bits of each node's id. They match nodes with `previous` and determine the
            boundaries of packs, so that a new small component changes few packs. None uses node numbers.

    Raises:
        ValueError: If a weight is negative or not finite, or an end is not a node.
    """
    edges = canonical_edges(n_nodes, source, target, weight)
    component = connected_components(n_nodes, edges.ends)
    if options.components == "largest" and n_nodes:
        component = np.where(component == np.bincount(component).argmax(), 0, -1)
    tokens = np.ones(n_nodes) if node_tokens is None else np.asarray(node_tokens)
    keys = np.arange(n_nodes, dtype=np.uint64) if node_keys is None else node_keys
    label, packed = _pack(
        component, options.pack_components_below, tokens.astype(np.int64), keys, pack_tokens
    )
    seeds = None if previous is None else Seeds(previous, n_nodes, keys, edges)
    # For level 0, a single Leiden run divides all components that were not packed.
    large = (label < 0) & (component >= 0)
    ((nodes, subgraph),) = subgraphs(np.where(large, 0, -1), 1, edges)
    inside = np.flatnonzero(large[edges.ends[:, 0]])
    seed = None
    if seeds is not None and len(nodes):
        seed = seeds.for_level(-1, np.where(large, 0, -1), 1, inside).of(0, nodes)
    n_packs = len(packed)

    def quality(part: Ints) -> float:
        """Return the modularity of the whole level, packs included."""
        label[nodes] = n_packs + part
        return modularity(label, edges)

    with seeded_igraph(options.seed) as generator:
        label[nodes] = n_packs + divide(len(nodes), subgraph, seed, options, generator, quality)
        n_top = int(label.max(initial=-1)) + 1
        packed = np.concatenate([packed, np.zeros(n_top - n_packs, dtype=np.bool_)])
        leaf, parent, level = _split(label, packed, edges, options, generator, seeds)
    packed = np.concatenate([packed, np.zeros(len(parent) - n_top, dtype=np.bool_)])
    return number_depth_first(leaf, parent, level, packed, modularity(label, edges))


def sort_edges_by_community(hierarchy: Hierarchy, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Sort edges by the smallest community that contains both ends.

    The edges inside community c, at any depth, then form a range: their communities are
    c…hierarchy.subtree_end[c]-1.

    Returns:
        (order [E], community [E]): the permutation that sorts the edges, stable within a community, and the
        community of each edge in the original order, -1 if no community contains both ends.
    """
    community = np.full(len(source), -1, dtype=np.int64)
    remaining = np.arange(len(source))
    for level in range(hierarchy.n_levels):
        node_community = hierarchy.community_of(level)
        edge_community = node_community[source[remaining]]
        is_inside = (edge_community == node_community[target[remaining]]) & (edge_community >= 0)
        remaining = remaining[is_inside]  # ends separated at one level are separated below it
        community[remaining] = edge_community[is_inside]
    return np.argsort(community, kind="stable").astype(np.int64), community


def _pack(
    component: Ints, pack_components_below: int, tokens: Ints, keys: npt.NDArray[np.uint64], pack_tokens: int
) -> tuple[Ints, Bools]:
    """Return the pack of each node (-1 outside small components), and a mask of multi-component packs."""
    inside = np.flatnonzero(component >= 0)
    node_component = component[inside]
    small = np.flatnonzero(np.bincount(node_component) < pack_components_below)  # by smallest node
    label = np.full(len(component), -1, dtype=np.int64)
    if len(small) == 0:
        return label, np.zeros(0, dtype=np.bool_)
    _, first = np.unique(node_component, return_index=True)
    hashes = [stable_id("component", f"{key:016x}") for key in keys[inside[first[small]]].tolist()]
    sizes = np.bincount(node_component, weights=tokens[inside]).astype(np.int64)[small]
    counts = np.array([len(b) for b in stable_batches(hashes, sizes.tolist(), pack_tokens)], dtype=np.int64)
    pack = np.full(int(node_component.max()) + 1, -1, dtype=np.int64)
    pack[small] = np.repeat(np.arange(len(counts)), counts)
    label[inside] = pack[node_component]
    return label, counts > 1


def _split(
    label: Ints,
    packed: Bools,
    edges: Edges,
    options: Communities,
    generator: random.Random,
    seeds: Seeds | None,
) -> tuple[Ints, Ints, Ints]:
    """Split the communities of level 0 (`label` [N]) recursively. Returns leaf [N], parent [C], level [C]."""
    leaf, limit = label.copy(), options.max_size or 1
    parents = [np.full(len(packed), -1, dtype=np.int64)]
    candidates = np.flatnonzero((np.bincount(leaf[leaf >= 0], minlength=len(packed)) > limit) & ~packed)
    n = len(packed)
    inside = np.arange(len(edges))
    while len(candidates):
        # The position of each node's community among the candidates, or -1.
        position = np.full(n + 1, -1, dtype=np.int64)
        position[candidates] = np.arange(len(candidates))
        candidate = position[leaf]
        inside = inside[edges[inside].inside(candidate)]
        level_seeds = seeds.for_level(len(parents) - 1, candidate, len(candidates), inside) if seeds else None
        new_parents: list[int] = []
        first = n
        for c, (members, subgraph) in enumerate(subgraphs(candidate, len(candidates), edges[inside])):
            seed = level_seeds.of(c, members) if level_seeds else None
            quality = partial(modularity, edges=subgraph)
            part = divide(len(members), subgraph, seed, options, generator, quality)
            k = int(part.max()) + 1
            if k > 1:
                leaf[members] = n + part
                new_parents += [int(candidates[c])] * k
                n += k
        parents.append(np.array(new_parents, dtype=np.int64))
        sizes = np.bincount(leaf[leaf >= first] - first, minlength=n - first)
        candidates = first + np.flatnonzero(sizes > limit)
    level = np.repeat(np.arange(len(parents)), [len(p) for p in parents])
    return leaf, np.concatenate(parents), level
