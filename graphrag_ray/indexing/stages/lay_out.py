"""Elements in the order of a hierarchy, in blocks (`blocks.py`); in an update only blocks that changed.

rows by id range ──shuffle by place──► block_*, each a stretch of the hierarchy's order

A block ends where the id of the next element says so, whatever stands before it. So an element that comes
or goes changes one block. The rows of a block that is made are those of the parent snapshot's blocks, which
have most of them side by side, and for elements that changed those of the ranges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from graphrag_ray.base.row_hashes import Hashes
from graphrag_ray.engine.executor import PARTITION, Tables
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages import blocks
from graphrag_ray.indexing.stages.id_columns import Keys, places_in
from graphrag_ray.indexing.stages.instance_ranges import n_bundles
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_part, read_table, write_parts

_PLACED = pa.schema([("id", pa.uint64()), ("content", pa.uint64())])
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
    """Tables block_<kind>, a group a block, and placed_<kind>, by which the next run knows what they hold.

    groups    parts that hold the rows
    order     which of them, by place
    keys      of each row the first 64 bits of its id
    contents  of each row a hash of what the columns hold; None: nothing of the parent snapshot is used
    columns   of the blocks
    """
    table, noted = f"block_{kind}", f"placed_{kind}"
    held = np.zeros(len(keys), np.uint64) if contents is None else contents
    placed = pa.table([keys[order], held[order]], schema=_PLACED)
    ends = [*np.flatnonzero(keys[order][1:] % np.uint64(blocks.BLOCK_ROWS) == 0) + 1, len(order)]
    sizes = np.diff([0, *ends]) if len(order) else np.empty(0, np.int64)
    told = _hashes(placed, sizes) if contents is not None else [None] * len(sizes)
    known = run.taken_over(step, range(len(sizes)), columns, (table,), told=told)
    number = np.full(len(sizes), -1, np.int64)
    number[known.new] = np.arange(len(known.new))
    block = np.repeat(number, sizes)
    inputs: list[_Places] = []
    before = run.before(step) if known.new and contents is not None else None
    if before and _is_noted(run, before, table, noted):
        then = read_table(run.store, before.parts(noted), None, _PLACED)
        place = _places_now(then, placed)
        place[block[place] < 0] = -1
        inputs += _inputs(before.tables[table], place, block)
        block_of_others = block.copy()
        block_of_others[place[place >= 0]] = -1
    else:
        block_of_others = block
    others = np.flatnonzero(block_of_others >= 0)
    of_row = np.full(len(keys), -1, np.int64)
    of_row[order[others]] = others
    inputs += _inputs(groups, of_row, block)
    n = len(known.new)
    bundles = n_bundles(int((block >= 0).sum()))
    make = partial(_placed, columns), inputs, partial(_block, table), n, bundles
    written = run.executor.shuffle(step, *make) if n else []
    result = known.with_new(run.store, written)
    if contents is not None:
        result.tables[noted] = [write_parts(run.store, noted, [placed])]
    return result


def _is_noted(run: Run, before: Result, table: str, noted: str) -> bool:
    """Whether it is known what earlier blocks hold, and they are there."""
    blocks_, rows = before.parts(table), before.parts(noted)
    n_rows = sum(part.rows for part in blocks_)
    return (
        noted in before.tables
        and n_rows == sum(part.rows for part in rows)
        and not run.lost([*blocks_, *rows])
    )


def _hashes(placed: pa.Table, sizes: Ints) -> list[str]:
    """Of each block, of what it holds."""
    rows = np.column_stack([placed["id"].to_numpy(), placed["content"].to_numpy()])
    ends = np.cumsum(sizes).tolist()
    return [hashlib.sha256(rows[start:end].tobytes()).hexdigest() for start, end in pairwise([0, *ends])]


def _places_now(then: pa.Table, now: pa.Table) -> Ints:
    """Of each element of then its place now; -1 where it is not there, or says something else."""
    ids = now["id"].to_numpy()
    place = places_in(ids, then["id"].to_numpy(), np.argsort(ids))
    there = place >= 0
    same = now["content"].to_numpy()[place[there]] == then["content"].to_numpy()[there]
    place[there] = np.where(same, place[there], -1)
    return place


def _inputs(groups: Sequence[Sequence[Part]], place: Ints, block: Ints) -> list[_Places]:
    """Groups that hold what is wanted. place: of each row of all groups; block: of each place."""
    found: list[_Places] = []
    at = 0
    for group in groups:
        own = place[at : at + sum(part.rows for part in group)]
        at += len(own)
        if (own >= 0).any():
            found.append((group, own, np.where(own >= 0, block[own], -1)))
    return found


def _placed(columns: Sequence[str], store: Store, x: _Places) -> Iterator[pa.Table]:
    group, places, numbers = x
    at = 0
    for part in group:
        wanted = places[at : at + part.rows] >= 0
        if wanted.any():
            table = read_part(store, part, columns).filter(pa.array(wanted))
            table = table.append_column("place", pa.array(places[at : at + part.rows][wanted]))
            of = numbers[at : at + part.rows][wanted].astype(np.int32)
            yield table.append_column(PARTITION, pa.array(of))
        at += part.rows


def _block(table: str, rows: pa.Table) -> Tables:
    return {table: rows.sort_by("place").drop_columns(["place", PARTITION])}
