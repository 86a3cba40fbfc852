"""Workers and limiters that die during a run, once or permanently, on a real Ray cluster."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from endpoint import Answer, Endpoint
from listed import Listed
from ray.exceptions import ActorUnavailableError

from graphrag_ray.base.errors import GraphRagError
from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray import ray_executor, worker_pool
from graphrag_ray.engine.ray.ray_executor import RayExecutor
from graphrag_ray.engine.ray.worker import WorkerActor
from graphrag_ray.engine.work import Row, Work
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

CALL = CallParameters("default", "m")
ITEMS = 12
TEXTS = [f"item {i}" for i in range(ITEMS)]


def respond(body: dict[str, Any]) -> Answer:
    text = body["messages"][-1]["content"]
    return Answer(text.upper(), delay_s=4.0 if text.startswith("again") else 0.0)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(respond) as running:
        yield running


@pytest.fixture
def make(on_ray: None, endpoint: Endpoint, tmp_path: Path) -> Iterator[Callable[..., RayExecutor]]:
    """Return a function that creates executors with two workers each."""
    made: list[RayExecutor] = []

    def build(max_in_flight: int) -> RayExecutor:
        given = {"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": max_in_flight}
        settings = parse_settings(
            {"models": {"default": {"provider": "openai", "model": "m", "endpoints": [given]}}}
        )
        store = Store(str(tmp_path / "index"))
        made.append(
            RayExecutor(store, Models.from_settings(settings), journal_flush_s=0.2, workers_per_node=2)
        )
        return made[-1]

    yield build
    for executor in made:
        executor.close()


@pytest.fixture
def executor(make: Callable[..., RayExecutor]) -> RayExecutor:
    """An executor with a slot for each item, so that one worker may have all of them."""
    return make(ITEMS)


def two_turns(store: Store, row: Row) -> Generator[Any, Any, str]:
    first = yield ChatRequest("p", (Message("user", row["text"]),), CALL)
    second = yield ChatRequest("p", (Message("user", f"again {first.text}"),), CALL)
    return second.text


def label(row: Row) -> tuple[str, str]:
    return row["text"], ""


WORK = Work("echo", two_turns, label, needs_results=True)


def run(executor: RayExecutor) -> Listed:
    source = Listed(TEXTS)
    executor.sweep(WORK, source, JournalIndex.load(executor.store, "echo"))
    assert [source.outcomes[i].result for i in range(ITEMS)] == [f"AGAIN ITEM {i}" for i in range(ITEMS)]
    return source


class Once:
    """Runs an action on the cluster once all first turns are answered and journalled."""

    def __init__(self, endpoint: Endpoint, act: Callable[[], None]) -> None:
        self._endpoint, self._act = endpoint, act
        self._at: float | None = None
        self.done = False

    def __call__(self, progress: SweepProgress) -> None:
        if self._at is None and len(self._endpoint.requests) >= 2 * ITEMS:
            self._at = time.monotonic() + 1.5
        if self._at is not None and not self.done and time.monotonic() >= self._at:
            self.done = True
            self._act()


def test_items_of_a_killed_worker_are_reassigned_without_paying_twice(
    executor: RayExecutor, endpoint: Endpoint
):
    def kill() -> None:
        for worker in workers(executor):
            ray.kill(worker, no_restart=False)

    executor.on_progress = once = Once(endpoint, kill)
    run(executor)
    asked = Counter(body["messages"][-1]["content"] for body in endpoint.bodies())
    assert once.done
    assert {n for text, n in asked.items() if text.startswith("item")} == {1}
    assert {n for text, n in asked.items() if text.startswith("again")} == {2}, "in flight when they died"


def test_run_continues_without_workers_that_died_permanently(executor: RayExecutor, endpoint: Endpoint):
    def kill() -> None:
        ray.kill(workers(executor)[0])

    executor.on_progress = once = Once(endpoint, kill)
    run(executor)
    assert once.done
    endpoint.requests.clear()
    executor.on_progress = lambda progress: None
    run(executor)
    assert endpoint.requests == [], "all of it is journalled"


def test_run_without_any_workers_ends_with_a_message(executor: RayExecutor, endpoint: Endpoint):
    executor.on_progress = Once(endpoint, executor.close)
    with pytest.raises(GraphRagError, match="All LLM workers died"):
        run(executor)


def test_replies_lost_by_workers_neither_block_nor_cost_twice(
    make: Callable[..., RayExecutor], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    """Uses Ray's fault injection in the workers. `test_lost_replies.py` uses it in all processes."""
    lost = {"num_failures": 10, "req_failure_prob": 0, "resp_failure_prob": 30, "in_flight_failure_prob": 0}
    faults = json.dumps({"CoreWorkerService.grpc_client.PushTask": lost})
    broken = {"runtime_env": {"env_vars": {"RAY_testing_rpc_failure": faults}}}
    lossy = SimpleNamespace(options=lambda **given: WorkerActor.options(**broken, **given))
    monkeypatch.setattr(worker_pool, "WorkerActor", lossy)
    endpoint.respond = lambda body: Answer(body["messages"][-1]["content"].upper(), delay_s=0.1)
    until = time.monotonic() + 90

    def watch(progress: SweepProgress) -> None:
        assert time.monotonic() < until, f"{progress.done} of {ITEMS} are done"

    executor = make(4)
    executor.on_progress = watch
    run(executor)
    assert set(asked(endpoint).values()) == {1} and len(asked(endpoint)) == 2 * ITEMS


def test_workers_disconnected_for_long_are_restarted(
    executor: RayExecutor, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    """Calls to one worker seem to get lost. Its replies journalled meanwhile are not paid for twice."""
    monkeypatch.setattr(ray_executor, "UNREACHABLE_S", 0.5)
    get, until = ray.get, [0.0]

    def unreached(ref: Any, **given: Any) -> Any:
        if time.monotonic() < until[0] and not isinstance(ref, list):
            raise ActorUnavailableError("the network is broken", None)
        return get(ref, **given)

    def cut_off() -> None:
        until[0] = time.monotonic() + 1.0

    monkeypatch.setattr(ray, "get", unreached)
    executor.on_progress = once = Once(endpoint, cut_off)
    run(executor)
    assert once.done
    assert {n for text, n in asked(endpoint).items() if text.startswith("item")} == {1}
    assert {n for text, n in asked(endpoint).items() if text.startswith("again")} == {2}, "in flight then"


def test_run_continues_without_a_worker_that_never_connects(
    executor: RayExecutor, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ray_executor, "UNREACHABLE_S", 0.0)
    get, asked_first = ray.get, list[Any]()
    ask = ray_executor.WorkerConnection.ask

    def remembered(line: ray_executor.WorkerConnection, method: str, *args: Any) -> None:
        ask(line, method, *args)
        if line.member.name.endswith("-0"):
            asked_first.append(line.ref)

    def unreached(ref: Any, **given: Any) -> Any:
        if ref in asked_first:
            raise ActorUnavailableError("the network is broken", None)
        return get(ref, **given)

    def when_it_is_gone(body: dict[str, Any]) -> Answer:
        until = time.monotonic() + 120
        while len(workers(executor)) > 1 and time.monotonic() < until:
            time.sleep(0.1)
        return Answer(body["messages"][-1]["content"].upper())

    endpoint.respond = when_it_is_gone
    monkeypatch.setattr(ray_executor.WorkerConnection, "ask", remembered)
    monkeypatch.setattr(ray, "get", unreached)
    run(executor)
    assert len(asked_first) == ray_executor.MAX_RESTARTS and len(workers(executor)) == 1


class Notice:
    """Simulates a notice from the cluster, from `give` until the workers of that time are gone."""

    def __init__(self, executor: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        self._executor, self.seen = executor, worker_pool.view_nodes
        self.given: list[Any] = []
        monkeypatch.setattr(worker_pool, "view_nodes", self._now)
        monkeypatch.setattr(worker_pool, "POLL_S", 0.1)

    def give(self) -> None:
        self.given = self.given or workers(self._executor)

    def _now(self) -> worker_pool.NodeView:
        seen = self.seen()
        if any(worker in self.given for worker in workers(self._executor)):
            return [], {node.id: time.time() + 60 for node in seen[0]}
        return seen


def test_workers_on_a_node_with_notice_finish_their_calls(
    make: Callable[..., RayExecutor], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    executor = make(4)
    executor.start()
    notice = Notice(executor, monkeypatch)
    endpoint.respond = lambda body: Answer(body["messages"][-1]["content"].upper(), delay_s=1.0)

    def watch(progress: SweepProgress) -> None:
        if len(endpoint.requests) >= 8:
            notice.give()

    executor.on_progress = watch
    run(executor)
    assert len(workers(executor)) == 2 and not any(w in notice.given for w in workers(executor))
    assert set(asked(endpoint).values()) == {1} and len(asked(endpoint)) == 2 * ITEMS


def test_run_ends_with_a_message_when_its_last_node_has_notice(
    executor: RayExecutor, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    executor.start()
    gone = [], {node.id: time.time() + 60 for node in worker_pool.view_nodes()[0]}
    monkeypatch.setattr(worker_pool, "POLL_S", 0.1)
    monkeypatch.setattr(worker_pool, "view_nodes", lambda: gone)
    with pytest.raises(GraphRagError, match="All LLM workers left"):
        run(executor)
    monkeypatch.undo()
    run(executor)
    assert set(asked(endpoint).values()) == {1}


def test_restarted_limiter_still_respects_its_limit(make: Callable[..., RayExecutor], endpoint: Endpoint):
    executor = make(2)
    endpoint.respond = lambda body: Answer(body["messages"][-1]["content"].upper(), delay_s=0.5)
    killed: list[float] = []
    later: list[int] = []

    def watch(progress: SweepProgress) -> None:
        if len(endpoint.requests) >= 4 and not killed:
            assert executor._pool is not None
            pid = ray.get(executor._pool.limiters[0].__ray_call__.remote(lambda actor: os.getpid()))
            os.kill(pid, signal.SIGKILL)
            killed.append(time.monotonic())
        elif killed and len(endpoint.requests) > 8:  # The calls that the first limiter permitted have ended.
            later.append(endpoint.in_flight)

    executor.on_progress = watch
    run(executor)
    assert killed and later and max(later) <= 2
    assert set(asked(endpoint).values()) == {1}


def workers(executor: RayExecutor) -> list[Any]:
    assert executor._pool is not None
    return [member.actor for member in executor._pool.members.values()]


def asked(endpoint: Endpoint) -> Counter[str]:
    return Counter(body["messages"][-1]["content"] for body in endpoint.bodies())
