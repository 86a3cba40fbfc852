"""Communities by Leiden, and by Leiden again within every large community (paper 3.1.4).

Level 0 partitions the graph. A community above `max_size` is split by a Leiden run over its own subgraph: the
null model of modularity over all subgraphs at once would merge what separate runs keep apart. All runs use
the same seed and sorted edges, so a community whose members and edges did not change is split as before.
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

    Components with fewer than `options.pack_components_below` nodes would each get a report. They are left
    out of
    Leiden and packed, several to a community of level 0. With `components: largest`, nodes outside the
    largest component are in no community.

    Args:
        n_nodes: Number of nodes.
        source, target, weight: [E] edges in any order. Self-loops and edges of weight 0 are ignored.
        node_tokens: [N] tokens that each node adds to a report; None counts 1 each.
        pack_tokens: Maximum tokens of small components that share a community.
        previous: The previous graph and its hierarchy, to change as little as possible.
        node_keys: [N] first 64 bits of each node's id, by which `previous` is matched and packs are cut, so
            that another small component changes few of them; None uses node numbers.

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
    # Leiden divides the unlabelled components: all large ones at once for level 0.
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
    """Sort edges by the smallest community that holds both ends.

    The edges inside community c, at any depth, then form a range: those whose community is in
    c…hierarchy.subtree_end[c]-1.

    Returns:
        (order [E], community [E]): the permutation that sorts the edges, stable within a community, and the
        community of each edge as given, -1 if none holds both ends.
    """
    community = np.full(len(source), -1, dtype=np.int64)
    together = np.arange(len(source))
    for level in range(hierarchy.n_levels):
        of_node = hierarchy.community_of(level)
        here = of_node[source[together]]
        same = (here == of_node[target[together]]) & (here >= 0)
        together = together[same]  # ends apart at one level are apart below it
        community[together] = here[same]
    return np.argsort(community, kind="stable").astype(np.int64), community


def _pack(
    component: Ints, pack_components_below: int, tokens: Ints, keys: npt.NDArray[np.uint64], pack_tokens: int
) -> tuple[Ints, Bools]:
    """Return (pack of each node of a small component, else -1; whether a pack holds several components)."""
    inside = np.flatnonzero(component >= 0)
    of_node = component[inside]
    small = np.flatnonzero(np.bincount(of_node) < pack_components_below)  # by their smallest nodes
    label = np.full(len(component), -1, dtype=np.int64)
    if len(small) == 0:
        return label, np.zeros(0, dtype=np.bool_)
    _, first = np.unique(of_node, return_index=True)
    hashes = [stable_id("component", f"{key:016x}") for key in keys[inside[first[small]]].tolist()]
    sizes = np.bincount(of_node, weights=tokens[inside]).astype(np.int64)[small]
    counts = np.array([len(b) for b in stable_batches(hashes, sizes.tolist(), pack_tokens)], dtype=np.int64)
    pack = np.full(int(of_node.max()) + 1, -1, dtype=np.int64)
    pack[small] = np.repeat(np.arange(len(counts)), counts)
    label[inside] = pack[of_node]
    return label, counts > 1


def _split(
    label: Ints,
    packed: Bools,
    edges: Edges,
    options: Communities,
    generator: random.Random,
    seeds: Seeds | None,
) -> tuple[Ints, Ints, Ints]:
    """Split the communities of level 0 (`label` [N]) level by level: (leaf [N], parent [C], level [C])."""
    leaf, limit = label.copy(), options.max_size or 1
    parents = [np.full(len(packed), -1, dtype=np.int64)]
    candidates = np.flatnonzero((np.bincount(leaf[leaf >= 0], minlength=len(packed)) > limit) & ~packed)
    n = len(packed)
    inside = np.arange(len(edges))
    while len(candidates):
        # Each node's community by its position among the candidates; -1 for all others, leaf -1 included.
        position = np.full(n + 1, -1, dtype=np.int64)
        position[candidates] = np.arange(len(candidates))
        of_node = position[leaf]
        inside = inside[edges[inside].inside(of_node)]
        level_seeds = seeds.for_level(len(parents) - 1, of_node, len(candidates), inside) if seeds else None
        new_parents: list[int] = []
        first = n
        for c, (members, subgraph) in enumerate(subgraphs(of_node, len(candidates), edges[inside])):
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
