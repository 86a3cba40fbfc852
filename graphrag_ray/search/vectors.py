"""Vector search by cosine similarity: exact, or by a graph of neighbours where there are very many vectors.

A shard of an index is one file, which is memory-mapped:

    ids      the records, sorted
    vectors  of length 1, one after the other, or zeros where there is no direction; float32
    graph    in place of them, bytes of a usearch index: the vectors as float16, and a hierarchical navigable
             small-world graph of them (Malkov and Yashunin 2018)

Either way a score is computed from the vectors; the graph only says which of them are worth it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.search import graph_file
from graphrag_ray.search.graph_file import matrix_in
from graphrag_ray.search.mapped_arrays import check_ids, packed, unpacked
from graphrag_ray.search.ranking import Found, Rows, best, named, places_of

Floats = npt.NDArray[np.float32]

DIGITS = 6
"""Of a score: what is equal in them is equal. The last bits of a sum depend on how it was added up."""
NEIGHBOURS, EXPANSION = 16, 128
"""Of a vector in the graph; candidates for them when it is added."""
CANDIDATES = 256
"""At least so many vectors are looked at as if they were wanted, and twice those that are."""
LARGE_SHARE = 0.1
"""Of a shard: fewer vectors are gone through one by one, rather than found by the graph and sorted out."""

_ROWS_AT_ONCE = 16_384
_TYPES = {"vectors": pa.float32(), "graph": pa.uint8()}
_LONGEST = 1.001
"""Length of a vector, rounded to float16."""


@dataclass(frozen=True)
class VectorShard:
    """ids, sorted; vectors: [ids, dimensions] in mapped memory, float32 or float16."""

    ids: pa.Array
    vectors: npt.NDArray[Any]
    graph: _VectorGraph | None = None

    @property
    def dimensions(self) -> int:
        return int(self.vectors.shape[1])


def build(ids: Sequence[str], vectors: Floats, graph: bool = False) -> pa.Buffer:
    """The bytes of a shard: the same for the same records, whatever their order.

    vectors: [ids, dimensions], of any length
    """
    order = np.asarray(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    matrix = unit(vectors[order])
    sorted_ids = pa.array([ids[i] for i in order], pa.string())
    if graph:
        return packed({"ids": sorted_ids, "graph": pa.array(np.frombuffer(_graph_of(matrix), np.uint8))})
    return packed({"ids": sorted_ids, "vectors": pa.array(matrix.reshape(-1))})


def read(data: pa.Buffer) -> VectorShard:
    """A shard from its bytes, without copying them. Raises ValueError for what is none."""
    ids, arrays = unpacked(data, _TYPES)
    if len(arrays) != 1:
        raise ValueError("it holds vectors, or a graph of them")
    if "vectors" in arrays:
        return VectorShard(ids, arrays["vectors"].reshape(len(ids), -1))
    matrix = matrix_in(arrays["graph"])
    if len(matrix) != len(ids):
        raise ValueError("its graph is one of other vectors")
    return VectorShard(ids, matrix, _VectorGraph(arrays["graph"]))


def check(shard: VectorShard) -> None:
    """Whether it can be searched: reads all of it. Raises ValueError."""
    check_ids(shard.ids)
    for start in range(0, len(shard.ids), _ROWS_AT_ONCE):
        some = shard.vectors[start : start + _ROWS_AT_ONCE]
        if not np.abs(some).max(initial=0.0) <= _LONGEST:  # nor where one is no number
            raise ValueError("a vector is longer than 1")
    if shard.graph is not None:
        graph_file.check(shard.graph.raw)
        shard.graph.open()


def unit(vectors: Floats) -> Floats:
    """Each vector with length 1; zeros where it has no length, or none that is a number."""
    # Divided by the largest first: float32 cannot hold the square of each number that it can hold.
    scale = np.max(np.abs(vectors), axis=1, keepdims=True, initial=0.0)
    sound = np.isfinite(scale) & (scale > 0)
    scaled = np.where(sound, vectors, 0.0) / np.where(sound, scale, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(length > 0, length, 1.0), dtype=np.float32)


def search(shard: VectorShard, wanted: Floats, k: int, among: pa.Array | None = None) -> list[Found]:
    """The k records whose vectors have the least angle to the wanted one, which has length 1."""
    rows = places_of(shard.ids, among)
    if shard.graph is not None:
        rows = _near(shard.graph, wanted, k, rows, len(shard.ids))
    scores = np.round(_products(shard.vectors, rows, wanted), DIGITS)
    found = best(scores, k)
    return named(shard.ids, found if rows is None else rows[found], scores[found])


def _products(vectors: npt.NDArray[Any], rows: Rows | None, wanted: Floats) -> npt.NDArray[np.float64]:
    if rows is None and vectors.dtype == np.float32:
        return (vectors @ wanted).astype(np.float64)
    n = len(vectors) if rows is None else len(rows)
    found = np.empty(n, np.float64)
    for start in range(0, n, _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        some = vectors[part if rows is None else rows[part]]
        found[part] = some.astype(np.float32, copy=False) @ wanted
    return found


@dataclass
class _VectorGraph:
    """A usearch index in mapped memory; opened when it is first searched."""

    raw: npt.NDArray[np.uint8]
    _index: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        """Raises ValueError for what usearch does not take."""
        from usearch.index import Index  # exact search does without it

        try:
            self._index = Index.restore(self.raw.data, view=True, enable_key_lookups=False)
        except RuntimeError as e:
            raise ValueError(f"usearch does not open it: {e}") from e

    def nearest(self, wanted: Floats, count: int) -> Rows:
        """Places of about the `count` nearest vectors, in no order."""
        with self._lock:
            if self._index is None:
                self.open()
            self._index.expansion_search = count
            return np.asarray(self._index.search(wanted, count, threads=1).keys, dtype=np.int64)


def _near(graph: _VectorGraph, wanted: Floats, k: int, among: Rows | None, n: int) -> Rows | None:
    """Places that are worth a look. among: all that there are where it is None."""
    share = 1.0 if among is None else len(among) / n
    count = math.ceil(max(CANDIDATES, 2 * k) / share) if share else n
    if share < LARGE_SHARE or count > LARGE_SHARE * n:
        return among
    found = np.sort(graph.nearest(wanted, count))
    if among is None:
        return found
    known = found[np.isin(found, among, assume_unique=True)]
    return known if len(known) >= k else among


def _graph_of(matrix: Floats) -> bytes:
    from usearch.index import Index

    index = Index(
        ndim=matrix.shape[1], metric="ip", dtype="f16", connectivity=NEIGHBOURS, expansion_add=EXPANSION
    )
    # By one thread: what neighbours a vector has would else depend on which was added first.
    index.add(np.arange(len(matrix), dtype=np.uint64), matrix, threads=1)
    made = bytes(index.save())
    raw = np.frombuffer(made, np.uint8)
    graph_file.check(raw)
    if not np.allclose(matrix_in(raw), matrix, atol=1e-3):
        raise AssertionError("a usearch index does not begin with its vectors any more")
    return made
