"""Where single rows of the snapshot's tables lie: what questions find them by.

An index of rows is made for some consecutive parts of a table (`graph/batches.py`), so that a question looks
into few, and one whose parts are all still there is kept. An update changes some parts of nearly every index:
such a one is derived from that of the parent snapshot, and only the parts that are new are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphrag_ray.base import schema
from graphrag_ray.base.declarations import STAGES
from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.base.ids import ID_LENGTH, stable_id
from graphrag_ray.graph.batches import stable_batches
from graphrag_ray.graph.integer_arrays import id_prefixes
from graphrag_ray.indexing.run import Run
from graphrag_ray.store import blobs, pages, parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.in_threads import in_threads
from graphrag_ray.store.parts import Part, damage_told
from graphrag_ray.store.search import row_index
from graphrag_ray.store.search.mapped_arrays import Keys
from graphrag_ray.store.search.row_index import RowIndex, RowsOfPart, entry_type, entry_types, group_name

MOST_ROWS = 1_000_000
MOST_BYTES = 256 << 20
"""Of the parts that an index covers: they are read to make it."""
SHARED = 0.25
"""An index is derived from an earlier one, all of which is read, if at least this share of its rows is still
there."""
_THREADS = 4
"""That read parts, for storage that answers late."""

_MADE = pa.schema([("made_from", pa.string()), ("path", pa.string()), ("bytes", pa.int64())])


@dataclass(frozen=True)
class CoveredParts:
    """Parts of a table that an index covers. made_from: a hash of all that it depends on."""

    table: str
    parts: list[Part]

    @cached_property
    def made_from(self) -> str:
        how = map(str, schema.LOOKED_UP[self.table].items())
        paths = (part.path for part in self.parts)
        return stable_id("rows", str(STAGES["finish"].version), *how, *paths)

    @property
    def n_rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class WantedIndex:
    """An index to be made. earlier: one of the parent snapshot that it can be derived from, and what that
    covers."""

    covered: CoveredParts
    earlier: tuple[Part, CoveredParts] | None = None


def index_rows(run: Run, tables: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    """Tables rows_<table> of those that are looked up. What is there already is not made again."""
    found: dict[str, list[CoveredParts]] = {}
    known: dict[str, tuple[str, int]] = {}
    missing: list[WantedIndex] = []
    for name in schema.LOOKED_UP:
        if parts := tables.get(name):
            known |= blobs.made(run.store, schema.rows_table(name))
            found[name] = covered_by_each(name, parts)
            before = covered_by_each(name, run.parent.parts(name) if run.parent else [])
            earlier = [(_stored(of, known), of) for of in before if of.made_from in known]
            new = [of for of in found[name] if of.made_from not in known]
            missing += [WantedIndex(of, _nearest(of, earlier)) for of in new]
    for made in run.executor.stream("finish", make_index, missing):
        known |= {row["made_from"]: (row["path"], row["bytes"]) for row in made.to_pylist()}
    return {schema.rows_table(name): [_stored(x, known) for x in of] for name, of in found.items()}


def _stored(covered: CoveredParts, known: Mapping[str, tuple[str, int]]) -> Part:
    path, n_bytes = known[covered.made_from]
    return Part(path, covered.n_rows, n_bytes)


def _nearest(
    wanted: CoveredParts, earlier: Sequence[tuple[Part, CoveredParts]]
) -> tuple[Part, CoveredParts] | None:
    """The index that covers most of the wanted rows; None where it is as quick to read their parts."""
    paths = {part.path for part in wanted.parts}
    shared = [sum(part.rows for part in of.parts if part.path in paths) for _, of in earlier]
    at = max(range(len(earlier)), key=lambda n: shared[n], default=-1)
    return earlier[at] if at >= 0 and shared[at] >= SHARED * earlier[at][1].n_rows else None


def covered_by_each(table: str, parts: Sequence[Part]) -> list[CoveredParts]:
    """The parts of each index, in order."""
    sizes = [max(part.bytes, part.rows * MOST_BYTES // MOST_ROWS) for part in parts]
    batches = stable_batches([part.path for part in parts], sizes, MOST_BYTES)
    return [CoveredParts(table, [parts[at] for at in batch]) for batch in batches]


def make_index(store: Store, wanted: WantedIndex) -> Iterator[pa.Table]:
    covered = wanted.covered
    data = _derived(store, wanted)
    if data is None:
        data = row_index.of_parts(_read(store, covered.table, covered.parts))
    table = schema.rows_table(covered.table)
    written = blobs.write(store, table, covered.made_from, data, covered.n_rows)
    yield pa.Table.from_pylist(
        [{"made_from": covered.made_from, "path": written.path, "bytes": written.bytes}], schema=_MADE
    )


def _derived(store: Store, wanted: WantedIndex) -> bytes | None:
    """The bytes of an index that is derived from an earlier one; None where there is none, or it is damaged,
    or has fewer columns than the new one may have."""
    if wanted.earlier is None:
        return None
    stored, before = wanted.earlier
    table, number = before.table, {part.path: n for n, part in enumerate(before.parts)}
    try:
        earlier = opened_index(store, stored, before)
        if set(earlier.paged) != _paged_columns(table):
            return None
        new = [part for part in wanted.covered.parts if part.path not in number]
        read = dict(zip((part.path for part in new), _read(store, table, new), strict=True))
        of = [number[p.path] if p.path in number else read[p.path] for p in wanted.covered.parts]
        return row_index.derive(earlier, of)
    except CorruptPart as e:
        if e.path != stored.path:
            raise
        return None


def opened_index(store: Store, stored: Part, covered: CoveredParts) -> RowIndex:
    """Raises CorruptPart where it is not that of these parts."""
    index = row_index.read(blobs.opened(store, stored), entry_types(schema.carried(covered.table)))
    if np.diff(index.ends, prepend=0).tolist() != [part.rows for part in covered.parts]:
        raise index.source.refused("it is of other parts of the table")
    return index


def _paged_columns(table: str) -> set[str]:
    """Those that can be read by pages: of one kind of value."""
    of = schema.TABLES[table]
    nested = {f.name for f in of if pa.types.is_list(f.type) and pa.types.is_struct(f.type.value_type)}
    return set(of.names) - nested


def _read(store: Store, table: str, parts: Sequence[Part]) -> list[RowsOfPart]:
    return list(in_threads(partial(_of_part, store, table), parts, _THREADS))


def _of_part(store: Store, table: str, part: Part) -> RowsOfPart:
    data = parquet.read_bytes(store, part.path)
    file = pq.ParquetFile(pa.BufferReader(data))
    columns = dict.fromkeys(c for group, beside in schema.LOOKED_UP[table].items() for c in (*group, *beside))
    rows = file.read(list(columns), use_threads=False)
    halves = {name: _halves(rows[name]) for name in columns if rows[name].type == pa.string()}
    found = {
        group_name(group): np.concatenate([_entries(rows, halves, column, *beside) for column in group])
        for group, beside in schema.carried(table).items()
    }
    written_as = list(file.schema_arrow)
    same = [field.name for field in schema.TABLES[table] if field in written_as]
    with damage_told(store, part.path):
        try:
            located = pages.located(data, same)
        except ValueError as e:
            raise CorruptPart(f"{store.url_of(part.path)} is damaged: {e}", path=part.path) from e
    return RowsOfPart(part.rows, found, located)


def _entries(
    table: pa.Table,
    halves: Mapping[str, tuple[Keys, Keys]],
    column: str,
    ids: Sequence[str],
    numbers: Sequence[str],
) -> npt.NDArray[Any]:
    """An entry for each id that a column holds in a row. halves: of the ids of each column of ids."""
    held, rows = table[column].combine_chunks(), np.arange(table.num_rows)
    if pa.types.is_list(held.type):
        rows = pc.list_parent_indices(held).to_numpy().astype(np.int64)
        held = held.flatten()
    rows, held = rows[held.is_valid().to_numpy(zero_copy_only=False)], held.drop_null()
    entries = np.zeros(len(rows), entry_type(ids, numbers))
    entries["place"] = rows
    own = {name: (high[rows], low[rows]) for name, (high, low) in halves.items()}
    if pa.types.is_string(held.type):
        own |= {} if column in own else {column: _halves(held)}
        entries["key"] = own[column][0]
    else:
        entries["key"] = held.to_numpy()
    for name in ids:
        entries[name]["high"], entries[name]["low"] = own[name]
    for name in numbers:
        value = table[name]
        value = pc.list_value_length(value) if pa.types.is_list(value.type) else value
        entries[name] = value.cast(pa.float64()).to_numpy()[rows]
    return entries


def _halves(column: pa.ChunkedArray | pa.Array) -> tuple[Keys, Keys]:
    filled = column.fill_null("0" * ID_LENGTH) if column.null_count else column
    high, low = id_prefixes(filled, 0), id_prefixes(filled, 1)
    assert high is not None, "tables hold ids of our own"
    assert low is not None
    return high, low
