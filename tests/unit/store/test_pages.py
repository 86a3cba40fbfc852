"""Single rows of a part: read from the pages that hold them, and from no others."""

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


def table_of(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, of) for name, (of, _) in COLUMNS.items()]))


ROWS = st.lists(
    st.fixed_dictionaries({name: of for name, (_, of) in COLUMNS.items()}), min_size=1, max_size=30
)


def looked_up(
    store: Store, part: Part, found: dict[str, pages.Pages], table: pa.Table, name: str, rows
) -> list:
    of = found[name].of(rows)
    wanted = np.unique(of)
    read = pages.read(store, part, table.schema.field(name), found[name], wanted)
    by_page = dict(zip(wanted.tolist(), read, strict=True))
    return [
        by_page[p][r - int(found[name].first[p])].as_py()
        for p, r in zip(of.tolist(), rows.tolist(), strict=True)
    ]


@given(ROWS, st.integers(1, 4), st.data())
def test_rows_of_pages_are_those_of_the_table(tmp_path_factory, rows, many, data):
    table = table_of(rows * (many * 20))  # several pages, some of equal rows
    store = Store(str(tmp_path_factory.mktemp("pages")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_PAGE_BYTES", 64)
        patch.setattr(parquet, "_ROW_GROUP_ROWS", 100)
        part = write_part(store, "entities", table, by_row=True)
    bytes_ = store.read(part.path)
    assert pq.read_table(pa.BufferReader(bytes_)).equals(table)
    found = pages.located(bytes_, table.column_names)
    assert found.keys() == COLUMNS.keys()
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, len(table) - 1), min_size=1, max_size=20))))
    for name in table.column_names:
        assert looked_up(store, part, found, table, name, wanted) == table[name].take(wanted).to_pylist()


@pytest.fixture
def stored(tmp_path) -> tuple[Store, Part, pa.Table]:
    table = pa.table(
        {"id": [f"{i:032x}" for i in range(5_000)], "text": [f"{i} " * 40 for i in range(5_000)]}
    )
    store = Store(str(tmp_path))
    return store, write_part(store, "entities", table, by_row=True), table


def test_little_more_is_read_than_the_wanted_row(stored, monkeypatch: pytest.MonkeyPatch):
    store, part, table = stored
    found = pages.located(store.read(part.path), ["text"])
    ranges = []
    before = Store.read_range
    monkeypatch.setattr(Store, "read_range", lambda s, p, a, b: ranges.append(b - a) or before(s, p, a, b))
    assert looked_up(store, part, found, table, "text", np.array([4_321])) == ["4321 " * 40]
    assert len(ranges) == 1 and ranges[0] < 4_000


def test_a_flipped_bit_in_what_is_read_is_damage_that_names_the_part(stored):
    store, part, table = stored
    whole = store.read(part.path)
    found = pages.located(whole, ["text"])
    (page,) = found["text"].of(np.array([4_321]))
    start, size = int(found["text"].start[page]), int(found["text"].size[page])
    for at in range(start, start + size, 7):
        store.write(part.path, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CorruptPart, match=part.path.rsplit("/", 1)[-1]):
            looked_up(store, part, found, table, "text", np.array([4_321]))
    store.write(part.path, whole[:start])
    with pytest.raises(CorruptPart, match="damaged"):
        looked_up(store, part, found, table, "text", np.array([4_321]))


def test_pages_that_claim_more_rows_than_they_hold_are_damage(stored):
    """An index from a stranger may name any bytes as a page, with the right checksum."""
    store, part, table = stored
    found = pages.located(store.read(part.path), ["text"])["text"]
    wrong = replace(found, first=found.first * 2)
    with pytest.raises(CorruptPart, match="damaged"):
        pages.read(store, part, table.schema.field("text"), wrong, np.array([0, 1]))


def test_columns_with_a_dictionary_or_of_several_values_are_left_to_others(stored):
    plain = pa.table({"type": ["a", "a", "b"], "found": [[{"s": "x", "e": "y"}], [], None]})
    assert pages.located(parquet.encode(plain), ["type"]) == {}
    assert pages.located(parquet.encode(plain, by_row=True), ["type", "found"]).keys() == {"type"}


@given(st.binary(max_size=300))
def test_what_is_no_parquet_file_is_refused(data: bytes):
    for file in (data, data + b"PAR1"):
        with pytest.raises(ValueError, match=r"."):
            pages.located(file, ["id"])


def test_pages_beyond_the_file_are_never_asked_for(stored):
    """An index from a stranger may name any place."""
    store, part, table = stored
    found = pages.located(store.read(part.path), ["text"])["text"]
    huge = np.full(len(found.size), 2**31 - 1)
    for lie in ({"size": huge}, {"start": found.start + part.bytes}, {"start": found.start - 5_000_000}):
        with pytest.raises(CorruptPart, match="no such pages"):
            pages.read(store, part, table.schema.field("text"), replace(found, **lie), np.array([0, 1, 2]))
