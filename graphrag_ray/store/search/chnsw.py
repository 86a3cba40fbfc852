"""Search for the nearest nodes of all levels of a hierarchy (C-HNSW of ArchRAG, Wang et al. 2025).

Entities are level 0, and communities are the levels above. A node belongs to one level. It is linked to near
nodes of its level, as in HNSW (Malkov and Yashunin 2018, "Efficient and robust approximate nearest neighbor
search using Hierarchical Navigable Small World graphs"), and to its nearest node in the level below. A search
finds the nearest nodes of the highest level, enters the next level at their down-links, and so on. So one
descent finds the nearest nodes of each level. Small levels have no links and are searched exhaustively.

The loops are compiled by numba (`proximity_graphs`), installed by `pip install 'graphrag-ray[archrag]'`.
Without numba, the index is not built, and each level is searched separately (`vector_index`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search import mapped_arrays
from graphrag_ray.store.search.mapped_arrays import ByteSource, Ints, MappedArray, join_halves
from graphrag_ray.store.search.vector_index import DIGITS, Floats, ScoredId, normalize

M, EF_BUILD = 32, 100  # The paper's values.
EF = 20  # Number of candidates per level in a search.
EXACT = 500  # Levels with at most this many nodes have no links.

_Cosines: TypeAlias = npt.NDArray[np.float64]
_NO_KEYS = np.zeros(0, "<u8")
_BATCH_ROWS = 16_384
_WIDTH = 64
_MAX_NODES, _MAX_LEVELS, _MAX_LINKS, _MAX_DIMENSIONS = 1 << 30, 1_000, 1 << 16, 1 << 16
_PEAK, _FINEST = 127, 32_767
_TYPES = {
    "shape": "<i8",  # Dimensions, and the maximum number of links of a node.
    "step": "<f4",  # The quantization step of vectors.
    "starts": "<i8",  # [levels + 1] Start of each level in the arrays of nodes.
    "linked": "|u1",  # [levels] Whether the nodes of a level are linked to each other.
    "high": "<u8",  # Halves of the nodes' ids, sorted within each level.
    "low": "<u8",
    "codes": "|i1",  # Vectors of length 1 or 0 in steps, padded with zeros to a multiple of 64 numbers.
    "rest": "|i1",  # Their remainders in 256ths of a step.
    "down": "<i4",  # Nearest node in the level below, or -1.
    "links": "<i4",  # Links within linked levels, by node, padded with -1.
}


@dataclass(frozen=True)
class ChnswIndex:
    source: ByteSource
    arrays: Mapping[str, MappedArray]
    dimensions: int
    step: float
    starts: Ints  # [levels + 1]
    firsts: Ints  # [levels] Index of a level's first row of `links`, or -1 without links.
    links: MappedArray  # [linked nodes, links]

    @property
    def n_levels(self) -> int:
        return len(self.firsts)

    def nearest(self, wanted: Floats, k: int, ef: int = EF) -> list[list[ScoredId]]:
        """Return the k nodes of each level with the highest cosine similarity, level 0 first.

        Cosines are accurate to about 1e-5, or to 3e-4 if a few vectors have much larger components than
        others. Levels without links, and levels with at most `ef` nodes, are searched exhaustively.

        Args:
            wanted: [dimensions] A vector of any length.
            ef: Candidates per level. Larger values are slower but find more of the nearest nodes.

        Returns:
            Ids and cosines, sorted by falling cosine, then by id.
        """
        if not self.n_levels:
            return []
        positions, cosines, counts = (a[0].tolist() for a in self.nearest_positions(wanted[None], k, ef))
        chosen = np.array([p for row, n in zip(positions, counts, strict=True) for p in row[:n]], np.int64)
        ids = iter(join_halves(self.arrays["high"].take(chosen), self.arrays["low"].take(chosen)))
        return [[(next(ids), cosine) for cosine in row[:n]] for row, n in zip(cosines, counts, strict=True)]

    def nearest_positions(self, wanted: Floats, k: int, ef: int = EF) -> tuple[Ints, _Cosines, Ints]:
        """Like `nearest`, for many vectors: [vectors, dimensions].

        Returns:
            Positions and cosines [vectors, levels, at most k], and their numbers [vectors, levels].
        """
        if wanted.shape[1] != self.dimensions:
            raise ValueError(f"The index has {self.dimensions} dimensions, not {wanted.shape[1]}")
        directions = normalize(wanted)
        peak = np.abs(directions).max(axis=1, keepdims=True)
        peak = np.where(peak > 0, peak, 1.0).astype(np.float64)
        # The dot product with a vector of 8-bit numbers must fit into 32 bits.
        width = _padded(self.dimensions)
        finest = min(_FINEST, (1 << 31) // (129 * width))
        scaled = np.zeros((len(wanted), width), np.int16)
        scaled[:, : self.dimensions] = np.rint(directions * (finest / peak))
        loops, largest = _loops(), int(np.diff(self.starts).max(initial=0))
        k = max(0, min(k, largest))
        scores = np.zeros((len(scaled), self.n_levels, max(k, loops.ENTRIES)), np.int64)
        positions, counts = np.zeros_like(scores), np.zeros((len(scaled), self.n_levels), np.int64)
        ef = min(max(ef, k), largest)
        for i in range(len(scaled)):
            loops.descend(scaled[i], self._graph, 0, ef, scores[i], positions[i], counts[i])
        products = scores[..., :k] * (self.step * peak / finest / 256)[..., None]
        cosines = np.asarray(np.round(np.clip(products, -1.0, 1.0), DIGITS), np.float64)
        return positions[..., :k], cosines, np.minimum(counts, k)

    @cached_property
    def _graph(self) -> tuple[Any, ...]:
        return _loops().Graph(  # type: ignore[no-any-return]
            width=_padded(self.dimensions),
            per_node=self.links.values.shape[1],
            links=self.links.whole().reshape(-1),
            starts=self.starts,
            firsts=self.firsts,
            **{name: self.arrays[name].whole() for name in ("codes", "rest", "down")},
        )


def build(
    levels: Sequence[tuple[Sequence[str], Floats]], m: int = M, ef: int = EF_BUILD, exact: int = EXACT
) -> bytes:
    """Return the bytes of an index, which do not depend on the order of the nodes within a level.

    Args:
        levels: Ids and vectors [nodes, dimensions] of any length, by level from 0.
        m: Number of links of a new node. Later nodes may double it.
        ef: Number of candidates while searching for the links of a node.
        exact: Levels with at most this many nodes have no links.

    Raises:
        ValueError: If ids are invalid or repeated, or vectors have different dimensions.
    """
    if not 1 <= m <= _MAX_LINKS // 2:
        raise ValueError(f"A node cannot have {m} links")
    names = [id_ for ids, _ in levels for id_ in ids]
    widths = {vectors.shape[1] for _, vectors in levels}
    if len(set(names)) != len(names):
        raise ValueError("An id occurs twice")
    if len(widths) > 1 or any(len(ids) != len(vectors) for ids, vectors in levels):
        raise ValueError("Each id needs one vector, and all vectors need the same dimensions")
    dimensions = widths.pop() if widths else 1
    sizes = [len(ids) for ids, _ in levels]
    starts = np.cumsum([0, *sizes]).astype(np.int64)
    sorted_ids = [mapped_arrays.sorted_halves(ids) for ids, _ in levels]
    high, low = (np.concatenate([_NO_KEYS, *(ids[half] for ids, _ in sorted_ids)]) for half in (0, 1))
    vectors = [(matrix, order) for (_, matrix), (_, order) in zip(levels, sorted_ids, strict=True)]
    codes, rest, step = _encode(vectors, len(names), dimensions)
    loops = _loops()
    linked = np.array([n > exact for n in sizes], np.uint8)
    firsts = _firsts(starts, linked)
    links = np.full(int((np.diff(starts) * linked).sum()) * 2 * m, -1, np.int32)
    down = np.full(len(names), -1, np.int32)
    width = _padded(dimensions)
    graph = loops.Graph(width, 2 * m, codes.reshape(-1), rest.reshape(-1), links, down, starts, firsts)
    for level in reversed(range(len(levels))):
        if linked[level]:
            loops.build_level(graph, level, max(ef, m))
        if level + 1 < len(levels):
            loops.link_down(graph, level, max(m, loops.ENTRIES))
    shape, ids = np.array([dimensions, 2 * m]), {"high": high, "low": low}
    arrays = {"shape": shape, "step": np.array([step]), "starts": starts, "linked": linked, **ids}
    arrays |= {"codes": codes.reshape(-1), "rest": rest.reshape(-1), "down": down, "links": links}
    return mapped_arrays.pack(arrays, _TYPES)


def read(source: ByteSource) -> ChnswIndex:
    """Open an index. Invalid files raise `source.invalid`; links are checked when they are followed."""
    arrays = mapped_arrays.unpack(source, _TYPES, _TYPES)
    shape, step = arrays["shape"].whole(), arrays["step"].whole()
    starts, linked = arrays["starts"].whole(), arrays["linked"].whole()
    n, n_levels = len(arrays["high"]), len(linked)
    if len(shape) != 2 or len(step) != 1 or len(starts) != n_levels + 1 or n_levels > _MAX_LEVELS:
        raise source.invalid("its arrays have inconsistent lengths")
    dimensions, per_node = shape.tolist()
    if not (1 <= dimensions <= _MAX_DIMENSIONS and 1 <= per_node <= _MAX_LINKS and 0 < step[0] < 1):
        raise source.invalid("its vectors or links have an impossible size")
    if starts[0] != 0 or starts[-1] != n or (starts[1:] < starts[:-1]).any():
        raise source.invalid("its levels are not in order")
    n_links = int((np.diff(starts) * (linked > 0)).sum()) * per_node
    numbers = n * _padded(dimensions)
    lengths = {"low": n, "down": n, "codes": numbers, "rest": numbers, "links": n_links}
    if n > _MAX_NODES or any(len(arrays[name]) != length for name, length in lengths.items()):
        raise source.invalid("its arrays have inconsistent lengths")
    # Copy these arrays, because a mapped file could change while the loops use them.
    levels = starts.astype(np.int64), _firsts(starts, linked)
    return ChnswIndex(source, arrays, dimensions, float(step[0]), *levels, arrays["links"].rows(per_node))


@cache
def has_loops() -> bool:
    """Return whether indexes can be built and searched, which requires numba."""
    return find_spec("numba") is not None


def _loops() -> ModuleType:
    from graphrag_ray.store.search import proximity_graphs  # Imported on demand, because numba takes 0.4 s.

    return proximity_graphs


def _padded(dimensions: int) -> int:
    return -(-dimensions // _WIDTH) * _WIDTH


def _firsts(starts: Ints, linked: npt.NDArray[np.uint8]) -> Ints:
    sizes = np.diff(starts) * (linked > 0)
    return np.where(linked > 0, np.cumsum(sizes) - sizes, -1).astype(np.int64)


def _encode(
    levels: Sequence[tuple[Floats, Ints]], n: int, dimensions: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8], float]:
    """Quantize vectors, given with their order. Return the whole steps, the 256ths and the step size."""
    batches = [
        (vectors, order[start : start + _BATCH_ROWS])
        for vectors, order in levels
        for start in range(0, len(order), _BATCH_ROWS)
    ]
    highest = max((float(np.max(np.abs(normalize(vectors[rows])))) for vectors, rows in batches), default=0.0)
    # Rounded, because its last bits may differ between machines.
    step = float(np.float32(max(1, np.ceil(highest * 1024)) / 1024 / _PEAK))
    codes = np.zeros((n, _padded(dimensions)), np.int8)
    rest, start = np.zeros_like(codes), 0
    for vectors, rows in batches:
        steps = normalize(vectors[rows]).astype(np.float64) / step
        whole = np.clip(np.rint(steps), -_PEAK, _PEAK)
        codes[start : start + len(rows), :dimensions] = whole
        rest[start : start + len(rows), :dimensions] = np.clip(np.rint((steps - whole) * 256), -_PEAK, _PEAK)
        start += len(rows)
    return codes, rest, step
