"""Ctrl-C and SIGTERM, sent to a real process as terminals and job managers do, with and without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import toy_model
from endpoint import Answer, Hang
from world import World, index_command, prompt_of

from graphrag_ray.store import locks
from graphrag_ray.store.journal import JournalIndex

NO_EMBEDDINGS = {"embeddings": {"enabled": False}}


class Driver:
    """A command in its own session, as a terminal starts it.

    Its process group receives the terminal's signals.
    """

    def __init__(self, world: World, executor_option: str) -> None:
        options = index_command(world, "--set", "embeddings.enabled=false", executor_option)
        command = [sys.executable, "-m", "graphrag_ray", *map(str, options)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.02)

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> tuple[int, str]:
        stderr = self.process.communicate(timeout=120)[1]
        return self.process.returncode, stderr


@pytest.fixture(params=["--in-process", pytest.param("--ray", marks=pytest.mark.cluster)])
def start(request: pytest.FixtureRequest, world: World) -> Iterator[Callable[[], Driver]]:
    drivers: list[Driver] = []

    def start_driver() -> Driver:
        drivers.append(Driver(world, request.param))
        return drivers[-1]

    yield start_driver
    for driver in drivers:
        if driver.process.poll() is None:
            os.killpg(driver.process.pid, signal.SIGKILL)


def people(n: int) -> dict[str, str]:
    return {f"{i:02}.txt": f"ANNA met {chr(65 + i // 26)}{chr(65 + i % 26)}X at the fair." for i in range(n)}


def answered(world: World, stage: str) -> int:
    index = JournalIndex.load(world.store, stage)
    return index.count_done()


def resume_and_check(world: World, n_asked: int, max_repeated: int) -> None:
    """Run the same command again and check that few calls are repeated."""
    world.endpoint.respond = toy_model.respond
    before = [repr(b["messages"]) for b in world.endpoint.bodies()]
    assert len(before) == n_asked
    assert world.index(**NO_EMBEDDINGS).failed == 0
    after = [repr(b["messages"]) for b in world.endpoint.bodies()[n_asked:]]
    assert sum(b in set(before) for b in after) <= max_repeated


@pytest.mark.parametrize("start", ["--in-process"], indirect=True)
def test_one_ctrl_c_waits_for_calls_in_flight_and_nothing_is_paid_twice(
    world: World, start: Callable[[], Driver]
):
    world.write(people(60))
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=1.5)
    driver = start()
    driver.wait_until(lambda: world.asked() >= 20)
    driver.interrupt()
    code, stderr = driver.ended()
    assert code == 130 and "run the same command again to continue" in stderr
    assert "in flight" in stderr and "Traceback" not in stderr
    asked = world.asked()
    assert 20 <= asked < 120 and world.snapshots() == [] and locks.find_holder(world.store) is None
    resume_and_check(world, asked, max_repeated=0)


def test_a_second_ctrl_c_stops_immediately_and_earlier_replies_are_kept(
    world: World, start: Callable[[], Driver]
):
    world.write(people(60))

    def respond(body: dict[str, Any]) -> Any:
        return Hang() if "BFX" in body["messages"][-1]["content"] else toy_model.respond(body)

    world.endpoint.respond = respond
    driver = start()
    driver.wait_until(lambda: answered(world, "extract") == 59)
    driver.interrupt()
    time.sleep(1.0)
    driver.interrupt()
    code, stderr = driver.ended()
    assert code == 130 and "second Ctrl-C" in stderr and "Traceback" not in stderr
    assert locks.find_holder(world.store) is None
    resume_and_check(world, world.asked(), max_repeated=1)


@pytest.mark.parametrize("start", ["--in-process"], indirect=True)
def test_sigterm_waits_for_reports_in_flight_and_has_its_own_exit_code(
    world: World, start: Callable[[], Driver]
):
    world.write(people(20))

    def respond(body: dict[str, Any]) -> Any:
        delay_s = 1.5 if prompt_of(body) == "report" else 0.0
        return Answer(toy_model.respond(body), delay_s=delay_s)

    world.endpoint.respond = respond
    driver = start()
    driver.wait_until(lambda: world.prompts()["report"] > 0)
    driver.process.send_signal(signal.SIGTERM)
    code, stderr = driver.ended()
    assert code == 143 and "Stopped by SIGTERM" in stderr and "Traceback" not in stderr
    assert world.snapshots() == [] and locks.find_holder(world.store) is None
    resume_and_check(world, world.asked(), max_repeated=0)


def test_ctrl_c_between_calls_stops_without_waiting(world: World, start: Callable[[], Driver]):
    world.write(people(60))
    driver = start()
    driver.wait_until((world.root / "locks").exists)
    driver.interrupt()
    code, stderr = driver.ended()
    assert code == 130 and "Stopped by Ctrl-C" in stderr and "Traceback" not in stderr
    assert world.asked() == 0 and locks.find_holder(world.store) is None
    resume_and_check(world, 0, max_repeated=0)
