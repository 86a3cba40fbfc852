"""The edges of an undirected graph in one order, whatever order they came in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.leiden import Floats


@dataclass(frozen=True, slots=True)
class Edges:
    """ends [E, 2] with ends[:, 0] < ends[:, 1], sorted; weight [E], all above 0."""

    ends: npt.NDArray[np.int64]
    weight: Floats

    def __getitem__(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice) -> Edges:
        return Edges(self.ends[rows], self.weight[rows])

    def __len__(self) -> int:
        return len(self.weight)

    def inside(self, label: Ints) -> npt.NDArray[np.bool_]:
        """Edges whose two ends have the same label, -1 being none."""
        one, other = label[self.ends[:, 0]], label[self.ends[:, 1]]
        together: npt.NDArray[np.bool_] = (one == other) & (one >= 0)
        return together


def canonical(n_nodes: int, source: Ints, target: Ints, weight: Floats) -> Edges:
    """Edges in any order and direction as Edges; self-loops and those of weight 0 are passed over.

    Raises ValueError for weights that are negative or not finite and for ends that are no node.
    """
    ends = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1).astype(np.int64)
    weight = np.asarray(weight, dtype=np.float64)
    if len(ends) and (ends.min() < 0 or ends.max() >= n_nodes):
        raise ValueError(f"an edge ends outside of the {n_nodes} nodes")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError("edge weights must be finite and not negative")
    connects = (ends[:, 0] != ends[:, 1]) & (weight > 0)
    ends, weight = ends[connects], weight[connects]
    key = ends[:, 0] * n_nodes + ends[:, 1]
    order = np.argsort(key)
    if (np.diff(key[order]) == 0).any():  # parallel edges: their order must not matter either
        order = np.lexsort((weight, key))
    return Edges(ends[order], weight[order])


def modularity(label: Ints, edges: Edges) -> float:
    """Weighted modularity (Newman 2004) of a partition; nodes labelled -1 do not belong to the graph."""
    ends, weight = edges.ends, edges.weight
    belongs = label[ends[:, 0]] >= 0
    ends, weight = ends[belongs], weight[belongs]
    total = float(weight.sum())
    if total == 0:
        return 0.0
    strength = np.bincount(label[ends].ravel(), weights=np.repeat(weight, 2))
    inside = weight[label[ends[:, 0]] == label[ends[:, 1]]].sum()
    return float(inside / total - ((strength / (2 * total)) ** 2).sum())
