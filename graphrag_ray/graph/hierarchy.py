"""A hierarchy of communities as integer arrays, numbered so that every community is a range.

Nodes are renumbered by *place*, in a depth-first walk in which the members of every community stand side by
side. Communities are numbered in the same walk, parents before children, so a community's descendants are a
range as well, and so are the edges inside it when they are sorted by the smallest community that holds both
ends. A report's context is then planned, read and counted by slices at any size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hierarchy:
    """Communities 0…C-1 in depth-first order over nodes 0…N-1 (N: nodes of the graph, sorted by id).

    order        [N] node at each place: places start[c]:end[c] are the members of community c. Nodes in no
                 community (those outside the largest component, where only that is wanted) come last
    level        [C] 0 is the coarsest
    parent       [C] community number, -1 at the root; parents come before their children
    start, end   [C] range of places
    last         [C] communities c…last[c]-1 are c and all its descendants
    packed       [C] True: several small components that share one report
    modularity   of level 0, weighted
    """

    order: Ints
    level: Ints
    parent: Ints
    start: Ints
    end: Ints
    last: Ints
    packed: npt.NDArray[np.bool_]
    modularity: float

    @property
    def n_communities(self) -> int:
        return len(self.level)

    @property
    def n_levels(self) -> int:
        return int(self.level.max()) + 1 if len(self.level) else 0

    def sizes(self) -> Ints:
        return self.end - self.start

    def children(self, community: int) -> Ints:
        """The direct sub-communities, in order."""
        below = np.arange(community + 1, self.last[community])
        direct: Ints = below[self.parent[below] == community]
        return direct

    def at_level(self, level: int) -> Ints:
        """C_level of the paper: the communities of that level and the leaves above it (4.1.2: a
        community without sub-communities is projected down). Together they hold every node once."""
        is_leaf = self.last - np.arange(self.n_communities) == 1
        return np.flatnonzero((self.level == level) | (is_leaf & (self.level < level)))

    def community_of(self, level: int) -> Ints:
        """[N] for each node, its community in C_level."""
        out = np.full(len(self.order), -1, dtype=np.int64)
        at = self.at_level(level)
        sizes = self.end[at] - self.start[at]
        # They stand side by side from place 0 on.
        out[self.order[: sizes.sum()]] = np.repeat(at, sizes)
        return out


def number_depth_first(
    leaf: Ints, parent: Ints, level: Ints, packed: npt.NDArray[np.bool_], modularity: float
) -> Hierarchy:
    """Communities under any numbers, parents before children, to a Hierarchy.

    leaf [N]: the smallest community of each node, -1 for none; parent, level, packed [C]. Every community
    has at least one node. Siblings stand largest first, ties by smallest node, packed ones after the
    others; nodes of a leaf by number.
    """
    size = np.bincount(leaf[leaf >= 0], minlength=len(parent))
    smallest = np.full(len(parent), len(leaf), dtype=np.int64)
    np.minimum.at(smallest, leaf[leaf >= 0], np.flatnonzero(leaf >= 0))
    levels = [np.flatnonzero(level == k) for k in range(int(level.max()) + 1 if len(level) else 0)]
    for at in reversed(levels[1:]):
        np.add.at(size, parent[at], size[at])
        np.minimum.at(smallest, parent[at], smallest[at])
    start = np.zeros(len(parent), dtype=np.int64)
    for k, siblings in enumerate(levels):
        outer = start[parent[siblings]] if k else np.zeros(len(siblings), dtype=np.int64)
        by = np.lexsort((smallest[siblings], -size[siblings], packed[siblings], outer))
        at, outer = siblings[by], outer[by]
        before = np.cumsum(size[at]) - size[at]  # of all, hence less what stood before the siblings
        first = np.searchsorted(outer, outer, side="left")
        start[at] = outer + before - before[first]
    # A parent starts where its first child does, and has the lower level.
    by = np.lexsort((level, start))
    number = np.empty(len(by), dtype=np.int64)
    number[by] = np.arange(len(by))
    start, end = start[by], (start + size)[by]
    place = np.where(leaf >= 0, start[number[leaf]] if len(by) else 0, len(leaf))
    return Hierarchy(
        order=np.argsort(place, kind="stable").astype(np.int64),
        level=level[by],
        parent=np.where(parent[by] >= 0, number[parent[by]], -1),
        start=start,
        end=end,
        last=np.searchsorted(start, end, side="left").astype(np.int64),
        packed=packed[by],
        modularity=modularity,
    )
