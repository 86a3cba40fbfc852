"""A tree of summaries over texts: RAPTOR's (Sarthi et al. 2024, section 3), built level upon level.

The nodes of the lowest level are texts, those above are summaries, each of a cluster of nodes of the level
below. A node may be in several clusters (`soft_clusters.py`), but all texts are equally deep.

Departures, where the paper is silent or its code did not end:

- More than `MOST_NODES` nodes are divided first, by k-means and by halves, and each group is clustered by
  itself, so work grows with the number of nodes. Texts too few for two levels have one.
- A tree that exists is kept: a new node joins the cluster nearest to it, and what has become too long by that
is
  divided. Where an update brings more than `MOST_NEW` of the nodes, or much was deleted, its level is
  clustered afresh.
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
from graphrag_ray.graph.soft_clusters import halved

Keys = npt.NDArray[np.uint64]

MOST_NODES = 2_000
"""Of a group: some 20 seconds of one core."""
MOST_NEW = 0.3
LEAST_LEFT = 0.5
"""Where clusters have fewer members than this share of what they had, on average, a level is clustered
afresh."""
LEAST_NODES = 11
"""A level that has no more is the last, as in RAPTOR's code."""
_PER_GROUP = MOST_NODES // 2
_ROWS = 65_536


@dataclass(frozen=True)
class Clusters(Sequence[Ints]):
    """Sets of node numbers, each ascending: cluster c is member[bounds[c]:bounds[c + 1]]."""

    member: Ints
    bounds: Ints

    @classmethod
    def of(cls, clusters: Iterable[Ints]) -> Clusters:
        own = list(clusters)
        bounds = np.cumsum([0, *map(len, own)]).astype(np.int64)
        return cls(np.concatenate([np.zeros(0, np.int64), *own]).astype(np.int64), bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, cluster: Any) -> Any:
        """Of a number, not of a slice. Raises IndexError, so that it can be gone through."""
        if not 0 <= cluster < len(self):
            raise IndexError(cluster)
        return self.member[self.bounds[cluster] : self.bounds[cluster + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[cluster] for cluster in range(len(self)))

    @property
    def of_member(self) -> Ints:
        """[members] the cluster that each stands for."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))


@dataclass(frozen=True)
class TreeLevel:
    """clusters  of the nodes of a level
    born      [clusters] 64 bits that name each; the name stays when nodes join it or leave it
    usual     members of a cluster, on average, when the level was clustered afresh
    """

    clusters: Clusters
    born: Keys
    usual: float


@dataclass(frozen=True)
class EarlierLevel:
    """A level of the tree before: its clusters hold places in `nodes`, 64 bits that name each node."""

    level: TreeLevel
    nodes: Keys


@dataclass(frozen=True)
class KeptLevel:
    """What stays of a level: clusters without those that are too large, whose members are divided again.

    divided    the members of each of these
    born       of those that stay; of_divided: of those that are divided
    usual      see `TreeLevel`
    """

    clusters: Clusters
    born: Keys
    divided: list[Ints]
    of_divided: Keys
    usual: float


def groups(vectors: Vectors) -> list[Ints]:
    """The rows, each in one group of at most MOST_NODES that mean nearly the same.

    vectors: [n, dimensions] of length 1, or zeros. The same vectors give the same groups.
    """
    n = len(vectors)
    if n <= MOST_NODES:
        return [np.arange(n)]
    centres = cell_centres(vectors, -(-n // _PER_GROUP))
    own = nearest_centres(vectors, centres, 1)[:, 0]
    order = np.argsort(own, kind="stable")
    cells = np.split(order, np.cumsum(np.bincount(own, minlength=len(centres)))[:-1])
    one = np.ones(n, dtype=np.int64)
    return [piece for cell in cells if len(cell) for piece in halved(cell, vectors, one, MOST_NODES)]


def kept(
    keys: Keys, vectors: Vectors, sizes: Ints, most: int, earlier: EarlierLevel | None
) -> KeptLevel | None:
    """The clusters of before with today's nodes; None where there were none, too much is new, or so much is
    gone that clusters are small.

    keys [n], vectors [n, dimensions], sizes [n] in tokens: of today's nodes; most: tokens of a cluster
    """
    if earlier is None or not len(keys) or not len(earlier.nodes):
        return None
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(keys[order], earlier.nodes), len(keys) - 1)
    today = np.where(keys[order][at] == earlier.nodes, order[at], -1)  # of each earlier node
    before = earlier.level.clusters
    lengths = np.diff(before.bounds)
    member = today[before.member]
    left = np.bincount(before.of_member[member >= 0], minlength=len(before))
    # What is left of a cluster alone looks for company, as a new node does.
    stays = (member >= 0) & ((left > 1) | (lengths == 1))[before.of_member]
    new = np.ones(len(keys), dtype=np.bool_)
    new[member[stays]] = False
    cluster, member = before.of_member[stays], member[stays]
    if new.sum() > MOST_NEW * len(keys):
        return None
    used = np.unique(cluster)
    cluster = np.searchsorted(used, cluster)
    joining = np.flatnonzero(new)
    nearest = _nearest(joining, _directions(vectors, member, cluster, len(used)), vectors)
    member, cluster = np.concatenate([member, joining]), np.concatenate([cluster, nearest])
    in_order = np.lexsort((member, cluster))
    whole = np.split(member[in_order], np.cumsum(np.bincount(cluster, minlength=len(used)))[:-1])
    tokens = np.bincount(cluster, sizes[member], len(used))
    if len(member) < LEAST_LEFT * earlier.level.usual * len(used):
        return None
    # Those that nobody joined are as long as before, whatever they were allowed.
    joined = np.zeros(len(used), dtype=np.bool_)
    joined[nearest] = True
    large = [c for c in np.flatnonzero(joined & (tokens > most)).tolist() if len(whole[c]) > 1]
    stay = np.setdiff1d(np.arange(len(used)), large).tolist()
    born = earlier.level.born[used]
    return KeptLevel(
        Clusters.of(whole[c] for c in stay),
        born[stay],
        [whole[c] for c in large],
        born[large],
        earlier.level.usual,
    )


def _directions(vectors: Vectors, member: Ints, cluster: Ints, n: int) -> Vectors:
    """[n, dimensions] of length 1: of the means of clusters."""
    found = np.zeros((n, vectors.shape[1]), dtype=np.float32)
    for some in range(0, len(member), _ROWS):
        np.add.at(found, cluster[some : some + _ROWS], vectors[member[some : some + _ROWS]])
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    found /= np.where(lengths > 0, lengths, 1)
    return found


def _nearest(rows: Ints, centres: Vectors, vectors: Vectors) -> Ints:
    """[rows] the centre nearest to each."""
    found = [
        nearest_centres(vectors[rows[some : some + _ROWS]], centres, 1)[:, 0]
        for some in range(0, len(rows), _ROWS)
    ]
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])


def with_divided(level: KeptLevel, parts: Sequence[Sequence[Ints]], names: Sequence[Keys]) -> TreeLevel:
    """The level with the parts that clusters were divided into: the largest goes by the name of the whole.

    parts: of each that was divided; names: 64 bits for each part
    """
    clusters, born = list(level.clusters), level.born.tolist()
    for own, named, whole in zip(parts, names, level.of_divided.tolist(), strict=True):
        largest = max(range(len(own)), key=lambda at: (len(own[at]), -at))
        clusters += own
        born += [whole if at == largest else name for at, name in enumerate(named.tolist())]
    return in_order(clusters, born, level.usual)


def in_order(clusters: Sequence[Ints], born: Sequence[int], usual: float | None = None) -> TreeLevel:
    """Clusters by their members; of those that hold the same, the first. usual: None: they are new."""
    by_members: dict[tuple[int, ...], int] = {}
    for at, own in enumerate(clusters):
        by_members.setdefault(tuple(own.tolist()), at)
    order = [by_members[members] for members in sorted(by_members)]
    found = Clusters.of(clusters[at] for at in order)
    names = np.array([born[at] for at in order], dtype=np.uint64)
    return TreeLevel(found, names, len(found.member) / max(1, len(found)) if usual is None else usual)


def bounded(whole: Sequence[Ints], vectors: Vectors) -> tuple[list[Ints], list[int]]:
    """Sets of nodes, cut where they are larger than a group may be; and of each piece, which one it is of."""
    pieces, of = [], []
    for at, own in enumerate(whole):
        cut = [own]
        if len(own) > MOST_NODES:
            cut = halved(own, vectors, np.ones(len(vectors), dtype=np.int64), MOST_NODES)
        pieces += cut
        of += [at] * len(cut)
    return pieces, of


def goes_on(n_nodes: int, height: int, most_levels: int) -> bool:
    """Whether one more level is built over so many nodes. height: levels below."""
    return height < most_levels and n_nodes > (LEAST_NODES if height else 1)


@dataclass(frozen=True)
class SummaryTree:
    """All levels as communities: level 0 is the highest, and numbers begin there.

    levels   the clusters of each level, that of the texts first
    main     of each level, the cluster of each node that is its parent (`main_clusters`)
    """

    levels: Sequence[Clusters]
    main: Sequence[Ints]

    @cached_property
    def first(self) -> Ints:
        """[levels] the number of each level's first community, that of the texts first."""
        numbers = [len(clusters) for clusters in self.levels]
        return np.cumsum([0, *reversed(numbers)])[:-1][::-1].astype(np.int64)

    @cached_property
    def level(self) -> Ints:
        """[communities]"""
        n = [len(clusters) for clusters in reversed(self.levels)]
        return np.repeat(np.arange(len(n)), n).astype(np.int64)

    @cached_property
    def parent(self) -> Ints:
        """[communities] -1 at the top. One that is in several clusters has its main one."""
        found = np.full(len(self.level), -1, dtype=np.int64)
        for height in range(len(self.levels) - 1):
            first = self.first[height]
            found[first : first + len(self.levels[height])] = self.first[height + 1] + self.main[height + 1]
        return found

    @cached_property
    def texts(self) -> Clusters:
        """The texts that each community rests on."""
        of_level: list[list[Ints]] = []
        for clusters in self.levels:
            below = of_level[-1] if of_level else None
            of_level.append(
                [
                    np.unique(np.concatenate([below[node] for node in own.tolist()])) if below else own
                    for own in clusters
                ]
            )
        return Clusters.of(texts for own in reversed(of_level) for texts in own)

    def children(self, community: int) -> list[int]:
        """All communities that it was written from; of one over texts, none."""
        height = len(self.levels) - 1 - int(self.level[community])
        if not height:
            return []
        own = self.levels[height][community - int(self.first[height])]
        below: list[int] = (self.first[height - 1] + own).tolist()
        return below

    def sizes(self) -> Ints:
        """[communities] texts that each rests on."""
        return np.diff(self.texts.bounds)


def main_clusters(clusters: Clusters, vectors: Vectors) -> Ints:
    """[nodes] of the clusters that a node is in, the one whose mean is nearest."""
    best = np.full(len(vectors), -1, dtype=np.int64)
    nearest = np.full(len(vectors), -np.inf)
    for cluster, own in enumerate(clusters):
        mean = vectors[own].mean(axis=0)
        near = np.round(vectors[own] @ (mean / max(float(np.linalg.norm(mean)), 1e-9)), 4)
        closer = near > nearest[own]
        best[own[closer]], nearest[own[closer]] = cluster, near[closer]
    return best
