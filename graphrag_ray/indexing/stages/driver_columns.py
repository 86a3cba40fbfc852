"""Columns of a table as the driver holds them: integers, group by group. Ids come as their first 64 bits, so
no table's ids are all in memory as texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.graph.integer_arrays import Ints, id_prefixes
from graphrag_ray.store.files import Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.parts import Part, read_part

Keys = npt.NDArray[np.uint64]
GROUP = "group"
"""The number of a row's group."""
_NO_ID = "0" * 32
_THREADS = 8
IDS = pa.schema([("id", pa.uint64())])


def columns_of(store: Store, groups: Sequence[Sequence[Part]], columns: pa.Schema) -> pa.Table:
    """Columns of all rows, with that of their groups before them. Ids come as their first 64 bits, 0 where
    there is none; of other texts only whether there is one.

    columns: names, and types of integers
    """
    parts = [part for group in groups for part in group]
    tables = list(in_threads(partial(_as_integers, store, columns), parts, _THREADS))
    of_part = [n for n, group in enumerate(groups) for _ in group]
    numbers = np.repeat(np.array(of_part, np.int32), [table.num_rows for table in tables])
    return pa.concat_tables([columns.empty_table(), *tables]).add_column(0, GROUP, pa.array(numbers))


def _as_integers(store: Store, of: pa.Schema, part: Part) -> pa.Table:
    table = read_part(store, part, of.names)
    columns = []
    for field in of:
        column = table[field.name]
        if pa.types.is_boolean(field.type):
            columns.append(pc.not_equal(column, "").combine_chunks())
        elif pa.types.is_string(column.type):
            columns.append(pa.array(prefixes_of(column.fill_null(_NO_ID))))
        else:
            columns.append(column.cast(field.type).combine_chunks())
    return pa.Table.from_arrays(columns, schema=of)


def prefixes_of(ids: pa.Array | pa.ChunkedArray) -> Keys:
    """The first 64 bits of ids of our own. Raises ValueError for others."""
    found = id_prefixes(ids)
    if found is None:
        raise ValueError("a column of ids holds what is no id")
    return found


def places_of(ids: Keys, wanted: Keys) -> Ints:
    """Places of ids among others, which rise. (Two of ten million have the same 64 bits once in 370,000
    indexes.) Raises ValueError for one that is not there."""
    at = places_in(ids, wanted)
    if (at < 0).any():
        raise ValueError("the end of a relationship is no entity")
    return at


def places_in(ids: Keys, wanted: Keys) -> Ints:
    """The place of each wanted id among others, which rise; -1: it is not there."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, at, -1).astype(np.int64)
