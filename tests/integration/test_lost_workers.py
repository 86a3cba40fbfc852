"""What dies on the way: workers, once or for good, and the coordinator. On a real Ray cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from endpoint import Answer, Endpoint

from graphrag_ray.distributed import executor as ray_executor
from graphrag_ray.distributed.executor import RayExecutor
from graphrag_ray.engine.executor import Progress
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.work import Outcome, Row, Work
from graphrag_ray.errors import GraphRagError
from graphrag_ray.messages import CallParameters, ChatRequest, Message
from graphrag_ray.settings_file import parse_settings
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

CALL = CallParameters("default", "m")
ITEMS = 12


def respond(body: dict[str, Any]) -> Answer:
    text = body["messages"][-1]["content"]
    return Answer(text.upper(), delay_s=4.0 if text.startswith("again") else 0.0)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(respond) as running:
        yield running


@pytest.fixture
def executor(on_ray: None, endpoint: Endpoint, tmp_path: Path) -> Iterator[RayExecutor]:
    """Two workers, and places for as many calls as there are items: one worker may hold them all."""
    given = {"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": ITEMS}
    settings = parse_settings(
        {"models": {"default": {"provider": "openai", "model": "m", "endpoints": [given]}}}
    )
    made = RayExecutor(Store(str(tmp_path / "index")), Models.of(settings), flush_s=0.2, workers_per_node=2)
    yield made
    made.close()


def two_turns(store: Store, row: Row) -> Generator[Any, Any, str]:
    first = yield ChatRequest("p", (Message("user", row["text"]),), CALL)
    second = yield ChatRequest("p", (Message("user", f"again {first.text}"),), CALL)
    return second.text


def label(row: Row) -> tuple[str, str]:
    return row["text"], ""


WORK = Work("echo", two_turns, label, returns=True)


class Listed:
    total = ITEMS

    def __init__(self) -> None:
        self._rows: list[Row] | None = [{"text": f"item {i}"} for i in range(ITEMS)]
        self.outcomes: dict[int, Outcome[str]] = {}

    def take(self) -> list[Row] | None:
        rows, self._rows = self._rows, None
        return rows

    def finished(self, number: int, outcome: Outcome[str]) -> None:
        assert number not in self.outcomes
        self.outcomes[number] = outcome


def run(executor: RayExecutor) -> Listed:
    source = Listed()
    executor.sweep(WORK, source, JournalIndex.load(executor.store, "echo"))
    assert [source.outcomes[i].result for i in range(ITEMS)] == [f"AGAIN ITEM {i}" for i in range(ITEMS)]
    return source


class Once:
    """Does something to the cluster when all first turns are answered and journalled."""

    def __init__(self, endpoint: Endpoint, act: Callable[[], None]) -> None:
        self._endpoint, self._act = endpoint, act
        self._at: float | None = None
        self.done = False

    def __call__(self, progress: Progress) -> None:
        if self._at is None and len(self._endpoint.requests) >= 2 * ITEMS:
            self._at = time.monotonic() + 1.5
        if self._at is not None and not self.done and time.monotonic() >= self._at:
            self.done = True
            self._act()


def test_what_a_killed_worker_had_is_done_by_others_and_what_it_journalled_is_not_paid_twice(
    executor: RayExecutor, endpoint: Endpoint
):
    def kill() -> None:
        for _, worker in executor._pool:
            ray.kill(worker, no_restart=False)

    executor.on_progress = once = Once(endpoint, kill)
    run(executor)
    asked = Counter(body["messages"][-1]["content"] for body in endpoint.bodies())
    assert once.done
    assert {n for text, n in asked.items() if text.startswith("item")} == {1}
    assert {n for text, n in asked.items() if text.startswith("again")} == {2}, "in flight when they died"


def test_workers_that_die_for_good_are_done_without(executor: RayExecutor, endpoint: Endpoint):
    def kill() -> None:
        _, worker = executor._pool[0]
        ray.kill(worker)

    executor.on_progress = once = Once(endpoint, kill)
    run(executor)
    assert once.done
    endpoint.requests.clear()
    executor.on_progress = lambda progress: None
    run(executor)
    assert endpoint.requests == [], "all of it is journalled"


def test_a_run_whose_workers_all_died_for_good_ends_and_says_so(executor: RayExecutor, endpoint: Endpoint):
    executor.on_progress = Once(endpoint, executor.close)
    with pytest.raises(GraphRagError, match="all LLM workers died"):
        run(executor)


def test_a_run_whose_coordinator_died_ends_and_says_how_to_go_on(
    executor: RayExecutor, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    started: list[Any] = []
    actor = ray_executor.CoordinatorActor

    class Remembered:
        @staticmethod
        def options(**options: Any) -> Any:
            class Made:
                @staticmethod
                def remote() -> Any:
                    started.append(actor.options(**options).remote())
                    return started[-1]

            return Made

    monkeypatch.setattr(ray_executor, "CoordinatorActor", Remembered)
    executor.on_progress = Once(endpoint, lambda: ray.kill(started[-1]))
    with pytest.raises(GraphRagError, match=r"coordinator of stage echo died.*run the same command again"):
        run(executor)
    executor.on_progress = lambda progress: None
    asked = Counter(body["messages"][-1]["content"] for body in endpoint.bodies())
    run(executor)
    again = Counter(body["messages"][-1]["content"] for body in endpoint.bodies())
    assert {n for text, n in again.items() if text.startswith("item")} == {1}, asked
