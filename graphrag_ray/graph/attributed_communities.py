"""Attributed communities: the hierarchy of ArchRAG (Wang et al. 2025, Algorithm 1) from links and embeddings.

Levels are built bottom-up from the entities. Nodes with similar embeddings are linked (augmentation), edges
are weighted by the cosine of their ends, and the graph is clustered. Each cluster becomes a node of the next
level, for which the caller writes and embeds a report. See docs/concepts/decisions/attributed-communities.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Attributed, Communities
from graphrag_ray.graph.communities import build_communities
from graphrag_ray.graph.hierarchy import Hierarchy, number_depth_first
from graphrag_ray.graph.integer_arrays import Bools, Floats, Ints
from graphrag_ray.graph.leiden import Edges, canonical_labels, connected_components
from graphrag_ray.graph.nearest_neighbours import Vectors, nearest_neighbours
from graphrag_ray.graph.seeded_partition import PreviousPartition
from graphrag_ray.graph.soft_clusters import split_to_size
from graphrag_ray.graph.spectral import spectral

MAX_CLUSTER_RATIO = 0.9  # a level with more clusters per node is the last one
MAX_NEIGHBOURS = 100  # maximum number of similarity links per node, however dense the graph is
_BLOCK_ROWS = 1 << 16  # number of edges whose vectors are in memory at a time
_BLOCK_PAIRS = 1 << 21  # number of pairs of edges examined at a time
_MIN_WEIGHT = 1e-4  # edge weights must be positive


@dataclass(frozen=True)
class ClusteredLevel:
    """The clustering of a level of n nodes."""

    edges: Edges  # the clustered graph: weighted links and similarity links
    inner: Hierarchy  # its leaves are the clusters, unless they were split again
    cluster: Ints  # [n] cluster of each node, 0…k-1 in the order of their smallest nodes
    packed: Bools  # [k] True for clusters of nodes without edges
    neighbours: int  # number of nearest neighbours that each node was linked to
    centres: Vectors | None = None  # cell centres of the neighbour search; None if all pairs were compared

    @property
    def links(self) -> Edges:
        """Links between clusters. Two clusters are linked if any of their members are."""
        clusters = self.cluster[self.edges.ends]
        return unit_edges(len(self.packed), clusters[:, 0], clusters[:, 1])


@dataclass(frozen=True)
class LevelNodes:
    """The nodes of a level to be clustered."""

    links: Edges
    vectors: Vectors  # [n, dimensions] of length 1, or zeros if unknown
    tokens: Ints  # [n] tokens that each node adds to a report, which limit the size of packs
    keys: npt.NDArray[np.uint64]  # [n] 64-bit identifiers
    previous: PreviousPartition | None = None  # the level in the previous snapshot, to minimise changes
    neighbours: int | None = None  # `ClusteredLevel.neighbours` in the previous snapshot
    centres: Vectors | None = None
    neighbours_below: int | None = None  # `ClusteredLevel.neighbours` of the level below; None for the first


def cluster_level(
    nodes: LevelNodes, options: Attributed, leiden: Communities, pack_tokens: int
) -> ClusteredLevel:
    """Cluster one level.

    Not in the paper: a node without a vector gets no similarity links, and its edges get the median weight.
    Nodes without edges share packs. A cluster above `options.max_size` is halved repeatedly.

    Raises:
        SettingsError: If the chosen clustering is not available.
    """
    neighbours, n_nodes = neighbour_count(nodes, options), len(nodes.keys)
    graph, centres = nodes.links, None
    if options.similarity_links != "none":
        near, cosines, centres = nearest_neighbours(nodes.vectors, neighbours, nodes.centres)
        if options.min_similarity > 0:
            near = np.where(cosines < options.min_similarity, -1, near)
        if options.similarity_links == "codicil":
            graph = codicil(n_nodes, nodes.links, nodes.vectors, near)
        else:
            ends = np.concatenate([nodes.links.ends, _neighbour_pairs(near)])
            graph = unit_edges(n_nodes, ends[:, 0], ends[:, 1])
    edges = with_cosine_weights(graph, nodes.vectors)
    if options.clustering == "leiden":
        # Pack only nodes without edges, and cluster all others.
        changes = {"max_size": options.max_size, "components": "all", "pack_components_below": 2}
        (source, target), leiden = edges.ends.T, leiden.model_copy(update=changes)
        inner = build_communities(
            n_nodes,
            source,
            target,
            edges.weight,
            leiden,
            nodes.tokens,
            pack_tokens,
            nodes.previous,
            nodes.keys,
        )
    else:
        if options.clustering == "scan":
            label = scan(n_nodes, edges, options.scan_epsilon, options.scan_min_neighbours)
        else:
            label = spectral(n_nodes, edges, max(1, n_nodes // options.max_size), leiden.seed)
        n = int(label.max(initial=-1)) + 1
        inner = number_depth_first(label, np.full(n, -1), np.zeros(n, np.int64), np.zeros(n, np.bool_), 0.0)
    cluster, packed = _split_large_leaves(inner, nodes.vectors, options.max_size)
    return ClusteredLevel(edges, inner, cluster, packed, neighbours, centres)


def has_next_level(n_nodes: int, n_clusters: int, options: Attributed) -> bool:
    """Return whether `n_clusters` clusters of `n_nodes` nodes can form another level."""
    return options.min_communities <= n_clusters <= MAX_CLUSTER_RATIO * n_nodes


def unit_edges(n_nodes: int, source: Ints, target: Ints) -> Edges:
    """Return the distinct edges with weight 1, without self-loops."""
    ends = np.sort(np.stack([source, target], axis=1), axis=1)
    ends = distinct_edges(ends[ends[:, 0] != ends[:, 1]], n_nodes)
    return Edges(ends, np.ones(len(ends)))


def stack_levels(
    n_nodes: int, clusters: Sequence[Ints], packed: Sequence[Bools]
) -> tuple[Hierarchy, list[Ints]]:
    """Combine the `cluster` and `packed` arrays of all levels, lowest first, into one hierarchy.

    Returns the hierarchy, in which level 0 is the topmost, and for each level the community of each cluster.
    `n_nodes` is the number of nodes of the lowest level.
    """
    n_levels = len(clusters)
    counts = [len(level) for level in packed]
    first = np.cumsum([0, *reversed(counts)])[:-1][::-1]  # communities are numbered from level 0 down
    parents = [np.zeros(0, dtype=np.int64)]
    for height in reversed(range(n_levels)):
        is_top = height + 1 == n_levels
        parents.append(np.full(counts[height], -1) if is_top else clusters[height + 1] + first[height + 1])
    hierarchy = number_depth_first(
        clusters[0] + first[0] if n_levels else np.full(n_nodes, -1),
        np.concatenate(parents).astype(np.int64),
        np.repeat(np.arange(n_levels), counts[::-1]).astype(np.int64),
        np.concatenate([np.zeros(0, dtype=np.bool_), *reversed(packed)]),
        0.0,
    )
    communities_by_level, cluster_of_node = [], np.arange(n_nodes)
    for height in range(n_levels):
        cluster_of_node = clusters[height][cluster_of_node]
        community = np.empty(counts[height], dtype=np.int64)
        community[cluster_of_node] = hierarchy.community_of(n_levels - 1 - height)
        communities_by_level.append(community)
    return hierarchy, communities_by_level


def neighbour_count(nodes: LevelNodes, options: Attributed) -> int:
    """Return `options.n_neighbours`, or the mean degree of linked nodes, which is at least 1.

    With `graph`, this is the mean degree of the first level. The number of the previous snapshot is reused if
    it is close, because another number would change the neighbours of every node.
    """
    if isinstance(options.n_neighbours, int):
        return min(options.n_neighbours, MAX_NEIGHBOURS)
    if options.n_neighbours == "graph" and nodes.neighbours_below is not None:
        return nodes.neighbours_below
    degree = np.bincount(nodes.links.ends.ravel(), minlength=len(nodes.keys))
    mean = float(degree[degree > 0].mean()) if len(nodes.links) else 1.0
    previous = nodes.neighbours
    default = previous if previous is not None and abs(previous - mean) < 1 else round(mean)
    return min(default, MAX_NEIGHBOURS)


def with_cosine_weights(edges: Edges, vectors: Vectors) -> Edges:
    """Weight every edge by the cosine of its ends. Edges with a cosine of 0 or less are removed."""
    weight = _cosines(edges.ends, vectors)
    known = np.asarray(vectors.any(axis=1))[edges.ends].all(axis=1)
    median = float(np.median(weight[known])) if known.any() else 1.0
    weight = np.where(known, weight, max(median, _MIN_WEIGHT))
    return Edges(edges.ends, weight)[weight > 0]


def _cosines(ends: Ints, vectors: Vectors) -> Floats:
    """[E] cosines of the ends, rounded because the last bits depend on the order of summation."""
    cosines = np.empty(len(ends))
    for start in range(0, len(ends), _BLOCK_ROWS):
        source, target = ends[start : start + _BLOCK_ROWS].T
        cosines[start : start + _BLOCK_ROWS] = np.einsum("ij,ij->i", vectors[source], vectors[target])
    return np.round(cosines, 4)


def _neighbour_pairs(near: Ints) -> Ints:
    """[P, 2] pairs of each row of `near` [N, k] and one of its neighbours."""
    pairs = np.stack([np.repeat(np.arange(len(near)), near.shape[1]), near.ravel()], axis=1)
    return pairs[pairs[:, 1] >= 0]


def _split_large_leaves(inner: Hierarchy, vectors: Vectors, max_size: int) -> tuple[Ints, Bools]:
    """Split leaves above `max_size`, except packs. Returns (cluster of each node, packed [clusters])."""
    leaf_community = inner.community_of(max(0, inner.n_levels - 1))
    leaf = canonical_labels(leaf_community)
    order = np.argsort(leaf, kind="stable")
    sizes = np.bincount(leaf)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    packed = inner.packed[leaf_community[order[bounds[:-1]] if len(sizes) else order]]
    n = len(sizes)
    for c in np.flatnonzero((sizes > max_size) & ~packed).tolist():
        for piece in split_to_size(order[bounds[c] : bounds[c + 1]], vectors, np.ones_like(leaf), max_size)[
            1:
        ]:
            leaf[piece] = n
            n += 1
    packed = np.concatenate([packed, np.zeros(n - len(packed), dtype=np.bool_)])
    cluster = canonical_labels(leaf)
    leaf_of_cluster = np.empty(n, dtype=np.int64)
    leaf_of_cluster[cluster] = leaf
    return cluster, packed[leaf_of_cluster]


def common_neighbours(n_nodes: int, ends: Ints) -> Ints:
    """[E] the number of common neighbours of the two ends of each edge.

    Every triangle is found once, at its node of smallest degree (Chiba and Nishizeki 1985; Latapy 2008).
    Edges point to the end of higher degree, so no node has more than sqrt(2 E) outgoing edges, and a hub with
    a hundred thousand leaves costs no more than its leaves. `ends` [E, 2] are distinct, without self-loops.
    """
    shared = np.zeros(len(ends), dtype=np.int64)
    degree = np.bincount(ends.ravel(), minlength=n_nodes)
    rank = np.empty(n_nodes, dtype=np.int64)
    rank[np.argsort(degree, kind="stable")] = np.arange(n_nodes)
    directed = np.sort(rank[ends], axis=1)
    key = directed[:, 0] * n_nodes + directed[:, 1]
    order = np.argsort(key)
    key, source, target = key[order], directed[order, 0], directed[order, 1]
    last = np.searchsorted(source, source, side="right")  # end of the edges that leave the same node
    n_partners = last - np.arange(len(ends)) - 1  # number of later edges that leave the same node
    offsets = np.concatenate([[0], np.cumsum(n_partners)])
    start = 0
    while start < len(ends):
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + _BLOCK_PAIRS, side="right")) - 1)
        first = np.repeat(np.arange(start, end), n_partners[start:end])
        second = first + 1 + np.arange(len(first)) - (offsets[first] - offsets[start])
        closing_key = target[first] * n_nodes + target[second]
        closing = np.minimum(np.searchsorted(key, closing_key), len(key) - 1)
        closed = key[closing] == closing_key
        for side in (first, second, closing):
            np.add.at(shared, order[side[closed]], 1)
        start = end
    return shared


def distinct_edges(ends: Ints, n_nodes: int) -> Ints:
    """[E, 2] the distinct edges in canonical order. Requires ends[:, 0] < ends[:, 1]."""
    key = np.unique(ends[:, 0] * n_nodes + ends[:, 1])
    return np.stack([key // max(n_nodes, 1), key % max(n_nodes, 1)], axis=1)


def codicil(n: int, edges: Edges, vectors: Vectors, near: Ints, alpha: float = 0.5) -> Edges:
    """CODICIL (Ruan, Fuhry, Parthasarathy 2013): add content links and sparsify the graph.

    Each node is linked to its k nearest neighbours in content. Every edge has a topological similarity (the
    Jaccard coefficient of its ends' neighbourhoods) and a content similarity (the cosine of their vectors).
    Both are standardised among the edges of a node and combined as alpha * topology + (1 - alpha) * content.
    A node of degree d selects its ceil(sqrt(d)) best edges. An edge is retained if either end selects it.

    Differences from the paper: a neighbourhood includes the node itself, so linked nodes always share
    neighbours, and the coefficient is exact instead of estimated by hashing. Weights of `edges` are ignored.

    Returns edges weighted alpha * Jaccard + (1 - alpha) * max(cosine, 0), at least 0.0001. `vectors` [N, D]
    have length 1 or 0. `near` [N, k] are the nearest neighbours, padded with -1.
    """
    ends = distinct_edges(np.concatenate([edges.ends, np.sort(_neighbour_pairs(near), axis=1)]), n)
    neighbourhood = np.bincount(ends.ravel(), minlength=n) + 1
    shared = common_neighbours(n, ends) + 2
    topology: Floats = shared / (neighbourhood[ends].sum(axis=1) - shared)
    content = _cosines(ends, vectors)
    node, edge = ends.T.ravel(), np.tile(np.arange(len(ends)), 2)
    strength = alpha * _standardized(node, topology[edge], n)
    strength += (1 - alpha) * _standardized(node, content[edge], n)
    degree = np.bincount(node, minlength=n)
    order = np.lexsort((-np.round(strength, 6), node))  # stable, so that ties go to the first edge
    first = np.concatenate([[0], np.cumsum(degree)])[node[order]]
    is_selected = np.arange(len(order)) - first < np.ceil(np.sqrt(degree))[node[order]]
    selected = np.unique(edge[order[is_selected]])
    weight = alpha * topology[selected] + (1 - alpha) * np.maximum(content[selected], 0)
    return Edges(ends[selected], np.maximum(weight, _MIN_WEIGHT))


def _standardized(node: Ints, value: Floats, n: int) -> Floats:
    """Standardise the values of each node to mean 0 and deviation 1; all 0 if its values are equal."""
    count = np.maximum(np.bincount(node, minlength=n), 1)
    centred = value - (np.bincount(node, weights=value, minlength=n) / count)[node]
    deviation = np.sqrt(np.bincount(node, weights=centred**2, minlength=n) / count)[node]
    return np.where(deviation > 1e-9, centred / np.maximum(deviation, 1e-9), 0)


def scan(n: int, edges: Edges, epsilon: float = 0.5, mu: int = 2) -> Ints:
    """SCAN (Xu, Yuruk, Feng, Schweiger 2007): cluster nodes that share many neighbours.

    The structural similarity of two linked nodes is |N(u) ∩ N(v)| / sqrt(|N(u)| |N(v)|), where N(u) is u and
    its neighbours. A core has at least `mu` nodes with similarity `epsilon` or more, including itself.
    Similar cores form a cluster, which includes the nodes similar to them. Weights are ignored.

    Differences from the paper: a node that belongs to several clusters joins its most similar core (ties: the
    smallest). Hubs and outliers are separate clusters. Clusters are numbered 0…k-1 by smallest node.
    """
    ends = distinct_edges(edges.ends, n)
    neighbourhood = np.bincount(ends.ravel(), minlength=n) + 1
    shared = common_neighbours(n, ends) + 2
    similarity = shared / np.sqrt(neighbourhood[ends[:, 0]] * neighbourhood[ends[:, 1]])
    similar = similarity >= epsilon
    ends, similarity = ends[similar], similarity[similar]
    is_core = np.bincount(ends.ravel(), minlength=n) + 1 >= mu
    label = connected_components(n, ends[is_core[ends].all(axis=1)])
    # Borders are nodes similar to a core that are not cores themselves.
    directed = np.concatenate([ends, ends[:, ::-1]])
    to_core = is_core[directed[:, 1]] & ~is_core[directed[:, 0]]
    border, core = directed[to_core].T
    order = np.lexsort((-core, np.concatenate([similarity, similarity])[to_core], border))
    label[border[order]] = label[core[order]]  # the last assignment to each border is its best core
    return canonical_labels(label)
