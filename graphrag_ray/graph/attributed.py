"""Communities by links and by meaning: the hierarchy of ArchRAG (Wang et al. 2025, Algorithm 1).

Level upon level, from the entities up: nodes that mean nearly the same are linked (augmentation), every edge
weighs the cosine of its ends, the graph is clustered, and each cluster is a node of the next level, where two
are linked if members of theirs are. The caller writes and embeds reports between two levels.

Where the paper is silent: a node without a vector has no near ones, and its edges weigh the median of the
others. Nodes without any edge share packs. A cluster above the size that is allowed is divided again by the
same clustering, and where that brings nothing, at the middle of the direction in which its members differ
most. It ends also where a level has hardly fewer clusters than nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Attributed, Communities
from graphrag_ray.graph.communities import communities
from graphrag_ray.graph.hierarchy import Hierarchy, number_depth_first
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Edges, Floats, components, numbered
from graphrag_ray.graph.nearest_neighbours import Vectors, nearest_neighbours
from graphrag_ray.graph.seeds import Past
from graphrag_ray.graph.soft_clusters import halved
from graphrag_ray.graph.spectral import spectral

LEAST_PROGRESS = 0.9
"""A level that has more clusters than this share of its nodes is the last."""
MOST_NEIGHBOURS = 100
"""Of a node, that are linked for their meaning, however dense the graph is."""
_ROWS = 1 << 16  # edges whose vectors are held at a time
_PAIRS = 1 << 21  # pairs of edges looked at at a time
_LEAST = 1e-4  # edges have weights above 0


@dataclass(frozen=True)
class ClusteredLevel:
    """A level of n nodes that was clustered.

    edges       what was clustered: links of the level and of meaning, weighed
    inner       how the clustering divided them: its leaves are the clusters, unless these were cut again
    cluster     [n] the cluster of each node, 0…k-1, numbered by their smallest nodes
    packed      [k] nodes without any edge, which share a cluster
    neighbours  nearest ones of each node that were linked
    centres     of the cells in which they were looked for; None: all nodes were compared
    """

    edges: Edges
    inner: Hierarchy
    cluster: Ints
    packed: npt.NDArray[np.bool_]
    neighbours: int
    centres: Vectors | None = None

    @property
    def links(self) -> Edges:
        """Between its clusters: where members of theirs are linked."""
        between = self.cluster[self.edges.ends]
        return linked(len(self.packed), between[:, 0], between[:, 1])


@dataclass(frozen=True)
class NodesOfLevel:
    """links    of weight 1 each
    vectors     [n, dimensions] of length 1; zeros: unknown
    tokens      [n] that each brings to a report: what packs are cut by
    keys        [n] 64 bits that name each
    past        the level of the snapshot before, to change as little as may be; None: there is none
    neighbours, centres  those of then; None: there is no past
    """

    links: Edges
    vectors: Vectors
    tokens: Ints
    keys: npt.NDArray[np.uint64]
    past: Past | None = None
    neighbours: int | None = None
    centres: Vectors | None = None


def clustered(
    nodes: NodesOfLevel, options: Attributed, leiden: Communities, pack_tokens: int
) -> ClusteredLevel:
    """One level. leiden: its library, quality and seed are those of this one, too. Raises SettingsError
    where a clustering cannot be had."""
    neighbours, n_nodes = n_neighbours(nodes, options), len(nodes.keys)
    together, centres = nodes.links, None
    if options.augment != "none":
        near, _, centres = nearest_neighbours(nodes.vectors, neighbours, nodes.centres)
        if options.augment == "codicil":
            together = codicil(n_nodes, nodes.links, nodes.vectors, near)
        else:
            alike = np.stack([np.repeat(np.arange(n_nodes), near.shape[1]), near.ravel()], axis=1)
            ends = np.concatenate([nodes.links.ends, alike[alike[:, 1] >= 0]])
            together = linked(n_nodes, ends[:, 0], ends[:, 1])
    edges = weighed(together, nodes.vectors)
    inner = _divided(nodes, edges, options, leiden, pack_tokens)
    cluster, packed = _bounded(inner, nodes.vectors, options.max_size)
    return ClusteredLevel(edges, inner, cluster, packed, neighbours, centres)


def goes_on(n_nodes: int, n_clusters: int, options: Attributed) -> bool:
    """Whether so many clusters over so many communities are one more level."""
    return options.min_communities <= n_clusters <= LEAST_PROGRESS * n_nodes


def linked(n_nodes: int, source: Ints, target: Ints) -> Edges:
    """Edges in any order as links of weight 1, each once."""
    ends = np.sort(np.stack([source, target], axis=1), axis=1)
    ends = distinct(ends[ends[:, 0] != ends[:, 1]], n_nodes)
    return Edges(ends, np.ones(len(ends)))


def one_hierarchy(
    n_nodes: int, clusters: Sequence[Ints], packed: Sequence[npt.NDArray[np.bool_]]
) -> tuple[Hierarchy, list[Ints]]:
    """All levels as one hierarchy, whose level 0 is the last of them; and the community of each cluster,
    level by level.

    clusters, packed: of each level, that of the entities first; n_nodes: of the first
    """
    n_levels = len(clusters)
    numbers = [len(of) for of in packed]
    first = np.cumsum([0, *reversed(numbers)])[:-1][::-1]  # communities are numbered from level 0 on
    empty = np.zeros(0, dtype=np.int64)
    parents = [empty]
    for height in reversed(range(n_levels)):
        above = np.full(numbers[height], -1)
        parents.append(clusters[height + 1] + first[height + 1] if height + 1 < n_levels else above)
    hierarchy = number_depth_first(
        clusters[0] + first[0] if n_levels else np.full(n_nodes, -1),
        np.concatenate(parents).astype(np.int64),
        np.repeat(np.arange(n_levels), numbers[::-1]).astype(np.int64),
        np.concatenate([np.zeros(0, dtype=np.bool_), *reversed(packed)]),
        0.0,
    )
    places, of_node = [], np.arange(n_nodes)
    for height in range(n_levels):
        of_node = clusters[height][of_node]
        place = np.empty(numbers[height], dtype=np.int64)
        place[of_node] = hierarchy.community_of(n_levels - 1 - height)
        places.append(place)
    return hierarchy, places


def n_neighbours(nodes: NodesOfLevel, options: Attributed) -> int:
    """As many as the mean degree of nodes that have links; at least 1. What it was before stays while that is
    near: another number gives every node other neighbours."""
    degree = np.bincount(nodes.links.ends.ravel(), minlength=len(nodes.keys))
    mean = float(degree[degree > 0].mean()) if len(nodes.links) else 1.0
    before = nodes.neighbours
    usual = before if before is not None and abs(before - mean) < 1 else round(mean)
    return min(options.neighbours or usual, MOST_NEIGHBOURS)


def weighed(edges: Edges, vectors: Vectors) -> Edges:
    """Every edge with the cosine of its ends (a negative one counts 0, which is no edge)."""
    weight = _cosines(edges.ends, vectors)
    known = np.asarray(vectors.any(axis=1))[edges.ends].all(axis=1)
    usual = float(np.median(weight[known])) if known.any() else 1.0
    weight = np.where(known, weight, max(usual, _LEAST))
    return Edges(edges.ends, weight)[weight > 0]


def _cosines(ends: npt.NDArray[np.int64], vectors: Vectors) -> Floats:
    """[E] to four digits, since the last bits depend on how they are added up. vectors: of length 1 or 0."""
    found = np.empty(len(ends))
    for at in range(0, len(ends), _ROWS):
        one, other = ends[at : at + _ROWS].T
        found[at : at + _ROWS] = np.einsum("ij,ij->i", vectors[one], vectors[other])
    return np.round(found, 4)


def _divided(
    nodes: NodesOfLevel, edges: Edges, options: Attributed, leiden: Communities, pack_tokens: int
) -> Hierarchy:
    """The clusters as leaves of a hierarchy."""
    n_nodes = len(nodes.keys)
    if options.clustering == "leiden":
        # Nodes without an edge share packs; all others are clustered.
        changes = {"max_size": options.max_size, "components": "all", "small_component": 2}
        own = leiden.model_copy(update=changes)
        one, other = edges.ends[:, 0], edges.ends[:, 1]
        return communities(
            n_nodes, one, other, edges.weight, own, nodes.tokens, pack_tokens, nodes.past, nodes.keys
        )
    if options.clustering == "scan":
        label = scan(n_nodes, edges, options.scan_epsilon, options.scan_members)
    else:
        label = spectral(n_nodes, edges, max(1, n_nodes // options.max_size), leiden.seed)
    n = int(label.max(initial=-1)) + 1
    none = np.zeros(n, dtype=np.bool_)
    return number_depth_first(label, np.full(n, -1), np.zeros(n, dtype=np.int64), none, 0.0)


def _bounded(inner: Hierarchy, vectors: Vectors, most: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(cluster of each node, packed [clusters]): the leaves, none larger than is allowed but packs."""
    leaf = numbered(inner.community_of(max(0, inner.n_levels - 1)))
    order = np.argsort(leaf, kind="stable")
    sizes = np.bincount(leaf)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    first = order[bounds[:-1]] if len(sizes) else order
    packed = inner.packed[inner.community_of(max(0, inner.n_levels - 1))[first]]
    n = len(sizes)
    for c in np.flatnonzero((sizes > most) & ~packed).tolist():
        for piece in halved(order[bounds[c] : bounds[c + 1]], vectors, np.ones_like(leaf), most)[1:]:
            leaf[piece] = n
            n += 1
    packed = np.concatenate([packed, np.zeros(n - len(packed), dtype=np.bool_)])
    found = numbered(leaf)
    of_new = np.empty(n, dtype=np.int64)
    of_new[found] = leaf
    return found, packed[of_new]


def common_neighbours(n_nodes: int, ends: npt.NDArray[np.int64]) -> Ints:
    """[E] the number of nodes that are linked with both ends of each edge.

    ends [E, 2]: distinct edges, no self-loops, in any order

    Every triangle is found once, at its node of the smallest degree (Chiba and Nishizeki 1985; Latapy 2008):
    an edge is directed towards the end with more edges, so that no node has more than sqrt(2 E) edges out. A
    hub with a hundred thousand leaves costs as much as its leaves do.
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
    later = last - np.arange(len(ends)) - 1  # edges with which an edge makes a pair
    before = np.concatenate([[0], np.cumsum(later)])
    at = 0
    while at < len(ends):
        end = max(at + 1, int(np.searchsorted(before, before[at] + _PAIRS, side="right")) - 1)
        one = np.repeat(np.arange(at, end), later[at:end])
        other = one + 1 + np.arange(len(one)) - (before[one] - before[at])
        wanted = target[one] * n_nodes + target[other]
        closing = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        closed = key[closing] == wanted
        for side in (one, other, closing):
            np.add.at(shared, order[side[closed]], 1)
        at = end
    return shared


def distinct(ends: npt.NDArray[np.int64], n_nodes: int) -> npt.NDArray[np.int64]:
    """Edges [E, 2], each once, in canonical order; ends [E, 2] with ends[:, 0] < ends[:, 1]."""
    key = np.unique(ends[:, 0] * n_nodes + ends[:, 1])
    return np.stack([key // max(n_nodes, 1), key % max(n_nodes, 1)], axis=1)


def codicil(n: int, edges: Edges, vectors: Vectors, near: Ints, alpha: float = 0.5) -> Edges:
    """CODICIL (Ruan, Fuhry, Parthasarathy 2013): the graph with links by content, thinned out.

    Each node is linked with the k nearest to it in content (near [N, k], -1: none). Every edge has a
    similarity of topology, the Jaccard coefficient of the neighbours of its ends, and one of content, the
    cosine of their vectors. Each is brought to mean 0 and deviation 1 among the edges of a node; then alpha *
    topology + (1 - alpha) * content counts. Of its d edges a node keeps the ceil(sqrt(d)) best; what either
    end keeps stays.

    Departures: neighbours include the node itself, so that linked nodes are never wholly unlike; the
    coefficient is exact and not estimated by hashes. Weights of `edges` do not count. vectors: [N, D] of
    length 1 or 0.

    Returned weights are alpha * Jaccard + (1 - alpha) * cosine, at least 0.0001, cosines below 0 counting 0.
    """
    by_content = np.stack([np.repeat(np.arange(n), near.shape[1]), near.ravel()], axis=1)
    by_content = np.sort(by_content[by_content[:, 1] >= 0], axis=1)
    ends = distinct(np.concatenate([edges.ends, by_content]), n)
    around = np.bincount(ends.ravel(), minlength=n) + 1
    both = common_neighbours(n, ends) + 2
    topology: Floats = both / (around[ends].sum(axis=1) - both)
    content = _cosines(ends, vectors)
    node, edge = ends.T.ravel(), np.tile(np.arange(len(ends)), 2)
    strength = alpha * _among(node, topology[edge], n) + (1 - alpha) * _among(node, content[edge], n)
    degree = np.bincount(node, minlength=n)
    order = np.lexsort((-np.round(strength, 6), node))  # stable: of equals the first
    first = np.concatenate([[0], np.cumsum(degree)])[node[order]]
    stays = np.arange(len(order)) - first < np.ceil(np.sqrt(degree))[node[order]]
    kept = np.unique(edge[order[stays]])
    weight = alpha * topology[kept] + (1 - alpha) * np.maximum(content[kept], 0)
    return Edges(ends[kept], np.maximum(weight, _LEAST))


def _among(node: Ints, value: Floats, n: int) -> Floats:
    """Values less their node's mean, in its standard deviations; 0 where all of a node are equal."""
    count = np.maximum(np.bincount(node, minlength=n), 1)
    apart = value - (np.bincount(node, weights=value, minlength=n) / count)[node]
    deviation = np.sqrt(np.bincount(node, weights=apart**2, minlength=n) / count)[node]
    return np.where(deviation > 1e-9, apart / np.maximum(deviation, 1e-9), 0)


def scan(n: int, edges: Edges, epsilon: float = 0.5, mu: int = 2) -> Ints:
    """SCAN (Xu, Yuruk, Feng, Schweiger 2007): clusters around nodes that share many neighbours.

    The structural similarity of two linked nodes is |N(u) ∩ N(v)| / sqrt(|N(u)| |N(v)|), where N(u) is u and
    its neighbours. A core has at least `mu` nodes at similarity `epsilon` or above, itself among them. Cores
    that are so similar are one cluster, and what is similar to a core belongs to it. Weights do not count.

    Departures: what belongs to several clusters goes to the core that it is most similar to (ties: the
    smallest); hubs and outliers are clusters of their own.

    Returns [n] the cluster of each node, numbered 0…k-1 by their smallest nodes.
    """
    ends = distinct(edges.ends, n)
    around = np.bincount(ends.ravel(), minlength=n) + 1
    both = common_neighbours(n, ends) + 2
    similarity = both / np.sqrt(around[ends[:, 0]] * around[ends[:, 1]])
    similar = similarity >= epsilon
    ends, similarity = ends[similar], similarity[similar]
    core = np.bincount(ends.ravel(), minlength=n) + 1 >= mu
    label = components(n, ends[core[ends].all(axis=1)])
    # Borders: nodes similar to a core and no cores themselves.
    one_way = np.concatenate([ends, ends[:, ::-1]])
    border, its_core = one_way[core[one_way[:, 1]] & ~core[one_way[:, 0]]].T
    by = np.concatenate([similarity, similarity])[core[one_way[:, 1]] & ~core[one_way[:, 0]]]
    order = np.lexsort((-its_core, by, border))  # the last of each border is its best
    label[border[order]] = label[its_core[order]]
    return numbered(label)
