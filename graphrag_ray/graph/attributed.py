"""Communities by links and by meaning: the hierarchy of ArchRAG (Wang et al. 2025, Algorithm 1).

Level upon level, from the entities up: nodes that mean nearly the same are linked (augmentation), every edge
weighs the cosine of its ends, the graph is clustered, and each cluster is a node of the next level, where
two are linked if members of theirs are. What a cluster means, its report, is written and embedded between two
levels: by whoever calls these functions.

Where the paper is silent:

- A node without a vector has no near ones, and its edges weigh the median of those that can be weighed. Nodes
  that have no edge at all share packs, as small components do in Leiden's hierarchy.
- A cluster above the size that is allowed is divided again by the same clustering, and where that brings
  nothing, at the middle of the direction in which its members differ most.
- It ends also where a level has hardly fewer clusters than nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Attributed, Communities
from graphrag_ray.graph.communities import communities
from graphrag_ray.graph.hierarchy import Hierarchy, number_depth_first
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Edges, canonical, numbered
from graphrag_ray.graph.nearest_neighbours import Vectors, nearest_neighbours
from graphrag_ray.graph.scan import codicil, scan
from graphrag_ray.graph.seeds import Past
from graphrag_ray.graph.soft_clusters import halved
from graphrag_ray.graph.spectral import spectral

LEAST_PROGRESS = 0.9
"""A level that has more clusters than this share of its nodes is the last."""
MOST_NEIGHBOURS = 100
"""Of a node, that are linked for their meaning, however dense the graph is."""


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
    neighbours = n_neighbours(nodes, options)
    together, centres = augmented(nodes, options, neighbours)
    edges = weighed(together, nodes.vectors)
    inner = _divided(nodes, edges, options, leiden, pack_tokens)
    cluster, packed = _bounded(inner, nodes.vectors, options.max_size)
    return ClusteredLevel(edges, inner, cluster, packed, neighbours, centres)


def goes_on(n_nodes: int, n_clusters: int, options: Attributed) -> bool:
    """Whether so many clusters over so many communities are one more level."""
    return options.min_communities <= n_clusters <= LEAST_PROGRESS * n_nodes


def linked(n_nodes: int, source: Ints, target: Ints) -> Edges:
    """Edges in any order as links, each once."""
    edges = canonical(n_nodes, source, target, np.ones(len(source)))
    new = np.ones(len(edges), dtype=np.bool_)
    new[1:] = (np.diff(edges.ends, axis=0) != 0).any(axis=1)
    return edges[new]


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


def augmented(nodes: NodesOfLevel, options: Attributed, neighbours: int) -> tuple[Edges, Vectors | None]:
    """The links, and edges between nodes that mean nearly the same, of weight 1 each; and the centres by
    which these were found."""
    links, n_nodes = nodes.links, len(nodes.keys)
    if options.augment == "none":
        return links, None
    near, _, centres = nearest_neighbours(nodes.vectors, neighbours, nodes.centres)
    if options.augment == "codicil":
        found = codicil(n_nodes, links, nodes.vectors, near)
        return replace(found, weight=np.ones(len(found))), centres
    one, other = np.repeat(np.arange(n_nodes), near.shape[1]), near.ravel()
    ends = np.concatenate([links.ends, np.stack([one, other], axis=1)[other >= 0]])
    return linked(n_nodes, ends[:, 0], ends[:, 1]), centres


def weighed(edges: Edges, vectors: Vectors) -> Edges:
    """Every edge with the cosine of its ends (a negative one counts 0, which is no edge)."""
    weight = np.empty(len(edges))
    for at in range(0, len(edges), _ROWS):
        one, other = edges.ends[at : at + _ROWS].T
        weight[at : at + _ROWS] = np.einsum("ij,ij->i", vectors[one], vectors[other])
    known = np.asarray(vectors.any(axis=1))[edges.ends].all(axis=1)
    weight = np.round(weight, _DIGITS)
    usual = float(np.median(weight[known])) if known.any() else 1.0
    weight = np.where(known, weight, max(usual, 10.0**-_DIGITS))
    return Edges(edges.ends, weight)[weight > 0]


_ROWS = 65_536
_DIGITS = 4
"""Of a cosine: its last bits depend on how it was added up."""


def _divided(
    nodes: NodesOfLevel, edges: Edges, options: Attributed, leiden: Communities, pack_tokens: int
) -> Hierarchy:
    """The clusters as leaves of a hierarchy."""
    n_nodes = len(nodes.keys)
    if options.clustering == "leiden":
        own = leiden.model_copy(update={"max_size": options.max_size, "components": "all"} | _ALONE)
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


_ALONE = {"small_component": 2}
"""Nodes without an edge share packs; all others are clustered."""


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
