"""Whether a usearch index may be searched. usearch follows what a file says without looking: a neighbour that
is not there, or a level that a vector does not have, ends the process, or reads what lies beside the file. So
a file is gone through here first, which takes as long as reading the graph once.

    vectors  how many, bytes of each (two uint32), then one after the other
    head     64 bytes: the name, a version, kinds, how many, removed ones, dimensions
    graph    five uint64: how many, neighbours of a vector above the lowest level and on it, highest level,
             where a search begins; int16 levels of all; then of each vector key (uint64), level (int16) and,
             for its levels from the lowest on the number of neighbours and these, padded (uint32)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

MATRIX_AT = 8

_HEAD, _NAME, _KINDS_AT = 64, b"usearch", 13
_KINDS = b"i\x0c\x0e\x0f"
"""Inner product; float16, uint64 as keys, uint32 as neighbours."""
_MOST_NEIGHBOURS, _MOST_LEVELS = 1_024, 64
_OF_A_KEY = 10
_ROWS_AT_ONCE = 16_384


def matrix_in(raw: Bytes) -> npt.NDArray[np.float16]:
    """The vectors, without copying them. Raises ValueError."""
    n, width = raw[:MATRIX_AT].view("<u4").tolist()
    return raw[MATRIX_AT : MATRIX_AT + n * width].view("<f2").reshape(n, width // 2)


def check(raw: Bytes) -> None:
    """Raises ValueError for what a search could not go through safely."""
    n, dimensions = matrix_in(raw).shape
    at = MATRIX_AT + n * dimensions * 2
    head, graph = raw[at : at + _HEAD], raw[at + _HEAD :]
    kinds = bytes(head[_KINDS_AT : _KINDS_AT + len(_KINDS)])
    told, removed, wide = head[17:41].view("<u8").tolist()
    _expect(bytes(head[: len(_NAME)]) == _NAME and kinds == _KINDS, "it is of another kind")
    _expect((told, removed, wide) == (n, 0, dimensions), "its head tells of other vectors")
    told, above, lowest, top, first = graph[:40].view("<u8").tolist()
    _expect(
        told == n and 0 < above <= _MOST_NEIGHBOURS and 0 < lowest <= _MOST_NEIGHBOURS, "its graph is none"
    )
    levels = graph[40 : 40 + 2 * n].view("<i2").astype(np.int64)
    _expect(len(levels) == n and top <= _MOST_LEVELS and levels.min() >= 0, "its levels are none")
    _expect(first < n and levels[first] == top == levels.max(), "a search would begin at no vector")
    sizes = _OF_A_KEY + (4 + 4 * lowest) + levels * (4 + 4 * above)
    nodes, starts = graph[40 + 2 * n :], np.cumsum(sizes) - sizes
    _expect(len(nodes) == sizes.sum(), "it is too short, or too long")
    keys = _taken(nodes, starts, _OF_A_KEY)
    _expect(np.array_equal(keys[:, :8].copy().view("<u8")[:, 0], np.arange(n)), "its keys are others")
    _expect(np.array_equal(keys[:, 8:].copy().view("<i2")[:, 0], levels), "its levels contradict each other")
    _check_neighbours(nodes, starts + _OF_A_KEY, lowest, levels, 0)
    for level in range(1, top + 1):
        there = starts[levels >= level] + _OF_A_KEY + (4 + 4 * lowest) + (level - 1) * (4 + 4 * above)
        _check_neighbours(nodes, there, above, levels, level)


def _check_neighbours(
    nodes: Bytes, starts: npt.NDArray[np.int64], most: int, levels: npt.NDArray[np.int64], level: int
) -> None:
    """That all neighbours on a level are vectors that have this level."""
    for at in range(0, len(starts), _ROWS_AT_ONCE):
        rows = _taken(nodes, starts[at : at + _ROWS_AT_ONCE], 4 + 4 * most).view("<u4")
        named = rows[:, 1:][np.arange(most) < rows[:, :1]]
        _expect(rows[:, 0].max() <= most and named.max(initial=0) < len(levels), "a neighbour is no vector")
        _expect(levels[named].min(initial=level) >= level, "a neighbour is not on its level")


def _taken(data: Bytes, starts: npt.NDArray[np.int64], width: int) -> Bytes:
    """[starts, width] the bytes from each start on."""
    taken: Bytes = data[starts[:, None] + np.arange(width)]
    return taken


def _expect(sound: bool | np.bool_, what: str) -> None:
    if not sound:
        raise ValueError(what)
