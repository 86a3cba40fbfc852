"""The simulated endpoint's model of limited server capacity, on a simulated clock."""

import asyncio
import selectors
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.endpoint.capacity import Capacity


class _Jumping(selectors.SelectSelector):
    """Skips the time for which the loop would sleep."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(0)


def _run(main: Coroutine[Any, Any, Any]) -> Any:
    selector = _Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)


async def _ends(capacity: Capacity, *works: tuple[float, float]) -> list[float]:
    """Return the end times of calls with these arrival and service times."""
    loop = asyncio.get_running_loop()

    async def call(at: float, seconds: float) -> float:
        await asyncio.sleep(at)
        async with capacity.slot():
            await capacity.work(seconds)
        return loop.time()

    return list(await asyncio.gather(*(call(*w) for w in works)))


def _capacity(slots: int | None = None, batch: int | None = None, speed: float = 1.0) -> Capacity:
    capacity = Capacity(asyncio.get_running_loop())
    capacity.set(slots, batch, speed)
    return capacity


def test_without_bounds_calls_do_not_wait_for_each_other() -> None:
    async def main() -> list[float]:
        return await _ends(_capacity(), *[(0.0, 3.0)] * 100, (1.0, 1.5))

    assert _run(main()) == pytest.approx([3.0] * 100 + [2.5])


def test_calls_beyond_the_slots_queue_in_order() -> None:
    async def main() -> list[float]:
        return await _ends(_capacity(slots=2), (0.0, 2.0), (0.1, 1.0), (0.2, 1.0), (0.3, 1.0))

    assert _run(main()) == pytest.approx([2.0, 1.1, 2.1, 3.0])


def test_calls_beyond_the_batch_size_share_its_throughput() -> None:
    async def main() -> list[float]:
        return await _ends(_capacity(batch=2), *[(0.0, 1.0)] * 4, (2.0, 1.0))

    assert _run(main()) == pytest.approx([2.0] * 4 + [3.0])


def test_new_setting_affects_running_and_waiting_calls() -> None:
    async def main() -> list[float]:
        capacity = _capacity(slots=1)
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, capacity.set, 2, None, 2.0)
        return await _ends(capacity, (0.0, 3.0), (0.0, 3.0))

    assert _run(main()) == pytest.approx([2.0, 2.5])


def test_abandoned_call_frees_its_slot() -> None:
    async def main() -> list[float]:
        capacity = _capacity(slots=1)
        running = asyncio.create_task(_ends(capacity, (0.0, 100.0)))
        waiting = asyncio.create_task(_ends(capacity, (0.1, 100.0)))
        last = asyncio.create_task(_ends(capacity, (0.2, 1.0)))
        await asyncio.sleep(1.0)
        assert capacity.queued == 2
        waiting.cancel()
        running.cancel()
        return await last

    assert _run(main()) == pytest.approx([2.0])
