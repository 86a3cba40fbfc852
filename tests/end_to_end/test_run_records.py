"""Every run leaves a record of its options and its outcome, with or without a snapshot."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import toy_model
from endpoint import WRONG_KEY, Answer
from world import REJECTED, TOWN, Command, World, index_command

from graphrag_ray.base.errors import Interrupted, ModelUnavailable, Terminated
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.indexing.build import previous_record
from graphrag_ray.store import locks, run_records


def status(run: Command, world: World) -> dict[str, Any]:
    return json.loads(run("status", "--root", world.root, "--json").stdout)["last_run"]  # type: ignore[no-any-return]


def plain(run: Command, world: World) -> str:
    return " ".join(run("status", "--root", world.root).stdout.split())


def test_a_successful_run_records_what_it_did(run: Command, world: World):
    world.write(TOWN)
    assert run(*index_command(world)).exit_code == 0
    found = status(run, world)
    assert (found["outcome"], found["exit_code"], found["snapshot"]) == ("committed", 0, 1)
    assert found["given"] == {"input": str(world.input), "add": False, "allow_deletes": False}
    assert {"read", "extract", "reports", "finish"} <= found["steps"].keys()
    assert found["steps"]["read"]["counts"]["documents"] == len(TOWN)
    assert {u["stage"] for u in found["usage"]} >= {"extract", "report"}
    run(*index_command(world))
    assert status(run, world)["outcome"] == "unchanged" and "nothing had changed" in plain(run, world)


def test_the_record_of_a_run_with_failed_items_has_its_exit_code(run: Command, world: World):
    world.write(TOWN)
    world.endpoint.respond = lambda body: (
        REJECTED if "bridge" in body["messages"][-1]["content"] else toy_model.respond(body)
    )
    assert run(*index_command(world)).exit_code == 3
    assert (status(run, world)["outcome"], status(run, world)["exit_code"]) == ("committed", 3)


def test_a_run_stopped_by_its_budget_records_its_cost_as_does_the_next_one(run: Command, world: World):
    world.write({f"{i}.txt": f"ANNA met B{chr(65 + i) * 3} there." for i in range(26)})
    stopped = run(*index_command(world, "--set", "budget.max_total_tokens=20000"))
    assert stopped.exit_code == 4
    found = status(run, world)
    assert (found["outcome"], found["exit_code"], found["snapshot"]) == ("budget", 4, None)
    assert "budget.max_total_tokens" in found["message"] and found["ended_at"]
    spent = sum(u["prompt_tokens"] + u["completion_tokens"] for u in found["usage"])
    assert 0 < spent <= 20_000 and f"In total, this run used {spent:,} tokens." in stopped.stderr
    assert f"was stopped by its budget. {spent:,} tokens" in plain(run, world)
    again = run(*index_command(world))
    assert again.exit_code == 0
    assert f"was stopped by its budget. It used {spent:,} tokens" in " ".join(again.stderr.split())
    world.write({"more.txt": "ZOE feeds YURI."})
    assert "The previous run" not in run(*index_command(world)).stderr


def test_without_a_snapshot_the_settings_of_the_stopped_run_are_reused(run: Command, world: World):
    world.write({f"{i}.txt": f"ANNA met B{chr(65 + i) * 3} there." for i in range(26)})
    first = ["--set", "chunking.size=300", "--set", "budget.max_total_tokens=20000"]
    assert run(*index_command(world, *first)).exit_code == 4
    before = previous_record(world.store)
    assert (
        before is not None and before.settings["chunking"]["size"] == 300 and "budget" not in before.settings
    )
    result = run("index", world.input, "--root", world.root)
    assert result.exit_code == 0 and "Using the settings of the previous run" in result.stderr
    settings = world.open().settings
    assert (settings.model("default").model, settings.chunking.size) == ("m", 300)


def test_a_rejected_key_is_recorded(world: World):
    world.write(TOWN)
    world.endpoint.respond = lambda body: WRONG_KEY
    with pytest.raises(ModelUnavailable):
        world.index()
    found = run_records.latest_run(world.store)
    assert found is not None and (found.outcome, found.exit_code) == ("refused", 1)
    assert "Incorrect API key" in found.message


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0])
def test_a_killed_run_is_known_by_its_lock_and_its_cost_by_the_journal(
    run: Command, world: World, monkeypatch: pytest.MonkeyPatch, ahead_s: float
):
    """Also if the clock of its machine was ahead."""
    world.write(TOWN)
    with monkeypatch.context() as patched:
        of_here = time.time
        patched.setattr(time, "time", lambda: of_here() + ahead_s)
        world.index(budget={"max_total_tokens": 10_000_000})
    found = run_records.latest_run(world.store)
    assert found is not None
    paid = sum(
        u["prompt_tokens"] + u["completion_tokens"] for u in found.usage["stages"] if u["stage"] != "embed"
    )
    (world.root / "snapshots" / "1.json").unlink()
    with locks.acquire(world.store) as lock:
        record = run_records.RunRecord(lock.epoch, lock.holder.nonce, 1.0, "0", given={"input": "x"})
        run_records.write_record(world.store, record)
        assert status(run, world)["outcome"] == "running" and "running since" in plain(run, world)
    assert status(run, world)["outcome"] == "killed" and "was killed" in plain(run, world)
    told = run(*index_command(world)).stderr
    assert "was killed. It used " in " ".join(told.split())
    shown = int(" ".join(told.split()).split("It used ")[1].split()[0].replace(",", ""))
    assert shown >= paid


def test_an_interrupted_run_waits_for_calls_in_flight(world: World):
    """In this process. `test_signals.py` sends real signals."""
    import signal

    world.write(TOWN)
    executor = world.executor(world.settings())
    executor.journal_flush_s = 60.0
    executor.stop.notify = world.observer.message

    def respond(body: dict[str, Any]) -> Answer:
        if len(world.endpoint.requests) == 3:
            executor.stop.handle(signal.SIGINT)
        return Answer(toy_model.respond(body), delay_s=0.4)

    world.endpoint.respond = respond
    from graphrag_ray.indexing.index import index

    with pytest.raises(Interrupted, match="run the same command again"):
        index(str(world.input), executor, world.settings(), world.observer)
    asked = [repr(b["messages"]) for b in world.endpoint.bodies()]
    assert any("in flight" in note for note in world.observer.notes)
    world.endpoint.respond = toy_model.respond
    world.index()
    after = [repr(b["messages"]) for b in world.endpoint.bodies()[len(asked) :]]
    assert set(asked).isdisjoint(after)
    assert [r.outcome for r in run_records.iter_newest_first(world.store)] == ["committed", "interrupted"]


def test_a_run_interrupted_between_stages_starts_no_further_step(world: World):
    import signal

    from graphrag_ray.indexing.index import index

    world.write(TOWN)
    executor = world.executor(world.settings())

    def watch(progress: SweepProgress) -> None:
        # Nothing reads this.
        if progress.stage == "extract" and progress.done == len(TOWN) and executor.stop.received is None:
            executor.stop.handle(signal.SIGTERM)

    executor.on_progress = watch
    with pytest.raises(Terminated):
        index(str(world.input), executor, world.settings(), world.observer)
    assert world.observer.reused.keys() == {"read", "repeats"}, "the step of the stage is not done"


def test_newer_and_damaged_records_are_skipped(world: World):
    world.store.write("runs/7.json", b'{"format": 99}')
    world.store.write("runs/9.json", b"{")
    run_records.write_record(world.store, run_records.RunRecord(3, "n", 1.0, "0", outcome="committed"))
    found = run_records.latest_run(world.store)
    assert found is not None and found.epoch == 3 and run_records.unfinished_runs(world.store) == []
    assert run_records.list_epochs(world.store) == [3, 7, 9]


def test_a_run_killed_after_its_commit_counts_as_finished(town: World, run: Command):
    run_records.write_record(town.store, run_records.RunRecord(7, "n", 1.0, "0", snapshot=1))
    assert run_records.unfinished_runs(town.store) == [] and "runs/1.json" in run_records.obsolete_files(
        town.store
    )
    assert "was killed, after it had committed snapshot 1" in plain(run, town)
