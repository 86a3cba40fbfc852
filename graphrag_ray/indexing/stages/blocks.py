"""Elements in the order of the hierarchy, in blocks: reading some of them. They are made by `lay_out.py`.

Elements of a community stand side by side, so whoever reads reports' contexts wants few blocks, and the same
again and again: each process keeps those that it used last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part

BLOCK_ROWS = 1_024
"""Elements in one block, on average: some 300 KB of text."""

IN_TABLES = ["id", "text_unit_ids"]
"""Columns that the tables of communities are made of."""
IN_CONTEXTS: Mapping[str, list[str]] = {
    "entities": ["id", "title", "description", "text_unit_ids"],
    "relationships": ["id", "source", "target", "description", "text_unit_ids"],
    "covariates": [
        *("id", "subject_id", "object_id", "type", "status", "start_date", "end_date", "description"),
        "text_unit_ids",
    ],
    "text_units": ["id", "text", "header"],
}
"""What a context shows of each kind, and what it rests on."""

CACHE_BYTES = 128 << 20
"""ElementBlocks that a process keeps. The last one stays, however large."""


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


@dataclass(frozen=True)
class ElementBlocks:
    """Elements of a kind. parts: of each block."""

    parts: Sequence[Sequence[Part]]

    @cached_property
    def _starts(self) -> Ints:
        """[blocks + 1] the place at which each begins, and the number of all."""
        return np.cumsum([0, *(sum(part.rows for part in block) for block in self.parts)])

    def rows(self, store: Store, places: Ints, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The rows at some places, in the order asked for; columns: None for all."""
        rows: list[dict[str, Any]] = [{}] * len(places)
        of_block = np.searchsorted(self._starts, places, "right") - 1
        for block in np.unique(of_block):
            mine = np.flatnonzero(of_block == block)
            table = _block(store, self.parts[block], columns)
            found = table.take(pa.array(places[mine] - self._starts[block])).to_pylist()
            for at, row in zip(mine.tolist(), found, strict=True):
                rows[at] = row
        return rows

    def between(self, store: Store, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """The rows at places start…end-1 as a table of some columns."""
        pieces = []
        first, last = np.searchsorted(self._starts, [start, end - 1], "right").tolist()
        for block in range(first - 1, last) if start < end else ():
            table = _block(store, self.parts[block], columns)
            at = int(self._starts[block])
            low = max(start - at, 0)
            pieces.append(table.slice(low, end - at - low))
        return (
            pa.concat_tables(pieces) if pieces else pa.table({c: pa.array([], pa.string()) for c in columns})
        )


def blocks_of(result: Result, kinds: Iterable[str]) -> dict[str, ElementBlocks]:
    """What `lay_out` made of these kinds."""
    return {kind: ElementBlocks(result.tables.get(f"block_{kind}", [])) for kind in kinds}


def _block(store: Store, parts: Sequence[Part], columns: Sequence[str] | None) -> pa.Table:
    tables = [_cache.get(store, part) for part in parts]
    return pa.concat_tables(tables if columns is None else [t.select(columns) for t in tables])
