"""The nearest of every level at once: a hierarchy of proximity graphs (C-HNSW of ArchRAG, Wang et al. 2025).

Entities are level 0, communities are above. Each node is in one level. It is linked to near nodes of its
level, as in HNSW (Malkov and Yashunin 2018, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs"), and down to its nearest in the level below. A question walks to
its nearest in the highest level, enters the next one where the best of these lead down to, and so on. So one
descent finds the nearest of each level, and what is above a level are its communities, not nodes drawn at
random. A level of few nodes has no links between them: all of them are looked at, which is faster.

The loops are compiled by numba (`proximity_graphs`), which `pip install 'graphrag-ray[archrag]'` brings.
Without it, and where all levels are small, all vectors of all levels are looked at: the same scores, slower.

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
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.search.id_halves import halves, ids_of
from graphrag_ray.store.search.mapped_arrays import ByteSource, Ints, MappedArray, packed, unpacked
from graphrag_ray.store.search.ranking import Found, best
from graphrag_ray.store.search.vectors import DIGITS, Floats, unit

M, EF_BUILD = 32, 100
"""Those of the paper."""
EF = 20
"""So many nodes of a level are kept while a question walks through it."""
EXACT = 500
"""Levels of up to so many nodes have no links."""
MOST_NODES, MOST_LEVELS = 1 << 30, 1_000

_Exact: TypeAlias = npt.NDArray[np.float64]
_ROWS_AT_ONCE = 16_384
_WIDTH = 64
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

    def ids(self, level: int) -> list[str]:
        """Of all nodes of a level."""
        start, end = int(self.starts[level]), int(self.starts[level + 1])
        return ids_of(self.arrays["high"].run(start, end), self.arrays["low"].run(start, end))

    def nearest(self, wanted: Floats, k: int, ef: int = EF) -> list[list[Found]]:
        """Of each level, level 0 first: the k nodes whose vectors have the least angle to the wanted one, and
        their cosines, to 1e-5 or so, to 3e-4 where some have a far larger number than others. Best first,
        equal ones in the order of their ids.

        wanted: [dimensions], of any length; ef: with more, more of the nearest are found, in more time.
        Levels without links, and those of up to ef nodes, are exact. Raises ValueError for other dimensions.
        """
        if k <= 0 or not len(self.arrays["high"]):
            self._check(wanted[None])
            return [[] for _ in range(self.n_levels)]
        places, cosines, counts = (found[0].tolist() for found in self.places(wanted[None], k, ef))
        chosen = np.array([at for row, n in zip(places, counts, strict=True) for at in row[:n]], np.int64)
        ids = iter(ids_of(self.arrays["high"].take(chosen), self.arrays["low"].take(chosen)))
        return [[(next(ids), cosine) for cosine in row[:n]] for row, n in zip(cosines, counts, strict=True)]

    def places(self, wanted: Floats, k: int, ef: int = EF) -> tuple[Ints, _Exact, Ints]:
        """[questions, levels, at most k] the places of the nearest, and their cosines, of many questions; and
        [questions, levels] how many were found, behind which there are any numbers. Else as `nearest`."""
        self._check(wanted)
        directions = unit(wanted)
        peak = np.abs(directions).max(axis=1, keepdims=True)
        peak = np.where(peak > 0, peak, 1.0).astype(np.float64)
        # A sum of products with numbers of eight bits fits into 32.
        finest = min(_FINEST, (1 << 31) // (129 * self.codes.shape[1]))
        asked = np.zeros((len(wanted), self.codes.shape[1]), np.int16)
        asked[:, : self.dimensions] = np.rint(directions * (finest / peak))
        k, loops = max(0, min(k, self._largest)), _loops() if self._is_linked else None
        if loops is None:
            scores, places, counts = self._of_all(asked, k)
        else:
            scores = np.zeros((len(asked), self.n_levels, max(k, loops.ENTRIES)), np.int64)
            places, counts = np.zeros_like(scores), np.zeros((len(asked), self.n_levels), np.int64)
            loops.descend_each(asked, *self._walked, min(max(ef, k), self._largest), scores, places, counts)
        cosines = scores[..., :k] * (self.step * peak / finest / 256)[..., None]
        cosines = np.round(np.clip(cosines, -1.0, 1.0), DIGITS)
        return places[..., :k], cosines, np.minimum(counts, k)

    def _check(self, wanted: Floats) -> None:
        if wanted.shape[1] != self.dimensions and self.n_levels:
            raise ValueError(f"the index has {self.dimensions} dimensions, not {wanted.shape[1]}")

    def _of_all(self, asked: npt.NDArray[np.int16], k: int) -> tuple[Ints, Ints, Ints]:
        counts = np.tile(np.minimum(np.diff(self.starts), k), (len(asked), 1))
        scores = np.zeros((len(asked), self.n_levels, k), np.int64)
        places = np.zeros_like(scores)
        for at, one in enumerate(asked):
            products = _products(self.codes, self.rest, one)
            for level, n in enumerate(counts[at].tolist()):
                own = products[self.starts[level] : self.starts[level + 1]]
                chosen = best(own, n)
                scores[at, level, :n], places[at, level, :n] = own[chosen], chosen + self.starts[level]
        return scores, places, counts

    @cached_property
    def codes(self) -> npt.NDArray[np.int8]:
        return self._rows("codes")

    @cached_property
    def rest(self) -> npt.NDArray[np.int8]:
        return self._rows("rest")

    @cached_property
    def _walked(self) -> tuple[npt.NDArray[Any], ...]:
        down = self.arrays["down"].whole()
        per_node, links = self.links.values.shape[1], self.links.whole().reshape(-1)
        return self.codes.reshape(-1), self.rest.reshape(-1), links, per_node, down, self.starts, self.firsts

    @cached_property
    def _is_linked(self) -> bool:
        return bool((self.firsts >= 0).any())

    @cached_property
    def _largest(self) -> int:
        return int(np.diff(self.starts).max(initial=0))

    def _rows(self, name: str) -> npt.NDArray[np.int8]:
        return self.arrays[name].rows(_padded(self.dimensions)).whole()


def build(
    levels: Sequence[tuple[Sequence[str], Floats]], m: int = M, ef: int = EF_BUILD, exact: int = EXACT
) -> bytes:
    """The bytes of an index: the same for the same nodes, whatever the order of those of a level.

    levels: ids and vectors [nodes, dimensions] of each, of any length, level 0 first; m: a node is linked to
    so many near ones, and to twice as many at most; ef: so many are kept while a node's place is looked for;
    exact: levels of up to so many nodes have no links. Without numba no level has. Raises ValueError for
    what is no id, an id that is there twice, and vectors of different dimensions.
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
    if not 1 <= dimensions <= _MOST_DIMENSIONS or len(names) > MOST_NODES or len(levels) > MOST_LEVELS:
        raise ValueError(
            f"{len(names)} vectors of {dimensions} dimensions on {len(levels)} levels: too many, or none"
        )
    sizes = [len(ids) for ids, _ in levels]
    starts = np.cumsum([0, *sizes])
    orders = [sorted(range(len(ids)), key=ids.__getitem__) for ids, _ in levels]
    high, low = halves([ids[i] for (ids, _), order in zip(levels, orders, strict=True) for i in order])
    own = [(vectors, np.asarray(order, np.int64)) for (_, vectors), order in zip(levels, orders, strict=True)]
    codes, rest, step = _coded(own, len(names), dimensions)
    loops = _loops() if max(sizes, default=0) > exact else None
    linked = np.array([loops is not None and n > exact for n in sizes], np.uint8)
    firsts = _firsts(starts, linked)
    links = np.full((sum(n for n, has in zip(sizes, linked, strict=True) if has), 2 * m), -1, np.int32)
    down = np.full(len(names), -1, np.int32)
    for level in reversed(range(len(levels))):
        if loops is not None and linked[level]:
            width, rows = codes.shape[1], links.reshape(-1)
            below = rows, 2 * m, down, starts, firsts
            loops.build_level(level, width, codes.reshape(-1), rest.reshape(-1), *below, max(ef, m))
            if level + 1 < len(levels):
                loops.link_down(level, width, codes.reshape(-1), *below, max(m, loops.ENTRIES))
        elif level + 1 < len(levels) and 0 < sizes[level] <= exact:
            _link_down(level, codes, rest, down, starts)
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
            "links": links.reshape(-1),
        }
    )


def read(source: ByteSource) -> ChnswIndex:
    """An index. Raises what `source.refused` makes for what is none. Where a link leads is looked at when it
    is followed."""
    arrays = unpacked(source, _TYPES)
    if arrays.keys() != _TYPES.keys():
        raise source.refused("it holds levels of vectors and their links")
    if len(arrays["shape"]) != 2 or len(arrays["step"]) != 1:
        raise source.refused("its arrays are of different lengths")
    (dimensions, per_node), step = arrays["shape"].whole().tolist(), float(arrays["step"].whole()[0])
    if not (1 <= dimensions <= _MOST_DIMENSIONS and 1 <= per_node <= _MOST_LINKS and 0 < step < 1):
        raise source.refused("its vectors or links are of no possible size")
    n, starts, linked = len(arrays["high"]), arrays["starts"].whole(), arrays["linked"].whole()
    if (
        len(starts) != len(linked) + 1
        or starts[0] != 0
        or starts[-1] != n
        or (starts[1:] < starts[:-1]).any()
    ):
        raise source.refused("its levels do not lie one behind the other")
    lengths = {"low": n, "down": n} | dict.fromkeys(("codes", "rest"), n * _padded(dimensions))
    lengths["links"] = int((np.diff(starts) * (linked > 0)).sum()) * per_node
    if (
        n > MOST_NODES
        or len(linked) > MOST_LEVELS
        or any(len(arrays[name]) != length for name, length in lengths.items())
    ):
        raise source.refused("its arrays are of different lengths")
    # Copies: a mapped file could be changed while loops walk by them.
    levels = starts.astype(np.int64), _firsts(starts, linked)
    return ChnswIndex(source, arrays, dimensions, step, *levels, arrays["links"].rows(per_node))


def has_loops() -> bool:
    """Whether levels can be linked: numba is installed."""
    return _loops() is not None


@cache
def _loops() -> ModuleType | None:
    """None: numba is not installed, or has no folder where it may keep what it compiled."""
    try:
        from graphrag_ray.store.search import proximity_graphs
    except (ImportError, RuntimeError):
        return None
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


def _products(codes: npt.NDArray[np.int8], rest: npt.NDArray[np.int8], wanted: npt.NDArray[Any]) -> _Exact:
    """256 times the products of vectors and whole numbers: whole numbers, too, of which float64 holds all."""
    found, by = np.empty(len(codes)), wanted.astype(np.float64)
    for at in range(0, len(codes), _ROWS_AT_ONCE):
        part = slice(at, at + _ROWS_AT_ONCE)
        found[part] = 256 * (codes[part].astype(np.float64) @ by) + rest[part].astype(np.float64) @ by
    return found


def _link_down(
    level: int,
    codes: npt.NDArray[np.int8],
    rest: npt.NDArray[np.int8],
    down: npt.NDArray[np.int32],
    starts: Ints,
) -> None:
    """Links each node above a level to its nearest in it, of which all nodes are looked at."""

    def whole(part: slice) -> _Exact:
        return 256 * codes[part].astype(np.float64) + rest[part]

    start, end, above = (int(at) for at in starts[level : level + 3])
    own = whole(slice(start, end)).T
    for at in range(end, above, _ROWS_AT_ONCE):
        part = slice(at, min(at + _ROWS_AT_ONCE, above))
        down[part] = start + np.argmax(whole(part) @ own, axis=1)
