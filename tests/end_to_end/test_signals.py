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

    def __init__(self, world: World, where: str) -> None:
        options = index_command(world, "--set", "embeddings.enabled=false", where)
        line = [sys.executable, "-m", "graphrag_ray", *map(str, options)]
        self.process = subprocess.Popen(
            line,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until(self, seen: Callable[[], bool]) -> None:
        until = time.monotonic() + 120
        while not seen():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < until, "nothing to see"
            time.sleep(0.02)

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> tuple[int, str]:
        told = self.process.communicate(timeout=120)[1]
        return self.process.returncode, told


@pytest.fixture(params=["--in-process", pytest.param("--ray", marks=pytest.mark.cluster)])
def start(request: pytest.FixtureRequest, world: World) -> Iterator[Callable[[], Driver]]:
    made: list[Driver] = []

    def begin() -> Driver:
        made.append(Driver(world, request.param))
        return made[-1]

    yield begin
    for driver in made:
        if driver.process.poll() is None:
            os.killpg(driver.process.pid, signal.SIGKILL)


def people(n: int) -> dict[str, str]:
    return {f"{i:02}.txt": f"ANNA met {chr(65 + i // 26)}{chr(65 + i % 26)}X at the fair." for i in range(n)}


def answered(world: World, stage: str) -> int:
    index = JournalIndex.load(world.store, stage)
    return index.count_done()


def go_on(world: World, asked: int, at_most_again: int) -> None:
    """Run the same command again, to its end."""
    world.endpoint.respond = toy_model.respond
    before = [repr(b["messages"]) for b in world.endpoint.bodies()]
    assert len(before) == asked
    assert world.index(**NO_EMBEDDINGS).failed == 0
    after = [repr(b["messages"]) for b in world.endpoint.bodies()[asked:]]
    assert sum(b in set(before) for b in after) <= at_most_again


@pytest.mark.parametrize("start", ["--in-process"], indirect=True)
def test_one_ctrl_c_waits_for_calls_in_flight_and_nothing_is_paid_twice(
    world: World, start: Callable[[], Driver]
):
    world.write(people(60))
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=1.5)
    driver = start()
    driver.wait_until(lambda: world.asked() >= 20)
    driver.interrupt()
    code, told = driver.ended()
    assert code == 130 and "run the same command again to continue" in told
    assert "in flight" in told and "Traceback" not in told
    asked = world.asked()
    assert 20 <= asked < 120 and world.snapshots() == [] and locks.find_holder(world.store) is None
    go_on(world, asked, at_most_again=0)


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
    code, told = driver.ended()
    assert code == 130 and "second Ctrl-C" in told and "Traceback" not in told
    assert locks.find_holder(world.store) is None
    go_on(world, world.asked(), at_most_again=1)


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
    code, told = driver.ended()
    assert code == 143 and "Stopped by SIGTERM" in told and "Traceback" not in told
    assert world.snapshots() == [] and locks.find_holder(world.store) is None
    go_on(world, world.asked(), at_most_again=0)


def test_ctrl_c_between_calls_stops_without_waiting(world: World, start: Callable[[], Driver]):
    world.write(people(60))
    driver = start()
    driver.wait_until((world.root / "locks").exists)
    driver.interrupt()
    code, told = driver.ended()
    assert code == 130 and "Stopped by Ctrl-C" in told and "Traceback" not in told
    assert world.asked() == 0 and locks.find_holder(world.store) is None
    go_on(world, 0, at_most_again=0)
