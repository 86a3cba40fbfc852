"""Find the periods that communities cover, from the dates of the documents that mention their entities.

A relationship is stated only where both of its ends are mentioned, so it adds no other documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphrag_ray.base import dates
from graphrag_ray.graph.community_signatures import Hashes, mix_bits
from graphrag_ray.graph.hierarchy import Hierarchy
from graphrag_ray.graph.integer_arrays import Ints
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.short_ids import Keys, find_positions, id_keys, load_integer_columns
from graphrag_ray.indexing.step_result import Result
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, read_table

_UNIT_DOCUMENTS = pa.schema([("id", pa.uint64()), ("document_id", pa.uint64())])


class Periods(NamedTuple):
    """Periods as numbers (`base/dates.py`), one per record."""

    start: Ints
    end: Ints

    @classmethod
    def unknown(cls, n: int) -> Periods:
        return cls(np.full(n, dates.UNKNOWN_START), np.full(n, dates.UNKNOWN_END))

    @property
    def any_known(self) -> bool:
        return bool((self.end != dates.UNKNOWN_END).any())

    def take(self, positions: Ints) -> Periods:
        """Return the periods at some positions. A negative position is unknown."""
        found = self if len(self.start) else Periods.unknown(1)
        return Periods(
            np.where(positions >= 0, found.start[positions], dates.UNKNOWN_START),
            np.where(positions >= 0, found.end[positions], dates.UNKNOWN_END),
        )

    def merge(self, group: Ints, n: int) -> Periods:
        """Return the period of each of n groups, given the group of each record."""
        merged = Periods.unknown(n)
        np.minimum.at(merged.start, group, self.start)
        np.maximum.at(merged.end, group, self.end)
        return merged

    def between(self, first: Ints, last: Ints) -> Periods:
        """Return the period of each range first…last-1 of records. Ranges are not empty."""
        bounds = np.stack([first, last], axis=1).ravel()
        padded = (np.append(values, values[-1:]) for values in self)
        start, end = padded
        if not len(bounds):
            return Periods.unknown(0)
        return Periods(np.minimum.reduceat(start, bounds)[::2], np.maximum.reduceat(end, bounds)[::2])

    def columns(self, rows: Ints) -> dict[str, list[str | None]]:
        """Return the columns of the communities and reports tables for some records."""
        return {
            "period_start": [dates.date_of_number(n) for n in self.start[rows].tolist()],
            "period_end": [dates.date_of_number(n) for n in self.end[rows].tolist()],
        }

    def describe(self, row: int) -> str:
        return dates.describe_period(*(dates.date_of_number(int(values[row])) for values in self))

    def hashes(self) -> Hashes:
        """Return a hash of each period. That of an unknown period is not 0."""
        return mix_bits(self.start.astype(np.uint64) << np.uint64(32) | self.end.astype(np.uint64))

    def fingerprints(self, rows: Sequence[int]) -> list[list[int]]:
        """Return the numbers of some records as JSON, to compare them with the parent snapshot."""
        return [values[list(rows)].tolist() for values in self]


def chunk_periods(run: Run, corpus: Result) -> tuple[Keys, Periods]:
    """Return the first 64 bits of the ids of chunks, and their periods, in the order of the chunks."""
    units = load_integer_columns(run.store, corpus.tables["text_units"], _UNIT_DOCUMENTS)
    keys: list[Keys] = [np.zeros(0, np.uint64)]
    starts: list[Ints] = [np.zeros(0, np.int64)]
    for table in run.executor.stream("finish", _document_dates, corpus.parts("documents")):
        keys.append(table["key"].to_numpy())
        starts.append(table["start"].to_numpy())
    document, start = np.concatenate(keys), np.concatenate(starts)
    order = np.argsort(document)
    start = start[order]
    known = start != dates.UNKNOWN_START
    end = np.where(known, [dates.end_number(n) for n in start.tolist()], dates.UNKNOWN_END).astype(np.int64)
    positions = find_positions(document[order], units["document_id"].to_numpy())
    return units["id"].to_numpy(), Periods(start, end).take(positions)


def entity_periods(run: Run, corpus: Result, blocks: Sequence[Sequence[Part]]) -> Periods:
    """Return the period of each entity in the order of `blocks`, which contain its `text_unit_ids`."""
    keys, periods = chunk_periods(run, corpus)
    bounds = np.cumsum([0, *(sum(part.rows for part in block) for block in blocks)])
    result = Periods.unknown(int(bounds[-1]))
    if not periods.any_known:
        return result
    order = np.argsort(keys)
    load = run.executor.share((keys[order], periods.take(order)))
    numbered = list(enumerate(blocks))
    for table in run.executor.stream("finish", partial(_block_periods, load), numbered):
        first = int(bounds[table["block"][0].as_py()]) if len(table) else 0
        result.start[first : first + len(table)] = table["start"].to_numpy()
        result.end[first : first + len(table)] = table["end"].to_numpy()
    return result


def community_periods(
    run: Run, corpus: Result, hierarchy: Hierarchy, blocks: Sequence[Sequence[Part]]
) -> Periods:
    """Return the period of each community. `blocks` contain its entities in the hierarchy's order."""
    return entity_periods(run, corpus, blocks).between(hierarchy.start, hierarchy.end)


def _document_dates(store: Store, part: Part) -> Iterator[pa.Table]:
    rows = read_table(store, [part], ["id", "creation_date"])
    distinct = rows["creation_date"].combine_chunks().dictionary_encode()
    starts = np.array([*map(dates.start_number, distinct.dictionary.to_pylist()), dates.UNKNOWN_START])
    index = pc.fill_null(distinct.indices, len(starts) - 1).to_numpy()
    yield pa.table({"key": id_keys(rows["id"]), "start": starts[index]})


def _block_periods(
    load: Callable[[], tuple[Keys, Periods]], store: Store, numbered: tuple[int, Sequence[Part]]
) -> Iterator[pa.Table]:
    (keys, periods), (number, block) = load(), numbered
    lists = read_table(store, block, ["text_unit_ids"])["text_unit_ids"]
    row = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy())
    found = periods.take(find_positions(keys, id_keys(pc.list_flatten(lists))))
    merged = found.merge(row, len(lists))
    yield pa.table({"block": np.full(len(lists), number), "start": merged.start, "end": merged.end})
