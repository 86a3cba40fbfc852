"""The compiled loops of `chnsw`: how levels of proximity graphs are searched and built.

A vector is whole numbers: codes of eight bits, by which the graph is walked, and the rest of eight more, by
which what was found is put in order. Sums of whole numbers are exact, so every machine finds and builds the
same. Vectors of all levels stand one behind the other, each level's in the order of ids; a node is its place
there. Links and down-links are places too. None is followed that leads out of its level, whatever a file
says.

Compiled by numba, since the graphs of C++ libraries (usearch, faiss) trust the file that they read, and do
not lead from one to the next. This module needs numba; `chnsw` does without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

ENTRIES = 5
"""A level is entered at the down-links of so many of the nearest above it."""
SAMPLE = 64
"""Without any, at the nearest of so many nodes."""

_AHEAD = 6
"""Nodes whose vectors are on their way from memory while others are compared."""
_LINE = 64
_F = TypeVar("_F", bound=Callable[..., Any])


class Graph(NamedTuple):
    """The levels of an index.

    codes, rest  [nodes * width] int8: the numbers of vectors, one behind the other
    links        [linked nodes * per_node] int32: places, -1 behind the last
    down         [nodes] int32
    starts       [levels + 1] where levels begin
    firsts       [levels] which linked node is a level's first; -1 for a level without links, of which all
                 nodes are looked at
    """

    width: int
    per_node: int
    codes: Any
    rest: Any
    links: Any
    down: Any
    starts: Any
    firsts: Any


def _compiled(function: _F, **more: Any) -> _F:
    options = {"nogil": True, "boundscheck": False, "error_model": "numpy"} | more
    try:
        found: _F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is nowhere to keep what was compiled
        found = numba.njit(**options)(function)
    return found


def _inlined(function: _F) -> _F:
    return _compiled(function, forceinline=True)


@intrinsic  # type: ignore[untyped-decorator]
def _fetch(typing_context: Any, array: Any, at: Any) -> Any:
    """Tells the processor that array[at] will be read. It may lie anywhere: nothing is read now."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        own = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(builder.gep(own.data, [arguments[1]]), byte)
        builder.call(call, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return numba.types.void(array, at), generate


@_inlined
def _fetch_row(flat: Any, row: Any, length: Any, step: Any) -> None:
    for at in range(row * length, (row + 1) * length, step):
        _fetch(flat, at)


@_inlined
def _product(wanted: Any, flat: Any, place: Any) -> Any:
    """flat: the numbers of vectors as long as the wanted one, one behind the other"""
    width = len(wanted)
    total, begin = np.int32(0), np.uint64(place) * np.uint64(width)
    for j in range(width):
        total += np.int32(np.int32(wanted[j]) * np.int32(flat[begin + np.uint64(j)]))
    return total


@_inlined
def _key(score: Any, place: Any) -> Any:
    """Rises where the score falls; of equal scores, with the place. Its last bit: its links were followed."""
    return (-np.int64(score) << 32) | (np.int64(place) << 1)


@_inlined
def _score(key: Any) -> Any:
    return -(key >> 32)


@_inlined
def _place(key: Any) -> Any:
    return (key & 0xFFFFFFFF) >> 1


@_inlined
def _put(keys: Any, n: Any, key: Any) -> Any:
    """Puts a key among n sorted ones, of which the last gives way where there is no room. Returns where."""
    left, right = 0, n
    while left < right:
        middle = (left + right) >> 1
        if keys[middle] < key:
            left = middle + 1
        else:
            right = middle
    if left == len(keys):
        return left
    for i in range(min(n, len(keys) - 1), left, -1):
        keys[i] = keys[i - 1]
    keys[left] = key
    return left


@_inlined
def _new(seen: Any, place: Any) -> Any:
    """Whether a place is not yet in a table of places, which it is then."""
    mask = len(seen) - 1
    at = (place * 0x9E3779B1 >> 7) & mask
    while seen[at] >= 0:
        if seen[at] == place:
            return False
        at = (at + 1) & mask
    seen[at] = place
    return True


@_compiled
def _larger(seen: Any) -> Any:
    found = np.full(2 * len(seen), -1, np.int32)
    for place in seen:
        if place >= 0:
            _new(found, np.int64(place))
    return found


@_inlined
def _weigh(wanted: Any, codes: Any, node: Any, keys: Any, n: Any) -> Any:
    """Puts a node among n keys. Returns how many these are then, and where it is."""
    key = _key(_product(wanted, codes, node), node)
    if n == len(keys) and key >= keys[n - 1]:
        return n, n
    at = _put(keys, n, key)
    return min(n + 1, len(keys)), at


@_compiled
def _weigh_all(wanted: Any, codes: Any, nodes: Any, keys: Any, n: Any, at: Any) -> Any:
    """As `_weigh`. Returns the first place that changed, or `at` where that comes first, as the second."""
    for i in range(-_AHEAD, len(nodes)):
        if i + _AHEAD < len(nodes):
            _fetch_row(codes, nodes[i + _AHEAD], len(wanted), _LINE)
        if i >= 0:
            n, changed = _weigh(wanted, codes, nodes[i], keys, n)
            at = min(at, changed)
    return n, at


@_compiled
def _walk(wanted: Any, graph: Graph, level: Any, end: Any, entries: Any, keys: Any) -> Any:
    """Fills keys with the nearest nodes of a level, up to the place `end`, from those of the entries on that
    lie inside, or from the nearest of a sample. Returns how many."""
    codes, links, per_node, start = graph.codes, graph.links, graph.per_node, graph.starts[level]
    first = graph.firsts[level] - start
    size = 1024
    while size < 32 * len(keys):
        size *= 2
    seen, near = np.full(size, -1, np.int32), np.empty(per_node, np.int64)
    n = 0
    for entry in entries:
        if start <= entry < end and _new(seen, entry):
            n, at = _weigh(wanted, codes, entry, keys, n)
    if n == 0:
        for place in range(start, end, max(1, (end - start) // SAMPLE)):
            _new(seen, place)
            n, at = _weigh(wanted, codes, place, keys, n)
    n_seen, at = 2 * SAMPLE + len(entries), 0
    while at < n:
        if keys[at] & 1:
            at += 1
            continue
        row = first + _place(keys[at])
        keys[at] |= 1
        at += 1
        while 2 * (n_seen + per_node) > len(seen):
            seen = _larger(seen)
        n_near = 0
        for i in range(row * per_node, (row + 1) * per_node):
            to = np.int64(links[i])
            if to < start or to >= end:
                break
            if _new(seen, to):
                near[n_near] = to
                n_near += 1
        n_seen += n_near
        n, at = _weigh_all(wanted, codes, near[:n_near], keys, n, at)
        if at < n:
            _fetch_row(links, first + _place(keys[at]), per_node, _LINE // 4)
    return n


@_compiled
def _keep(scores: Any, places: Any, n: Any, score: Any, place: Any) -> Any:
    """Puts a node among the n best so far, highest score first, of equal ones the first place."""
    k = len(scores)
    if n == k and (score < scores[k - 1] or (score == scores[k - 1] and place > places[k - 1])):
        return n
    n = min(n + 1, k)
    i = n - 1
    while i > 0 and (scores[i - 1] < score or (scores[i - 1] == score and places[i - 1] > place)):
        scores[i], places[i] = scores[i - 1], places[i - 1]
        i -= 1
    scores[i], places[i] = score, place
    return n


@_compiled
def _nearest(wanted: Any, graph: Graph, level: Any, entries: Any, keys: Any, scores: Any, places: Any) -> Any:
    """Fills scores and places with the nearest of a level: of all its nodes, or of those walked to from the
    entries, for which there are keys. Returns how many."""
    start, end = graph.starts[level], graph.starts[level + 1]
    most = np.int64(0)  # that the rest of a vector can add to its score
    for number in wanted:
        most += 128 * abs(np.int64(number))
    n, k = 0, len(scores)
    if graph.firsts[level] < 0 or end - start <= len(keys):
        for place in range(start, end):
            coarse = np.int64(_product(wanted, graph.codes, place)) * 256
            if n < k or coarse + most >= scores[k - 1]:
                n = _keep(scores, places, n, coarse + _product(wanted, graph.rest, place), place)
        return n
    for i in range(_walk(wanted, graph, level, end, entries, keys)):
        coarse = _score(keys[i]) * 256
        if n == k and coarse + most < scores[k - 1]:
            break
        place = _place(keys[i])
        n = _keep(scores, places, n, coarse + _product(wanted, graph.rest, place), place)
    return n


@_compiled
def descend(wanted: Any, graph: Graph, lowest: Any, ef: Any, scores: Any, places: Any, counts: Any) -> None:
    """The nearest nodes of each level from the last one down to the lowest.

    wanted: [width] int16; scores, places: [levels from the lowest on, k] are filled; counts: [levels] how
    many were found
    """
    keys = np.empty(max(ef, ENTRIES), np.int64)
    entries = np.full(ENTRIES, -1, np.int64)
    for level in range(len(graph.starts) - 2, lowest - 1, -1):
        own, found = scores[level - lowest], places[level - lowest]
        n = _nearest(wanted, graph, level, entries, keys, own, found)
        counts[level - lowest] = n
        for i in range(ENTRIES):
            entries[i] = graph.down[found[i]] if i < min(n, len(found)) else -1


@_inlined
def _vector(codes: Any, width: Any, node: Any) -> Any:
    return codes[node * width : (node + 1) * width]


@_compiled
def _chosen(codes: Any, width: Any, node: Any, keys: Any, n: Any, least: Any, chosen: Any) -> Any:
    """Which of n sorted candidates a node is linked to: those nearer to it than to any that was chosen
    before, then the nearest of the others until there are `least`. Returns how many, at most the length of
    `chosen`.
    """
    own = _product(_vector(codes, width, node), codes, node)
    taken = np.zeros(n, np.bool_)
    kept, twins = 0, 0
    for i in range(n):
        if kept == len(chosen):
            break
        place, score = _place(keys[i]), _score(keys[i])
        vector, apart = _vector(codes, width, place), True
        if score >= own:  # It is the same: one of these will do, as there may be very many, all linked alike.
            apart, twins = twins == 0, twins + 1
        else:
            for j in range(kept):
                if _product(vector, codes, chosen[j]) > score:
                    apart = False
                    break
        if apart:
            taken[i] = True
            chosen[kept] = place
            kept += 1
    for i in range(n):
        if kept >= least:
            break
        if not taken[i]:
            chosen[kept] = _place(keys[i])
            kept += 1
    return kept


@_compiled
def _link(codes: Any, width: Any, row: Any, node: Any, to: Any, keys: Any, chosen: Any, least: Any) -> None:
    """Links a node, whose links are `row`, to another. Where there is no room left, some links are given up,
    which makes room for several."""
    for i in range(len(row)):
        if row[i] < 0:
            row[i] = to
            return
    vector = _vector(codes, width, node)
    keys[0] = _key(_product(vector, codes, to), to)
    for i in range(len(row)):
        _put(keys, i + 1, _key(_product(vector, codes, row[i]), row[i]))
    kept = _chosen(codes, width, node, keys, len(row) + 1, least, chosen)
    for i in range(len(row)):
        row[i] = chosen[i] if i < kept else -1


@_compiled
def build_level(graph: Graph, level: Any, ef: Any) -> None:
    """Links the nodes of a level one by one, and those of the level above down to it. All levels above are
    built. A node is linked to half of `per_node`."""
    codes, width, links, down, per_node = graph.codes, graph.width, graph.links, graph.down, graph.per_node
    start, end, first, m = graph.starts[level], graph.starts[level + 1], graph.firsts[level], per_node // 2
    n_above = len(graph.firsts) - level - 1
    scores = np.zeros((max(1, n_above), ENTRIES), np.int64)
    places, counts = np.zeros_like(scores), np.zeros(max(1, n_above), np.int64)
    nearest = np.full(graph.starts[level + 2] - end if n_above else 0, -(1 << 62), np.int64)
    entries, keys = np.full(ENTRIES, -1, np.int64), np.empty(ef, np.int64)
    row_keys = np.empty(per_node + 1, np.int64)
    mine, theirs = np.empty(m, np.int64), np.empty(m + m // 2, np.int64)
    wanted = np.empty(width, np.int16)
    for node in range(start, end):
        wanted[:] = _vector(codes, width, node)
        if n_above:
            descend(wanted, graph, level + 1, ENTRIES, scores, places, counts)
        for i in range(counts[0]):
            of = places[0, i]
            entries[i] = down[of]
            if scores[0, i] > nearest[of - end]:
                nearest[of - end], down[of] = scores[0, i], node
        if node == start:
            continue
        n = _walk(wanted, graph, level, node, entries, keys)
        n = _chosen(codes, width, node, keys, n, m, mine)
        links[(first + node - start) * per_node : (first + node - start) * per_node + n] = mine[:n]
        for i in range(n):
            row = _vector(links, per_node, first + mine[i] - start)
            _link(codes, width, row, mine[i], node, row_keys, theirs, m)


@_compiled
def link_down(graph: Graph, level: Any, ef: Any) -> None:
    """Links each node above a level to its nearest in it."""
    codes, width, down, per_node = graph.codes, graph.width, graph.down, graph.per_node
    end, first = graph.starts[level + 1], graph.firsts[level + 1]
    wanted, keys, entries = np.empty(width, np.int16), np.empty(ef, np.int64), np.empty(ENTRIES, np.int64)
    score, place = np.empty(1, np.int64), np.empty(1, np.int64)
    for node in range(end, graph.starts[level + 2]):
        wanted[:] = _vector(codes, width, node)
        entries[:] = down[node]
        for i in range(min(per_node, ENTRIES - 1) if first >= 0 else 0):
            to = graph.links[(first + node - end) * per_node + i]
            if to >= 0:
                entries[i] = down[to]
        if _nearest(wanted, graph, level, entries, keys, score, place):
            down[node] = place[0]
