"""Where single rows of the snapshot's tables lie, part by part: what questions find them by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import STAGES
from graphrag_ray.base.ids import stable_id
from graphrag_ray.graph.integer_arrays import id_prefixes
from graphrag_ray.indexing.run import Run
from graphrag_ray.search import row_index
from graphrag_ray.store import blobs, pages, parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part

_MADE = pa.schema([("made_from", pa.string()), ("path", pa.string()), ("bytes", pa.int64())])
_Missing: TypeAlias = tuple[str, str, Part]
"""The table, what the index is made from, and the part."""


def index_rows(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    """Tables rows_<table>, with a part for each part of a table that is looked up, in its order. What is
    there already is not made again."""
    looked_up = {name: tables[name] for name in schema.LOOKED_UP if tables.get(name)}
    known: dict[str, tuple[str, int]] = {}
    missing: list[_Missing] = []
    for name, parts in looked_up.items():
        known |= blobs.made(run.store, schema.rows_table(name))
        missing += [(name, key, part) for part in parts if (key := _made_from(name, part)) not in known]
    for made in run.executor.stream("finish", _make, missing):
        known |= {row["made_from"]: (row["path"], row["bytes"]) for row in made.to_pylist()}
    return {
        schema.rows_table(name): [
            Part(path, part.rows, size) for part in parts for path, size in [known[_made_from(name, part)]]
        ]
        for name, parts in looked_up.items()
    }


def _made_from(table: str, part: Part) -> str:
    return stable_id(
        "rows", str(STAGES["finish"].version), part.path, *map(str, schema.LOOKED_UP[table].items())
    )


def _make(store: Store, x: _Missing) -> Iterator[pa.Table]:
    name, made_from, part = x
    data = parquet.read_bytes(store, part.path)
    by = schema.LOOKED_UP[name]
    columns = dict.fromkeys(["id", *(c for column, ranks in by.items() for c in (column, *ranks))])
    table = pq.read_table(pa.BufferReader(data), columns=list(columns), use_threads=False).combine_chunks()
    high, low = _ids(table["id"], 0), _ids(table["id"], 1)
    pairs = {column: _pairs(table, column, ranks) for column, ranks in by.items()}
    written_as = pq.read_schema(pa.BufferReader(data))
    same = [field.name for field in schema.TABLES[name] if field in list(written_as)]
    found = {column: vars(place) for column, place in pages.located(data, same).items()}
    written = blobs.write(
        store, schema.rows_table(name), made_from, row_index.build(high, low, pairs, found), part.rows
    )
    yield pa.Table.from_pylist(
        [{"made_from": made_from, "path": written.path, "bytes": written.bytes}], schema=_MADE
    )


def _pairs(
    table: pa.Table, column: str, ranks: tuple[str, ...]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The ids that a column holds and their rows, by falling rank."""
    values, rows = table[column].combine_chunks(), np.arange(table.num_rows)
    if pa.types.is_list(values.type):
        rows = pc.list_parent_indices(values).to_numpy().astype(np.int64)
        values = values.flatten()
    there = values.is_valid().to_numpy(zero_copy_only=False)
    keys, rows = _ids(values.drop_null()), rows[there]
    falling: list[Any] = [-table[rank].to_numpy()[rows] for rank in reversed(ranks)]
    order = np.lexsort([rows, *falling])
    return keys[order], rows[order]


def _ids(column: pa.ChunkedArray | pa.Array, half: Literal[0, 1] = 0) -> npt.NDArray[np.uint64]:
    found = id_prefixes(column, half)
    assert found is not None, "tables hold ids of our own"
    return found
