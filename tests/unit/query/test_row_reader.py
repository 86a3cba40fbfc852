"""Reading rows of a snapshot: selection, order, caching and amount of data read."""

import pyarrow as pa
import pytest

from graphrag_ray.base import schema
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query import row_reader
from graphrag_ray.query.methods.method import Rows
from graphrag_ray.query.row_reader import ColumnCache, Reader
from graphrag_ray.store import parts
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import write_part
from graphrag_ray.store.snapshots import Manifest

N = 10


def entities(first: int) -> pa.Table:
    rows = [
        {"id": f"e{i:02}", "human_readable_id": i, "title": f"T{i}", "text_unit_ids": [f"u{i}", "all"]}
        for i in range(first, first + N)
    ]
    return pa.Table.from_pylist(rows, schema=schema.ENTITIES)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path))


@pytest.fixture
def reader(store: Store) -> Reader:
    """Three parts of ten entities."""
    stored = [write_part(store, "entities", entities(first)) for first in (0, N, 2 * N)]
    return Reader(store, Manifest(1, None, "", "", {"entities": stored}))


@pytest.fixture
def read_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """Record the path and columns of every read of a part."""
    seen: list[tuple[str, tuple[str, ...]]] = []
    before = parts.read_part

    def read_part(store, part, columns=None):
        seen.append((part.path, tuple(columns)))
        return before(store, part, columns)

    monkeypatch.setattr(parts, "read_part", read_part)
    return seen


def test_rows_are_returned_in_table_order(reader: Reader):
    found = reader.rows(Rows("entities", ["title", "id"], ["e21", "e03", "nobody", "e03"]))
    assert found.to_pylist() == [{"title": "T3", "id": "e03"}, {"title": "T21", "id": "e21"}]


def test_rows_are_selected_by_members_of_a_list_column(reader: Reader):
    found = reader.rows(Rows("entities", ["id"], ["u7", "u25"], by="text_unit_ids"))
    assert found["id"].to_pylist() == ["e07", "e25"]
    assert reader.rows(Rows("entities", ["id"], ["all"], by="text_unit_ids")).num_rows == 3 * N


@pytest.mark.parametrize("ids", [[], ["nobody"]])
def test_empty_result_has_requested_columns(reader: Reader, ids: list[str]):
    found = reader.rows(Rows("entities", ["title", "text_unit_ids"], ids))
    assert found.num_rows == 0
    assert found.schema.field("text_unit_ids").type == schema.ENTITIES.field("text_unit_ids").type


def test_missing_table_is_empty(reader: Reader):
    assert reader.rows(Rows("covariates", ["id"])).num_rows == 0
    assert reader.rows(Rows("covariates", ["id"], ["x"])).num_rows == 0


def test_only_id_column_is_read_from_large_part_without_matches(
    reader: Reader, read_of, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_reader, "READ_WHOLE_BYTES", 0)
    reader.rows(Rows("entities", ["id", "title"], ["e15"]))
    second = reader.manifest.parts("entities")[1].path
    assert [path for path, columns in read_of if "title" in columns] == [second]
    assert {columns for _, columns in read_of} == {("id",), ("title",)}


def test_large_table_is_read_without_caching(reader: Reader, monkeypatch: pytest.MonkeyPatch):
    needs = [
        Rows("entities", ["title", "id"], ["e21", "e03", "nobody"]),
        Rows("entities", ["id"], ["u7", "u25"], by="text_unit_ids"),
        Rows("entities", ["title", "text_unit_ids"], ["nobody"]),
    ]
    expected = [reader.rows(need) for need in needs]
    large = Reader(reader.store, reader.manifest)
    monkeypatch.setattr(row_reader, "MAX_CACHED_TABLE_BYTES", 0)
    assert [large.rows(need) for need in needs] == expected
    assert large.cache.get(reader.manifest.parts("entities")[0].path, ["id", "title"]) == {}


def test_columns_are_read_only_once(reader: Reader, read_of):
    need = Rows("entities", ["id", "title"], ["e15", "e16"])
    once, n = reader.rows(need), len(read_of)
    assert reader.rows(need) == once and len(read_of) == n
    assert reader.table("entities", ["title", "id"]).num_rows == 3 * N and len(read_of) == n


def test_cache_stays_within_its_limit(store: Store, reader: Reader, read_of):
    need = Rows("entities", ["id", "title"], ["e15"])
    small = Reader(store, reader.manifest, ColumnCache(limit_bytes=0))
    assert small.rows(need) == small.rows(need) == reader.rows(need)
    assert small.cache.get(reader.manifest.parts("entities")[0].path, ["id", "title"]) == {}


def test_least_recently_used_column_is_evicted():
    column = {"a": pa.chunked_array([["x" * 100]])}
    kept = ColumnCache(limit_bytes=2 * column["a"].nbytes)
    for path in ("1", "2", "3"):
        kept.add(path, column)
        assert kept.get("1", ["a"]).keys() == {"a"}
    assert kept.get("2", ["a"]) == {} and kept.get("3", ["a"]).keys() == {"a"}


def test_unknown_table_or_column_is_reported(reader: Reader):
    with pytest.raises(UsageError, match="Unknown table 'nope'"):
        reader.rows(Rows("nope", ["id"]))
    with pytest.raises(UsageError, match="entities has no column 'nope'"):
        reader.rows(Rows("entities", ["nope"]))
