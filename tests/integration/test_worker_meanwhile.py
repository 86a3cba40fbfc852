"""A worker between calls of the driver, and when a call is repeated. Without Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from echo import WORK
from endpoint import Answer, Endpoint

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray import worker
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

WITHIN_S = 30


class Here(LocalLimiter):
    """A worker's connection without latency."""

    def send(self) -> None: ...

    async def reset(self) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(lambda body: Answer("an answer")) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "index"))


@pytest.fixture
def own(store: Store, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> worker.Worker:
    given = {"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": 8}
    model = {"provider": "openai", "model": "m", "endpoints": [given]}
    models = Models.from_settings(parse_settings({"models": {"default": model}}))
    monkeypatch.setattr(worker, "RayLimiter", lambda *of: Here(models.online, 8))
    return worker.Worker(worker.WorkerSettings("w", store, models, 0.05, ""))


async def began(own: worker.Worker, store: Store, number: int = 1) -> None:
    assert await own.ask(number, number, "begin", WORK, JournalIndex.load(store, WORK.name), {}) is not None


def rows(*numbers: int) -> list[tuple[int, Any]]:
    return [(number, {"text": f"item {number}"}) for number in numbers]


async def finished(own: worker.Worker, call: int, most: int) -> set[int]:
    """Return `n` finished items, as the driver learns of them from its calls from this number on."""
    found: set[int] = set()
    while len(found) < most:
        report = await own.ask(call, 1, "exchange", [], {}, 1)
        assert report is not None
        found |= {number for number, _ in report.finished}
        call += 1
    return found


def run_scenario(coroutine: Any) -> None:
    asyncio.run(asyncio.wait_for(coroutine, WITHIN_S))


def test_other_items_continue_while_a_worker_reloads_the_journal(
    store: Store, own: worker.Worker, monkeypatch: pytest.MonkeyPatch
):
    go_on, again = threading.Event(), JournalIndex.reload

    def slowly(index: JournalIndex) -> JournalIndex:
        assert go_on.wait(WITHIN_S), "nothing went on"
        return again(index)

    async def scenario() -> None:
        await began(own, store)
        report = await own.ask(2, 1, "exchange", rows(*range(6)), {0: 1, 1: 1}, 1)
        assert report is not None
        found = {number for number, _ in report.finished}
        found |= await finished(own, 3, 4 - len(found))
        assert found == {2, 3, 4, 5}
        assert JournalIndex.load(store, WORK.name).count_done() == 4
        go_on.set()
        assert await finished(own, 100, 2) == {0, 1}

    monkeypatch.setattr(JournalIndex, "reload", slowly)
    run_scenario(scenario())


def test_replies_without_a_driver_are_journalled_and_reported_later(
    store: Store, own: worker.Worker, endpoint: Endpoint
):
    async def scenario() -> None:
        await began(own, store)
        lost = asyncio.ensure_future(own.ask(2, 1, "exchange", rows(*range(6)), {}, 1))
        while JournalIndex.load(store, WORK.name).count_done() < 6:
            await asyncio.sleep(0.01)
        report = await lost
        assert report is not None
        found = {number for number, _ in report.finished}
        assert found | await finished(own, 3, 6 - len(found)) == set(range(6))

    run_scenario(scenario())
    assert len(endpoint.requests) == 6


def test_worker_without_a_driver_for_long_sends_nothing_more(
    store: Store, own: worker.Worker, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    """The worker may be restarted, and calls in flight would be paid for in vain."""
    endpoint.respond = lambda body: Answer("an answer", delay_s=0.5)
    monkeypatch.setattr(worker, "DRIVER_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        await began(own, store)
        first = await own.ask(2, 1, "exchange", rows(*range(12)), {}, 1)
        assert first is not None
        while JournalIndex.load(store, WORK.name).count_done() < 8:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert len(endpoint.requests) == 8
        assert {number for number, _ in first.finished} | await finished(own, 3, 12) == set(range(12))

    run_scenario(scenario())
    assert len(endpoint.requests) == 12


def test_repeated_call_is_executed_once_even_while_it_runs(
    store: Store, own: worker.Worker, endpoint: Endpoint
):
    async def scenario() -> None:
        await began(own, store)
        both = [own.ask(2, 1, "exchange", rows(0, 1), {}, 1) for _ in range(2)]
        one, other = await asyncio.gather(*both)
        assert one is other and await own.ask(2, 1, "exchange", rows(0, 1), {}, 1) is one
        assert await own.ask(1, 1, "exchange", rows(2), {}, 1) is None, "it is late"
        assert one is not None
        assert len(one.finished) + len(await finished(own, 3, 2 - len(one.finished))) == 2

    run_scenario(scenario())
    assert len(endpoint.requests) == 2


def test_sessions_of_earlier_processes_are_unknown_and_new_ones_end_them(
    store: Store, own: worker.Worker, endpoint: Endpoint
):
    endpoint.respond = lambda body: Answer("an answer", delay_s=0.3)

    async def scenario() -> None:
        assert await own.ask(7, 1, "exchange", rows(0), {}, 1) is None
        await began(own, store, 8)
        await own.ask(9, 8, "exchange", rows(0), {}, 1)
        await began(own, store, 10)
        assert await own.ask(11, 8, "exchange", rows(1), {}, 1) is None
        report = await own.ask(12, 10, "end", 0.0)
        assert report is not None and not report.finished

    run_scenario(scenario())
    assert len(endpoint.requests) <= 1


def test_leaving_worker_returns_unstarted_items_and_finishes_others(
    store: Store, own: worker.Worker, endpoint: Endpoint
):
    endpoint.respond = lambda body: Answer("an answer", delay_s=0.5)

    async def scenario() -> None:
        await began(own, store)
        await own.ask(2, 1, "exchange", rows(*range(12)), {}, 1)
        left = await own.ask(3, 1, "leave")
        assert left is not None and len(left.not_begun) == 4
        last = await own.ask(4, 1, "end", 10.0)
        assert last is not None
        assert {number for number, _ in last.finished} == set(range(12)) - set(left.not_begun)

    run_scenario(scenario())
    assert len(endpoint.requests) == 8


def test_limiter_knows_the_number_of_workers(store: Store, own: worker.Worker):
    async def scenario() -> None:
        await began(own, store)
        await own.ask(2, 1, "exchange", [], {}, 64)

    run_scenario(scenario())
    assert own._limiter.holders == 64
