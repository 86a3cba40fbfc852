"""A hierarchy of communities as integer arrays, numbered so that every community is a range.

A depth-first traversal assigns a *place* to each node, so that the members of every community are
consecutive. Communities are numbered in the same order, parents before children, so the descendants of a
community form a range. So do the edges inside it, once they are sorted by the smallest community that
contains both ends. Report contexts are then planned by slicing arrays, whatever the size of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hierarchy:
    """Communities 0…C-1 in depth-first order over nodes 0…N-1, which are numbered in id order."""

    node_at_place: Ints  # [N] node at each place; nodes in no community come last
    level: Ints  # [C] 0 is the coarsest
    parent: Ints  # [C] community number, -1 at the root
    start: Ints  # [C] the members of a community have the places start…end-1
    end: Ints
    subtree_end: Ints  # [C] communities c…subtree_end[c]-1 are c and all its descendants
    packed: npt.NDArray[np.bool_]  # [C] True for several small components that share a report
    modularity: float  # weighted modularity of level 0

    @property
    def n_communities(self) -> int:
        return len(self.level)

    @property
    def n_levels(self) -> int:
        return int(self.level.max()) + 1 if len(self.level) else 0

    def sizes(self) -> Ints:
        return self.end - self.start

    def children(self, community: int) -> Ints:
        """Return the direct sub-communities, in order."""
        below = np.arange(community + 1, self.subtree_end[community])
        direct: Ints = below[self.parent[below] == community]
        return direct

    def communities_at_level(self, level: int) -> Ints:
        """Return C_level of the paper, which partitions the nodes.

        It consists of the communities of that level and the leaves above it (4.1.2: a community without
        sub-communities is projected down).
        """
        is_leaf = self.subtree_end - np.arange(self.n_communities) == 1
        return np.flatnonzero((self.level == level) | (is_leaf & (self.level < level)))

    def community_of(self, level: int) -> Ints:
        """[N] the community of each node in C_level, or -1."""
        community = np.full(len(self.node_at_place), -1, dtype=np.int64)
        at_level = self.communities_at_level(level)
        sizes = self.sizes()[at_level]
        # The places of these communities are consecutive and begin at 0.
        community[self.node_at_place[: sizes.sum()]] = np.repeat(at_level, sizes)
        return community


def number_depth_first(
    leaf: Ints, parent: Ints, level: Ints, packed: npt.NDArray[np.bool_], modularity: float
) -> Hierarchy:
    """Build a Hierarchy from communities numbered in any order.

    Siblings are sorted by descending size, then by smallest node, with packed ones last.

    Args:
        leaf: [N] smallest community of each node, or -1. Every community has at least one node.
        parent, level, packed: [C] as in `Hierarchy`.
    """
    size = np.bincount(leaf[leaf >= 0], minlength=len(parent))
    smallest = np.full(len(parent), len(leaf), dtype=np.int64)
    np.minimum.at(smallest, leaf[leaf >= 0], np.flatnonzero(leaf >= 0))
    levels = [np.flatnonzero(level == k) for k in range(int(level.max()) + 1 if len(level) else 0)]
    for children in reversed(levels[1:]):
        np.add.at(size, parent[children], size[children])
        np.minimum.at(smallest, parent[children], smallest[children])
    start = np.zeros(len(parent), dtype=np.int64)
    for k, siblings in enumerate(levels):
        parent_start = start[parent[siblings]] if k else np.zeros(len(siblings), dtype=np.int64)
        order = np.lexsort((smallest[siblings], -size[siblings], packed[siblings], parent_start))
        ranked, parent_start = siblings[order], parent_start[order]
        before = np.cumsum(size[ranked]) - size[ranked]  # includes the children of earlier parents
        first = np.searchsorted(parent_start, parent_start, side="left")
        start[ranked] = parent_start + before - before[first]
    # A parent starts at the same place as its first child but has a lower level.
    order = np.lexsort((level, start))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    start, end = start[order], (start + size)[order]
    place = np.where(leaf >= 0, start[number[leaf]] if len(order) else 0, len(leaf))
    return Hierarchy(
        node_at_place=np.argsort(place, kind="stable").astype(np.int64),
        level=level[order],
        parent=np.where(parent[order] >= 0, number[parent[order]], -1),
        start=start,
        end=end,
        subtree_end=np.searchsorted(start, end, side="left").astype(np.int64),
        packed=packed[order],
        modularity=modularity,
    )
