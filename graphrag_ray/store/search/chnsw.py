"""The nearest of every level at once: a hierarchy of proximity graphs (C-HNSW of ArchRAG, Wang et al. 2025).

Entities are level 0, communities are above. Each node is in one level. It is linked to near nodes of its
level, as in HNSW (Malkov and Yashunin 2018, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs"), and down to its nearest in the level below. A question walks to
its nearest in the highest level, enters the next one where the best of these lead down to, and so on. So one
descent finds the nearest of each level, and what is above a level are its communities, not nodes drawn at
random. A level of few nodes has no links between them: all of them are looked at, which is faster.

The loops are compiled by numba (`proximity_graphs`), which `pip install 'graphrag-ray[archrag]'` brings.
Without it there is no such index: levels are searched one by one (`vectors`).

An index is one file:

    shape      dimensions, and how many links a node can have; int64
    step       a vector's numbers are so many times what is stored; float32
    starts     where each level begins in what follows, and where the last one ends; int64
    linked     whether a level's nodes are linked to each other; uint8
    high, low  the halves of the nodes' ids, sorted in each level
    codes      the vectors, of length 1 or 0, with zeros up to a multiple of 64 numbers: whole steps; int8
    rest       256ths of the step that are added to them; int8
    down       a node's nearest in the level below; -1 where there is none; int32
    links      of each node of a linked level, to nodes of its level; -1 behind the last; int32
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

from graphrag_ray.store.search.mapped_arrays import (
    ByteSource,
    Ints,
    MappedArray,
    ids_of,
    packed,
    sorted_halves,
    unpacked,
)
from graphrag_ray.store.search.vectors import DIGITS, Floats, Found, unit

M, EF_BUILD = 32, 100
"""Those of the paper."""
EF = 20
"""So many nodes of a level are kept while a question walks through it."""
EXACT = 500
"""Levels of up to so many nodes have no links."""

_Exact: TypeAlias = npt.NDArray[np.float64]
_NO_KEYS = np.zeros(0, "<u8")
_ROWS_AT_ONCE = 16_384
_WIDTH = 64
_MOST_NODES, _MOST_LEVELS = 1 << 30, 1_000
_MOST_LINKS = 1 << 16
_MOST_DIMENSIONS = 1 << 16
_PEAK, _FINEST = 127, 32_767
_TYPES = {"shape": "<i8", "step": "<f4", "starts": "<i8", "linked": "|u1", "high": "<u8", "low": "<u8"}
_TYPES |= {"codes": "|i1", "rest": "|i1", "down": "<i4", "links": "<i4"}


@dataclass(frozen=True)
class ChnswIndex:
    """arrays: as above; starts: [levels + 1]; firsts: [levels] where the links of each level begin, -1: it
    has none; links: [linked nodes, links]"""

    source: ByteSource
    arrays: Mapping[str, MappedArray]
    dimensions: int
    step: float
    starts: Ints
    firsts: Ints
    links: MappedArray

    @property
    def n_levels(self) -> int:
        return len(self.firsts)

    def nearest(self, wanted: Floats, k: int, ef: int = EF) -> list[list[Found]]:
        """Of each level, level 0 first: the k nodes whose vectors have the least angle to the wanted one, and
        their cosines, to 1e-5 or so, to 3e-4 where some have a far larger number than others. Best first,
        equal ones in the order of their ids.

        wanted: [dimensions], of any length; ef: with more, more of the nearest are found, in more time.
        Levels without links, and those of up to ef nodes, are exact. Raises ValueError for other dimensions.
        """
        if not self.n_levels:
            return []
        places, cosines, counts = (found[0].tolist() for found in self.places(wanted[None], k, ef))
        chosen = np.array([at for row, n in zip(places, counts, strict=True) for at in row[:n]], np.int64)
        ids = iter(ids_of(self.arrays["high"].take(chosen), self.arrays["low"].take(chosen)))
        return [[(next(ids), cosine) for cosine in row[:n]] for row, n in zip(cosines, counts, strict=True)]

    def places(self, wanted: Floats, k: int, ef: int = EF) -> tuple[Ints, _Exact, Ints]:
        """[questions, levels, at most k] the places of the nearest, and their cosines, of many questions; and
        [questions, levels] how many were found, behind which there are any numbers. Else as `nearest`."""
        if wanted.shape[1] != self.dimensions:
            raise ValueError(f"the index has {self.dimensions} dimensions, not {wanted.shape[1]}")
        directions = unit(wanted)
        peak = np.abs(directions).max(axis=1, keepdims=True)
        peak = np.where(peak > 0, peak, 1.0).astype(np.float64)
        # A sum of products with numbers of eight bits fits into 32.
        width = _padded(self.dimensions)
        finest = min(_FINEST, (1 << 31) // (129 * width))
        asked = np.zeros((len(wanted), width), np.int16)
        asked[:, : self.dimensions] = np.rint(directions * (finest / peak))
        loops, largest = _loops(), int(np.diff(self.starts).max(initial=0))
        k = max(0, min(k, largest))
        scores = np.zeros((len(asked), self.n_levels, max(k, loops.ENTRIES)), np.int64)
        places, counts = np.zeros_like(scores), np.zeros((len(asked), self.n_levels), np.int64)
        for i in range(len(asked)):
            loops.descend(asked[i], self._graph, 0, min(max(ef, k), largest), scores[i], places[i], counts[i])
        scaled = scores[..., :k] * (self.step * peak / finest / 256)[..., None]
        cosines = np.asarray(np.round(np.clip(scaled, -1.0, 1.0), DIGITS), np.float64)
        return places[..., :k], cosines, np.minimum(counts, k)

    @cached_property
    def _graph(self) -> tuple[Any, ...]:
        whole = {name: self.arrays[name].whole() for name in ("codes", "rest", "down")}
        return _loops().Graph(  # type: ignore[no-any-return]
            width=_padded(self.dimensions),
            per_node=self.links.values.shape[1],
            links=self.links.whole().reshape(-1),
            starts=self.starts,
            firsts=self.firsts,
            **whole,
        )


def build(
    levels: Sequence[tuple[Sequence[str], Floats]], m: int = M, ef: int = EF_BUILD, exact: int = EXACT
) -> bytes:
    """The bytes of an index: the same for the same nodes, whatever the order of those of a level.

    levels: ids and vectors [nodes, dimensions] of each, of any length, level 0 first; m: a node is linked to
    so many near ones, and to twice as many at most; ef: so many are kept while a node's place is looked for;
    exact: levels of up to so many nodes have no links. Raises ValueError for what is no id, an id that is
    there twice, and vectors of different dimensions.
    """
    if not 1 <= m <= _MOST_LINKS // 2:
        raise ValueError(f"a node cannot have {m} links")
    names = [id_ for ids, _ in levels for id_ in ids]
    widths = {vectors.shape[1] for _, vectors in levels}
    if len(set(names)) != len(names):
        raise ValueError("an id is there twice")
    if len(widths) > 1 or any(len(ids) != len(vectors) for ids, vectors in levels):
        raise ValueError("vectors of different dimensions, or not one for each id")
    dimensions = widths.pop() if widths else 1
    sizes = [len(ids) for ids, _ in levels]
    starts = np.cumsum([0, *sizes])
    placed = [sorted_halves(ids) for ids, _ in levels]
    high, low = (np.concatenate([_NO_KEYS, *(own[half] for own, _ in placed)]) for half in (0, 1))
    own = [(vectors, order) for (_, vectors), (_, order) in zip(levels, placed, strict=True)]
    codes, rest, step = _coded(own, len(names), dimensions)
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
    return packed(
        {
            "shape": np.array([dimensions, 2 * m], np.int64),
            "step": np.array([step], np.float32),
            "starts": starts.astype(np.int64),
            "linked": linked,
            "high": high,
            "low": low,
            "codes": codes.reshape(-1),
            "rest": rest.reshape(-1),
            "down": down,
            "links": links,
        }
    )


def read(source: ByteSource) -> ChnswIndex:
    """An index. Raises what `source.refused` makes for what is none. Where a link leads is looked at when it
    is followed."""
    arrays = unpacked(source, _TYPES, _TYPES)
    shape, step = arrays["shape"].whole(), arrays["step"].whole()
    starts, linked = arrays["starts"].whole(), arrays["linked"].whole()
    n, n_levels = len(arrays["high"]), len(linked)
    if len(shape) != 2 or len(step) != 1 or len(starts) != n_levels + 1 or n_levels > _MOST_LEVELS:
        raise source.refused("its arrays are of different lengths")
    dimensions, per_node = shape.tolist()
    if not (1 <= dimensions <= _MOST_DIMENSIONS and 1 <= per_node <= _MOST_LINKS and 0 < step[0] < 1):
        raise source.refused("its vectors or links are of no possible size")
    if starts[0] != 0 or starts[-1] != n or (starts[1:] < starts[:-1]).any():
        raise source.refused("its levels do not lie one behind the other")
    n_links = int((np.diff(starts) * (linked > 0)).sum()) * per_node
    numbers = n * _padded(dimensions)
    lengths = {"low": n, "down": n, "codes": numbers, "rest": numbers, "links": n_links}
    if n > _MOST_NODES or any(len(arrays[name]) != length for name, length in lengths.items()):
        raise source.refused("its arrays are of different lengths")
    # Copies: a mapped file could be changed while loops walk by them.
    levels = starts.astype(np.int64), _firsts(starts, linked)
    return ChnswIndex(source, arrays, dimensions, float(step[0]), *levels, arrays["links"].rows(per_node))


@cache
def has_loops() -> bool:
    """Whether such indexes can be made and searched: numba is installed."""
    return find_spec("numba") is not None


def _loops() -> ModuleType:
    """Imported where it is needed: to load numba takes .4 s."""
    from graphrag_ray.store.search import proximity_graphs

    return proximity_graphs


def _padded(dimensions: int) -> int:
    return -(-dimensions // _WIDTH) * _WIDTH


def _firsts(starts: Ints, linked: npt.NDArray[np.uint8]) -> Ints:
    sizes = np.diff(starts) * (linked > 0)
    return np.where(linked > 0, np.cumsum(sizes) - sizes, -1).astype(np.int64)


def _coded(
    levels: Sequence[tuple[Floats, Ints]], n: int, dimensions: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8], float]:
    """Vectors, and the order to take them in, of each level: as whole numbers of steps and what is over."""
    parts = [
        (vectors, order[at : at + _ROWS_AT_ONCE])
        for vectors, order in levels
        for at in range(0, len(order), _ROWS_AT_ONCE)
    ]
    highest = max((float(np.max(np.abs(unit(vectors[rows])))) for vectors, rows in parts), default=0.0)
    # Coarsely: its last bits may be others on another machine.
    step = float(np.float32(max(1, np.ceil(highest * 1024)) / 1024 / _PEAK))
    codes = np.zeros((n, _padded(dimensions)), np.int8)
    rest, at = np.zeros_like(codes), 0
    for vectors, rows in parts:
        steps = unit(vectors[rows]).astype(np.float64) / step
        whole = np.clip(np.rint(steps), -_PEAK, _PEAK)
        codes[at : at + len(rows), :dimensions] = whole
        rest[at : at + len(rows), :dimensions] = np.clip(np.rint((steps - whole) * 256), -_PEAK, _PEAK)
        at += len(rows)
    return codes, rest, step
