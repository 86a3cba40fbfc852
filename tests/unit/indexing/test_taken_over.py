"""Which inputs of a step the parent snapshot has the results of."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.indexing.step_result import Result, ReusePlan
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, write_part

TABLES = ("found_entities", "failures")


def of(before: Result | None, inputs: list[str], depends_on: str = "x", **more) -> ReusePlan[str]:
    return ReusePlan.create(before, "extract", inputs, depends_on, TABLES, inputs, **{"retried": "", **more})


def part(name: str) -> Part:
    return Part(f"tables/found_entities/part-{name}.parquet", 1, 1)


def done(store: Store, known: ReusePlan[str], failures: dict[str, list[Part]] | None = None) -> Result:
    written = [
        {"found_entities": [part(x)], "failures": (failures or {}).get(x, [])} for x in known.new_inputs
    ]
    return known.merge_new(store, written)


def failed(store: Store, kind: str) -> list[Part]:
    row = dict.fromkeys(schema.FAILURES.names, None) | {"kind": kind}
    return [write_part(store, "failures", pa.Table.from_pylist([row], schema=schema.FAILURES))]


def test_the_results_of_inputs_that_are_as_they_were_stay_in_the_order_of_now(tmp_path: Path):
    store = Store(str(tmp_path))
    first = done(store, of(None, ["a", "b", "c"]))
    again = of(first, ["c", "d", "a"])
    assert again.new_inputs == ["d"]
    result = done(store, again)
    assert result.tables["found_entities"] == [[part("c")], [part("d")], [part("a")]]
    assert of(result, ["a", "b", "d"]).new_inputs == ["b"]


def test_what_depends_on_other_things_is_done_again(tmp_path: Path):
    first = done(Store(str(tmp_path)), of(None, ["a", "b"]))
    assert of(first, ["a", "b"], "y").new_inputs == ["a", "b"]


def test_what_failed_for_now_is_done_again_and_what_failed_for_good_when_it_was_put_back(tmp_path: Path):
    store = Store(str(tmp_path))
    failures = {"a": failed(store, "transient"), "b": failed(store, "permanent")}
    first = done(store, of(None, ["a", "b", "c"]), failures)
    again = of(first, ["a", "b", "c"])
    assert again.new_inputs == ["a"]
    second = done(store, again)
    assert of(second, ["a", "b", "c"]).new_inputs == []
    assert of(second, ["a", "b", "c"], retried="b was put back").new_inputs == ["b"]


def test_an_input_that_every_run_does_is_never_taken_over(tmp_path: Path):
    store = Store(str(tmp_path))

    def known(before: Result | None) -> ReusePlan[str]:
        return ReusePlan.create(before, "extract", ["a"], "x", TABLES, [None], "")

    assert known(done(store, known(None), {"a": failed(store, "permanent")})).new_inputs == ["a"]
