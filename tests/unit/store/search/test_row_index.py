"""Row indexes find the same rows and pages as a full scan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.store.search import row_index
from graphrag_ray.store.search.mapped_arrays import (
    BLOCK,
    InMemory,
    id_halves,
    join_halves,
    pack,
    unpack,
    valid_ids,
)
from graphrag_ray.store.search.row_index import (
    PAGE,
    PartRows,
    RowEntries,
    RowIndex,
    build,
    build_from_parts,
    derive,
    entry_types,
    group_name,
    read,
)

IDS = st.integers(0, 40).map(lambda n: f"{n * 2**61 % 2**64:016x}{n:016x}")
"""Several share their first half."""
GROUPS = {("id",): ("rank",), ("source_id", "target_id"): ("rank", "weight")}
TYPES = entry_types({g: (list(dict.fromkeys(["id", *g])), values) for g, values in GROUPS.items()})
PAIR = "source_id+target_id"


@dataclass(frozen=True)
class Row:
    id: str
    source_id: str
    target_id: str
    rank: float
    weight: float


ROWS = st.lists(
    st.builds(Row, IDS, IDS, IDS, st.sampled_from([0.0, 1.0, 2.5, -1.0]), st.sampled_from([0.0, 7.0])),
    max_size=30,
)
CUTS = st.lists(st.integers(0, 30), max_size=4)


def split_rows(rows: list[Row], cuts: list[int]) -> list[list[Row]]:
    """Cut rows into consecutive parts, some of which may be empty."""
    ends = [*sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [rows[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def make_entries(rows: list[Row], group: tuple[str, ...]) -> np.ndarray:
    pairs = [(getattr(row, column)[:16], at) for at, row in enumerate(rows) for column in group]
    pairs = list(dict.fromkeys(pairs))
    entries = np.zeros(len(pairs), TYPES[group_name(group)])
    for entry, (half, at) in zip(entries, pairs, strict=True):
        entry["key"], entry["place"] = int(half, 16), at
        for name in {"id", *group}:
            high, low = id_halves([getattr(rows[at], name)])
            entry[name] = (high[0], low[0])
        for name in GROUPS[group]:
            entry[name] = getattr(rows[at], name)
    return entries


def build_bytes(parts: list[list[Row]]) -> bytes:
    rows = [row for part in parts for row in part]
    return build([len(part) for part in parts], {group_name(g): make_entries(rows, g) for g in GROUPS})


def build_index(parts: list[list[Row]]) -> RowIndex:
    return read(InMemory.of(build_bytes(parts)), TYPES)


@given(ROWS, CUTS, st.lists(IDS, max_size=8))
def test_rows_are_found_by_id(rows: list[Row], cuts: list[int], requested: list[str]):
    index = build_index(split_rows(rows, cuts))
    assert index.n_rows == len(rows) and index.has("id") and not index.has("name")
    ids = valid_ids([*requested, "no id", "X" * 32, " " * 32])
    found = index.find("id", *id_halves(ids))
    pairs = sorted(zip(found.rows.tolist(), (ids[at] for at in found.wanted_index), strict=True))
    assert pairs == [(at, row.id) for at, row in enumerate(rows) if row.id in ids]
    entry = found.entry["id"]
    assert join_halves(entry["high"], entry["low"]) == [rows[at].id for at in found.rows]
    assert found.entry["rank"].tolist() == [rows[at].rank for at in found.rows]


@given(ROWS, CUTS, st.lists(IDS, max_size=8))
def test_rows_are_found_by_referenced_ids(rows: list[Row], cuts: list[int], requested: list[str]):
    index, ids = build_index(split_rows(rows, cuts)), valid_ids(requested)
    found = index.find(PAIR, *id_halves(ids))
    expected = sorted(
        (at, n)
        for at, row in enumerate(rows)
        for n, id_ in enumerate(ids)
        if id_ in (row.source_id, row.target_id)
    )
    assert sorted(zip(found.rows.tolist(), found.wanted_index.tolist(), strict=True)) == expected
    first, every = row_index.one_per_row(found)
    assert first.rows.tolist() == sorted({at for at, _ in expected})
    assert every.rows.tolist() == [at for at, _ in expected]
    for name in ("source_id", "target_id"):
        stored = join_halves(first.entry[name]["high"], first.entry[name]["low"])
        assert stored == [getattr(rows[at], name) for at in first.rows]
    assert first.entry["weight"].tolist() == [rows[at].weight for at in first.rows]


@given(ROWS, CUTS, CUTS, st.lists(IDS, max_size=8), st.integers(0, 4))
def test_best_rows_do_not_depend_on_the_division_into_indexes(
    rows: list[Row], cuts: list[int], inner: list[int], requested: list[str], limit: int
):
    ids = valid_ids(requested)
    pieces = split_rows(rows, cuts)
    indexes = [build_index(split_rows(piece, inner)) for piece in pieces]
    found = row_index.best_per_id([i.find(PAIR, *id_halves(ids), limit) for i in indexes], limit)
    before = np.cumsum([0, *map(len, pieces)])
    hits = [
        (n, at + start)
        for entries, start in zip(found, before.tolist(), strict=False)
        for at, n in zip(entries.rows.tolist(), entries.wanted_index.tolist(), strict=True)
    ]
    whole = build_index([rows]).find(PAIR, *id_halves(ids), limit)
    assert sorted(hits) == sorted(zip(whole.wanted_index.tolist(), whole.rows.tolist(), strict=True))
    expected = []
    for n, id_ in enumerate(ids):
        matches = [at for at, row in enumerate(rows) if id_ in (row.source_id, row.target_id)]
        matches.sort(key=lambda at: (-rows[at].rank, -rows[at].weight, at))
        expected += [(n, at) for at in matches[:limit]]
    assert sorted(hits) == sorted(expected)


def test_rows_of_an_id_are_sorted_by_rank():
    ids = [f"{n:032x}" for n in range(4)]
    rows = [Row(id_, ids[0], ids[1], rank, 0.0) for id_, rank in zip(ids, (1.0, 3.0, 2.0, 3.0), strict=True)]
    index = build_index([rows[:2], [], rows[2:]])
    assert index.find(PAIR, *id_halves(ids[:1])).rows.tolist() == [1, 3, 2, 0]
    assert index.find(PAIR, *id_halves(ids[:1]), 2).rows.tolist() == [1, 3]


def test_only_wanted_entries_are_read(watched: Any):
    ids = [f"{n:016x}" * 2 for n in range(5_000)]
    rows = [Row(id_, ids[0], id_, 1.0, 0.0) for id_ in ids]
    source = watched(build_bytes([rows]))
    index = read(source, TYPES)
    source.forget()
    assert index.find("id", *id_halves([ids[4_000], ids[7]])).rows.tolist() == [4_000, 7]
    entry = index.arrays["entry.id"]
    needed = source.needed[entry.begin : entry.begin + entry.values.nbytes]
    assert needed.sum() <= 4 * BLOCK * entry.values.itemsize < entry.values.nbytes / 4
    source.forget()
    assert len(index.find(PAIR, *id_halves(ids[:1]), 3).rows) == 3
    entry = index.arrays[f"entry.{PAIR}"]
    needed = source.needed[entry.begin : entry.begin + entry.values.nbytes]
    assert needed.sum() <= (2 * BLOCK + 3) * entry.values.itemsize < entry.values.nbytes / 4


def test_ten_thousand_ids_are_found_in_one_call():
    ids = [f"{n:016x}" * 2 for n in range(12_000)]
    index = build_index([[Row(id_, ids[0], ids[1], 1.0, 0.0) for id_ in ids]])
    requested = ids[:10_000:-1] + ids[10_000:0:-1]
    found = index.find("id", *id_halves(requested))
    assert [requested[at] for at in found.wanted_index.tolist()] == requested
    assert [ids[row] for row in found.rows.tolist()] == requested


def test_bytes_do_not_depend_on_the_order_of_entries():
    ids = [f"{n:016x}" * 2 for n in range(9)]
    rows = [Row(i, ids[n % 3], ids[(n + 1) % 4], n % 2, 0.0) for n, i in enumerate(ids)]
    entries = make_entries(rows, ("source_id", "target_id"))
    order = np.random.default_rng(7).permutation(len(entries))
    assert build([9], {PAIR: entries}) == build([9], {PAIR: entries[order]})


# pages


def make_pages(rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return consecutive pages with these numbers of rows and different checksums."""
    pages = np.zeros(len(rows), PAGE)
    pages["start"], pages["size"], pages["values"] = 4 + 10 * np.arange(len(rows)), 10, rows
    pages["sum"] = np.arange(len(rows))
    return np.cumsum([0, *rows]), pages


@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=5), st.data())
def test_every_row_is_on_its_page(parts: list[list[int]], data: st.DataObject):
    """`parts` contains the number of rows of each page of each part."""
    flat = [n for part in parts for n in part]
    index = read(InMemory.of(build([sum(part) for part in parts], {}, {"text": make_pages(flat)})), TYPES)
    assert index.pages_of_rows("other", np.array([0])) is None
    rows = np.array(data.draw(st.lists(st.integers(0, max(0, sum(flat) - 1)), max_size=9)), np.int64)
    at = index.pages_of_rows("text", rows if flat else rows[:0])
    assert at is not None
    pages = index.locate_pages("text", at)
    of_row = [part for part, page_rows in enumerate(parts) for _ in range(sum(page_rows))]
    for row, part, first, n, page in zip(
        rows, pages.part, pages.first, pages.rows, pages.page["sum"], strict=False
    ):
        assert part == of_row[row] and first <= row < first + n
        assert n == flat[page] and first == sum(flat[:page])


@pytest.mark.parametrize("rows", [[-1], [3], [0, 4], [2**40], [-(2**40)]])
def test_unknown_row_has_no_page(rows: list[int]):
    index = read(InMemory.of(build([3], {}, {"text": make_pages([2, 1])})), TYPES)
    at = index.pages_of_rows("text", np.array(rows))
    assert at is not None
    with pytest.raises(ValueError, match="out of range"):
        index.locate_pages("text", at)


def test_only_wanted_pages_are_read(watched: Any):
    source = watched(build([3_000], {}, {"text": make_pages([3] * 1_000)}))
    index = read(source, TYPES)
    source.forget()
    assert index.locate_pages("text", np.array([7, 900])).first.tolist() == [21, 2_700]
    array = index.arrays["page.text"]
    assert source.needed[array.begin : array.begin + array.values.nbytes].sum() == 2 * PAGE.itemsize


# derived indexes


@st.composite
def parts_of_rows(draw: st.DrawFn) -> PartRows:
    """Return a part with rows, and pages of two columns."""
    ranks = st.sampled_from([0.0, 1.0, 2.5, float("nan")])
    rows = draw(st.lists(st.builds(Row, IDS, IDS, IDS, ranks, ranks), max_size=9))
    groups = {group_name(group): make_entries(rows, group) for group in GROUPS}
    pages = {}
    for column in ("text", "title"):
        ends = sorted({*draw(st.sets(st.integers(1, 9), max_size=3)), len(rows)} - {0})
        sizes = np.diff([0, *(end for end in ends if end <= len(rows))]).tolist()
        pages[column] = make_pages(sizes)
        pages[column][1]["sum"] = draw(st.integers(0, 1_000))
    return PartRows(len(rows), groups, pages)


PARTS = st.lists(parts_of_rows(), min_size=1, max_size=6)


@given(PARTS, st.lists(parts_of_rows(), max_size=4), st.randoms(use_true_random=False), st.booleans())
def test_derived_index_equals_a_built_one(
    earlier: list[PartRows], new: list[PartRows], dice: Random, in_order: bool
):
    reused = dice.sample(range(len(earlier)), dice.randint(0, len(earlier)))
    of: list[PartRows | int] = sorted(reused) if in_order else list(reused)
    for part in new:
        of.insert(dice.randint(0, len(of)), part)
    if of:
        index = read(InMemory.of(build_from_parts(earlier)), TYPES)
        rebuilt = build_from_parts([earlier[part] if isinstance(part, int) else part for part in of])
        assert derive(index, of) == rebuilt


@given(PARTS, PARTS)
def test_pages_cover_columns_that_all_parts_have(earlier: list[PartRows], new: list[PartRows]):
    less = [replace(part, pages={"title": part.pages["title"]}) for part in new]
    index = read(InMemory.of(build_from_parts(earlier)), TYPES)
    assert index.paged_columns == ["text", "title"]
    derived = derive(index, [*range(len(earlier)), *less])
    assert derived == build_from_parts([*earlier, *less])
    assert read(InMemory.of(derived), TYPES).paged_columns == ["title"]
    assert read(InMemory.of(derive(index, new)), TYPES).paged_columns == ["text", "title"]


# hostile indexes


def read_everything(index: RowIndex, keys: np.ndarray) -> None:
    """Use all methods of an index."""
    for group in TYPES:
        if index.has(group):
            for limit in (None, 2):
                found = index.find(group, keys, keys, limit)
                row_index.one_per_row(found)
                row_index.best_per_id([found, found], 1)
                assert not len(found.rows) or 0 <= found.rows.min() <= found.rows.max() < index.n_rows
    rows = np.arange(min(index.n_rows, 9))
    at = index.pages_of_rows("text", rows)
    if at is not None:
        pages = index.locate_pages("text", at)
        assert (pages.first <= rows).all() and (rows < pages.first + pages.rows).all()


KEYS = np.array([1, 5, 9], np.uint64)


def small() -> bytes:
    entries = np.zeros(3, TYPES["id"])
    entries["key"], entries["place"] = KEYS, [0, 1, 2]
    entries["id"]["high"] = entries["id"]["low"] = KEYS
    return build([2, 1], {"id": entries}, {"text": make_pages([2, 1])})


def with_changes(of: bytes, changes: dict[str, np.ndarray]) -> bytes:
    types: dict[str, Any] = {"parts": "<i8", "top": "<u8", "first": "<u4"}
    types |= {"page": PAGE, "entry": TYPES["id"]}
    arrays = {name: array.whole() for name, array in unpack(InMemory.of(of), types).items()}
    return pack({n: array for n, array in (arrays | changes).items() if array is not None})


def with_rows(*of: int) -> dict[str, np.ndarray]:
    entries = np.zeros(len(of), TYPES["id"])
    entries["key"], entries["place"] = KEYS, of
    entries["id"]["high"] = entries["id"]["low"] = KEYS
    return {"entry.id": entries}


def u4(*values: int) -> np.ndarray:
    return np.array(values, "<u4")


@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": np.array([2, 1])},
        {"parts": np.array([-1, 3])},
        {"parts": np.zeros(0, np.int64)},
        {"parts": np.array([2, 2])},
        {"parts": np.array([1, 3])},
        {"parts": u4(2, 3)},
        {"parts": None},
        {"top.id": np.zeros(0, np.uint64)},
        {"top.id": np.zeros(2, np.uint64)},
        {"top.id": None},
        {"entry.id": np.zeros(200, TYPES["id"])},
        with_rows(0, 1, 3),
        with_rows(0, 1, 2**32 - 1),
        {"entry.id": np.zeros(3, TYPES[PAIR])},
        {"entry.name": np.zeros(3, TYPES["id"])},
        {"other": KEYS},
        {"page.text": None},
        {"page.text": make_pages([2])[1]},
        {"page.text": make_pages([2, 1, 1])[1]},
        {"first.text": u4(0, 3)},
        {"first.text": u4(0, 2, 4)},
        {"first.text": u4(0, 1, 3)},
        {"first.text": u4(0, 0, 3)},
        {"first.text": u4(0, 3, 3)},
        {"first.text": u4(1, 2, 3)},
        {"first.text": u4(2, 0, 3)},
        {"first.text": u4(0, 2**32 - 1, 3)},
        {"first.text": u4()},
    ],
)
def test_out_of_range_values_are_refused(wrong: dict[str, Any], watched: Any, not_the_file: Any):
    read_everything(read(InMemory.of(with_changes(small(), {})), TYPES), KEYS)
    with pytest.raises(ValueError, match=r"it |its |a |an "):
        read_everything(read(InMemory.of(with_changes(small(), wrong)), TYPES), KEYS)
    with pytest.raises(not_the_file, match=r"it |its |a |an "):
        read_everything(read(watched(with_changes(small(), wrong)), TYPES), KEYS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": np.array([2, 2])},
        with_rows(0, 1, 3),
        {"entry.id": with_rows(0, 1, 2)["entry.id"][::-1]},
        {"page.text": make_pages([2])[1]},
        {"first.text": u4(0, 1, 3)},
        {"first.text": u4(0, 2, 4)},
        {"first.text": u4(0, 3, 3)},
        {"first.text": u4(1, 2, 3)},
        {"first.text": u4()},
    ],
)
def test_out_of_range_values_are_refused_when_deriving(wrong: dict[str, Any]):
    good = read(InMemory.of(with_changes(small(), {})), TYPES)
    assert derive(good, [0, 1]) == small()
    with pytest.raises(ValueError, match=r"it |its |an "):
        derive(read(InMemory.of(with_changes(small(), wrong)), TYPES), [0, 1])


@given(st.binary(max_size=200))
def test_other_arrays_are_refused(data: bytes):
    with pytest.raises(ValueError, match=r"its arrays cannot be read"):
        read(InMemory.of(data), TYPES)


def test_empty_entries_are_accepted():
    none = RowEntries(np.zeros(0, np.int64), np.zeros(0, TYPES["id"]))
    assert [len(of.rows) for of in row_index.best_per_id([none, none], 3)] == [0, 0]
    assert [len(of.rows) for of in row_index.one_per_row(none)] == [0, 0]
