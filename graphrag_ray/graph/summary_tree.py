"""A summary tree over texts, as in RAPTOR (Sarthi et al. 2024, section 3), built bottom-up.

The nodes of the lowest level are texts. The nodes of any other level are summaries of clusters of the level
below. A node can be in several clusters (`soft_clusters.py`), but all texts have the same depth. An existing
tree is reused where possible: new nodes join the nearest cluster, and clusters that become too long are
divided. For differences from the paper, see docs/concepts/decisions/summary-trees.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.nearest_neighbours import Vectors, cell_centres, nearest_centres
from graphrag_ray.graph.soft_clusters import split_to_size

Keys = npt.NDArray[np.uint64]

MAX_NODES = 2_000  # maximum number of nodes clustered together, which takes about 20 s on one core
_MAX_NEW_SHARE = 0.3  # a level with a larger share of new nodes is clustered from scratch
_MIN_SIZE_SHARE = 0.5  # so is a level whose average cluster shrank below this share
MIN_NODES = 11  # a level with at most this many nodes is the last one, as in RAPTOR's code
_PER_GROUP = MAX_NODES // 2
_BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class Clusters(Sequence[Ints]):
    """Sorted sets of node numbers. Cluster c is member[bounds[c]:bounds[c + 1]]."""

    member: Ints
    bounds: Ints

    @classmethod
    def from_sets(cls, clusters: Iterable[Ints]) -> Clusters:
        members = list(clusters)
        bounds = np.cumsum([0, *map(len, members)]).astype(np.int64)
        return cls(np.concatenate([np.zeros(0, np.int64), *members]).astype(np.int64), bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, cluster: Any) -> Any:
        """Return a cluster by number. Slices are not supported."""
        if not 0 <= cluster < len(self):
            raise IndexError(cluster)
        return self.member[self.bounds[cluster] : self.bounds[cluster + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[cluster] for cluster in range(len(self)))

    @property
    def cluster_of_member(self) -> Ints:
        """[members] the cluster of each member."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))


@dataclass(frozen=True)
class TreeLevel:
    clusters: Clusters
    names: Keys  # [clusters] 64-bit names, which do not change when nodes join or leave a cluster
    average_size: float  # average size of a cluster when the level was last clustered from scratch


@dataclass(frozen=True)
class PreviousLevel:
    """A level of the previous tree. Clusters refer to positions in `nodes`, the 64-bit keys of the nodes."""

    level: TreeLevel
    nodes: Keys


@dataclass(frozen=True)
class UpdatedLevel:
    """The updated clusters of a level.

    `divided` and `divided_names` are the members and names of clusters that became too long and must be
    divided.
    """

    clusters: Clusters
    names: Keys
    divided: list[Ints]
    divided_names: Keys
    average_size: float


def partition_into_groups(vectors: Vectors) -> list[Ints]:
    """Partition rows into groups of at most MAX_NODES similar ones, deterministically.

    Rows are partitioned by k-means and then by halving, which takes linear time. `vectors` [n, dimensions]
    have length 1 or 0.
    """
    n = len(vectors)
    if n <= MAX_NODES:
        return [np.arange(n)]
    centres = cell_centres(vectors, -(-n // _PER_GROUP))
    cell = nearest_centres(vectors, centres, 1)[:, 0]
    order = np.argsort(cell, kind="stable")
    cells = np.split(order, np.cumsum(np.bincount(cell, minlength=len(centres)))[:-1])
    return split_large_sets([members for members in cells if len(members)], vectors)[0]


def update_level(
    keys: Keys, vectors: Vectors, sizes: Ints, max_tokens: int, previous: PreviousLevel | None
) -> UpdatedLevel | None:
    """Update the previous clusters, or return None if the level must be clustered from scratch.

    That is the case without previous clusters, with too many new nodes, or if clusters shrank too much.
    `keys` (64 bits), `vectors` and `sizes` (tokens) describe the current nodes. `max_tokens` limits the size
    of a cluster.
    """
    if previous is None or not len(keys) or not len(previous.nodes):
        return None
    order = np.argsort(keys)
    position = np.minimum(np.searchsorted(keys[order], previous.nodes), len(keys) - 1)
    current_position = np.where(keys[order][position] == previous.nodes, order[position], -1)
    old_clusters = previous.level.clusters
    member = current_position[old_clusters.member]
    n_left = np.bincount(old_clusters.cluster_of_member[member >= 0], minlength=len(old_clusters))
    # The last member of a shrunken cluster joins the nearest cluster, like a new node.
    is_retained = (member >= 0) & ((n_left > 1) | (np.diff(old_clusters.bounds) == 1))[
        old_clusters.cluster_of_member
    ]
    is_new = np.ones(len(keys), dtype=np.bool_)
    is_new[member[is_retained]] = False
    cluster, member = old_clusters.cluster_of_member[is_retained], member[is_retained]
    if is_new.sum() > _MAX_NEW_SHARE * len(keys):
        return None
    remaining, cluster = np.unique(cluster, return_inverse=True)
    joining = np.flatnonzero(is_new)
    nearest = _nearest(joining, _directions(vectors, member, cluster, len(remaining)), vectors)
    member, cluster = np.concatenate([member, joining]), np.concatenate([cluster, nearest])
    if len(member) < _MIN_SIZE_SHARE * previous.level.average_size * len(remaining):
        return None
    by_cluster = np.lexsort((member, cluster))
    members = np.split(member[by_cluster], np.cumsum(np.bincount(cluster, minlength=len(remaining)))[:-1])
    # Divide only clusters that nodes joined, because the others did not grow.
    joined = np.zeros(len(remaining), dtype=np.bool_)
    joined[nearest] = True
    too_long = joined & (np.bincount(cluster, sizes[member], len(remaining)) > max_tokens)
    large = [c for c in np.flatnonzero(too_long).tolist() if len(members[c]) > 1]
    retained = np.setdiff1d(np.arange(len(remaining)), large).tolist()
    clusters, divided = Clusters.from_sets(members[c] for c in retained), [members[c] for c in large]
    names = previous.level.names[remaining]
    return UpdatedLevel(clusters, names[retained], divided, names[large], previous.level.average_size)


def _directions(vectors: Vectors, member: Ints, cluster: Ints, n: int) -> Vectors:
    """[n, dimensions] cluster means, scaled to length 1."""
    sums = np.zeros((n, vectors.shape[1]), dtype=np.float32)
    for start in range(0, len(member), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        np.add.at(sums, cluster[rows], vectors[member[rows]])
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    sums /= np.where(lengths > 0, lengths, 1)
    return sums


def _nearest(rows: Ints, centres: Vectors, vectors: Vectors) -> Ints:
    """[rows] the nearest centre of each row."""
    blocks = (rows[start : start + _BLOCK_ROWS] for start in range(0, len(rows), _BLOCK_ROWS))
    nearest = [nearest_centres(vectors[block], centres, 1)[:, 0] for block in blocks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *nearest])


def merge_divided(level: UpdatedLevel, parts: Sequence[Sequence[Ints]], names: Sequence[Keys]) -> TreeLevel:
    """Add the parts of divided clusters under new names. The largest part inherits the cluster's name."""
    clusters, all_names = list(level.clusters), level.names.tolist()
    for pieces, new_names, name in zip(parts, names, level.divided_names.tolist(), strict=True):
        largest = max(range(len(pieces)), key=lambda i: (len(pieces[i]), -i))
        clusters += pieces
        all_names += [name if i == largest else new_name for i, new_name in enumerate(new_names.tolist())]
    return sorted_level(clusters, all_names, level.average_size)


def sorted_level(
    clusters: Sequence[Ints], names: Sequence[int], average_size: float | None = None
) -> TreeLevel:
    """Sort clusters by members and drop duplicates. By default, `average_size` is computed."""
    by_members: dict[tuple[int, ...], int] = {}
    for i, members in enumerate(clusters):
        by_members.setdefault(tuple(members.tolist()), i)
    order = [by_members[members] for members in sorted(by_members)]
    distinct = Clusters.from_sets(clusters[i] for i in order)
    if average_size is None:
        average_size = len(distinct.member) / max(1, len(distinct))
    return TreeLevel(distinct, np.array([names[i] for i in order], dtype=np.uint64), average_size)


def split_large_sets(sets: Sequence[Ints], vectors: Vectors) -> tuple[list[Ints], list[int]]:
    """Split sets of more than MAX_NODES nodes. Returns the pieces and the index of the set of each."""
    pieces, origin = [], []
    for i, members in enumerate(sets):
        parts = [members]
        if len(members) > MAX_NODES:
            parts = split_to_size(members, vectors, np.ones(len(vectors), dtype=np.int64), MAX_NODES)
        pieces += parts
        origin += [i] * len(parts)
    return pieces, origin


def has_next_level(n_nodes: int, height: int, max_levels: int) -> bool:
    """Return whether another level is built over `n_nodes`, above `height` levels.

    The first level needs only two texts.
    """
    return height < max_levels and n_nodes > (MIN_NODES if height else 1)


@dataclass(frozen=True)
class SummaryTree:
    """All levels as communities, numbered from the topmost level, level 0."""

    levels: Sequence[Clusters]  # clusters of each level, lowest first
    main: Sequence[Ints]  # for each level, the cluster that is the parent of each node (`main_clusters`)

    @cached_property
    def first(self) -> Ints:
        """[levels] number of each level's first community, lowest level first."""
        counts = [len(clusters) for clusters in self.levels]
        return np.cumsum([0, *reversed(counts)])[:-1][::-1].astype(np.int64)

    @cached_property
    def level(self) -> Ints:
        """[communities] the level of each community."""
        counts = [len(clusters) for clusters in reversed(self.levels)]
        return np.repeat(np.arange(len(counts)), counts).astype(np.int64)

    @cached_property
    def parent(self) -> Ints:
        """[communities] the main cluster of each community, or -1 at the top."""
        parent = np.full(len(self.level), -1, dtype=np.int64)
        for height in range(len(self.levels) - 1):
            first = self.first[height]
            parent[first : first + len(self.levels[height])] = self.first[height + 1] + self.main[height + 1]
        return parent

    @cached_property
    def texts(self) -> Clusters:
        """The texts below each community."""
        by_level: list[list[Ints]] = []
        for height, clusters in enumerate(self.levels):
            if height == 0:
                by_level.append(list(clusters))
                continue
            below = by_level[-1]
            by_level.append([np.unique(np.concatenate([below[i] for i in c.tolist()])) for c in clusters])
        return Clusters.from_sets(texts for level in reversed(by_level) for texts in level)

    def children(self, community: int) -> list[int]:
        """Return the communities from which a summary was written. Empty on the level above texts."""
        height = len(self.levels) - 1 - int(self.level[community])
        if not height:
            return []
        members = self.levels[height][community - int(self.first[height])]
        below: list[int] = (self.first[height - 1] + members).tolist()
        return below

    def sizes(self) -> Ints:
        """[communities] number of texts below each community."""
        return np.diff(self.texts.bounds)


def main_clusters(clusters: Clusters, vectors: Vectors) -> Ints:
    """[nodes] the cluster of each node with the nearest mean."""
    main = np.full(len(vectors), -1, dtype=np.int64)
    best = np.full(len(vectors), -np.inf)
    for cluster, members in enumerate(clusters):
        mean = vectors[members].mean(axis=0)
        cosine = np.round(vectors[members] @ (mean / max(float(np.linalg.norm(mean)), 1e-9)), 4)
        closer = cosine > best[members]
        main[members[closer]], best[members[closer]] = cluster, cosine[closer]
    return main
