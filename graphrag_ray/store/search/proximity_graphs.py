"""The compiled loops of `chnsw`, which search and build levels of proximity graphs.

Vectors are quantized to integers: 8-bit codes, with which the graph is searched, and a remainder of 8 more
bits for ranking results. Integer sums are exact, so results and files are the same on every machine. A node
is identified by its position in the arrays, which contain one level after the other, each sorted by id.
Links are positions, too. Files are untrusted, so links out of a level are not followed.

The loops are compiled by numba, because C++ libraries (usearch, faiss) trust the files that they read and
cannot link one graph to the next. This module needs numba, `chnsw` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

ENTRIES = 5  # A search enters a level at the down-links of this many of the nearest nodes above it.
SAMPLE = 64  # Without such links, it enters the level at the nearest of this many nodes.

_PREFETCH_NODES = 6  # Number of nodes whose vectors are prefetched while others are compared.
_CACHE_LINE = 64
_F = TypeVar("_F", bound=Callable[..., Any])


class Graph(NamedTuple):
    """The levels of an index."""

    width: int  # Padded dimensions.
    per_node: int  # Maximum number of links.
    codes: Any  # [nodes * width] int8
    rest: Any  # [nodes * width] int8
    links: Any  # [linked nodes * per_node] int32, padded with -1.
    down: Any  # [nodes] int32
    starts: Any  # [levels + 1] Start of each level.
    firsts: Any  # [levels] Index of a level's first linked node, or -1 for a level without links.


def _compiled(function: _F, **options: Any) -> _F:
    options = {"nogil": True, "boundscheck": False, "error_model": "numpy"} | options
    try:
        compiled: _F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # No folder for the compiled code is writable.
        compiled = numba.njit(**options)(function)
    return compiled


def _inlined(function: _F) -> _F:
    return _compiled(function, forceinline=True)


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Prefetch array[index] into the CPU cache. The index may be out of bounds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arr = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(arr.data, [arguments[1]]), byte)
        builder.call(call, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return numba.types.void(array, index), generate


@_inlined
def _prefetch_row(flat: Any, row: Any, length: Any, step: Any) -> None:
    for i in range(row * length, (row + 1) * length, step):
        _prefetch(flat, i)


@_inlined
def _product(wanted: Any, flat: Any, position: Any) -> Any:
    """Return the dot product of the wanted vector and the one at a position in the flat array of vectors."""
    width = len(wanted)
    total, begin = np.int32(0), np.uint64(position) * np.uint64(width)
    for j in range(width):
        total += np.int32(np.int32(wanted[j]) * np.int32(flat[begin + np.uint64(j)]))
    return total


@_inlined
def _key(score: Any, position: Any) -> Any:
    """Encode a node so that keys sort by falling score, then position. The last bit marks followed links."""
    return (-np.int64(score) << 32) | (np.int64(position) << 1)


@_inlined
def _score(key: Any) -> Any:
    return -(key >> 32)


@_inlined
def _position(key: Any) -> Any:
    return (key & 0xFFFFFFFF) >> 1


@_inlined
def _insert(keys: Any, n: Any, key: Any) -> Any:
    """Insert a key among n sorted ones, dropping the last if there is no room. Return its index."""
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
def _add(seen: Any, position: Any) -> Any:
    """Add a position to a hash table. Return whether it is new."""
    mask = len(seen) - 1
    slot = (position * 0x9E3779B1 >> 7) & mask
    while seen[slot] >= 0:
        if seen[slot] == position:
            return False
        slot = (slot + 1) & mask
    seen[slot] = position
    return True


@_compiled
def _grow(seen: Any) -> Any:
    larger = np.full(2 * len(seen), -1, np.int32)
    for position in seen:
        if position >= 0:
            _add(larger, np.int64(position))
    return larger


@_inlined
def _rank(wanted: Any, codes: Any, node: Any, keys: Any, n: Any) -> Any:
    """Insert a node among n keys. Return the new number of keys and the index of the node's key."""
    key = _key(_product(wanted, codes, node), node)
    if n == len(keys) and key >= keys[n - 1]:
        return n, n
    index = _insert(keys, n, key)
    return min(n + 1, len(keys)), index


@_compiled
def _rank_all(wanted: Any, codes: Any, nodes: Any, keys: Any, n: Any, next_key: Any) -> Any:
    """Insert nodes among n keys. Return the new number of keys and the lowest changed index or `next_key`."""
    for i in range(-_PREFETCH_NODES, len(nodes)):
        if i + _PREFETCH_NODES < len(nodes):
            _prefetch_row(codes, nodes[i + _PREFETCH_NODES], len(wanted), _CACHE_LINE)
        if i >= 0:
            n, changed = _rank(wanted, codes, nodes[i], keys, n)
            next_key = min(next_key, changed)
    return n, next_key


@_compiled
def _walk(wanted: Any, graph: Graph, level: Any, end: Any, entries: Any, keys: Any) -> Any:
    """Fill keys with the nearest nodes of a level up to position `end`. Return their number.

    Starts at the entries inside this range, or at the nearest nodes of a sample if there are none.
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
            n, _ = _rank(wanted, codes, entry, keys, n)
    if n == 0:
        for position in range(start, end, max(1, (end - start) // SAMPLE)):
            _add(seen, position)
            n, _ = _rank(wanted, codes, position, keys, n)
    n_seen, next_key = 2 * SAMPLE + len(entries), 0
    while next_key < n:
        if keys[next_key] & 1:
            next_key += 1
            continue
        row = first + _position(keys[next_key])
        keys[next_key] |= 1
        next_key += 1
        while 2 * (n_seen + per_node) > len(seen):
            seen = _grow(seen)
        n_near = 0
        for i in range(row * per_node, (row + 1) * per_node):
            target = np.int64(links[i])
            if target < start or target >= end:
                break
            if _add(seen, target):
                near[n_near] = target
                n_near += 1
        n_seen += n_near
        n, next_key = _rank_all(wanted, codes, near[:n_near], keys, n, next_key)
        if next_key < n:
            _prefetch_row(links, first + _position(keys[next_key]), per_node, _CACHE_LINE // 4)
    return n


@_compiled
def _keep(scores: Any, positions: Any, n: Any, score: Any, position: Any) -> Any:
    """Insert a node among the n best, sorted by falling score, then position. Return their new number."""
    k = len(scores)
    if n == k and (score < scores[k - 1] or (score == scores[k - 1] and position > positions[k - 1])):
        return n
    n = min(n + 1, k)
    i = n - 1
    while i > 0 and (scores[i - 1] < score or (scores[i - 1] == score and positions[i - 1] > position)):
        scores[i], positions[i] = scores[i - 1], positions[i - 1]
        i -= 1
    scores[i], positions[i] = score, position
    return n


@_compiled
def _nearest(wanted: Any, graph: Graph, level: Any, entries: Any, keys: Any, scores: Any, nodes: Any) -> Any:
    """Fill `scores` and `nodes` with the nearest nodes of a level. Return their number.

    If the level has no links, or no more nodes than there are keys, all its nodes are compared. Otherwise a
    walk from the entries fills `keys` with candidates.
    """
    start, end = graph.starts[level], graph.starts[level + 1]
    max_rest = np.int64(0)  # Bounds what the remainder of a vector adds to its score.
    for number in wanted:
        max_rest += 128 * abs(np.int64(number))
    n, k = 0, len(scores)
    if graph.firsts[level] < 0 or end - start <= len(keys):
        for node in range(start, end):
            coarse = np.int64(_product(wanted, graph.codes, node)) * 256
            if n < k or coarse + max_rest >= scores[k - 1]:
                n = _keep(scores, nodes, n, coarse + _product(wanted, graph.rest, node), node)
        return n
    for i in range(_walk(wanted, graph, level, end, entries, keys)):
        coarse = _score(keys[i]) * 256
        if n == k and coarse + max_rest < scores[k - 1]:
            break
        node = _position(keys[i])
        n = _keep(scores, nodes, n, coarse + _product(wanted, graph.rest, node), node)
    return n


@_compiled
def descend(wanted: Any, graph: Graph, lowest: Any, ef: Any, scores: Any, nodes: Any, counts: Any) -> None:
    """Find the nearest nodes of each level, from the highest down to `lowest`.

    Args:
        wanted: [width] int16
        scores, nodes: [levels from `lowest` on, k] Output.
        counts: [levels from `lowest` on] Output: the number of nodes found in each level.
    """
    keys = np.empty(max(ef, ENTRIES), np.int64)
    entries = np.full(ENTRIES, -1, np.int64)
    for level in range(len(graph.starts) - 2, lowest - 1, -1):
        level_scores, level_nodes = scores[level - lowest], nodes[level - lowest]
        n = _nearest(wanted, graph, level, entries, keys, level_scores, level_nodes)
        counts[level - lowest] = n
        for i in range(ENTRIES):
            entries[i] = graph.down[level_nodes[i]] if i < min(n, len(level_nodes)) else -1


@_inlined
def _row(flat: Any, width: Any, index: Any) -> Any:
    return flat[index * width : (index + 1) * width]


@_compiled
def _choose(codes: Any, width: Any, node: Any, keys: Any, n: Any, min_links: Any, chosen: Any) -> Any:
    """Choose which of n sorted candidates to link to a node. Return their number, at most `len(chosen)`.

    Chooses candidates that are nearer to the node than to any candidate chosen before, then the nearest of
    the others until there are `min_links`.
    """
    own_score = _product(_row(codes, width, node), codes, node)
    taken = np.zeros(n, np.bool_)
    n_chosen, twins = 0, 0
    for i in range(n):
        if n_chosen == len(chosen):
            break
        position, score = _position(keys[i]), _score(keys[i])
        vector, is_distinct = _row(codes, width, position), True
        if score >= own_score:  # One of possibly many equal vectors, which all have similar links.
            is_distinct, twins = twins == 0, twins + 1
        else:
            for j in range(n_chosen):
                if _product(vector, codes, chosen[j]) > score:
                    is_distinct = False
                    break
        if is_distinct:
            taken[i] = True
            chosen[n_chosen] = position
            n_chosen += 1
    for i in range(n):
        if n_chosen >= min_links:
            break
        if not taken[i]:
            chosen[n_chosen] = _position(keys[i])
            n_chosen += 1
    return n_chosen


@_compiled
def _link(
    codes: Any, width: Any, row: Any, node: Any, target: Any, keys: Any, chosen: Any, min_links: Any
) -> None:
    """Add a link to a node's `row` of links. If the row is full, choose which links remain."""
    for i in range(len(row)):
        if row[i] < 0:
            row[i] = target
            return
    vector = _row(codes, width, node)
    keys[0] = _key(_product(vector, codes, target), target)
    for i in range(len(row)):
        _insert(keys, i + 1, _key(_product(vector, codes, row[i]), row[i]))
    n_chosen = _choose(codes, width, node, keys, len(row) + 1, min_links, chosen)
    for i in range(len(row)):
        row[i] = chosen[i] if i < n_chosen else -1


@_compiled
def build_level(graph: Graph, level: Any, ef: Any) -> None:
    """Link the nodes of a level one by one, and the nodes of the level above down to it.

    All levels above must be built. A new node gets at most half of `per_node` links.
    """
    codes, width, links, down, per_node = graph.codes, graph.width, graph.links, graph.down, graph.per_node
    start, end, first, m = graph.starts[level], graph.starts[level + 1], graph.firsts[level], per_node // 2
    n_above = len(graph.firsts) - level - 1
    scores = np.zeros((max(1, n_above), ENTRIES), np.int64)
    positions, counts = np.zeros_like(scores), np.zeros(max(1, n_above), np.int64)
    nearest = np.full(graph.starts[level + 2] - end if n_above else 0, -(1 << 62), np.int64)
    entries, keys = np.full(ENTRIES, -1, np.int64), np.empty(ef, np.int64)
    row_keys = np.empty(per_node + 1, np.int64)
    neighbors, backlinks = np.empty(m, np.int64), np.empty(m + m // 2, np.int64)
    wanted = np.empty(width, np.int16)
    for node in range(start, end):
        wanted[:] = _row(codes, width, node)
        if n_above:
            descend(wanted, graph, level + 1, ENTRIES, scores, positions, counts)
        for i in range(counts[0]):
            parent = positions[0, i]
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
    score, position = np.empty(1, np.int64), np.empty(1, np.int64)
    for node in range(end, graph.starts[level + 2]):
        wanted[:] = _row(codes, width, node)
        entries[:] = down[node]
        for i in range(min(per_node, ENTRIES - 1) if first >= 0 else 0):
            target = graph.links[(first + node - end) * per_node + i]
            if target >= 0:
                entries[i] = down[target]
        if _nearest(wanted, graph, level, entries, keys, score, position):
            down[node] = position[0]
