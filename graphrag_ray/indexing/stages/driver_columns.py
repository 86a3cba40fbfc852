"""Columns of a table that its stage keeps on the driver as integers: one small table, group by group.

In an update the rows of groups that did not change are taken from that of the parent snapshot, so that none
of their parts is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.graph.integer_arrays import Ints, id_prefixes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.id_columns import Keys
from graphrag_ray.store.parts import Part, read_table, read_table_each

GROUP = "group"
"""The number of a row's group."""


def columns_of(
    run: Run,
    groups: Sequence[Sequence[Part]],
    columns: pa.Schema,
    same: Sequence[bool] = (),
    held: Sequence[Part] = (),
) -> pa.Table:
    """Columns of all rows, with that of their groups before them. Ids come as their first 64 bits, of other
    texts only whether there is one.

    columns  names, and types of integers
    same     of each group, whether it is as it was; held: what this function gave then
    """
    of = pa.schema([(GROUP, pa.int32()), *columns])
    old = np.flatnonzero(np.asarray(same, np.bool_)) if held else np.empty(0, np.int64)
    new = [(at, part) for at in sorted({*range(len(groups))} - {*old.tolist()}) for part in groups[at]]
    read = read_table_each(run.store, [part for _, part in new], columns.names)
    tables = [_as_integers(of, at, table) for (at, _), table in zip(new, read, strict=True)]
    if len(old):
        before = read_table(run.store, held, None, of)
        tables.append(before.filter(pc.is_in(before[GROUP], pa.array(old, pa.int32()))))
    found = pa.concat_tables([of.empty_table(), *tables])
    return found.take(pa.array(np.argsort(found[GROUP].to_numpy(), kind="stable")))


def places_of(ids: Keys, wanted: Keys) -> Ints:
    """Places of ids among others, which rise. (Two of ten million have the same 64 bits once in 370,000
    indexes.) Raises ValueError for one that is not there."""
    at = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
    if len(wanted) and (not len(ids) or (ids[at] != wanted).any()):
        raise ValueError("the end of a relationship is no entity")
    return at.astype(np.int64)


def _as_integers(of: pa.Schema, group: int, table: pa.Table) -> pa.Table:
    columns = [pa.array(np.full(table.num_rows, group, np.int32))]
    for field in list(of)[1:]:
        column = table[field.name]
        if pa.types.is_boolean(field.type):
            columns.append(pc.not_equal(column, "").combine_chunks())
        elif pa.types.is_string(column.type):
            prefixes = id_prefixes(column)
            assert prefixes is not None, "tables hold ids of our own"
            columns.append(pa.array(prefixes))
        else:
            columns.append(column.cast(field.type).combine_chunks())
    return pa.Table.from_arrays(columns, schema=of)
