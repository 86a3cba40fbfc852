"""The compiled loops of `chnsw`: searching and building levels of proximity graphs.

Vectors are whole numbers: 8-bit codes, by which the graph is walked, and a remainder of 8 more bits, by which
results are ranked. Integer sums are exact, so every machine finds and builds the same. A node is its position
in the arrays, in which the levels follow each other, each sorted by id. Links are positions too; links that
lead out of their level are not followed, whatever a file says.

The loops are compiled by numba, because the graphs of C++ libraries (usearch, faiss) trust the files that
they read and cannot lead from one to the next. This module needs numba; `chnsw` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

ENTRIES = 5  # A level is entered at the down-links of this many of the nearest nodes above it,
SAMPLE = 64  # or, without any, at the nearest of this many nodes.

_PREFETCH_NODES = 6  # Nodes whose vectors are fetched from memory while others are compared.
_CACHE_LINE = 64
_F = TypeVar("_F", bound=Callable[..., Any])


class Graph(NamedTuple):
    """The levels of an index."""

    width: int  # Padded dimensions.
    per_node: int  # Maximum number of links.
    codes: Any  # [nodes * width] int8
    rest: Any  # [nodes * width] int8
    links: Any  # [linked nodes * per_node] int32; -1 after the last.
    down: Any  # [nodes] int32
    starts: Any  # [levels + 1] Start of each level.
    firsts: Any  # [levels] Index of a level's first linked node; -1: no links, so all its nodes are compared.


def _compiled(function: _F, **more: Any) -> _F:
    options = {"nogil": True, "boundscheck": False, "error_model": "numpy"} | more
    try:
        compiled: _F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # There is no place to cache the compiled code.
        compiled = numba.njit(**options)(function)
    return compiled


def _inlined(function: _F) -> _F:
    return _compiled(function, forceinline=True)


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context: Any, array: Any, at: Any) -> Any:
    """Prefetch array[at] into the cache. The index may be out of bounds: nothing is read now."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arr = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(arr.data, [arguments[1]]), byte)
        builder.call(call, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return numba.types.void(array, at), generate


@_inlined
def _prefetch_row(flat: Any, row: Any, length: Any, step: Any) -> None:
    for at in range(row * length, (row + 1) * length, step):
        _prefetch(flat, at)


@_inlined
def _product(wanted: Any, flat: Any, place: Any) -> Any:
    """Multiply the wanted vector with the one at a position of the flat array of vectors."""
    width = len(wanted)
    total, begin = np.int32(0), np.uint64(place) * np.uint64(width)
    for j in range(width):
        total += np.int32(np.int32(wanted[j]) * np.int32(flat[begin + np.uint64(j)]))
    return total


@_inlined
def _key(score: Any, place: Any) -> Any:
    """Encode a node so that keys sort by falling score, then position. Last bit: its links were followed."""
    return (-np.int64(score) << 32) | (np.int64(place) << 1)


@_inlined
def _score(key: Any) -> Any:
    return -(key >> 32)


@_inlined
def _place(key: Any) -> Any:
    return (key & 0xFFFFFFFF) >> 1


@_inlined
def _insert(keys: Any, n: Any, key: Any) -> Any:
    """Insert a key among n sorted ones, dropping the last if there is no room; return its position."""
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
def _add(seen: Any, place: Any) -> Any:
    """Add a position to a hash table; return whether it is new."""
    mask = len(seen) - 1
    at = (place * 0x9E3779B1 >> 7) & mask
    while seen[at] >= 0:
        if seen[at] == place:
            return False
        at = (at + 1) & mask
    seen[at] = place
    return True


@_compiled
def _grow(seen: Any) -> Any:
    larger = np.full(2 * len(seen), -1, np.int32)
    for place in seen:
        if place >= 0:
            _add(larger, np.int64(place))
    return larger


@_inlined
def _rank(wanted: Any, codes: Any, node: Any, keys: Any, n: Any) -> Any:
    """Insert a node among n keys; return the new number of keys and its position."""
    key = _key(_product(wanted, codes, node), node)
    if n == len(keys) and key >= keys[n - 1]:
        return n, n
    at = _insert(keys, n, key)
    return min(n + 1, len(keys)), at


@_compiled
def _rank_all(wanted: Any, codes: Any, nodes: Any, keys: Any, n: Any, at: Any) -> Any:
    """Insert nodes among n keys; return their new number and the lowest changed position, at most `at`."""
    for i in range(-_PREFETCH_NODES, len(nodes)):
        if i + _PREFETCH_NODES < len(nodes):
            _prefetch_row(codes, nodes[i + _PREFETCH_NODES], len(wanted), _CACHE_LINE)
        if i >= 0:
            n, changed = _rank(wanted, codes, nodes[i], keys, n)
            at = min(at, changed)
    return n, at


@_compiled
def _walk(wanted: Any, graph: Graph, level: Any, end: Any, entries: Any, keys: Any) -> Any:
    """Fill keys with the nearest nodes of a level up to position `end`; return their number.

    Starts at those entries that lie inside, or else at the nearest of a sample.
    """
    codes, links, per_node, start = graph.codes, graph.links, graph.per_node, graph.starts[level]
    first = graph.firsts[level] - start
    size = 1024
    while size < 32 * len(keys):
        size *= 2
    seen, near = np.full(size, -1, np.int32), np.empty(per_node, np.int64)
    n = 0
    for entry in entries:
        if start <= entry < end and _add(seen, entry):
            n, at = _rank(wanted, codes, entry, keys, n)
    if n == 0:
        for place in range(start, end, max(1, (end - start) // SAMPLE)):
            _add(seen, place)
            n, at = _rank(wanted, codes, place, keys, n)
    n_seen, at = 2 * SAMPLE + len(entries), 0
    while at < n:
        if keys[at] & 1:
            at += 1
            continue
        row = first + _place(keys[at])
        keys[at] |= 1
        at += 1
        while 2 * (n_seen + per_node) > len(seen):
            seen = _grow(seen)
        n_near = 0
        for i in range(row * per_node, (row + 1) * per_node):
            to = np.int64(links[i])
            if to < start or to >= end:
                break
            if _add(seen, to):
                near[n_near] = to
                n_near += 1
        n_seen += n_near
        n, at = _rank_all(wanted, codes, near[:n_near], keys, n, at)
        if at < n:
            _prefetch_row(links, first + _place(keys[at]), per_node, _CACHE_LINE // 4)
    return n


@_compiled
def _keep(scores: Any, places: Any, n: Any, score: Any, place: Any) -> Any:
    """Insert a node among the n best, sorted by falling score, then position; return their new number."""
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
    """Fill scores and places with the nearest nodes of a level; return their number.

    Compares all nodes of a level without links, or of no more nodes than there are keys; else walks from the
    entries, with keys as candidates.
    """
    start, end = graph.starts[level], graph.starts[level + 1]
    most = np.int64(0)  # The most that the rest of a vector can add to its score.
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
    """Find the nearest nodes of each level, from the highest down to `lowest`.

    Args:
        wanted: [width] int16
        scores: [levels from `lowest` on, k] Filled.
        places: [levels from `lowest` on, k] Filled.
        counts: [levels from `lowest` on] Filled with the number of nodes found.
    """
    keys = np.empty(max(ef, ENTRIES), np.int64)
    entries = np.full(ENTRIES, -1, np.int64)
    for level in range(len(graph.starts) - 2, lowest - 1, -1):
        level_scores, level_places = scores[level - lowest], places[level - lowest]
        n = _nearest(wanted, graph, level, entries, keys, level_scores, level_places)
        counts[level - lowest] = n
        for i in range(ENTRIES):
            entries[i] = graph.down[level_places[i]] if i < min(n, len(level_places)) else -1


@_inlined
def _row(flat: Any, width: Any, at: Any) -> Any:
    return flat[at * width : (at + 1) * width]


@_compiled
def _choose(codes: Any, width: Any, node: Any, keys: Any, n: Any, least: Any, chosen: Any) -> Any:
    """Choose which of n sorted candidates to link a node to; return how many, at most `len(chosen)`.

    These are the candidates that are nearer to the node than to any chosen before, then the nearest of the
    others until there are `least`.
    """
    own_score = _product(_row(codes, width, node), codes, node)
    taken = np.zeros(n, np.bool_)
    kept, twins = 0, 0
    for i in range(n):
        if kept == len(chosen):
            break
        place, score = _place(keys[i]), _score(keys[i])
        vector, apart = _row(codes, width, place), True
        if score >= own_score:  # An equal vector. There may be many, all linked alike, so one is enough.
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
    """Add a link to a node's `row` of links. If the row is full, drop several links to make room."""
    for i in range(len(row)):
        if row[i] < 0:
            row[i] = to
            return
    vector = _row(codes, width, node)
    keys[0] = _key(_product(vector, codes, to), to)
    for i in range(len(row)):
        _insert(keys, i + 1, _key(_product(vector, codes, row[i]), row[i]))
    kept = _choose(codes, width, node, keys, len(row) + 1, least, chosen)
    for i in range(len(row)):
        row[i] = chosen[i] if i < kept else -1


@_compiled
def build_level(graph: Graph, level: Any, ef: Any) -> None:
    """Link the nodes of a level one by one, and those of the level above down to it.

    All levels above must be built. A node is first linked to half of `per_node` others.
    """
    codes, width, links, down, per_node = graph.codes, graph.width, graph.links, graph.down, graph.per_node
    start, end, first, m = graph.starts[level], graph.starts[level + 1], graph.firsts[level], per_node // 2
    n_above = len(graph.firsts) - level - 1
    scores = np.zeros((max(1, n_above), ENTRIES), np.int64)
    places, counts = np.zeros_like(scores), np.zeros(max(1, n_above), np.int64)
    nearest = np.full(graph.starts[level + 2] - end if n_above else 0, -(1 << 62), np.int64)
    entries, keys = np.full(ENTRIES, -1, np.int64), np.empty(ef, np.int64)
    row_keys = np.empty(per_node + 1, np.int64)
    neighbors, backlinks = np.empty(m, np.int64), np.empty(m + m // 2, np.int64)
    wanted = np.empty(width, np.int16)
    for node in range(start, end):
        wanted[:] = _row(codes, width, node)
        if n_above:
            descend(wanted, graph, level + 1, ENTRIES, scores, places, counts)
        for i in range(counts[0]):
            parent = places[0, i]
            entries[i] = down[parent]
            if scores[0, i] > nearest[parent - end]:
                nearest[parent - end], down[parent] = scores[0, i], node
        if node == start:
            continue
        n = _walk(wanted, graph, level, node, entries, keys)
        n = _choose(codes, width, node, keys, n, m, neighbors)
        links[(first + node - start) * per_node : (first + node - start) * per_node + n] = neighbors[:n]
        for i in range(n):
            row = _row(links, per_node, first + neighbors[i] - start)
            _link(codes, width, row, neighbors[i], node, row_keys, backlinks, m)


@_compiled
def link_down(graph: Graph, level: Any, ef: Any) -> None:
    """Link each node above a level to its nearest node in it."""
    codes, width, down, per_node = graph.codes, graph.width, graph.down, graph.per_node
    end, first = graph.starts[level + 1], graph.firsts[level + 1]
    wanted, keys, entries = np.empty(width, np.int16), np.empty(ef, np.int64), np.empty(ENTRIES, np.int64)
    score, place = np.empty(1, np.int64), np.empty(1, np.int64)
    for node in range(end, graph.starts[level + 2]):
        wanted[:] = _row(codes, width, node)
        entries[:] = down[node]
        for i in range(min(per_node, ENTRIES - 1) if first >= 0 else 0):
            to = graph.links[(first + node - end) * per_node + i]
            if to >= 0:
                entries[i] = down[to]
        if _nearest(wanted, graph, level, entries, keys, score, place):
            down[node] = place[0]
