"""Signatures: a few integers that summarise the inputs of a report, to find unchanged communities.

A signature consists of sums of hashes of the elements inside a community and of its descendants. Sums over
ranges are differences of running sums, so all communities together take one pass over the elements.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from graphrag_ray.graph.context_plan import GraphElements
from graphrag_ray.graph.hierarchy import Hierarchy, Ints
from graphrag_ray.graph.integer_arrays import Bools

Hashes = npt.NDArray[np.uint64]
SIGNATURE_WIDTH = 5


def signatures(
    hierarchy: Hierarchy,
    elements: GraphElements,
    contents: tuple[Hashes, Hashes, Hashes],
    ids: Hashes,
    is_cut: Bools,
) -> Hashes:
    """[C, SIGNATURE_WIDTH] sums over the nodes, inner edges, claims and descendants of each community.

    If the context is cut, the last column includes degrees, which decide which edges are left out.

    `contents` are hashes of the texts of nodes, edges and claims. `ids` [C] identify members and levels.
    """
    h, e = hierarchy, elements
    communities = np.arange(h.n_communities)
    nodes, edges, claims = contents
    low = np.searchsorted(e.edge_community, communities)
    high = np.searchsorted(e.edge_community, h.subtree_end)
    claim_low, claim_high = (np.searchsorted(e.claim_place, places) for places in (h.start, h.end))
    degrees = _range_sums(mix_bits(edges + e.edge_degree.astype(np.uint64)), low, high)
    columns = [
        _range_sums(mix_bits(nodes), h.start, h.end),
        _range_sums(mix_bits(edges), low, high),
        _range_sums(mix_bits(claims), claim_low, claim_high),
        _range_sums(mix_bits(ids), communities, h.subtree_end),
        np.where(is_cut, degrees, np.uint64(0)),
    ]
    return np.stack(columns, axis=1)


def unchanged_subtrees(hierarchy: Hierarchy, same: Bools) -> Bools:
    """[C] mask of the communities that are the same, including all their descendants."""
    unchanged = same.copy()
    for level in range(hierarchy.n_levels - 1, 0, -1):
        changed = np.flatnonzero((hierarchy.level == level) & ~unchanged)
        unchanged[hierarchy.parent[changed]] = False
    return unchanged


def _range_sums(values: Hashes, start: Ints, end: Ints) -> Hashes:
    """Return sums over ranges, modulo 2^64."""
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    return np.asarray(running[end] - running[start])


def content_hashes(table: pa.Table) -> pa.Array:
    """[rows] 64-bit hash of the values of each row."""
    rows = (hashlib.blake2b(orjson.dumps(row), digest_size=8).digest() for row in table.to_pylist())
    return pa.array([int.from_bytes(digest) for digest in rows], pa.uint64())


def mix_bits(hashes: Hashes) -> Hashes:
    """Mix the bits of hashes with the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    mixed = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
