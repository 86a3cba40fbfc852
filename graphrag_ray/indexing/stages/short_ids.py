"""Short ids, `human_readable_id`: what people see and cite. Carried over from snapshot to snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from graphrag_ray.base.declarations import OF_SECTION
from graphrag_ray.base.errors import CorruptPart, IndexNotFound
from graphrag_ray.base.records import Reference, render_references
from graphrag_ray.graph.integer_arrays import Ints, id_prefixes
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.driver_columns import IDS, Keys, columns_of, places_in, prefixes_of
from graphrag_ray.store.parts import Part
from graphrag_ray.store.snapshots import Manifest, load

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
    old_keys, old_numbers, first = numbered_before(run, table)
    at = places_in(old_keys, keys)
    numbers = np.where(at >= 0, old_numbers[at], -1) if len(old_keys) else at
    sequence = np.arange(len(keys)) if order is None else order
    new = sequence[numbers[sequence] < 0]
    numbers[new] = np.arange(first, first + len(new))
    by_key = np.argsort(keys, kind="stable")
    return Numbers(keys[by_key], numbers[by_key], first + len(new))


def numbered_before(run: Run, table: str) -> tuple[Keys, Ints, int]:
    """The ids of the parent snapshot, rising, and their numbers; and the first number that is free."""
    first, parts = _known(run, table)
    rows = columns_of(run.store, [parts], _NUMBERED)
    keys = rows["id"].to_numpy()
    by_key = np.argsort(keys, kind="stable")
    return keys[by_key], rows["human_readable_id"].to_numpy()[by_key], first


def _known(run: Run, table: str) -> tuple[int, list[Part]]:
    """The first number that is free, and the parts of a table that say which are taken.

    Those of the parent. Where some of them are damaged those of the snapshot before it, and so on: the same
    documents are numbered again then as they were. Where there is none left, what can be read of the
    parent's, and the rest gets new numbers.
    """
    if run.parent is None:
        return 1, []
    at: Manifest | None = run.parent
    try:
        while at is not None and run.lost(at.parts(table)):
            at = None if at.parent is None else load(run.store, at.parent)
    except (IndexNotFound, CorruptPart):
        at = run.parent
        run.observer.note(f"Short ids of {table} are lost with a damaged part: what it held gets new ones.")
    if at is None:
        return 1, []
    parts = [part for part in at.parts(table) if at is not run.parent or not run.lost([part])]
    return int(at.next_human_readable_id.get(table, 1)), parts


def renumbered(ids: pa.Array, numbers: Ints, next_: int) -> Numbers:
    """Numbers that are given."""
    keys = prefixes_of(ids)
    by_key = np.argsort(keys, kind="stable")
    return Numbers(keys[by_key], numbers[by_key], next_)


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
