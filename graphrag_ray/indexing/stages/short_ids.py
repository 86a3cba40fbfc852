"""Integer columns on the driver, and short ids.

The driver loads only the first 64 bits of ids, so that the ids of a table are never in memory as strings.
Short ids (`human_readable_id`) are used in citations. A snapshot takes them over from its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.context_records import Reference, render_references
from graphrag_ray.base.declarations import RECORD_KIND_BY_SECTION
from graphrag_ray.base.errors import CorruptPart, IndexNotFound
from graphrag_ray.graph.integer_arrays import Ints, id_hash64
from graphrag_ray.indexing.run import Run
from graphrag_ray.store.files import Store, map_in_threads
from graphrag_ray.store.parts import Part, read_part, read_table
from graphrag_ray.store.snapshots import load

Keys = npt.NDArray[np.uint64]
GROUP = "group"
"""Column with the number of a row's group."""
IDS = pa.schema([("id", pa.uint64())])
_NUMBERED = pa.schema([*IDS, ("human_readable_id", pa.int64())])
_NO_ID = "0" * 32
_THREADS = 8


def load_integer_columns(store: Store, groups: Sequence[Sequence[Part]], columns: pa.Schema) -> pa.Table:
    """Load columns of all rows as integers, preceded by the column `GROUP`.

    An id becomes its first 64 bits, or 0 if it is null. A column declared as boolean is true where its text
    is not empty.
    """
    parts = [part for group in groups for part in group]
    tables = list(map_in_threads(partial(_as_integers, store, columns), parts, _THREADS))
    group_of_part = np.array([n for n, group in enumerate(groups) for _ in group], np.int32)
    numbers = np.repeat(group_of_part, [table.num_rows for table in tables])
    return pa.concat_tables([columns.empty_table(), *tables]).add_column(0, GROUP, pa.array(numbers))


def _as_integers(store: Store, schema: pa.Schema, part: Part) -> pa.Table:
    table = read_part(store, part, schema.names)
    columns = []
    for field in schema:
        column = table[field.name]
        if pa.types.is_boolean(field.type):
            columns.append(pc.not_equal(column, "").combine_chunks())
        elif pa.types.is_string(column.type):
            columns.append(pa.array(id_keys(column.fill_null(_NO_ID))))
        else:
            columns.append(column.cast(field.type).combine_chunks())
    return pa.Table.from_arrays(columns, schema=schema)


def row_slices(groups: Sequence[Sequence[Part]]) -> list[slice]:
    """Return the slice of each group's rows among the rows of all groups."""
    ends = accumulate(sum(part.rows for part in group) for group in groups)
    return [slice(start, end) for start, end in pairwise([0, *ends])]


def write_arrays(run: Run, step: str, table: str, arrays: Mapping[str, Any]) -> list[Part]:
    """Write arrays of any lengths as a table with one row."""
    lists = {n: pa.LargeListArray.from_arrays([0, len(a)], pa.array(a)) for n, a in arrays.items()}
    return run.write(step, table, [pa.table(lists)])


def read_arrays(store: Store, parts: Sequence[Part], names: Sequence[str] | None = None) -> dict[str, Any]:
    """Read some or all of the arrays that `write_arrays` wrote."""
    table = read_table(store, parts, names)
    return {name: pc.list_flatten(table[name]).to_numpy() for name in table.column_names}


def id_keys(ids: pa.Array | pa.ChunkedArray) -> Keys:
    """Return the first 64 bits of ids. Raises ValueError for values that are not ids."""
    prefixes = id_hash64(ids)
    if prefixes is None:
        raise ValueError("a column of ids contains a value that is not an id")
    return prefixes


def find_positions(ids: Keys, wanted: Keys) -> Ints:
    """Return the position of each wanted id among ascending ids, or -1 if it is missing.

    Two of ten million ids share their first 64 bits once in 370,000 indexes.
    """
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    positions = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[positions] == wanted, positions, -1).astype(np.int64)


def entity_positions(ids: Keys, wanted: Keys) -> Ints:
    """Return the position of each wanted entity. Raises ValueError if one is missing."""
    positions = find_positions(ids, wanted)
    if (positions < 0).any():
        raise ValueError("a relationship refers to a missing entity")
    return positions


@dataclass(frozen=True)
class ShortIds:
    """Short ids of one table by the first 64 bits of the ids, in ascending order, and the next free one."""

    keys: Keys
    short_ids: Ints
    next_short_id: int

    def look_up(self, ids: pa.ChunkedArray | pa.Array) -> Ints:
        """Return the short id of each id, or -1 if it has none."""
        wanted = id_hash64(ids)
        if wanted is None or not len(self.keys):
            return np.full(len(ids), -1, dtype=np.int64)
        positions = find_positions(self.keys, wanted)
        return np.where(positions >= 0, self.short_ids[positions], -1)


def assign_short_ids(run: Run, table: str, keys: Keys, order: Ints | None = None) -> ShortIds:
    """Take short ids over from the parent snapshot, and number new ids above the highest ever used.

    `keys` are the first 64 bits of the ids. New ids are numbered in the order `order`, if given.
    """
    before = parent_short_ids(run, table)
    positions = find_positions(before.keys, keys)
    numbers = np.where(positions >= 0, before.short_ids[positions], -1) if len(before.keys) else positions
    sequence = np.arange(len(keys)) if order is None else order
    new = sequence[numbers[sequence] < 0]
    numbers[new] = np.arange(before.next_short_id, before.next_short_id + len(new))
    return sorted_short_ids(keys, numbers, before.next_short_id + len(new))


def parent_short_ids(run: Run, table: str) -> ShortIds:
    """Load the short ids of the parent snapshot.

    If some of its parts are damaged, the short ids of the newest intact ancestor are loaded, so that the same
    documents get the same numbers again. Without such an ancestor, all readable parts of the parent are used.
    """
    manifest = run.parent
    try:
        while manifest is not None and run.has_lost_parts(manifest.parts(table)):
            manifest = None if manifest.parent is None else load(run.store, manifest.parent)
    except (IndexNotFound, CorruptPart):
        manifest = run.parent
        run.observer.message(f"Short ids of {table} are lost with a damaged part. Its rows get new ones.")
    parts = manifest.parts(table) if manifest else []
    if manifest is run.parent:
        parts = [part for part in parts if not run.has_lost_parts([part])]
    rows = load_integer_columns(run.store, [parts], _NUMBERED)
    first = int(manifest.next_human_readable_id.get(table, 1)) if manifest else 1
    return sorted_short_ids(rows["id"].to_numpy(), rows["human_readable_id"].to_numpy(), first)


def sorted_short_ids(keys: Keys, numbers: Ints, next_: int) -> ShortIds:
    order = np.argsort(keys, kind="stable")
    return ShortIds(keys[order], numbers[order], next_)


class ReferenceRenderer:
    """Replaces ids in references with short ids, which are looked up in bulk."""

    def __init__(self, numbers: Mapping[str, ShortIds]) -> None:
        self._numbers = numbers
        self._known: dict[Reference, int | None] = {}

    def prepare(self, references: Iterable[Mapping[str, str]]) -> None:
        """Look up references before their texts are rendered."""
        wanted: dict[str, dict[str, None]] = {}
        for reference in references:
            wanted.setdefault(reference["section"], {})[reference["id"]] = None
        for section, ids in wanted.items():
            numbers = (
                self._numbers[RECORD_KIND_BY_SECTION[section].table]
                .look_up(pa.array(list(ids), pa.string()))
                .tolist()
            )
            for id_, number in zip(ids, numbers, strict=True):
                self._known[Reference(section, id_)] = number if number >= 0 else None

    def render(self, text: str) -> str:
        return render_references(text, self._known.get)
