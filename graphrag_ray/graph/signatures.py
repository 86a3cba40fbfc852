"""What a community's report is written from, as a few integers: where these are as they were, so is it.

A signature adds up hashes of the elements inside a community and of the communities below it. Sums over
ranges are differences of running sums, so those of all communities cost one pass over all elements.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.plan import Elements

Hashes = npt.NDArray[np.uint64]
WIDTH = 5


def signatures(
    hierarchy: Hierarchy,
    elements: Elements,
    contents: tuple[Hashes, Hashes, Hashes],
    ids: Hashes,
    is_cut: npt.NDArray[np.bool_],
) -> Hashes:
    """[C, WIDTH] of each community: its nodes, the edges inside it, the claims about its nodes, itself with
    all below it; and the degrees of its edges where something may be left out, which then decide what is.

    contents  hashes of what nodes, edges and claims say, in the order of the elements
    ids       [C] of the communities, which tell their members and levels
    """
    h, e = hierarchy, elements
    communities = np.arange(h.n_communities)
    nodes, edges, claims = contents
    low = np.searchsorted(e.edge_community, communities)
    high = np.searchsorted(e.edge_community, h.last)
    claim_low, claim_high = (np.searchsorted(e.claim_place, of) for of in (h.start, h.end))
    degrees = mixed(edges + e.edge_degree.astype(np.uint64))
    found = np.zeros((h.n_communities, WIDTH), np.uint64)
    found[:, 0] = _sums(mixed(nodes), h.start, h.end)
    found[:, 1] = _sums(mixed(edges), low, high)
    found[:, 2] = _sums(mixed(claims), claim_low, claim_high)
    found[:, 3] = _sums(mixed(ids), communities, h.last)
    found[:, 4] = np.where(is_cut, _sums(degrees, low, high), np.uint64(0))
    return found


def as_before(hierarchy: Hierarchy, same: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """[C] those that are the same, and all below them."""
    found = same.copy()
    for level in range(hierarchy.n_levels - 1, 0, -1):
        other = np.flatnonzero((hierarchy.level == level) & ~found)
        found[hierarchy.parent[other]] = False
    return found


def _sums(values: Hashes, start: Ints, end: Ints) -> Hashes:
    """Modulo 2^64."""
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    return np.asarray(running[end] - running[start])


def content_hashes(table: pa.Table) -> pa.Array:
    """[rows] 64 bits for what each row says."""
    rows = (hashlib.blake2b(orjson.dumps(row), digest_size=8).digest() for row in table.to_pylist())
    return pa.array([int.from_bytes(digest) for digest in rows], pa.uint64())


def mixed(hashes: Hashes) -> Hashes:
    """Every bit of a hash in all bits of another one (splitmix64, Steele, Lea and Flood 2014)."""
    mixed = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
