"""Columns of a table that its stage keeps on the driver as integers: one small table, group by group.

In an update the rows of groups that did not change are taken from that of the parent snapshot, so that none
of their parts is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.graph.integer_arrays import Ints, id_prefixes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.id_columns import Keys
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.parts import Part, read_part, read_table

GROUP = "group"
"""The number of a row's group."""
_NO_ID = "0" * 32
IDS = pa.schema([("id", pa.uint64())])
NOTED_IDS = pa.schema([(GROUP, pa.int32()), *IDS])


def columns_of(
    run: Run,
    groups: Sequence[Sequence[Part]],
    columns: pa.Schema,
    before: Sequence[int] = (),
    held: Sequence[Part] = (),
) -> pa.Table:
    """Columns of all rows, with that of their groups before them. Ids come as their first 64 bits, 0 where
    there is none; of other texts only whether there is one.

    columns  names, and types of integers
    held     what this function gave of the parent snapshot's groups; before: of each group, its number among
             these, -1: it is new
    """
    of = pa.schema([(GROUP, pa.int32()), *columns])
    old = read_table(run.store, held, None, of)
    known = _believed(old[GROUP].to_numpy(), groups, before if held else [-1] * len(groups))
    ends = np.searchsorted(old[GROUP].to_numpy(), np.arange(max(known, default=-1) + 2))
    new = [part for at, group in enumerate(groups) if known[at] < 0 for part in group]
    tables = list(in_threads(partial(_as_integers, run.store, of), new))
    read = iter(table.num_rows for table in tables)
    start, rows, at = np.zeros(len(groups), np.int64), np.zeros(len(groups), np.int64), old.num_rows
    for n, (group, place) in enumerate(zip(groups, known, strict=True)):
        if place >= 0:
            start[n], rows[n] = ends[place], ends[place + 1] - ends[place]
        else:
            start[n], rows[n] = at, sum(next(read) for _ in group)
            at += rows[n]
    places = np.repeat(start - np.cumsum(rows) + rows, rows) + np.arange(rows.sum())
    found = pa.concat_tables([old, *tables]).take(pa.array(places))
    return found.set_column(0, GROUP, pa.array(np.repeat(np.arange(len(groups), dtype=np.int32), rows)))


def _believed(
    held: npt.NDArray[np.int32], groups: Sequence[Sequence[Part]], before: Sequence[int]
) -> list[int]:
    """`before` without groups of which other numbers of rows are held: a stranger's parts may lie."""
    if (np.diff(held) < 0).any():
        return [-1] * len(groups)
    n = max(before, default=-1) + 1
    rows = np.bincount(held[(held >= 0) & (held < n)], minlength=n)
    found = []
    for group, place in zip(groups, before, strict=True):
        # A group without parts here: how many rows it has, only what is held tells.
        expected = sum(part.rows for part in group)
        found.append(place if place >= 0 and expected in (0, int(rows[place])) else -1)
    return found


def columns_since(
    run: Run, step: str, table: str, groups: Sequence[Sequence[Part]], columns: pa.Schema, noted: str
) -> pa.Table:
    """`columns_of` the groups of a step's table, with what the parent's step has noted of them in another."""
    before = run.before(step)
    held = before.parts(noted) if before else []
    then = before.tables.get(table, []) if before and held and not run.lost(held) else []
    return columns_of(run, groups, columns, same_groups(groups, then), held if then else [])


def noted_ids(run: Run, finished: Result, table: str) -> pa.Table | None:
    """GROUP and the first 64 bits of each id of documents, text_units or covariates, as a snapshot has noted
    them. finished: its last step; None: it has not, or they are damaged."""
    parts = finished.parts(ids_table(table))
    return read_table(run.store, parts, None, NOTED_IDS) if parts and not run.lost(parts) else None


def ids_table(table: str) -> str:
    """The name of the table that notes the ids of another one."""
    return f"ids_{table}"


def same_groups(now: Sequence[Sequence[Part]], then: Sequence[Sequence[Part]]) -> list[int]:
    """Of each group of parts its place among those of then, -1: there is none like it."""
    place = {tuple(part.path for part in group): n for n, group in enumerate(then)}
    return [place.get(tuple(part.path for part in group), -1) for group in now]


def places_of(ids: Keys, wanted: Keys) -> Ints:
    """Places of ids among others, which rise. (Two of ten million have the same 64 bits once in 370,000
    indexes.) Raises ValueError for one that is not there."""
    at = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
    if len(wanted) and (not len(ids) or (ids[at] != wanted).any()):
        raise ValueError("the end of a relationship is no entity")
    return at.astype(np.int64)


def _as_integers(store: Store, of: pa.Schema, part: Part) -> pa.Table:
    """The group is not known yet."""
    table = read_part(store, part, of.names[1:])
    columns = [pa.array(np.zeros(table.num_rows, np.int32))]
    for field in list(of)[1:]:
        column = table[field.name]
        if pa.types.is_boolean(field.type):
            columns.append(pc.not_equal(column, "").combine_chunks())
        elif pa.types.is_string(column.type):
            prefixes = id_prefixes(column.fill_null(_NO_ID))
            assert prefixes is not None, "tables hold ids of our own"
            columns.append(pa.array(prefixes))
        else:
            columns.append(column.cast(field.type).combine_chunks())
    return pa.Table.from_arrays(columns, schema=of)
