import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.errors import CorruptPart
from graphrag_ray.store import parquet, parts
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("vector", pa.list_(pa.float32(), 3)),
        ("findings", pa.list_(pa.struct([("summary", pa.string()), ("n", pa.int64())]))),
    ]
)


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path))


def table(rows):
    return pa.Table.from_pylist(
        [
            {
                "id": text,
                "tags": [text] * n,
                "vector": [1.0, 2.0, float(n)],
                "findings": [{"summary": text, "n": n}] * n if n else None,
            }
            for n, text in rows
        ],
        schema=SCHEMA,
    )


def test_equal_tables_give_the_same_part(store):
    whole = table([(1, "a"), (2, "b"), (0, "c")])
    chunked = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 0), whole.slice(1)])
    marked = whole.replace_schema_metadata({"pandas": "{}", "made_by": "somebody"})
    fields = [f.with_metadata({"x": "y"}) for f in SCHEMA]
    marked_fields = whole.cast(pa.schema(fields))
    written = {parts.write_part(store, "t", t) for t in (whole, chunked, marked, marked_fields)}
    written |= {parts.write_part(store, "t", parts.read_part(store, part)) for part in written}
    assert len(written) == 1
    assert len(store.list("tables")) == 1
    assert parts.read_part(store, written.pop()).equals(whole)


def test_unchanged_part_is_not_written_again(store, monkeypatch):
    first = parts.write_part(store, "t", table([(1, "a")]))
    monkeypatch.setattr(Store, "write", None)
    assert parts.write_part(store, "t", table([(1, "a")])) == first


def test_truncated_part_is_replaced_on_writing(store):
    part = parts.write_part(store, "t", table([(1, "a")]))
    store.write(part.path, store.read(part.path)[:50])
    assert parts.write_part(store, "t", table([(1, "a")])) == part
    assert parts.read_part(store, part).equals(table([(1, "a")]))


def test_flipped_bit_is_detected_when_columns_are_read(store):
    noise = pa.array(np.random.default_rng(1).integers(0, 2**63, 200_000))
    part = parts.write_part(store, "t", pa.table({"noise": noise, "n": [0] * len(noise)}))
    whole = store.read(part.path)
    assert len(whole) > 1 << 20
    for position in range(1000, part.bytes - 10_000, part.bytes // 20):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        store.write(part.path, bytes(flipped))
        with pytest.raises(CorruptPart, match=part.path):
            parts.read_part(store, part, ["noise"])


IDS = st.sampled_from([f"{n:02}" for n in range(40)])


@given(st.lists(IDS, max_size=30), st.sets(IDS, max_size=4), st.sampled_from(["id", "tags"]), st.booleans())
def test_read_rows_equals_a_filter_of_the_table(tmp_path_factory, values, wanted, by, is_large):
    whole = table([(n % 3, value) for n, value in enumerate(values)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_ROW_GROUP_ROWS", 3)
        for module in (parquet, parts):
            patch.setattr(module, "READ_WHOLE_BYTES", 0 if is_large else 1 << 20)
        store = Store(str(tmp_path_factory.mktemp("rows")))
        part = parts.write_part(store, "t", whole)
        found = parts.read_rows(store, part, ["tags", "id"], by, pa.array(sorted(wanted), pa.string()))
    expected = [r for r in whole.to_pylist() if wanted & set(r["tags"] if by == "tags" else [r["id"]])]
    assert found.to_pylist() == [{"tags": r["tags"], "id": r["id"]} for r in expected]


def large(n=60_000):
    """A part with several row groups, sorted by id."""
    noise = np.random.default_rng(1).integers(0, 2**63, n)
    return pa.table({"id": [f"{i:032x}" for i in range(n)], "noise": noise, "more": noise[::-1]})


def test_other_columns_are_fetched_only_for_matching_parts(store, monkeypatch):
    part = parts.write_part(store, "t", large())
    fetched = []
    read_range = Store.read_range
    monkeypatch.setattr(
        Store, "read_range", lambda s, p, a, b: fetched.append(b - a) or read_range(s, p, a, b)
    )
    wanted = pa.array([f"{40_000:032x}"])
    found = parts.read_rows(store, part, ["id", "more"], "id", wanted)
    assert found["id"].to_pylist() == wanted.to_pylist() and part.bytes > 1 << 20
    assert sum(fetched) < part.bytes
    fetched.clear()
    assert parts.read_rows(store, part, ["more"], "id", pa.array(["x"])).num_rows == 0
    assert sum(fetched) < 0.6 * part.bytes


def test_flipped_bit_is_detected_when_rows_are_read(store):
    part = parts.write_part(store, "t", large())
    whole = store.read(part.path)
    row = pa.array([f"{40_000:032x}"])
    right = parts.read_rows(store, part, ["more"], "id", row)
    n_found = 0
    for position in range(100, part.bytes, part.bytes // 40):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        store.write(part.path, bytes(flipped))
        try:
            assert parts.read_rows(store, part, ["more"], "id", row).equals(right), (
                "damage outside of the read columns is not detected"
            )
        except CorruptPart as error:
            n_found += part.path in str(error)
    assert n_found > 5


def test_missing_and_short_parts_are_reported_when_rows_are_read(store):
    part = parts.write_part(store, "t", large())
    with pytest.raises(CorruptPart, match=r"it has 60,000 rows instead of 7"):
        parts.read_rows(store, Part(part.path, 7, part.bytes), ["more"], "id", pa.array(["x"]))
    store.delete(part.path)
    with pytest.raises(CorruptPart, match="is missing, although a snapshot needs it"):
        parts.read_rows(store, part, ["more"], "id", pa.array(["x"]))


def test_types_round_trip(store):
    typed = table([(2, "ü"), (0, "")])
    assert parts.read_part(store, parts.write_part(store, "t", typed)).schema == SCHEMA


@given(
    st.lists(st.tuples(st.integers(0, 3), st.text(max_size=40)), min_size=5, max_size=40),
    st.lists(st.floats(0, 1), max_size=6),
    st.integers(50, 1500),
    st.integers(1, 30),
)
def test_part_boundaries_do_not_depend_on_the_pieces(rows, cuts, max_bytes, max_rows):
    store = Store("memory://cuts")
    whole = table(rows)
    limits = {"max_bytes": max_bytes, "max_rows": max_rows}
    expected = parts.write_parts(store, "t", [whole], **limits)
    at = [0, *sorted(int(cut * whole.num_rows) for cut in cuts), whole.num_rows]
    pieces = [whole.slice(a, b - a) for a, b in itertools.pairwise(at)]
    assert parts.write_parts(store, "t", pieces, **limits) == expected
    assert all(0 < p.rows <= max_rows for p in expected)
    assert parts.read_table(store, expected, schema=SCHEMA).equals(whole.combine_chunks())


def test_part_size_is_limited_except_for_a_single_large_row(store):
    big = table([(0, "x" * size) for size in (10, 500, 5000, 10, 10)])
    written = parts.write_parts(store, "t", [big], max_bytes=1000)
    assert [p.rows for p in written] == [2, 1, 2]


def test_table_without_rows_has_no_parts(store):
    assert parts.write_parts(store, "t", [SCHEMA.empty_table()]) == []
    assert parts.read_table(store, [], schema=SCHEMA).equals(SCHEMA.empty_table())
    assert parts.read_table(store, [], ["id"], schema=SCHEMA).schema.names == ["id"]
    with pytest.raises(ValueError, match="schema"):
        parts.read_table(store, [])


def test_missing_column_is_null(store):
    old = parts.write_part(store, "t", pa.table({"id": ["a"]}))
    new = parts.write_part(store, "t", table([(1, "b")]))
    read = parts.read_table(store, [old, new], ["id", "tags"], schema=SCHEMA)
    assert read.to_pydict() == {"id": ["a", "b"], "tags": [None, ["b"]]}
    assert parts.read_part(store, old, ["id", "tags"]).schema.names == ["id"]


def test_invalid_table_name_is_refused(store):
    with pytest.raises(ValueError, match="name"):
        parts.write_part(store, "../t", table([]))


def test_estimated_row_sizes_are_close_to_memory_sizes():
    rng = np.random.default_rng(1)
    big = table([(int(n), "x" * int(size)) for n, size in rng.integers(0, [4, 500], (2000, 2))])
    assert parts._row_bytes(big).sum() == pytest.approx(big.nbytes, rel=0.2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"id": pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())}), "UTF8"),
        (pa.table({"id": [["a"]]}), "is damaged"),
    ],
    ids=["no text", "another type"],
)
def test_invalid_table_with_a_matching_hash_is_reported_as_damaged(store, table, message):
    part = parts.write_part(store, "t", table)
    with pytest.raises(CorruptPart, match=message) as caught:
        parts.read_table(store, [part], ["id"], pa.schema([("id", pa.string())]))
    assert caught.value.path == part.path
    with pytest.raises(CorruptPart, match=r"is damaged.*again with --verify"):
        parts.read_rows(store, part, ["id"], "other", pa.array(["a"]))
