"""Reading single rows of a part by page."""

import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import pages, parquet
from graphrag_ray.store.files import Store
from graphrag_ray.store.pages import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    _footer,
    parse,
)
from graphrag_ray.store.parts import Part, write_part

TEXTS = st.text(max_size=40)
COLUMNS = {
    "text": (pa.large_string(), TEXTS),
    "title": (pa.string(), st.one_of(st.none(), TEXTS)),
    "ids": (pa.list_(pa.string()), st.one_of(st.none(), st.lists(st.one_of(st.none(), TEXTS), max_size=5))),
    "numbers": (pa.list_(pa.int64()), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)),
    "rank": (pa.float64(), st.floats(allow_nan=False)),
    "flag": (pa.bool_(), st.booleans()),
    "count": (pa.int64(), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))),
}


def make_table(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, of) for name, (of, _) in COLUMNS.items()]))


ROWS = st.lists(
    st.fixed_dictionaries({name: of for name, (_, of) in COLUMNS.items()}), min_size=1, max_size=30
)


def page_arguments(found: pages.Pages, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the arguments of `read` for some pages."""
    return np.diff(found.first)[wanted], found.page[wanted]


def read(store: Store, part: Part, field: pa.Field, rows: np.ndarray, of: np.ndarray) -> list[pa.Array]:
    return pages.read_pages(store, field, [pages.PageRequest(part, rows.tolist(), of.tolist())])


def page_of(found: pages.Pages, rows: np.ndarray) -> np.ndarray:
    return np.searchsorted(found.first, rows, "right") - 1


def look_up(
    store: Store, part: Part, found: dict[str, pages.Pages], table: pa.Table, name: str, rows: np.ndarray
) -> list:
    of = page_of(found[name], rows)
    wanted = np.unique(of)
    arrays = read(store, part, table.schema.field(name), *page_arguments(found[name], wanted))
    by_page = dict(zip(wanted.tolist(), arrays, strict=True))
    return [
        by_page[p][r - int(found[name].first[p])].as_py()
        for p, r in zip(of.tolist(), rows.tolist(), strict=True)
    ]


@given(ROWS, st.integers(1, 4), st.data())
def test_pages_decode_to_the_rows_of_the_table(tmp_path_factory, rows, many, data):
    table = make_table(rows * (many * 20))  # several pages, some with equal rows
    store = Store(str(tmp_path_factory.mktemp("pages")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_PAGE_BYTES", 64)
        patch.setattr(parquet, "_ROW_GROUP_ROWS", 100)
        part = write_part(store, "entities", parquet.mark_for_row_access(table))
    bytes_ = store.read(part.path)
    assert pq.read_table(pa.BufferReader(bytes_)).equals(table)
    found = pages.locate_pages(bytes_, table.column_names)
    assert found.keys() == COLUMNS.keys()
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, len(table) - 1), min_size=1, max_size=20))))
    for name in table.column_names:
        assert look_up(store, part, found, table, name, wanted) == table[name].take(wanted).to_pylist()


@pytest.fixture
def stored(tmp_path) -> tuple[Store, Part, pa.Table]:
    table = pa.table(
        {"id": [f"{i:032x}" for i in range(5_000)], "text": [f"{i} " * 40 for i in range(5_000)]}
    )
    store = Store(str(tmp_path))
    return store, write_part(store, "entities", parquet.mark_for_row_access(table)), table


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges read from parts."""
    found: list[tuple[int, int]] = []
    before = Store.read_range

    def read(store: Store, path: str, start: int, end: int) -> bytes:
        found.append((start, end))
        return before(store, path, start, end)

    monkeypatch.setattr(Store, "read_range", read)
    return found


def test_reading_a_row_fetches_little_more_than_its_pages(stored, ranges: list[tuple[int, int]]):
    store, part, table = stored
    found = pages.locate_pages(store.read(part.path), ["text"])
    assert look_up(store, part, found, table, "text", np.array([4_321])) == ["4321 " * 40]
    ((start, end),) = ranges
    assert end - start < 4_000


def test_flipped_bit_in_a_page_is_reported_with_the_part(stored):
    store, part, table = stored
    whole = store.read(part.path)
    found = pages.locate_pages(whole, ["text"])
    (page,) = page_of(found["text"], np.array([4_321]))
    start, size = int(found["text"].page["start"][page]), int(found["text"].page["size"][page])
    for at in range(start, start + size, 7):
        store.write(part.path, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CorruptPart, match=part.path.rsplit("/", 1)[-1]):
            look_up(store, part, found, table, "text", np.array([4_321]))
    store.write(part.path, whole[:start])
    with pytest.raises(CorruptPart, match="damaged"):
        look_up(store, part, found, table, "text", np.array([4_321]))


def test_pages_with_a_wrong_row_count_are_reported_as_damaged(stored):
    """An untrusted index may name any bytes as a page, with a matching checksum."""
    store, part, table = stored
    found = pages.locate_pages(store.read(part.path), ["text"])["text"]
    rows, of = page_arguments(found, np.array([0, 1]))
    for claimed, message in (
        ([2, 2], "damaged"),
        ([1, 1000], "damaged"),
        ([1, 1 << 32], "lacks some pages"),
    ):
        with pytest.raises(CorruptPart, match=message):
            read(store, part, table.schema.field("text"), rows * claimed, of)


def test_dictionary_and_struct_columns_are_not_located(stored):
    plain = pa.table({"type": ["a", "a", "b"], "found": [[{"s": "x", "e": "y"}], [], None]})
    assert pages.locate_pages(parquet.encode(plain), ["type"]) == {}
    assert pages.locate_pages(
        parquet.encode(parquet.mark_for_row_access(plain)), ["type", "found"]
    ).keys() == {"type"}


def serialize(struct) -> bytes:
    """Serialize a structure as returned by `parse`."""
    out = bytearray()

    def unsigned(value):
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)

    def write(kind, value):
        if kind in (TRUE, FALSE, BYTE):  # booleans in a list
            out.append(value if kind == BYTE else TRUE if value else FALSE)
        elif kind in (I16, I32, I64):
            unsigned(value << 1 ^ value >> 63)
        elif kind == DOUBLE:
            out.extend(value)
        elif kind == BINARY:
            unsigned(len(value))
            out.extend(value)
        elif kind == LIST:
            of, items = value
            out.append(min(len(items), 15) << 4 | of)
            if len(items) >= 15:
                unsigned(len(items))
            for item in items:
                write(of, item)
        else:
            before = 0
            for number, (of, item, *_) in sorted(value.items()):
                code = of if of not in (TRUE, FALSE) else TRUE if item else FALSE
                if 0 < number - before < 16:
                    out.append(number - before << 4 | code)
                else:
                    out.append(code)
                    unsigned(number << 1)
                before = number
                if of not in (TRUE, FALSE):
                    write(of, item)
            out.append(0)

    write(STRUCT, struct)
    return bytes(out)


def relocate(data: bytes, change: Callable[[list[int]], list[int]], field: int) -> bytes:
    """Return the file with a changed page index for its first column."""
    footer = pages._footer(data)
    at = footer[4][1][1][0][1][1][1][0][4][1]
    index, _ = pages.parse(data, at)
    locations = index[1][1][1]
    values = change([location[field][1] for location in locations])
    for location, value in zip(locations, values, strict=True):
        location[field] = (location[field][0], value)
    # The new index is at the end of the file, and the footer points to it.
    group = footer[4][1][1][0]
    moved, size = serialize(index), struct.unpack("<I", data[-8:-4])[0]
    body = data[: -8 - size]
    group[1][1][1][0][4] = (pages.I64, len(body))
    new_footer = serialize(footer)
    return body + moved + new_footer + struct.pack("<I", len(new_footer)) + b"PAR1"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        (1, lambda at: [at[0]] * len(at)),
        (1, lambda at: [*at[:-1], 10**9]),
        (1, lambda at: [-1, *at[1:]]),
        (2, lambda size: [n + 1 for n in size]),
        (2, lambda size: [0, *size[1:]]),
        (3, lambda first: [1, *first[1:]]),
        (3, lambda first: [*first[:-1], 10**9]),
        (3, lambda first: [0] * len(first)),
    ],
)
def test_overlapping_or_out_of_bounds_pages_are_refused(stored, field: int, change):
    store, part, _ = stored
    data = store.read(part.path)
    same = pages.locate_pages(relocate(data, list, field), ["id"])["id"]
    assert same.page["start"].tolist() == pages.locate_pages(data, ["id"])["id"].page["start"].tolist()
    with pytest.raises(ValueError, match="pages"):
        pages.locate_pages(relocate(data, change, field), ["id"])


@given(st.binary(max_size=300))
def test_non_parquet_file_is_refused(data: bytes):
    for file in (data, data + b"PAR1"):
        with pytest.raises(ValueError, match=r"."):
            pages.locate_pages(file, ["id"])


@pytest.mark.parametrize(
    ("field", "claimed"),
    [
        ("size", [2**31 - 1] * 3),
        ("size", [10, 10, -10]),
        ("size", [0, 10, 10]),
        ("start", [10**9, 10**9 + 10, 10**9 + 20]),
        ("start", [-100, 4, 10]),
        ("start", [3, 1_000_000, 2_000_000]),
        ("start", [4, 100, 2**63 - 1]),
        ("start", [2**63 - 3, 2**63 - 2, 2**63 - 1]),
        ("start", [20_000, 10_000, 4]),
        ("start", [4, 5, 6]),
    ],
)
def test_invalid_page_positions_are_never_requested(
    stored, field: str, claimed: list[int], monkeypatch: pytest.MonkeyPatch
):
    """An untrusted index may name any position."""
    store, part, table = stored
    rows, of = page_arguments(
        pages.locate_pages(store.read(part.path), ["text"])["text"], np.array([0, 1, 2])
    )
    of[field] = claimed
    monkeypatch.setattr(Store, "read_range", None)
    with pytest.raises(CorruptPart, match="lacks some pages") as caught:
        read(store, part, table.schema.field("text"), rows, of)
    assert caught.value.path == part.path


def test_reading_no_rows_reads_no_pages(stored):
    store, part, table = stored
    rows, of = page_arguments(
        pages.locate_pages(store.read(part.path), ["text"])["text"], np.array([], np.int64)
    )
    assert read(store, part, table.schema.field("text"), rows, of) == []


def test_nearby_remote_pages_are_read_in_one_request(
    stored, ranges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
):
    local, part, table = stored
    remote = Store("memory://pages")
    data = local.read(part.path)
    remote.write(part.path, data)
    found = pages.locate_pages(data, ["text"])
    monkeypatch.setattr(pages, "GAP_BYTES", int(found["text"].page["size"][:4].sum()))
    first = found["text"].first
    rows = np.array([first[0], first[2], first[-3], first[-2]])
    for store, requests in ((remote, 2), (local, 3)):
        ranges.clear()
        assert look_up(store, part, found, table, "text", rows) == table["text"].take(rows).to_pylist()
        assert len(ranges) == requests


def test_truncated_read_of_pages_is_retried(stored, monkeypatch: pytest.MonkeyPatch):
    store, part, table = stored
    found = pages.locate_pages(store.read(part.path), ["text"])
    before, cuts = Store.read_range, [True, True, False]
    monkeypatch.setattr(Store, "read_range", lambda s, p, a, b: before(s, p, a, b - 9 * cuts.pop(0)))
    assert look_up(store, part, found, table, "text", np.array([4_321])) == ["4321 " * 40]
    assert cuts == []


def test_damage_names_the_right_part_when_parts_are_decoded_together(stored):
    store, part, table = stored
    other = table.set_column(1, "text", pa.array([f"other {i}" for i in range(5_000)]))
    second = write_part(store, "entities", parquet.mark_for_row_access(other))
    field, requests = table.schema.field("text"), {}
    for one in (part, second):
        found = pages.locate_pages(store.read(one.path), ["text"])["text"]
        rows, of = page_arguments(found, np.array([0, 3]))
        requests[one.path] = pages.PageRequest(one, rows.tolist(), of.tolist())
    wanted = list(requests.values())
    read_at_once = pages.read_pages(store, field, wanted)
    assert read_at_once == [array for one in wanted for array in pages.read_pages(store, field, [one])]
    wanted[1] = replace(wanted[1], rows=[n + 1 for n in wanted[1].rows])
    with pytest.raises(CorruptPart, match="damaged") as caught:
        pages.read_pages(store, field, wanted)
    assert caught.value.path == second.path


def test_claimed_sizes_do_not_allocate_memory(stored):
    """An untrusted index may name any size."""
    store, part, _ = stored
    assert len(store.read_range(part.path, 0, 1 << 50)) == part.bytes
    assert store.read_range(part.path, part.bytes + 9, part.bytes + 99) == b""


# Thrift structures


INTS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.tuples(st.just(TRUE), st.booleans()),
    st.tuples(st.just(BYTE), st.integers(0, 255)),
    st.tuples(st.sampled_from([I16, I32, I64]), INTS),
    st.tuples(st.just(DOUBLE), st.binary(min_size=8, max_size=8)),
    st.tuples(st.just(BINARY), st.binary(max_size=200)),
    st.tuples(st.just(LIST), st.tuples(st.just(I64), st.lists(INTS, max_size=40))),
    st.tuples(st.just(LIST), st.tuples(st.just(TRUE), st.lists(st.booleans(), max_size=40))),
)


def structs(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.dictionaries(st.integers(1, 2000), values, max_size=8)


NESTED = st.recursive(
    structs(VALUES),
    lambda inner: structs(
        st.one_of(
            VALUES,
            st.tuples(st.just(STRUCT), inner),
            st.tuples(st.just(LIST), st.tuples(st.just(STRUCT), st.lists(inner, max_size=4))),
        )
    ),
    max_leaves=6,
)


def plain(value):
    """Return a parsed structure without byte positions."""
    if isinstance(value, dict):
        return {number: (kind, plain(item)) for number, (kind, item, *_) in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return (value[0], plain(value[1])) if isinstance(value, tuple) else value


@given(NESTED)
def test_serialized_structs_parse_back(struct):
    data = serialize(struct)
    found, end = parse(b"xy" + data + b"z", 2)
    assert (plain(found), end) == (struct, len(data) + 2)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_parsed_or_refused(data: bytes):
    try:
        _, end = parse(data)
    except ValueError:
        return
    assert 0 < end <= len(data)


@given(NESTED, st.data())
def test_truncated_struct_is_refused(struct, data):
    whole = serialize(struct)
    with pytest.raises(ValueError, match=r"."):
        parse(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_deep_nesting_is_refused():
    for opens in (bytes([1 << 4 | STRUCT]), bytes([1 << 4 | LIST]) + bytes([1 << 4 | LIST]) * 10_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse(opens * 10_000)


def test_claimed_list_length_is_not_allocated():
    many = bytes([1 << 4 | LIST, 15 << 4 | I64]) + b"\xff\xff\xff\xff\x07"
    with pytest.raises(ValueError, match="longer than its bytes"):
        parse(many)


def test_pyarrow_footer_round_trips():
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": ["x", None], "b": [[1], []], "c": [True, False]}), sink)
    data = sink.getvalue().to_pybytes()
    footer = _footer(data)
    size = int.from_bytes(data[-8:-4], "little")
    assert serialize(footer) == data[-8 - size : -8]
