"""Ids on the driver: columns of tables as integers, ids as their first 64 bits, so that no table's ids are
all in memory as texts; and short ids, `human_readable_id`, which people see and cite. Those are carried over
from snapshot to snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base.declarations import OF_SECTION
from graphrag_ray.base.errors import CorruptPart, IndexNotFound
from graphrag_ray.base.records import Reference, render_references
from graphrag_ray.graph.integer_arrays import Ints, id_prefixes
from graphrag_ray.indexing.run import Run
from graphrag_ray.store.files import Store, in_threads
from graphrag_ray.store.parts import Part, read_part, read_table
from graphrag_ray.store.snapshots import load

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


def write_arrays(run: Run, step: str, table: str, arrays: Mapping[str, Any]) -> list[Part]:
    """Arrays of any lengths, as the one row of a table."""
    columns = {name: pa.array(values) for name, values in arrays.items()}
    lists = {name: pa.LargeListArray.from_arrays([0, len(of)], of) for name, of in columns.items()}
    return run.write(step, table, [pa.table(lists)])


def read_arrays(store: Store, parts: Sequence[Part], names: Sequence[str] | None = None) -> dict[str, Any]:
    """What `write_arrays` wrote; some of it."""
    table = read_table(store, parts, names)
    return {name: pc.list_flatten(table[name]).to_numpy() for name in table.column_names}


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


_NUMBERED = pa.schema([*IDS, ("human_readable_id", pa.int64())])


@dataclass(frozen=True)
class Numbers:
    """Short ids of one table: sorted id prefixes and their numbers; `next` was never used."""

    keys: Keys
    numbers: Ints
    next: int

    def of(self, ids: pa.ChunkedArray | pa.Array) -> Ints:
        """The number of each id; -1 for one that has none."""
        wanted = id_prefixes(ids)
        if wanted is None or not len(self.keys):
            return np.full(len(ids), -1, dtype=np.int64)
        at = places_in(self.keys, wanted)
        return np.where(at >= 0, self.numbers[at], -1)


def number(run: Run, table: str, keys: Keys, order: Ints | None = None) -> Numbers:
    """Short ids: the parent snapshot's where it has the id, new ones above the highest ever used.

    keys: the first 64 bits of each id. order: the sequence in which new ids are numbered; None: as they
    stand.
    """
    before = numbered_before(run, table)
    at = places_in(before.keys, keys)
    numbers = np.where(at >= 0, before.numbers[at], -1) if len(before.keys) else at
    sequence = np.arange(len(keys)) if order is None else order
    new = sequence[numbers[sequence] < 0]
    numbers[new] = np.arange(before.next, before.next + len(new))
    return _by_key(keys, numbers, before.next + len(new))


def numbered_before(run: Run, table: str) -> Numbers:
    """Those of the parent snapshot.

    Where some of its parts are damaged, those of the snapshot before it, and so on: the same documents are
    numbered again then as they were. Where there is none left, what can be read of the parent's, and the rest
    gets new numbers.
    """
    at = run.parent
    try:
        while at is not None and run.lost(at.parts(table)):
            at = None if at.parent is None else load(run.store, at.parent)
    except (IndexNotFound, CorruptPart):
        at = run.parent
        run.observer.note(f"Short ids of {table} are lost with a damaged part: what it held gets new ones.")
    parts = [part for part in at.parts(table) if at is not run.parent or not run.lost([part])] if at else []
    rows = columns_of(run.store, [parts], _NUMBERED)
    first = int(at.next_human_readable_id.get(table, 1)) if at else 1
    return _by_key(rows["id"].to_numpy(), rows["human_readable_id"].to_numpy(), first)


def _by_key(keys: Keys, numbers: Ints, next_: int) -> Numbers:
    order = np.argsort(keys, kind="stable")
    return Numbers(keys[order], numbers[order], next_)


def renumbered(ids: pa.Array, numbers: Ints, next_: int) -> Numbers:
    """Numbers that are given."""
    return _by_key(prefixes_of(ids), numbers, next_)


class Rendered:
    """Turns string ids in references into human_readable_ids, looked up many at a time."""

    def __init__(self, numbers: Mapping[str, Numbers]) -> None:
        self._numbers = numbers
        self._known: dict[Reference, int | None] = {}

    def prepare(self, references: Iterable[Mapping[str, str]]) -> None:
        """Look up what is going to be rendered."""
        wanted: dict[str, dict[str, None]] = {}
        for reference in references:
            wanted.setdefault(reference["section"], {})[reference["id"]] = None
        for section, ids in wanted.items():
            found = self._numbers[OF_SECTION[section].table].of(pa.array(list(ids), pa.string())).tolist()
            for id_, number_ in zip(ids, found, strict=True):
                self._known[Reference(section, id_)] = number_ if number_ >= 0 else None

    def render(self, text: str) -> str:
        return render_references(text, self._known.get)
