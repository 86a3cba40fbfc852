"""The contract of all executors for tables and dialogues."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from endpoint import BROKEN, TOO_LONG, WRONG_KEY, Answer, Endpoint, unsupported
from listed import Listed

from graphrag_ray.base import logs
from graphrag_ray.base.errors import (
    BudgetSpent,
    CorruptPart,
    GraphRagError,
    Interrupted,
    LockLost,
    ModelUnavailable,
    TooManyFailures,
)
from graphrag_ray.base.index_settings import Budget
from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.base.unexpected_errors import describe_unexpected_error
from graphrag_ray.engine import interrupts
from graphrag_ray.engine.executor import Executor, RowSource, SweepProgress
from graphrag_ray.engine.in_process import LocalExecutor
from graphrag_ray.engine.model_access import Models, connect_clients
from graphrag_ray.engine.observer import Observer
from graphrag_ray.engine.process_pool import ProcessPool
from graphrag_ray.engine.spending import Spending
from graphrag_ray.engine.work import Outcome, Row, Work, replay_outcomes
from graphrag_ray.indexing.repair import compact
from graphrag_ray.indexing.run import Run
from graphrag_ray.indexing.stages.describe_stage import Group, _assemble
from graphrag_ray.llm.accounting import stored_quirks
from graphrag_ray.store import compaction, locks
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex, JournalWriter
from graphrag_ray.store.journal_rows import JournalRow
from graphrag_ray.store.parts import read_table

CALL = CallParameters("default", "m")
Make = Callable[..., Executor]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(respond=lambda body: body["messages"][-1]["content"].upper()) as running:
        yield running


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPool]:
    """A pool with two running processes."""
    processes = ProcessPool(2)
    processes.wait()
    yield processes
    processes.close()


@pytest.fixture(params=["local", "processes", pytest.param("ray", marks=pytest.mark.cluster)])
def make(request: pytest.FixtureRequest, tmp_path: Path, endpoint: Endpoint) -> Iterator[Make]:
    """Return a function that creates executors on one store, for a model with a `window`."""
    created: list[Any] = []

    def build(window: int = 128_000, **run: Any) -> Executor:
        model = {
            "context_window": window,
            "max_output_tokens": 500,
            "provider": "openai",
            "model": "m",
            "endpoints": [{"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": 16}],
        }
        settings = parse_settings({"models": {"default": model}, "run": {"journal_flush_s": 0.2, **run}})
        store, models = Store(str(tmp_path / "index")), Models.from_settings(settings)
        limit, journal_flush_s = settings.run.max_failed_fraction, settings.run.journal_flush_s
        if request.param == "local":
            return LocalExecutor(store, models, limit, journal_flush_s)
        if request.param == "processes":
            return LocalExecutor(store, models, limit, journal_flush_s, pool=request.getfixturevalue("pool"))
        request.getfixturevalue("on_ray")
        from graphrag_ray.engine.ray.ray_executor import RayExecutor

        created.append(RayExecutor(store, models, limit, journal_flush_s))
        return created[-1]

    yield build
    for executor in created:
        executor.close()


class Unpicklable:
    """An object that no other process can unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, ("no_such_module",)


@pytest.mark.cluster
def test_error_of_a_task_that_ray_cannot_run_names_the_cause_without_colours(on_ray: None, tmp_path: Path):
    from graphrag_ray.engine.ray.table_tasks import unwrap_errors

    @ray.remote(max_retries=0)
    def task(x: Any) -> None: ...

    with pytest.raises(GraphRagError) as caught, unwrap_errors("read"):
        ray.get(task.remote(Unpicklable()))
    message = str(caught.value)
    assert message.startswith("Ray could not run step read: ") and "no_such_module" in message
    assert "\x1b" not in message and "memory" not in message


def numbers(store: Store, x: range) -> Iterator[dict[str, pa.Table]]:
    yield {"numbers": pa.table({"n": list(x)})}


def by_parity(store: Store, x: range) -> Iterator[pa.Table]:
    values = list(x)
    yield pa.table({"n": values, "partition": pa.array([v % 3 for v in values], pa.int32())})


def total(rows: pa.Table) -> dict[str, pa.Table]:
    return {"totals": pa.table({"sum": [sum(rows["n"].to_pylist())], "rows": [rows.num_rows]})}


def broken(store: Store, x: int) -> Iterator[dict[str, pa.Table]]:
    raise CorruptPart(f"part {x} is torn")
    yield {}


def test_map_returns_parts_in_the_order_of_inputs(make: Make):
    executor = make()
    written = executor.map("step", numbers, [range(3), range(0), range(5, 7)])
    assert [len(w["numbers"]) for w in written] == [1, 0, 1]
    parts = [p for w in written for p in w["numbers"]]
    assert read_table(executor.store, parts)["n"].to_pylist() == [0, 1, 2, 5, 6]


def test_bug_in_a_step_is_reported_with_its_location(make: Make):
    no_parts: Any = [(Group("entity", [7], [], [], []), [])]
    with pytest.raises(AttributeError) as caught:
        make().map("describe", partial(_assemble, "o200k_base"), no_parts)
    assert re.search(r"\(store/\w+\.py:\d+\)$", describe_unexpected_error(caught.value))


def test_equal_tables_are_stored_once(make: Make):
    executor = make()
    one, two = executor.map("step", numbers, [range(3), range(3)])
    assert one == two and len(executor.store.list("tables/numbers")) == 1


@pytest.mark.parametrize(("partitions", "bundles"), [(1, None), (3, None), (17, None), (17, 3), (3, 17)])
def test_shuffle_brings_each_partition_together(make: Make, partitions: int, bundles: int | None):
    executor = make()

    def rows(store: Store, x: range) -> Iterator[pa.Table]:
        of = pa.array([v % partitions for v in x], pa.int32())
        yield pa.table({"n": list(x), "partition": of})

    written = executor.shuffle("step", rows, [range(10), range(10, 30)], total, partitions, bundles)
    sums = [read_table(executor.store, w["totals"])["sum"].to_pylist() for w in written]
    assert sums == [[sum(range(k, 30, partitions))] for k in range(partitions)]


def test_shuffle_of_many_inputs_combines_all_of_them(make: Make):
    """There are more inputs than Ray tasks that split them."""
    executor = make()

    def rows(store: Store, n: int) -> Iterator[pa.Table]:
        yield pa.table({"n": [n], "partition": pa.array([n % 3], pa.int32())})

    written = executor.shuffle("step", rows, range(150), total, 3)
    sums = [read_table(executor.store, w["totals"])["sum"].to_pylist() for w in written]
    assert sums == [[sum(range(k, 150, 3))] for k in range(3)]


def test_journal_parts_are_merged_in_batches_and_damaged_ones_set_aside(
    make: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compaction, "PIECE_PARTS", 8)
    executor = make()
    store, keys = executor.store, [f"{i:064x}" for i in range(32)]
    for i, key in enumerate(keys):
        writer = JournalWriter(store, "extract", f"w{i}")
        writer.append(JournalRow(key, 0, 0, "h", "turn", 1000.0 + i, reply=f"reply {i}"))
        path = writer.flush()
    assert path is not None
    store.write(path, b"PAR1")
    with locks.acquire(store) as lock:
        run = Run(executor, parse_settings({}), {}, None, Observer(), lock=lock)
        compact(run, ["extract"], 33)
        assert not run.seconds, "too few parts"
        compact(run, ["extract"], 32)
        assert run.maintenance["compact"] == {"parts": 32, "merged_into": 5}
        assert [info.path for info in store.list("work/extract/damaged")] and run.current_step is None
        assert len(store.list("work/extract")) == 5
        stored = JournalIndex.load(store, "extract").lookup(keys)
        assert [stored[key][0].reply for key in keys[:31]] == [f"reply {i}" for i in range(31)]
        store.create(f"locks/{lock.epoch + 1}.json", b"{}")
        with pytest.raises(LockLost):
            compact(run, ["extract"], 2)
        assert len(store.list("work/extract")) == 5, "a process without the lock deletes nothing"


def test_error_of_a_table_function_keeps_its_type(make: Make):
    with pytest.raises(CorruptPart, match="part 1 is torn"):
        make().map("step", broken, [1])


def test_no_inputs_give_no_results(make: Make):
    executor = make()
    assert executor.map("step", numbers, []) == []
    assert list(executor.stream("step", by_parity, [])) == []


def report_logging(store: Store, x: str) -> Iterator[dict[str, pa.Table]]:
    config = logs.current_config()
    yield {"logging": pa.table({"format": [config and config.format], "run": [config and config.run]})}


def test_table_functions_use_the_drivers_logging(make: Make):
    logs.configure(logs.LogConfig("info", "json", "a run"))
    executor = make()
    (written,) = executor.map("step", report_logging, ["x"])
    assert read_table(executor.store, written["logging"]).to_pylist() == [{"format": "json", "run": "a run"}]


def two_turns(store: Store, row: Row) -> Generator[Any, Any, str]:
    """Send the text, then the reply to it."""
    if row["text"] == "torn":
        raise CorruptPart("part x is torn")
    if row["text"] == "bug":
        raise ZeroDivisionError("seven by nothing")
    return ask_twice(row)


def ask_twice(row: Row) -> Generator[Any, Any, str]:
    first = yield ChatRequest("p", (Message("user", row["text"]),), CALL)
    second = yield ChatRequest("p", (Message("user", f"again {first.text}"),), CALL)
    return second.text


def label(row: Row) -> tuple[str, str]:
    return row["text"], ""


def one_turn(store: Store, row: Row) -> Generator[Any, Any, str]:
    return (yield ChatRequest("p", (Message("user", row["text"]),), CALL)).text


WORK = Work("echo", two_turns, label, needs_results=True)
ONCE = Work("echo", one_turn, label, needs_results=True)


def sweep(executor: Executor, texts: list[str]) -> Listed:
    source = Listed(texts)
    index = JournalIndex.load(executor.store, "echo")
    executor.sweep(WORK, source, index)
    return source


def test_every_item_completes_and_reports_its_result(make: Make, endpoint: Endpoint):
    source = sweep(make(), [f"item {i}" for i in range(40)])
    assert {n: o.result for n, o in source.outcomes.items()} == {i: f"AGAIN ITEM {i}" for i in range(40)}
    assert len(endpoint.requests) == 80


def test_journalled_requests_are_not_sent_again(make: Make, endpoint: Endpoint):
    executor = make()
    sweep(executor, ["a", "b"])
    again = sweep(executor, ["a", "b", "c"])
    assert [again.outcomes[i].result for i in range(3)] == ["AGAIN A", "AGAIN B", "AGAIN C"]
    assert len(endpoint.requests) == 6


def test_replaying_the_journal_reproduces_the_results(make: Make):
    executor = make()
    source = sweep(executor, ["a", "b"])
    index = JournalIndex.load(executor.store, "echo")
    replayed = replay_outcomes(WORK, executor.store, index, [{"text": "a"}, {"text": "b"}])
    assert [o.result for _, o in replayed] == [source.outcomes[i].result for i in range(2)]
    assert all(o.status == "complete" for _, o in replayed)


def test_permanent_failure_is_not_retried(make: Make, endpoint: Endpoint):
    endpoint.respond = lambda body: TOO_LONG if body["messages"][-1]["content"] == "bad" else "fine"
    executor = make()
    source = sweep(executor, ["good", "bad"])
    assert [source.outcomes[i].status for i in range(2)] == ["complete", "failed"]
    asked = len(endpoint.requests)
    again = sweep(executor, ["good", "bad"])
    assert again.outcomes[1].status == "failed" and len(endpoint.requests) == asked


def test_transient_failure_is_retried_by_the_next_run(make: Make, endpoint: Endpoint):
    endpoint.respond = lambda body: BROKEN
    executor = make(max_attempts=2, max_failed_fraction=1.0)
    source = sweep(executor, ["a"])
    assert source.outcomes[0].status == "retry" and source.outcomes[0].attempts == 2
    endpoint.respond = lambda body: "fine"
    again = sweep(executor, ["a"])
    assert again.outcomes[0].status == "complete"


def test_rejected_key_stops_the_run_without_recording_failures(make: Make, endpoint: Endpoint):
    endpoint.respond = lambda body: WRONG_KEY
    executor = make()
    with pytest.raises(ModelUnavailable, match="Incorrect API key"):
        sweep(executor, ["a", "b"])
    assert JournalIndex.load(executor.store, "echo").failed_items() == {}
    endpoint.respond = lambda body: "fine"
    assert sweep(executor, ["a", "b"]).outcomes[0].status == "complete"


def test_error_unrelated_to_items_ends_the_sweep(make: Make):
    with pytest.raises(CorruptPart, match="part x is torn"):
        sweep(make(), ["a", "torn", "b"])


def test_bug_fails_only_its_item_in_every_run(make: Make):
    executor = make()
    for _ in range(2):
        ended = sweep(executor, ["a", "bug", "b"]).outcomes
        assert [ended[i].status for i in range(3)] == ["complete", "retry", "complete"]
        assert "ZeroDivisionError: seven by nothing" in ended[1].error and ended[1].attempts == 1


def test_outcomes_are_reported_while_other_calls_are_in_flight(make: Make, endpoint: Endpoint):
    seen: dict[int, int] = {}

    class Waiting(Listed):
        def take(self) -> list[Row] | None:
            return super().take() or ([] if len(seen) < 2 else None)

        def on_finished(self, number: int, outcome: Outcome[Any]) -> None:
            seen[number] = endpoint.in_flight
            super().on_finished(number, outcome)

    endpoint.respond = lambda body: Answer("x", delay_s=4.0 if "slow" in str(body["messages"]) else 0.0)
    executor = make(journal_flush_s=60.0)
    executor.sweep(ONCE, Waiting(["fast", "slow"]), JournalIndex.load(executor.store, "echo"))
    assert seen == {0: 1, 1: 0}


def test_sweep_after_an_aborted_one_can_use_all_slots(make: Make, endpoint: Endpoint):
    class LosingLock(Listed):
        def take(self) -> list[Row] | None:
            if endpoint.in_flight < 16:
                return super().take() or []
            raise LockLost("taken over by another writer")

    endpoint.respond = lambda body: Answer("slow", delay_s=1.0)
    executor = make()
    with pytest.raises(LockLost):
        executor.sweep(
            WORK, LosingLock([f"item {i}" for i in range(40)]), JournalIndex.load(executor.store, "echo")
        )
    endpoint.respond = lambda body: "fine"
    assert len(sweep(executor, [f"again {i}" for i in range(40)]).outcomes) == 40


def test_calls_abandoned_at_the_end_count_as_paid(
    make: Make, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    class Stopped(Listed):
        def take(self) -> list[Row] | None:
            if endpoint.in_flight >= 8:
                executor.stop.received = signal.SIGINT
            return super().take() or []

    monkeypatch.setattr(interrupts, "GRACE_S", {signal.SIGINT: 0.5})
    endpoint.respond = lambda body: Answer("never", delay_s=30.0)
    executor: Any = make()
    with pytest.raises(Interrupted):
        executor.sweep(WORK, Stopped(list("abcdefgh")), JournalIndex.load(executor.store, "echo"))
    paid = executor.spending.earlier.total
    assert paid.unanswered == 8 and paid.prompt_tokens > 0


def test_replies_after_a_stop_request_are_recorded(make: Make, endpoint: Endpoint):
    class Stopped(Listed):
        def take(self) -> list[Row] | None:
            if endpoint.in_flight >= 8:
                executor.stop.received = signal.SIGINT
            return super().take() or []

    endpoint.respond = lambda body: Answer("late", delay_s=1.0)
    executor: Any = make()
    progress: list[SweepProgress] = []
    executor.on_progress = progress.append
    with pytest.raises(Interrupted):
        executor.sweep(ONCE, Stopped(list("abcdefgh")), JournalIndex.load(executor.store, "echo"))
    assert progress[-1].done == compaction.totals(executor.store, "echo").done == 8


def test_sweep_without_items_reacts_to_a_stop_request(make: Make):
    class Slow(Listed):
        def take(self) -> list[Row] | None:
            executor.stop.received = signal.SIGINT
            return []

    executor = make()
    with pytest.raises(Interrupted):
        executor.sweep(WORK, Slow(["never"]), JournalIndex.load(executor.store, "echo"))


def test_request_that_was_too_long_is_sent_with_a_larger_window(make: Make, endpoint: Endpoint):
    text = "word " * 2_000
    small, large = make(window=1_000, max_failed_fraction=1.0), make()
    assert sweep(small, [text]).outcomes[0].status == "retry"
    assert "context window of 1000" in sweep(small, [text]).outcomes[0].error
    rows = JournalIndex.load(small.store, "echo").failed_items()
    assert [len(r) for r in rows.values()] == [1] and endpoint.requests == []
    assert sweep(large, [text]).outcomes[0].status == "complete"


def test_run_in_which_most_items_fail_is_stopped_early(make: Make, endpoint: Endpoint):
    endpoint.respond = lambda body: TOO_LONG
    with pytest.raises(TooManyFailures, match="max_failed_fraction"):
        sweep(make(), [f"item {i}" for i in range(2000)])
    assert len(endpoint.requests) < 1800


def test_budget_is_nearly_used_up_without_being_exceeded(make: Make, endpoint: Endpoint):
    sent: list[int] = []

    def respond(body: dict[str, Any]) -> Answer:
        text = body["messages"][-1]["content"].upper()
        sent.append(1)
        return Answer(text, delay_s=0.02)

    endpoint.respond = respond
    executor = make()
    texts = [f"item number {i} of a long list of items that say much the same" for i in range(400)]
    executor.spending = Spending(Budget(max_total_tokens=20_000))  # type: ignore[attr-defined]
    with pytest.raises(BudgetSpent, match="max_total_tokens"):
        sweep(executor, texts)
    journal = JournalIndex.load(executor.store, "echo")
    item_tokens = 4 * 20  # two turns, each with a prompt and its echo, of about 20 tokens
    assert 0.7 * 20_000 / item_tokens < journal.count_done() < 1.3 * 20_000 / item_tokens
    assert len(sent) == 2 * journal.count_done(), "every started item was finished"
    spent = executor.spending.earlier.total
    assert spent.calls == len(sent), "spending counts even if the sweep is aborted"
    executor.spending = Spending()  # type: ignore[attr-defined]
    assert len(sweep(executor, texts).outcomes) == 400 and len(sent) == 800


def test_sweep_reports_duration_and_calls_in_flight(make: Make, endpoint: Endpoint):
    endpoint.respond = lambda body: Answer("fine", delay_s=0.3)
    source = Listed([f"item {i}" for i in range(32)])
    executor = make()
    done = executor.sweep(WORK, source, JournalIndex.load(executor.store, "echo"))
    (row,) = done.accounts.rows()
    assert row["seconds"] > 0.5 and 0 < row["mean_in_flight"] <= 16 and 1 < row["peak_in_flight"] <= 16
    assert row["share_of_limit"] is None, "no limit is known"


def test_equal_items_run_once(make: Make, endpoint: Endpoint):
    executor = make()
    table = pa.table({"text": ["same", "same", "other"], "key": ["a" * 64, "a" * 64, "b" * 64]})
    source: RowSource[str] = RowSource(iter([table]), 3)
    done = executor.sweep(WORK, source, JournalIndex.load(executor.store, "echo"))
    assert done.finished == 2 and len(endpoint.requests) == 4


def test_calls_are_accounted_by_stage_and_model(make: Make):
    executor = make()
    source = Listed(["a", "b"])
    done = executor.sweep(WORK, source, JournalIndex.load(executor.store, "echo"))
    totals = done.accounts.by_stage["echo", "m"]
    assert totals.calls == 4 and totals.prompt_tokens > 0 and totals.cost_usd is None


def test_rejected_parameter_is_learned_once_and_stored(make: Make, endpoint: Endpoint):
    refused = "temperature"

    def respond(body: dict[str, Any]) -> Any:
        return unsupported(refused) if refused in body else body["messages"][-1]["content"].upper()

    def refusals() -> int:
        return sum(refused in body for body in endpoint.bodies())

    endpoint.respond = respond
    executor = make()
    sweep(executor, [f"item {i}" for i in range(60)])
    before, learned = refusals(), executor.spending.earlier.to_dict()
    assert before >= 1
    sweep(executor, [f"more {i}" for i in range(20)])
    assert refusals() == before
    assert learned["quirks"] == {"m": {endpoint.base_url: [refused]}}
    executor.models = replace(executor.models, quirks=stored_quirks(learned))
    (client,) = connect_clients(executor.models, "default")
    assert client.quirks == {refused}
