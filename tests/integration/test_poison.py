"""Items and files that crash every process that works on them are identified, and all others complete."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from endpoint import Endpoint
from listed import Listed

from graphrag_ray.base.errors import GraphRagError, ProcessDied
from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.executor import InputSplitter
from graphrag_ray.engine.input_rows import InputRows
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray.ray_executor import RayExecutor
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex
from graphrag_ray.store.parts import read_table

CALL = CallParameters("default", "m")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(lambda body: body["messages"][-1]["content"].upper()) as running:
        yield running


@pytest.fixture
def executor(on_ray: None, endpoint: Endpoint, tmp_path: Path) -> Iterator[RayExecutor]:
    given = {"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": 16}
    settings = parse_settings(
        {"models": {"default": {"provider": "openai", "model": "m", "endpoints": [given]}}}
    )
    made = RayExecutor(
        Store(str(tmp_path / "index")),
        Models.from_settings(settings),
        journal_flush_s=0.2,
        workers_per_node=2,
    )
    yield made
    made.close()


def deadly(store: Store, row: Row) -> Generator[Any, Any, str]:
    if row["text"] == "poison":
        os._exit(9)
    return _ask(row)


def _ask(row: Row) -> Generator[Any, Any, str]:
    reply = yield ChatRequest("p", (Message("user", row["text"]),), CALL)
    return reply.text


WORK = Work("echo", deadly, lambda row: (row["text"], ""), needs_results=True)


def sweep(executor: RayExecutor, texts: list[str]) -> dict[str, Outcome[str]]:
    source = Listed(texts)
    executor.sweep(WORK, source, JournalIndex.load(executor.store, "echo"))
    return {texts[number]: outcome for number, outcome in source.outcomes.items()}


@pytest.mark.timeout(480)  # Five workers die one after another, and each has to start again.
def test_item_that_crashes_workers_is_identified_and_others_complete(
    executor: RayExecutor, endpoint: Endpoint
):
    harmless = [f"item {i}" for i in range(60)]
    found = sweep(executor, [*harmless[:30], "poison", *harmless[30:]])
    assert {t: found[t].result for t in harmless} == {t: t.upper() for t in harmless}
    poison = found["poison"]
    assert poison.status == "failed" and 3 <= poison.attempts <= 6
    assert f"died {poison.attempts} times" in poison.error
    asked = len(endpoint.requests)
    again = sweep(executor, ["poison", *harmless, "new"])
    assert {t for t, o in again.items() if o.status == "failed"} == {"poison"}
    assert len(endpoint.requests) == asked + 1, "nothing is tried again of itself"


def numbers(store: Store, x: list[int]) -> Iterator[dict[str, pa.Table]]:
    if 13 in x:
        os._exit(9)
    yield {"numbers": pa.table({"n": x})}


def stream_numbers(store: Store, x: list[int]) -> Iterator[pa.Table]:
    for tables in numbers(store, x):
        yield tables["numbers"]


def named(x: list[int], why: str) -> dict[str, pa.Table]:
    return {"failures": pa.table({"n": x, "why": [why] * len(x)})}


def test_input_that_crashes_processes_is_split_and_the_cause_named(executor: RayExecutor):
    parted = InputSplitter(lambda x: [[n] for n in x], named)
    written = executor.map("step", numbers, [[1, 2], [12, 13, 14], [20]], parted)
    found = [
        [n for p in w["numbers"] for n in read_table(executor.store, [p])["n"].to_pylist()] for w in written
    ]
    assert found == [[1, 2], [12, 14], [20]]
    (failed,) = read_table(executor.store, written[1]["failures"]).to_pylist()
    assert failed["n"] == 13 and "3 processes that worked on it died" in failed["why"]


def slowly(store: Store, x: int) -> Iterator[dict[str, pa.Table]]:
    store.write(f"begun/{x}", b"")
    while not store.exists("killed"):
        time.sleep(0.05)
    yield {"numbers": pa.table({"n": [x]})}


def test_killed_attempt_counter_loses_no_work(executor: RayExecutor):
    """Started tasks continue, and the restarted counter counts later ones from zero."""

    def kill_counter() -> None:
        while not executor.store.list("begun"):
            time.sleep(0.05)
        ray.kill(executor._attempt_counter, no_restart=False)
        executor.store.write("killed", b"")

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_counter)
        written = executor.map("step", slowly, list(range(8)))
        killing.result()
    assert [read_table(executor.store, w["numbers"])["n"].to_pylist() for w in written] == [
        [n] for n in range(8)
    ]
    with pytest.raises(ProcessDied, match="3 processes that worked on it died"):
        executor.map("merge", numbers, [[1, 2], [13]])


def test_step_that_cannot_split_its_inputs_ends_with_its_name(executor: RayExecutor):
    with pytest.raises(ProcessDied, match=r"Step merge cannot process .*3 processes that worked on it died"):
        executor.map("merge", numbers, [[1, 2], [12, 13, 14]])
    with pytest.raises(ProcessDied, match="Step find cannot process"):
        list(executor.stream("find", stream_numbers, [[1, 2], [12, 13, 14]]))


def by_parity(store: Store, x: list[int]) -> Iterator[pa.Table]:
    yield pa.table({"n": x, "partition": pa.array([n % 2 for n in x], pa.int32())})


def fatal_sum(rows: pa.Table) -> dict[str, pa.Table]:
    if 13 in rows["n"].to_pylist():
        os._exit(9)
    return {"sums": pa.table({"sum": [sum(rows["n"].to_pylist())]})}


def fatal_after(store: Store, x: list[int]) -> Iterator[pa.Table]:
    yield from by_parity(store, x)
    if 13 in x:
        os._exit(9)


@pytest.mark.parametrize("partitions", [2, 17])
def test_shuffle_whose_inputs_crash_processes_ends_with_a_message(executor: RayExecutor, partitions: int):
    with pytest.raises(ProcessDied, match="3 processes that worked on it died"):
        executor.shuffle("merge", fatal_after, [[1, 2], [12, 13, 14]], fatal_sum, partitions)


@pytest.mark.parametrize("partitions", [2, 17])  # With 17 partitions, the shuffle does not use plain tasks.
def test_shuffle_whose_reduction_crashes_names_the_partition(executor: RayExecutor, partitions: int):
    with pytest.raises(ProcessDied, match=f"Step merge cannot process partition 1 of {partitions}"):
        executor.shuffle("merge", by_parity, [[1, 2], [12, 13, 14]], fatal_sum, partitions)


def fatal_rows(store: Store, rows: pa.Table) -> Iterator[dict[str, pa.Table]]:
    if 13 in rows["n"].to_pylist():
        os._exit(9)
    yield {"numbers": rows}


@pytest.mark.timeout(480)
@pytest.mark.cluster
def test_dataset_row_that_crashes_processes_fails_alone(executor: RayExecutor):
    import ray.data

    rows = InputRows(ray.data.from_arrow(pa.table({"n": [11, 12, 13, 14]})))
    parted: InputSplitter[Any] = InputSplitter(
        lambda block: [block.slice(n, 1) for n in range(block.num_rows)],
        lambda row, why: {"failures": pa.table({"n": row["n"], "why": [why]})},
    )
    (written,) = executor.map("read", fatal_rows, rows, parted)
    assert read_table(executor.store, written["numbers"])["n"].to_pylist() == [11, 12, 14]
    (failed,) = read_table(executor.store, written["failures"]).to_pylist()
    assert failed["n"] == 13 and "3 processes that worked on it died" in failed["why"]


def divided_by_nothing(store: Store, rows: pa.Table) -> Iterator[dict[str, pa.Table]]:
    yield {"numbers": rows.slice(0, 1 // 0)}


@pytest.mark.cluster
def test_bug_in_a_step_is_not_blamed_on_the_dataset(executor: RayExecutor):
    import ray.data

    rows = InputRows(ray.data.from_arrow(pa.table({"n": [11]})))
    with pytest.raises(
        GraphRagError, match="Step read: unexpected error, please report it: ZeroDivisionError"
    ):
        executor.map("read", divided_by_nothing, rows)
