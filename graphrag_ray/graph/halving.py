"""Cutting a set of nodes into pieces of bounded size by what they mean.

Halves, and halves of these, each at the middle of the direction in which the members differ most: the
principal direction divisive partitioning of Boley (1998), but at the middle by size and not at the mean, so
that it ends after few rounds, also where all vectors are the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.graph.nearest_neighbours import Vectors

_DIGITS = 4
_SAMPLE = 20_000
"""Members by which the direction is found, where there are more."""


def halved(members: Ints, vectors: Vectors, sizes: Ints, most: int) -> list[Ints]:
    """Pieces whose sizes sum to at most `most`, or of one member; each in ascending order.

    members: ascending; vectors [nodes, dimensions], sizes [nodes]: of all nodes
    """
    open_, found = [members], []
    while open_:
        own = open_.pop()
        if len(own) < 2 or sizes[own].sum() <= most:
            found.append(own)
            continue
        order = np.argsort(_along(vectors, own), kind="stable")
        until = np.cumsum(sizes[own[order]])
        middle = int(np.clip(np.searchsorted(until, until[-1] / 2, "right"), 1, len(own) - 1))
        open_ += [np.sort(own[order[middle:]]), np.sort(own[order[:middle]])]
    return found


def _along(vectors: Vectors, members: Ints) -> npt.NDArray[np.float64]:
    """[members] where each stands on the first principal axis, by some steps of the power method."""
    some = vectors[members[:: -(-len(members) // _SAMPLE)]]
    mean = some.mean(axis=0, dtype=np.float64)
    less = some.astype(np.float64) - mean
    axis = less[np.argmax(np.einsum("ij,ij->i", less, less))]
    for _ in range(8):
        axis = less.T @ (less @ axis)
        length = np.linalg.norm(axis)
        if length == 0:
            break
        axis = axis / length
    found = np.empty(len(members))
    for at in range(0, len(members), _SAMPLE):
        found[at : at + _SAMPLE] = (vectors[members[at : at + _SAMPLE]].astype(np.float64) - mean) @ axis
    rounded: npt.NDArray[np.float64] = np.round(found, _DIGITS)
    return rounded
