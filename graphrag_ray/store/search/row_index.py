"""An index of the rows of a table by id: the row's id, or an id that refers to another record.

An index covers some consecutive parts of a table and numbers the rows of all of them. It is one file, read on
demand, with these arrays:

    parts           end of the rows of each part
    entry.<group>   for a group of columns ("id", "source_id+target_id"), an entry per row and id in these
                    columns: the first half of the id, the row, the row's ids and some values; sorted by the
                    first half, then by falling values, so that the best rows are read together
    top.<group>     the block heads of the first halves
    first.<column>  for a column that can be read by page (`store/pages.py`), the first row of each page, and
                    the number of rows
    page.<column>   offset, size, number of values and checksum of each page

Searches compare whole ids. `derive` makes an index from an earlier one that covers most of the same parts.
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
from graphrag_ray.store.search.mapped_arrays import BLOCK, ByteSource, Ints, Keys, MappedArray, expand_ranges

HALVES = np.dtype([("high", "<u8"), ("low", "<u8")])
_VALUE = np.dtype("<f8")
_BATCH_IDS = 1024


def group_name(group: Sequence[str]) -> str:
    return "+".join(group)


def entry_type(ids: Sequence[str], numbers: Sequence[str]) -> np.dtype[Any]:
    """Return the type of an entry: its key, its row, and the given id and number columns."""
    fields: list[Any] = [("key", "<u8"), ("place", "<u4")]  # Not "row", because a column may have that name.
    fields += [(name, HALVES) for name in ids]
    return np.dtype(fields + [(name, _VALUE) for name in numbers])


def entry_types(
    columns: Mapping[tuple[str, ...], tuple[Sequence[str], Sequence[str]]],
) -> dict[str, np.dtype[Any]]:
    """Return the `entry_type` of each group by name, from the id and number columns of its entries."""
    return {group_name(group): entry_type(*names) for group, names in columns.items()}


@dataclass(frozen=True)
class RowEntries:
    """Entries of rows with some wanted ids."""

    wanted_index: Ints  # Index of each entry's id among the wanted ids.
    entry: npt.NDArray[Any]  # Of type `entry_type`.

    @cached_property
    def rows(self) -> Ints:
        """Row numbers in the index."""
        return self.entry["place"].astype(np.int64)

    def take(self, positions: Ints) -> RowEntries:
        return RowEntries(self.wanted_index[positions], self.entry[positions])


@dataclass(frozen=True)
class PageLocations:
    """The part, first row, number of rows and PAGE of each of some pages of a column."""

    part: Ints
    first: Ints
    rows: Ints
    page: npt.NDArray[Any]


@dataclass(frozen=True)
class PartRows:
    """The contents of an index for one part, with rows numbered from 0."""

    n_rows: int
    groups: Mapping[str, npt.NDArray[Any]]  # Entries in any order, by group name.
    pages: Mapping[str, Pages]  # By column.


@dataclass(frozen=True)
class RowIndex:
    source: ByteSource
    arrays: Mapping[str, MappedArray]
    _validated: set[str] = field(default_factory=set)  # Columns with validated pages.

    @cached_property
    def ends(self) -> Ints:
        """End of the rows of each part: [parts]."""
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

    def find(self, group: str, high: Keys, low: Keys, limit: int | None = None) -> RowEntries:
        """Find the rows with any of some ids, given as halves. A row with several ids occurs with each.

        `limit` is the maximum number of rows per id. The rows with the highest values are chosen.
        """
        entries, heads = self.arrays[f"entry.{group}"], self.arrays[f"top.{group}"].whole()
        left = np.maximum(np.searchsorted(heads, high, "left") - 1, 0) * BLOCK
        right = np.minimum(np.searchsorted(heads, high, "right") * BLOCK, len(entries))
        if limit is not None:  # Do not read all entries of a frequent id.
            right = np.minimum(right, left + 2 * BLOCK + limit)
        # Columns with whole ids. If there are none, the key is enough.
        id_columns = [name for name in group.split("+") if name in (entries.values.dtype.names or ())]
        batches = [RowEntries(np.zeros(0, np.int64), entries.values[:0])]
        for start in range(0, len(high), _BATCH_IDS):
            batch = slice(start, start + _BATCH_IDS)
            entry = entries.runs(left[batch], right[batch])
            index = start + np.repeat(np.arange(len(left[batch])), right[batch] - left[batch])
            same = np.flatnonzero(entry["key"] == high[index])
            index, entry = index[same], entry[same]
            if id_columns:
                matches = [
                    (ids["high"] == high[index]) & (ids["low"] == low[index])
                    for ids in map(entry.__getitem__, id_columns)
                ]
                same = np.flatnonzero(np.any(matches, axis=0))
                index, entry = index[same], entry[same]
            if limit is not None:
                same = np.flatnonzero(np.arange(len(index)) - np.searchsorted(index, index) < limit)
                index, entry = index[same], entry[same]
            batches.append(RowEntries(index, entry))
        all_entries = _concatenate(batches)
        if len(all_entries.rows) and all_entries.rows.max() >= self.n_rows:
            raise self.source.invalid("an entry refers to an unknown row")
        return all_entries

    def pages_of_rows(self, column: str, rows: Ints) -> Ints | None:
        """Return the page of each row, or None if the column cannot be read by page."""
        if f"first.{column}" not in self.arrays:
            return None
        return np.searchsorted(self._first_rows(column), rows, "right").astype(np.int64) - 1

    def locate_pages(self, column: str, numbers: Ints) -> PageLocations:
        page, first_rows = self.arrays[f"page.{column}"].take(numbers), self._first_rows(column)
        first, end = first_rows[numbers].astype(np.int64), first_rows[numbers + 1].astype(np.int64)
        part = np.searchsorted(self.ends, first, "right").astype(np.int64)
        return PageLocations(part, first, end - first, page)

    def pages_by_part(self, column: str) -> list[Pages]:
        """Return all pages of a column, by part, in the form of `PartRows`."""
        first_rows, pages = self._first_rows(column).astype(np.int64), self.arrays[f"page.{column}"].whole()
        starts = np.append(0, self.ends)
        bounds = np.searchsorted(first_rows, starts).tolist()
        spans = zip(bounds[:-1], bounds[1:], starts.tolist(), strict=False)
        return [Pages(first_rows[a : b + 1] - start, pages[a:b]) for a, b, start in spans]

    def _first_rows(self, column: str) -> npt.NDArray[np.uint32]:
        """Return the first row of each page, and the total number of rows."""
        first_rows = self.arrays[f"first.{column}"].whole()
        if column not in self._validated:
            bounds = np.append(0, self.ends)
            pages = np.searchsorted(first_rows, bounds)
            is_rising = (first_rows[1:] > first_rows[:-1]).all()
            if not is_rising or pages[-1] != len(first_rows) - 1 or (first_rows[pages] != bounds).any():
                raise self.source.invalid("its pages do not match the rows of its parts")
            self._validated.add(column)
        return first_rows


def one_per_row(entries: RowEntries) -> tuple[RowEntries, RowEntries]:
    """Return one entry per row, and all entries, both sorted by row."""
    by_row = entries.take(np.argsort(entries.rows, kind="stable"))
    return by_row.take(np.unique(by_row.rows, return_index=True)[1]), by_row


def best_per_id(by_index: Sequence[RowEntries], limit: int) -> list[RowEntries]:
    """Limit the entries found in several indexes to the `limit` best ones per wanted id."""
    source = np.repeat(np.arange(len(by_index)), [len(entries.wanted_index) for entries in by_index])
    merged = _concatenate(by_index)
    order = np.lexsort([merged.rows, source, *_falling_values(merged.entry), merged.wanted_index])
    wanted = merged.wanted_index[order]
    is_best = np.zeros(len(order), np.bool_)
    is_best[order[np.arange(len(order)) - np.searchsorted(wanted, wanted) < limit]] = True
    return [entries.take(np.flatnonzero(is_best[source == i])) for i, entries in enumerate(by_index)]


def _concatenate(batches: Sequence[RowEntries]) -> RowEntries:
    return RowEntries(
        np.concatenate([e.wanted_index for e in batches]), np.concatenate([e.entry for e in batches])
    )


def _falling_values(entries: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Return keys for `lexsort` that put the highest values first."""
    names = entries.dtype.names or ()
    return [-entries[name] for name in reversed(names) if entries.dtype[name] == _VALUE]


def build(
    part_rows: Sequence[int], groups: Mapping[str, npt.NDArray[Any]], pages: Mapping[str, Pages] = {}
) -> bytes:
    """Return the bytes of an index from the rows per part, the unsorted entries by group, and the pages."""
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
    """Return the bytes of an index of some parts, with pages of the columns that have them in all parts."""
    before = list(accumulate((part.n_rows for part in parts), initial=0))
    groups = {name: _shift([part.groups[name] for part in parts], before) for name in parts[0].groups}
    shared = [column for column in parts[0].pages if all(column in part.pages for part in parts)]
    pages = {column: _join_pages([part.pages[column] for part in parts], before) for column in shared}
    return build([part.n_rows for part in parts], groups, pages)


def derive(earlier: RowIndex, parts: Sequence[PartRows | int]) -> bytes:
    """Return the same index as `build_from_parts`, reusing an earlier one and only the pages of its columns.

    Args:
        parts: New parts, or numbers of parts in the earlier index.
    """
    starts = np.append(0, earlier.ends)
    sizes = np.diff(starts).tolist()
    rows = [sizes[part] if isinstance(part, int) else part.n_rows for part in parts]
    before = list(accumulate(rows, initial=0))
    first_rows = list(zip(parts, before, strict=False))
    new = [(part, first) for part, first in first_rows if isinstance(part, PartRows)]
    reused = [(part, first) for part, first in first_rows if isinstance(part, int)]
    new_row = np.full(earlier.n_rows, -1)
    for part, first in reused:
        new_row[starts[part] : starts[part + 1]] = np.arange(first, first + sizes[part])
    groups = {}
    for group in earlier._names("entry"):
        entries = earlier.arrays[f"entry.{group}"].whole()
        if len(entries) and entries["place"].max() >= earlier.n_rows:
            raise earlier.source.invalid("an entry refers to an unknown row")
        if (entries["key"][1:] < entries["key"][:-1]).any():
            raise earlier.source.invalid("its entries are not in order")
        row = new_row[entries["place"]]
        old = entries.take(np.flatnonzero(row >= 0))  # For structured arrays, faster than indexing.
        old["place"] = row[row >= 0]
        merged = _shift([old, *(part.groups[group] for part, _ in new)], [0, *(first for _, first in new)])
        is_sorted = reused == sorted(reused)
        groups[group] = merged.take(_merge_order(merged, len(old)) if is_sorted else _entry_order(merged))
    pages = {}
    for column in earlier.paged_columns:
        if all(column in part.pages for part, _ in new):
            known = earlier.pages_by_part(column)
            by_part = [known[part] if isinstance(part, int) else part.pages[column] for part in parts]
            pages[column] = _join_pages(by_part, before)
    return _packed(rows, groups, pages)


def _merge_order(entries: npt.NDArray[Any], n_sorted: int) -> Ints:
    """Return `_entry_order` if the first entries are sorted. Sorts only entries with keys of new ones."""
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
    """Concatenate the pages of several parts. `before` ends with the total number of rows."""
    firsts = [first[:-1] + rows for (first, _), rows in zip(by_part, before, strict=False)]
    return Pages(np.concatenate([*firsts, before[-1:]]), np.concatenate([page for _, page in by_part]))


def read(source: ByteSource, entries: Mapping[str, np.dtype[Any]]) -> RowIndex:
    """Open an index. `entries` are the types of all possible groups. Invalid files raise `source.invalid`."""
    types: dict[str, Any] = {"parts": "<i8", "top": "<u8"}
    types |= {"first": "<u4", "page": PAGE} | {f"entry.{group}": kind for group, kind in entries.items()}
    arrays = mapped_arrays.unpack(source, types, ["parts"])
    for name, array in arrays.items():
        kind, _, suffix = name.partition(".")
        other, length = {
            "entry": (f"top.{suffix}", -(-len(array) // BLOCK)),
            "first": (f"page.{suffix}", len(array) - 1),
        }.get(kind, (name, len(array)))
        if other not in arrays or len(arrays[other]) != length:
            raise source.invalid("it lacks arrays, or they have inconsistent lengths")
    index = RowIndex(source, arrays)
    if not len(index.ends) or (index.ends[1:] < index.ends[:-1]).any() or index.ends[0] < 0:
        raise source.invalid("its parts are not in order")
    return index
