"""Which rows of a part hold an id: in its own column of ids, or in another that refers to some.

An index of a part is one file, which is memory-mapped: a question looks at a few places of it. Rows are
counted within the part.

    high, low      the two halves of each row's id, in the order of the rows
    order          the rows by the first halves of their ids; empty where they are in that order
    key.<column>   of each pair of an id that the column holds and its row: the first half of the id, rising
    row.<column>   the rows of these pairs; of one id by rank
    first.<column>, start.<column>, size.<column>, values.<column>, sum.<column>
                   where the pages of a column lie, and their checksums (`store/pages.py`)

In other columns ids are known by their first 64 bits. They are hashes: that two of 10 million ids share
these has a chance of 1 to 370,000, and then some more rows are read than were wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphrag_ray.base.ids import ID_LENGTH
from graphrag_ray.search.mapped_arrays import arrays_in, numbers, packed

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Places = Mapping[str, npt.NDArray[Any]]
"""first, start, size, values, sum of a column's pages."""

MOST_BYTES = 1 << 62
"""No file is longer."""
_HALF = ID_LENGTH // 2
_OF_ROWS = {"high": pa.uint64(), "low": pa.uint64(), "order": pa.uint32()}
_OF_PAIRS = {"key": pa.uint64(), "row": pa.uint32()}
_OF_PAGES = {
    "first": pa.uint32(),
    "start": pa.int64(),
    "size": pa.int32(),
    "values": pa.int32(),
    "sum": pa.uint32(),
}


@dataclass(frozen=True)
class RowIndex:
    """Arrays as above, in mapped memory. pairs: key and row, by column; pages: by column."""

    high: Keys
    low: Keys
    order: npt.NDArray[np.uint32]
    pairs: Mapping[str, tuple[Keys, npt.NDArray[np.uint32]]]
    pages: Mapping[str, Places]

    @property
    def n_rows(self) -> int:
        return len(self.high)

    def rows_of(self, high: Keys, low: Keys) -> tuple[Ints, Ints]:
        """The rows whose ids have these halves, and which of them."""
        sorter = self.order if len(self.order) else None
        left = np.searchsorted(self.high, high, "left", sorter)
        right = np.searchsorted(self.high, high, "right", sorter)
        places, whose = _spread(left, right)
        rows = self.order[places] if sorter is not None else places
        own = self.low[rows] == low[whose]
        return rows[own].astype(np.int64), whose[own]

    def rows_with(self, column: str, high: Keys, most: int | None = None) -> tuple[Ints, Ints]:
        """The rows whose column holds one of these ids, and which of them; of each at most so many rows, the
        first by rank. A row that holds several occurs with each."""
        keys, rows = self.pairs[column]
        left, right = np.searchsorted(keys, high, "left"), np.searchsorted(keys, high, "right")
        if most is not None:
            right = np.minimum(right, left + most)
        places, whose = _spread(left, right)
        return rows[places].astype(np.int64), whose

    def ids_of(self, rows: Ints) -> list[str]:
        """The ids of rows."""
        return [
            f"{first:016x}{last:016x}"
            for first, last in zip(self.high[rows].tolist(), self.low[rows].tolist(), strict=True)
        ]


def halves(ids: Sequence[str]) -> tuple[Keys, Keys, list[str]]:
    """The halves of the different ids among these, and these ids; what is no id is left out."""
    own = [i for i in dict.fromkeys(ids) if len(i) == ID_LENGTH and not i.strip("0123456789abcdef")]
    high, low = (
        np.fromiter((int(i[at : at + _HALF], 16) for i in own), np.uint64, len(own)) for at in (0, _HALF)
    )
    return high, low, own


def build(
    high: Keys,
    low: Keys,
    pairs: Mapping[str, tuple[Keys, Ints]] = {},
    pages: Mapping[str, Places] = {},
) -> pa.Buffer:
    """The bytes of an index of a part.

    high, low  halves of its rows' ids
    pairs      by column: the first halves of ids that it holds, and their rows; those of one id by rank
    """
    in_order = bool((high[1:] >= high[:-1]).all())
    arrays: dict[str, npt.NDArray[Any]] = {
        "high": high,
        "low": low,
        "order": np.zeros(0, np.uint32) if in_order else np.argsort(high, kind="stable").astype(np.uint32),
    }
    for column, (keys, rows) in pairs.items():
        order = np.argsort(keys, kind="stable")
        arrays |= {f"key.{column}": keys[order], f"row.{column}": rows[order].astype(np.uint32)}
    for column, places in pages.items():
        arrays |= {f"{name}.{column}": places[name] for name in _OF_PAGES}
    return packed({name: pa.array(a, _type_of(name)) for name, a in arrays.items()})


def read(data: pa.Buffer) -> RowIndex:
    """An index from its bytes, without copying them. Raises ValueError for what is none."""
    arrays = arrays_in(data)
    if (
        any(array.type != _type_of(name) or array.null_count for name, array in arrays.items())
        or not _OF_ROWS.keys() <= arrays.keys()
    ):
        raise ValueError("its arrays are of other types")
    found = {name: numbers(array) for name, array in arrays.items()}
    pairs, pages = (
        {
            column: {name: found[f"{name}.{column}"] for name in of if f"{name}.{column}" in found}
            for column in (name.partition(".")[2] for name in found if name.startswith(f"{first}."))
        }
        for first, of in (("key", _OF_PAIRS), ("first", _OF_PAGES))
    )
    if any(len(p) < len(_OF_PAIRS) for p in pairs.values()) or any(
        len(p) < len(_OF_PAGES) for p in pages.values()
    ):
        raise ValueError("it lacks arrays")
    own = {column: (p["key"], p["row"]) for column, p in pairs.items()}
    return RowIndex(found["high"], found["low"], found["order"], own, pages)


def check(index: RowIndex) -> None:
    """Whether all is in order and nothing leads out of the part: reads all of it. Raises ValueError."""
    n = index.n_rows
    _expect(len(index.low) == n and len(index.order) in (0, n), "its ids are of different lengths")
    high = index.high
    if len(index.order):
        _expect(np.array_equal(np.sort(index.order), np.arange(n)), "its order is none")
        high = high[index.order]
    _expect(bool((high[1:] >= high[:-1]).all()), "its ids are not in order")
    for keys, rows in index.pairs.values():
        _expect(len(keys) == len(rows) and bool((keys[1:] >= keys[:-1]).all()), "its pairs are not in order")
        _expect(not len(rows) or int(rows.max()) < n, "a pair is of no row")
    for pages in index.pages.values():
        first, others = (
            pages["first"].astype(np.int64),
            [len(pages[name]) for name in _OF_PAGES if name != "first"],
        )
        _expect(others == [len(first) - 1] * len(others), "its pages are of different lengths")
        _expect(
            first[0] == 0 and first[-1] == n and bool((first[1:] > first[:-1]).all()),
            "its pages are not one behind the other",
        )
        _expect(
            not others[0] or (0 <= pages["start"].min() <= pages["start"].max() < MOST_BYTES),
            "a page lies nowhere",
        )
        _expect(
            not others[0] or (pages["size"].min() >= 1 and pages["values"].min() >= 0),
            "a page is none",
        )
        between = pages["start"][1:] - pages["size"][:-1]
        _expect(bool((between >= pages["start"][:-1]).all()), "its pages overlap")


def _spread(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """All places from left to right, of each pair of these; and which pair each is of."""
    lengths = right - left
    whose = np.repeat(np.arange(len(left)), lengths)
    return np.arange(len(whose)) + np.repeat(left - (np.cumsum(lengths) - lengths), lengths), whose


def _type_of(name: str) -> pa.DataType | None:
    return _OF_ROWS.get(name) or (_OF_PAIRS | _OF_PAGES).get(name.partition(".")[0])


def _expect(sound: bool | np.bool_, what: str) -> None:
    if not sound:
        raise ValueError(what)
