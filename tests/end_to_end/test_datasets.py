"""Ray Data datasets as INPUT, on a real Ray: the result equals that of a table in memory, whatever the
blocks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from test_rows_as_input import INPUT, ROWS
from world import World

import graphrag_ray
from graphrag_ray.base.errors import InputError
from graphrag_ray.indexing.index import IndexResult

NEW = {"id": "new", "text": "KIM thanked ALICE."}

pytestmark = pytest.mark.cluster


@pytest.fixture
def data(on_ray: None) -> Any:
    import ray.data

    return ray.data


def build(world: World, rows: Any, on_ray: bool | None = None) -> IndexResult:
    return graphrag_ray.build_index(rows, str(world.root), settings=world.settings(**INPUT), on_ray=on_ray)


def test_a_dataset_gives_the_corpus_of_its_rows_whatever_its_blocks(data: Any, world: World, tmp_path: Any):
    build(world, ROWS, on_ray=False)
    data.from_items(ROWS[:2]).write_parquet(str(tmp_path / "rows"))
    others = data.from_items(ROWS[:1:-1], override_num_blocks=2)
    assert not build(world, data.read_parquet(str(tmp_path / "rows")).union(others)).committed
    assert not build(world, iter(ROWS)).committed, "by tasks of the cluster, too"
    index = world.open()
    found = index.dataset("entities", ["title", "degree"])
    assert found.count() == 10 and found.schema().names == ["title", "degree"]
    assert sorted(found.take_all(), key=str) == sorted(
        index.table("entities", ["title", "degree"]).to_pylist(), key=str
    )
    assert index.dataset("embeddings_entity").map(lambda row: {"n": len(row["vector"])}).max("n") > 100
    assert index.dataset("covariates").count() == 0
    asked = data.from_items([{"question": f"What about {name} ?"} for name in ("ALICE", "JUDY")])
    answers = index.ask_all(asked, method="hybrid")
    assert {row["question"]: row["text"] for row in answers.take_all()} == {
        q: index.ask(q, method="hybrid").text for q in ("What about ALICE ?", "What about JUDY ?")
    }


def test_blocks_may_differ_in_columns_and_repeat_ids(data: Any, world: World):
    blocks = [
        pa.Table.from_pylist(ROWS[:3]),
        pa.table({"id": ["a"], "text": ["KIM wrote to ALICE."], "rating": [4]}),
        pa.table({"id": ["b"], "words": ["no text"]}),
        pa.table({"id": pa.array(["c", None]), "text": pa.array([None, "no id"])}),
        pa.table({"id": ["a"], "text": ["KIM wrote to BOB."], "rating": [5]}),
    ]
    build(world, data.from_arrow(blocks))
    assert {row["row"] for row in world.table("documents")} == {*[r["id"] for r in ROWS[:3]], "a"}
    failed = {row["item"]: row["error"] for row in world.table("failures")}
    assert (
        "several rows have this id" in failed["a"] and "no text" in failed["b"] and "no text" in failed["c"]
    )
    assert len(failed) == 4 and any("has no id (column 'id')" in error for error in failed.values())

    asked = world.asked()
    counts = build(world, data.from_arrow(blocks[::-1]).union(data.from_items([NEW]))).manifest.counts
    assert (counts["added"], counts["changed"], counts["removed"]) == (1, 0, 0)
    assert world.prompts(asked)["extract"] == 1


def test_an_unreadable_dataset_is_reported_before_any_call(data: Any, world: World):
    build(world, ROWS, on_ray=False)
    asked = world.asked()

    def fail_at_the_mill(block: pa.Table) -> pa.Table:
        if "mill.txt" in block["id"].to_pylist():
            raise ConnectionResetError("the database went away")
        return block

    failing = data.from_items(ROWS).map_batches(fail_at_the_mill, batch_format="pyarrow")
    with pytest.raises(
        InputError, match=r"ConnectionResetError: the database went away.*run the same command again"
    ):
        build(world, failing)
    with pytest.raises(
        InputError, match=r"no column 'text'; the columns are: id, body \(set input.text_column"
    ):
        build(world, data.from_items([{"id": "1", "body": "x"}]))
    with pytest.raises(InputError, match="has no rows"):
        build(world, data.from_items(ROWS).filter(lambda row: False))
    assert world.asked() == asked and world.snapshots() == [1]
