"""What observers with access to the index alone see of a run: its progress, its outcome, and why none was
started."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_model
from endpoint import Answer, Status
from world import TOWN, Command, World, chain, index_command

from graphrag_ray.base.errors import ModelUnavailable
from graphrag_ray.indexing import run_record, status
from graphrag_ray.indexing.status import index_status, last_run, watch_last_run
from graphrag_ray.store import gc, locks, run_records
from graphrag_ray.store.local_files import LocalFiles

OFTEN_S = 0.05


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_record, "BEAT_INTERVAL_S", OFTEN_S)
    monkeypatch.setattr(run_record, "BEATS_PER_LOG_LINE", 1)


def when_asked(world: World, number: int, look: Callable[[], Any]) -> list[Any]:
    """The result of `look` while request number n waits for its answer."""
    found: list[Any] = []

    def respond(body: dict[str, Any]) -> Answer:
        if len(world.endpoint.requests) == number:
            time.sleep(5 * OFTEN_S)  # No request is answered meanwhile.
            found.append(look())
        return Answer(toy_model.respond(body), delay_s=OFTEN_S / 2)

    world.endpoint.respond = respond
    return found


def live_files(world: World) -> list[str]:
    return [info.path for info in world.store.list("runs") if "live" in info.path]


def test_a_run_publishes_progress_rates_and_cost_until_it_ends(
    world: World, often: None, run: Command, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "graphrag_ray")
    world.write(chain(30))
    shown: list[str] = []

    def look() -> dict[str, Any]:
        shown.append(run("status", "--root", world.root).stdout)
        shown.append(run("query", "Who?", "--root", world.root).stderr)
        return index_status(world.store)

    seen = when_asked(world, 40, look)
    price = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 1.0}
    given = {"base_url": world.endpoint.base_url, "api_key_env": None, "tokens_per_minute": 9e9}
    model = {"provider": "openai", "model": "m", "endpoints": [given | {"max_in_flight": 4}], "price": price}
    world.index(models={"default": model})
    last = seen[0]["last_run"]
    assert (last["outcome"], last["pid"], last["epoch"]) == ("running", locks.os.getpid(), 1)
    assert seen[0]["writer"] is not None and list(last["steps"]) == ["read", "repeats"]
    pace = last["reached"]["pace"]
    assert last["reached"]["step"] == pace["stage"] == "extract" and last["reached"]["age_s"] < 30
    assert 0 < pace["done"] < pace["total"] == 30 and 0 < pace["share"] < 1 and pace["failed"] == 0
    assert pace["items_per_minute"] > 0 < pace["tokens_per_minute"] and pace["calls_total"] >= 30
    assert pace["tokens_per_minute_limit"] == 9e9 and pace["cost_usd"] > 0 < pace["total_tokens"]
    told = re.search(
        r"no finished snapshot yet: process \d+ .* is building it, at extract, (\d+) of 30\. Watch it: ",
        shown[1],
    )
    assert told and 0 < int(told.group(1)) < 30
    assert "running since" in shown[0] and f"process {last['pid']} on" in shown[0]
    lines = [line.split() for line in shown[0].splitlines()]
    assert ["read"] in [line[:1] for line in lines]
    done = f"{pace['done']}/30"  # Rates are shown after a second, which this may not have taken.
    assert [line for line in lines if line[:1] == ["extract"] and done in line]
    logged = [r.graphrag_ray_fields for r in caplog.records if r.message == "progress"]  # type: ignore[attr-defined]
    assert [fields for fields in logged if fields["step"] == "extract" and fields["total"] == 30]
    assert live_files(world) == []
    after = index_status(world.store)["last_run"]
    assert (after["outcome"], after["failed"], after["exit_meaning"]) == ("committed", 0, "done")
    assert after["reached"] is None


def test_a_short_run_publishes_no_progress(world: World, monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []
    write = LocalFiles.write
    monkeypatch.setattr(
        LocalFiles, "write", lambda self, path, data: (written.append(path), write(self, path, data))
    )
    world.write(TOWN)
    world.index()
    assert [path for path in written if "live" in path] == []
    assert "runs/1.json" in written


@pytest.mark.parametrize("fault", ["hangs", "fails"])
def test_failed_heartbeats_do_not_delay_a_run(
    world: World, often: None, monkeypatch: pytest.MonkeyPatch, fault: str
):
    again, write, tried = threading.Event(), LocalFiles.write, []

    def writing(self: LocalFiles, path: str, data: bytes) -> None:
        if "live" in path:
            tried.append(path)
            if fault == "fails":
                raise OSError(errno.EACCES, "Permission denied")
            again.wait(30)
        write(self, path, data)

    monkeypatch.setattr(LocalFiles, "write", writing)
    monkeypatch.setattr(run_record, "LAST_BEAT_TIMEOUT_S", 0.1)
    world.write(TOWN)
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=OFTEN_S)
    assert world.index().failed == 0 and tried
    assert len(tried) == 1 or fault == "fails"
    again.set()


def test_a_killed_run_is_shown_with_its_last_progress(world: World, often: None, run: Command):
    world.write(chain(30))
    when_asked(world, 30, lambda: world.store.read("runs/1.live.json"))
    world.index()
    live = run_records.LiveRun("n", 7, 0.0, "extract", 61.0, {})
    with locks.acquire(world.store) as lock:
        record = run_records.RunRecord(lock.epoch, lock.holder.nonce, 1.0, "0", host="far", pid=7)
        run_records.write_record(world.store, record)
        run_records.write_live(world.store, lock.epoch, live)
        found = last_run(world.store)
        assert found is not None and found["outcome"] == "running"
    found = last_run(world.store)
    assert found is not None and (found["outcome"], found["reached"]["step"]) == ("killed", "extract")
    watching = run("status", "--root", world.root, "--watch")
    assert (
        watching.exit_code == 1
        and "started 1970-01-01T00:00:01Z: was killed (process 7 on far)" in watching.stdout
    )
    plain = " ".join(run("status", "--root", world.root).stdout.split())
    assert "last step: extract … 61 s" in plain
    # It stays until another run publishes progress.
    with locks.acquire(world.store) as lock:
        assert gc.plan_gc(world.store, gc.GcOptions(), lock).others["runs"] == []
    world.endpoint.respond = toy_model.respond
    world.index()
    with locks.acquire(world.store) as lock:
        going = {i.path for i in gc.plan_gc(world.store, gc.GcOptions(), lock).others["runs"]}
    assert {"runs/2.live.json", "runs/2.json"} <= going and "runs/4.json" not in going


def test_a_run_that_ended_early_shows_its_last_progress(world: World, run: Command):
    world.write(chain(30))
    assert run(*index_command(world, "--set", "budget.max_total_tokens=20000")).exit_code == 4
    found = json.loads(run("status", "--root", world.root, "--json").stdout)["last_run"]
    assert (found["exit_meaning"], found["failed"]) == ("stopped by a budget", None)
    assert found["reached"]["step"] == "extract" and found["reached"]["pace"]["done"] > 0
    plain = run("status", "--root", world.root).stdout
    assert "(exit code 4: stopped by a budget)" in plain and "last step: extract" in plain
    assert run("status", "--root", world.root, "--watch").exit_code == 4


def test_watch_shows_each_step_once_and_returns_the_exit_code_of_the_run(
    world: World, often: None, run: Command
):
    world.write(chain(20))
    when_asked(world, 10, lambda: None)
    seen: list[Any] = []
    running = threading.Thread(target=world.index)
    running.start()
    while not run_records.list_epochs(world.store):
        time.sleep(0.01)
    seen += watch_last_run(world.store, sleep=lambda seconds: time.sleep(OFTEN_S))
    running.join()
    assert [s["outcome"] for s in seen[:-1]] == ["running"] * (len(seen) - 1) and len(seen) > 3
    assert seen[-1]["outcome"] == "committed" and "finish" in seen[-1]["steps"]
    told = run("status", "--root", world.root, "--watch")
    assert told.exit_code == 0 and told.stdout.count("\nextract") == 1
    assert "snapshot 1 was committed (exit code 0: done)" in told.stdout
    assert json.loads(run("status", "--root", world.root, "--watch", "--json").stdout)["snapshot"] == 1


def test_a_new_run_is_not_mistaken_for_the_killed_one_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """The first one is killed, and while that is being detected the same command is started again."""
    dead = locks.acquire(world.store)
    run_records.write_record(world.store, run_records.RunRecord(dead.epoch, dead.holder.nonce, 1.0, "0"))
    begun: list[locks.Lock] = []
    living = locks.find_live_holder

    def while_it_is_watched(store: Any) -> locks.Holder | None:
        if begun:
            return living(store)
        dead.release()
        begun.append(lock := locks.acquire(store))
        run_records.write_record(store, run_records.RunRecord(lock.epoch, lock.holder.nonce, 2.0, "0"))
        return None

    monkeypatch.setattr(locks, "find_live_holder", while_it_is_watched)
    found = index_status(world.store)
    assert (found["last_run"]["epoch"], found["last_run"]["outcome"]) == (2, "running")
    assert found["writer"] is not None
    begun.pop().release()
    monkeypatch.setattr(locks, "find_live_holder", living)
    found = last_run(world.store)
    assert found is not None and found["outcome"] == "killed"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "POLL_INTERVAL_S", OFTEN_S)


@pytest.fixture
def later() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Run a function while a command waits."""
    threads: list[threading.Thread] = []

    def do(what: Callable[[], object]) -> None:
        def run() -> None:
            time.sleep(6 * OFTEN_S)
            what()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield do
    for thread in threads:
        thread.join()


def refuse(world: World) -> None:
    last = max(run_records.list_epochs(world.store), default=0)
    run_records.write_refusal(
        world.store, run_records.RefusedRun(last, time.time(), "usage", 2, "no such setting")
    )


def test_watch_returns_the_exit_code_of_an_attempt_rejected_after_the_last_run(world: World, run: Command):
    world.write(TOWN)
    assert run(*index_command(world)).exit_code == 0
    # Another attempt was rejected during the run, which does not end the watch.
    refuse(world)
    record = world.store.url_of("runs/1.json")
    os.utime(record, (time.time() + 60, time.time() + 60))
    assert run("status", "--root", world.root, "--watch").exit_code == 0
    os.utime(record, (1, 1))
    watching = run("status", "--root", world.root, "--watch")
    assert watching.exit_code == 2
    assert "no run was started. no such setting (exit code 2: wrong usage or settings)" in watching.stdout
    assert "was committed" not in watching.stdout
    watching = run("status", "--root", world.root, "--watch", "--json")
    assert watching.exit_code == 2
    assert [json.loads(line)["exit_code"] for line in watching.stdout.splitlines()] == [2]


def test_watch_can_wait_for_the_next_run(
    world: World, run: Command, quick: None, later: Callable[[Callable[[], object]], None]
):
    world.write(TOWN)
    for outcome in ("committed", "unchanged"):  # There was no index before; now there is one.
        later(world.index)
        watching = run("status", "--root", world.root, "--watch", "--next", "--json")
        last = json.loads(watching.stdout.splitlines()[-1])
        assert (watching.exit_code, last["outcome"]) == (0, outcome)
    later(lambda: refuse(world))
    watching = run("status", "--root", world.root, "--watch", "--next")
    assert watching.exit_code == 2 and "no such setting" in watching.stdout
    # An earlier run is not the next one.
    later(lambda: refuse(world))
    before = run_records.read_refusal(world.store)
    assert run("status", "--root", world.root, "--watch", "--next").exit_code == 2
    assert run_records.read_refusal(world.store) != before


def test_watch_follows_a_running_run(
    world: World, run: Command, quick: None, later: Callable[[Callable[[], object]], None]
):
    with locks.acquire(world.store) as lock:
        record = run_records.RunRecord(lock.epoch, lock.holder.nonce, 1.0, "0")
        run_records.write_record(world.store, record)
        ended = replace(record, outcome="budget", exit_code=4, ended_at=2.0)
        later(lambda: run_records.write_record(world.store, ended))
        assert run("status", "--root", world.root, "--watch", "--next").exit_code == 4


def test_waiting_for_the_next_run_times_out(
    world: World, run: Command, quick: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(status, "START_TIMEOUT_S", 2 * OFTEN_S)
    waiting = run("status", "--root", world.root, "--watch", "--next")
    assert waiting.exit_code == 1 and "No run began" in waiting.stderr
    assert run("status", "--root", world.root, "--next").exit_code == 2


def test_the_last_progress_stays_if_the_end_of_a_run_could_not_be_recorded(
    world: World, often: None, monkeypatch: pytest.MonkeyPatch
):
    write = LocalFiles.write

    def writing(self: LocalFiles, path: str, data: bytes) -> None:
        if path == "runs/1.json" and live_files(world):
            raise OSError(errno.EACCES, "Permission denied")
        write(self, path, data)

    monkeypatch.setattr(LocalFiles, "write", writing)
    world.write(chain(30))
    when_asked(world, 10, lambda: None)
    world.index()
    assert live_files(world) == ["runs/1.live.json"]
    found = last_run(world.store)
    assert found is not None and found["outcome"] == "killed" and found["reached"]["step"]


def test_a_rejected_attempt_is_shown_until_a_run_follows(world: World, run: Command, tmp_path: Path):
    world.write(TOWN)
    assert run(*index_command(world)).exit_code == 0
    nowhere = tmp_path / "nowhere"
    assert run("index", nowhere, "--root", world.root).exit_code == 2
    found = json.loads(run("status", "--root", world.root, "--json").stdout)
    assert found["last_run"]["outcome"] == "committed"
    assert (found["refused"]["exit_code"], found["refused"]["outcome"]) == (2, "usage")
    assert str(nowhere) in found["refused"]["message"] and found["refused"]["given"]["input"] == str(nowhere)
    plain = run("status", "--root", world.root).stdout
    assert "no run was started" in plain and "(exit code 2: wrong usage or settings)" in plain
    assert run(*index_command(world, "--set", "chunking.overlap=700")).exit_code == 2
    assert "overlap" in index_status(world.store)["refused"]["message"]
    with locks.acquire(world.store, note="somebody else"):
        assert run(*index_command(world)).exit_code == 1
    assert index_status(world.store)["refused"]["outcome"] == "held"
    assert run(*index_command(world)).exit_code == 0
    assert index_status(world.store)["refused"] is None


def test_a_stopped_run_is_reported_once(world: World, run: Command):
    world.write(TOWN)
    world.endpoint.respond = lambda body: Status(401, "this key may read, and not ask")
    assert run(*index_command(world)).exit_code == 1
    found = index_status(world.store)
    assert found["last_run"]["outcome"] == "refused" and found["refused"] is None
    with pytest.raises(ModelUnavailable):
        world.index()


def test_nothing_is_written_to_a_mistyped_root_except_by_jobs(
    world: World, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    attempt = ["index", tmp_path / "nowhere", "--root", world.root]
    assert run(*attempt).exit_code == 2 and not world.root.exists()
    for watch in ([], ["--watch"], ["--watch", "--json"]):
        assert run("status", "--root", world.root, *watch).exit_code == 2
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert run(*attempt).exit_code == 2
    found = index_status(world.store)
    assert found["last_run"] is None and "Nothing to read" in found["refused"]["message"]
    assert run("status", "--root", world.root).exit_code == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "does not exist"),
        ("models: [", "is not valid YAML"),
        ("storage: {regoin: r}", "unknown setting 'storage.regoin'"),
    ],
)
def test_a_job_records_invalid_settings_next_to_the_index(
    world: World, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, told: str
):
    config = tmp_path / "settings.yaml"
    if text is not None:
        config.write_text(text)
    attempt = ["index", world.input, "--root", world.root, "--config", config]
    assert run(*attempt).exit_code == 2 and not world.root.exists()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert told in run(*attempt).stderr
    found = index_status(world.store)["refused"]
    assert found["exit_code"] == 2 and told in found["message"]
    assert run("status", "--root", world.root, "--watch").exit_code == 2


def test_a_settings_file_with_input_and_root_is_sufficient(world: World, run: Command, tmp_path: Path):
    world.write(TOWN)
    given = {"base_url": world.endpoint.base_url, "api_key_env": None}
    model = {"provider": "openai", "model": "m", "endpoints": [given]}
    settings = {"root": "index", "input": {"url": "input"}, "models": {"default": model}}
    config = tmp_path / "settings.yaml"
    config.write_text(json.dumps(settings))
    for place in (config, config.as_uri()):
        assert run("index", "--config", place).exit_code == 0
    assert "snapshot 1, " in run("status", "--config", config).stdout
    assert run("query", "What about ALICE ?", "--config", config.as_uri()).exit_code == 0
    kept = world.open().manifest.settings
    assert "root" not in kept and "url" not in kept["input"]
    config.write_text("{}")
    told = run("index", "--config", config)
    assert told.exit_code == 2 and f"add `root` to {config}" in told.stderr
    told = run("index", "--root", world.root, "--config", config)
    assert told.exit_code == 2 and "input.url" in told.stderr
