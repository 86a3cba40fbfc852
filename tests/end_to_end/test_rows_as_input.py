"""Tables in memory and dictionaries as INPUT: indexed and updated like files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from world import TOWN, Command, World, everything

import graphrag_ray
from graphrag_ray.base.errors import DeletionRefused, InputError
from graphrag_ray.indexing.index import IndexResult

ROWS = [
    {"id": name, "text": text, "title": name.upper(), "date": "2024-05-01", "place": "town"}
    for name, text in TOWN.items()
]
INPUT = {"input": {"id_column": "id"}}


@pytest.fixture
def build(run: Command, world: World) -> Any:
    def built(rows: Any, add: bool = False, allow_deletes: bool = False, **changes: Any) -> IndexResult:
        settings = world.settings(**(INPUT | changes))
        return graphrag_ray.build_index(
            rows, str(world.root), settings=settings, add=add, allow_deletes=allow_deletes
        )

    return built


def documents(world: World) -> dict[str, dict[str, Any]]:
    return {row["row"]: row for row in world.table("documents")}


def test_columns_are_text_id_title_date_and_metadata(build: Any, world: World):
    assert build(ROWS).manifest.counts["entities"] == 10
    mill = documents(world)["mill.txt"]
    assert (mill["text"], mill["title"], mill["creation_date"]) == (
        TOWN["mill.txt"],
        "MILL.TXT",
        "2024-05-01",
    )
    assert mill["raw_data"] == '{"place": "town"}'
    world.forget()
    build(
        [{"body": row["text"], "name": row["id"]} for row in ROWS],
        input={"id_column": "name", "text_column": "body"},
    )
    assert set(documents(world)) == set(TOWN)


def test_every_kind_of_rows_gives_the_same_index(build: Any, world: World):
    table, frame = pa.Table.from_pylist(ROWS), pd.DataFrame(ROWS)
    build(ROWS)
    tables = everything(world.open())
    for same in (
        table,
        frame,
        table.to_reader(2),
        iter(ROWS),
        ROWS[::-1],
        frame.sample(frac=1, random_state=3),
    ):
        assert not build(same).committed
    assert everything(world.open()) == tables


def test_an_update_requests_only_changed_rows(build: Any, world: World):
    build(ROWS)
    asked = world.asked()
    changed = [
        row | {"text": row["text"] + " BOB met JUDY."} if row["id"] == "mill.txt" else row for row in ROWS
    ]
    done = build([*changed, {"id": "new", "text": "KIM wrote to ALICE."}])
    counts = done.manifest.counts
    assert (counts["added"], counts["changed"], counts["removed"]) == (1, 1, 0)
    assert world.prompts(asked)["extract"] == 2


def test_missing_rows_are_deleted_and_many_only_if_allowed(build: Any, world: World):
    rows = [{"id": str(n), "text": f"AX{chr(65 + n)} met BOB."} for n in range(20)]
    build(rows)
    assert build(rows[:-1]).manifest.counts["removed"] == 1
    with pytest.raises(DeletionRefused, match="would delete 9 of 19 documents"):
        build(rows[:10])
    assert not build(rows[:10], add=True).committed
    assert build(rows[:10], allow_deletes=True).manifest.counts["documents"] == 10


def test_without_an_id_column_rows_are_identified_by_content(build: Any, world: World):
    rows = [{"text": row["text"], "place": None} for row in ROWS]
    build(rows, input={})
    ids = {row["id"] for row in world.table("documents")}
    # Null columns and the order of columns do not matter.
    again = build([{"text": row["text"]} for row in reversed(ROWS)] + rows[:1], input={})
    assert not again.committed and {row["id"] for row in world.table("documents")} == ids


def test_of_rows_with_the_same_id_one_is_indexed_and_the_id_is_reported(build: Any, world: World):
    twice = {"id": "mill.txt", "text": "KIM wrote to ALICE."}
    build([*ROWS, twice])
    first = documents(world)["mill.txt"]
    build([twice, *reversed(ROWS)])
    assert documents(world)["mill.txt"] == first
    (failure,) = world.table("failures")
    assert (failure["item"], failure["document"]) == ("mill.txt", "dataset")
    assert "several rows have this id (column 'id')" in failure["error"]


def test_unreadable_rows_are_failures_and_keep_their_last_version(build: Any, world: World):
    build(ROWS)
    broken = [row | {"text": None} if row["id"] == "mill.txt" else row for row in ROWS]
    build([*broken, {"text": "no id", "id": None}, {"id": "bare"}])
    assert documents(world)["mill.txt"]["text"] == TOWN["mill.txt"]
    errors = sorted(row["error"] for row in world.table("failures"))
    assert [e.split("(")[0].partition(" has ")[2].strip() for e in errors] == ["no id", "no text", "no text"]
    assert any("keeping its version from snapshot 1" in e for e in errors)


WITHOUT_TEXT = [{"id": "1", "body": "ALICE met BOB."}, {"id": "2", "words": "x"}]


@pytest.mark.parametrize(
    "rows",
    [pa.table({"id": ["1"], "body": ["x"]}), WITHOUT_TEXT, iter(WITHOUT_TEXT)],
    ids=["table", "list", "iterator"],
)
def test_rows_without_a_text_column_are_rejected_with_their_columns(build: Any, world: World, rows: Any):
    with pytest.raises(
        InputError, match=r"no column 'text'; the columns are: id, body.* \(set input.text_column"
    ):
        build(rows)
    assert world.asked() == 0 and world.snapshots() == []


@pytest.mark.parametrize("rows", [7, [1, 2], [], pa.table({"id": ["1"], "text": [None]}), {"text": ["x"]}])
def test_other_objects_are_rejected(build: Any, rows: Any):
    with pytest.raises(InputError, match="INPUT"):
        build(rows)


def test_an_error_while_reading_rows_is_located_and_changes_nothing(build: Any, world: World):
    build(ROWS)
    asked = world.asked()

    def failing() -> Iterator[dict[str, Any]]:
        yield from ROWS[1:]
        raise ConnectionResetError("the database went away")

    with pytest.raises(
        InputError, match=r"ConnectionResetError: the database went away.*run the same command again"
    ):
        build(failing())
    assert world.snapshots() == [1] and world.asked() == asked and not build(ROWS).committed
