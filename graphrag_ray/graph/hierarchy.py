"""A hierarchy of communities as integer arrays, numbered so that every community is a range.

Nodes are renumbered by *place*: a depth-first walk of the hierarchy, in which the members of every
community, at any level, stand side by side. Communities are numbered in the same walk, parents before
children, so a community's descendants are a range of communities. Edges are sorted by the smallest
community that holds both ends; the edges inside any community are then a range as well. That is what
lets a report's context be planned, read and counted by slices at any size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hierarchy:
    """Communities 0…C-1 in depth-first order over nodes 0…N-1 (N: nodes of the graph, sorted by id).

    order        [N] node at each place: places start[c]:end[c] are the members of community c
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
        return below[self.parent[below] == community]

    def at_level(self, level: int) -> Ints:
        """C_level of the paper: the communities of that level and the leaves above it (4.1.2: a
        community without sub-communities is projected down). Together they hold every node once."""
        is_leaf = self.last - np.arange(self.n_communities) == 1
        return np.flatnonzero((self.level == level) | (is_leaf & (self.level < level)))

    def community_of(self, level: int) -> Ints:
        """[N] for each node, its community in C_level."""
        out = np.full(len(self.order), -1, dtype=np.int64)
        for c in self.at_level(level):
            out[self.order[self.start[c] : self.end[c]]] = c
        return out
