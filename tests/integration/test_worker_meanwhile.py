"""What a worker does while it waits: for its coordinator, or until it has read the journal again.

In one process: the coordinator is called as an actor is, without Ray between.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from echo import WORK
from endpoint import Answer, Endpoint
from ray.exceptions import ActorUnavailableError

from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.ray import worker
from graphrag_ray.engine.ray.coordinator import Coordinator, End, Exchange, WorkerReport
from graphrag_ray.engine.ray.once import Call
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalIndex

WITHIN_S = 30


class Near:
    """A coordinator, as a worker sees it; and as the driver does, by `tell`."""

    def __init__(self) -> None:
        self.coordinator, self.away = Coordinator(), False
        self._numbers = count(1)

    def __getattr__(self, method: str) -> Any:
        return _Method(self, getattr(self.coordinator, method))

    async def tell(self, method: str, *args: Any) -> Any:
        return await getattr(self.coordinator, method)(Call("driver", next(self._numbers)), *args)


class Here(LocalLimiter):
    """A worker's, with nothing on its way."""

    def send(self) -> None: ...


class _Method:
    def __init__(self, near: Near, method: Callable[..., Awaitable[Any]]) -> None:
        self._near, self._method = near, method

    async def remote(self, *args: Any) -> Any:
        answer = await self._method(*args)
        if self._near.away:
            raise ActorUnavailableError("the network is broken", None)
        return answer


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(lambda body: Answer("an answer")) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "index"))


def begin(store: Store, endpoint: Endpoint, near: Near) -> asyncio.Task[End]:
    given = {"base_url": endpoint.base_url, "api_key_env": None, "max_in_flight": 8}
    model = {"provider": "openai", "model": "m", "endpoints": [given]}
    models = Models.of(parse_settings({"models": {"default": model}}))
    settings = worker.WorkerSettings("w", store, models, 0.05, "")
    index = JournalIndex.load(store, WORK.name)
    limiter: Any = Here(models.online, 8)
    return asyncio.ensure_future(worker._WorkerSweep(settings, limiter, WORK, index, near).run())


async def give(near: Near, numbers: range, closed: bool = True) -> None:
    """closed: these are all that there are."""
    await near.tell("exchange", [(i, {"text": f"item {i}"}) for i in numbers], closed, 1, 0.0)


async def finished(near: Near, number: int) -> set[int]:
    """So many items, as the driver learns of them."""
    found: set[int] = set()
    while len(found) < number:
        news: Exchange = await near.tell("exchange", [], True, 1, 0.1)
        found |= {number for number, _ in news.outcomes}
    return found


def test_while_a_worker_reads_the_journal_again_all_goes_on_but_what_was_lost(
    store: Store, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    go_on, again = threading.Event(), JournalIndex.again

    def slowly(index: JournalIndex) -> JournalIndex:
        assert go_on.wait(WITHIN_S), "nothing went on"
        return again(index)

    async def play() -> None:
        near = Near()
        await give(near, range(6))
        lost = await near.coordinator.register(Call("l", 1), "lost")
        await near.coordinator.lease(Call("l", 2), "lost", lost, 2, WorkerReport())
        await near.tell("lost", "lost")
        running = begin(store, endpoint, near)
        assert await finished(near, 4) == {2, 3, 4, 5}
        assert JournalIndex.load(store, WORK.name).keys_done() == 4
        go_on.set()
        assert await finished(near, 2) == {0, 1}
        assert await running == End.OVER

    monkeypatch.setattr(JournalIndex, "again", slowly)
    asyncio.run(asyncio.wait_for(play(), WITHIN_S))


def test_while_a_coordinator_is_out_of_reach_what_comes_back_is_journalled_and_told_later(
    store: Store, endpoint: Endpoint
):
    async def play() -> None:
        near = Near()
        running = begin(store, endpoint, near)
        await give(near, range(6))
        while len(endpoint.requests) < 6:
            await asyncio.sleep(0.01)
        near.away = True
        while JournalIndex.load(store, WORK.name).keys_done() < 6:
            await asyncio.sleep(0.01)
        near.away = False
        assert await finished(near, 6) == set(range(6))
        assert await running == End.OVER

    asyncio.run(asyncio.wait_for(play(), WITHIN_S))
    assert len(endpoint.requests) == 6


def test_a_worker_whose_coordinator_stays_out_of_reach_journals_and_says_so(
    store: Store, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    async def play() -> None:
        near = Near()
        running = begin(store, endpoint, near)
        await give(near, range(6), closed=False)
        while len(endpoint.requests) < 6:
            await asyncio.sleep(0.01)
        near.away = True
        assert await running == End.CUT_OFF

    monkeypatch.setattr("graphrag_ray.engine.ray.once.UNREACHED_S", 0.5)
    asyncio.run(asyncio.wait_for(play(), WITHIN_S))
    assert JournalIndex.load(store, WORK.name).keys_done() == 6
