"""A driver that is paused: its workers must not spend on while others may take it for dead."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from graphrag_ray.engine.ray import coordinator
from graphrag_ray.engine.ray.coordinator import Coordinator, WorkerReport
from graphrag_ray.engine.ray.once import Call
from graphrag_ray.store import locks


def test_nothing_is_handed_out_for_a_driver_that_gives_no_sign_of_life(monkeypatch: pytest.MonkeyPatch):
    async def play() -> list[int]:
        book, calls = Coordinator(), count(1)
        incarnation = await book.register(Call("w", next(calls)), "w")
        await book.exchange(Call("driver", 1), [(i, {"text": str(i)}) for i in range(4)], False, 1, 0.0)

        async def leased() -> int:
            given = await book.lease(Call("w", next(calls)), "w", incarnation, 2, WorkerReport(running=1))
            assert given is not None
            return len(given.items)

        counts = [await leased()]
        monkeypatch.setattr(coordinator, "SILENCE_S", -1.0)
        counts.append(await leased())
        monkeypatch.setattr(coordinator, "SILENCE_S", 60.0)
        return [*counts, await leased()]

    assert asyncio.run(play()) == [2, 0, 2]


def test_a_silent_driver_s_workers_stop_before_its_lock_may_be_taken_over():
    assert coordinator.SILENCE_S < locks.STALE_S
