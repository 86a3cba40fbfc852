"""Which rows of a table hold an id: in its own column of ids, or in others that refer to some.

An index of rows covers some consecutive parts of a table, is one file and is read by places. Rows are counted
over these parts.

    parts           where the rows of each part end

and for each group of columns by which rows are found ("id", "source_id+target_id"):

    entry.<group>   of each id that these columns hold and each row that holds it: the first half of that id,
                    the row, its own id and some of its values, so that what rows are chosen by is read in
                    one piece; by the first of these, and of one first the rows with the highest values
    top.<group>     the first of these of some entries (`mapped_arrays.tops`)

and for each column that can be read by pages (`store/pages.py`):

    first.<column>  the first row of each page, and the number of rows
    page.<column>   where its bytes lie in the part, how many values it holds, and its checksum

Entries are sorted by the first halves of ids, and whole ids are compared.

An index of parts, most of which an earlier index covers, is made of that one (`derive`): nobody has to read
these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_ray.store.pages import PAGE, Pages
from graphrag_ray.store.search.mapped_arrays import (
    STEP,
    ByteSource,
    Ints,
    Keys,
    MappedArray,
    packed,
    spread,
    tops,
    unpacked,
)

HALVES = np.dtype([("high", "<u8"), ("low", "<u8")])
_VALUE = np.dtype("<f8")
_IDS_AT_ONCE = 1024


def group_name(group: Sequence[str]) -> str:
    """The name of columns by which rows are found together."""
    return "+".join(group)


def entry_type(ids: Sequence[str], numbers: Sequence[str]) -> np.dtype[Any]:
    """What an entry holds: what it is found by, its row, ids in these columns, and numbers in those."""
    fields: list[Any] = [("key", "<u8"), ("place", "<u4")]  # a column may be called row
    fields += [(name, HALVES) for name in ids]
    return np.dtype(fields + [(name, _VALUE) for name in numbers])


def entry_types(
    carried: Mapping[tuple[str, ...], tuple[Sequence[str], Sequence[str]]],
) -> dict[str, np.dtype[Any]]:
    """By the name of a group, `entry_type` of what its entries carry."""
    return {group_name(group): entry_type(*beside) for group, beside in carried.items()}


@dataclass(frozen=True)
class RowEntries:
    """Rows that hold ids. whose: which of the wanted ids each holds; entry: of `entry_type`."""

    whose: Ints
    entry: npt.NDArray[Any]

    @cached_property
    def rows(self) -> Ints:
        """Counted over the index."""
        return self.entry["place"].astype(np.int64)

    def taken(self, places: Ints) -> RowEntries:
        return RowEntries(self.whose[places], self.entry[places])


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
class RowsOfPart:
    """What an index holds of one part, over which its rows are counted.

    groups  by name: entries, in any order
    pages   by column
    """

    n_rows: int
    groups: Mapping[str, npt.NDArray[Any]]
    pages: Mapping[str, Pages]


@dataclass(frozen=True)
class RowIndex:
    source: ByteSource
    arrays: Mapping[str, MappedArray]
    _sound: set[str] = field(default_factory=set)
    """Columns whose pages were looked over."""

    @cached_property
    def ends(self) -> Ints:
        """[parts] where the rows of each part end."""
        return self.arrays["parts"].whole().astype(np.int64)

    @property
    def n_rows(self) -> int:
        return int(self.ends[-1])

    @property
    def paged(self) -> list[str]:
        """The columns that can be read by pages."""
        return [name.partition(".")[2] for name in self.arrays if name.startswith("first.")]

    def has(self, group: str) -> bool:
        return f"entry.{group}" in self.arrays

    def found(self, group: str, high: Keys, low: Keys, most: int | None = None) -> RowEntries:
        """Rows that hold one of these ids; of each at most so many, the first by rank. A row that holds
        several occurs with each."""
        entries, top = self.arrays[f"entry.{group}"], self.arrays[f"top.{group}"].whole()
        left = np.maximum(np.searchsorted(top, high, "left") - 1, 0) * STEP
        right = np.minimum(np.searchsorted(top, high, "right") * STEP, len(entries))
        if most is not None:  # an id that is everywhere has many entries, of which few are wanted
            right = np.minimum(right, left + 2 * STEP + most)
        # The columns that may hold an id; none: the key is all of it.
        held = [name for name in group.split("+") if name in (entries.values.dtype.names or ())]
        some = [RowEntries(np.zeros(0, np.int64), entries.values[:0])]
        for at in range(0, len(high), _IDS_AT_ONCE):
            own = slice(at, at + _IDS_AT_ONCE)
            entry = entries.runs(left[own], right[own])
            whose = at + np.repeat(np.arange(len(left[own])), right[own] - left[own])
            same = np.flatnonzero(entry["key"] == high[whose])
            whose, entry = whose[same], entry[same]
            if held:
                wanted = [
                    (e["high"] == high[whose]) & (e["low"] == low[whose])
                    for e in map(entry.__getitem__, held)
                ]
                same = np.flatnonzero(np.any(wanted, axis=0))
                whose, entry = whose[same], entry[same]
            if most is not None:
                same = np.flatnonzero(np.arange(len(whose)) - np.searchsorted(whose, whose) < most)
                whose, entry = whose[same], entry[same]
            some.append(RowEntries(whose, entry))
        found = _together(some)
        if len(found.rows) and found.rows.max() >= self.n_rows:
            raise self.source.refused("an entry is of no row")
        return found

    def page_of(self, column: str, rows: Ints) -> Ints | None:
        """The page of each row; None where the column cannot be read by pages."""
        if f"first.{column}" not in self.arrays:
            return None
        return np.searchsorted(self._firsts(column), rows, "right").astype(np.int64) - 1

    def pages(self, column: str, at: Ints) -> PagesOf:
        """Where pages lie."""
        page, firsts = self.arrays[f"page.{column}"].take(at), self._firsts(column)
        first, last = firsts[at].astype(np.int64), firsts[at + 1].astype(np.int64)
        part = np.searchsorted(self.ends, first, "right").astype(np.int64)
        return PagesOf(part, first, last - first, page)

    def pages_by_part(self, column: str) -> list[Pages]:
        """All pages of a column, of each part as `RowsOfPart` has them."""
        firsts, pages = self._firsts(column).astype(np.int64), self.arrays[f"page.{column}"].whole()
        starts = np.append(0, self.ends)
        at = np.searchsorted(firsts, starts).tolist()
        spans = zip(at[:-1], at[1:], starts.tolist(), strict=False)
        return [Pages(firsts[a : b + 1] - start, pages[a:b]) for a, b, start in spans]

    def _firsts(self, column: str) -> npt.NDArray[np.uint32]:
        """The first row of each page, and the number of rows."""
        firsts = self.arrays[f"first.{column}"].whole()
        if column not in self._sound:
            bounds = np.append(0, self.ends)
            at = np.searchsorted(firsts, bounds)
            rise = (firsts[1:] > firsts[:-1]).all()
            if not rise or at[-1] != len(firsts) - 1 or (firsts[at] != bounds).any():
                raise self.source.refused("its pages are not those of its parts, one behind the other")
            self._sound.add(column)
        return firsts


def distinct(found: RowEntries) -> tuple[RowEntries, RowEntries]:
    """An entry of each row, by rows; and all of them, by rows."""
    every = found.taken(np.argsort(found.rows, kind="stable"))
    return every.taken(np.unique(every.rows, return_index=True)[1]), every


def first_of_each(found: Sequence[RowEntries], most: int) -> list[RowEntries]:
    """Of what several indexes found, for each wanted id so many entries at most, the first by rank."""
    of = np.repeat(np.arange(len(found)), [len(entries.whose) for entries in found])
    every = _together(found)
    order = np.lexsort([every.rows, of, *_falling(every.entry), every.whose])
    whose = every.whose[order]
    first = np.arange(len(order)) - np.searchsorted(whose, whose) < most
    kept = np.zeros(len(order), np.bool_)
    kept[order[first]] = True
    return [e.taken(np.flatnonzero(kept[of == at])) for at, e in enumerate(found)]


def _together(found: Sequence[RowEntries]) -> RowEntries:
    return RowEntries(*(np.concatenate([getattr(e, name) for e in found]) for name in ("whose", "entry")))


def _falling(entries: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Keys by which entries are sorted: those of the highest values first."""
    names = entries.dtype.names or ()
    return [-entries[name] for name in reversed(names) if entries.dtype[name] == _VALUE]


def build(
    part_rows: Sequence[int], groups: Mapping[str, npt.NDArray[Any]], pages: Mapping[str, Pages] = {}
) -> bytes:
    """The bytes of an index of rows.

    part_rows  rows of each part
    groups     entries of each, in any order
    pages      by column
    """
    return _packed(part_rows, {name: of.take(_by_rank(of)) for name, of in groups.items()}, pages)


def _packed(
    part_rows: Sequence[int], groups: Mapping[str, npt.NDArray[Any]], pages: Mapping[str, Pages]
) -> bytes:
    """`build`, of entries in their order."""
    arrays: dict[str, npt.NDArray[Any]] = {"parts": np.cumsum(part_rows, dtype="<i8")}
    for group, entries in groups.items():
        arrays |= {f"entry.{group}": entries, f"top.{group}": tops(entries["key"])}
    for column, (first, found) in pages.items():
        arrays |= {f"first.{column}": first.astype("<u4"), f"page.{column}": found}
    return packed(arrays)


def _by_rank(entries: npt.NDArray[Any]) -> Ints:
    """The order in which entries stand in an index."""
    return np.lexsort([entries["place"], *_falling(entries), entries["key"]])


def of_parts(parts: Sequence[RowsOfPart]) -> bytes:
    """The bytes of an index of these parts. Of columns it has the pages of those that all parts have."""
    before = list(accumulate((part.n_rows for part in parts), initial=0))
    groups = {name: _moved([part.groups[name] for part in parts], before) for name in parts[0].groups}
    shared = [column for column in parts[0].pages if all(column in part.pages for part in parts)]
    pages = {column: _joined([part.pages[column] for part in parts], before) for column in shared}
    return build([part.n_rows for part in parts], groups, pages)


def derive(earlier: RowIndex, parts: Sequence[RowsOfPart | int]) -> bytes:
    """What `of_parts` makes of parts, most of which an earlier index covers: a number is that of one there.
    What that index holds of it is moved to its new rows. A column whose pages the earlier index lacks has
    none. Raises what its source refuses with."""
    starts = np.append(0, earlier.ends)
    sizes = np.diff(starts).tolist()
    rows = [sizes[part] if isinstance(part, int) else part.n_rows for part in parts]
    before = list(accumulate(rows, initial=0))
    placed = list(zip(parts, before, strict=False))
    new = [(part, first) for part, first in placed if isinstance(part, RowsOfPart)]
    taken = [(part, first) for part, first in placed if isinstance(part, int)]
    row_now = np.full(earlier.n_rows, -1)
    for part, first in taken:
        row_now[starts[part] : starts[part + 1]] = np.arange(first, first + sizes[part])
    groups = {}
    for group in [name.partition(".")[2] for name in earlier.arrays if name.startswith("entry.")]:
        found = earlier.arrays[f"entry.{group}"].whole()
        if len(found) and found["place"].max() >= earlier.n_rows:
            raise earlier.source.refused("an entry is of no row")
        if (found["key"][1:] < found["key"][:-1]).any():
            raise earlier.source.refused("its entries are not in order")
        place = row_now[found["place"]]
        kept = found.take(np.flatnonzero(place >= 0))  # quicker than found[…], since there are fields
        kept["place"] = place[place >= 0]
        entries = _moved([kept, *(part.groups[group] for part, _ in new)], [0, *(first for _, first in new)])
        still_sorted = taken == sorted(taken)
        groups[group] = entries.take(_merged(entries, len(kept)) if still_sorted else _by_rank(entries))
    pages = {}
    for column in earlier.paged:
        if all(column in part.pages for part, _ in new):
            known = earlier.pages_by_part(column)
            some = [known[part] if isinstance(part, int) else part.pages[column] for part in parts]
            pages[column] = _joined(some, before)
    return _packed(rows, groups, pages)


def _merged(entries: npt.NDArray[Any], n_sorted: int) -> Ints:
    """As `_by_rank`, where so many of the first ones are in that order already: of these only those are
    looked at that have the key of another one."""
    keys = entries["key"]
    wanted = np.unique(keys[n_sorted:])
    left, right = (np.searchsorted(keys[:n_sorted], wanted, side) for side in ("left", "right"))
    beside = spread(left, right)[0]
    others = np.delete(np.arange(n_sorted), beside)
    some = np.append(beside, np.arange(n_sorted, len(entries)))
    some = some[_by_rank(entries.take(some))]
    return np.insert(others, np.searchsorted(keys[others], keys[some]), some)


def _moved(some: Sequence[npt.NDArray[Any]], before: Sequence[int]) -> npt.NDArray[Any]:
    """Entries of several parts, together. before: the rows before each part"""
    together = np.concatenate(some)
    together["place"] += np.repeat(np.array(before[: len(some)], "<u4"), [len(entries) for entries in some])
    return together


def _joined(some: Sequence[Pages], before: Sequence[int]) -> Pages:
    """Pages of several parts, together. before: the rows before each part, and of all"""
    firsts = [first[:-1] + rows for (first, _), rows in zip(some, before, strict=False)]
    return Pages(np.concatenate([*firsts, before[-1:]]), np.concatenate([pages for _, pages in some]))


def read(source: ByteSource, entries: Mapping[str, np.dtype[Any]]) -> RowIndex:
    """An index of rows. entries: of each group that there can be. Raises what `source.refused` makes."""
    types: dict[str, Any] = {"parts": "<i8", "top": "<u8"}
    types |= {"first": "<u4", "page": PAGE} | {f"entry.{group}": of for group, of in entries.items()}
    arrays = unpacked(source, types, ["parts"])
    for name, array in arrays.items():
        kind, _, of = name.partition(".")
        other, length = {
            "entry": (f"top.{of}", -(-len(array) // STEP)),
            "first": (f"page.{of}", len(array) - 1),
        }.get(kind, (name, len(array)))
        if other not in arrays or len(arrays[other]) != length:
            raise source.refused("it lacks arrays, or they are of different lengths")
    index = RowIndex(source, arrays)
    if not len(index.ends) or (index.ends[1:] < index.ends[:-1]).any() or index.ends[0] < 0:
        raise source.refused("its parts are not one behind the other")
    return index
