"""Where single rows of the snapshot's tables lie: what questions find them by.

An index of rows is made for some consecutive parts of a table (`graph/batches.py`), so that a corpus that
grows has only those made anew whose parts are new, and a question looks into few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import STAGES
from graphrag_ray.base.ids import ID_LENGTH, stable_id
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.graph.integer_arrays import id_prefixes
from graphrag_ray.indexing.run import Run
from graphrag_ray.search import row_index
from graphrag_ray.store import blobs, pages, parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part

MOST_ROWS = 1_000_000
MOST_BYTES = 256 << 20
"""Of the parts that an index covers: they are read to make it."""

_MADE = pa.schema([("made_from", pa.string()), ("path", pa.string()), ("bytes", pa.int64())])
_Wanted: TypeAlias = tuple[str, str, list[Part]]
"""The table, what the index is made from, and the parts."""


def index_rows(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    """Tables rows_<table> of those that are looked up. What is there already is not made again."""
    wanted: dict[str, list[_Wanted]] = {}
    known: dict[str, tuple[str, int]] = {}
    for name in schema.LOOKED_UP:
        if parts := tables.get(name):
            known |= blobs.made(run.store, schema.rows_table(name))
            wanted[name] = [(name, _made_from(name, some), some) for some in _covered(parts)]
    missing = [x for of in wanted.values() for x in of if x[1] not in known]
    for made in run.executor.stream("finish", _make, missing):
        known |= {row["made_from"]: (row["path"], row["bytes"]) for row in made.to_pylist()}
    return {
        schema.rows_table(name): [
            Part(known[made_from][0], sum(part.rows for part in parts), known[made_from][1])
            for _, made_from, parts in of
        ]
        for name, of in wanted.items()
    }


def _covered(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts of each index, in order."""
    sizes = [max(part.bytes, part.rows * MOST_BYTES // MOST_ROWS) for part in parts]
    batches = stable_batches([part.path for part in parts], sizes, MOST_BYTES)
    return [[parts[at] for at in batch] for batch in batches]


def _made_from(table: str, parts: Sequence[Part]) -> str:
    how = map(str, schema.LOOKED_UP[table].items())
    return stable_id("rows", str(STAGES["finish"].version), *how, *(part.path for part in parts))


def _make(store: Store, x: _Wanted) -> Iterator[pa.Table]:
    name, made_from, parts = x
    of_parts = [_of_part(store, name, part) for part in parts]
    before = np.cumsum([0, *(part.rows for part in parts)])
    groups = {}
    for group in schema.LOOKED_UP[name]:
        of = [found[group] for found, _ in of_parts]
        for own, first in zip(of, before.tolist(), strict=False):
            own["place"] += first
        groups[row_index.group_name(group)] = np.concatenate(of)
    shared = set.intersection(*(set(found) for _, found in of_parts))
    paged = {}
    for column in [c for c in schema.TABLES[name].names if c in shared]:
        places = [found[column] for _, found in of_parts]
        firsts = [p.first[:-1] + first for p, first in zip(places, before.tolist(), strict=False)]
        paged[column] = np.concatenate([*firsts, before[-1:]]), np.concatenate(list(map(_page_rows, places)))
    data = row_index.build([part.rows for part in parts], groups, paged)
    written = blobs.write(store, schema.rows_table(name), made_from, data, int(before[-1]))
    yield pa.Table.from_pylist(
        [{"made_from": made_from, "path": written.path, "bytes": written.bytes}], schema=_MADE
    )


def _page_rows(of: pages.Pages) -> npt.NDArray[Any]:
    rows = np.zeros(len(of.start), row_index.PAGE)
    for name in row_index.PAGE.names or ():
        rows[name] = getattr(of, name)
    return rows


def _of_part(
    store: Store, name: str, part: Part
) -> tuple[dict[tuple[str, ...], npt.NDArray[Any]], dict[str, pages.Pages]]:
    """By group, the entries of a part; by column, where its pages lie."""
    data = parquet.read_bytes(store, part.path)
    groups = schema.LOOKED_UP[name]
    columns = dict.fromkeys(c for group, beside in groups.items() for c in (*group, *beside))
    table = pq.read_table(pa.BufferReader(data), columns=list(columns), use_threads=False)
    written_as = pq.read_schema(pa.BufferReader(data))
    same = [field.name for field in schema.TABLES[name] if field in list(written_as)]
    found = {
        group: np.concatenate([_entries(table, column, *schema.carried(name, group)) for column in group])
        for group in groups
    }
    return found, pages.located(data, same)


def _entries(table: pa.Table, column: str, ids: Sequence[str], numbers: Sequence[str]) -> npt.NDArray[Any]:
    """An entry for each id that a column holds in a row."""
    held, rows = table[column].combine_chunks(), np.arange(table.num_rows)
    if pa.types.is_list(held.type):
        rows = pc.list_parent_indices(held).to_numpy().astype(np.int64)
        held = held.flatten()
    there = held.is_valid().to_numpy(zero_copy_only=False)
    rows, held = rows[there], held.drop_null()
    entries = np.zeros(len(rows), row_index.entry_type(ids, numbers))
    entries["place"] = rows
    entries["key"] = _half(held, "high") if pa.types.is_string(held.type) else held.to_numpy()
    for name in ids:
        own = held if name == column else table[name].take(pa.array(rows))
        for half in ("high", "low"):
            entries[name][half] = _half(own, half)
    for name in numbers:
        value = table[name]
        value = pc.list_value_length(value) if pa.types.is_list(value.type) else value
        entries[name] = value.cast(pa.float64()).to_numpy()[rows]
    return entries


def _half(column: pa.ChunkedArray | pa.Array, half: str) -> npt.NDArray[np.uint64]:
    filled = column.fill_null("0" * ID_LENGTH) if column.null_count else column
    found = id_prefixes(filled, 0 if half == "high" else 1)
    assert found is not None, "tables hold ids of our own"
    return found
