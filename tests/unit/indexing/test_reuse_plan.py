"""Which results plan the parent snapshot a step reuses."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from graphrag_ray.base import schema
from graphrag_ray.indexing.step_result import Result, ReusePlan
from graphrag_ray.store.files import Store
from graphrag_ray.store.parts import Part, write_part

TABLES = ("found_entities", "failures")


def plan(
    parent: Result | None, inputs: list[str], depends_on: str = "x", retried: str = ""
) -> ReusePlan[str]:
    return ReusePlan.create(parent, "extract", inputs, depends_on, TABLES, inputs, retried)


def part(name: str) -> Part:
    return Part(f"tables/found_entities/part-{name}.parquet", 1, 1)


def execute(store: Store, plan: ReusePlan[str], failures: dict[str, list[Part]] | None = None) -> Result:
    written = [
        {"found_entities": [part(name)], "failures": (failures or {}).get(name, [])}
        for name in plan.new_inputs
    ]
    return plan.merge_new(store, written)


def write_failure(store: Store, kind: str) -> list[Part]:
    row = dict.fromkeys(schema.FAILURES.names, None) | {"kind": kind}
    return [write_part(store, "failures", pa.Table.from_pylist([row], schema=schema.FAILURES))]


def test_results_of_unchanged_inputs_are_reused_in_the_new_order(tmp_path: Path):
    store = Store(str(tmp_path))
    first = execute(store, plan(None, ["a", "b", "c"]))
    again = plan(first, ["c", "d", "a"])
    assert again.new_inputs == ["d"]
    result = execute(store, again)
    assert result.tables["found_entities"] == [[part("c")], [part("d")], [part("a")]]
    assert plan(result, ["a", "b", "d"]).new_inputs == ["b"]


def test_changed_dependencies_prevent_reuse(tmp_path: Path):
    first = execute(Store(str(tmp_path)), plan(None, ["a", "b"]))
    assert plan(first, ["a", "b"], "y").new_inputs == ["a", "b"]


def test_transient_failures_are_repeated_and_permanent_ones_once_retried(tmp_path: Path):
    store = Store(str(tmp_path))
    failures = {"a": write_failure(store, "transient"), "b": write_failure(store, "permanent")}
    first = execute(store, plan(None, ["a", "b", "c"]), failures)
    again = plan(first, ["a", "b", "c"])
    assert again.new_inputs == ["a"]
    second = execute(store, again)
    assert plan(second, ["a", "b", "c"]).new_inputs == []
    assert plan(second, ["a", "b", "c"], retried="b").new_inputs == ["b"]


def test_input_without_identity_is_never_reused(tmp_path: Path):
    store = Store(str(tmp_path))

    def plan_anonymous(parent: Result | None) -> ReusePlan[str]:
        return ReusePlan.create(parent, "extract", ["a"], "x", TABLES, [None], "")

    result = execute(store, plan_anonymous(None), {"a": write_failure(store, "permanent")})
    assert plan_anonymous(result).new_inputs == ["a"]
