"""Which rows of a table hold an id: in its own column of ids, or in others that refer to some.

An index of rows covers some consecutive parts of a table, is one file and is read by places. Rows are counted
over these parts.

    parts           where the rows of each part end

and for each group of columns by which rows are found ("id", "source_id+target_id"):

    key.<group>     the first halves of the ids that these columns hold, distinct, rising
    top.<group>     some of these (`mapped_arrays.tops`)
    end.<group>     where the entries of each key end
    entry.<group>   a row that holds it, its id and some of its values, so that what rows are chosen by is
                    read in one piece; those of one key first that have the highest values

and for each column that can be read by pages (`store/pages.py`):

    first.<column>  the first row of each page, and the number of rows
    page.<column>   where its bytes lie in the part, how many values it holds, and its checksum

In groups ids are known by their first 64 bits. They are hashes: that two of 10 million ids share these has a
chance of 1 to 370,000, and then some more rows are read than were wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.search.mapped_arrays import (
    Ints,
    Keys,
    MappedArray,
    Source,
    packed,
    places_in,
    spread,
    tops,
    unpacked,
)

HALVES = np.dtype([("high", "<u8"), ("low", "<u8")])
PAGE = np.dtype([("start", "<i8"), ("size", "<i4"), ("values", "<i4"), ("sum", "<u4")])
_VALUE = np.dtype("<f8")


def named(group: Sequence[str]) -> str:
    """The name of columns by which rows are found together."""
    return "+".join(group)


def entry_type(group: Sequence[str], values: Sequence[str]) -> np.dtype[Any]:
    """What an entry holds: its row, its id and those in these columns, and the numbers in those."""
    fields: list[Any] = [("place", "<u4")]  # a column may be called row
    fields += [(name, HALVES) for name in dict.fromkeys(("id", *group))]
    return np.dtype(fields + [(name, _VALUE) for name in values])


@dataclass(frozen=True)
class Entries:
    """Rows that hold ids. rows: counted over the index; whose: which of the wanted ids each holds; entry: of
    `entry_type`."""

    rows: Ints
    whose: Ints
    entry: npt.NDArray[Any]

    def taken(self, places: Ints) -> Entries:
        return Entries(self.rows[places], self.whose[places], self.entry[places])


@dataclass(frozen=True)
class PagesOf:
    """Pages of a column.

    part    of each page
    first   its first row
    rows    how many it has
    page    of PAGE
    """

    part: Ints
    first: Ints
    rows: Ints
    page: npt.NDArray[Any]


@dataclass(frozen=True)
class RowIndex:
    source: Source
    arrays: Mapping[str, MappedArray]

    @cached_property
    def ends(self) -> Ints:
        """[parts] where the rows of each part end."""
        return self.arrays["parts"].whole().astype(np.int64)

    @property
    def n_rows(self) -> int:
        return int(self.ends[-1])

    def has(self, group: str) -> bool:
        return f"key.{group}" in self.arrays

    def found(self, group: str, high: Keys, low: Keys, most: int | None = None) -> Entries:
        """Rows that hold one of these ids; of each at most so many, the first by rank. A row that holds
        several occurs with each."""
        keys, ends, entries = (self.arrays[f"{name}.{group}"] for name in ("key", "end", "entry"))
        places = places_in(keys, self.arrays[f"top.{group}"], high)
        there = np.flatnonzero(places >= 0)
        held, of = np.unique(places[there], return_inverse=True)
        right = ends.take(held).astype(np.int64)
        left = np.where(held > 0, ends.take(np.maximum(held - 1, 0)), 0).astype(np.int64)
        if (left > right).any() or (left[1:] < right[:-1]).any():
            raise self.source.refused("its entries are not one behind the other")
        left, right = left[of], right[of]
        if most is not None:
            right = np.minimum(right, left + most)
        entry = entries.runs(left, right)
        whose = there[spread(left, right)[1]]
        rows = entry["place"].astype(np.int64)
        if len(rows) and rows.max() >= self.n_rows:
            raise self.source.refused("an entry is of no row")
        found = Entries(rows, whose, entry)
        if group == "id":
            return found.taken(np.flatnonzero(entry["id"]["low"] == low[whose]))
        return found

    def page_of(self, column: str, rows: Ints) -> Ints | None:
        """The page of each row; None where the column cannot be read by pages."""
        first = self.arrays.get(f"first.{column}")
        if first is None:
            return None
        firsts = first.whole()
        if (firsts[1:] <= firsts[:-1]).any():
            raise self.source.refused("its pages are not one behind the other")
        return np.searchsorted(firsts, rows, "right").astype(np.int64) - 1

    def pages(self, column: str, at: Ints) -> PagesOf:
        """Where pages lie."""
        firsts, pages = self.arrays[f"first.{column}"].whole(), self.arrays[f"page.{column}"]
        if len(firsts) != len(pages) + 1:
            raise self.source.refused("its pages are of different lengths")
        found = pages.take(at)
        first, last = firsts[at].astype(np.int64), firsts[at + 1].astype(np.int64)
        part = np.searchsorted(self.ends, first, "right").astype(np.int64)
        own = np.append(self.ends, self.ends[-1])[np.minimum(part, len(self.ends))]
        if (last <= first).any() or (last > own).any() or (part >= len(self.ends)).any():
            raise self.source.refused("its pages are not one behind the other")
        if len(at) and (found["size"].min() < 1 or found["values"].min() < 0 or found["start"].min() < 0):
            raise self.source.refused("a page is none")
        return PagesOf(part, first, last - first, found)


def distinct(found: Entries) -> tuple[Entries, Entries]:
    """An entry of each row, by rows; and all of them, by rows."""
    every = found.taken(np.argsort(found.rows, kind="stable"))
    return every.taken(np.unique(every.rows, return_index=True)[1]), every


def first_of_each(found: Sequence[Entries], most: int) -> list[Entries]:
    """Of what several indexes found, for each wanted id so many entries at most, the first by rank."""
    of = np.repeat(np.arange(len(found)), [len(entries.rows) for entries in found])
    rows, whose = (np.concatenate([getattr(e, name) for e in found]) for name in ("rows", "whose"))
    entry = np.concatenate([entries.entry for entries in found])
    order = np.lexsort([rows, of, *_falling(entry), whose])
    sorted_whose = whose[order]
    place = np.arange(len(order)) - np.searchsorted(sorted_whose, sorted_whose, "left")
    kept = np.zeros(len(order), np.bool_)
    kept[order[place < most]] = True
    ends = np.cumsum([len(entries.rows) for entries in found])[:-1]
    return [e.taken(np.flatnonzero(own)) for e, own in zip(found, np.split(kept, ends), strict=True)]


def _falling(entries: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Keys by which entries are sorted: those of the highest values first."""
    names = entries.dtype.names or ()
    return [-entries[name] for name in reversed(names) if entries.dtype[name] == _VALUE]


def build(
    part_rows: Sequence[int],
    groups: Mapping[str, tuple[Keys, npt.NDArray[Any]]],
    pages: Mapping[str, tuple[Ints, npt.NDArray[Any]]] = {},
) -> bytes:
    """The bytes of an index of rows.

    part_rows  rows of each part
    groups     keys, and an entry for each
    pages      by column: the first row of each, and the number of rows; and of PAGE
    """
    arrays: dict[str, npt.NDArray[Any]] = {"parts": np.cumsum(part_rows, dtype="<i8")}
    for group, (keys, entries) in groups.items():
        order = np.lexsort([entries["place"], *_falling(entries), keys])
        sorted_keys = keys[order]
        last = np.flatnonzero(np.append(sorted_keys[1:] != sorted_keys[:-1], len(keys) > 0))
        arrays[f"key.{group}"] = sorted_keys[last].astype("<u8")
        arrays[f"top.{group}"] = tops(arrays[f"key.{group}"])
        arrays[f"end.{group}"] = (last + 1).astype("<u4")
        arrays[f"entry.{group}"] = entries[order]
    for column, (first, found) in pages.items():
        arrays |= {f"first.{column}": first.astype("<u4"), f"page.{column}": found}
    return packed(arrays)


def read(source: Source, entries: Mapping[str, np.dtype[Any]]) -> RowIndex:
    """An index of rows. entries: of each group that there can be. Raises what `source.refused` makes."""
    types: dict[str, Any] = {"parts": "<i8", "key": "<u8", "top": "<u8", "end": "<u4"}
    types |= {"first": "<u4", "page": PAGE} | {f"entry.{group}": of for group, of in entries.items()}
    index = RowIndex(source, unpacked(source, types))
    groups = {name.partition(".")[2] for name in index.arrays if name.partition(".")[0] == "key"}
    needed = {f"{name}.{group}" for group in groups for name in ("key", "top", "end", "entry")}
    columns = {name.partition(".")[2] for name in index.arrays if name.partition(".")[0] == "first"}
    needed |= {"parts", *(f"page.{column}" for column in columns)}
    if not needed <= index.arrays.keys() or not len(index.arrays["parts"]):
        raise source.refused("it lacks arrays")
    ends = index.ends
    if (ends[1:] < ends[:-1]).any() or ends[0] < 0:
        raise source.refused("its parts are not one behind the other")
    return index
