"""Elements in the order of the hierarchy, in blocks of BLOCK_ROWS: reading some of them.

Elements of a community stand side by side, so whoever reads reports' contexts wants few blocks, and the same
again and again: each process keeps those that it used last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part

BLOCK_ROWS = 20_000
"""Elements in one block: some 10 MB of text."""

CACHE_BYTES = 128 << 20
"""Blocks that a process keeps. The last one stays, however large."""


class BlockCache:
    """The blocks last used, up to a number of bytes. Parts never change, so none grows stale."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.nbytes = 0
        self._kept: OrderedDict[tuple[str, str], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, store: Store, part: Part) -> pa.Table:
        """The table of a part. Raises as `read_part`."""
        name = (store.url, part.path)
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        table = read_part(store, part)
        with self._lock:
            if name not in self._kept:
                self._kept[name] = table
                self.nbytes += table.nbytes
            while self.nbytes > self._limit and len(self._kept) > 1:
                self.nbytes -= self._kept.popitem(last=False)[1].nbytes
        return table


_cache = BlockCache(CACHE_BYTES)


def elements_at(
    store: Store, blocks: Sequence[Sequence[Part]], places: Ints, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The rows at some places, in the order asked for; columns: None for all."""
    rows: list[dict[str, Any]] = [{}] * len(places)
    of_block = places // BLOCK_ROWS
    for block in np.unique(of_block):
        mine = np.flatnonzero(of_block == block)
        table = _block(store, blocks[block], columns)
        found = table.take(pa.array(places[mine] - block * BLOCK_ROWS)).to_pylist()
        for at, row in zip(mine.tolist(), found, strict=True):
            rows[at] = row
    return rows


def element_slice(
    store: Store, blocks: Sequence[Sequence[Part]], start: int, end: int, columns: Sequence[str]
) -> pa.Table:
    """The rows at places start…end-1 as a table of some columns."""
    pieces = []
    for block in range(start // BLOCK_ROWS, -(-end // BLOCK_ROWS)):
        table = _block(store, blocks[block], columns)
        low, high = max(start - block * BLOCK_ROWS, 0), min(end - block * BLOCK_ROWS, BLOCK_ROWS)
        pieces.append(table.slice(low, high - low))
    return pa.concat_tables(pieces) if pieces else pa.table({c: pa.array([], pa.string()) for c in columns})


def _block(store: Store, parts: Sequence[Part], columns: Sequence[str] | None) -> pa.Table:
    tables = [_cache.get(store, part) for part in parts]
    return pa.concat_tables(tables if columns is None else [t.select(columns) for t in tables])
