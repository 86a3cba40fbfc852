"""What a graph takes over from the partition of its predecessor, community by community.

A community with unchanged members and inner edges is divided as before. In any other, Leiden starts from the
previous division and few nodes may move: first only the newcomers, then also the ends of changed edges, then
all. The first result with a modularity at most TOLERANCE below that of a fresh division is taken, so there is
no drift. This is the seeding of dynamic community detection (Aynaud and Guillaume 2010) with the frontier of
Sahu (2024, arXiv 2410.15451) as one step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.base.index_settings import Communities
from graphrag_ray.graph.hierarchy import Hierarchy
from graphrag_ray.graph.integer_arrays import Bools, Floats, Ints
from graphrag_ray.graph.leiden import Edges, canonical_edges, canonical_labels, connected_components, leiden

TOLERANCE = 0.01  # share of modularity that may be given up to keep communities unchanged


@dataclass(frozen=True)
class PreviousPartition:
    """A previous graph and its hierarchy. `node_keys` [M] are the first 64 bits of its nodes' ids."""

    hierarchy: Hierarchy
    node_keys: npt.NDArray[np.uint64]
    source: Ints
    target: Ints
    weight: Floats


@dataclass(frozen=True, slots=True)
class Seed:
    """What is known of a community's nodes [n] and of their previous division."""

    start: Ints  # previous group of each node; -1 for newcomers
    newcomer: Bools  # nodes that were not in the community that this one continues
    touched: Bools  # nodes with an edge that is new, gone or has another weight
    same: bool  # whether members and edges are unchanged


@dataclass(frozen=True, slots=True)
class LevelSeeds:
    """Seeds of all communities of a level that are to be divided; arrays by node number."""

    start: Ints
    newcomer: Bools
    touched: Bools
    same: Bools

    def of(self, community: int, nodes: Ints) -> Seed:
        """Return the seed of a community, given by its position among the communities to be divided."""
        return Seed(self.start[nodes], self.newcomer[nodes], self.touched[nodes], bool(self.same[community]))


class Seeds:
    """A previous graph in the node numbers of the current one; nodes that are gone come after these.

    Holds an integer per node and level, and three per edge of either graph.
    """

    def __init__(
        self, past: PreviousPartition, n_nodes: int, node_keys: npt.NDArray[np.uint64], edges: Edges
    ) -> None:
        keys = past.node_keys
        number, self._n_all = np.arange(len(keys), dtype=np.int64), len(keys)
        if len(node_keys):
            order = np.argsort(node_keys, kind="stable")
            position = np.minimum(np.searchsorted(node_keys[order], keys), n_nodes - 1)
            known = node_keys[order][position] == keys
            self._n_all = n_nodes + int((~known).sum())
            number = np.where(known, order[position], -1)
            number[~known] = np.arange(n_nodes, self._n_all)
        h = past.hierarchy
        self._levels = [np.full(self._n_all, -1, dtype=np.int64) for _ in range(h.n_levels)]
        for level, of_node in enumerate(self._levels):
            community = h.community_of(level)
            community[h.packed[community] & (community >= 0)] = -1
            of_node[number] = community
        # Level -1 is the graph itself, as far as Leiden divided it.
        none = np.full(self._n_all, -1, dtype=np.int64)
        self._root = np.where(self._levels[0] >= 0, 0, -1) if self._levels else none
        self._old_edges = canonical_edges(self._n_all, number[past.source], number[past.target], past.weight)
        self._edges = edges
        self._match = _match(edges, self._old_edges, self._n_all)
        self._unchanged = np.zeros(len(self._old_edges), dtype=np.bool_)
        self._unchanged[self._match[self._match >= 0]] = True

    def for_level(self, level: int, label: Ints, n_labels: int, edges: npt.NDArray[np.intp]) -> LevelSeeds:
        """Return seeds for dividing communities of `level` (-1: the graph).

        `label` [N] is the community of each node, 0…n_labels-1, or -1 if it is not divided; `edges` are the
        positions of the edges inside a community.
        """
        old = self._at(level)
        new = np.full(self._n_all, -1, dtype=np.int64)
        new[: len(label)] = label
        home = _most_common(old[: len(label)], label, n_labels)
        new_home = np.where(new >= 0, home[new], -1)
        newcomer = (new >= 0) & ((old != new_home) | (new_home < 0))
        touched = np.zeros(self._n_all, dtype=np.bool_)
        # Edges that were not inside the previous community, or had another weight.
        ends = self._edges.ends[edges]
        was_inside = (self._match[edges] >= 0) & (old[ends] == new_home[ends[:, :1]]).all(axis=1)
        touched[ends[~was_inside].ravel()] = True
        # Edges that are no longer inside the community, or have another weight.
        old_inside = self._old_edges.inside(old)
        for node, neighbour in (self._old_edges.ends.T, self._old_edges.ends.T[::-1]):
            stayed = old_inside & (new[node] >= 0) & (new_home[node] == old[node])
            touched[node[stayed & ~(self._unchanged & (new[node] == new[neighbour]))]] = True
        old_size = np.bincount(old[old >= 0], minlength=1)
        size = np.bincount(label[label >= 0], minlength=n_labels)
        same = (home >= 0) & (size == old_size[home])
        same[new[(newcomer | touched) & (new >= 0)]] = False
        return LevelSeeds(np.where(newcomer, -1, self._at(level + 1)), newcomer, touched, same)

    def _at(self, level: int) -> Ints:
        return (
            self._root if level < 0 or not self._levels else self._levels[min(level, len(self._levels) - 1)]
        )


def divide(
    n_nodes: int,
    edges: Edges,
    seed: Seed | None,
    options: Communities,
    generator: random.Random,
    quality: Callable[[Ints], float],
) -> Ints:
    """Divide a graph, or a community, into connected groups 0…k-1: the group of each node [n_nodes].

    `quality` rates a division; see TOLERANCE.
    """
    if seed is not None and seed.same:
        return canonical_labels(seed.start)
    fresh = leiden(n_nodes, edges.ends, edges.weight, options, generator)
    if seed is None or (seed.start < 0).all():
        return fresh
    best, n_groups = quality(fresh), fresh.max(initial=-1)
    # A group may have lost the edges that held it together, so start from its pieces.
    start = connected_components(n_nodes, edges.ends[edges.inside(seed.start)])
    for free in (seed.newcomer, seed.newcomer | seed.touched, np.ones(n_nodes, dtype=np.bool_)):
        label = leiden(n_nodes, edges.ends, edges.weight, options, generator, start, ~free)
        # What a fresh run divides must be divided, since the size of communities is limited.
        divided = label.max() > 0 or n_groups <= 0
        if divided and quality(label) >= best - TOLERANCE * abs(best):
            return label
    return fresh


def _match(new: Edges, old: Edges, n_all: int) -> Ints:
    """[E] the old edge with the same ends and weight, or -1. Parallel edges count as changed."""
    keys, wanted = (e.ends[:, 0] * n_all + e.ends[:, 1] for e in (old, new))
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    row = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    same = (keys[row] == wanted) & (old.weight[row] == new.weight)
    return np.where(same & _is_single(wanted) & _is_single(keys)[row], row, -1)


def _is_single(keys: Ints) -> Bools:
    """Return which of these sorted keys occur once."""
    differs = np.ones(len(keys) + 1, dtype=np.bool_)
    differs[1:-1] = np.diff(keys) != 0
    single: Bools = differs[:-1] & differs[1:]
    return single


def _most_common(value: Ints, label: Ints, n_labels: int) -> Ints:
    """[n_labels] most common value of the nodes of each label, ties: the smallest; -1 if none has one."""
    common = np.full(n_labels, -1, dtype=np.int64)
    known = (label >= 0) & (value >= 0)
    width = int(value.max(initial=0)) + 1
    pairs, count = np.unique(label[known] * width + value[known], return_counts=True)
    order = np.lexsort((pairs, -count, pairs // width))
    first = order[np.unique(pairs[order] // width, return_index=True)[1]]
    common[pairs[first] // width] = pairs[first] % width
    return common
