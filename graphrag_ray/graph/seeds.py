"""What a graph takes over from the partition of the one before it, community by community.

A community whose members and inner edges are what they were is divided as it was. In any other, Leiden starts
from the division of then, and few nodes may move: first only the newcomers, then also the ends of edges that
came, went or have another weight, then all; the first result that is good enough is taken, and at last a
division afresh. Good enough: modularity at most TOLERANCE below that afresh, so there is no drift.

This is the seeding of dynamic community detection (Aynaud and Guillaume 2010) with the frontier of Sahu
(2024, arXiv 2410.15451) as one rung of a ladder.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Communities
from graphrag_ray.graph.hierarchy import Hierarchy
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Edges, Floats, canonical, components, leiden, numbered

TOLERANCE = 0.01
"""Share of modularity that may be given up to leave communities as they are."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Past:
    """A graph and its hierarchy, as they were.

    node_keys               [M] the first 64 bits of each node's id, by the numbers of then
    source, target, weight  [E]
    """

    hierarchy: Hierarchy
    node_keys: npt.NDArray[np.uint64]
    source: Ints
    target: Ints
    weight: Floats


@dataclass(frozen=True, slots=True)
class Seed:
    """What is known of a community's nodes [n] and of how they were divided.

    start     the group that each node stood in; -1 for newcomers
    newcomer  was not in the community that this one goes back to
    touched   has an edge that came, went or has another weight
    same      members and edges are what they were
    """

    start: Ints
    newcomer: Bools
    touched: Bools
    same: bool


@dataclass(frozen=True, slots=True)
class LevelSeeds:
    """Seeds of all communities of a level that are to be divided; their nodes by node number [T]."""

    start: Ints
    newcomer: Bools
    touched: Bools
    same: Bools

    def of(self, community: int, nodes: Ints) -> Seed:
        """community: its place among those that were asked for."""
        return Seed(self.start[nodes], self.newcomer[nodes], self.touched[nodes], bool(self.same[community]))


class Seeds:
    """A past in the node numbers of a graph. Nodes that are gone are numbered from `n_nodes` on.

    Holds an integer for each node and level, and three for each edge of then and now.
    """

    def __init__(self, past: Past, n_nodes: int, node_keys: npt.NDArray[np.uint64], edges: Edges) -> None:
        then = past.node_keys
        number, self._n_all = np.arange(len(then), dtype=np.int64), len(then)
        if len(node_keys):
            order = np.argsort(node_keys, kind="stable")
            at = np.minimum(np.searchsorted(node_keys[order], then), n_nodes - 1)
            known = node_keys[order][at] == then
            self._n_all = n_nodes + int((~known).sum())
            number = np.where(known, order[at], -1)
            number[~known] = np.arange(n_nodes, self._n_all)
        h = past.hierarchy
        self._of_level = [np.full(self._n_all, -1, dtype=np.int64) for _ in range(h.n_levels)]
        for level, of_node in enumerate(self._of_level):
            community = h.community_of(level)
            community[h.packed[community] & (community >= 0)] = -1
            of_node[number] = community
        # Level -1: the graph itself, of all that Leiden had divided.
        self._root = np.where(self._of_level[0] >= 0, 0, -1) if self._of_level else None
        self._then = canonical(self._n_all, number[past.source], number[past.target], past.weight)
        self._edges = edges
        self._match = _match(edges, self._then, self._n_all)
        self._still = np.zeros(len(self._then), dtype=np.bool_)
        self._still[self._match[self._match >= 0]] = True

    def for_level(self, level: int, label: Ints, n_labels: int, edges: npt.NDArray[np.intp]) -> LevelSeeds:
        """Seeds for dividing communities of `level` (-1: the graph).

        label [N]: the community of each node, 0…n_labels-1, -1 for those that are not divided; edges:
        positions of those inside a community.
        """
        here = self._at(level)
        inside = np.full(self._n_all, -1, dtype=np.int64)
        inside[: len(label)] = label
        home = _most_common(here[: len(label)], label, n_labels)
        at_home = np.where(inside >= 0, home[inside], -1)
        newcomer = (inside >= 0) & ((here != at_home) | (at_home < 0))
        touched = np.zeros(self._n_all, dtype=np.bool_)
        # An edge that was not inside the community of then, or not with its weight.
        ends = self._edges.ends[edges]
        was = (self._match[edges] >= 0) & (here[ends] == at_home[ends[:, :1]]).all(axis=1)
        touched[ends[~was].ravel()] = True
        # One that is not inside their community any more, or not with its weight.
        then = self._then.inside(here)
        for one, other in ((0, 1), (1, 0)):
            node, neighbour = self._then.ends[:, one], self._then.ends[:, other]
            mine = then & (inside[node] >= 0) & (at_home[node] == here[node])
            touched[node[mine & ~(self._still & (inside[node] == inside[neighbour]))]] = True
        size_then = np.bincount(here[here >= 0], minlength=1)
        size = np.bincount(label[label >= 0], minlength=n_labels)
        same = (home >= 0) & (size == size_then[home])
        same[inside[(newcomer | touched) & (inside >= 0)]] = False
        return LevelSeeds(np.where(newcomer, -1, self._at(level + 1)), newcomer, touched, same)

    def _at(self, level: int) -> Ints:
        if self._root is None:
            return np.full(self._n_all, -1, dtype=np.int64)
        if level < 0:
            return self._root
        return self._of_level[min(level, len(self._of_level) - 1)]


def divide(
    n_nodes: int,
    edges: Edges,
    seed: Seed | None,
    options: Communities,
    generator: random.Random,
    quality: Callable[[Ints], float],
) -> Ints:
    """[n_nodes] a division of a graph, or of a community, into groups 0…k-1, each connected.

    quality: of a division; what is compared with TOLERANCE.
    """
    if seed is not None and seed.same:
        return numbered(seed.start)
    afresh = leiden(n_nodes, edges.ends, edges.weight, options, generator)
    if seed is None or (seed.start < 0).all():
        return afresh
    best, n_groups = quality(afresh), afresh.max(initial=-1)
    # A group may have lost the edges that held it together: start from its pieces.
    start = components(n_nodes, edges.ends[edges.inside(seed.start)])
    for free in (seed.newcomer, seed.newcomer | seed.touched, np.ones(n_nodes, dtype=np.bool_)):
        found = leiden(n_nodes, edges.ends, edges.weight, options, generator, start, ~free)
        # What Leiden can divide is divided, good or not: the size of communities is limited.
        divided = found.max() > 0 or n_groups <= 0
        if divided and quality(found) >= best - TOLERANCE * abs(best):
            return found
    return afresh


def _match(now: Edges, then: Edges, n_all: int) -> Ints:
    """[E] the edge of then with the same ends and weight; -1 where there is none."""
    keys, wanted = (e.ends[:, 0] * n_all + e.ends[:, 1] for e in (then, now))
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    same = (keys[at] == wanted) & (then.weight[at] == now.weight)
    # Parallel edges are not told apart: they count as changed.
    return np.where(same & _single(wanted) & _single(keys)[at], at, -1)


def _single(keys: Ints) -> Bools:
    """Which of these keys, in order, stand there once."""
    differs = np.ones(len(keys) + 1, dtype=np.bool_)
    differs[1:-1] = np.diff(keys) != 0
    single: Bools = differs[:-1] & differs[1:]
    return single


def _most_common(value: Ints, label: Ints, n_labels: int) -> Ints:
    """[n_labels] the value that most nodes of each label have, ties: the smallest; -1 where none has one."""
    found = np.full(n_labels, -1, dtype=np.int64)
    known = (label >= 0) & (value >= 0)
    if not known.any():
        return found
    width = int(value.max()) + 1
    pairs, count = np.unique(label[known] * width + value[known], return_counts=True)
    order = np.lexsort((pairs, -count, pairs // width))
    first = order[np.unique(pairs[order] // width, return_index=True)[1]]
    found[pairs[first] // width] = pairs[first] % width
    return found
