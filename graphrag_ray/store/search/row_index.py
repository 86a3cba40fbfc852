"""Which rows of a table hold an id: in its own id column, or in columns that refer to other records.

An index covers some consecutive parts of a table and counts rows over all of them. It is one file, read by
position, with these arrays:

    parts           end of the rows of each part
    entry.<group>   for a group of columns ("id", "source_id+target_id"), an entry per row and id that it
                    holds there: the id's first half, the row, its own id and some values; sorted by the
                    first half, then by falling values, so that choosing rows takes one read
    top.<group>     the block heads of the first halves
    first.<column>  for a column that can be read by page (`store/pages.py`), the first row of each page, and
                    the number of rows
    page.<column>   offset, size, number of values and checksum of each page

Searches compare whole ids. `derive` makes an index from one that covers most of the same parts already.
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
from graphrag_ray.store.search import mapped_arrays
from graphrag_ray.store.search.mapped_arrays import STEP, ByteSource, Ints, Keys, MappedArray, expand_ranges

HALVES = np.dtype([("high", "<u8"), ("low", "<u8")])
_VALUE = np.dtype("<f8")
_BATCH_IDS = 1024


def group_name(group: Sequence[str]) -> str:
    return "+".join(group)


def entry_type(ids: Sequence[str], numbers: Sequence[str]) -> np.dtype[Any]:
    """Return the type of an entry: its key, its row, and the given id and number columns."""
    fields: list[Any] = [("key", "<u8"), ("place", "<u4")]  # A column may be called row.
    fields += [(name, HALVES) for name in ids]
    return np.dtype(fields + [(name, _VALUE) for name in numbers])


def entry_types(
    carried: Mapping[tuple[str, ...], tuple[Sequence[str], Sequence[str]]],
) -> dict[str, np.dtype[Any]]:
    """Return `entry_type` by group name, from the id and number columns of each group's entries."""
    return {group_name(group): entry_type(*columns) for group, columns in carried.items()}


@dataclass(frozen=True)
class RowEntries:
    """Entries of rows that hold some wanted ids."""

    wanted_index: Ints  # Which of the wanted ids each row holds.
    entry: npt.NDArray[Any]  # Of `entry_type`.

    @cached_property
    def rows(self) -> Ints:
        """Rows, counted over the index."""
        return self.entry["place"].astype(np.int64)

    def taken(self, places: Ints) -> RowEntries:
        return RowEntries(self.wanted_index[places], self.entry[places])


@dataclass(frozen=True)
class PageLocations:
    """Pages of a column: the part of each, its first row, its number of rows, and its PAGE."""

    part: Ints
    first: Ints
    rows: Ints
    page: npt.NDArray[Any]


@dataclass(frozen=True)
class PartRows:
    """What an index holds of one part, whose rows it counts from 0."""

    n_rows: int
    groups: Mapping[str, npt.NDArray[Any]]  # Entries in any order, by group name.
    pages: Mapping[str, Pages]  # By column.


@dataclass(frozen=True)
class RowIndex:
    source: ByteSource
    arrays: Mapping[str, MappedArray]
    _validated: set[str] = field(default_factory=set)  # Columns whose pages were checked.

    @cached_property
    def ends(self) -> Ints:
        """[parts] End of the rows of each part."""
        return self.arrays["parts"].whole().astype(np.int64)

    @property
    def n_rows(self) -> int:
        return int(self.ends[-1])

    @property
    def paged_columns(self) -> list[str]:
        """The columns that can be read by page."""
        return self._names("first")

    def _names(self, kind: str) -> list[str]:
        return [name.partition(".")[2] for name in self.arrays if name.startswith(f"{kind}.")]

    def has(self, group: str) -> bool:
        return f"entry.{group}" in self.arrays

    def find(self, group: str, high: Keys, low: Keys, most: int | None = None) -> RowEntries:
        """Find the rows that hold one of some ids, given as halves. A row with several ids occurs with each.

        `most` limits the rows per id to those with the highest values.
        """
        entries, heads = self.arrays[f"entry.{group}"], self.arrays[f"top.{group}"].whole()
        left = np.maximum(np.searchsorted(heads, high, "left") - 1, 0) * STEP
        right = np.minimum(np.searchsorted(heads, high, "right") * STEP, len(entries))
        if most is not None:  # A frequent id has many entries, of which few are wanted.
            right = np.minimum(right, left + 2 * STEP + most)
        # The columns that hold whole ids; none: the key is all of the id.
        id_columns = [name for name in group.split("+") if name in (entries.values.dtype.names or ())]
        batches = [RowEntries(np.zeros(0, np.int64), entries.values[:0])]
        for start in range(0, len(high), _BATCH_IDS):
            batch = slice(start, start + _BATCH_IDS)
            entry = entries.runs(left[batch], right[batch])
            whose = start + np.repeat(np.arange(len(left[batch])), right[batch] - left[batch])
            same = np.flatnonzero(entry["key"] == high[whose])
            whose, entry = whose[same], entry[same]
            if id_columns:
                matches = [
                    (ids["high"] == high[whose]) & (ids["low"] == low[whose])
                    for ids in map(entry.__getitem__, id_columns)
                ]
                same = np.flatnonzero(np.any(matches, axis=0))
                whose, entry = whose[same], entry[same]
            if most is not None:
                same = np.flatnonzero(np.arange(len(whose)) - np.searchsorted(whose, whose) < most)
                whose, entry = whose[same], entry[same]
            batches.append(RowEntries(whose, entry))
        found = _concatenated(batches)
        if len(found.rows) and found.rows.max() >= self.n_rows:
            raise self.source.invalid("an entry is of no row")
        return found

    def page_of(self, column: str, rows: Ints) -> Ints | None:
        """Return the page of each row; None if the column cannot be read by page."""
        if f"first.{column}" not in self.arrays:
            return None
        return np.searchsorted(self._first_rows(column), rows, "right").astype(np.int64) - 1

    def pages(self, column: str, at: Ints) -> PageLocations:
        page, first_rows = self.arrays[f"page.{column}"].take(at), self._first_rows(column)
        first, end = first_rows[at].astype(np.int64), first_rows[at + 1].astype(np.int64)
        part = np.searchsorted(self.ends, first, "right").astype(np.int64)
        return PageLocations(part, first, end - first, page)

    def pages_by_part(self, column: str) -> list[Pages]:
        """Return all pages of a column, by part, in the form of `PartRows`."""
        first_rows, pages = self._first_rows(column).astype(np.int64), self.arrays[f"page.{column}"].whole()
        starts = np.append(0, self.ends)
        at = np.searchsorted(first_rows, starts).tolist()
        spans = zip(at[:-1], at[1:], starts.tolist(), strict=False)
        return [Pages(first_rows[a : b + 1] - start, pages[a:b]) for a, b, start in spans]

    def _first_rows(self, column: str) -> npt.NDArray[np.uint32]:
        """Return the first row of each page, and the number of rows."""
        first_rows = self.arrays[f"first.{column}"].whole()
        if column not in self._validated:
            bounds = np.append(0, self.ends)
            at = np.searchsorted(first_rows, bounds)
            is_rising = (first_rows[1:] > first_rows[:-1]).all()
            if not is_rising or at[-1] != len(first_rows) - 1 or (first_rows[at] != bounds).any():
                raise self.source.invalid("its pages do not match the rows of its parts")
            self._validated.add(column)
        return first_rows


def one_per_row(found: RowEntries) -> tuple[RowEntries, RowEntries]:
    """Return one entry per row, and all entries, both sorted by row."""
    by_row = found.taken(np.argsort(found.rows, kind="stable"))
    return by_row.taken(np.unique(by_row.rows, return_index=True)[1]), by_row


def best_per_id(found: Sequence[RowEntries], most: int) -> list[RowEntries]:
    """Limit what several indexes found to the `most` best entries per wanted id."""
    index = np.repeat(np.arange(len(found)), [len(entries.wanted_index) for entries in found])
    every = _concatenated(found)
    order = np.lexsort([every.rows, index, *_falling_values(every.entry), every.wanted_index])
    whose = every.wanted_index[order]
    kept = np.zeros(len(order), np.bool_)
    kept[order[np.arange(len(order)) - np.searchsorted(whose, whose) < most]] = True
    return [entries.taken(np.flatnonzero(kept[index == i])) for i, entries in enumerate(found)]


def _concatenated(found: Sequence[RowEntries]) -> RowEntries:
    return RowEntries(
        np.concatenate([e.wanted_index for e in found]), np.concatenate([e.entry for e in found])
    )


def _falling_values(entries: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Return keys for `lexsort` that put the highest values first."""
    names = entries.dtype.names or ()
    return [-entries[name] for name in reversed(names) if entries.dtype[name] == _VALUE]


def build(
    part_rows: Sequence[int], groups: Mapping[str, npt.NDArray[Any]], pages: Mapping[str, Pages] = {}
) -> bytes:
    """Return the bytes of an index: rows per part, entries by group in any order, and pages by column."""
    return _packed(part_rows, {name: e.take(_entry_order(e)) for name, e in groups.items()}, pages)


def _packed(
    part_rows: Sequence[int], groups: Mapping[str, npt.NDArray[Any]], pages: Mapping[str, Pages]
) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {"parts": np.cumsum(part_rows, dtype="<i8")}
    for group, entries in groups.items():
        arrays |= {f"entry.{group}": entries, f"top.{group}": mapped_arrays.block_heads(entries["key"])}
    for column, (first, page) in pages.items():
        arrays |= {f"first.{column}": first.astype("<u4"), f"page.{column}": page}
    return mapped_arrays.pack(arrays)


def _entry_order(entries: npt.NDArray[Any]) -> Ints:
    return np.lexsort([entries["place"], *_falling_values(entries), entries["key"]])


def build_from_parts(parts: Sequence[PartRows]) -> bytes:
    """Return the bytes of an index of some parts, with the columns that all of them can read by page."""
    before = list(accumulate((part.n_rows for part in parts), initial=0))
    groups = {name: _shift([part.groups[name] for part in parts], before) for name in parts[0].groups}
    shared = [column for column in parts[0].pages if all(column in part.pages for part in parts)]
    pages = {column: _join_pages([part.pages[column] for part in parts], before) for column in shared}
    return build([part.n_rows for part in parts], groups, pages)


def derive(earlier: RowIndex, parts: Sequence[PartRows | int]) -> bytes:
    """Make the index of `build_from_parts` from an earlier one, moving its entries to their new rows.

    Args:
        parts: New parts, or the number of a part of the earlier index. Columns that the earlier index cannot
            read by page are left out.
    """
    starts = np.append(0, earlier.ends)
    sizes = np.diff(starts).tolist()
    rows = [sizes[part] if isinstance(part, int) else part.n_rows for part in parts]
    before = list(accumulate(rows, initial=0))
    placed = list(zip(parts, before, strict=False))
    new = [(part, first) for part, first in placed if isinstance(part, PartRows)]
    reused = [(part, first) for part, first in placed if isinstance(part, int)]
    new_row = np.full(earlier.n_rows, -1)
    for part, first in reused:
        new_row[starts[part] : starts[part + 1]] = np.arange(first, first + sizes[part])
    groups = {}
    for group in earlier._names("entry"):
        entries = earlier.arrays[f"entry.{group}"].whole()
        if len(entries) and entries["place"].max() >= earlier.n_rows:
            raise earlier.source.invalid("an entry is of no row")
        if (entries["key"][1:] < entries["key"][:-1]).any():
            raise earlier.source.invalid("its entries are not in order")
        place = new_row[entries["place"]]
        kept = entries.take(np.flatnonzero(place >= 0))  # Faster than indexing, because of the fields.
        kept["place"] = place[place >= 0]
        merged = _shift([kept, *(part.groups[group] for part, _ in new)], [0, *(first for _, first in new)])
        is_sorted = reused == sorted(reused)
        groups[group] = merged.take(_merge_order(merged, len(kept)) if is_sorted else _entry_order(merged))
    pages = {}
    for column in earlier.paged_columns:
        if all(column in part.pages for part, _ in new):
            known = earlier.pages_by_part(column)
            by_part = [known[part] if isinstance(part, int) else part.pages[column] for part in parts]
            pages[column] = _join_pages(by_part, before)
    return _packed(rows, groups, pages)


def _merge_order(entries: npt.NDArray[Any], n_sorted: int) -> Ints:
    """`_entry_order` if the first entries are sorted already: only those that share a key move."""
    keys = entries["key"]
    wanted = np.unique(keys[n_sorted:])
    left, right = (np.searchsorted(keys[:n_sorted], wanted, side) for side in ("left", "right"))
    same_key = expand_ranges(left, right)[0]
    others = np.delete(np.arange(n_sorted), same_key)
    moving = np.append(same_key, np.arange(n_sorted, len(entries)))
    moving = moving[_entry_order(entries.take(moving))]
    return np.insert(others, np.searchsorted(keys[others], keys[moving]), moving)


def _shift(by_part: Sequence[npt.NDArray[Any]], before: Sequence[int]) -> npt.NDArray[Any]:
    """Concatenate the entries of several parts, adding the number of rows before each part."""
    entries = np.concatenate(by_part)
    entries["place"] += np.repeat(np.array(before[: len(by_part)], "<u4"), list(map(len, by_part)))
    return entries


def _join_pages(by_part: Sequence[Pages], before: Sequence[int]) -> Pages:
    """Concatenate the pages of several parts. `before` ends with the number of all rows."""
    firsts = [first[:-1] + rows for (first, _), rows in zip(by_part, before, strict=False)]
    return Pages(np.concatenate([*firsts, before[-1:]]), np.concatenate([page for _, page in by_part]))


def read(source: ByteSource, entries: Mapping[str, np.dtype[Any]]) -> RowIndex:
    """Open an index; `entries` are the types of all possible groups. Invalid files raise `source.refused`."""
    types: dict[str, Any] = {"parts": "<i8", "top": "<u8"}
    types |= {"first": "<u4", "page": PAGE} | {f"entry.{group}": kind for group, kind in entries.items()}
    arrays = mapped_arrays.unpack(source, types, ["parts"])
    for name, array in arrays.items():
        kind, _, rest = name.partition(".")
        other, length = {
            "entry": (f"top.{rest}", -(-len(array) // STEP)),
            "first": (f"page.{rest}", len(array) - 1),
        }.get(kind, (name, len(array)))
        if other not in arrays or len(arrays[other]) != length:
            raise source.invalid("it lacks arrays, or they are of different lengths")
    index = RowIndex(source, arrays)
    if not len(index.ends) or (index.ends[1:] < index.ends[:-1]).any() or index.ends[0] < 0:
        raise source.invalid("its parts are not in order")
    return index
