"""One writer at a time: real processes that start together, are paused, or are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_model
from endpoint import Answer
from world import Command, World, everything, index_command

from graphrag_ray.store import locks

ROUNDS = 20
Start = Callable[..., "subprocess.Popen[str]"]

TAKE = """if True:
    import sys, time
    from graphrag_ray.base.errors import LockHeld
    from graphrag_ray.store import locks
    from graphrag_ray.store.files import Store
    locks.HEARTBEAT_S, locks.POLL_S = 0.1, 0.02
    store = Store(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        while time.time() < float(line):
            pass
        try:
            with locks.acquire(store, "index docs"):
                print("works", flush=True)
                sys.stdin.readline()
                print("done", flush=True)
        except LockHeld as e:
            print(e, flush=True)
            sys.stdin.readline()
            print("done", flush=True)
"""

WRITE = """if True:
    import json, sys
    from graphrag_ray.engine.model_access import Models
    from graphrag_ray.engine.in_process import LocalExecutor
    from graphrag_ray.base.errors import GraphRagError
    from graphrag_ray.indexing.index import index
    from graphrag_ray.base.settings_file import parse_settings
    from graphrag_ray.store import locks
    from graphrag_ray.store.files import Store
    from graphrag_ray.engine.observer import Observer
    given = json.loads(sys.argv[1])
    locks.HEARTBEAT_S, locks.STALE_S = given["beat_s"], given["stale_s"]
    settings = parse_settings(given["settings"])
    executor = LocalExecutor(Store(given["root"]), Models.from_settings(settings), journal_flush_s=0.2)
    try:
        index(given["input"], executor, settings, Observer())
    except GraphRagError as e:
        print(type(e).__name__, e, flush=True)
        sys.exit(e.exit_code)
    print("committed", flush=True)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python scripts. Processes that are left are killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(script: str, *arguments: object) -> subprocess.Popen[str]:
        line = [sys.executable, "-c", script, *map(str, arguments)]
        started.append(
            subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        )
        return started[-1]

    yield begin
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[str], line: object) -> None:
    assert process.stdin
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().rstrip("\n")


def test_of_two_simultaneous_writers_one_works_and_the_other_gets_an_error(tmp_path: Path, start: Start):
    both = [start(TAKE, tmp_path / "index") for _ in range(2)]
    assert [heard(p) for p in both] == ["ready", "ready"]
    for _ in range(ROUNDS):
        at = time.time() + 0.05
        for process in both:
            say(process, at)
        said = [heard(p) for p in both]
        assert said.count("works") == 1, said
        winner, told = both[said.index("works")], said[1 - said.index("works")]
        holder = f"is being written by process {winner.pid} on {socket.gethostname()} (index docs) since 20"
        assert holder in told
        for process in both:
            say(process, "go on")
        assert [heard(p) for p in both] == ["done", "done"]


class Slow:
    """The toy model, slowed down."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __call__(self, body: dict[str, Any]) -> Answer:
        return Answer(toy_model.respond(body), delay_s=self.delay_s)


def documents(n: int) -> dict[str, str]:
    return {f"{i:03}.txt": f"A{chr(65 + i % 26)}{chr(65 + i // 26)} met BOB." for i in range(n)}


@pytest.fixture
def slow(world: World) -> World:
    """A world in which a run takes seconds: 24 documents, four concurrent calls of half a second each."""
    world.write(documents(24))
    world.endpoint.respond = Slow(0.5)
    endpoint = {"base_url": world.endpoint.base_url, "api_key_env": None, "max_in_flight": 4}
    model = {"provider": "openai", "model": "m", "endpoints": [endpoint]}
    world.changes = {"models": {"default": model}, "embeddings": {"enabled": False}}
    return world


def writer(world: World, beat_s: float = 0.2, stale_s: float = 20.0) -> str:
    settings = world.settings().model_dump(mode="json")
    given = {"root": str(world.root), "input": str(world.input), "settings": settings}
    return json.dumps({**given, "beat_s": beat_s, "stale_s": stale_s})


def until_asked(world: World, requests: int) -> None:
    end = time.monotonic() + 100
    while world.asked() < requests:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_second_command_reports_the_writer_its_start_and_its_step(slow: World, start: Start, run: Command):
    slow.write(documents(150))
    first = start(WRITE, writer(slow))
    until_asked(slow, 5)
    result = run(*index_command(slow))
    assert result.exit_code == 1
    holder = (
        f"is being written by process {first.pid} on {socket.gethostname()} (index {slow.input}) since 20"
    )
    assert holder in " ".join(result.output.split())
    told = run("status", "--root", slow.root)
    assert f"being written by process {first.pid}" in told.output


def test_a_paused_writer_cannot_commit_and_stops_spending_when_it_resumes(
    slow: World, start: Start, monkeypatch: pytest.MonkeyPatch
):
    slow.write(documents(60))
    first = start(WRITE, writer(slow, stale_s=1.0))
    until_asked(slow, 12)
    first.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(locks, "STALE_S", 1.0)
    slow.endpoint.respond = Slow(0.0)
    assert slow.index().manifest.number == 1
    taken, asked = everything(slow.open()), slow.asked()

    slow.endpoint.respond = Slow(0.5)
    first.send_signal(signal.SIGCONT)
    assert first.wait(timeout=100) == 1
    said = heard(first)
    assert said.startswith(f"LockLost The lock on {slow.root} was taken over by process {os.getpid()}")
    assert slow.asked() - asked < 40, "of some 110 that it had to ask yet"
    assert slow.snapshots() == [1] and everything(slow.open()) == taken


def test_there_is_no_wait_for_a_killed_writer_on_this_machine(
    slow: World, start: Start, monkeypatch: pytest.MonkeyPatch
):
    first = start(WRITE, writer(slow))
    until_asked(slow, 12)
    first.kill()
    first.wait()
    monkeypatch.setattr(locks, "STALE_S", 1e6)
    slow.endpoint.respond = Slow(0.0)
    assert slow.index().committed


def test_the_lock_of_a_dead_writer_elsewhere_expires(
    slow: World, start: Start, monkeypatch: pytest.MonkeyPatch
):
    first = start(WRITE, writer(slow))
    until_asked(slow, 12)
    first.kill()
    first.wait()
    lock = slow.root / "locks" / "1.json"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "machine": "another machine"}))
    monkeypatch.setattr(locks, "STALE_S", 0.6)
    slow.endpoint.respond = Slow(0.0)
    assert slow.index().committed
    assert json.loads((slow.root / "locks" / "2.json").read_text())["pid"] == os.getpid()
