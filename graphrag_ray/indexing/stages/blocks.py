"""Elements in the order of a hierarchy, in blocks; in an update only blocks that changed are made.

rows by id range ──shuffle by place──► block_*, each a stretch of the hierarchy's order

Elements of a community stand side by side, so whoever reads reports' contexts wants few blocks, and the same
again and again: each process keeps those that it used last.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.graph.hierarchy import Ints
from graphrag_ray.graph.signatures import Hashes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.merge_stage import n_bundles
from graphrag_ray.indexing.stages.short_ids import Keys
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


_Places = tuple[Sequence[Part], Ints, Ints]
"""Parts; of each of their rows its place, and the number of its block. -1: it is in no block that is made."""


def lay_out(
    run: Run,
    step: str,
    kind: str,
    groups: Sequence[Sequence[Part]],
    order: Ints,
    keys: Keys,
    contents: Hashes | None,
    columns: Sequence[str],
) -> Result:
    """Table block_<kind>, a group a block.

    A block ends where the id of the next element says so, whatever stands before it. So an element that comes
    or goes changes one block, and the others are taken over.

    groups    parts that hold the rows
    order     which of them, by place
    keys      of each row the first 64 bits of its id
    contents  of each row a hash of what the columns hold; None: nothing of the parent snapshot is used
    columns   of the blocks
    """
    table, placed = f"block_{kind}", keys[order]
    ends = [*np.flatnonzero(placed[1:] % np.uint64(BLOCK_ROWS) == 0) + 1, len(order)] if len(order) else []
    bounds = list(pairwise([0, *ends]))
    told: list[Any] = [None] * len(bounds)
    if contents is not None:
        rows = np.column_stack([placed, contents[order]])
        told = [hashlib.sha256(rows[start:end].tobytes()).hexdigest() for start, end in bounds]
    known = run.taken_over(step, range(len(bounds)), columns, (table,), told=told)
    number = np.full(len(bounds), -1, np.int64)
    number[known.new] = np.arange(len(known.new))
    place = np.full(len(keys), -1, np.int64)
    place[order] = np.arange(len(order))
    block = np.full(len(keys), -1, np.int64)
    block[order] = np.repeat(number, [end - start for start, end in bounds])
    inputs: list[_Places] = []
    at = 0
    for group in groups:
        own = slice(at, at + sum(part.rows for part in group))
        at = own.stop
        if (block[own] >= 0).any():
            inputs.append((group, place[own], block[own]))
    if not inputs:
        return known.with_new(run.store, [])
    bundles = n_bundles(int((block >= 0).sum()))
    make = partial(_placed, columns), inputs, partial(_block_of, table), len(known.new), bundles
    return known.with_new(run.store, run.shuffle(step, *make))


def _placed(columns: Sequence[str], store: Store, x: _Places) -> Iterator[pa.Table]:
    group, places, blocks = x
    at = 0
    for part in group:
        own = slice(at, at + part.rows)
        at = own.stop
        wanted = blocks[own] >= 0
        if wanted.any():
            table = read_part(store, part, columns).filter(pa.array(wanted))
            table = table.append_column("place", pa.array(places[own][wanted]))
            yield table.append_column(PARTITION, pa.array(blocks[own][wanted].astype(np.int32)))


def _block_of(table: str, rows: pa.Table) -> Tables:
    return {table: rows.sort_by("place").drop_columns(["place", PARTITION])}
