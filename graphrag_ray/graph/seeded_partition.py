"""Partition an updated graph similarly to its previous version, community by community.

A community with unchanged members and inner edges is divided as before. In any other, Leiden starts from the
previous division and few nodes may move: first only new nodes, then also the ends of changed edges, then all.
The first result whose modularity is within TOLERANCE of a fresh division is used, so the partition does not
drift. This is dynamic community detection with a seed (Aynaud and Guillaume 2010), with the frontier of Sahu
(2024, arXiv 2410.15451) as one step.
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

TOLERANCE = 0.01  # maximum relative loss of modularity to leave communities unchanged


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
    """The previous division of a community's nodes [n], and the changes since then."""

    start: Ints  # previous group of each node, or -1 for newcomers
    newcomer: Bools  # nodes that were not in the previous version of this community
    touched: Bools  # nodes with an added, removed or reweighted edge
    same: bool  # whether members and edges are unchanged


@dataclass(frozen=True, slots=True)
class LevelSeeds:
    """Seeds for all communities of a level that will be divided, as arrays by node number."""

    start: Ints
    newcomer: Bools
    touched: Bools
    same: Bools

    def of(self, community: int, nodes: Ints) -> Seed:
        """Return the seed of a community, identified by its position among the divided communities."""
        return Seed(self.start[nodes], self.newcomer[nodes], self.touched[nodes], bool(self.same[community]))


class Seeds:
    """A previous graph with the node numbers of the current one. Removed nodes get the numbers after these.

    Takes an integer per node and level, and three per edge of either graph.
    """

    def __init__(
        self, previous: PreviousPartition, n_nodes: int, node_keys: npt.NDArray[np.uint64], edges: Edges
    ) -> None:
        keys = previous.node_keys
        number, self._n_all = np.arange(len(keys), dtype=np.int64), len(keys)
        if len(node_keys):
            order = np.argsort(node_keys, kind="stable")
            position = np.minimum(np.searchsorted(node_keys[order], keys), n_nodes - 1)
            is_current = node_keys[order][position] == keys
            self._n_all = n_nodes + int((~is_current).sum())
            number = np.where(is_current, order[position], -1)
            number[~is_current] = np.arange(n_nodes, self._n_all)
        h = previous.hierarchy
        self._levels = [np.full(self._n_all, -1, dtype=np.int64) for _ in range(h.n_levels)]
        for level, node_community in enumerate(self._levels):
            community = h.community_of(level)
            community[h.packed[community] & (community >= 0)] = -1
            node_community[number] = community
        # Level -1 is the part of the graph that Leiden divided.
        no_groups = np.full(self._n_all, -1, dtype=np.int64)
        self._root = np.where(self._levels[0] >= 0, 0, -1) if self._levels else no_groups
        source, target = number[previous.source], number[previous.target]
        self._old_edges = canonical_edges(self._n_all, source, target, previous.weight)
        self._edges = edges
        self._match = _match(edges, self._old_edges, self._n_all)
        self._unchanged = np.zeros(len(self._old_edges), dtype=np.bool_)
        self._unchanged[self._match[self._match >= 0]] = True

    def for_level(self, level: int, label: Ints, n_labels: int, edges: npt.NDArray[np.intp]) -> LevelSeeds:
        """Return seeds for dividing communities of `level` (-1: the graph).

        `label` [N] is the community of each node, 0…n_labels-1, or -1 if it is not divided. `edges` are the
        positions of the edges inside a community.
        """
        old = self._groups_at(level)
        new = np.full(self._n_all, -1, dtype=np.int64)
        new[: len(label)] = label
        home = _most_common(old[: len(label)], label, n_labels)
        new_home = np.where(new >= 0, home[new], -1)
        newcomer = (new >= 0) & ((old != new_home) | (new_home < 0))
        touched = np.zeros(self._n_all, dtype=np.bool_)
        # Touch the ends of edges that were not inside the previous community or had another weight.
        ends = self._edges.ends[edges]
        was_inside = (self._match[edges] >= 0) & (old[ends] == new_home[ends[:, :1]]).all(axis=1)
        touched[ends[~was_inside].ravel()] = True
        # Touch the ends of edges that are no longer inside the community or have another weight.
        old_inside = self._old_edges.inside(old)
        for node, neighbour in (self._old_edges.ends.T, self._old_edges.ends.T[::-1]):
            stayed = old_inside & (new[node] >= 0) & (new_home[node] == old[node])
            touched[node[stayed & ~(self._unchanged & (new[node] == new[neighbour]))]] = True
        old_size = np.bincount(old[old >= 0], minlength=1)
        size = np.bincount(label[label >= 0], minlength=n_labels)
        same = (home >= 0) & (size == old_size[home])
        same[new[(newcomer | touched) & (new >= 0)]] = False
        return LevelSeeds(np.where(newcomer, -1, self._groups_at(level + 1)), newcomer, touched, same)

    def _groups_at(self, level: int) -> Ints:
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
    """Divide a graph or community into connected groups 0…k-1. Returns the group of each node [n_nodes].

    `quality` rates a division; see TOLERANCE.
    """
    if seed is not None and seed.same:
        return canonical_labels(seed.start)
    fresh = leiden(n_nodes, edges.ends, edges.weight, options, generator)
    if seed is None or (seed.start < 0).all():
        return fresh
    best, n_groups = quality(fresh), fresh.max(initial=-1)
    # Start from the connected pieces of groups, because a group may have been disconnected.
    start = connected_components(n_nodes, edges.ends[edges.inside(seed.start)])
    for movable in (seed.newcomer, seed.newcomer | seed.touched, np.ones(n_nodes, dtype=np.bool_)):
        label = leiden(n_nodes, edges.ends, edges.weight, options, generator, start, ~movable)
        # Divide whatever a fresh run divides, because the size of communities is limited.
        divided = label.max() > 0 or n_groups <= 0
        if divided and quality(label) >= best - TOLERANCE * abs(best):
            return label
    return fresh


def _match(new: Edges, old: Edges, n_all: int) -> Ints:
    """[E] the old edge with the same ends and weight, or -1. Parallel edges are considered changed."""
    keys, new_keys = (e.ends[:, 0] * n_all + e.ends[:, 1] for e in (old, new))
    if not len(keys):
        return np.full(len(new_keys), -1, dtype=np.int64)
    row = np.minimum(np.searchsorted(keys, new_keys), len(keys) - 1)
    same = (keys[row] == new_keys) & (old.weight[row] == new.weight)
    return np.where(same & _is_single(new_keys) & _is_single(keys)[row], row, -1)


def _is_single(keys: Ints) -> Bools:
    """Return a mask of the sorted keys that occur once."""
    differs = np.ones(len(keys) + 1, dtype=np.bool_)
    differs[1:-1] = np.diff(keys) != 0
    single: Bools = differs[:-1] & differs[1:]
    return single


def _most_common(value: Ints, label: Ints, n_labels: int) -> Ints:
    """[n_labels] most common value of the nodes of each label, smallest if tied, -1 if unknown."""
    common = np.full(n_labels, -1, dtype=np.int64)
    known = (label >= 0) & (value >= 0)
    width = int(value.max(initial=0)) + 1
    pairs, count = np.unique(label[known] * width + value[known], return_counts=True)
    order = np.lexsort((pairs, -count, pairs // width))
    first = order[np.unique(pairs[order] // width, return_index=True)[1]]
    common[pairs[first] // width] = pairs[first] % width
    return common
